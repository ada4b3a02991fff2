/* op_attn.c - attention and the KV cache. */
#include "op_hooks.h"
#include "number.h"
#include <math.h>

void infer_attention(Op *op, Type *out) {
    const Type *q = &op->in[0]->ty, *k = &op->in[1]->ty;
    (void)out;
    if (q->dim[2] % k->dim[2]) {
        infer_error("%lld query heads, which %lld key heads do not divide",
                    (long long)q->dim[2], (long long)k->dim[2]);
    }
    check_rng(op, 4);
    check_dropout(op);
    int64_t zigzag = op_int(op, "zigzag", 0);
    if (zigzag < 0 || zigzag > INT32_MAX ||
        (zigzag && (q->dim[1] % (2 * zigzag) || q->dim[1] != k->dim[1]))) {
        infer_error("zigzag=%lld needs as many queries as keys, a multiple of twice that",
                    (long long)zigzag);
    }
}

typedef struct Attn { /* sizes and accessors of one attention op */
    int64_t b, tq, h, d, tk, g, offset, zigzag;
    double scale, p;
    bool causal;
    int64_t site;
    const Tensor *rng, *first;          /* attention_within: first key of each query; or NULL */
    const Tensor *o, *lse, *d_o;  /* gradients: results and what comes back */
    const Mesh *mesh; /* dropout: the part of the probabilities of this rank */
    int rank;
    Type whole;
} Attn;

static Attn attn_of(const Ref *r) {
    const int64_t *q = r->in[0]->ty.dim, *k = r->in[1]->ty.dim;
    int nin = r->op->nin, n = nin >= 8 ? nin - 3 : nin; /* gradients have three more */
    Attn a = {q[0], q[1], q[2], q[3], k[1], k[2], tensor_get_int(r->in[3], 0),
              op_int(r->op, "zigzag", 0), op_float(r->op, "scale", 1),
              op_float(r->op, "p", 0), op_int(r->op, "causal", 0) != 0,
              op_int(r->op, "site", 0), r->in[4], NULL, NULL, NULL, NULL, r->mesh, r->rank,
              TYPE(DT_F32, q[0], q[2], q[1], k[1])};
    const Attr *of = op_attr(r->op, "of");
    if (of) a.whole = type_parse(r->op->fn->mod->mem, r->mesh, of->s);
    if (n == 6) a.first = r->in[5];
    if (nin > n) a.o = r->in[n], a.lse = r->in[n + 1], a.d_o = r->in[n + 2];
    return a;
}

static int64_t q_at(const Attn *a, int64_t b, int64_t i, int64_t h) {
    return ((b * a->tq + i) * a->h + h) * a->d;
}

static int64_t k_at(const Attn *a, int64_t b, int64_t j, int64_t h) {
    return ((b * a->tk + j) * a->g + h / (a->h / a->g)) * a->d;
}

/* Keys end before this one; in zigzag order some of those before are not seen either. */
static int64_t keys_of(const Attn *a, int64_t i) {
    if (!a->causal || a->zigzag) return a->tk;
    return MAX(0, MIN(a->tk, a->offset + i + 1));
}

static bool sees(const Attn *a, int64_t i, int64_t j) {
    if (!a->causal || !a->zigzag) return true;
    return zigzag_position(j, a->tk, a->zigzag) <=
           a->offset + zigzag_position(i, a->tq, a->zigzag);
}

static int64_t first_of(const Attn *a, int64_t b, int64_t i) {
    if (!a->first) return 0;
    int64_t first = tensor_get_int(a->first, b * a->tq + i);
    if (first < 0 || first >= keys_of(a, i)) {
        fail(EXIT_DATA, "query %lld sees keys from %lld on, which leaves it none",
             (long long)i, (long long)first);
    }
    return first;
}

static double score(const Ref *r, const Attn *a, int64_t b, int64_t h, int64_t i,
                    int64_t j) {
    double s = 0;
    if (!sees(a, i, j)) return -INFINITY;
    int64_t q0 = q_at(a, b, i, h), k0 = k_at(a, b, j, h);
    for (int64_t c = 0; c < a->d; c++) {
        s += number_get(r->in[0], q0 + c) * number_get(r->in[1], k0 + c);
    }
    return s * a->scale;
}

