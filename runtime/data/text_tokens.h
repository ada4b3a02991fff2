/* text_tokens.h - the tokens of texts, made once and kept in a cache; private to
 * runtime/data/. */
#ifndef STATOR_TEXT_TOKENS_H
#define STATOR_TEXT_TOKENS_H
#include "runtime/core/file_map.h"
#include "runtime/data/data.h"
#include "runtime/text/tokenizer.h"

/* The tokenizer of d->gpt; all fields NULL when it names none. */
TokenizerSpec tokenizer_of_data(const Data *d);
/* Hash of the files of a tokenizer, and of the tokenizer_config.json beside, as one line. */
const char *tokenizer_key(Arena *mem, const TokenizerSpec *spec);

/* Fails with EXIT_DATA where the bytes of a file are no text but a compressed one. */
void text_refuse_packed(const char *path, const void *bytes, size_t n);

/* Where a text ends in the bytes of several, one after another. */
typedef struct TextEnd {
    const char *path;
    uint64_t end;
} TextEnd;

typedef struct Texts {
    const unsigned char *bytes;
    const TextEnd *text;
    int n;
    bool ended; /* the end token follows each, where the tokenizer has one */
} Texts;

/* Tokens of the texts, in order. They are read from the cache in `folder` ("": next to d->path,
 * NULL: none), or made, with lines on stderr when it takes long, and written there whole. A
 * cache that cannot be used or written is a line in d->note. `held` keeps them mapped; the rest
 * is in `mem`. */
const int32_t *text_tokens(Arena *mem, Data *d, const Texts *texts, const char *folder,
                           FileMap *held, int64_t *n);

#endif
