/* linear.c - matmuls, sums and constants: dot, sum, max, fill. */
#include "ir/op_hooks.h"
#include "ir/tensor_fast.h"
#include "ir/walk.h"
#include <math.h>

/* ---- product ---- */

/* A product as matrices of doubles: letters of the result that both or neither of the
 * first two operands have number the products (`batch`), the others are rows or columns,
 * what the result lacks is summed. */
typedef struct Product {
    const Ref *r;
    const Dims *d;
    int64_t batch, rows, cols, inner;
    int64_t **at_batch, **at_row, **at_col, **at_inner; /* [term][i]: part of an offset */
    double *a, *b, *out; /* [rows, inner], [inner, cols], [rows, cols] of one product */
} Product;

/* Element offsets by term of all index combinations of the dimensions in `mask`. */
static int64_t **offsets_over(Arena *mem, const Dims *d, uint32_t mask, int64_t *n) {
    Walk w = walk_over(d, mask);
    int64_t **at = NEW_ARRAY(mem, int64_t *, (size_t)w.nterms), i = 0;
    *n = 1;
    for (int k = 0; k < w.n; k++) *n *= w.size[k];
    for (int t = 0; t < w.nterms; t++) at[t] = NEW_ARRAY(mem, int64_t, (size_t)*n);
    do {
        for (int t = 0; t < w.nterms; t++) at[t][i] = w.offset[t];
        i++;
    } while (walk_next(&w));
    return at;
}

/* to[i, j] = element base + row[i] + col[j] of t */
static void gather_doubles(double *to, const Tensor *t, int64_t base, const int64_t *row,
                           int64_t rows, const int64_t *col, int64_t cols) {
    const float *f = t->ty.dt == DT_F32 ? (const float *)t->data + base : NULL;
    for (int64_t i = 0; i < rows; i++, to += cols) {
        for (int64_t j = 0; j < cols; j++) {
            int64_t at = row[i] + col[j];
            to[j] = f ? (double)f[at] : tensor_get_fast(t, base + at);
        }
    }
}

enum { TILE = 4 };

/* TILE x TILE elements; each is one sum in the order of `inner`. */
static void product_tile(const Product *p, int64_t i, int64_t j) {
    double sum[TILE][TILE] = {{0}};
    const double *a = p->a + i * p->inner, *b = p->b + j;
    for (int64_t k = 0; k < p->inner; k++, a++, b += p->cols) {
        for (int y = 0; y < TILE; y++) {
            double v = a[y * p->inner];
            for (int x = 0; x < TILE; x++) sum[y][x] += v * b[x];
        }
    }
    for (int y = 0; y < TILE; y++) {
        memcpy(p->out + (i + y) * p->cols + j, sum[y], sizeof sum[y]);
    }
}

static void product_element(const Product *p, int64_t i, int64_t j) {
    double sum = 0;
    const double *a = p->a + i * p->inner, *b = p->b + j;
    for (int64_t k = 0; k < p->inner; k++) sum += a[k] * b[k * p->cols];
    p->out[i * p->cols + j] = sum;
}

static void product_of_matrices(const Product *p) {
    int64_t tiled_rows = p->rows / TILE * TILE, tiled_cols = p->cols / TILE * TILE;
    for (int64_t i = 0; i < p->rows; i++) {
        bool tiled = i < tiled_rows;
        for (int64_t j = 0; tiled && i % TILE == 0 && j < tiled_cols; j += TILE) {
            product_tile(p, i, j);
        }
        for (int64_t j = tiled ? tiled_cols : 0; j < p->cols; j++)
            product_element(p, i, j);
    }
}

static int64_t offset_of(const Product *p, int term, int64_t n, int64_t i, int64_t j) {
    return p->at_batch[term][n] + p->at_row[term][i] + p->at_col[term][j];
}

/* Matrix n: adds the further operands and rounds. */
static void product_result(const Product *p, int64_t n) {
    const Ref *r = p->r;
    int last = p->d->nin;
    for (int64_t i = 0; i < p->rows; i++) {
        for (int64_t j = 0; j < p->cols; j++) {
            double sum = p->out[i * p->cols + j];
            for (int t = 2; t < last; t++) {
                sum += tensor_get_fast(r->in[t], offset_of(p, t, n, i, j));
            }
            tensor_set_fast(r->out[0], offset_of(p, last, n, i, j), sum);
        }
    }
}

/* out[result letters] = sum over the others of a * b, plus the further operands. */
void ref_dot(const Ref *r) {
    Dims d;
    check(op_dims(r->op, &d));
    uint32_t kept = dims_mask(&d, d.nin), all = (1u << d.n) - 1;
    uint32_t rows = kept & dims_mask(&d, 0) & ~dims_mask(&d, 1);
    uint32_t cols = kept & dims_mask(&d, 1) & ~dims_mask(&d, 0);
    Arena *mem = arena_new();
    Product p = {.r = r, .d = &d};
    p.at_batch = offsets_over(mem, &d, kept & ~rows & ~cols, &p.batch);
    p.at_row = offsets_over(mem, &d, rows, &p.rows);
    p.at_col = offsets_over(mem, &d, cols, &p.cols);
    p.at_inner = offsets_over(mem, &d, all & ~kept, &p.inner);
    p.a = NEW_ARRAY(mem, double, (size_t)(p.rows * p.inner));
    p.b = NEW_ARRAY(mem, double, (size_t)(p.inner * p.cols));
    p.out = NEW_ARRAY(mem, double, (size_t)(p.rows * p.cols));
    for (int64_t n = 0; n < p.batch; n++) {
        gather_doubles(p.a, r->in[0], p.at_batch[0][n], p.at_row[0], p.rows,
                       p.at_inner[0], p.inner);
        gather_doubles(p.b, r->in[1], p.at_batch[1][n], p.at_inner[1], p.inner,
                       p.at_col[1], p.cols);
        product_of_matrices(&p);
        product_result(&p, n);
    }
    arena_free(mem);
}

