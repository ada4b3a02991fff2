/* ring.c - attention whose keys go round a ring of ranks (arXiv 2310.01889), in zigzag
 * order: rank c of n holds the chunks c and 2n-1-c of queries, keys and values, so that
 * causal attention is the same work for each rank. Built of ordinary ops when the op
 * becomes local:
 *     block: both chunks of queries against the two chunks of keys that this rank has
 *     step:  what the previous rank had comes here; block
 *     out =  block of our own keys, then n - 1 steps
 * The parts of a row of probabilities are combined through their log sum exp. In backward
 * the gradients of keys and values travel with them and end on the rank where they
 * began. */
#include "ir/op_hooks.h"

enum { CHUNKS = 2, MOST = 24 };

typedef struct Ring {
    Local *l;
    Module *m;
    const Op *op;
    const char *axis, *attrs; /* of the ring; of the attention ops */
    int64_t n, rows;          /* ranks; rows of a chunk */
    int first;                /* CHUNKS within documents, else 0 */
    Type q, o, lse;           /* of a chunk */
} Ring;

static Type chunk_type(const Type *t) {
    Type c = *t;
    c.dim[1] /= CHUNKS;
    return c;
}

/* [b, 2r, ...] -> both halves. */
static void take_apart(Builder *b, Value *v, Value **chunk) {
    Type pair = v->ty;
    memmove(pair.dim + 2, pair.dim + 1, sizeof(int64_t) * (MAX_RANK - 2));
    pair.rank++;
    pair.dim[1] = CHUNKS;
    pair.dim[2] /= CHUNKS;
    Value *view = build_as(b, OP_reshape, NULL, pair, v, NULL);
    Op *parts = build_list(b, OP_unstack, "dim=1", 1, &view, NULL, 0);
    for (int i = 0; i < CHUNKS; i++) chunk[i] = parts->out[i];
}

static Value *put_together(Builder *b, Value **chunk, Type whole) {
    Value *pair = build_list(b, OP_stack, "dim=1", CHUNKS, chunk, NULL, 0)->out[0];
    return build_as(b, OP_reshape, NULL, whole, pair, NULL);
}

static Value *fill(Builder *b, double v, Type ty) {
    return build_as(b, OP_fill, bfmt(b, "value=%.17g", v), ty, NULL);
}

static Value *constant_i32(Builder *b, int64_t v) {
    return fill(b, (double)v, type_scalar(DT_I32));
}

/* `by` times this rank's number. */
static Value *coordinate(const Ring *r, Builder *b, int64_t by) {
    char *attrs = bfmt(b, "axis=\"%s\"; by=%lld", r->axis, (long long)by);
    return build1(b, OP_coord, attrs, NULL);
}

/* First positions of this rank's chunks in a sequence that begins at `at`: at + c r and
 * at + (2n - 1 - c) r. */
static void chunk_starts(const Ring *r, Builder *b, Value *at, Value **start) {
    start[0] = build1(b, OP_index_from, NULL, at, coordinate(r, b, -r->rows), NULL);
    Value *back = constant_i32(b, -(2 * r->n - 1) * r->rows);
    Value *top = build1(b, OP_index_from, NULL, at, back, NULL);
    start[1] = build1(b, OP_index_from, NULL, top, coordinate(r, b, r->rows), NULL);
}

/* ---- functions: arguments in groups, by their indices in one array ---- */

static Func *function(const Ring *r, const char *name, int n, Value **like, Value **arg) {
    Func *f = func_new_unique(r->m, name, ROLE_FUNC);
    for (int i = 0; i < n; i++) arg[i] = func_arg(f, like[i]->name, like[i]->ty);
    return f;
}

/* Parts are added up in f32 at least: v as a term of such a sum. */
static Value *term(Builder *b, Value *v) {
    return build_cast(b, v, dtype_sum(v->ty.dt));
}

static Type sum_type(Type t) {
    t.dt = dtype_sum(t.dt);
    return t;
}

