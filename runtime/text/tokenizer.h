/* tokenizer.h - text to token ids and back: BPE of bytes or with byte fallback, as the
 * tokenizer.json of GPT-2, GPT-NeoX, Llama, Mistral and Qwen2 have it, or plain bytes; and
 * the training of a new BPE. */
#ifndef STATOR_TOKENIZER_H
#define STATOR_TOKENIZER_H
#include "base/base.h"

typedef struct Tokenizer Tokenizer;
typedef struct TokenizerCache TokenizerCache;

/* Where a tokenizer comes from; fields that do not apply are NULL.
 *   "GPT2BPETokenizer"  vocab_file + merge_file (vocab.json and merges.txt, or
 *                       encoder.json and vocab.bpe), or tokenizer_file (tokenizer.json)
 *   "GPT2Folder"        vocab_file + merge_file of a Hugging Face folder, whose
 *                       tokenizer_config.json counts; of no other family than GPT-2
 *   "ByteTokenizer"     no file: id = byte, vocab 256, no special token, eod -1
 * type NULL means GPT2BPETokenizer. */
typedef struct TokenizerSpec {
    const char *type, *vocab_file, *merge_file, *tokenizer_file;
} TokenizerSpec;

enum {
    TOKENIZER_MAX_FILE_BYTES = 64 << 20,
    TOKENIZER_MAX_ALONG_BYTES = 4 << 20, /* of a file that is only taken along */
    TOKENIZER_MAX_TEXT_BYTES = 1 << 30
};

/* Opens it; it lives as long as `mem`, and any number of threads may use it at once.
 * The tokenizer_config.json (tokenizer_spec_files), if there is one, names the tokens that
 * begin and end a text; otherwise they are those with a usual name. Other files that belong
 * to it (along.h) are kept as they are, for tokenizer_write.
 * Fails with EXIT_CONFIG for a spec that names no tokenizer, and EXIT_DATA, with file and
 * line, for files that are damaged, disagree, or ask for what is not built in. */
Tokenizer *tokenizer_open(Arena *mem, const TokenizerSpec *spec);
/* Fails with EXIT_CONFIG unless there is such a type. */
void tokenizer_check_type(const char *type);
/* The same from bytes in memory; the names are for messages. vocab.json + merges.txt: */
Tokenizer *tokenizer_of_vocab(Arena *mem, const char *vocab_name, const char *vocab,
                              size_t vocab_bytes, const char *merges_name,
                              const char *merges, size_t merges_bytes);
Tokenizer *tokenizer_of_json(Arena *mem, const char *name, const char *json, size_t n);
/* The files that decide which tokens a text has: those of the spec and the tokenizer_config.json
 * beside a tokenizer.json or the pair of a folder, which says its special tokens. NULL where
 * there is none, or none counts. */
enum { TOKENIZER_FILES = 4 };
void tokenizer_spec_files(Arena *mem, const TokenizerSpec *spec,
                          const char *path[TOKENIZER_FILES]);

/* A tokenizer_config.json, which must stay in place: its bos_token and eos_token become
 * those of t, a tokenizer of tokenizer_of_json or tokenizer_of_vocab. */
void tokenizer_take_config(Arena *mem, Tokenizer *t, const char *name, const char *json,
                           size_t n);

/* Are there tokens of single bytes for characters that have none? */
bool tokenizer_falls_back(const Tokenizer *t);
int64_t tokenizer_vocab(const Tokenizer *t); /* ids are 0..vocab-1 */
/* Does it cut texts as that of Qwen2 does, in the form NFC? */
bool tokenizer_is_qwen2(const Tokenizer *t);
int64_t tokenizer_eod(const Tokenizer *t); /* the token that ends a text, -1: none */
int64_t tokenizer_bos(const Tokenizer *t); /* that begins one, -1: none */
/* Is this id a special token (bos and eod, say), whose text is none of the text? */
bool tokenizer_special(const Tokenizer *t, int32_t id);
/* What the file's template puts before and behind a text, *n ids: usually bos before, or
 * nothing. */
const int32_t *tokenizer_prefix(const Tokenizer *t, int *n);
const int32_t *tokenizer_suffix(const Tokenizer *t, int *n);
/* One line for people: kind, vocabulary, merges, special tokens. */
const char *tokenizer_describe(const Tokenizer *t);

