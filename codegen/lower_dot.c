/* lower_dot.c - `dot` as oneDNN matmuls, of the matrices that ir/matmul.h finds. */
#include "codegen/lower.h"
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
static DnnlMatmul *matmul_new(const Lower *l, const Op *op, DType factor, DType added,
                              DType result, char *why, size_t why_size) {
    Dims d;
    Matmul s = matmul(op, &d);
    DnnlDesc a = describe(&s, &s.m, &s.k, 0, factor);
    DnnlDesc b = describe(&s, &s.k, &s.n, 1, factor);
    DnnlDesc c = describe(&s, &s.m, &s.n, 2, result), bias = {.rank = c.rank};
    bias.dtype = added;
    for (int i = 0; i < c.rank; i++) bias.dim[i] = 1, bias.stride[i] = s.n.size;
    bias.dim[c.rank - 1] = s.n.size;
    bias.stride[c.rank - 1] = 1;
    double work = (double)type_count(&op->out[0]->ty) * (double)s.k.size;
    int threads = work < SMALL_PRODUCT ? 1 : l->threads;
    return dnnl_matmul_new(&a, &b, s.bias >= 0 ? &bias : NULL, &c, s.sum >= 0, threads,
                           why, why_size);
}

/* ---- bf16: generated code ---- */

/* The product as generated code takes it: as it is or, where the result lies along its
 * rows, with factors and result transposed. *swapped: is it? */
static bool pairs_shape(const Lower *l, const Op *op, PairsMatmul *p, bool *swapped) {
    Dims d;
    Matmul s = matmul(op, &d);
    const MatmulAxis *m = &s.m, *n = &s.n;
    if (op->in[0]->ty.dt != DT_BF16 || s.nbatch) return false;
    *swapped = n->size > 1 && n->stride[2] != 1;
    if (*swapped) m = &s.n, n = &s.m;
    if (*swapped && (s.bias >= 0 || n->stride[2] != 1)) return false;
    if (s.bias >= 0 && op->in[s.bias]->ty.dt != DT_F32) return false;
    const int a = *swapped, b = !*swapped;
    double work = (double)type_count(&op->out[0]->ty) * (double)s.k.size;
    *p = (PairsMatmul){.m = m->size,
                       .n = n->size,
                       .k = s.k.size,
                       .a_m = m->size > 1 ? m->stride[a] : s.k.size,
                       .a_k = s.k.size > 1 ? s.k.stride[a] : 1,
                       .b_k = s.k.size > 1 ? s.k.stride[b] : n->size,
                       .b_n = n->size > 1 ? n->stride[b] : 1,
                       .c_m = m->size > 1 ? m->stride[2] : n->size,
                       .bias = s.bias >= 0,
                       .adds = s.sum >= 0,
                       .rounds = op->out[0]->ty.dt == DT_BF16,
                       .threads = work < SMALL_PRODUCT ? 1 : l->threads};
    return pairs_matmul_takes(p);
}

/* Emitted apart from the function that calls it; the builder comes back where it was. */
static const char *pairs_function(Lower *l, const PairsMatmul *shape) {
    for (int i = 0; i < l->npairs; i++)
        if (!memcmp(&l->pairs[i].shape, shape, sizeof *shape)) return l->pairs[i].name;
    PairsFunction f = {*shape, arena_printf(l->mem, "stator.product.%d", l->npairs)};
    LLVMValueRef fn = l->e->fn;
    LLVMBasicBlockRef at = LLVMGetInsertBlock(l->e->b);
    pairs_matmul_emit(l->e, f.name, shape);
    l->e->fn = fn;
    LLVMPositionBuilderAtEnd(l->e->b, at);
    PUSH(l->mem, l->pairs, l->npairs, l->pairs_cap, f);
    return f.name;
}

static bool is_narrow(const Value *v) {
    return dtype_sum(v->ty.dt) != v->ty.dt;
}

static const Value *bias_of(const Op *op) {
    Dims d;
    Matmul s = matmul(op, &d);
    return s.bias >= 0 ? op->in[s.bias] : NULL;
}

/* Code for a CPU of narrower vectors does not use the wider ones of oneDNN either. No
 * product is of f16: where it is, it is f32 on copies. */
static bool has_product(const Lower *l, const Op *op) {
    return !is_narrow(op->in[0]) || (op->in[0]->ty.dt == DT_BF16 && l->vl >= 16);
}

