/* generate.h - a compiled model that continues texts, several at a time, of lengths of their
 * own: one program for whole prompts and one for a token of each text, which share weights and
 * caches of keys and values. On several ranks each replica has texts of its own, and all are
 * called together; see replicas.h for how they are told. */
#ifndef STATOR_GENERATE_H
#define STATOR_GENERATE_H
#include "codegen/codegen.h"
#include "frontend/model/source.h"
#include "frontend/model/strategy.h"

typedef struct Generator {
    const Source *source;
    const Strategy *strategy;
    Program *prompt; /* NULL: the prompt is one token */
    Program *token;
    Program *owner;     /* whose memory the weights are in: prompt, or token */
    int64_t batch;      /* texts at a time */
    int64_t prompt_len; /* rows of the prompt program, padding included */
    int64_t most;       /* tokens of a text that fit; the caches have as many rows, or a
                           window's, the last ones in a ring */
    int64_t *n;         /* by text of this rank: its tokens that have gone in */
    int64_t vocab;
    int64_t scores_row; /* from the scores of a text to those of the next */
    int32_t *tokens, *positions, *offset, *last, *taken; /* what goes into a program */
} Generator;

/* Rows of a program for n tokens: the next power of two up to 64, above that the next
 * multiple of 64, but at most `most` >= n. So prompts of similar length share a program.
 */
int64_t generator_rows(int64_t n, int64_t most);

/* The module of one of its programs and the options of its passes, under the strategy: of
 * `batch` texts, for `rows` tokens of each with caches for `tokens`. Its logits are whole on
 * every rank, f32[batch, V], with what strategy_vocab pads behind each row. */
Module *generator_module(Arena *mem, const ModelSpec *s, const Strategy *strategy,
                         int64_t batch, int64_t rows, int64_t tokens, PassOptions *o);

/* The caches of a text of up to `total` tokens, on all ranks of a replica together. */
int64_t generator_cache_bytes(const ModelSpec *s, int64_t total);

typedef struct GeneratorSize {
    int64_t batch;         /* texts at a time */
    int64_t prompt, total; /* tokens of a prompt and of a text, at most */
} GeneratorSize;

/* Compiles both programs (prompt <= total <= s->spec.max_positions) with threads, cpu, memory
 * limit and dump_ir of cfg, and allocates them; on all ranks of the strategy. Fails with
 * EXIT_MEMORY above the limit. Weights and caches are zero. With a compute_dtype of 16 bits
 * matrices are held in it, and so are tables that a Hugging Face folder stores so. */
Generator *generator_new(Arena *mem, const Source *s, const Strategy *strategy,
                         GeneratorSize n, const Config *cfg);
void generator_free(Generator *g);
/* Reads the weights, on all ranks; returns the folder they came from. */
const char *generator_load(Arena *mem, Generator *g, const Source *s);

/* Scores of the next token of each text, f32[vocab] scores_row apart, after the whole prompts
 * with which texts begin, or after one more token: text b has n[b] tokens, which follow each
 * other in `tokens` from text to text. `whole` is the same on all ranks: is any replica's prompt
 * longer than a token? n[b] = 0: nothing of this text, whose caches stay as they are, and its
 * scores are anything; a rank without any only keeps the others company. Valid until the next
 * call. */
const float *generator_prompts(Generator *g, const int32_t *tokens, const int32_t *n,
                               bool whole);
const float *generator_tokens(Generator *g, const int32_t *tokens, const int32_t *n);

#endif
