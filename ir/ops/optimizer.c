/* optimizer.c - optimizers, elementwise over parameter, gradient and state. The gradient
 * is multiplied by the clipping factor first. The bias corrections are 1 - beta^t, or 1
 * for none. */
#include "ir/op_hooks.h"
#include "ir/tensor_fast.h"
#include <math.h>

/* ---- meaning ---- */

/* Adam (arXiv 1412.6980). Weight decay goes through gradient and moments (coupled:
 * PyTorch Adam, MindSpore nn.Adam), or past them (arXiv 1711.05101: AdamW). */
static void ref_either_adam(const Ref *r, bool coupled) {
    double b1 = op_float(r->op, "beta1", 0), b2 = op_float(r->op, "beta2", 0);
    double eps = op_float(r->op, "eps", 0), rate = tensor_get_fast(r->in[4], 0);
    double decay = op_int(r->op, "decay", 0) ? tensor_get_fast(r->in[5], 0) : 0;
    double c1 = tensor_get_fast(r->in[6], 0), c2 = tensor_get_fast(r->in[7], 0);
    double clip = tensor_get_fast(r->in[8], 0), before = coupled ? decay : 0;
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        double p = tensor_get_fast(r->in[0], i);
        double g = tensor_get_fast(r->in[1], i) * clip + before * p;
        double m = b1 * tensor_get_fast(r->in[2], i) + (1 - b1) * g;
        double v = b2 * tensor_get_fast(r->in[3], i) + (1 - b2) * g * g;
        double step = m / c1 / (sqrt(v / c2) + eps) + (decay - before) * p;
        tensor_set_fast(r->out[0], i, p - rate * step);
        tensor_set_fast(r->out[1], i, m);
        tensor_set_fast(r->out[2], i, v);
    }
}

void ref_adamw(const Ref *r) {
    ref_either_adam(r, false);
}

void ref_adam(const Ref *r) {
    ref_either_adam(r, true);
}

/* As PyTorch's SGD: p -= rate * buffer, where buffer = momentum * buffer + g + decay * p.
 * Operands p, g, buffer, rate, decay, clip factor. */
void ref_momentum(const Ref *r) {
    double momentum = op_float(r->op, "momentum", 0), rate = tensor_get_fast(r->in[3], 0);
    double decay = op_int(r->op, "decay", 0) ? tensor_get_fast(r->in[4], 0) : 0;
    double clip = tensor_get_fast(r->in[5], 0);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        double p = tensor_get_fast(r->in[0], i);
        double buffer = momentum * tensor_get_fast(r->in[2], i) +
                        tensor_get_fast(r->in[1], i) * clip + decay * p;
        tensor_set_fast(r->out[0], i, p - rate * buffer);
        tensor_set_fast(r->out[1], i, buffer);
    }
}

void ref_sgd(const Ref *r) {
    double decay = op_int(r->op, "decay", 0) ? tensor_get_fast(r->in[3], 0) : 0;
    double rate = tensor_get_fast(r->in[2], 0), clip = tensor_get_fast(r->in[4], 0);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        double p = tensor_get_fast(r->in[0], i), g = tensor_get_fast(r->in[1], i) * clip;
        tensor_set_fast(r->out[0], i, p - rate * (g + decay * p));
    }
}

/* ---- in terms of primitive ops ---- */

static Value *scaled(Builder *b, Value *x, double by) {
    return build1(b, OP_scale, bfmt(b, "by=%.17g", by), x, NULL);
}

static Value *by_scalar(Builder *b, int kind, Value *x, Value *scalar) {
    return build1(b, kind, "...,_->...", x, scalar, NULL);
}

static Value *pair(Builder *b, int kind, Value *x, Value *y) {
    return build1(b, kind, NULL, x, y, NULL);
}

/* x, or x + decay * p for a parameter that decays. */
static Value *plus_decay(Builder *b, const Op *op, Value *x, Value *decay) {
    if (!op_int(op, "decay", 0)) return x;
    return pair(b, OP_add, x, by_scalar(b, OP_mul, op->in[0], decay));
}

/* p - rate * step */
static Value *stepped(Builder *b, const Op *op, Value *step, Value *rate) {
    return pair(b, OP_sub, op->in[0], by_scalar(b, OP_mul, step, rate));
}

/* What p moves by for the gradient g, and the new moments out[1], out[2]. */
static Value *adam_step(Builder *b, const Op *op, Value *g, Value **out) {
    double b1 = op_float(op, "beta1", 0), b2 = op_float(op, "beta2", 0);
    out[1] = pair(b, OP_add, scaled(b, op->in[2], b1), scaled(b, g, 1 - b1));
    out[2] = pair(b, OP_add, scaled(b, op->in[3], b2),
                  scaled(b, pair(b, OP_mul, g, g), 1 - b2));
    Value *root = build1(b, OP_sqrt, NULL, by_scalar(b, OP_div, out[2], op->in[7]), NULL);
    root = build1(b, OP_offset, bfmt(b, "by=%.17g", op_float(op, "eps", 0)), root, NULL);
    return pair(b, OP_div, by_scalar(b, OP_div, out[1], op->in[6]), root);
}

void expand_adamw(Builder *b, Op *op, Value **out) {
    Value *g = by_scalar(b, OP_mul, op->in[1], op->in[8]);
    Value *step = plus_decay(b, op, adam_step(b, op, g, out), op->in[5]);
    out[0] = stepped(b, op, step, op->in[4]);
}

void expand_adam(Builder *b, Op *op, Value **out) {
    Value *g = plus_decay(b, op, by_scalar(b, OP_mul, op->in[1], op->in[8]), op->in[5]);
    out[0] = stepped(b, op, adam_step(b, op, g, out), op->in[4]);
}

void expand_momentum(Builder *b, Op *op, Value **out) {
    Value *g = plus_decay(b, op, by_scalar(b, OP_mul, op->in[1], op->in[5]), op->in[4]);
    out[1] = pair(b, OP_add, scaled(b, op->in[2], op_float(op, "momentum", 0)), g);
    out[0] = stepped(b, op, out[1], op->in[3]);
}

void expand_sgd(Builder *b, Op *op, Value **out) {
    Value *g = plus_decay(b, op, by_scalar(b, OP_mul, op->in[1], op->in[4]), op->in[3]);
    out[0] = stepped(b, op, g, op->in[2]);
}
