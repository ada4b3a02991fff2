/* lower_dot.c - `dot` as oneDNN matmuls, of the matrices that ir/matmul.h finds. */
#include "codegen/piece.h"
#include "ir/matmul.h"

/* Multiply-adds below which starting the threads costs more than they gain. */
enum { SMALL_PRODUCT = 1 << 18 };
_Static_assert(MATMUL_MAX_BATCH + 2 <= DNNL_MAX_RANK,
               "more dimensions than dnnl.h takes");

static Matmul matmul(const Op *op, Dims *d) {
    Matmul s;
    check(op_dims(op, d));
    const char *why = matmul_of(d, &s);
    if (why)
        lower_refuse(op, arena_printf(op->fn->mod->mem, "%s; run arrange before", why));
    return s;
}

/* Matrix r x q of operand t; dimensions that it lacks are broadcast. */
static DnnlDesc describe(const Matmul *s, const MatmulAxis *r, const MatmulAxis *q, int t,
                         DType dt) {
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

/* Factors, bias and result are of these types. */
static ProductShape shape_of(const Lower *l, const Op *op, DType factor, DType added,
                             DType result) {
    Dims d;
    Matmul s = matmul(op, &d);
    ProductShape p = product_shape_clear();
    p.a = describe(&s, &s.m, &s.k, 0, factor);
    p.b = describe(&s, &s.k, &s.n, 1, factor);
    p.c = describe(&s, &s.m, &s.n, 2, result);
    if (s.bias >= 0) {
        p.bias.rank = p.c.rank;
        p.bias.dtype = added;
        for (int i = 0; i < p.c.rank; i++) p.bias.dim[i] = 1, p.bias.stride[i] = s.n.size;
        p.bias.dim[p.c.rank - 1] = s.n.size;
        p.bias.stride[p.c.rank - 1] = 1;
    }
    p.adds = s.sum >= 0;
    /* few rows as if they were the most: then a row has the same bits beside any others */
    double rows = (double)s.m.size;
    if (!s.nbatch) rows = MAX(rows, ROWS_MATMUL_MOST);
    double work =
        rows * (double)type_count(&op->out[0]->ty) / (double)s.m.size * (double)s.k.size;
    p.threads = work < SMALL_PRODUCT ? 1 : l->threads;
    p.tiles = target_has_tiles(l->target);
    p.dots = target_has_dots(l->target);
    return p;
}

static const char *own_function(Lower *l, const OwnProduct *p) {
    for (int i = 0; i < l->nown; i++)
        if (!memcmp(&l->own[i].product, p, sizeof *p)) return l->own[i].name;
    Emit *e = piece_begin(l);
    product_emit(e, PIECE_NAME, p);
    OwnFunction f = {.name = piece_end(l, e, "product", PRODUCT_PARAMS)};
    memcpy(&f.product, p, sizeof *p);
    PUSH(l->mem, l->own, l->nown, l->own_cap, f);
    return f.name;
}

static const Value *bias_of(const Op *op) {
    Dims d;
    Matmul s = matmul(op, &d);
    return s.bias >= 0 ? op->in[s.bias] : NULL;
}

bool lower_product_shape(const Lower *l, const Op *op, ProductShape *shape) {
    const Value *bias = bias_of(op);
    DType factor = op->in[0]->ty.dt, result = op->out[0]->ty.dt;
    ProductCode code;
    char why[400];
    *shape = shape_of(l, op, factor, bias ? bias->ty.dt : result, result);
    if (!dtype_is_narrow(op->in[0]->ty.dt))
        return !dtype_is_narrow(op->out[0]->ty.dt) &&
               !(bias && dtype_is_narrow(bias->ty.dt));
    if (!product_code_make(shape, product_rule, l->vl, &code, why, sizeof why))
        return false;
    dnnl_matmul_free(code.matmul);
    return true;
}

/* Its index in the table; makes it if it is new. Where there is no code for narrow types it is f32's,
 * on copies. */
static int product_of(Lower *l, const Op *op) {
    for (int i = 0; i < l->nproducts; i++) {
        if (l->product[i].op == op) return i;
    }
    char why[400];
    const Attr *form = op_attr(op, "form");
    Product p = {.op = op};
    ProductShape shape;
    p.widens = !lower_product_shape(l, op, &shape);
    if (p.widens) shape = shape_of(l, op, DT_F32, DT_F32, DT_F32);
    const char *want = form ? form->s : product_rule;
    bool made = product_code_make(&shape, want, l->vl, &p.code, why, sizeof why);
    if (!made && form)
        lower_refuse(op,
                     arena_printf(l->mem, "form \"%.40s\": %s; leave the attribute out",
                                  form->s, why));
    if (!made) lower_refuse(op, why);
    PUSH(l->mem, l->product, l->nproducts, l->product_cap, p);
    return l->nproducts - 1;
}

/* ---- copies in f32: of the factors, then of the result and the bias where narrow ---- */

static int64_t copy_bytes(const Value *v) {
    return v && dtype_is_narrow(v->ty.dt) ? lower_widened_bytes(v) : 0;
}

static int64_t copies_bytes(const Product *p) {
    const Op *op = p->op;
    if (!p->widens) return 0;
    return copy_bytes(op->in[0]) + copy_bytes(op->in[1]) + copy_bytes(op->out[0]) +
           copy_bytes(bias_of(op));
}

int64_t lower_product_workspace(Lower *l, const Op *op) {
    int i = product_of(l, op); /* may move the table */
    const Product *p = &l->product[i];
    return copies_bytes(p) + product_workspace_bytes(&p->code, l->vl);
}

/* The copy at *at of the workspace, which moves behind it; v itself where it is f32. */
static LLVMValueRef widened(Lower *l, const Op *op, const Value *v, int64_t *at) {
    if (!dtype_is_narrow(v->ty.dt)) return lower_pointer(l, v);
    LLVMValueRef to = lower_workspace(l, op, *at);
    *at += copy_bytes(v);
    return lower_widened(l, v, to);
}

typedef struct ProductArgs {
    LLVMValueRef a, b, bias, c, work;
} ProductArgs;

/* void rt_product(products, index, a, b, bias, c, scratch), or generated code. */
static void call_product(Lower *l, int index, const ProductArgs *x) {
    const ProductCode *code = &l->product[index].code;
    if (code->matmul) {
        CALL_RT(l->e, rt_product, l->products, emit_i64(l->e, index), x->a, x->b, x->bias,
                x->c, x->work);
        return;
    }
    LLVMValueRef args[] = {code->swapped ? x->b : x->a, code->swapped ? x->a : x->b,
                           x->bias, x->c, x->work};
    emit_call(l->e, own_function(l, &code->own), args, ARRAY_LEN(args));
}

static void widened_product(Lower *l, const Op *op, int index, bool adds) {
    int64_t at = 0;
    const Value *y = op->out[0], *bias = bias_of(op);
    LLVMValueRef a = widened(l, op, op->in[0], &at), b = widened(l, op, op->in[1], &at);
    LLVMValueRef to = lower_pointer(l, y), added = LLVMConstNull(l->e->ptr);
    if (dtype_is_narrow(y->ty.dt)) {
        to = lower_workspace(l, op, at);
        at += copy_bytes(y);
        if (adds) lower_widened(l, y, to);
    }
    if (bias) added = widened(l, op, bias, &at);
    ProductArgs x = {a, b, added, to, lower_workspace(l, op, at)};
    call_product(l, index, &x);
    if (dtype_is_narrow(y->ty.dt)) lower_rounded(l, y, to);
}

/* The result begins as operand `sum`, which the product is added to. */
static void begin_with_sum(Lower *l, const Op *op, const Dims *d, int sum,
                           LLVMValueRef c) {
    const Value *v = op->in[sum], *y = op->out[0];
    LLVMValueRef from = lower_pointer(l, v);
    int64_t size[MAX_RANK], stride[MAX_RANK], dims[MAX_DIMS];
    dims_strides(d, sum, dims);
    for (int k = 0; k < y->ty.rank; k++) {
        size[k] = y->ty.dim[k];
        stride[k] = dims[d->term[op->nin][k]];
    }
    bool same = v->def ? v->loc.kind == y->loc.kind && v->loc.at == y->loc.at
                       : y->loc.kind == LOC_ARG && y->loc.at == v->nth;
    if (v->ty.dt != y->ty.dt)
        lower_refuse(
            op, "an addend that is no bias must have the type of the result: write cast");
    if (!same) lower_spread(l, c, from, y->ty.rank, size, stride, v->ty.dt);
}

void lower_dot(Lower *l, const Op *op) {
    Dims d;
    Matmul s = matmul(op, &d);
    int index = product_of(l, op);
    const Product *p = &l->product[index];
    LLVMValueRef none = LLVMConstNull(l->e->ptr), c = lower_pointer(l, op->out[0]);
    if (s.sum >= 0) begin_with_sum(l, op, &d, s.sum, c);
    if (p->widens) {
        widened_product(l, op, index, s.sum >= 0);
        return;
    }
    LLVMValueRef a = lower_pointer(l, op->in[0]), b = lower_pointer(l, op->in[1]);
    LLVMValueRef bias = s.bias >= 0 ? lower_pointer(l, op->in[s.bias]) : none;
    ProductArgs x = {a, b, bias, c, lower_workspace_if_any(l, op)};
    call_product(l, index, &x);
}
