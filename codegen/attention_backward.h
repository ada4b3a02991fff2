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

/* A thread's scratch, in floats from its start. With bf16: rows of K and V, pairs of keys
 * of K, pairs of queries of Q and dO; rows of P and dS, pairs of keys of dS; sums. For tile
 * registers all blocks of K turned, in tiles. */
typedef struct BackwardScratch {
    int64_t q, out, s, ds, delta, lse;
    int64_t k_rows, v_rows, k_pairs, q_pairs, do_pairs, p_rows, ds_rows, ds_pairs;
    int64_t dq, dk, dv, k_tiles, floats;
} BackwardScratch;
BackwardScratch backward_scratch_of(const AttnShape *s, int64_t bq);

/* name.soft(s, ds, work, keys, rng, index): P and dS of S and dP. */
void attn_soft_emit(const Attn *a);

#endif
