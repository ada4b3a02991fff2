/* attention_grad.c - attention backward; see attention.h. For each block of queries, Q
 * and dO are packed like in the forward part; for each block of keys, with lanes of
 * queries:  P = exp2(K Q - lse),  dP = V dO,  dS = P (dP - delta),  delta = dO o, and
 * then dV += P dO,  dK += dS Q,  dQ += dS^T K,  whose operands are used as they are in
 * memory. The factor `scale` enters through the packed dO and delta, log2(e) through the
 * packed Q. */
#include "codegen/attention.h"
#include "codegen/attention_parts.h"
#include "codegen/vmath.h"
#include <math.h>

enum {
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_O,
    SLOT_LSE,
    SLOT_DO,
    SLOT_Q_AT,
    SLOT_K_AT,
    SLOT_RNG,
    SLOT_DQ,
    SLOT_DK,
    SLOT_DV,
    SLOT_WORK,
    SLOT_FIRST, /* only with `within` */
    SLOTS
};

/* A thread's scratch, in floats from its start. */
typedef struct Scratch {
    int64_t q, out, s, ds, delta, lse, floats;
} Scratch;

static Scratch scratch_of(const Attn *a) {
    Scratch x = {0};
    x.out = x.q + a->s.dim * a->bq;
    x.s = x.out + a->s.dim * a->bq;
    x.ds = x.s + a->bk * a->bq;
    x.delta = x.ds + a->bk * a->bq;
    x.lse = x.delta + a->bq;
    x.floats = align_up(x.lse + a->bq);
    return x;
}

/* name.PART(ptr, rows): clears `rows` rows of dim values, `stride` apart. */
static void clear_emit(const Attn *a, const char *part, int64_t stride) {
    Emit *e = a->e;
    int64_t dim = a->s.dim;
    attn_func(a, part, "pi");
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_param(e, 1), 1, 0, NULL);
    LLVMValueRef at = emit_mul(e, l.i, emit_i64(e, stride));
    LLVMValueRef row = attn_f32(a, emit_param(e, 0), at);
    Loop c;
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, dim), e->vl, 0, NULL);
    LLVMValueRef mask = emit_tail_mask(e, emit_sub(e, emit_i64(e, dim), c.i));
    if (dim % e->vl == 0) mask = NULL;
    emit_store(e, LLVMConstNull(e->vf32), attn_f32(a, row, c.i), mask, 4);
    loop_end(e, &c, NULL);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* name.delta(do, o, lse, work, rows): per query scale * dO o, and lse * log2(e). */
static void delta_emit(const Attn *a) {
    Emit *e = a->e;
    Scratch x = scratch_of(a);
    int64_t dim = a->s.dim;
    attn_func(a, "delta", "ppppi");
    LLVMValueRef last = emit_sub(e, emit_param(e, 4), emit_i64(e, 1));
    LLVMValueRef work = emit_param(e, 3), zero = LLVMConstNull(e->vf32);
    Loop l, c;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, a->bq), 1, 0, NULL);
    LLVMValueRef row = emit_imin(e, l.i, last);
    LLVMValueRef at = emit_mul(e, row, emit_i64(e, a->q_row));
    LLVMValueRef d = attn_f32(a, emit_param(e, 0), at);
    LLVMValueRef o = attn_f32(a, emit_param(e, 1), at);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, dim), e->vl, 1, &zero);
    LLVMValueRef mask = emit_tail_mask(e, emit_sub(e, emit_i64(e, dim), c.i));
    if (dim % e->vl == 0) mask = NULL;
    LLVMValueRef dv = emit_load(e, e->vf32, attn_f32(a, d, c.i), mask, 4);
    LLVMValueRef ov = emit_load(e, e->vf32, attn_f32(a, o, c.i), mask, 4);
    LLVMValueRef sum = emit_fma(e, dv, ov, c.carry[0]);
    loop_end(e, &c, &sum);
    LLVMValueRef dot = emit_reduce_add(e, c.carry[0]);
    dot = emit_fmul(e, dot, emit_f32(e, a->s.scale));
    LLVMValueRef lse = emit_mul(e, row, emit_i64(e, a->s.heads));
    lse = emit_load(e, e->f32, attn_f32(a, emit_param(e, 2), lse), NULL, 4);
    lse = emit_fmul(e, lse, emit_f32(e, M_LOG2E));
    emit_store(e, dot, attn_f32(a, emit_at(e, e->f32, work, x.delta), l.i), NULL, 4);
    emit_store(e, lse, attn_f32(a, emit_at(e, e->f32, work, x.lse), l.i), NULL, 4);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* P and dS for one vector of queries at one key, from S at `p_at` and dP at `ds_at`. With
 * dropout the value that multiplied V was P / (1 - dropout) or 0, and dP goes the same
 * way; delta already contains it through o. */