/* What one thread keeps between texts: words it has seen (about 2 MB, never more) and
 * room to work in. Free it with tokenizer_cache_free. */
TokenizerCache *tokenizer_cache_new(void);
void tokenizer_cache_free(TokenizerCache *c);

/* Ids of text[n], without what a template puts around. Returns how many ids the text has
 * and writes the first `cap` of them; cap >= tokenizer_max_tokens(t, n) is always enough.
 * Special tokens are found only with allow_special; otherwise their text is text like any
 * other. Added tokens that are not special are always found. BPE sees each maximal
 * invalid part of UTF-8 as one U+FFFD (Unicode 15, 3.9, as in Python's errors="replace")
 * and adds their number to *bad_utf8 (may be NULL). A cache serves one thread and one
 * tokenizer at a time; it empties itself when it meets another tokenizer.
 * Fails with EXIT_DATA above TOKENIZER_MAX_TEXT_BYTES. */
size_t tokenizer_encode(const Tokenizer *t, TokenizerCache *c, const char *text, size_t n,
                        bool allow_special, int32_t *out, size_t cap, uint64_t *bad_utf8);
size_t tokenizer_max_tokens(const Tokenizer *t, size_t n);

/* Where to cut text[n] so that the parts, encoded one by one, have the ids of the whole: at
 * a space between two characters that are none, at most `most` bytes (4 at least) from its
 * beginning. Returns the bytes of the first part, *next is where the second begins. A text
 * without such a space is cut between any two characters. */
size_t tokenizer_cut(const Tokenizer *t, const char *text, size_t n, size_t most,
                     size_t *next);

/* Bytes of ids[n], special tokens as their text; they need not be valid UTF-8. Returns how many
 * bytes there are and writes the first `cap`; no zero byte is added. Fails with EXIT_DATA for
 * an id outside of the vocabulary, naming its position. */
size_t tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t n, char *out,
                        size_t cap);
/* Bytes of one id, in [0, vocab), where it stands: the first of a text may lose the space
 * that encoding put before the text. They need not be whole characters. */
const char *tokenizer_piece(const Tokenizer *t, int32_t id, bool first, size_t *n);

/* s[n] as valid UTF-8, with U+FFFD for each maximal invalid part, in out[3n]. Returns the
 * bytes. */
size_t tokenizer_valid_utf8(const char *s, size_t n, char *out);

/* Training: feed texts, then make the tokenizer. Ids are the 256 bytes in GPT-2's order,
 * then the merges, then <|endoftext|>. Each merge takes the pair that occurs most often;
 * among equals the one with the lower left id, then the lower right id. So the same texts
 * give the same tokenizer. Words of more than TRAIN_MAX_WORD_BYTES count in parts. */
typedef struct TokenizerTrainer TokenizerTrainer;
enum { TRAIN_MAX_WORD_BYTES = 1024, TRAIN_MIN_VOCAB = 257, TRAIN_MAX_VOCAB = 1 << 20 };
TokenizerTrainer *tokenizer_trainer_new(Arena *mem);
void tokenizer_trainer_add(TokenizerTrainer *tr, const char *text, size_t n,
                           uint64_t *bad_utf8);
/* vocab_size counts everything. The result is smaller when no pair occurs twice any
 * more. Fails with EXIT_CONFIG for a vocab_size out of bounds. */
Tokenizer *tokenizer_train(TokenizerTrainer *tr, int64_t vocab_size);

/* Writes tokenizer.json and tokenizer_config.json to `dir`, made if missing; each file
 * whole or not at all: as they were read, or else made. vocab.json and merges.txt too for a
 * BPE that does not come from a tokenizer.json, and the other files as they were; those that
 * another tokenizer has left there are removed. Fails with EXIT_DATA when it cannot. */
void tokenizer_write(const Tokenizer *t, const char *dir);
/* Removes the files of a tokenizer from a folder. */
void tokenizer_remove(const char *dir);
/* Moves those in folder `from` to `to`, made if missing, in place of what `to` has; where `from`
 * has none, `to` has none either. Fails with EXIT_DATA. */
void tokenizer_move(const char *from, const char *to);
/* The names of the files of a tokenizer that are in a folder, *n of them, tokenizer.json first. */
const char *const *tokenizer_files_in(Arena *mem, const char *dir, int *n);
/* The names of the files that it writes, with commas between. */
const char *tokenizer_files(Arena *mem, const Tokenizer *t);

#endif
