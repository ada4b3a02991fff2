/* lower_attn.c - attention ops as calls of emitted functions, one per shape. */
#include "codegen/attention.h"
#include "codegen/piece.h"

static AttnShape attention_shape(const Op *op, int threads) {
    const int64_t *q = op->in[ATTN_Q]->ty.dim, *k = op->in[ATTN_K]->ty.dim;
    if (op_int(op, "zigzag", 0) > 1)
        lower_refuse(op,
                     "in zigzag order its sequence must be split over ranks: leave out "
                     "the entry of parallel.shard that takes it off cp, or choose "
                     "another context_parallel_algo than megatron_cp_algo");
    DType dt = op->in[ATTN_Q]->ty.dt;
    if (dt != DT_F32 && dt != DT_BF16 && dt != DT_F16)
        lower_refuse(op, "its operands must be f32, bf16 or f16");
    AttnShape s = {.batch = q[0],
                   .tq = q[1],
                   .tk = k[1],
                   .heads = q[2],
                   .kv_heads = k[2],
                   .dim = q[3],
                   .scale = op_float(op, "scale", 1),
                   .causal = op_int(op, "causal", 0) != 0,
                   .window = op_int(op, "window", 0),
                   .dropout = op_float(op, "p", 0),
                   .site = (uint32_t)op_int(op, "site", 0),
                   .dt = dt,
                   .each = op->in[ATTN_Q_AT]->ty.rank > 0 && !attention_is_grad(op),
                   .within = attention_is_within(op),
                   .threads = threads};
    const char *why = attention_too_large(&s);
    if (why) lower_refuse(op, why);
    return s;
}

/* What the probabilities are a part of, for dropout; NULL: the whole. */
static const Part *probabilities(Lower *l, const Op *op, const AttnShape *s) {
    const Mesh *mesh = &l->m->mesh;
    if (s->dropout <= 0) return NULL;
    Type whole = attention_whole(op);
    Part *p = NEW(l->mem, Part);
    *p = part_of(mesh, &whole, 0);
    return p;
}

static const char *attention_function(Lower *l, const Op *op, int nparams) {
    AttnShape s = attention_shape(op, l->threads);
    s.part = probabilities(l, op, &s);
    Emit *e = piece_begin(l);
    if (attention_is_grad(op))
        attention_grad_emit(e, PIECE_NAME, &s);
    else
        attention_emit(e, PIECE_NAME, &s);
    return piece_end(l, e, "attention", nparams);
}

typedef struct Arguments { /* of the function that is called */
    LLVMValueRef at[16];
    int n;
} Arguments;

static void pass(Lower *l, Arguments *a, const Value *v) {
    a->at[a->n++] = lower_pointer(l, v);
}

/* Behind operands that were passed: the results, and what else there is. */
static void call(Lower *l, const Op *op, Arguments *a) {
    for (int i = 0; i < op->nout; i++) pass(l, a, op->out[i]);
    a->at[a->n++] = lower_workspace(l, op, 0);
    if (attention_is_within(op)) pass(l, a, op->in[ATTN_FIRST]);
    emit_call(l->e, attention_function(l, op, a->n), a->at, a->n);
}

void lower_attention(Lower *l, const Op *op) {
    Arguments a = {0};
    for (int i = 0; i < ATTN_FIRST; i++) pass(l, &a, op->in[i]);
    call(l, op, &a);
}

/* Forward's results and their gradients come before the operands listed here. */
void lower_attention_grad(Lower *l, const Op *op) {
    Arguments a = {0};
    for (int i = 0; i < 3; i++) pass(l, &a, op->in[i]);
    for (int i = 3; i; i--) pass(l, &a, op->in[op->nin - i]);
    for (int i = ATTN_Q_AT; i <= ATTN_RNG; i++) pass(l, &a, op->in[i]);
    call(l, op, &a);
}

int64_t lower_attention_workspace(Lower *l, const Op *op) {
    AttnShape s = attention_shape(op, l->threads);
    return (int64_t)attention_workspace_bytes(&s, attention_is_grad(op), l->threads,
                                              l->vl);
}
