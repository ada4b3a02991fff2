/* lower_attn.c - attention ops as calls of emitted functions, one per shape. That of f16 is
 * f32's, on copies. */
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
                   .dt = dt == DT_F16 ? DT_F32 : dt,
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

/* ---- copies in f32, at the beginning of the workspace ---- */

static int64_t copy_bytes(const Value *v) {
    return v->ty.dt == DT_F16 ? lower_widened_bytes(v) : 0;
}

static int64_t copies_bytes(const Op *op) {
    int64_t bytes = 0;
    for (int i = 0; i < op->nin; i++) bytes += copy_bytes(op->in[i]);
    for (int i = 0; i < op->nout; i++) bytes += copy_bytes(op->out[i]);
    return bytes;
}

typedef struct Arguments { /* of the function that is called */
    LLVMValueRef at[16];
    int n;
    int64_t skip_bytes;
} Arguments;

static void pass(Lower *l, const Op *op, Arguments *a, const Value *v, bool read) {
    LLVMValueRef p = lower_pointer(l, v);
    if (copy_bytes(v)) {
        p = lower_workspace(l, op, a->skip_bytes);
        a->skip_bytes += copy_bytes(v);
        if (read) lower_widened(l, v, p);
    }
    a->at[a->n++] = p;
}

static void pass_results(Lower *l, const Op *op, Arguments *a) {
    for (int i = 0; i < op->nout; i++) pass(l, op, a, op->out[i], false);
}

/* The results were passed from argument `first` on. */
static void call(Lower *l, const Op *op, Arguments *a, int first) {
    a->at[a->n++] = lower_workspace(l, op, copies_bytes(op));
    if (attention_is_within(op)) a->at[a->n++] = lower_pointer(l, op->in[ATTN_FIRST]);
    emit_call(l->e, attention_function(l, op, a->n), a->at, a->n);
    for (int i = 0; i < op->nout; i++)
        if (copy_bytes(op->out[i])) lower_rounded(l, op->out[i], a->at[first + i]);
}

static void forward(Lower *l, const Op *op) {
    Arguments a = {0};
    for (int i = 0; i < ATTN_FIRST; i++) pass(l, op, &a, op->in[i], true);
    const int first = a.n;
    pass_results(l, op, &a);
    call(l, op, &a, first);
}

/* Forward's results and their gradients come before the operands listed here. */
static void backward(Lower *l, const Op *op) {
    Arguments a = {0};
    for (int i = 0; i < 3; i++) pass(l, op, &a, op->in[i], true);
    for (int i = 3; i; i--) pass(l, op, &a, op->in[op->nin - i], true);
    for (int i = ATTN_Q_AT; i <= ATTN_RNG; i++) pass(l, op, &a, op->in[i], true);
    const int first = a.n;
    pass_results(l, op, &a);
    call(l, op, &a, first);
}

void lower_attention(Lower *l, const Op *op) {
    forward(l, op);
}

void lower_attention_within(Lower *l, const Op *op) {
    forward(l, op);
}

void lower_attention_each(Lower *l, const Op *op) {
    forward(l, op);
}

void lower_attention_grad(Lower *l, const Op *op) {
    backward(l, op);
}

void lower_attention_within_grad(Lower *l, const Op *op) {
    backward(l, op);
}

int64_t lower_attention_workspace(Lower *l, const Op *op) {
    AttnShape s = attention_shape(op, l->threads);
    return copies_bytes(op) + (int64_t)attention_workspace_bytes(
                                  &s, attention_is_grad(op), l->threads, l->vl);
}