static void soft_vector(const Attn *a, LLVMValueRef p_at, LLVMValueRef ds_at,
                        LLVMValueRef lse, LLVMValueRef delta, LLVMValueRef index) {
    Emit *e = a->e;
    LLVMValueRef s = emit_load(e, e->vf32, p_at, NULL, 4);
    LLVMValueRef dp = emit_load(e, e->vf32, ds_at, NULL, 4);
    LLVMValueRef p = vmath_exp2_fast(e, emit_fsub(e, s, lse)), used = p;
    if (a->s.dropout > 0) {
        LLVMValueRef keep = attn_keep(a, emit_param(e, 4), index);
        LLVMValueRef zero = LLVMConstNull(e->vf32);
        LLVMValueRef up = emit_f32_like(e, zero, 1 / (1 - a->s.dropout));
        used = emit_select(e, keep, emit_fmul(e, p, up), zero);
        dp = emit_select(e, keep, emit_fmul(e, dp, up), zero);
    }
    emit_store(e, used, p_at, NULL, 4);
    emit_store(e, emit_fmul(e, p, emit_fsub(e, dp, delta)), ds_at, NULL, 4);
}

/* name.soft(s, ds, work, keys, rng, index): turns S and dP into P and dS in place, four
 * vectors of queries side by side. */
static void soft_emit(const Attn *a) {
    Emit *e = a->e;
    Scratch x = scratch_of(a);
    attn_func(a, "soft", "pppipi");
    LLVMValueRef work = emit_param(e, 2);
    for (int64_t j = 0; j < a->bq; j += 4 * e->vl) {
        int n = (int)MIN(4, (a->bq - j) / e->vl);
        LLVMValueRef lse[4], delta[4];
        for (int v = 0; v < n; v++) {
            int64_t at = j + v * e->vl;
            delta[v] =
                emit_load(e, e->vf32, emit_at(e, e->f32, work, x.delta + at), NULL, 4);
            lse[v] = emit_load(e, e->vf32, emit_at(e, e->f32, work, x.lse + at), NULL, 4);
        }
        Loop l;
        loop_begin(e, &l, emit_i64(e, 0), emit_param(e, 3), 1, 0, NULL);
        LLVMValueRef row = emit_mul(e, l.i, emit_i64(e, a->bq));
        LLVMValueRef s = attn_f32(a, emit_param(e, 0), row);
        LLVMValueRef ds = attn_f32(a, emit_param(e, 1), row);
        for (int v = 0; v < n; v++) {
            int64_t at = j + v * e->vl;
            LLVMValueRef index = emit_add(e, emit_param(e, 5), l.i);
            index = emit_add(e, index, emit_i64(e, at * a->next_query));
            soft_vector(a, emit_at(e, e->f32, s, at), emit_at(e, e->f32, ds, at), lse[v],
                        delta[v], index);
        }
        loop_end(e, &l, NULL);
    }
    emit_ret(e, NULL);
}

/* name.keys(x, rows, y, keys, queries): y[keys][dim] += X[keys][queries] rows, for dV and
 * dK; name.sums(ds, k, dq, queries, keys): dq[queries][dim] += dS^T k. */
static void products_emit(const Attn *a) {
    Emit *e = a->e;
    GemmStrides keys = {a->bq, 1, a->q_row, a->kv_row};
    GemmStrides sums = {1, a->bq, a->kv_row, a->q_row};
    for (int i = 0; i < 2; i++) {
        attn_func(a, i ? "sums" : "keys", "pppii");
        gemm_emit(e, i ? &sums : &keys, GEMM_ADD, emit_param(e, 0), emit_param(e, 1),
                  emit_param(e, 2), NULL, emit_param(e, 3), emit_i64(e, a->s.dim),
                  emit_param(e, 4));
        emit_ret(e, NULL);
    }
}

