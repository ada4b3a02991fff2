/* op_hooks.h - prototypes of the hooks that rows of ops.def name; ir/ops/ has them. */
#ifndef STATOR_OP_HOOKS_H
#define STATOR_OP_HOOKS_H
#include "ir/ir.h"

typedef void Vjp(Grad *, Op *, Value *dy);

/* ops/linear.c, ops/move.c */
Vjp vjp_dot, vjp_sum, vjp_max, vjp_rearrange, vjp_reshape, vjp_unstack, vjp_stack,
    vjp_copy, vjp_pad, vjp_unpad, vjp_slice;
void infer_pad(Op *, Type *), infer_unpad(Op *, Type *), infer_slice(Op *, Type *);
bool dims_reshape(const Op *, Dims *), dims_unstack(const Op *, Dims *);
bool dims_slice(const Op *, Dims *);
bool dims_stack(const Op *, Dims *);
void local_max(Local *);
void infer_reshape(Op *, Type *), infer_unstack(Op *, Type *), infer_stack(Op *, Type *);

/* ops/map.c */
void infer_dropout(Op *, Type *), local_dropout(Local *), local_pick(Local *);
void local_agree(Local *);
/* Does dropout of share p keep that element of the step? For references. */
bool dropout_keeps(const Tensor *rng, double p, int64_t site, int64_t element);
Vjp vjp_add, vjp_sub, vjp_mul, vjp_div, vjp_scale, vjp_offset, vjp_cast, vjp_exp, vjp_log,
    vjp_sqrt, vjp_rsqrt, vjp_tanh, vjp_softcap, vjp_relu, vjp_gelu, vjp_gelu_erf,
    vjp_fast_gelu, vjp_silu, vjp_dropout, vjp_atmost, vjp_select;
void infer_softcap(Op *, Type *);

/* ops/norm.c */
Vjp vjp_layernorm, vjp_rmsnorm, vjp_softmax, vjp_xent;
void infer_eps(Op *, Type *);
void expand_layernorm(Builder *, Op *, Value **),
    expand_rmsnorm(Builder *, Op *, Value **);
void expand_layernorm_grad(Builder *, Op *, Value **);
void expand_rmsnorm_grad(Builder *, Op *, Value **);
void expand_softmax(Builder *, Op *, Value **),
    expand_softmax_grad(Builder *, Op *, Value **);
void expand_xent(Builder *, Op *, Value **), expand_xent_grad(Builder *, Op *, Value **);

/* ops/embed.c */
Vjp vjp_embed, vjp_rope;
void infer_rope(Op *, Type *);
void local_embed(Local *), infer_positions(Op *, Type *);
void infer_rng_layer(Op *, Type *), infer_rope_table(Op *, Type *);
void infer_embed_add(Op *, Type *);

/* ops/attention.c, ops/ring.c */
Vjp vjp_attention;
void infer_attention(Op *, Type *), local_attention(Local *);
bool dims_attention(const Op *, Dims *);
double share_attention(const Op *);
double slowest_attention(const Op *);

/* ops/optimizer.c */
void expand_adamw(Builder *, Op *, Value **), expand_adam(Builder *, Op *, Value **);
void expand_momentum(Builder *, Op *, Value **), expand_sgd(Builder *, Op *, Value **);

/* ops/call.c */
void infer_call(Op *, Type *);

/* ops/comm.c */
void infer_all_reduce(Op *, Type *), infer_all_gather(Op *, Type *);
void infer_reduce_scatter(Op *, Type *), infer_shard(Op *, Type *);
void infer_all_to_all(Op *, Type *), infer_axis(Op *, Type *);
void infer_arrive(Op *, Type *);
void infer_send(Op *, Type *), infer_sent(Op *, Type *);

/* Gradients of the first n operands, as `grad` gives them, where they are wanted. */
static inline void grad_add_wanted(Grad *g, const Op *op, const Op *grad, int n) {
    for (int i = 0; i < n; i++)
        if (g->wants(g, op->in[i])) g->add(g, op->in[i], grad->out[i]);
}

/* infer.c */
void infer_free(Op *, Type *);
/* Reports that an op's operands do not fit (for infer hooks): unwinds to op_infer,
 * whose caller adds the source position. */
_Noreturn void infer_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* For infer hooks: operand i must be an rng, i32[4]; attribute p, the share of elements to
 * drop, must be in [0, 1) and `site` must fit 32 bits. */
void check_rng(const Op *op, int i), check_dropout(const Op *op);
/* Result types of an op from its row. `declared` gives the element types and sizes that the
 * row leaves open; it may be NULL. Returns NULL, or a sentence on what does not fit. */
const char *op_infer(Arena *mem, Op *op, const Type *declared, int ndeclared, Type *out,
                     int *nout);

#endif
