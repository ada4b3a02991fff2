/* attention_backward.c - of attention backward the scratch of a thread, and the softmax part:
 * delta, probabilities and the gradient of scores, from the scores and the gradient of
 * probabilities of a block. attention_grad.c has the rest. */
#include "codegen/attention_backward.h"
#include "codegen/attention_pack.h"
#include <float.h>
#include <math.h>

static int64_t take(int64_t *end, int64_t floats) {
    int64_t at = *end;
    *end = align_up(at + floats);
    return at;
}

/* narrow: with pairs of bf16. */
static BackwardScratch scratch_of(const AttnShape *s, int64_t bq, bool narrow) {
    BackwardScratch x = {0};
    int64_t bk = ATTN_BLOCK_KEYS, words = attn_words(s, narrow), *end = &x.floats;
    x.q = take(end, words * bq);
    x.out = take(end, words * bq);
    x.s = take(end, bk * bq);
    x.ds = take(end, bk * bq);
    x.delta = take(end, bq);
    x.lse = take(end, bq);
    if (!narrow && !attn_copies_pay(s, s->heads, ATTN_GRAD_COPIED_QUERIES)) return x;
    x.dq = take(end, bq * s->dim);
    x.dk = take(end, s->tk * s->dim);
    x.dv = take(end, s->tk * s->dim);
    x.k_rows = take(end, (narrow ? bk : s->tk) * words);
    x.v_rows = take(end, (narrow ? bk : s->tk) * words);
    x.q_rows = take(end, narrow ? 0 : bq * words);
    x.do_rows = take(end, narrow ? 0 : bq * words);
    if (!narrow) return x;
    x.k_pairs = take(end, bk / 2 * s->dim);
    x.q_pairs = take(end, bq / 2 * s->dim);
    x.do_pairs = take(end, bq / 2 * s->dim);
    x.p_rows = take(end, bk * bq / 2);
    x.ds_rows = take(end, bk * bq / 2);
    x.ds_pairs = take(end, bk / 2 * bq);
    x.k_tiles = take(end, divided_up(s->tk, bk) * attn_tiled_words(s, ATTN_BLOCK_KEYS));
    return x;
}

BackwardScratch attn_backward_scratch(const Attn *a) {
    return scratch_of(&a->s, a->bq, a->narrow);
}

int64_t attn_backward_floats(const AttnShape *s, int64_t bq) {
    int64_t floats = scratch_of(s, bq, false).floats;
    return s->dt == DT_BF16 ? MAX(floats, scratch_of(s, bq, true).floats) : floats;
}

void attn_delta_emit(const Attn *a) {
    Emit *e = a->e;
    int64_t dim = a->s.dim;
    attn_func(a, "delta", "pppppi");
    LLVMValueRef last = emit_subi(e, emit_param(e, 5), 1);
    LLVMValueRef zero = LLVMConstNull(e->vf32), none = emit_i64(e, 0);
    Loop l, c;
    loop_begin(e, &l, none, emit_i64(e, a->bq), 1, 0, NULL);
    LLVMValueRef row = emit_imax(e, emit_imin(e, l.i, last), none);
    LLVMValueRef at = emit_muli(e, row, a->q_row);
    LLVMValueRef d = attn_element(a, emit_param(e, 0), at);
    LLVMValueRef o = attn_element(a, emit_param(e, 1), at);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, dim), e->vl, 1, &zero);
    LLVMValueRef mask = emit_tail_mask(e, emit_sub(e, emit_i64(e, dim), c.i));
    if (dim % e->vl == 0) mask = NULL;
    LLVMValueRef dv = attn_load(a, attn_element(a, d, c.i), mask);
    LLVMValueRef ov = attn_load(a, attn_element(a, o, c.i), mask);
    LLVMValueRef sum = emit_fma(e, dv, ov, c.carry[0]);
    loop_end(e, &c, &sum);
    LLVMValueRef dot = emit_reduce_add(e, c.carry[0]);
    dot = emit_fmul(e, dot, emit_f32(e, a->s.scale));
    LLVMValueRef lse = emit_muli(e, row, a->s.heads);
    lse = emit_load(e, e->f32, attn_f32(a, emit_param(e, 2), lse), NULL, 4);
    lse = emit_fmul(e, lse, emit_f32(e, M_LOG2E));
    LLVMValueRef beyond = emit_icmp(e, LLVMIntSGT, l.i, last);
    lse = emit_select(e, beyond, emit_f32(e, FLT_MAX), lse);
    emit_store(e, dot, attn_f32(a, emit_param(e, 3), l.i), NULL, 4);
    emit_store(e, lse, attn_f32(a, emit_param(e, 4), l.i), NULL, 4);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* With dropout the value that multiplied V was P / (1 - dropout) or 0, and dP goes the same way; delta
 * already contains it through o. */
Soft attn_soft(const Attn *a, LLVMValueRef p_at, LLVMValueRef ds_at, LLVMValueRef lse,
               LLVMValueRef delta, LLVMValueRef keep) {
    Emit *e = a->e;
    LLVMValueRef s = emit_load(e, e->vf32, p_at, NULL, 4);
    LLVMValueRef dp = emit_load(e, e->vf32, ds_at, NULL, 4);
    LLVMValueRef p = attn_exp2(a, attn_times_less(a, s, lse)), used = p;
    if (keep) {
        LLVMValueRef zero = LLVMConstNull(e->vf32);
        LLVMValueRef up = emit_f32_like(e, zero, 1 / (1 - a->s.dropout));
        used = emit_select(e, keep, emit_fmul(e, p, up), zero);
        dp = emit_select(e, keep, emit_fmul(e, dp, up), zero);
    }
    LLVMValueRef more = emit_fsub(e, dp, delta);
    if (a->narrow)
        more = emit_fma(e, dp, emit_f32_like(e, dp, a->s.scale), emit_fneg(e, delta));
    return (Soft){used, emit_fmul(e, p, more)};
}

