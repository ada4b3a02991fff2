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

int lower_product(Lower *l, const Op *op) {
    for (int i = 0; i < l->nproducts; i++) {
        if (l->product[i].op == op) return i;
    }
    Dims d;
    Matmul s = matmul(op, &d);
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
    DnnlMatmul *m = dnnl_matmul_new(&a, &b, s.bias >= 0 ? &bias : NULL, &c, s.sum >= 0,
                                    threads, why, sizeof why);
    if (!m) lower_refuse(op, why);
    Product p = {op, m};
    PUSH(l->mem, l->product, l->nproducts, l->product_cap, p);
    return l->nproducts - 1;
}

/* void rt_product(products, index, a, b, bias, c, scratch) */
void lower_dot(Lower *l, const Op *op) {
    Dims d;
    Matmul s = matmul(op, &d);
    int index = lower_product(l, op);
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
        if (!same) lower_spread(l, c, from, op->out[0]->ty.rank, size, stride);
    }
    CALL_RT(l->e, rt_product, l->products, emit_i64(l->e, index),
            lower_pointer(l, op->in[0]), lower_pointer(l, op->in[1]),
            s.bias >= 0 ? lower_pointer(l, op->in[s.bias]) : none, c,
            lower_workspace(l, op, 0));
}
