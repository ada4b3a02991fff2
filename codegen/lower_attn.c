/* lower_attn.c - attention ops as calls of emitted functions, one per shape. */
#include "codegen/attention.h"
#include "codegen/lower.h"

static AttnShape attention_shape(const Op *op) {
    const int64_t *q = op->in[ATTN_Q]->ty.dim, *k = op->in[ATTN_K]->ty.dim;
    if (op_int(op, "zigzag", 0) > 1)
        lower_refuse(op, "zigzag order is for pass localize");
    DType dt = op->in[ATTN_Q]->ty.dt;
    if (dt != DT_F32 && dt != DT_BF16)
        lower_refuse(op, "its operands must be f32 or bf16");
    return (AttnShape){.batch = q[0],
                       .tq = q[1],
                       .tk = k[1],
                       .heads = q[2],
                       .kv_heads = k[2],
                       .dim = q[3],
                       .scale = op_float(op, "scale", 1),
                       .causal = op_int(op, "causal", 0) != 0,
                       .dropout = op_float(op, "p", 0),
                       .site = (uint32_t)op_int(op, "site", 0),
                       .dt = dt,
                       .within = attention_is_within(op)};
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

/* Emitted apart from the function that calls it; the builder comes back where it was. */
static const char *attention_function(Lower *l, const Op *op, bool grad) {
    AttnShape s = attention_shape(op);
    s.part = probabilities(l, op, &s);
    char *name = arena_printf(l->mem, "stator.attention.%d", l->nattention++);
    LLVMValueRef fn = l->e->fn;
    LLVMBasicBlockRef block = LLVMGetInsertBlock(l->e->b);
    if (grad)
        attention_grad_emit(l->e, name, &s);
    else
        attention_emit(l->e, name, &s);
    l->e->fn = fn;
    LLVMPositionBuilderAtEnd(l->e->b, block);
    return name;
}

static void forward(Lower *l, const Op *op) {
    LLVMValueRef args[10];
    int n = 0;
    for (int i = 0; i < ATTN_FIRST; i++) args[n++] = lower_pointer(l, op->in[i]);
    for (int i = 0; i < 2; i++) args[n++] = lower_pointer(l, op->out[i]);
    args[n++] = lower_workspace(l, op, 0);
    if (attention_is_within(op)) args[n++] = lower_pointer(l, op->in[ATTN_FIRST]);
    emit_call(l->e, attention_function(l, op, false), args, n);
}

/* Forward's results and their gradients come before the operands listed here. */
static void backward(Lower *l, const Op *op) {
    LLVMValueRef args[14];
    int n = 0;
    for (int i = 0; i < 3; i++) args[n++] = lower_pointer(l, op->in[i]);
    for (int i = 3; i; i--) args[n++] = lower_pointer(l, op->in[op->nin - i]);
    for (int i = ATTN_Q_AT; i <= ATTN_RNG; i++) args[n++] = lower_pointer(l, op->in[i]);
    for (int i = 0; i < 3; i++) args[n++] = lower_pointer(l, op->out[i]);
    args[n++] = lower_workspace(l, op, 0);
    if (attention_is_within(op)) args[n++] = lower_pointer(l, op->in[ATTN_FIRST]);
    emit_call(l->e, attention_function(l, op, true), args, n);
}

void lower_attention(Lower *l, const Op *op) {
    forward(l, op);
}

void lower_attention_within(Lower *l, const Op *op) {
    forward(l, op);
}

void lower_attention_grad(Lower *l, const Op *op) {
    backward(l, op);
}

void lower_attention_within_grad(Lower *l, const Op *op) {
    backward(l, op);
}

int64_t lower_attention_workspace(const Op *op, const Lower *l) {
    bool grad = attention_is_grad(op);
    if (!grad && op->kind != OP_attention && op->kind != OP_attention_within) return 0;
    AttnShape s = attention_shape(op);
    return (int64_t)attention_workspace_bytes(&s, grad, l->threads, l->vl);
}
