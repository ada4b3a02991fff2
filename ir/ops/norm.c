/* norm.c - rows over the last dimension: layernorm, rmsnorm, softmax, cross entropy. They
 * are composites: `expand` writes them with primitive ops, which pass fuse puts into one
 * kernel. The reference kernels are written independently of that. */
#include "ir/op_hooks.h"
#include "ir/tensor_fast.h"
#include <math.h>

static int64_t row_length(const Tensor *t) {
    return t->ty.dim[t->ty.rank - 1];
}

void ref_layernorm(const Ref *r) {
    int64_t c = row_length(r->in[0]), rows = type_count(&r->in[0]->ty) / c;
    double eps = op_float(r->op, "eps", 0);
    for (int64_t i = 0; i < rows; i++) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < c; j++)
            mean += tensor_get_fast(r->in[0], i * c + j) / (double)c;
        for (int64_t j = 0; j < c; j++) {
            double x = tensor_get_fast(r->in[0], i * c + j) - mean;
            var += x * x / (double)c;
        }
        double rstd = 1 / sqrt(var + eps);
        for (int64_t j = 0; j < c; j++) {
            double x = (tensor_get_fast(r->in[0], i * c + j) - mean) * rstd;
            tensor_set_fast(r->out[0], i * c + j,
                            x * tensor_get_fast(r->in[1], j) +
                                tensor_get_fast(r->in[2], j));
        }
        tensor_set_fast(r->out[1], i, mean);
        tensor_set_fast(r->out[2], i, rstd);
    }
}

/* dx = rstd (dy g - mean(dy g) - xhat mean(dy g xhat)); dg = sum dy xhat; db = sum dy */
void ref_layernorm_grad(const Ref *r) {
    int64_t c = row_length(r->in[0]), rows = type_count(&r->in[0]->ty) / c;
    for (int64_t j = 0; j < c; j++) {
        double dg = 0, db = 0;
        for (int64_t i = 0; i < rows; i++) {
            double xhat =
                (tensor_get_fast(r->in[0], i * c + j) - tensor_get_fast(r->in[2], i)) *
                tensor_get_fast(r->in[3], i);
            dg += tensor_get_fast(r->in[4], i * c + j) * xhat;
            db += tensor_get_fast(r->in[4], i * c + j);
        }
        tensor_set_fast(r->out[1], j, dg);
        tensor_set_fast(r->out[2], j, db);
    }
    for (int64_t i = 0; i < rows; i++) {
        double mean = tensor_get_fast(r->in[2], i), rstd = tensor_get_fast(r->in[3], i);
        double c1 = 0, c2 = 0;
        for (int64_t j = 0; j < c; j++) {
            double dyg =
                tensor_get_fast(r->in[4], i * c + j) * tensor_get_fast(r->in[1], j);
            c1 += dyg / (double)c;
            c2 += dyg * (tensor_get_fast(r->in[0], i * c + j) - mean) * rstd / (double)c;
        }
        for (int64_t j = 0; j < c; j++) {
            double dyg =
                tensor_get_fast(r->in[4], i * c + j) * tensor_get_fast(r->in[1], j);
            double xhat = (tensor_get_fast(r->in[0], i * c + j) - mean) * rstd;
            tensor_set_fast(r->out[0], i * c + j, rstd * (dyg - c1 - xhat * c2));
        }
    }
}

void vjp_layernorm(Grad *g, Op *op, Value *dy) {
    Op *grad = build(&g->b, OP_layernorm_grad, NULL, op->in[0], op->in[1], op->out[1],
                     op->out[2], dy, NULL);
    grad_add_wanted(g, op, grad, 3);
}

/* Shorthands for rows x[...,c], row values [...] and columns [c]. */
static Value *row_row(Builder *b, int kind, Value *x, Value *row) {
    return build1(b, kind, "...c,...->...c", x, row, NULL);
}

