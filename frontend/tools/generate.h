/* generate.h - a compiled model that continues a text: one program for the whole prompt
 * and one for a single token, which share weights and caches of keys and values. */
#ifndef STATOR_GENERATE_H
#define STATOR_GENERATE_H
#include "codegen/codegen.h"
#include "frontend/model/model.h"

typedef struct Generator {
    Program *prompt; /* NULL: the prompt is one token */
    Program *token;
    Program *owner;     /* whose memory the weights are in: prompt, or token */
    int64_t prompt_len; /* rows of the prompt program, padding included */
    int64_t cache_len;  /* tokens that fit */
    int64_t n;          /* tokens that are in the caches */
    int64_t vocab;
} Generator;

/* Rows of a program for n tokens: the next power of two up to 64, above that the next
 * multiple of 64, but at most `most` >= n. So prompts of similar length share a program.
 */
int64_t generator_rows(int64_t n, int64_t most);

/* Compiles both programs for a prompt of prompt_n tokens and a text of `total` tokens
 * (prompt_n <= total <= s->max_positions) with threads, cpu, memory limit and dump_ir of
 * cfg, and allocates them. Fails with EXIT_MEMORY above the limit. Weights and caches are
 * zero; fill the weights through generator_weight. */
Generator *generator_new(Arena *mem, const ModelSpec *s, int64_t prompt_n, int64_t total,
                         const Config *cfg);
void generator_free(Generator *g);
/* Forgets the text; the next call is generator_prompt of at most as many tokens as the
 * generator was made for. */
void generator_restart(Generator *g);

/* A WeightAt for the parameters of g->owner->entry. */
float *generator_weight(void *generator, int arg);

/* Scores of the next token, f32[vocab], after the whole prompt (only at the start), or
 * after one more token. Valid until the next call. */
const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n);
const float *generator_token(Generator *g, int32_t token);

#endif