/* The pointers that the block of queries works on. */
typedef struct Block {
    LLVMValueRef q, do_, dq, k, v, dk, dv, rng, index, ahead, rows;
    AttnQueries queries;
} Block;

/* One block of keys from j0 on, `keys` of them, against the block of queries. */
static void pair_emit(const Attn *a, const Block *b, LLVMValueRef work, LLVMValueRef j0,
                      LLVMValueRef keys) {
    Emit *e = a->e;
    Scratch x = scratch_of(a);
    LLVMValueRef s = emit_at(e, e->f32, work, x.s), ds = emit_at(e, e->f32, work, x.ds);
    LLVMValueRef at = emit_mul(e, j0, emit_i64(e, a->kv_row));
    LLVMValueRef k = attn_f32(a, b->k, at), v = attn_f32(a, b->v, at);
    LLVMValueRef dk = attn_f32(a, b->dk, at), dv = attn_f32(a, b->dv, at);
    attn_block_scores(a, k, emit_at(e, e->f32, work, x.q), s, keys,
                      emit_add(e, b->ahead, j0), j0, &b->queries);
    LLVMValueRef dp[] = {v, emit_at(e, e->f32, work, x.out), ds, keys};
    attn_call(a, "scores", dp, 4);
    LLVMValueRef soft[] = {s, ds, work, keys, b->rng, emit_add(e, b->index, j0)};
    attn_call(a, "soft", soft, 6);
    attn_call(a, "keys", (LLVMValueRef[]){s, b->do_, dv, keys, b->rows}, 5);
    attn_call(a, "keys", (LLVMValueRef[]){ds, b->q, dk, keys, b->rows}, 5);
    attn_call(a, "sums", (LLVMValueRef[]){ds, k, b->dq, b->rows, keys}, 5);
}

/* Queries stand at element `at` of their tensors, keys at `kv`. */
static void set_tensors(const Attn *a, Block *b, LLVMValueRef ctx, LLVMValueRef at,
                        LLVMValueRef kv) {
    b->q = attn_f32(a, attn_slot(a, ctx, SLOT_Q), at);
    b->do_ = attn_f32(a, attn_slot(a, ctx, SLOT_DO), at);
    b->dq = attn_f32(a, attn_slot(a, ctx, SLOT_DQ), at);
    b->k = attn_f32(a, attn_slot(a, ctx, SLOT_K), kv);
    b->v = attn_f32(a, attn_slot(a, ctx, SLOT_V), kv);
    b->dk = attn_f32(a, attn_slot(a, ctx, SLOT_DK), kv);
    b->dv = attn_f32(a, attn_slot(a, ctx, SLOT_DV), kv);
}

/* name.queries(ctx, work, b, h, block, kv): one block of queries of head h; kv is
 * where this head's keys start in k, v, dk, dv. */