static Value *row_col(Builder *b, int kind, Value *x, Value *col) {
    return build1(b, kind, "...c,c->...c", x, col, NULL);
}

static Value *row_mean(Builder *b, Value *x) {
    Value *sum = build1(b, OP_sum, "...c->...", x, NULL);
    char *attrs = bfmt(b, "by=%.17g", 1.0 / (double)x->ty.dim[x->ty.rank - 1]);
    return build1(b, OP_scale, attrs, sum, NULL);
}

static Value *times(Builder *b, Value *x, Value *y) {
    return build1(b, OP_mul, NULL, x, y, NULL);
}

void infer_eps(Op *op, Type *out) {
    (void)out;
    double eps = op_float(op, "eps", NAN);
    if (!(eps >= 0 && isfinite(eps)))
        infer_error("eps=%g must be a finite number of at least 0", eps);
}

void expand_layernorm(Builder *b, Op *op, Value **out) {
    Value *x = op->in[0];
    out[1] = row_mean(b, x);
    Value *centred = row_row(b, OP_sub, x, out[1]);
    Value *var = row_mean(b, times(b, centred, centred));
    char *eps = bfmt(b, "by=%.17g", op_float(op, "eps", 0));
    out[2] = build1(b, OP_rsqrt, NULL, build1(b, OP_offset, eps, var, NULL), NULL);
    Value *xhat = row_row(b, OP_mul, centred, out[2]);
    out[0] = row_col(b, OP_add, row_col(b, OP_mul, xhat, op->in[1]), op->in[2]);
}

void expand_layernorm_grad(Builder *b, Op *op, Value **out) {
    Value *x = op->in[0], *gain = op->in[1], *mean = op->in[2], *rstd = op->in[3];
    Value *dy = op->in[4];
    Value *xhat = row_row(b, OP_mul, row_row(b, OP_sub, x, mean), rstd);
    Value *dyg = row_col(b, OP_mul, dy, gain);
    Value *c1 = row_mean(b, dyg), *c2 = row_mean(b, times(b, dyg, xhat));
    Value *t = row_row(b, OP_sub, dyg, c1);
    t = build1(b, OP_sub, NULL, t, row_row(b, OP_mul, xhat, c2), NULL);
    out[0] = row_row(b, OP_mul, t, rstd);
    out[1] = build1(b, OP_sum, "...c->c", times(b, dy, xhat), NULL);
    out[2] = build1(b, OP_sum, "...c->c", dy, NULL);
}

void ref_rmsnorm(const Ref *r) {
    int64_t c = row_length(r->in[0]), rows = type_count(&r->in[0]->ty) / c;
    for (int64_t i = 0; i < rows; i++) {
        double square = 0;
        for (int64_t j = 0; j < c; j++) {
            double x = tensor_get_fast(r->in[0], i * c + j);
            square += x * x / (double)c;
        }
        double rstd = 1 / sqrt(square + op_float(r->op, "eps", 0));
        for (int64_t j = 0; j < c; j++) {
            tensor_set_fast(r->out[0], i * c + j,
                            tensor_get_fast(r->in[0], i * c + j) * rstd *
                                tensor_get_fast(r->in[1], j));
        }
        tensor_set_fast(r->out[1], i, rstd);
    }
}