/* o and lse of two sets of keys -> of both. */
static void merge(Builder *b, Value **o, Value **lse, Value *o2, Value *lse2) {
    Value *both = build1(b, OP_log_add, NULL, *lse, lse2, NULL);
    Value *w1 = build1(b, OP_exp, NULL, build1(b, OP_sub, NULL, *lse, both, NULL), NULL);
    Value *w2 = build1(b, OP_exp, NULL, build1(b, OP_sub, NULL, lse2, both, NULL), NULL);
    Value *a = build1(b, OP_mul, "bqhd,bqh->bqhd", *o, w1, NULL);
    Value *c = build1(b, OP_mul, "bqhd,bqh->bqhd", o2, w2, NULL);
    *o = build1(b, OP_add, NULL, a, c, NULL);
    *lse = both;
}

/* Forward groups: 0 k, 1 v, 2-3 starts of keys, 4-5 o, 6-7 lse | 8-9 q, 10-11 starts of
 * queries, 12 rng, 13-14 first keys within documents. Carried: 0 to 7. */
enum {
    F_K,
    F_V,
    F_KS,
    F_O = 4,
    F_LSE = 6,
    F_CARRY = 8,
    F_Q = 8,
    F_QS = 10,
    F_RNG = 12,
    F_ALL,
    F_FIRST = F_ALL
};

/* The attention op of chunk i of queries and chunk j of keys, from the operands of the
 * whole op and the chunks. */
static Op *chunk_op(const Ring *r, Builder *b, Value *const *in) {
    return build_list(b, r->op->kind, r->attrs, r->op->nin, (Value **)in, NULL, 0);
}

static void block_body(const Ring *r, Builder *b, Value **a) {
    Value *k[CHUNKS], *v[CHUNKS];
    take_apart(b, a[F_K], k);
    take_apart(b, a[F_V], v);
    for (int i = 0; i < CHUNKS; i++) {
        for (int j = 0; j < CHUNKS; j++) {
            Value *in[] = {[ATTN_Q] = a[F_Q + i],
                           [ATTN_K] = k[j],
                           [ATTN_V] = v[j],
                           [ATTN_Q_AT] = a[F_QS + i],
                           [ATTN_K_AT] = a[F_KS + j],
                           [ATTN_RNG] = a[F_RNG],
                           [ATTN_FIRST] = r->first ? a[F_FIRST + i] : NULL};
            Op *part = chunk_op(r, b, in);
            merge(b, &a[F_O + i], &a[F_LSE + i], term(b, part->out[0]), part->out[1]);
        }
    }
}

/* Backward groups: 0 k, 1 v, 2 dk, 3 dv, 4-5 starts of keys, 6-7 dq | 8-9 q, 10-11 starts
 * of queries, 12-13 o, 14-15 lse, 16-17 do, 18 rng, 19-20 first keys. */
enum {
    B_K,
    B_V,
    B_DK,
    B_DV,
    B_KS,
    B_DQ = 6,
    B_CARRY = 8,
    B_Q = 8,
    B_QS = 10,
    B_O = 12,
    B_LSE = 14,
    B_DO = 16,
    B_RNG = 18,
    B_ALL,
    B_FIRST = B_ALL
};

static void block_grad_body(const Ring *r, Builder *b, Value **a) {
    Value *k[CHUNKS], *v[CHUNKS], *dk[CHUNKS] = {NULL}, *dv[CHUNKS] = {NULL};
    take_apart(b, a[B_K], k);
    take_apart(b, a[B_V], v);
    for (int i = 0; i < CHUNKS; i++) {
        for (int j = 0; j < CHUNKS; j++) {
            Value *in[ATTN_FIRST + 4] = {
                [ATTN_Q] = a[B_Q + i],     [ATTN_K] = k[j],
                [ATTN_V] = v[j],           [ATTN_Q_AT] = a[B_QS + i],
                [ATTN_K_AT] = a[B_KS + j], [ATTN_RNG] = a[B_RNG]};
            Value **last = in + r->op->nin - 3;
            if (r->first) in[ATTN_FIRST] = a[B_FIRST + i];
            last[0] = a[B_O + i], last[1] = a[B_LSE + i], last[2] = a[B_DO + i];
            Op *g = chunk_op(r, b, in);
            Value *part[3];
            for (int t = 0; t < 3; t++) part[t] = term(b, g->out[t]);
            a[B_DQ + i] = build1(b, OP_add, NULL, a[B_DQ + i], part[0], NULL);
            dk[j] = dk[j] ? build1(b, OP_add, NULL, dk[j], part[1], NULL) : part[1];
            dv[j] = dv[j] ? build1(b, OP_add, NULL, dv[j], part[2], NULL) : part[2];
        }
    }
    Value *more_k = put_together(b, dk, a[B_DK]->ty),
          *more_v = put_together(b, dv, a[B_DV]->ty);
    a[B_DK] = build1(b, OP_add, NULL, a[B_DK], more_k, NULL);
    a[B_DV] = build1(b, OP_add, NULL, a[B_DV], more_v, NULL);
}

