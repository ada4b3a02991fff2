/* op_optim.c - optimizers, elementwise over parameter, gradient and state. */
#include "op_hooks.h"
#include "number.h"
#include <math.h>

/* AdamW (arXiv 1711.05101): operands p, g, m, v, learning rate, the two bias corrections
 * 1 - beta^t (1 = none), and the factor of clipping that g is multiplied with. */
void ref_adamw(const Ref *r) {
    double b1 = op_float(r->op, "beta1", 0), b2 = op_float(r->op, "beta2", 0);
    double eps = op_float(r->op, "eps", 0), decay = op_float(r->op, "decay", 0);
    double rate = number_get(r->in[4], 0), c1 = number_get(r->in[5], 0);
    double c2 = number_get(r->in[6], 0), clip = number_get(r->in[7], 0);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        double p = number_get(r->in[0], i), g = number_get(r->in[1], i) * clip;
        double m = b1 * number_get(r->in[2], i) + (1 - b1) * g;
        double v = b2 * number_get(r->in[3], i) + (1 - b2) * g * g;
        number_set(r->out[0], i, p - rate * (decay * p + m / c1 / (sqrt(v / c2) + eps)));
        number_set(r->out[1], i, m);
        number_set(r->out[2], i, v);
    }
}

static Value *scaled(Builder *b, Value *x, double by) {
    return build1(b, OP_scale, bfmt(b, "by=%.17g", by), x, NULL);
}

static Value *by_scalar(Builder *b, int kind, Value *x, Value *scalar) {
    return build1(b, kind, "...,_->...", x, scalar, NULL);
}

static Value *pair(Builder *b, int kind, Value *x, Value *y) {
    return build1(b, kind, NULL, x, y, NULL);
}

void expand_adamw(Builder *b, Op *op, Value **out) {
    Value *p = op->in[0], *rate = op->in[4];
    double b1 = op_float(op, "beta1", 0), b2 = op_float(op, "beta2", 0);
    double decay = op_float(op, "decay", 0);
    Value *g = by_scalar(b, OP_mul, op->in[1], op->in[7]);
    out[1] = pair(b, OP_add, scaled(b, op->in[2], b1), scaled(b, g, 1 - b1));
    out[2] = pair(b, OP_add, scaled(b, op->in[3], b2),
                  scaled(b, pair(b, OP_mul, g, g), 1 - b2));
    Value *root = build1(b, OP_sqrt, NULL, by_scalar(b, OP_div, out[2], op->in[6]), NULL);
    root = build1(b, OP_offset, bfmt(b, "by=%.17g", op_float(op, "eps", 0)), root, NULL);
    Value *step = pair(b, OP_div, by_scalar(b, OP_div, out[1], op->in[5]), root);
    if (decay != 0) step = pair(b, OP_add, step, scaled(b, p, decay));
    out[0] = pair(b, OP_sub, p, by_scalar(b, OP_mul, step, rate));
}

/* SGD with momentum as PyTorch has it: buffer = momentum * buffer + g + decay * p,
 * p -= rate * buffer. Operands p, g, buffer, rate, clip factor. */
void ref_sgd(const Ref *r) {
    double momentum = op_float(r->op, "momentum", 0), decay = op_float(r->op, "decay", 0);
    double rate = number_get(r->in[3], 0), clip = number_get(r->in[4], 0);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        double p = number_get(r->in[0], i);
        double buffer = momentum * number_get(r->in[2], i) +
                        number_get(r->in[1], i) * clip + decay * p;
        number_set(r->out[0], i, p - rate * buffer);
        number_set(r->out[1], i, buffer);
    }
}

void expand_sgd(Builder *b, Op *op, Value **out) {
    double decay = op_float(op, "decay", 0);
    Value *p = op->in[0], *g = by_scalar(b, OP_mul, op->in[1], op->in[4]);
    if (decay != 0) g = pair(b, OP_add, g, scaled(b, p, decay));
    out[1] = pair(b, OP_add, scaled(b, op->in[2], op_float(op, "momentum", 0)), g);
    out[0] = pair(b, OP_sub, p, by_scalar(b, OP_mul, out[1], op->in[3]));
}
