/* generate.h - a compiled model that continues texts: one program for the whole prompt
 * and one for a single token, which share weights and caches of keys and values. On several
 * ranks each replica has a text of its own, and all are called together; see
 * predict_ranks.h for how they are told. */
#ifndef STATOR_GENERATE_H
#define STATOR_GENERATE_H
#include "codegen/codegen.h"
#include "frontend/model/source.h"
#include "frontend/model/strategy.h"

typedef struct Generator {
    const ModelSpec *spec;
    const Strategy *strategy;
    Program *prompt; /* NULL: the prompt is one token */
    Program *token;
    Program *owner;     /* whose memory the weights are in: prompt, or token */
    int64_t prompt_len; /* rows of the prompt program, padding included */
    int64_t cache_len;  /* tokens that fit */
    int64_t n;          /* tokens of this rank's text that are in the caches */
    int64_t vocab;
} Generator;

/* Rows of a program for n tokens: the next power of two up to 64, above that the next
 * multiple of 64, but at most `most` >= n. So prompts of similar length share a program.
 */
int64_t generator_rows(int64_t n, int64_t most);

/* The module of one of its programs and the options of its passes, under the strategy: for
 * `rows` tokens with caches of cache_len. Its logits are whole on every rank, f32[1, V],
 * with what strategy_vocab pads behind. */
Module *generator_module(Arena *mem, const ModelSpec *s, const Strategy *strategy,
                         int64_t rows, int64_t cache_len, PassOptions *o);

/* Compiles both programs for prompts of up to prompt_n tokens and texts of up to `total`
 * tokens (prompt_n <= total <= s->max_positions) with threads, cpu, memory limit and
 * dump_ir of cfg, and allocates them; on all ranks of the strategy. Fails with EXIT_MEMORY
 * above the limit. Weights and caches are zero. */
Generator *generator_new(Arena *mem, const ModelSpec *s, const Strategy *strategy,
                         int64_t prompt_n, int64_t total, const Config *cfg);
void generator_free(Generator *g);
/* Reads the weights, on all ranks; returns the folder they came from. */
const char *generator_load(Arena *mem, Generator *g, const Source *s);

/* Scores of the next token, f32[vocab], after the whole prompt of n tokens, with which a
 * text begins, or after one more token. `whole` is the same on all ranks: is any replica's
 * prompt longer than a token? n = 0: this replica has no text, and only keeps the others
 * company. Valid until the next call. */
const float *generator_prompt(Generator *g, const int32_t *tokens, int64_t n, bool whole);
const float *generator_token(Generator *g, const int32_t *token, int64_t n);

#endif
