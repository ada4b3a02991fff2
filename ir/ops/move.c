/* move.c - ops that move elements: rearrange, reshape, copy, pad, unpad, slice, unstack,
 * stack; and which dimensions of those without a rule correspond. */
#include "ir/op_hooks.h"
#include "ir/walk.h"

void ref_rearrange(const Ref *r) {
    Dims d;
    check(op_dims(r->op, &d));
    Walk w = walk_over(&d, (1u << d.n) - 1);
    size_t size = dtype_bytes[r->out[0]->ty.dt];
    do {
        memcpy((char *)r->out[0]->data + (size_t)w.offset[1] * size,
               (char *)r->in[0]->data + (size_t)w.offset[0] * size, size);
    } while (walk_next(&w));
}

void vjp_rearrange(Grad *g, Op *op, Value *dy) {
    const Term *t = op_rule(op)->term;
    g->add(g, op->in[0],
           build1(&g->b, OP_rearrange, RULE_TEXT(&g->b, &t[1], &t[0]), dy, NULL));
}

static void copy_bytes(const Ref *r) {
    if (r->out[0]->data == r->in[0]->data) return;
    memmove(r->out[0]->data, r->in[0]->data, (size_t)type_bytes(&r->out[0]->ty));
}

void ref_reshape(const Ref *r) {
    copy_bytes(r);
}

void ref_copy(const Ref *r) {
    copy_bytes(r);
}

void infer_reshape(Op *op, Type *out) {
    if (op->nout != 1) infer_error("the type of the result must be given");
    if (type_count(&out[0]) != type_count(&op->in[0]->ty)) {
        infer_error("%lld elements cannot be reshaped to %lld",
                    (long long)type_count(&op->in[0]->ty),
                    (long long)type_count(&out[0]));
    }
}

void vjp_reshape(Grad *g, Op *op, Value *dy) {
    g->add(g, op->in[0], build_as(&g->b, OP_reshape, NULL, op->in[0]->ty, dy, NULL));
}

void vjp_copy(Grad *g, Op *op, Value *dy) {
    g->add(g, op->in[0], dy);
}

void infer_pad(Op *op, Type *out) {
    const Type *in = &op->in[0]->ty;
    if (!in->rank || out[0].dim[in->rank - 1] < in->dim[in->rank - 1]) {
        infer_error("the result must be at least as long in the last dimension");
    }
}

void infer_unpad(Op *op, Type *out) {
    const Type *in = &op->in[0]->ty;
    if (!in->rank || out[0].dim[in->rank - 1] > in->dim[in->rank - 1]) {
        infer_error("the result must be at most as long in the last dimension");
    }
}

/* Rows of the last dimension, cut or filled up with zeros. */
static void fit_rows(const Ref *r) {
    int last = r->in[0]->ty.rank - 1;
    size_t size = dtype_bytes[r->in[0]->ty.dt];
    int64_t from = r->in[0]->ty.dim[last], to = r->out[0]->ty.dim[last];
    for (int64_t row = 0, n = type_count(&r->in[0]->ty) / from; row < n; row++) {
        char *at = (char *)r->out[0]->data + (size_t)(row * to) * size;
        memcpy(at, (char *)r->in[0]->data + (size_t)(row * from) * size,
               (size_t)MIN(from, to) * size);
        if (to > from) memset(at + (size_t)from * size, 0, (size_t)(to - from) * size);
    }
}

void ref_pad(const Ref *r) {
    fit_rows(r);
}

void ref_unpad(const Ref *r) {
    fit_rows(r);
}

static void vjp_fit(Grad *g, Op *op, Value *dy, int kind) {
    g->add(g, op->in[0], build_as(&g->b, kind, NULL, op->in[0]->ty, dy, NULL));
}

void vjp_pad(Grad *g, Op *op, Value *dy) {
    vjp_fit(g, op, dy, OP_unpad);
}

void vjp_unpad(Grad *g, Op *op, Value *dy) {
    vjp_fit(g, op, dy, OP_pad);
}

/* slice: `size` rows of dimension `dim`, from row `first` on. */
void infer_slice(Op *op, Type *out) {
    const Type *t = &op->in[0]->ty;
    int64_t dim = op_int(op, "dim", -1), first = op_int(op, "first", 0);
    int64_t size = op_int(op, "size", 0);
    if (dim < 0 || dim >= t->rank) infer_error("dim is not a dimension of the operand");
    if (size < 1 || first < 0 || size > t->dim[dim] || first > t->dim[dim] - size) {
        infer_error("dimension %lld has rows 0 to %lld", (long long)dim,
                    (long long)t->dim[dim] - 1);
    }
    out[0] = *t;
    out[0].dim[dim] = size;
    out[0].split[dim] = 0;
}