static void queries_emit(const Attn *a) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    Scratch x = scratch_of(a);
    attn_func(a, "queries", "ppiiii");
    LLVMValueRef ctx = emit_param(e, 0), work = emit_param(e, 1);
    LLVMValueRef batch = emit_param(e, 2), h = emit_param(e, 3), kv = emit_param(e, 5);
    AttnOrigin origin = attn_origin(a, ctx, SLOT_Q_AT, SLOT_K_AT);
    LLVMValueRef heads = emit_i64(e, s->heads), tq = emit_i64(e, s->tq);
    LLVMValueRef i0 = emit_mul(e, emit_param(e, 4), emit_i64(e, a->bq));
    LLVMValueRef rows = emit_imin(e, emit_sub(e, tq, i0), emit_i64(e, a->bq));
    LLVMValueRef row = emit_add(e, emit_mul(e, batch, tq), i0);
    row = emit_add(e, emit_mul(e, row, heads), h);
    LLVMValueRef at = emit_mul(e, row, emit_i64(e, s->dim));
    Block b = {.rows = rows, .rng = attn_slot(a, ctx, SLOT_RNG)};
    b.queries = attn_queries(a, ctx, SLOT_FIRST, &origin, batch, i0, rows);
    b.index =
        s->dropout > 0 ? attn_number(a, b.rng, &origin, batch, h, i0) : emit_i64(e, 0);
    b.ahead = attn_ahead(a, &origin, i0);
    set_tensors(a, &b, ctx, at, kv);
    LLVMValueRef o = attn_f32(a, attn_slot(a, ctx, SLOT_O), at);
    LLVMValueRef lse = attn_f32(a, attn_slot(a, ctx, SLOT_LSE), row);
    attn_call(a, "delta", (LLVMValueRef[]){b.do_, o, lse, work, rows}, 5);
    LLVMValueRef pack_q[] = {b.q, emit_at(e, e->f32, work, x.q), rows,
                             emit_f32(e, s->scale * M_LOG2E)};
    LLVMValueRef pack_do[] = {b.do_, emit_at(e, e->f32, work, x.out), rows,
                              emit_f32(e, s->scale)};
    attn_call(a, "pack", pack_q, 4);
    attn_call(a, "pack", pack_do, 4);
    attn_call(a, "clear_q", (LLVMValueRef[]){b.dq, rows}, 2);
    LLVMValueRef all = attn_keys(a, &origin, i0, rows);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), all, a->bk, 0, NULL);
    LLVMValueRef keys = emit_imin(e, emit_sub(e, all, l.i), emit_i64(e, a->bk));
    pair_emit(a, &b, work, l.i, keys);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* An item is one kv head of one sequence, with all query heads that use it. */
static void body_emit(const Attn *a) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    LLVMValueRef zero = emit_i64(e, 0), group = emit_i64(e, s->heads / s->kv_heads);
    attn_func(a, "body", "piii");
    LLVMValueRef ctx = emit_param(e, 0);
    LLVMValueRef at = emit_mul(e, emit_param(e, 3), emit_i64(e, scratch_of(a).floats));
    LLVMValueRef work = attn_f32(a, attn_slot(a, ctx, SLOT_WORK), at);
    Loop l, g, i;
    loop_begin(e, &l, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef b = emit_div(e, l.i, emit_i64(e, s->kv_heads));
    LLVMValueRef kv_head = emit_rem(e, l.i, emit_i64(e, s->kv_heads));
    LLVMValueRef kv = emit_mul(e, b, emit_i64(e, s->tk * s->kv_heads));
    kv = emit_mul(e, emit_add(e, kv, kv_head), emit_i64(e, s->dim));
    LLVMValueRef tk = emit_i64(e, s->tk);
    LLVMValueRef dk = attn_f32(a, attn_slot(a, ctx, SLOT_DK), kv);
    LLVMValueRef dv = attn_f32(a, attn_slot(a, ctx, SLOT_DV), kv);
    attn_call(a, "clear_kv", (LLVMValueRef[]){dk, tk}, 2);
    attn_call(a, "clear_kv", (LLVMValueRef[]){dv, tk}, 2);
    loop_begin(e, &g, zero, group, 1, 0, NULL);
    LLVMValueRef h = emit_add(e, emit_mul(e, kv_head, group), g.i);
    loop_begin(e, &i, zero, emit_i64(e, a->q_blocks), 1, 0, NULL);
    attn_call(a, "queries", (LLVMValueRef[]){ctx, work, b, h, i.i, kv}, 6);
    loop_end(e, &i, NULL);
    loop_end(e, &g, NULL);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

LLVMValueRef attention_grad_emit(Emit *e, const char *name, const AttnShape *s) {
    Attn a = attn_of(e, name, s);
    attn_pack_emit(&a);
    attn_scores_emit(&a);
    if (s->causal) attn_mask_emit(&a);
    if (s->within) attn_within_emit(&a);
    clear_emit(&a, "clear_q", a.q_row);
    clear_emit(&a, "clear_kv", a.kv_row);
    delta_emit(&a);
    soft_emit(&a);
    products_emit(&a);
    queries_emit(&a);
    body_emit(&a);
    return attn_entry(&a, s->within ? SLOTS : SLOT_FIRST, s->batch * s->kv_heads);
}
