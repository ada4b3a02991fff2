/* dnnl_problem.c - see dnnl_problem.h. */
#include "codegen/dnnl_problem.h"
#include "base/base.h"

/* ---- from the caller's descriptors ---- */

static bool reject(char *why, size_t size, const char *what) {
    snprintf(why, size, "%s", what);
    return false;
}

/* Last element's byte offset must fit comfortably: all later sums stay below it. */
static bool desc_is_sane(const DnnlDesc *d) {
    int64_t last = 0;
    if (d->rank < 1 || d->rank > DNNL_MAX_RANK) return false;
    for (int i = 0; i < d->rank; i++) {
        int64_t span;
        if (d->dim[i] < 1 || d->stride[i] < 1 || d->stride[i] > INT64_MAX / 64)
            return false;
        if (__builtin_mul_overflow(d->dim[i], d->stride[i], &span)) return false;
        if (__builtin_add_overflow(last, span, &last)) return false;
    }
    return last <= INT64_MAX / 64;
}

/* A stride along a dimension of size 1 means nothing, but oneDNN looks at it: give the
 * matrix the stride that makes it plainly row- or column-major. */
static void matrix_set(DnnlMatrix *x, int64_t rows, int64_t cols, int64_t row,
                       int64_t col) {
    if (cols == 1) col = 1;
    if (rows == 1) row = col == 1 ? cols : 1;
    x->row = row;
    x->col = col;
}

static bool bias_is_sane(const DnnlDesc *bias, const DnnlDesc *c) {
    if (!desc_is_sane(bias)) return false;
    for (int i = 0; i < bias->rank - 1; i++)
        if (bias->dim[i] != 1) return false;
    int64_t n = bias->dim[bias->rank - 1];
    return n == c->dim[c->rank - 1] && (n == 1 || bias->stride[bias->rank - 1] == 1);
}

static bool types_are_known(const DnnlProblem *p) {
    DType in = p->a.dtype, out = p->c.dtype;
    if (in != p->b.dtype || (in != DT_F32 && in != DT_BF16)) return false;
    if (out != DT_F32 && !(out == DT_BF16 && in == DT_BF16)) return false;
    if (!p->bias || p->bias_dtype == DT_F32) return true;
    return p->bias_dtype == DT_BF16 && in == DT_BF16;
}

/* NULL, or what is wrong with the shapes. */
static const char *shape_problem(const ProductShape *s) {
    const DnnlDesc *a = &s->a, *b = &s->b, *c = &s->c;
    if (!desc_is_sane(a) || !desc_is_sane(b) || !desc_is_sane(c))
        return "dimensions and strides must be positive and fit memory";
    int rank = c->rank, i = rank - 2, j = rank - 1;
    if (rank < 2 || a->rank != rank || b->rank != rank)
        return "a, b and c must have the same rank, 2 or more";
    if (a->dim[i] != c->dim[i] || b->dim[j] != c->dim[j] || a->dim[j] != b->dim[i])
        return "the shapes are not [m,k] [k,n] -> [m,n]";
    if (s->bias.rank && !bias_is_sane(&s->bias, c))
        return "a bias must be [n], contiguous, after leading ones";
    return NULL;
}

/* Takes leading dimension d; false: that of a or b is neither c's nor 1. */
static bool add_batch(DnnlProblem *p, const ProductShape *s, int d) {
    const DnnlDesc *a = &s->a, *b = &s->b, *c = &s->c;
    int64_t n = c->dim[d];
    if ((a->dim[d] != n && a->dim[d] != 1) || (b->dim[d] != n && b->dim[d] != 1))
        return false;
    if (n == 1) return true;
    int t = p->nbatch++;
    p->batch[t] = n;
    p->a.batch[t] = a->dim[d] == 1 ? 0 : a->stride[d];
    p->b.batch[t] = b->dim[d] == 1 ? 0 : b->stride[d];
    p->c.batch[t] = c->stride[d];
    return true;
}

/* ---- plainer forms of the same product ---- */

static bool joins(const DnnlMatrix *x, int t, int64_t inner) {
    return x->batch[t] == x->batch[t + 1] * inner;
}