/* What dropout does to probability (b, h, i, j): 0 or 1/(1-p). */
static double keep(const Attn *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (a->p <= 0) return 1;
    int64_t part = ((b * a->h + h) * a->tq + i) * a->tk + j;
    int64_t at = part_element(a->mesh, a->rank, &a->whole, part);
    at += tensor_get_int(a->rng, RNG_MICRO) * type_count(&a->whole);
    return dropout_keeps(a->rng, a->p, a->site, at) ? 1 / (1 - a->p) : 0;
}

/* o, e: scratch for a row of the result and for one number a key */
static void attend_row(const Ref *r, const Attn *a, int64_t b, int64_t h, int64_t i,
                       double *o, double *e) {
    int64_t from = first_of(a, b, i), n = keys_of(a, i);
    double top = -INFINITY, sum = 0;
    for (int64_t j = from; j < n; j++) top = fmax(top, e[j] = score(r, a, b, h, i, j));
    for (int64_t j = from; j < n; j++) sum += e[j] = exp(e[j] - top);
    for (int64_t c = 0; c < a->d; c++) o[c] = 0;
    for (int64_t j = from; j < n && top > -INFINITY; j++) {
        double p = e[j] / sum * keep(a, b, h, i, j);
        for (int64_t c = 0; c < a->d; c++) {
            o[c] += p * number_get(r->in[2], k_at(a, b, j, h) + c);
        }
    }
    for (int64_t c = 0; c < a->d; c++) number_set(r->out[0], q_at(a, b, i, h) + c, o[c]);
    number_set(r->out[1], (b * a->tq + i) * a->h + h,
               top == -INFINITY ? (double)NO_KEYS : top + log(sum));
}

void ref_attention(const Ref *r) {
    Attn a = attn_of(r);
    Arena *mem = arena_new();
    double *o = NEW_ARRAY(mem, double, (size_t)a.d);
    double *e = NEW_ARRAY(mem, double, (size_t)a.tk);
    for (int64_t b = 0; b < a.b; b++) {
        for (int64_t h = 0; h < a.h; h++) {
            for (int64_t i = 0; i < a.tq; i++) attend_row(r, &a, b, h, i, o, e);
        }
    }
    arena_free(mem);
}

static void accumulate(Tensor *t, int64_t at, double v) {
    number_set(t, at, number_get(t, at) + v);
}

/* dv_j += p do; ds = p (keep do.v_j - do.o); dq += ds k scale; dk_j += ds q scale */
static void attend_row_grad(const Ref *r, const Attn *a, int64_t b, int64_t h,
                            int64_t i) {
    int64_t q0 = q_at(a, b, i, h);
    double delta = 0, lse = number_get(a->lse, (b * a->tq + i) * a->h + h);
    for (int64_t c = 0; c < a->d; c++) {
        delta += number_get(a->d_o, q0 + c) * number_get(a->o, q0 + c);
    }
    for (int64_t j = first_of(a, b, i), n = keys_of(a, i); j < n; j++) {
        int64_t k0 = k_at(a, b, j, h);
        double p = exp(score(r, a, b, h, i, j) - lse), kept = keep(a, b, h, i, j), dp = 0;
        for (int64_t c = 0; c < a->d; c++) {
            double d_o = number_get(a->d_o, q0 + c);
            dp += d_o * number_get(r->in[2], k0 + c);
            accumulate(r->out[2], k0 + c, p * kept * d_o);
        }
        double ds = p * (kept * dp - delta) * a->scale;
        for (int64_t c = 0; c < a->d; c++) {
            accumulate(r->out[0], q0 + c, ds * number_get(r->in[1], k0 + c));
            accumulate(r->out[1], k0 + c, ds * number_get(r->in[0], q0 + c));
        }
    }
}

