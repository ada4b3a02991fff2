/* attention_backward.h - what the files of attention backward share; not for others. */
#ifndef STATOR_ATTENTION_BACKWARD_H
#define STATOR_ATTENTION_BACKWARD_H
#include "codegen/attention_parts.h"

/* Parameters of the emitted function, in the order of attention.h. */
enum {
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_O,
    SLOT_LSE,
    SLOT_DO,
    SLOT_Q_AT,
    SLOT_K_AT,
    SLOT_RNG,
    SLOT_DQ,
    SLOT_DK,
    SLOT_DV,
    SLOT_WORK,
    SLOT_FIRST, /* only with `within` */
    SLOTS
};

/* A thread's scratch, in floats from its start. With copies: rows of K and V of all keys, of Q and dO
 * of a block; sums. Of bf16 in pairs: rows of K and V of a block, pairs of keys
 * of K, pairs of queries of Q and dO; rows of P and dS, pairs of keys of dS; sums. For tile
 * registers all blocks of K turned, in tiles. */
typedef struct BackwardScratch {
    int64_t q, out, s, ds, delta, lse;
    int64_t k_rows, v_rows, q_rows, do_rows;
    int64_t k_pairs, q_pairs, do_pairs, p_rows, ds_rows, ds_pairs;
    int64_t dq, dk, dv, k_tiles, floats;
} BackwardScratch;
/* Fewer queries than that take as long with copies as without. */
enum { ATTN_GRAD_COPIED_QUERIES = 256 };
BackwardScratch attn_backward_scratch(const Attn *a);
int64_t attn_backward_floats(const AttnShape *s, int64_t bq); /* whatever CPU it is for */

/* name.soft(s, ds, work, keys, rng, index): P and dS of S and dP. */
void attn_soft_emit(const Attn *a);
/* P and dS for one vector of queries at one key, from S at `p_at` and dP at `ds_at`, with bf16 both
 * without their factors; keep: lanes that dropout keeps, or NULL. */
typedef struct Soft {
    LLVMValueRef p, ds;
} Soft;
Soft attn_soft(const Attn *a, LLVMValueRef p_at, LLVMValueRef ds_at, LLVMValueRef lse,
               LLVMValueRef delta, LLVMValueRef keep);

/* name.delta(do, o, lse, delta, lse_to, rows): per query scale * dO o, and lse * log2(e); lanes
 * beyond the last query (rows may be 0) get an lse that makes P and dS 0. */
void attn_delta_emit(const Attn *a);

/* Blocks of queries in strips, and of so few keys that what a strip needs of them stays in the first
 * cache until the next one: floats of a thread's scratch, and name.head with what it calls. */
enum { ATTN_GRAD_STRIP_KEYS = 32 };
int64_t attn_grad_strip_queries(const AttnShape *s);
int64_t attn_grad_strip_floats(const AttnShape *s);
void attn_grad_strips_emit(const Attn *a);

#endif