/* ---- which dimensions correspond, for ops without a rule ---- */

static int add_id(Dims *d, int64_t size, bool whole) {
    check(d->n < MAX_DIMS);
    d->letter[d->n] = '.';
    d->size[d->n] = size;
    d->whole[d->n] = whole;
    d->tied[d->n] = -1;
    return d->n++;
}

static void set_id(Dims *d, int term, int at, int id) {
    d->term[term][at] = (int8_t)id;
}

/* Dimensions from[k] to at[k] of either side have equal products; lead: the first of more
 * than one element, -1: none. Gives each its id: the leads share the part that can be
 * split on both sides. */
static void pair_group(Dims *d, const Type *const t[2], const int from[2],
                       const int at[2], const int lead[2]) {
    for (int k = 0; k < 2; k++)
        for (int i = from[k]; i < at[k]; i++)
            if (i != lead[k]) set_id(d, k, i, add_id(d, t[k]->dim[i], true));
    if (lead[0] < 0 || lead[1] < 0) return;
    int id = add_id(d, common_divisor(t[0]->dim[lead[0]], t[1]->dim[lead[1]]), false);
    for (int k = 0; k < 2; k++) set_id(d, k, lead[k], id);
}

/* Groups of dimensions with equal products correspond; parts of a group's first dimension
 * (of more than one element) are parts of the other side's: the rest is inside them. */
bool dims_reshape(const Op *op, Dims *d) {
    const Type *const t[2] = {&op->in[0]->ty, &op->out[0]->ty};
    int at[2] = {0, 0};
    d->nin = d->nout = 1;
    d->rank[0] = t[0]->rank;
    d->rank[1] = t[1]->rank;
    if (!type_count(t[0]) || t[0]->rank + t[1]->rank > MAX_DIMS) return false;
    while (at[0] < t[0]->rank || at[1] < t[1]->rank) {
        int from[2] = {at[0], at[1]}, lead[2] = {-1, -1};
        int64_t product[2] = {1, 1};
        for (int k = 0; k < 2; k++) { /* one side's first dimension of several elements */
            while (at[k] < t[k]->rank && product[k] == 1)
                product[k] *= t[k]->dim[at[k]++];
            if (product[k] > 1) lead[k] = at[k] - 1;
        }
        while (product[0] != product[1]) {
            int k = product[0] < product[1] ? 0 : 1;
            product[k] *= t[k]->dim[at[k]++];
        }
        pair_group(d, t, from, at, lead);
    }
    return true;
}

/* One operand with the further dimension `dim` (term `whole`), many without it. */
static bool dims_around(const Op *op, Dims *d, const Type *t, bool stacks) {
    int64_t dim = op_int(op, "dim", 0);
    d->nin = op->nin;
    d->nout = op->nout;
    if (op->nin + op->nout > MAX_TERMS) return false;
    int first = stacks ? 0 : 1, n = stacks ? op->nin : op->nout,
        whole = stacks ? op->nin : 0;
    for (int k = 0; k < n; k++) d->rank[first + k] = t->rank - 1;
    d->rank[whole] = t->rank;
    for (int i = 0; i < t->rank; i++) {
        int id = add_id(d, t->dim[i], i == dim);
        set_id(d, whole, i, id);
        for (int k = 0; k < n && i != dim; k++) set_id(d, first + k, i - (i > dim), id);
    }
    return true;
}

bool dims_slice(const Op *op, Dims *d) {
    const Type *t = &op->in[0]->ty;
    int64_t dim = op_int(op, "dim", 0);
    d->nin = d->nout = 1;
    d->rank[0] = d->rank[1] = t->rank;
    for (int i = 0; i < t->rank; i++) {
        int id = add_id(d, t->dim[i], i == dim);
        set_id(d, 0, i, id);
        set_id(d, 1, i, i == dim ? add_id(d, op->out[0]->ty.dim[i], true) : id);
    }
    return true;
}

bool dims_unstack(const Op *op, Dims *d) {
    return dims_around(op, d, &op->in[0]->ty, false);
}

bool dims_stack(const Op *op, Dims *d) {
    return dims_around(op, d, &op->out[0]->ty, true);
}

void ref_slice(const Ref *r) {
    int64_t size = op_int(r->op, "size", 1);
    TypeAround a = type_around(&r->in[0]->ty, op_int(r->op, "dim", 0));
    size_t row = (size_t)a.after * dtype_bytes[r->in[0]->ty.dt],
           bytes = (size_t)size * row;
    const char *from = (char *)r->in[0]->data + (size_t)op_int(r->op, "first", 0) * row;
    for (int64_t b = 0; b < a.before; b++) {
        memcpy((char *)r->out[0]->data + (size_t)b * bytes,
               from + (size_t)(b * a.count) * row, bytes);
    }
}

