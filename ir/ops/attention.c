/* attention.c - attention and the KV cache. */
#include "ir/op_hooks.h"
#include "ir/placement.h"
#include "ir/tensor_fast.h"
#include <math.h>

bool attention_is_within(const Op *op) {
    return op->kind == OP_attention_within || op->kind == OP_attention_within_grad;
}

bool attention_is_grad(const Op *op) {
    return op->kind == OP_attention_grad || op->kind == OP_attention_within_grad;
}

void infer_attention(Op *op, Type *out) {
    const Type *q = &op->in[ATTN_Q]->ty, *k = &op->in[ATTN_K]->ty;
    (void)out;
    if (q->dim[2] % k->dim[2]) {
        infer_error("%lld query heads, which %lld key heads do not divide",
                    (long long)q->dim[2], (long long)k->dim[2]);
    }
    check_rng(op, ATTN_RNG);
    check_dropout(op);
    if (!isfinite(op_float(op, "scale", 1))) infer_error("scale must be a finite number");
    int64_t causal = op_int(op, "causal", 0);
    if (causal != 0 && causal != 1)
        infer_error("causal=%lld must be 0 or 1", (long long)causal);
    int64_t zigzag = op_int(op, "zigzag", 0), window = op_int(op, "window", 0);
    if (window < 0 || window > INT32_MAX || (window && !causal)) {
        infer_error("window=%lld must be 1..%d and needs causal=1", (long long)window,
                    INT32_MAX);
    }
    if (zigzag < 0 || zigzag > INT32_MAX ||
        (zigzag > 1 && (q->dim[1] % (2 * zigzag) || q->dim[1] != k->dim[1]))) {
        infer_error("zigzag=%lld needs as many queries as keys, a multiple of twice that",
                    (long long)zigzag);
    }
}

/* With a causal mask every key is seen by half of the queries on average, whatever the part
 * of a sequence; with a window of w of n keys by w/n - (w/n)^2 / 2. */
double share_attention(const Op *op) {
    int64_t window = op_int(op, "window", 0);
    if (!op_int(op, "causal", 0)) return 1;
    int64_t keys =
        op_attr(op, "of") ? attention_whole(op).dim[3] : op->in[ATTN_K]->ty.dim[1];
    if (!window || window >= keys) return 0.5;
    double part = (double)window / (double)keys;
    return part - part * part / 2;
}

/* Queries that are the last of the keys see the most: all keys before them, or those of a
 * window. */
double slowest_attention(const Op *op) {
    double queries = (double)op->in[ATTN_Q]->ty.dim[1];
    double keys = (double)op->in[ATTN_K]->ty.dim[1], before = keys - queries;
    double window = (double)op_int(op, "window", 0);
    if (!op_int(op, "causal", 0) || op_int(op, "zigzag", 0) > 1 || before <= 0) return 1;
    if (!(window > 0) || window > keys) window = keys;
    double growing = MAX(window - before, 0), whole = queries - growing;
    double seen = growing * (before + window) / 2 + whole * window;
    return seen / (queries * keys * share_attention(op));
}

Type attention_whole(const Op *op) {
    const int64_t *q = op->in[ATTN_Q]->ty.dim;
    const Attr *of = op_attr(op, "of");
    if (!of) return TYPE(DT_F32, q[0], q[2], q[1], op->in[ATTN_K]->ty.dim[1]);
    const Mesh *mesh = &op->fn->mod->mesh;
    Type whole = type_parse(op->fn->mod->mem, mesh, of->s), heads = whole;
    Type local = TYPE(DT_F32, q[0], q[2]);
    heads.rank = 2;
    if (whole.rank == 4 && !whole.split[2] && !whole.split[3] &&
        part_fits(mesh, &heads, &local))
        return whole;
    fail_op(op,
            "%%%s: of=\"%s\" must be the type of the whole probabilities, [batch, heads, "
            "queries, keys], split in batch and heads alone as here",
            op->out[0]->name, of->s);
}

