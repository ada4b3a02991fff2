/* attention_forward.h - what the two ways of attention forward share; not for others. */
#ifndef STATOR_ATTENTION_FORWARD_H
#define STATOR_ATTENTION_FORWARD_H
#include "codegen/attention_parts.h"

/* Parameters of the emitted function, in the order of attention.h. */
enum {
    FORWARD_Q,
    FORWARD_K,
    FORWARD_V,
    FORWARD_Q_AT,
    FORWARD_K_AT,
    FORWARD_RNG,
    FORWARD_O,
    FORWARD_LSE,
    FORWARD_WORK,
    FORWARD_FIRST, /* only with `within` */
    FORWARD_SLOTS
};

/* name.softmax(s, keys, max, sum, decay, p): probabilities relative to the new maximum, in the
 * place of scores or, if they are rounded at once, in pairs of keys in p[(keys + 1) / 2][bq].
 * decay: what that does to older sums; with tile registers decay[bq] (i32) says if it does
 * anything. */
void attn_softmax_emit(const Attn *a);
/* What softmax has of a vector of queries: the maximum from now on, of what it was and the largest
 * score, without its factor; any: i1 to which it is added that sums before become smaller. */
LLVMValueRef attn_maximum(const Attn *a, LLVMValueRef old, LLVMValueRef score,
                          LLVMValueRef *any);
/* Probabilities of two keys, of scores at `from` and a->bq floats behind, as pairs of a strip at
 * `to`; sum[2]: with those of each key; keep[2]: lanes that dropout keeps, or NULL. */
void attn_pair_of_keys(const Attn *a, LLVMValueRef from, LLVMValueRef to,
                       LLVMValueRef top, LLVMValueRef *sum, LLVMValueRef *keep);
/* Where things are in a strip's scratch, in floats from its start, and how many it has; k, v: of
 * all strips, from the first one's start. p, k, v: of bf16, or of parts of f32, or copies; keep: lanes,
 * of strips. */
typedef struct ForwardScratch {
    int64_t packed, out, s, p, max, sum, decay, moved, keep, strip, k, v, floats;
} ForwardScratch;
ForwardScratch attn_forward_scratch(const Attn *a);
/* Of a thread, whatever CPU it is for; bq: queries of a block. */
int64_t attn_forward_floats(const AttnShape *s, int64_t bq);
/* Pairs of blocks of queries, parts of keys, and are values kept, in tiles or copies with which keys are
 * too, for many blocks? */
int64_t attn_forward_pairs(int64_t q_blocks);
int64_t attn_forward_parts(const AttnShape *s, int64_t q_blocks);
bool attn_keeps_values(const Attn *a);
bool attn_copies_keys(const Attn *a); /* and values */
/* name.start(work): no sum, no output yet, and a maximum below any score but finite, so
 * that queries that see no key of a block keep it, instead of inf - inf.
 * name.finish(work, o, lse, rows): o and lse from the sums. The maximum is in units of
 * log2, the sum relative to it; a sum of 0 is a query that sees no key. */
void attn_start_emit(const Attn *a);
void attn_finish_emit(const Attn *a);
/* Where keys of the block from `from` on and its values are in tiles or copies, where they are kept. */
LLVMValueRef attn_kept_keys(const Attn *a, LLVMValueRef work, LLVMValueRef from);
LLVMValueRef attn_kept_values(const Attn *a, LLVMValueRef work, LLVMValueRef from);

/* Of all sequences and heads the one number bh. */
AttnPlace attn_place(const Attn *a, LLVMValueRef bh, LLVMValueRef block);
/* Results of `rows` queries from number `from` of the place on. */
void attn_finish(const Attn *a, LLVMValueRef ctx, LLVMValueRef work, const AttnPlace *p,
                 LLVMValueRef from, LLVMValueRef rows);
/* name.queries of blocks in strips, with what it calls. */
void attn_strips_emit(const Attn *a);
/* Of bf16 all are, but for those that may be dropped. */
bool attn_rounds_at_once(const Attn *a);
/* name.drop(s, keys, rng, index): clears what dropout drops; the scaling of what stays is
 * left to the end. index: number of the probability of key 0, query 0 of the block. */
void attn_drop_emit(const Attn *a);
/* name.narrow(s, keys, p): p[(keys + 1) / 2][bq] = S in pairs of keys, rounded. */
void attn_narrow_emit(const Attn *a);

/* One query a sequence, as when text is generated: is it for attention_token.c? */
bool attn_is_token(const AttnShape *s);
LLVMValueRef attn_token_emit(Emit *e, const char *name, const AttnShape *s);
int64_t attn_token_floats(const AttnShape *s, int vl); /* of the whole workspace */

#endif