int lower_product(Lower *l, const Op *op) {
    for (int i = 0; i < l->nproducts; i++) {
        if (l->product[i].op == op) return i;
    }
    char why[400];
    const Value *bias = bias_of(op);
    DType factor = op->in[0]->ty.dt, result = op->out[0]->ty.dt;
    Product p = {.op = op};
    bool swapped;
    PairsMatmul shape;
    if (pairs_shape(l, op, &shape, &swapped)) {
        PUSH(l->mem, l->product, l->nproducts, l->product_cap, p);
        return l->nproducts - 1;
    }
    if (has_product(l, op))
        p.matmul = matmul_new(l, op, factor, bias ? bias->ty.dt : result, result, why,
                              sizeof why);
    if (!p.matmul && is_narrow(op->in[0])) {
        p.widens = true;
        p.matmul = matmul_new(l, op, DT_F32, DT_F32, DT_F32, why, sizeof why);
    }
    if (!p.matmul) lower_refuse(op, why);
    PUSH(l->mem, l->product, l->nproducts, l->product_cap, p);
    return l->nproducts - 1;
}

/* ---- copies in f32: of the factors, then of the result and the bias where narrow ---- */

static int64_t copy_bytes(const Value *v) {
    return v && is_narrow(v) ? lower_widened_bytes(v) : 0;
}

static int64_t copies_bytes(const Product *p) {
    const Op *op = p->op;
    if (!p->widens) return 0;
    return copy_bytes(op->in[0]) + copy_bytes(op->in[1]) + copy_bytes(op->out[0]) +
           copy_bytes(bias_of(op));
}

int64_t lower_product_workspace(Lower *l, const Op *op) {
    int i = lower_product(l, op); /* may move the table */
    PairsMatmul shape;
    bool swapped;
    if (!l->product[i].matmul && pairs_shape(l, op, &shape, &swapped))
        return pairs_matmul_workspace_bytes(&shape, l->vl);
    return copies_bytes(&l->product[i]) +
           (int64_t)dnnl_matmul_scratch_bytes(l->product[i].matmul);
}

/* The copy at *at of the workspace, which moves behind it; v itself where it is f32. */
static LLVMValueRef widened(Lower *l, const Op *op, const Value *v, int64_t *at) {
    if (!is_narrow(v)) return lower_pointer(l, v);
    LLVMValueRef to = lower_workspace(l, op, *at);
    *at += copy_bytes(v);
    return lower_widened(l, v, to);
}

static void widened_product(Lower *l, const Op *op, int index, bool adds) {
    int64_t at = 0;
    const Value *y = op->out[0], *bias = bias_of(op);
    LLVMValueRef a = widened(l, op, op->in[0], &at), b = widened(l, op, op->in[1], &at);
    LLVMValueRef to = lower_pointer(l, y), added = LLVMConstNull(l->e->ptr);
    if (is_narrow(y)) {
        to = lower_workspace(l, op, at);
        at += copy_bytes(y);
        if (adds) lower_widened(l, y, to);
    }
    if (bias) added = widened(l, op, bias, &at);
    CALL_RT(l->e, rt_product, l->products, emit_i64(l->e, index), a, b, added, to,
            lower_workspace(l, op, at));
    if (is_narrow(y)) lower_rounded(l, y, to);
}

/* void rt_product(products, index, a, b, bias, c, scratch) */
void lower_dot(Lower *l, const Op *op) {
    Dims d;
    Matmul s = matmul(op, &d);
    int index = lower_product(l, op);
    const Product *p = &l->product[index];
    LLVMValueRef none = LLVMConstNull(l->e->ptr), c = lower_pointer(l, op->out[0]);
    if (s.sum >= 0) {
        const Value *v = op->in[s.sum];
        LLVMValueRef from = lower_pointer(l, v);
        int64_t size[MAX_RANK], stride[MAX_RANK], dims[MAX_DIMS];
        matmul_strides(&d, s.sum, dims);
        for (int k = 0; k < op->out[0]->ty.rank; k++) {
            size[k] = op->out[0]->ty.dim[k];
            stride[k] = dims[d.term[op->nin][k]];
        }
        bool same =
            v->def
                ? v->loc.kind == op->out[0]->loc.kind && v->loc.at == op->out[0]->loc.at
                : op->out[0]->loc.kind == LOC_ARG && op->out[0]->loc.at == v->nth;
        if (v->ty.dt != op->out[0]->ty.dt)
            lower_refuse(op, "a full addend must have the type of the result");
        if (!same) lower_spread(l, c, from, op->out[0]->ty.rank, size, stride, v->ty.dt);
    }
    if (p->widens) {
        widened_product(l, op, index, s.sum >= 0);
        return;
    }
    LLVMValueRef a = lower_pointer(l, op->in[0]), b = lower_pointer(l, op->in[1]);
    LLVMValueRef bias = s.bias >= 0 ? lower_pointer(l, op->in[s.bias]) : none;
    PairsMatmul shape;
    bool swapped;
    if (!p->matmul && pairs_shape(l, op, &shape, &swapped)) {
        LLVMValueRef args[] = {swapped ? b : a, swapped ? a : b, bias, c,
                               lower_workspace(l, op, 0)};
        emit_call(l->e, pairs_function(l, &shape), args, ARRAY_LEN(args));
        return;
    }
    CALL_RT(l->e, rt_product, l->products, emit_i64(l->e, index), a, b, bias, c,
            lower_workspace(l, op, 0));
}