/* dx = rstd (dy g - xhat mean(dy g xhat)); dg = sum dy xhat; xhat = x rstd */
void ref_rmsnorm_grad(const Ref *r) {
    int64_t c = row_length(r->in[0]), rows = type_count(&r->in[0]->ty) / c;
    for (int64_t j = 0; j < c; j++) {
        double dg = 0;
        for (int64_t i = 0; i < rows; i++) {
            dg += tensor_get_fast(r->in[3], i * c + j) *
                  tensor_get_fast(r->in[0], i * c + j) * tensor_get_fast(r->in[2], i);
        }
        tensor_set_fast(r->out[1], j, dg);
    }
    for (int64_t i = 0; i < rows; i++) {
        double rstd = tensor_get_fast(r->in[2], i), c2 = 0;
        for (int64_t j = 0; j < c; j++) {
            c2 += tensor_get_fast(r->in[3], i * c + j) * tensor_get_fast(r->in[1], j) *
                  tensor_get_fast(r->in[0], i * c + j) * rstd / (double)c;
        }
        for (int64_t j = 0; j < c; j++) {
            double dyg =
                tensor_get_fast(r->in[3], i * c + j) * tensor_get_fast(r->in[1], j);
            tensor_set_fast(r->out[0], i * c + j,
                            rstd *
                                (dyg - tensor_get_fast(r->in[0], i * c + j) * rstd * c2));
        }
    }
}

void vjp_rmsnorm(Grad *g, Op *op, Value *dy) {
    Op *grad =
        build(&g->b, OP_rmsnorm_grad, NULL, op->in[0], op->in[1], op->out[1], dy, NULL);
    grad_add_wanted(g, op, grad, 2);
}

void expand_rmsnorm(Builder *b, Op *op, Value **out) {
    Value *x = op->in[0], *square = row_mean(b, times(b, x, x));
    char *eps = bfmt(b, "by=%.17g", op_float(op, "eps", 0));
    out[1] = build1(b, OP_rsqrt, NULL, build1(b, OP_offset, eps, square, NULL), NULL);
    out[0] = row_col(b, OP_mul, row_row(b, OP_mul, x, out[1]), op->in[1]);
}

void expand_rmsnorm_grad(Builder *b, Op *op, Value **out) {
    Value *xhat = row_row(b, OP_mul, op->in[0], op->in[2]), *dy = op->in[3];
    Value *dyg = row_col(b, OP_mul, dy, op->in[1]);
    Value *c2 = row_mean(b, times(b, dyg, xhat));
    Value *t = build1(b, OP_sub, NULL, dyg, row_row(b, OP_mul, xhat, c2), NULL);
    out[0] = row_row(b, OP_mul, t, op->in[2]);
    out[1] = build1(b, OP_sum, "...c->c", times(b, dy, xhat), NULL);
}

/* The largest of the n numbers from `first` on, and the sum of their exponentials over its. */
static double exp_sum(const Tensor *t, int64_t first, int64_t n, double *top) {
    double sum = 0;
    *top = -INFINITY;
    for (int64_t j = first; j < first + n; j++) *top = fmax(*top, tensor_get_fast(t, j));
    for (int64_t j = first; j < first + n; j++) sum += exp(tensor_get_fast(t, j) - *top);
    return sum;
}

void ref_softmax(const Ref *r) {
    int64_t c = row_length(r->in[0]), rows = type_count(&r->in[0]->ty) / c;
    for (int64_t i = 0; i < rows; i++) {
        double top, sum = exp_sum(r->in[0], i * c, c, &top);
        for (int64_t j = 0; j < c; j++) {
            tensor_set_fast(r->out[0], i * c + j,
                            exp(tensor_get_fast(r->in[0], i * c + j) - top) / sum);
        }
    }
}

/* y (dy - sum y dy), from the result y */
void ref_softmax_grad(const Ref *r) {
    int64_t c = row_length(r->in[0]), rows = type_count(&r->in[0]->ty) / c;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t j = i * c; j < i * c + c; j++) {
            sum += tensor_get_fast(r->in[0], j) * tensor_get_fast(r->in[1], j);
        }
        for (int64_t j = i * c; j < i * c + c; j++) {
            tensor_set_fast(r->out[0], j,
                            tensor_get_fast(r->in[0], j) *
                                (tensor_get_fast(r->in[1], j) - sum));
        }
    }
}

void vjp_softmax(Grad *g, Op *op, Value *dy) {
    g->add(g, op->in[0], build1(&g->b, OP_softmax_grad, NULL, op->out[0], dy, NULL));
}

