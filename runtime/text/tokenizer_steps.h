/* tokenizer_steps.h - what a text goes through beside the model of a tokenizer.json: normalizer,
 * pre-tokenizer, decoder and post-processor; and which members any of its objects may have. */
#ifndef STATOR_TOKENIZER_STEPS_H
#define STATOR_TOKENIZER_STEPS_H
#include "runtime/text/bpe_load.h"

/* What a member may be. */
typedef struct Allowed {
    const char *key;
    const char *values; /* raw values, ' ' between; "*": read elsewhere, or no effect */
    bool needed;
} Allowed;

/* v is an object with members of the table alone. */
void members_check(Arena *mem, const Json *v, const Allowed *allowed, int n);
#define CHECK_MEMBERS(mem, v, allowed)                                                   \
    members_check(mem, v, allowed, (int)(sizeof(allowed) / sizeof *(allowed)))

/* What a tokenizer.json asks for. */
typedef struct Reading {
    Arena *mem;
    Tokenizer *t;
    TextRule rule;
    bool byte_level;
    bool decodes_bytes; /* the decoder seen so far has ByteFallback */
    bool decodes_meta;
    bool fused;
} Reading;

/* Each takes the member of that name, those of the first and the last may be NULL. The decoder
 * comes behind the pre-tokenizer, that behind the normalizer. */
void tokenizer_read_normalizer(Reading *r, const Json *v);
void tokenizer_read_pre_tokenizer(Reading *r, const Json *v);
void tokenizer_read_decoder(Reading *r, const Json *v);
void tokenizer_read_post_processor(Reading *r, const Json *v); /* knows the vocabulary */

#endif