typedef struct Attn { /* sizes and accessors of one attention op */
    int64_t b, tq, h, d, tk, g, q_at, k_at, zigzag, window; /* window: 0 is none */
    double scale, p;
    bool causal;
    int64_t site;
    const Tensor *rng, *first;   /* first: position of each query's first key, or NULL */
    const Tensor *o, *lse, *d_o; /* gradients: results and what comes back */
    const Mesh *mesh;            /* dropout: the part of the probabilities of this rank */
    int rank;
    Type whole;
} Attn;

static Attn attn_of(const Ref *r) {
    const Op *op = r->op;
    const int64_t *q = r->in[ATTN_Q]->ty.dim, *k = r->in[ATTN_K]->ty.dim;
    Attn a = {.b = q[0],
              .tq = q[1],
              .h = q[2],
              .d = q[3],
              .tk = k[1],
              .g = k[2],
              .q_at = tensor_get_int(r->in[ATTN_Q_AT], 0),
              .k_at = tensor_get_int(r->in[ATTN_K_AT], 0),
              .zigzag = op_int(op, "zigzag", 0),
              .window = op_int(op, "window", 0),
              .scale = op_float(op, "scale", 1),
              .p = op_float(op, "p", 0),
              .causal = op_int(op, "causal", 0) != 0,
              .site = op_int(op, "site", 0),
              .rng = r->in[ATTN_RNG],
              .first = attention_is_within(op) ? r->in[ATTN_FIRST] : NULL,
              .mesh = r->mesh,
              .rank = r->rank};
    Tensor **last = r->in + op->nin - 3;
    if (attention_is_grad(op)) a.o = last[0], a.lse = last[1], a.d_o = last[2];
    if (a.p > 0) a.whole = attention_whole(op);
    return a;
}

static int64_t q_index(const Attn *a, int64_t b, int64_t i, int64_t h) {
    return ((b * a->tq + i) * a->h + h) * a->d;
}

static int64_t k_index(const Attn *a, int64_t b, int64_t j, int64_t h) {
    return ((b * a->tk + j) * a->g + h / (a->h / a->g)) * a->d;
}

static int64_t q_position(const Attn *a, int64_t i) {
    return a->q_at + zigzag_position(i, a->tq, a->zigzag);
}

static int64_t k_position(const Attn *a, int64_t j) {
    return a->k_at + zigzag_position(j, a->tk, a->zigzag);
}

static int64_t first_of(const Attn *a, int64_t b, int64_t i) {
    return a->first ? tensor_get_int(a->first, b * a->tq + i) : INT64_MIN;
}

/* Keys [*from, to) contain those that query i sees; in zigzag order others too. */
static int64_t keys_of(const Attn *a, int64_t b, int64_t i, int64_t *from) {
    *from = 0;
    if (a->zigzag > 1) return a->tk;
    if (a->first) *from = MAX(0, first_of(a, b, i) - a->k_at);
    if (!a->causal) return a->tk;
    int64_t end = a->q_at - a->k_at + i + 1;
    if (a->window) *from = MAX(*from, end - a->window);
    return MIN(a->tk, end);
}

static bool sees(const Attn *a, int64_t b, int64_t i, int64_t j) {
    int64_t key = k_position(a, j), query = q_position(a, i);
    if (a->window && key <= query - a->window) return false;
    return key >= first_of(a, b, i) && (!a->causal || key <= query);
}

/* Where the module is not split yet, a query that is before its own first key is wrong
 * data; on a rank, its keys may be elsewhere. */
static void check_first(const Ref *r, const Attn *a, int64_t b, int64_t i) {
    if (!a->first || r->op->fn->mod->level != LEVEL_GLOBAL) return;
    int64_t first = first_of(a, b, i);
    if (first >= 0 && (!a->causal || first <= q_position(a, i))) return;
    fail(EXIT_DATA, "query %lld sees keys from %lld on, which leaves it none",
         (long long)i, (long long)first);
}

static double score(const Ref *r, const Attn *a, int64_t b, int64_t h, int64_t i,
                    int64_t j) {
    double s = 0;
    if (!sees(a, b, i, j)) return -INFINITY;
    int64_t q0 = q_index(a, b, i, h), k0 = k_index(a, b, j, h);
    for (int64_t c = 0; c < a->d; c++) {
        s += tensor_get_fast(r->in[ATTN_Q], q0 + c) *
             tensor_get_fast(r->in[ATTN_K], k0 + c);
    }
    return s * a->scale;
}

