/* embed.c - tables and positions: embed, positions, rope. */
#include "ir/op_hooks.h"
#include "ir/placement.h"
#include "ir/tensor_fast.h"
#include <math.h>
#include <stdlib.h>

/* Element i of the indices; it must be a row of a table of `rows`, or, when that is a
 * part of the table only, is -1. */
static int64_t row_of(const Ref *r, const Tensor *ids, int64_t i, int64_t rows) {
    int64_t id = tensor_get_int(ids, i);
    if (op_int(r->op, "partial", 0) && (id < 0 || id >= rows)) return -1;
    if (id < 0 || id >= rows) {
        fail(EXIT_DATA, "index %lld of a table of %lld rows: indices are 0 to %lld",
             (long long)id, (long long)rows, (long long)rows - 1);
    }
    return id;
}

void ref_embed(const Ref *r) {
    int64_t v = r->in[0]->ty.dim[0], c = r->in[0]->ty.dim[1];
    for (int64_t i = 0, n = type_count(&r->in[1]->ty); i < n; i++) {
        int64_t id = row_of(r, r->in[1], i, v);
        for (int64_t j = 0; j < c; j++) {
            tensor_set_fast(r->out[0], i * c + j,
                            id < 0 ? 0 : tensor_get_fast(r->in[0], id * c + j));
        }
    }
}

/* Rows of dy to those of result 0 that ids name. */
static void add_rows(const Ref *r, const Tensor *ids, const Tensor *dy) {
    int64_t c = r->out[0]->ty.dim[1], n = type_count(&ids->ty);
    for (int64_t i = 0; i < n; i++) {
        int64_t id = row_of(r, ids, i, r->out[0]->ty.dim[0]);
        for (int64_t j = 0; j < c && id >= 0; j++) {
            tensor_set_fast(r->out[0], id * c + j,
                            tensor_get_fast(r->out[0], id * c + j) +
                                tensor_get_fast(dy, i * c + j));
        }
    }
}

void ref_embed_grad(const Ref *r) {
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++)
        tensor_set_fast(r->out[0], i, 0);
    add_rows(r, r->in[0], r->in[1]);
}

void ref_embed_add(const Ref *r) {
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++)
        tensor_set_fast(r->out[0], i, tensor_get_fast(r->in[0], i));
    add_rows(r, r->in[1], r->in[2]);
}

void infer_embed_add(Op *op, Type *out) {
    const Type *sum = &op->in[0]->ty, *ids = &op->in[1]->ty, *dy = &op->in[2]->ty;
    bool fits = sum->rank == 2 && dy->rank == ids->rank + 1;
    for (int d = 0; fits && d < ids->rank; d++) fits = ids->dim[d] == dy->dim[d];
    if (!fits || dy->dim[ids->rank] != sum->dim[1])
        infer_error("the operands must be [v,c], indices [...] and [...,c]");
    out[0] = *sum;
}

/* A row that many indices have is summed in f32 and then rounded once. */
void vjp_embed(Grad *g, Op *op, Value *dy) {
    if (!g->wants(g, op->in[0])) return;
    const char *attrs = op_int(op, "partial", 0) ? "partial=1" : NULL;
    Type sum = op->in[0]->ty;
    sum.dt = dtype_sum(sum.dt);
    Value *rows = build_as(&g->b, OP_embed_grad, attrs, sum, op->in[1],
                           build_cast(&g->b, dy, sum.dt), NULL);
    g->add(g, op->in[0], build_cast(&g->b, rows, op->in[0]->ty.dt));
}

/* With a part of the table, indices count from its first row. */
void local_embed(Local *l) {
    bool grad = l->op->kind == OP_embed_grad;
    int table = grad ? l->d->nin : 0, ids = grad ? 0 : 1, rows = l->d->term[table][0];
    if (!l->split[rows]) return;
    op_set_int(l->op, "partial", 1);
    l->op->in[ids] =
        build1(&l->b, OP_index_from, NULL, l->op->in[ids], local_first(l, rows), NULL);
}

int64_t zigzag_position(int64_t i, int64_t t, int64_t n) {
    if (n <= 1) return i;
    int64_t part = t / (2 * n), at = i / part;
    return (at % 2 ? 2 * n - 1 - at / 2 : at / 2) * part + i % part;
}

void infer_positions(Op *op, Type *out) {
    int64_t n = op_int(op, "zigzag", 0);
    if (n < 0 || n > INT32_MAX || (n && out[0].dim[0] % (2 * n))) {
        infer_error("zigzag=%lld needs a multiple of twice that many rows", (long long)n);
    }
}

void ref_positions(const Ref *r) {
    int64_t n = type_count(&r->out[0]->ty), zigzag = op_int(r->op, "zigzag", 0);
    for (int64_t i = 0; i < n; i++) {
        tensor_set_fast(
            r->out[0], i,
            (double)(tensor_get_int(r->in[0], 0) + zigzag_position(i, n, zigzag)));
    }
}

void ref_rng_layer(const Ref *r) {
    for (int i = 0; i < RNG_WORDS; i++) {
        bool layer = i == RNG_LAYER;
        tensor_set_fast(r->out[0], i, tensor_get_fast(r->in[layer], layer ? 0 : i));
    }
}

