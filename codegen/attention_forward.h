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