/* What dropout does to probability (b, h, i, j): 0 or 1/(1-p). */
static double keep(const Attn *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (a->p <= 0) return 1;
    Type heads = a->whole; /* of batch and heads */
    heads.rank = 2;
    int64_t tq = a->whole.dim[2], tk = a->whole.dim[3];
    int64_t at = part_element(a->mesh, a->rank, &heads, b * a->h + h);
    at = (at * tq + q_position(a, i)) * tk + k_position(a, j);
    at += tensor_get_int(a->rng, RNG_MICRO) * type_count(&a->whole);
    return dropout_keeps(a->rng, a->p, a->site, at) ? 1 / (1 - a->p) : 0;
}

/* o, e: scratch for a row of the result and for one number a key */
static void attend_row(const Ref *r, const Attn *a, int64_t b, int64_t h, int64_t i,
                       double *o, double *e) {
    int64_t from, n = keys_of(a, b, i, &from);
    double top = -INFINITY, sum = 0;
    check_first(r, a, b, i);
    for (int64_t j = from; j < n; j++) top = fmax(top, e[j] = score(r, a, b, h, i, j));
    for (int64_t j = from; j < n; j++) sum += e[j] = exp(e[j] - top);
    for (int64_t c = 0; c < a->d; c++) o[c] = 0;
    for (int64_t j = from; j < n && top > -INFINITY; j++) {
        double p = e[j] / sum * keep(a, b, h, i, j);
        for (int64_t c = 0; c < a->d; c++) {
            o[c] += p * tensor_get_fast(r->in[2], k_index(a, b, j, h) + c);
        }
    }
    int64_t q0 = q_index(a, b, i, h);
    for (int64_t c = 0; c < a->d; c++) tensor_set_fast(r->out[0], q0 + c, o[c]);
    tensor_set_fast(r->out[1], (b * a->tq + i) * a->h + h,
                    top == -INFINITY ? (double)NO_KEYS : top + log(sum));
}

void ref_attention(const Ref *r) {
    Attn a = attn_of(r);
    Arena *mem = arena_new();
    double *o = NEW_ARRAY(mem, double, (size_t)a.d);
    double *e = NEW_ARRAY(mem, double, (size_t)a.tk);
    const Tensor *q_at = r->in[ATTN_Q_AT];
    for (int64_t b = 0; b < a.b; b++) {
        if (q_at->ty.rank) a.q_at = tensor_get_int(q_at, b);
        for (int64_t h = 0; h < a.h; h++) {
            for (int64_t i = 0; i < a.tq; i++) attend_row(r, &a, b, h, i, o, e);
        }
    }
    arena_free(mem);
}

void ref_attention_each(const Ref *r) {
    ref_attention(r);
}

/* dv_j += p do; ds = p (keep do.v_j - do.o); dq += ds k scale; dk_j += ds q scale. sum: of
 * dq, dk and dv, which are rounded once. */
static void attend_row_grad(const Ref *r, const Attn *a, int64_t b, int64_t h, int64_t i,
                            double *const *sum) {
    int64_t q0 = q_index(a, b, i, h);
    double delta = 0, lse = tensor_get_fast(a->lse, (b * a->tq + i) * a->h + h);
    for (int64_t c = 0; c < a->d; c++) {
        delta += tensor_get_fast(a->d_o, q0 + c) * tensor_get_fast(a->o, q0 + c);
    }
    int64_t from, n = keys_of(a, b, i, &from);
    for (int64_t j = from; j < n; j++) {
        int64_t k0 = k_index(a, b, j, h);
        double p = exp(score(r, a, b, h, i, j) - lse), kept = keep(a, b, h, i, j), dp = 0;
        for (int64_t c = 0; c < a->d; c++) {
            double d_o = tensor_get_fast(a->d_o, q0 + c);
            dp += d_o * tensor_get_fast(r->in[2], k0 + c);
            sum[2][k0 + c] += p * kept * d_o;
        }
        double ds = p * (kept * dp - delta) * a->scale;
        for (int64_t c = 0; c < a->d; c++) {
            sum[0][q0 + c] += ds * tensor_get_fast(r->in[1], k0 + c);
            sum[1][k0 + c] += ds * tensor_get_fast(r->in[0], q0 + c);
        }
    }
}