void ref_attention_grad(const Ref *r) {
    Attn a = attn_of(r);
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0, n = type_count(&r->out[k]->ty); i < n; i++) {
            number_set(r->out[k], i, 0);
        }
    }
    for (int64_t b = 0; b < a.b; b++) {
        for (int64_t h = 0; h < a.h; h++) {
            for (int64_t i = 0; i < a.tq; i++) attend_row_grad(r, &a, b, h, i);
        }
    }
}

void ref_attention_within(const Ref *r) {
    ref_attention(r);
}

void ref_attention_within_grad(const Ref *r) {
    ref_attention_grad(r);
}

/* The gradient op of `kind` takes all operands, the two results and what comes back. */
static void vjp_by_kind(Grad *g, Op *op, int kind) {
    Value *dy = g->of(g, op->out[0]), *in[MAX_TERMS];
    if (!dy) return;
    char *attrs = bfmt(&g->b, "scale=%.17g; causal=%d; p=%.17g; site=%lld",
                       op_float(op, "scale", 1), (int)op_int(op, "causal", 0),
                       op_float(op, "p", 0), (long long)op_int(op, "site", 0));
    memcpy(in, op->in, (size_t)op->nin * sizeof(Value *));
    in[op->nin] = op->out[0];
    in[op->nin + 1] = op->out[1];
    in[op->nin + 2] = dy;
    Op *grad = build_list(&g->b, kind, attrs, op->nin + 3, in, NULL, 0);
    int64_t zigzag = op_int(op, "zigzag", 0);
    if (zigzag) op_set_int(grad, "zigzag", zigzag);
    for (int i = 0; i < 3; i++) {
        if (g->wants(g, op->in[i])) g->add(g, op->in[i], grad->out[i]);
    }
}

void vjp_attention(Grad *g, Op *op) {
    vjp_by_kind(g, op, OP_attention_grad);
}

void vjp_attention_within(Grad *g, Op *op) {
    vjp_by_kind(g, op, OP_attention_within_grad);
}

void ref_cache_write(const Ref *r) {
    const int64_t *cache = r->in[0]->ty.dim, *x = r->in[1]->ty.dim;
    int64_t row = cache[2] * cache[3], at = tensor_get_int(r->in[2], 0);
    if (at < 0 || at + x[1] > cache[1]) {
        fail(EXIT_DATA, "rows %lld to %lld of a cache of %lld rows", (long long)at,
             (long long)(at + x[1] - 1), (long long)cache[1]);
    }
    if (r->out[0]->data != r->in[0]->data) {
        memmove(r->out[0]->data, r->in[0]->data, (size_t)type_bytes(&r->in[0]->ty));
    }
    for (int64_t b = 0; b < cache[0]; b++) {
        for (int64_t i = 0; i < x[1] * row; i++) {
            number_set(r->out[0], (b * cache[1] + at) * row + i,
                       number_get(r->in[1], b * x[1] * row + i));
        }
    }
}

/* Queries of this rank's part begin later; probabilities are dropped by their place in
 * the whole. */
void local_attention(Local *l) {
    const Dims *d = l->d;
    Builder *b = &l->b;
    const Mesh *m = &l->op->fn->mod->mesh;
    int batch = d->term[0][0], q = d->term[0][1], heads = d->term[0][2],
        k = d->term[1][1];
    if (l->split[q] && op_int(l->op, "zigzag", 0) > 1) {
        local_ring(l, l->split[q]);
        return;
    }
    if (l->split[q] && op_int(l->op, "causal", 0)) {
        char *attrs =
            bfmt(b, "axis=\"%s\"; by=%lld", mesh_axes_text(b->mem, m, l->split[q]),
                 (long long)-(d->size[q] / mesh_group_size(m, l->split[q])));
        Value *back = build1(b, OP_coord, attrs, NULL);
        l->op->in[3] = build1(b, OP_index_from, NULL, l->op->in[3], back, NULL);
    }
    if (op_float(l->op, "p", 0) <= 0) return;
    Type p = TYPE(DT_F32, d->size[batch], d->size[heads], d->size[q], d->size[k]);
    p.split[0] = l->split[batch];
    p.split[1] = l->split[heads];
    p.split[2] = l->split[q];
    op_set_str(l->op, "of", type_text(b->mem, m, &p));
}