void expand_softmax(Builder *b, Op *op, Value **out) {
    Value *top = build1(b, OP_max, "...c->...", op->in[0], NULL);
    Value *e = build1(b, OP_exp, NULL, row_row(b, OP_sub, op->in[0], top), NULL);
    out[0] = row_row(b, OP_div, e, build1(b, OP_sum, "...c->...", e, NULL));
}

void expand_softmax_grad(Builder *b, Op *op, Value **out) {
    Value *y = op->in[0], *dy = op->in[1];
    Value *sum = build1(b, OP_sum, "...c->...", times(b, y, dy), NULL);
    out[0] = times(b, y, row_row(b, OP_sub, dy, sum));
}

void ref_xent(const Ref *r) {
    int64_t v = row_length(r->in[0]), rows = type_count(&r->in[0]->ty) / v;
    for (int64_t i = 0; i < rows; i++) {
        double top, sum = exp_sum(r->in[0], i * v, v, &top);
        double lse = log(sum) + top;
        int64_t label = tensor_get_int(r->in[1], i);
        if (label >= v) {
            fail(EXIT_DATA, "label %lld of %lld classes", (long long)label, (long long)v);
        }
        double loss = label < 0 ? 0 : lse - tensor_get_fast(r->in[0], i * v + label);
        tensor_set_fast(r->out[0], i, loss);
        tensor_set_fast(r->out[1], i, lse);
    }
}

/* dloss (softmax(x) - onehot), from log sum exp */
void ref_xent_grad(const Ref *r) {
    int64_t v = row_length(r->in[0]), n = type_count(&r->in[0]->ty);
    for (int64_t i = 0; i < n; i++) {
        int64_t label = tensor_get_int(r->in[1], i / v);
        double p = exp(tensor_get_fast(r->in[0], i) - tensor_get_fast(r->in[2], i / v));
        double d =
            label < 0 ? 0 : (p - (label == i % v)) * tensor_get_fast(r->in[3], i / v);
        tensor_set_fast(r->out[0], i, d);
    }
}

void vjp_xent(Grad *g, Op *op, Value *dy) {
    if (!g->wants(g, op->in[0])) return;
    g->add(g, op->in[0],
           build1(&g->b, OP_xent_grad, NULL, op->in[0], op->in[1], op->out[1], dy, NULL));
}

/* 1 where the label counts, shaped like `like` without its last dimension */
static Value *label_weight(Builder *b, Value *labels, Value *like) {
    Type t = labels->ty;
    t.dt = like->ty.dt;
    return build_as(b, OP_valid, NULL, t, labels, NULL);
}

void expand_xent(Builder *b, Op *op, Value **out) {
    Value *x = op->in[0], *labels = op->in[1];
    Value *top = build1(b, OP_max, "...c->...", x, NULL);
    Value *e = build1(b, OP_exp, NULL, row_row(b, OP_sub, x, top), NULL);
    Value *sum = build1(b, OP_sum, "...c->...", e, NULL);
    out[1] = build1(b, OP_add, NULL, build1(b, OP_log, NULL, sum, NULL), top, NULL);
    Value *picked =
        build1(b, OP_sum, "...c->...", build1(b, OP_pick, NULL, x, labels, NULL), NULL);
    Value *loss = build1(b, OP_sub, NULL, out[1], picked, NULL);
    out[0] = times(b, loss, label_weight(b, labels, x));
}

void expand_xent_grad(Builder *b, Op *op, Value **out) {
    Value *x = op->in[0], *labels = op->in[1];
    Value *p = build1(b, OP_exp, NULL, row_row(b, OP_sub, x, op->in[2]), NULL);
    Value *one = build_as(b, OP_onehot, NULL, x->ty, labels, NULL);
    Value *weight = times(b, op->in[3], label_weight(b, labels, x));
    out[0] = row_row(b, OP_mul, build1(b, OP_sub, NULL, p, one, NULL), weight);
}