void ref_attention_grad(const Ref *r) {
    Attn a = attn_of(r);
    Arena *mem = arena_new();
    double *sum[3];
    for (int k = 0; k < 3; k++)
        sum[k] = NEW_ARRAY(mem, double, (size_t)type_count(&r->out[k]->ty));
    for (int64_t b = 0; b < a.b; b++) {
        for (int64_t h = 0; h < a.h; h++) {
            for (int64_t i = 0; i < a.tq; i++) attend_row_grad(r, &a, b, h, i, sum);
        }
    }
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0, n = type_count(&r->out[k]->ty); i < n; i++)
            tensor_set_fast(r->out[k], i, sum[k][i]);
    arena_free(mem);
}

void ref_attention_within(const Ref *r) {
    ref_attention(r);
}

void ref_attention_within_grad(const Ref *r) {
    ref_attention_grad(r);
}

/* The gradient op takes all operands, the two results and what comes back. */
void vjp_attention(Grad *g, Op *op, Value *dy) {
    int kind = attention_is_within(op) ? OP_attention_within_grad : OP_attention_grad;
    Value *in[MAX_TERMS];
    char *attrs = bfmt(&g->b, "scale=%.17g; causal=%d; p=%.17g; site=%lld",
                       op_float(op, "scale", 1), (int)op_int(op, "causal", 0),
                       op_float(op, "p", 0), (long long)op_int(op, "site", 0));
    memcpy(in, op->in, (size_t)op->nin * sizeof(Value *));
    in[op->nin] = op->out[0];
    in[op->nin + 1] = op->out[1];
    in[op->nin + 2] = dy;
    Op *grad = build_list(&g->b, kind, attrs, op->nin + 3, in, NULL, 0);
    static const char *const same[] = {"zigzag", "window"};
    for (int i = 0; i < ARRAY_LEN(same); i++)
        if (op_attr(op, same[i])) op_set_int(grad, same[i], op_int(op, same[i], 0));
    grad_add_wanted(g, op, grad, 3);
}

/* The result begins as the cache. */
static void copy_cache(const Ref *r) {
    if (r->out[0]->data != r->in[0]->data)
        memmove(r->out[0]->data, r->in[0]->data, (size_t)type_bytes(&r->in[0]->ty));
}

/* Row `from` of sequence b of x becomes row `to` of its cache. */
static void write_row(const Ref *r, int64_t b, int64_t from, int64_t to) {
    const int64_t *cache = r->in[0]->ty.dim, *x = r->in[1]->ty.dim;
    int64_t row = cache[2] * cache[3];
    for (int64_t i = 0; i < row; i++)
        tensor_set_fast(r->out[0], (b * cache[1] + to) * row + i,
                        tensor_get_fast(r->in[1], (b * x[1] + from) * row + i));
}

void ref_cache_write(const Ref *r) {
    const int64_t *cache = r->in[0]->ty.dim, *x = r->in[1]->ty.dim;
    int64_t at = tensor_get_int(r->in[2], 0);
    if (at < 0 || at + x[1] > cache[1]) {
        fail(EXIT_DATA, "rows %lld to %lld of a cache of %lld rows", (long long)at,
             (long long)(at + x[1] - 1), (long long)cache[1]);
    }
    copy_cache(r);
    for (int64_t b = 0; b < cache[0]; b++)
        for (int64_t i = 0; i < x[1]; i++) write_row(r, b, i, at + i);
}

void ref_cache_write_each(const Ref *r) {
    const int64_t *cache = r->in[0]->ty.dim, *x = r->in[1]->ty.dim;
    copy_cache(r);
    for (int64_t b = 0; b < cache[0]; b++) {
        int64_t at = tensor_get_int(r->in[2], b), n = tensor_get_int(r->in[3], b);
        if (at < 0 || n < 0 || n > x[1])
            fail(EXIT_DATA, "%lld of %lld rows for a cache, from row %lld on",
                 (long long)n, (long long)x[1], (long long)at);
        for (int64_t i = 0; i < n; i++) write_row(r, b, i, (at + i) % cache[1]);
    }
}
