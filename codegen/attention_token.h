/* attention_token.h - what attention of one query a sequence leaves for each part of its keys, and
 * how the parts become a result; for attention_token*.c and attention_join.c only. */
#ifndef STATOR_ATTENTION_TOKEN_H
#define STATOR_ATTENTION_TOKEN_H
#include "codegen/attention_forward.h"

/* What a part leaves for each head: sums of values, and behind those the maximum, the sum
 * of probabilities, and room for what join multiplies it by. Scores are of one block. */
typedef struct TokenState {
    int64_t row, stats, scores, floats;
} TokenState;
enum { STAT_MAX, STAT_SUM, STAT_WEIGHT, STATS = 4 };

/* Where these are in a part's state, in floats, and how many floats it is. */
TokenState attn_token_state(const AttnShape *s, int vl);
/* Numbers of a head that are loaded at a time, and which of them are left at its end; NULL:
 * none. */
int64_t attn_token_numbers(const Attn *a);
LLVMValueRef attn_token_mask(const Attn *a);
/* Where kv head `item` of all parts of all sequences keeps its state. */
LLVMValueRef attn_token_work(const Attn *a, const TokenState *x, LLVMValueRef ctx,
                             LLVMValueRef item);

/* Emits name.block(q, k, v, work, heads, keys, next), which adds a block of keys to the state of
 * `heads` kv heads; the keys that follow are at `next`. */
void attn_token_block_emit(const Attn *a, const TokenState *x);
/* Emits name.join_rows(ctx, begin, end), which makes o and lse of these heads of all sequences
 * from their parts, and name.join_body, the same as a body of a phase. */
void attn_join_emit(const Attn *a, const TokenState *x);

#endif