/* Four vectors of queries side by side, from lane `first` on, over the keys. */
typedef struct SoftColumns {
    const Attn *a;
    BackwardScratch x;
    int64_t first;
    int n;
    LLVMValueRef lse[4], delta[4];
} SoftColumns;

static Soft soft_at(const SoftColumns *c, LLVMValueRef key, int v) {
    const Attn *a = c->a;
    Emit *e = a->e;
    int64_t at = c->first + v * e->vl;
    LLVMValueRef index = emit_add(e, emit_param(e, 5), key);
    index = emit_addi(e, index, at * a->next_query);
    LLVMValueRef row = emit_muli(e, key, a->bq);
    LLVMValueRef s = attn_f32(a, emit_param(e, 0), row);
    LLVMValueRef ds = attn_f32(a, emit_param(e, 1), row);
    LLVMValueRef keep = a->s.dropout > 0 ? attn_keep(a, emit_param(e, 4), index) : NULL;
    return attn_soft(a, emit_at(e, e->f32, s, at), emit_at(e, e->f32, ds, at), c->lse[v],
                     c->delta[v], keep);
}

/* P and dS replace S and dP. */
static void soft_key(const SoftColumns *c, LLVMValueRef key) {
    const Attn *a = c->a;
    Emit *e = a->e;
    LLVMValueRef row = emit_muli(e, key, a->bq);
    for (int v = 0; v < c->n; v++) {
        Soft soft = soft_at(c, key, v);
        LLVMValueRef at = emit_addi(e, row, c->first + v * e->vl);
        emit_store(e, soft.p, attn_f32(a, emit_param(e, 0), at), NULL, 4);
        emit_store(e, soft.ds, attn_f32(a, emit_param(e, 1), at), NULL, 4);
    }
}

/* Rounded rows of P and dS of a pair of keys, and their dS in pairs; where the last key
 * has no other, that is 0. */
static void soft_key_pair(const SoftColumns *c, LLVMValueRef key) {
    const Attn *a = c->a;
    Emit *e = a->e;
    LLVMValueRef work = emit_param(e, 2), next = emit_addi(e, key, 1);
    LLVMValueRef there = emit_icmp(e, LLVMIntSLT, next, emit_param(e, 3));
    LLVMValueRef p_rows = emit_at(e, e->f32, work, c->x.p_rows);
    LLVMValueRef ds_rows = emit_at(e, e->f32, work, c->x.ds_rows);
    LLVMValueRef pairs = emit_at(e, e->f32, work, c->x.ds_pairs);
    LLVMValueRef row = emit_muli(e, key, a->bq);
    for (int v = 0; v < c->n; v++) {
        LLVMValueRef ds[2];
        int64_t lane = c->first + v * e->vl;
        for (int i = 0; i < 2; i++) {
            Soft soft = soft_at(c, i ? next : key, v);
            LLVMValueRef at = emit_addi(e, row, i * a->bq + lane);
            ds[i] = emit_to_bf16(e, soft.ds);
            emit_store_narrow(e, DT_BF16, soft.p, attn_element(a, p_rows, at), NULL);
            emit_store(e, ds[i], attn_element(a, ds_rows, at), NULL, 2);
        }
        ds[1] = emit_select(e, there, ds[1], LLVMConstNull(LLVMTypeOf(ds[1])));
        LLVMValueRef at = emit_divi(e, row, 2);
        LLVMValueRef to = attn_f32(a, pairs, emit_addi(e, at, lane));
        emit_store(e, emit_pair_up(e, ds[0], ds[1]), to, NULL, 4);
    }
}

void attn_soft_emit(const Attn *a) {
    Emit *e = a->e;
    SoftColumns c = {.a = a, .x = attn_backward_scratch(a)};
    attn_func(a, "soft", "pppipi");
    LLVMValueRef work = emit_param(e, 2);
    for (c.first = 0; c.first < a->bq; c.first += 4 * e->vl) {
        c.n = (int)MIN(4, (a->bq - c.first) / e->vl);
        for (int v = 0; v < c.n; v++) {
            int64_t at = c.first + v * e->vl;
            LLVMValueRef delta = emit_at(e, e->f32, work, c.x.delta + at);
            LLVMValueRef lse = emit_at(e, e->f32, work, c.x.lse + at);
            c.delta[v] = emit_load(e, e->vf32, delta, NULL, 4);
            c.lse[v] = emit_load(e, e->vf32, lse, NULL, 4);
        }
        Loop l;
        int step = a->narrow ? 2 : 1;
        loop_begin(e, &l, emit_i64(e, 0), emit_param(e, 3), step, 0, NULL);
        if (a->narrow)
            soft_key_pair(&c, l.i);
        else
            soft_key(&c, l.i);
        loop_end(e, &l, NULL);
    }
    emit_ret(e, NULL);
}