/* Our own block, then n - 1 steps: a shift of the first `travel` values and the block of
 * what came. Returns the carried values. */
static Value **go_round(const Ring *r, const char *name, Value **in, int all, int carry,
                        int travel, void (*body)(const Ring *, Builder *, Value **)) {
    Builder b = r->l->b;
    Arena *mem = r->m->mem;
    Value *a[MOST];
    char *attrs = bfmt(&b, "axis=\"%s\"", r->axis);
    Func *block = function(r, arena_printf(mem, "%s.block", name), all, in, a);
    Builder at = build_at_end(block);
    at.line = b.line;
    body(r, &at, a);
    for (int i = 0; i < carry; i++) func_ret(block, a[i], -1);
    Func *step = function(r, arena_printf(mem, "%s.step", name), all, in, a);
    at = build_at_end(step);
    at.line = b.line;
    Op *came = build_list(&at, OP_ring_shift, attrs, travel, a, NULL, 0);
    for (int i = 0; i < travel; i++) a[i] = came->out[i];
    Op *run = build_call(&at, block, all, a);
    for (int i = 0; i < carry; i++) func_ret(step, run->out[i], -1);
    run = build_call(&b, block, all, in);
    for (int i = 0; i < all; i++) a[i] = i < carry ? run->out[i] : in[i];
    const Call rounds = {.f = step, .loop = true, .carry = carry, .times = r->n - 1};
    return build_runs(&b, &rounds, all, a)->out;
}

static void replace(Builder *b, Op *op, int i, Value *v) {
    v = build_cast(b, v, op->out[i]->ty.dt);
    v->name = op->out[i]->name;
    func_replace(op->fn, op->out[i], v);
}

static void forward(const Ring *r) {
    Op *op = r->l->op;
    Builder *b = &r->l->b;
    Value *a[MOST] = {
        [F_K] = op->in[ATTN_K], [F_V] = op->in[ATTN_V], [F_RNG] = op->in[ATTN_RNG]};
    chunk_starts(r, b, op->in[ATTN_Q_AT], &a[F_QS]);
    chunk_starts(r, b, op->in[ATTN_K_AT], &a[F_KS]);
    for (int i = 0; i < CHUNKS; i++) {
        a[F_O + i] = fill(b, 0, sum_type(r->o));
        a[F_LSE + i] = fill(b, (double)NO_KEYS, r->lse);
    }
    take_apart(b, op->in[ATTN_Q], &a[F_Q]);
    if (r->first) take_apart(b, op->in[ATTN_FIRST], &a[F_FIRST]);
    Value **out =
        go_round(r, "ring", a, F_ALL + r->first, F_CARRY, F_KS + CHUNKS, block_body);
    replace(b, op, 0, put_together(b, &out[F_O], sum_type(op->out[0]->ty)));
    replace(b, op, 1, put_together(b, &out[F_LSE], op->out[1]->ty));
}

static void backward(const Ring *r) {
    Op *op = r->l->op;
    Builder *b = &r->l->b;
    Value **last = op->in + op->nin - 3; /* o, lse, do */
    Value *a[MOST] = {
        [B_K] = op->in[ATTN_K], [B_V] = op->in[ATTN_V], [B_RNG] = op->in[ATTN_RNG]};
    a[B_DK] = fill(b, 0, sum_type(op->in[ATTN_K]->ty));
    a[B_DV] = fill(b, 0, sum_type(op->in[ATTN_V]->ty));
    chunk_starts(r, b, op->in[ATTN_Q_AT], &a[B_QS]);
    chunk_starts(r, b, op->in[ATTN_K_AT], &a[B_KS]);
    for (int i = 0; i < CHUNKS; i++) a[B_DQ + i] = fill(b, 0, sum_type(r->q));
    take_apart(b, op->in[ATTN_Q], &a[B_Q]);
    take_apart(b, last[0], &a[B_O]);
    take_apart(b, last[1], &a[B_LSE]);
    take_apart(b, last[2], &a[B_DO]);
    if (r->first) take_apart(b, op->in[ATTN_FIRST], &a[B_FIRST]);
    Value **out = go_round(r, "ring_grad", a, B_ALL + r->first, B_CARRY, B_KS + CHUNKS,
                           block_grad_body);
    char *attrs = bfmt(b, "axis=\"%s\"", r->axis);
    Op *home = build_list(b, OP_ring_shift, attrs, 2, &out[B_DK], NULL, 0);
    replace(b, op, 0, put_together(b, &out[B_DQ], sum_type(op->out[0]->ty)));
    replace(b, op, 1, home->out[0]);
    replace(b, op, 2, home->out[1]);
}