/* Joins neighbouring batch dimensions whose strides make them one in every tensor. */
static void batch_merge(DnnlProblem *p) {
    for (int t = p->nbatch - 2; t >= 0; t--) {
        int64_t inner = p->batch[t + 1];
        if (!joins(&p->a, t, inner) || !joins(&p->b, t, inner) || !joins(&p->c, t, inner))
            continue;
        p->batch[t] *= inner;
        DnnlMatrix *x[3] = {&p->a, &p->b, &p->c};
        for (int i = 0; i < 3; i++) x[i]->batch[t] = x[i]->batch[t + 1];
        for (int d = t + 1; d < p->nbatch - 1; d++) {
            p->batch[d] = p->batch[d + 1];
            for (int i = 0; i < 3; i++) x[i]->batch[d] = x[i]->batch[d + 1];
        }
        p->nbatch--;
    }
}

/* Batch t of x is as many more rows (columns) of one matrix. */
static bool rows_follow(const DnnlMatrix *x, int t, int64_t rows) {
    return rows > 1 && x->batch[t] == rows * x->row;
}

static bool columns_follow(const DnnlMatrix *x, int t, int64_t columns) {
    return columns > 1 && x->batch[t] == columns * x->col;
}

/* Batch t of x is a row each of one matrix. */
static bool is_single_row(const DnnlMatrix *x, int t, int64_t columns) {
    return x->col == 1 && x->batch[t] >= columns;
}

/* [batch, m, k] times one [k, n] is [batch m, k] times it, if the rows follow each other;
 * the same for one a and columns of b. */
static void batch_fold(DnnlProblem *p) {
    for (; p->nbatch > 0; p->nbatch--) {
        int t = p->nbatch - 1;
        DnnlMatrix *a = &p->a, *b = &p->b, *c = &p->c;
        bool one_a = !p->bias && a->batch[t] == 0, one_b = b->batch[t] == 0;
        bool single = p->m == 1 && is_single_row(a, t, p->k) && is_single_row(c, t, p->n);
        if (one_b && rows_follow(a, t, p->m) && rows_follow(c, t, p->m)) {
            p->m *= p->batch[t];
        } else if (one_b && single) {
            p->m = p->batch[t];
            a->row = a->batch[t];
            c->row = c->batch[t];
        } else if (one_a && columns_follow(b, t, p->n) && columns_follow(c, t, p->n)) {
            p->n *= p->batch[t];
        } else {
            return;
        }
    }
}

bool dnnl_problem_make(DnnlProblem *p, const ProductShape *s, char *why, size_t size) {
    const DnnlDesc *a = &s->a, *b = &s->b, *c = &s->c;
    *p = (DnnlProblem){
        .accumulate = s->adds, .bias = s->bias.rank, .bias_dtype = s->bias.dtype};
    const char *wrong = shape_problem(s);
    if (wrong) return reject(why, size, wrong);
    int i = c->rank - 2, j = c->rank - 1;
    p->m = c->dim[i], p->n = c->dim[j], p->k = a->dim[j];
    p->a.dtype = a->dtype, p->b.dtype = b->dtype, p->c.dtype = c->dtype;
    if (!types_are_known(p))
        return reject(why, size,
                      "a matmul takes f32 (into f32) or bf16 (into f32, bf16)");
    matrix_set(&p->a, p->m, p->k, a->stride[i], a->stride[j]);
    matrix_set(&p->b, p->k, p->n, b->stride[i], b->stride[j]);
    matrix_set(&p->c, p->m, p->n, c->stride[i], c->stride[j]);
    for (int d = 0; d < i; d++)
        if (!add_batch(p, s, d))
            return reject(why, size, "a leading dimension of a and b must be c's or 1");
    batch_merge(p);
    batch_fold(p);
    return true;
}

DnnlProblem dnnl_problem_swap(const DnnlProblem *p) {
    DnnlProblem q = *p;
    q.m = p->n, q.n = p->m;
    q.a = p->b, q.b = p->a;
    DnnlMatrix *x[3] = {&q.a, &q.b, &q.c};
    for (int i = 0; i < 3; i++) {
        int64_t row = x[i]->row;
        x[i]->row = x[i]->col;
        x[i]->col = row;
    }
    return q;
}
