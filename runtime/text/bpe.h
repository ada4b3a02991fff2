/* bpe.h - what the parts of the tokenizer share; tokenizer.h is the interface. */
#ifndef STATOR_BPE_H
#define STATOR_BPE_H
#include "runtime/text/tokenizer.h"

#define EOD_TEXT "<|endoftext|>"

/* ---- pre-tokens (bpe_split.c) ---- */

typedef enum CharClass { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } CharClass;
enum { BMP_SIZE = 0x10000 };

/* CharClass of the code points below U+10000, for the splitter. */
void bpe_fill_classes(uint8_t bmp[BMP_SIZE]);
CharClass bpe_class(uint32_t code_point);
/* End of the pre-token that begins at p < end, by GPT-2's rule
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * [p, end) is valid UTF-8, and `end` is the end of the text for the rule. */
const char *bpe_word_end(const uint8_t bmp[BMP_SIZE], const char *p, const char *end);

bool bpe_utf8_valid(const char *s, size_t n);
/* s[n] with U+FFFD for each maximal invalid part, in out (NULL: only counted; 3n bytes
 * always suffice). Returns the bytes, adds the replacements to *bad. */
size_t bpe_utf8_replace(const char *s, size_t n, char *out, uint64_t *bad);

/* ---- tables (bpe.c) ---- */

/* Open addressing, (left, right) -> rank and result; slots with left < 0 are free. */
typedef struct MergeSlot {
    int32_t left, right;
    uint32_t rank;
    int32_t result;
} MergeSlot;

typedef struct MergeTable {
    MergeSlot *slot;
    uint64_t mask;
    int shift;
} MergeTable;

enum { NO_RANK = UINT32_MAX };

MergeTable merge_table_new(Arena *mem, size_t merges);
/* False when the pair is there already. */
bool merge_table_add(MergeTable *t, MergeSlot merge);

/* BYTES: made of bytes by merges. SPECIAL: matched as a whole, where allowed. LITERAL:
 * never made by encoding. The last two are in files as their text. */
typedef enum TokenKind { TOKEN_BYTES, TOKEN_SPECIAL, TOKEN_LITERAL } TokenKind;

typedef struct Token {
    const char *s; /* its bytes */
    uint32_t n;
    TokenKind kind;
} Token;

struct Tokenizer {
    uint64_t serial; /* of all tokenizers of the process: for the word caches */
    bool bytes;      /* ByteTokenizer: only vocab, eod, token and describe apply */
    int64_t vocab, eod;
    const char *describe;
    Token *token; /* [vocab] */
    MergeTable table;
    MergeSlot *merge; /* [merges], by rank */
    int32_t merges;
    int32_t byte_id[256];
    int32_t *special;             /* by first byte, then the longest first */
    int32_t special_from[257];    /* special[special_from[b] .. special_from[b+1]) */
    int32_t max_char_tokens;      /* that one byte of text becomes, at most */
    uint8_t char_class[BMP_SIZE]; /* CharClass */
};

/* A tokenizer of t->token, vocab, table, merge and merges, all else filled in here. Every
 * byte must be among the tokens of kind BYTES. */
void bpe_finish(Arena *mem, Tokenizer *t);
uint64_t tokenizer_next_serial(void);

#endif
