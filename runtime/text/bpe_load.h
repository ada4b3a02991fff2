/* bpe_load.h - the vocabulary and the merges of tokenizer files, and how these write bytes
 * as characters. */
#ifndef STATOR_BPE_LOAD_H
#define STATOR_BPE_LOAD_H
#include "base/json.h"
#include "runtime/text/bpe.h"

/* Bytes in the order of GPT-2's vocabulary: id i < 256 is byte gpt2_byte(i). First come
 * the 188 printable ones, which are written as themselves, then the others, as U+0100 and
 * up. */
int gpt2_byte(int i);
/* s[n] as UTF-8 of the characters that represent its bytes, zero-terminated. */
char *bytes_to_chars(Arena *mem, const char *s, size_t n, size_t *out_n);

enum { BYTES = 256, CHARS = 2 * BYTES, MAX_SPECIALS = 1024, MAX_MERGES = 1 << 22 };

typedef struct Loader {
    Arena *mem;
    Tokenizer *t;      /* byte_fallback is set before load_vocab */
    const Json *vocab; /* object: characters -> id */
    bool in_order;     /* a merge must be of bytes and of what merges before it made */
    bool *made;        /* [vocab]: a byte, or made by a merge read so far */
    int16_t byte_of[CHARS];
    Text joined; /* of the two parts of a merge */
} Loader;

/* The object `vocab` and `extra` ids beyond it become the vocabulary. */
void load_vocab(Loader *l, const Json *vocab, int64_t extra);
/* Id of a token by its text in the file, or -1. */
int32_t load_find(const Loader *l, const char *s);
/* Elements are "left right" or ["left", "right"]. */
void load_merges(Loader *l, const Json *merges);
/* Gives an added token, `at` in the file, its id. */
void load_added(Loader *l, const Json *at, const AddedToken *added);

#endif