void infer_rng_layer(Op *op, Type *out) {
    (void)out;
    check_rng(op, 0);
}

void infer_rope_table(Op *op, Type *out) {
    const int64_t *pairs = out[0].dim + out[0].rank - 2;
    if (pairs[1] != 2) {
        infer_error("the result must be [t,k,2]: pairs of cos and sin");
    }
    if (!op_attr(op, "base") == !op_attr(op, "freqs"))
        infer_error("write either base or freqs");
    double base = op_float(op, "base", 1), scale = op_float(op, "scale", 1);
    if (!(base > 0 && isfinite(base)))
        infer_error("base=%g must be a finite number above 0", base);
    if (!isfinite(scale)) infer_error("scale must be a finite number");
    if (!rope_frequencies(op, pairs[0], NULL))
        infer_error("freqs must be %lld numbers with a space between two",
                    (long long)pairs[0]);
}

bool rope_frequencies(const Op *op, int64_t n, double *out) {
    const Attr *freqs = op_attr(op, "freqs");
    double base = op_float(op, "base", 0);
    if (!freqs && !out) return true;
    const char *at = freqs ? freqs->s : NULL;
    for (int64_t k = 0; k < n; k++) {
        char *end = NULL;
        double v = freqs ? strtod(at, &end) : pow(base, -(double)k / (double)n);
        if (freqs && (end == at || (*end && *end != ' ') || !isfinite(v))) return false;
        if (out) out[k] = v;
        at = end;
    }
    return !freqs || !*at;
}

/* angle(t, i) = (offset + t) * frequency of pair i (arXiv 2104.09864) */
void ref_rope_table(const Ref *r) {
    const Type *ty = &r->out[0]->ty;
    bool each = r->in[0]->ty.rank > 0;
    int64_t half = ty->dim[ty->rank - 2], t = type_count(ty) / (2 * half);
    double scale = op_float(r->op, "scale", 1);
    double *freq = malloc((size_t)half * sizeof *freq + 1);
    if (!freq || !rope_frequencies(r->op, half, freq)) die("frequencies of rope");
    for (int64_t i = 0; i < t; i++) {
        for (int64_t k = 0; k < half; k++) {
            int64_t at =
                each ? tensor_get_int(r->in[0], i) : tensor_get_int(r->in[0], 0) + i;
            double angle = (double)at * freq[k];
            tensor_set_fast(r->out[0], 2 * (i * half + k), scale * cos(angle));
            tensor_set_fast(r->out[0], 2 * (i * half + k) + 1, scale * sin(angle));
        }
    }
    free(freq);
}

void ref_rope_table_each(const Ref *r) {
    ref_rope_table(r);
}

void infer_rope(Op *op, Type *out) {
    const Type *x = &op->in[0]->ty, *table = &op->in[1]->ty;
    (void)out;
    const int64_t *pairs = table->dim + table->rank - 2;
    if (x->dim[3] / 2 < pairs[0] || pairs[1] != 2) {
        infer_error(
            "the last dimensions of the table must be [%lld,2], or [k,2] with fewer "
            "pairs",
            (long long)x->dim[3] / 2);
    }
}

/* Pairs (i, i + k) are turned by the angle of the table, or back if inverse. */
void ref_rope(const Ref *r) {
    const int64_t *dim = r->in[0]->ty.dim;
    const Type *table = &r->in[1]->ty;
    int64_t half = table->dim[table->rank - 2], rows = type_count(table) / (2 * half);
    double sign = op_int(r->op, "inverse", 0) ? -1 : 1;
    for (int64_t row = 0; row < dim[0] * dim[1] * dim[2]; row++) {
        int64_t t = row / dim[2] % rows;
        for (int64_t k = 0; k < half; k++) {
            double c = tensor_get_fast(r->in[1], 2 * (t * half + k));
            double s = sign * tensor_get_fast(r->in[1], 2 * (t * half + k) + 1);
            double x = tensor_get_fast(r->in[0], row * dim[3] + k);
            double y = tensor_get_fast(r->in[0], row * dim[3] + half + k);
            tensor_set_fast(r->out[0], row * dim[3] + k, x * c - y * s);
            tensor_set_fast(r->out[0], row * dim[3] + half + k, y * c + x * s);
        }
        for (int64_t k = 2 * half; k < dim[3]; k++) {
            int64_t at = row * dim[3] + k;
            tensor_set_fast(r->out[0], at, tensor_get_fast(r->in[0], at));
        }
    }
}

void ref_rope_each(const Ref *r) {
    ref_rope(r);
}

void vjp_rope(Grad *g, Op *op, Value *dy) {
    if (g->wants(g, op->in[1])) {
        fail_op(op,
                "no gradient flows into the table of rope (%%%s): make it by rope_table",
                op->in[1]->name);
    }
    if (!g->wants(g, op->in[0])) return;
    const char *attrs = op_int(op, "inverse", 0) ? "inverse=0" : "inverse=1";
    g->add(g, op->in[0], build1(&g->b, op->kind, attrs, dy, op->in[1], NULL));
}