/* x as a factor beside one of type `to`. */
static Value *as_factor(Grad *g, Value *x, DType to) {
    Type ty = x->ty;
    ty.dt = to;
    ty.open = 0;
    return x->ty.dt == to ? x : build_as(&g->b, OP_cast, NULL, ty, x, NULL);
}

/* The gradient of a product permutes the terms of its rule. */
void vjp_dot(Grad *g, Op *op, Value *dy) {
    const Rule *r = op_rule(op);
    const Term *t = r->term;
    bool wanted[2] = {g->wants(g, op->in[0]), g->wants(g, op->in[1])};
    Value *factor = dy;
    if (wanted[0] || wanted[1]) factor = as_factor(g, dy, op->in[0]->ty.dt);
    if (wanted[0]) {
        g->add(g, op->in[0],
               build1(&g->b, OP_dot, RULE_TEXT(&g->b, &t[op->nin], &t[1], &t[0]), factor,
                      op->in[1], NULL));
    }
    if (wanted[1]) {
        g->add(g, op->in[1],
               build1(&g->b, OP_dot, RULE_TEXT(&g->b, &t[0], &t[op->nin], &t[1]),
                      op->in[0], factor, NULL));
    }
    for (int i = 2; i < op->nin; i++) {
        if (g->wants(g, op->in[i])) {
            Value *sum = sum_to(&g->b, dy, &t[op->nin], &t[i]);
            g->add(g, op->in[i], as_factor(g, sum, op->in[i]->ty.dt));
        }
    }
}

static void reduce(const Ref *r, double start, double (*step)(double, double)) {
    Dims d;
    check(op_dims(r->op, &d));
    uint32_t kept = dims_mask(&d, 1), all = (1u << d.n) - 1;
    Walk outer = walk_over(&d, kept), inner = walk_over(&d, all & ~kept);
    do {
        double v = start;
        do {
            v = step(v, tensor_get_fast(r->in[0], outer.offset[0] + inner.offset[0]));
        } while (walk_next(&inner));
        tensor_set_fast(r->out[0], outer.offset[1], v);
    } while (walk_next(&outer));
}

static double plus(double a, double b) {
    return a + b;
}

static double larger(double a, double b) {
    return b > a || b != b ? b : a;
}

void ref_sum(const Ref *r) {
    reduce(r, 0, plus);
}

void ref_max(const Ref *r) {
    reduce(r, -INFINITY, larger);
}

/* Every element of the operand gets the gradient of the sum it went into: a product with
 * ones spreads it. */
void vjp_sum(Grad *g, Op *op, Value *dy) {
    const Term *t = op_rule(op)->term;
    Value *ones = build_as(&g->b, OP_fill, "value=1", op->in[0]->ty, NULL);
    g->add(g, op->in[0],
           build1(&g->b, OP_mul, RULE_TEXT(&g->b, &t[0], &t[1], &t[0]), ones, dy, NULL));
}

/* To the elements that are the maximum, in equal shares. It is looked for anew among those that
 * backward has, so that one of them is equal to it. */
void vjp_max(Grad *g, Op *op, Value *dy) {
    const Term *in = &op_rule(op)->term[0], *out = &op_rule(op)->term[1];
    Value *x = op->in[0];
    Builder *b = &g->b;
    char *inwards = RULE_TEXT(b, in, out);
    Value *most = build1(b, OP_max, inwards, x, NULL);
    Value *ones = build_as(b, OP_fill, "value=1", x->ty, NULL);
    Value *below = build1(b, OP_sub, RULE_TEXT(b, out, in, in), most, x, NULL);
    Value *less = build1(b, OP_relu_grad, NULL, below, ones, NULL);
    Value *equal = build1(b, OP_sub, NULL, ones, less, NULL);
    Value *count = build1(b, OP_sum, inwards, equal, NULL);
    Value *share = build1(b, OP_div, NULL, dy, count, NULL);
    g->add(g, x, build1(b, OP_mul, RULE_TEXT(b, in, out, in), equal, share, NULL));
}

/* A max is no sum that may stay pending: it is finished at once. */
void local_max(Local *l) {
    Axes axes = 0;
    for (int id = 0; id < l->d->n; id++) {
        if (!(dims_mask(l->d, 1) >> id & 1)) axes |= l->split[id] & (Axes)~AXES_REVERSED;
    }
    if (!axes) return;
    Builder b = l->b;
    b.before = l->op->next;
    Value *part = l->op->out[0];
    char *attrs = bfmt(&b, "axis=\"%s\"; of=\"max\"",
                       mesh_axes_text(b.mem, &l->op->fn->mod->mesh, axes));
    Op *all = build(&b, OP_all_reduce, attrs, part, NULL);
    value_replace_behind(part, all->out[0]);
}

void ref_fill(const Ref *r) {
    double v = op_float(r->op, "value", 0);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++)
        tensor_set_fast(r->out[0], i, v);
}
