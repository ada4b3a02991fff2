/* bpe.h - what the parts of the tokenizer share; tokenizer.h is the interface. */
#ifndef STATOR_BPE_H
#define STATOR_BPE_H
#include "runtime/text/along.h"
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
/* The same by the rule of Llama 3 and Qwen2, whose numbers have at most `digits` digits:
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}
 *   | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
const char *bpe_cl100k_end(const uint8_t bmp[BMP_SIZE], int digits, const char *p,
                           const char *end);

/* How a text falls into pre-tokens. */
typedef enum SplitRule {
    SPLIT_GPT2,
    SPLIT_CL100K, /* bpe_cl100k_end with 3 digits */
    SPLIT_QWEN2,  /* with 1 */
    SPLIT_META,   /* before each U+2581 */
    SPLIT_NONE
} SplitRule;
/* The rule that this regular expression, as tokenizer files have it, is; -1: unknown. */
int bpe_rule_of(const char *regex);

/* Bytes at the end (`back`) or the beginning of s[n], valid UTF-8, that are spaces. */
size_t bpe_spaces(const char *s, size_t n, bool back);
/* Does s[n], valid UTF-8, end (`back`) or begin with a character of a word (\w)? */
bool bpe_word_char(const char *s, size_t n, bool back);

/* Neither cut off, nor too long for what it says, nor surrogates, nor beyond U+10FFFF. */
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

/* Empty, with room for that many merges: it does not grow. */
MergeTable merge_table_new(Arena *mem, size_t merges);
/* False when the pair is there already. */
bool merge_table_add(MergeTable *t, MergeSlot merge);

/* BYTES: made of bytes by merges. SPECIAL: an added token that no merge makes. LITERAL:
 * never made by encoding. The last two are in files as their text. */
typedef enum TokenKind { TOKEN_BYTES, TOKEN_SPECIAL, TOKEN_LITERAL } TokenKind;

typedef struct Token {
    const char *s; /* its bytes */
    uint32_t n;
    TokenKind kind;
} Token;

/* A token that is looked for in the text, before anything else is. */
typedef struct AddedToken {
    const char *s; /* what is looked for */
    uint32_t n;
    const char *name; /* the same before it was normalized */
    int32_t id;
    bool special;        /* only where the caller allows special tokens */
    bool lstrip, rstrip; /* takes the spaces before it, behind it */
    bool single_word;    /* not next to a character of a word */
} AddedToken;

/* By first byte, then the longest first. */
typedef struct AddedSet {
    AddedToken *token;
    int32_t from[257]; /* token[from[b] .. from[b+1]) begin with byte b */
    int32_t special;   /* how many are */
} AddedSet;

/* From keys to ids by open addressing; id < 0: free. */
typedef struct IdSlot {
    uint64_t key;
    const char *s; /* of a text; NULL: of a code point, which is the key */
    uint32_t n;
    int32_t id;
} IdSlot;

typedef struct IdTable {
    IdSlot *slot;
    uint64_t mask;
} IdTable;

/* Empty, with room for `most` entries: it does not grow. That of a text is its hash. */
IdTable id_table_new(Arena *mem, size_t most);
void id_table_add(IdTable *t, IdSlot entry);

#define META "\xE2\x96\x81" /* U+2581, which stands for a space */
enum { META_BYTES = 3 };

/* When a segment of text that a Metaspace pre-tokenizer sees gets U+2581 put before it. */
typedef enum MetaPrefix { META_NEVER, META_FIRST, META_ALWAYS } MetaPrefix;

/* What becomes of a text before it is cut into pre-tokens: of each part of it between
 * added tokens, in this order. */
typedef struct TextRule {
    const struct Nfc *nfc; /* normalize to NFC; NULL: do not */
    bool underline;        /* replace spaces by U+2581 */
    bool prepend;          /* and put U+2581 before */
    bool metaspace;        /* the same, by `meta`, after tokens in `added_after` */
    MetaPrefix meta;
    SplitRule split;
} TextRule;

/* How the first token of a text is decoded. */
typedef enum FirstToken { FIRST_WHOLE, FIRST_SPACE_OFF, FIRST_SPACES_OFF } FirstToken;

struct Tokenizer {
    uint64_t serial; /* of all tokenizers of the process: for the word caches */
    bool bytes;      /* ByteTokenizer: only vocab, eod, bos, token and describe apply */
    int64_t vocab, eod, bos;
    const char *describe;
    Token *token; /* [vocab] */
    MergeTable table;
    MergeSlot *merge; /* [merges], by rank */
    int32_t merges;
    int32_t byte_id[256];
    bool byte_fallback; /* symbols are characters; of those without a token, bytes */
    bool cut_at_meta;   /* no merge reaches from another character over U+2581 */
    IdTable characters; /* byte_fallback: ids of single characters */
    IdTable words;      /* a pre-token that is there is not merged; mask 0: none are */
    TextRule rule;
    FirstToken first;
    AddedSet added, added_after; /* looked for before and after normalization */
    int32_t specials;
    int32_t *prefix, *suffix; /* what the file's template puts around a text */
    int nprefix, nsuffix;
    int32_t max_char_tokens;      /* that one byte of text becomes, at most */
    uint8_t char_class[BMP_SIZE]; /* CharClass */
    const char *json, *config;    /* the files it came from; NULL: none */
    size_t json_n, config_n;
    FileAlong *along; /* [nalong] */
    int nalong;
};

/* bpe_text.c. Sorted, for lookup; [n] are copied. */
AddedSet added_set_new(Arena *mem, const AddedToken *token, int32_t n);
/* A tokenizer of t->token, vocab, table, merge, merges, rule, byte_id and added tokens, all
 * else filled in here. Every byte must have a token in byte_id, which may be an added one. */
void bpe_finish(Arena *mem, Tokenizer *t);
/* Takes the special tokens of these texts for eod and bos (none when there are none of
 * that text); NULL: those that have a usual name. */
void bpe_set_ends(Arena *mem, Tokenizer *t, const char *bos, const char *eos);
/* s[n] as the rule normalizes it; *n bytes. */
const char *bpe_normalize(Arena *mem, const TextRule *rule, const char *s, size_t *n);

/* ---- encoding (bpe.c) ---- */

typedef struct IdsOut {
    int32_t *id;
    size_t n, cap; /* n counts on above cap */
} IdsOut;

static inline void ids_add(IdsOut *o, const int32_t *id, size_t n) {
    if (o->n < o->cap) memcpy(o->id + o->n, id, MIN(n, o->cap - o->n) * sizeof *id);
    o->n += n;
}

typedef struct Room {
    void *p;
    size_t bytes;
} Room;

typedef struct WordSlot WordSlot;

struct TokenizerCache {
    WordSlot *slot;      /* words that were seen */
    uint64_t serial;     /* of the tokenizer that the words belong to */
    Room word;           /* to work on a long word */
    Room valid, norm[2]; /* of a text with U+FFFD put in; normalized */
};

/* At least `bytes` of room; what was in it is gone. */
void *room_get(Room *r, size_t bytes);
void room_trim(Room *r);
uint64_t tokenizer_next_serial(void);
/* Forgets the words of another tokenizer. */
void cache_begin(TokenizerCache *c, const Tokenizer *t);
/* Ids of [p, end), valid UTF-8 that is cut into pre-tokens by t->rule.split; up to `limit`
 * may be read. */
void encode_words(const Tokenizer *t, TokenizerCache *c, const char *p, const char *end,
                  const char *limit, IdsOut *o);

#endif
