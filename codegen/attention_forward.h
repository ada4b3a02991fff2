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

/* One query a sequence, as when text is generated: is it for attention_token.c? */
bool attn_is_token(const AttnShape *s);
LLVMValueRef attn_token_emit(Emit *e, const char *name, const AttnShape *s);
int64_t attn_token_floats(const AttnShape *s, int vl); /* of the whole workspace */

#endif