/* Zeros, but for the rows that it took, which are written as those of a cache are. */
void vjp_slice(Grad *g, Op *op, Value *dy) {
    const Type *t = &op->in[0]->ty;
    TypeAround a = type_around(t, op_int(op, "dim", 0));
    Type all = TYPE(t->dt, a.before, a.count, a.after, 1), some = all;
    some.dim[1] = op_int(op, "size", 1);
    char *at = bfmt(&g->b, "value=%lld", (long long)op_int(op, "first", 0));
    Value *zeros = build_as(&g->b, OP_fill, "value=0", all, NULL);
    Value *first = build_as(&g->b, OP_fill, at, (Type){.dt = DT_I32}, NULL);
    Value *rows = build_as(&g->b, OP_reshape, NULL, some, dy, NULL);
    rows = build1(&g->b, OP_cache_write, NULL, zeros, rows, first, NULL);
    g->add(g, op->in[0], build_as(&g->b, OP_reshape, NULL, *t, rows, NULL));
}

enum { MAX_UNSTACK = 16 };

void infer_unstack(Op *op, Type *out) {
    const Type *t = &op->in[0]->ty;
    int64_t dim = op_int(op, "dim", -1);
    if (dim < 0 || dim >= t->rank) infer_error("dim is not a dimension of the operand");
    if (t->dim[dim] > MAX_UNSTACK) infer_error("more than %d results", MAX_UNSTACK);
    op->nout = (int)t->dim[dim];
    for (int i = 0; i < op->nout; i++) {
        out[i] = *t;
        out[i].rank--;
        for (int k = (int)dim; k < out[i].rank; k++) {
            out[i].dim[k] = t->dim[k + 1];
            out[i].split[k] = t->split[k + 1];
        }
    }
}

void ref_unstack(const Ref *r) {
    TypeAround a = type_around(&r->in[0]->ty, op_int(r->op, "dim", 0));
    size_t bytes = (size_t)a.after * dtype_bytes[r->in[0]->ty.dt];
    for (int64_t b = 0; b < a.before; b++) {
        for (int64_t i = 0; i < a.count; i++) {
            memcpy((char *)r->out[i]->data + (size_t)b * bytes,
                   (char *)r->in[0]->data + (size_t)(b * a.count + i) * bytes, bytes);
        }
    }
}

void vjp_unstack(Grad *g, Op *op, Value *dy) {
    Value *parts[MAX_UNSTACK];
    (void)dy;
    for (int i = 0; i < op->nout; i++) {
        parts[i] = g->of(g, op->out[i]);
        if (!parts[i])
            parts[i] = build_as(&g->b, OP_fill, "value=0", op->out[i]->ty, NULL);
    }
    char *attrs = bfmt(&g->b, "dim=%d", (int)op_int(op, "dim", 0));
    g->add(g, op->in[0],
           build_list(&g->b, OP_stack, attrs, op->nout, parts, NULL, 0)->out[0]);
}

void infer_stack(Op *op, Type *out) {
    const Type *t = &op->in[0]->ty;
    int64_t dim = op_int(op, "dim", -1);
    if (dim < 0 || dim > t->rank) infer_error("dim is not a position between dimensions");
    if (t->rank >= MAX_RANK) infer_error("more than %d dimensions", MAX_RANK);
    for (int i = 1; i < op->nin; i++) {
        if (!type_same_shape(t, &op->in[i]->ty))
            infer_error("operands of different types");
    }
    out[0] = *t;
    out[0].rank++;
    for (int k = t->rank; k > dim; k--) {
        out[0].dim[k] = t->dim[k - 1];
        out[0].split[k] = t->split[k - 1];
    }
    out[0].dim[dim] = op->nin;
    out[0].split[dim] = 0;
}

void ref_stack(const Ref *r) {
    TypeAround a = type_around(&r->out[0]->ty, op_int(r->op, "dim", 0));
    size_t bytes = (size_t)a.after * dtype_bytes[r->out[0]->ty.dt];
    for (int64_t b = 0; b < a.before; b++) {
        for (int64_t i = 0; i < a.count; i++) {
            memcpy((char *)r->out[0]->data + (size_t)(b * a.count + i) * bytes,
                   (char *)r->in[i]->data + (size_t)b * bytes, bytes);
        }
    }
}

void vjp_stack(Grad *g, Op *op, Value *dy) {
    char *attrs = bfmt(&g->b, "dim=%d", (int)op_int(op, "dim", 0));
    Op *parts = build_list(&g->b, OP_unstack, attrs, 1, &dy, NULL, 0);
    for (int i = 0; i < op->nin; i++) {
        if (g->wants(g, op->in[i])) g->add(g, op->in[i], parts->out[i]);
    }
}
