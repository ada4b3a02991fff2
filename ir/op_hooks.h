/* op_hooks.h - prototypes of the hooks that rows of ops.def name; ir/ops/ has them. */
#ifndef STATOR_OP_HOOKS_H
#define STATOR_OP_HOOKS_H
#include "ir/ir.h"

/* ops/linear.c, ops/move.c */
void vjp_dot(Grad *, Op *), vjp_sum(Grad *, Op *), vjp_max(Grad *, Op *);
void vjp_rearrange(Grad *, Op *);
void vjp_reshape(Grad *, Op *), vjp_unstack(Grad *, Op *), vjp_stack(Grad *, Op *);
void vjp_copy(Grad *, Op *), vjp_pad(Grad *, Op *), vjp_unpad(Grad *, Op *);
void vjp_slice(Grad *, Op *);
void infer_pad(Op *, Type *), infer_unpad(Op *, Type *), infer_slice(Op *, Type *);
bool dims_reshape(const Op *, Dims *), dims_unstack(const Op *, Dims *);
bool dims_slice(const Op *, Dims *);
bool dims_stack(const Op *, Dims *);
void local_max(Local *);
void infer_reshape(Op *, Type *), infer_unstack(Op *, Type *), infer_stack(Op *, Type *);
void infer_free(Op *, Type *);

/* ops/map.c */
void infer_dropout(Op *, Type *), local_dropout(Local *), local_pick(Local *);
void local_agree(Local *);
/* Does dropout of share p keep that element of the step? For references. */
bool dropout_keeps(const Tensor *rng, double p, int64_t site, int64_t element);
void vjp_add(Grad *, Op *), vjp_sub(Grad *, Op *), vjp_mul(Grad *, Op *);
void vjp_div(Grad *, Op *), vjp_scale(Grad *, Op *), vjp_offset(Grad *, Op *);
void vjp_cast(Grad *, Op *), vjp_exp(Grad *, Op *), vjp_log(Grad *, Op *);
void vjp_sqrt(Grad *, Op *), vjp_rsqrt(Grad *, Op *), vjp_tanh(Grad *, Op *);
void vjp_softcap(Grad *, Op *), infer_softcap(Op *, Type *);
void vjp_relu(Grad *, Op *), vjp_gelu(Grad *, Op *), vjp_gelu_erf(Grad *, Op *);
void vjp_fast_gelu(Grad *, Op *), vjp_silu(Grad *, Op *), vjp_dropout(Grad *, Op *);
void vjp_atmost(Grad *, Op *), vjp_select(Grad *, Op *);

/* ops/norm.c */
void vjp_layernorm(Grad *, Op *), vjp_rmsnorm(Grad *, Op *), vjp_softmax(Grad *, Op *);
void vjp_xent(Grad *, Op *);
void expand_layernorm(Builder *, Op *, Value **),
    expand_rmsnorm(Builder *, Op *, Value **);
void expand_layernorm_grad(Builder *, Op *, Value **);
void expand_rmsnorm_grad(Builder *, Op *, Value **);
void expand_softmax(Builder *, Op *, Value **),
    expand_softmax_grad(Builder *, Op *, Value **);
void expand_xent(Builder *, Op *, Value **), expand_xent_grad(Builder *, Op *, Value **);

/* ops/embed.c */
void vjp_embed(Grad *, Op *), vjp_rope(Grad *, Op *), infer_rope(Op *, Type *);
void local_embed(Local *), infer_positions(Op *, Type *);
void infer_rng_layer(Op *, Type *), infer_rope_table(Op *, Type *);

/* ops/attention.c, ops/ring.c */
void vjp_attention(Grad *, Op *), vjp_attention_within(Grad *, Op *);
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

/* infer.c. Reports that an op's operands do not fit (for infer hooks): unwinds to op_infer,
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
