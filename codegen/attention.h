/* attention.h - attention forward and backward as emitted functions: blocks of queries
 * against blocks of keys with online softmax (Dao et al., FlashAttention-2, 2023), scores
 * held transposed so that lanes are queries and softmax needs no reduction across lanes.
 */
#ifndef STATOR_ATTENTION_H
#define STATOR_ATTENTION_H
#include "codegen/emit.h"
#include "codegen/rank_part.h"

/* q, o: [batch, tq, heads, dim]; k, v: [batch, tk, kv_heads, dim]; lse: f32
 * [batch, tq, heads], the log of the sum of exp(scale * q k); all contiguous. Of narrow types
 * the products are summed in f32, and results are rounded once; where pairs of bf16 are
 * multiplied, so is what softmax gives, and its gradient, as a factor. Head h uses
 * kv head h / (heads / kv_heads). Causal: query i sees keys k_at + j <= q_at + i, with a
 * window those of them > q_at + i - window; no block outside of that is read. Otherwise it
 * sees all tk keys. dropout: probability of
 * dropping, in [0, 1); `site` tells the attentions of one step apart. */
typedef struct AttnShape {
    int64_t batch, tq, tk, heads, kv_heads, dim;
    double scale;
    bool causal;
    int64_t window; /* causal: query i sees the last `window` of its keys; 0: all */
    double dropout;
    uint32_t site;
    DType dt;    /* of q, k, v, o and their gradients: f32, bf16 or f16; lse is f32 */
    bool each;   /* q_at: i32[batch], a number for each sequence */
    bool within; /* query i of sequence b sees no key at a position below first[b, i] */
    int threads; /* that it is for: where there are fewer pieces of work than these, and for one
                    query always, keys are split over them, so that bits depend on their number
                    and, from two on, on the batch; 0: never */
    const Part *part; /* dropout: the whole probabilities [batch, heads, queries, keys],
                         of which this is a part of batch and heads; NULL: these */
} AttnShape;

/* NULL, or a sentence on the size for which there is no code. */
const char *attention_too_large(const AttnShape *s);

/* Emits void(ptr q, ptr k, ptr v, ptr q_at, ptr k_at, ptr rng, ptr o, ptr lse,
 * ptr workspace). q_at, k_at: any i32, positions of the first query and the first key,
 * read when causal, with dropout and `within`; a query that sees no key gets o = 0 and
 * the lse NO_KEYS. rng: i32[4] = {key0, key1, layer, micro-batch}, read with dropout:
 * the probability of (b, h, i, j) is kept when word 0 of
 * philox(counter {lo32(x), hi32(x), site, layer}, key) >= dropout * 2^32,
 * x = micro-batch * n + ((b * heads + h) * queries + q_at + i) * keys + k_at + j in the
 * whole tensor of n probabilities, and then scaled by 1 / (1 - dropout).
 * With `within` the function has one more parameter, ptr first: i32[batch, tq].
 * The function calls rt_parallel_balanced; the bits do not depend on the threads that it runs
 * on. With tq = 1 and no dropout probabilities stay f32. */
LLVMValueRef attention_emit(Emit *e, const char *name, const AttnShape *s);

/* Emits (within: ptr first last) void(ptr q, ptr k, ptr v, ptr o, ptr lse, ptr do,
 * ptr q_at, ptr k_at, ptr rng, ptr dq, ptr dk, ptr dv, ptr workspace). dq, dk, dv are
 * overwritten; dk and dv are summed over the query heads that share them, in order, by
 * the one thread that owns the kv head, or a part of its keys. Queries that see no key have and
 * give no gradient. */
LLVMValueRef attention_grad_emit(Emit *e, const char *name, const AttnShape *s);

/* Bytes of the workspace (64-byte aligned) for runs with up to `threads` threads. */
size_t attention_workspace_bytes(const AttnShape *s, bool grad, int threads, int vl);

#endif
