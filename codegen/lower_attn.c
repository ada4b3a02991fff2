/* lower_attn.c - attention ops as calls of emitted functions, one per shape; collectives of
 * axes of one rank. */
#include "attention.h"
#include "lower.h"

static AttnShape attention_shape(const Op *op) {
    const int64_t *q = op->in[0]->ty.dim, *k = op->in[1]->ty.dim;
    if (op->in[0]->ty.dt != DT_F32) lower_refuse(op, "its operands must be f32");
    return (AttnShape){.batch = q[0], .tq = q[1], .tk = k[1], .heads = q[2], .kv_heads = k[2],
                       .dim = q[3], .scale = op_float(op, "scale", 1),
                       .causal = op_int(op, "causal", 0) != 0,
                       .dropout = op_float(op, "p", 0),
                       .site = (uint32_t)op_int(op, "site", 0)};
}

/* Emitted apart from the function that calls it; the builder comes back where it was. */
static const char *attention_function(Lower *l, const Op *op, bool grad) {
    AttnShape s = attention_shape(op);
    char *name = arena_printf(l->mem, "stator.attention.%d", l->nattention++);
    LLVMValueRef fn = l->e->fn;
    LLVMBasicBlockRef block = LLVMGetInsertBlock(l->e->b);
    if (grad) attention_grad_emit(l->e, name, &s);
    else attention_emit(l->e, name, &s);
    l->e->fn = fn;
    LLVMPositionBuilderAtEnd(l->e->b, block);
    return name;
}

void lower_attention(Lower *l, const Op *op) {
    LLVMValueRef args[8];
    for (int i = 0; i < 5; i++) args[i] = lower_pointer(l, op->in[i]);
    args[5] = lower_pointer(l, op->out[0]);
    args[6] = lower_pointer(l, op->out[1]);
    args[7] = lower_workspace(l, op, 0);
    lower_rt(l, attention_function(l, op, false), args, 8);
}

void lower_attention_grad(Lower *l, const Op *op) {
    static const int order[] = {0, 1, 2, 5, 6, 7, 3, 4}; /* q k v o lse do offset rng */
    LLVMValueRef args[12];
    for (int i = 0; i < 8; i++) args[i] = lower_pointer(l, op->in[order[i]]);
    for (int i = 0; i < 3; i++) args[8 + i] = lower_pointer(l, op->out[i]);
    args[11] = lower_workspace(l, op, 0);
    lower_rt(l, attention_function(l, op, true), args, 12);
}

int64_t lower_attention_workspace(const Op *op, const Lower *l) {
    bool grad = op->kind == OP_attention_grad;
    if (!grad && op->kind != OP_attention) return 0;
    AttnShape s = attention_shape(op);
    return (int64_t)attention_workspace_bytes(&s, grad, l->threads, l->vl);
}

static void alone(Lower *l, const Op *op) {
    const Mesh *m = &l->m->mesh;
    for (int a = 0; a < m->naxes; a++) {
        if (m->axis[a].size > 1 && !strcmp(m->axis[a].name, op_attr(op, "axis")->s)) {
            lower_refuse(op, "a collective of several ranks needs MPI, which this build lacks");
        }
    }
    lower_copy(l, op);
}

void lower_all_reduce(Lower *l, const Op *op) {
    alone(l, op);
}

void lower_all_gather(Lower *l, const Op *op) {
    alone(l, op);
}

void lower_reduce_scatter(Lower *l, const Op *op) {
    alone(l, op);
}

void lower_all_to_all(Lower *l, const Op *op) {
    alone(l, op);
}

void lower_shard(Lower *l, const Op *op) {
    alone(l, op);
}