static void local_ring(Local *l, Axes axes, const Type *whole) {
    Op *op = l->op;
    const Mesh *mesh = &op->fn->mod->mesh;
    Arena *mem = op->fn->mod->mem;
    Ring r = {.l = l,
              .m = op->fn->mod,
              .op = op,
              .axis = mesh_axes_text(mem, mesh, axes),
              .n = mesh_group_size(mesh, axes),
              .rows = op->in[0]->ty.dim[1] / CHUNKS,
              .first = attention_is_within(op) ? CHUNKS : 0};
    if (r.n != op_int(op, "zigzag", 0)) {
        fail(EXIT_CONFIG,
             "attention in zigzag order over %lld ranks is split over %lld (%s)",
             (long long)op_int(op, "zigzag", 0), (long long)r.n, r.axis);
    }
    r.attrs = bfmt(&l->b, "scale=%.17g; causal=%d", op_float(op, "scale", 1),
                   (int)op_int(op, "causal", 0));
    double p = op_float(op, "p", 0);
    int64_t window = op_int(op, "window", 0);
    if (p > 0)
        r.attrs = bfmt(&l->b, "%s; p=%.17g; site=%lld", r.attrs, p,
                       (long long)op_int(op, "site", 0));
    if (window) r.attrs = bfmt(&l->b, "%s; window=%lld", r.attrs, (long long)window);
    if (p > 0 || window)
        r.attrs = bfmt(&l->b, "%s; of=\"%s\"", r.attrs, type_text(mem, mesh, whole));
    r.q = r.o = chunk_type(&op->in[0]->ty);
    r.lse = r.q;
    r.lse.rank = 3;
    r.lse.dt = dtype_sum(r.q.dt);
    if (attention_is_grad(op))
        backward(&r);
    else
        forward(&r);
    op_remove(op);
}

/* In zigzag order keys are split where queries are. */
bool dims_attention(const Op *op, Dims *d) {
    int q = d->term[0][1], k = d->term[1][1];
    if (op_int(op, "zigzag", 0) <= 1) return true;
    d->tied[q] = (int8_t)k;
    d->whole[k] = false;
    d->most[q] = op_int(op, "zigzag", 0);
    return true;
}

/* Queries of this rank's part begin later; probabilities are dropped by their position in
 * the whole. */
void local_attention(Local *l) {
    const Dims *d = l->d;
    Builder *b = &l->b;
    const Mesh *m = &l->op->fn->mod->mesh;
    int batch = d->term[0][0], q = d->term[0][1], heads = d->term[0][2],
        k = d->term[1][1];
    Type whole = TYPE(DT_F32, d->size[batch], d->size[heads], d->size[q], d->size[k]);
    whole.split[0] = l->split[batch];
    whole.split[1] = l->split[heads];
    if (l->split[q] && op_int(l->op, "zigzag", 0) > 1) {
        local_ring(l, l->split[q], &whole);
        return;
    }
    double p = op_float(l->op, "p", 0);
    if (l->split[q] && (op_int(l->op, "causal", 0) || p > 0)) {
        char *attrs =
            bfmt(b, "axis=\"%s\"; by=%lld", mesh_axes_text(b->mem, m, l->split[q]),
                 (long long)-(d->size[q] / mesh_group_size(m, l->split[q])));
        Value *back = build1(b, OP_coord, attrs, NULL);
        Value **at = &l->op->in[ATTN_Q_AT];
        *at = build1(b, OP_index_from, NULL, *at, back, NULL);
    }
    /* that of a ring's chunk is there already */
    if (p <= 0 || op_attr(l->op, "of")) return;
    op_set_str(l->op, "of", type_text(b->mem, m, &whole));
}
