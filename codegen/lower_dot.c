/* lower_dot.c - products as oneDNN matmuls. The letters of the rule fall into batch (in
 * both operands and the result), rows (first operand and result), columns (second and
 * result) and summed ones; neighbours whose strides allow it become one dimension. */
#include "lower.h"

enum { IN_A = 1, IN_B = 2, IN_C = 4 };
/* Multiply-adds below which starting the threads costs more than they gain. */
enum { SMALL_PRODUCT = 1 << 18 };

typedef struct Axis { /* one or several letters as one dimension */
    int64_t size, stride[3]; /* in a, b, c; 0 where it is missing */
} Axis;

typedef struct Shape {
    Axis batch[DNNL_MAX_RANK], m, n, k;
    int nbatch;
} Shape;

static void strides_of(const Dims *d, int term, int64_t *stride) {
    int64_t s = 1;
    for (int i = 0; i < d->n; i++) stride[i] = 0;
    for (int i = d->rank[term] - 1; i >= 0; i--) {
        stride[d->term[term][i]] = s;
        s *= d->size[d->term[term][i]];
    }
}

static bool joins(const Axis *a, const Axis *b) {
    for (int t = 0; t < 3; t++) {
        if (a->stride[t] != b->size * b->stride[t]) return false;
    }
    return true;
}

/* The axes with the letters `in` (a set of IN_*), in the order of term `by`. */
static int collect(const Dims *d, int c, int in, int by, Axis *axis) {
    int64_t stride[3][MAX_DIMS];
    int term[3] = {0, 1, c}, n = 0;
    for (int t = 0; t < 3; t++) strides_of(d, term[t], stride[t]);
    for (int k = 0; k < d->rank[by]; k++) {
        int id = d->term[by][k], where = 0;
        for (int t = 0; t < 3; t++) where |= (dims_mask(d, term[t]) >> id & 1) << t;
        if (where != in || d->size[id] == 1) continue;
        Axis a = {d->size[id], {stride[0][id], stride[1][id], stride[2][id]}};
        if (n && joins(&axis[n - 1], &a)) {
            a.size *= axis[n - 1].size;
            axis[n - 1] = a;
        } else {
            axis[n++] = a;
        }
    }
    return n;
}

/* The axis to use as rows or columns of the matrices: one with unit stride in one of the
 * two operands it is in, else the last; the others become batch dimensions. */
static Axis take_matrix_axis(Axis *axis, int n, int t, Shape *s) {
    if (!n) return (Axis){.size = 1};
    int pick = n - 1;
    for (int i = 0; i < n; i++) {
        if (axis[i].stride[2] == 1 || (axis[pick].stride[2] != 1 && axis[i].stride[t] == 1)) {
            pick = i;
        }
    }
    for (int i = 0; i < n; i++) {
        if (i != pick) s->batch[s->nbatch++] = axis[i];
    }
    return axis[pick];
}

static Shape shape_of(const Op *op, const Dims *d) {
    Shape s = {0};
    Axis rows[MAX_DIMS], columns[MAX_DIMS], summed[MAX_DIMS];
    int c = op->nin;
    s.nbatch = collect(d, c, IN_A | IN_B | IN_C, c, s.batch);
    int nk = collect(d, c, IN_A | IN_B, 0, summed);
    if (nk > 1) lower_refuse(op, "the summed dimensions are not adjacent in both operands");
    int nm = collect(d, c, IN_A | IN_C, c, rows), nn = collect(d, c, IN_B | IN_C, c, columns);
    for (int id = 0; id < d->n; id++) {
        uint32_t only_a = dims_mask(d, 0) & ~dims_mask(d, 1) & ~dims_mask(d, c);
        uint32_t only_b = dims_mask(d, 1) & ~dims_mask(d, 0) & ~dims_mask(d, c);
        if (((only_a | only_b) >> id & 1) && d->size[id] > 1) {
            lower_refuse(op, "a letter stands in one operand only; sum over it before");
        }
    }
    if (s.nbatch + nm + nn + 2 > DNNL_MAX_RANK) lower_refuse(op, "too many dimensions");
    s.m = take_matrix_axis(rows, nm, 0, &s);
    s.n = take_matrix_axis(columns, nn, 1, &s);
    s.k = nk ? summed[0] : (Axis){.size = 1};
    return s;
}

/* Matrix r x q of operand t; dimensions that it lacks are broadcast. */
static DnnlDesc describe(const Shape *s, const Axis *r, const Axis *q, int t, DType dt) {
    DnnlDesc d = {.rank = s->nbatch + 2, .dtype = dt};
    for (int i = 0; i < s->nbatch; i++) {
        d.dim[i] = s->batch[i].stride[t] ? s->batch[i].size : 1;
        d.stride[i] = s->batch[i].stride[t];
    }
    d.dim[s->nbatch] = r->size;
    d.dim[s->nbatch + 1] = q->size;
    /* strides of missing dimensions do not matter; they must only be positive */
    int64_t rs = r->stride[t], qs = q->stride[t];
    if (!qs) qs = rs == 1 ? MAX(r->size, 1) : 1;
    if (!rs) rs = MAX(q->size * qs, 1);
    d.stride[s->nbatch] = rs;
    d.stride[s->nbatch + 1] = qs;
    for (int i = s->nbatch - 1; i >= 0; i--) {
        if (!d.stride[i]) d.stride[i] = d.dim[i + 1] * d.stride[i + 1];
    }
    return d;
}

/* A bias is an addend over exactly the columns of the matrices, contiguous. */
static bool is_bias(const Dims *d, const Shape *s, const Op *op, int i) {
    int64_t count = type_count(&op->in[i]->ty);
    uint32_t both = dims_mask(d, i) & (dims_mask(d, 0) | ~dims_mask(d, 1));
    if (count != s->n.size || s->n.stride[2] != 1) return false;
    for (int id = 0; id < d->n; id++) {
        if ((both >> id & 1) && d->size[id] > 1) return false;
    }
    /* in the order of the result, without gaps */
    int last = -1;
    for (int k = 0; k < d->rank[i]; k++) {
        for (int j = 0; j < d->rank[op->nin]; j++) {
            if (d->term[op->nin][j] != d->term[i][k]) continue;
            if (j < last) return false;
            last = j;
        }
    }
    return true;
}

typedef struct Addends {
    int bias, sum; /* operand numbers or -1 */
} Addends;

static Addends addends_of(const Op *op, const Dims *d, const Shape *s) {
    Addends a = {-1, -1};
    for (int i = 2; i < op->nin; i++) {
        if (a.bias < 0 && is_bias(d, s, op, i)) a.bias = i;
        else if (a.sum < 0) a.sum = i;
        else lower_refuse(op, "more than one addend besides a bias");
    }
    return a;
}

int lower_product(Lower *l, const Op *op) {
    for (int i = 0; i < l->nproducts; i++) {
        if (l->product[i].op == op) return i;
    }
    Dims d;
    check(op_dims(op, &d));
    Shape s = shape_of(op, &d);
    Addends add = addends_of(op, &d, &s);
    DType dt = op->out[0]->ty.dt;
    DnnlDesc a = describe(&s, &s.m, &s.k, 0, op->in[0]->ty.dt);
    DnnlDesc b = describe(&s, &s.k, &s.n, 1, op->in[1]->ty.dt);
    DnnlDesc c = describe(&s, &s.m, &s.n, 2, dt), bias = {.rank = c.rank, .dtype = dt};
    for (int i = 0; i < c.rank; i++) bias.dim[i] = 1, bias.stride[i] = s.n.size;
    bias.dim[c.rank - 1] = s.n.size;
    bias.stride[c.rank - 1] = 1;
    char why[400];
    double work = (double)type_count(&op->out[0]->ty) * (double)s.k.size;
    int threads = work < SMALL_PRODUCT ? 1 : l->threads;
    DnnlMatmul *m = dnnl_matmul_new(&a, &b, add.bias >= 0 ? &bias : NULL, &c, add.sum >= 0,
                                    threads, why, sizeof why);
    if (!m) lower_refuse(op, why);
    Product p = {op, m};
    PUSH(l->mem, l->product, l->nproducts, l->product_cap, p);
    return l->nproducts - 1;
}

/* void rt_product(products, index, a, b, bias, c, scratch) */
void lower_dot(Lower *l, const Op *op) {
    Dims d;
    check(op_dims(op, &d));
    Shape s = shape_of(op, &d);
    Addends add = addends_of(op, &d, &s);
    int index = lower_product(l, op);
    LLVMValueRef none = LLVMConstNull(l->e->ptr), c = lower_pointer(l, op->out[0]);
    if (add.sum >= 0) {
        const Value *v = op->in[add.sum];
        LLVMValueRef from = lower_pointer(l, v);
        int64_t size[MAX_RANK], stride[MAX_RANK], dims[MAX_DIMS];
        strides_of(&d, add.sum, dims);
        for (int k = 0; k < op->out[0]->ty.rank; k++) {
            size[k] = op->out[0]->ty.dim[k];
            stride[k] = dims[d.term[op->nin][k]];
        }
        bool same = v->def ? v->loc.kind == op->out[0]->loc.kind &&
                                 v->loc.at == op->out[0]->loc.at
                           : op->out[0]->loc.kind == LOC_ARG && op->out[0]->loc.at == v->nth;
        if (!same) lower_spread(l, c, from, op->out[0]->ty.rank, size, stride);
    }
    LLVMValueRef args[] = {l->products,
                           emit_i64(l->e, index),
                           lower_pointer(l, op->in[0]),
                           lower_pointer(l, op->in[1]),
                           add.bias >= 0 ? lower_pointer(l, op->in[add.bias]) : none,
                           c,
                           lower_workspace(l, op, 0)};
    lower_rt(l, "rt_product", args, ARRAY_LEN(args));
}
