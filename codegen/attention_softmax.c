/* attention_softmax.c - of attention forward what is done with the scores of a block
 * (attention_forward.h). */
#include "codegen/attention_forward.h"
#include "codegen/attention_weave.h"
#include "codegen/tile_ops.h"
#include "codegen/vmath.h"

/* With tile registers older sums are only made smaller where a score is larger by more than
 * this, as a power of two: until then sums go on in tiles. */
enum { LAZY_LOG2 = 8 };

LLVMValueRef attn_maximum(const Attn *a, LLVMValueRef old, LLVMValueRef score,
                          LLVMValueRef *any) {
    Emit *e = a->e;
    LLVMValueRef x = attn_times(a, score);
    if (!a->tiles) return emit_fmax(e, old, x);
    LLVMValueRef above = emit_fadd(e, old, emit_f32_like(e, old, LAZY_LOG2));
    LLVMValueRef larger = emit_fcmp(e, LLVMRealOGT, x, above);
    LLVMTypeRef bits = LLVMIntTypeInContext(e->ctx, (unsigned)e->vl);
    LLVMValueRef some = LLVMBuildBitCast(e->b, larger, bits, "");
    some = emit_icmp(e, LLVMIntNE, some, LLVMConstNull(bits));
    *any = *any ? LLVMBuildOr(e->b, *any, some, "") : some;
    return emit_select(e, larger, x, old);
}

bool attn_rounds_at_once(const Attn *a) {
    return a->narrow && a->s.dropout == 0;
}

/* Of a vector of queries from `lane` on the probability of a key, put in the place of its score,
 * with what it adds to the sum. */
static LLVMValueRef one_key(const Attn *a, LLVMValueRef key, LLVMValueRef lane,
                            LLVMValueRef top, LLVMValueRef sum) {
    Emit *e = a->e;
    LLVMValueRef at = emit_plus(e, lane, key, a->bq);
    LLVMValueRef to = attn_f32(a, emit_param(e, 0), at);
    LLVMValueRef x = emit_load(e, e->vf32, to, NULL, 4);
    LLVMValueRef p = attn_exp2(a, attn_times_less(a, x, top));
    emit_store(e, p, to, NULL, 4);
    return emit_fadd(e, sum, p);
}

static LLVMValueRef probability(const Attn *a, LLVMValueRef from, LLVMValueRef top) {
    LLVMValueRef x = emit_load(a->e, a->e->vf32, from, NULL, 4);
    return attn_exp2(a, attn_times_less(a, x, top));
}

void attn_store_pairs(const Attn *a, const LLVMValueRef *x, LLVMValueRef to) {
    Emit *e = a->e;
    LLVMValueRef part[2][BF16_PARTS];
    if (a->narrow) {
        emit_store(e, emit_to_pairs(e, x[0], x[1]), to, NULL, 4);
        return;
    }
    for (int i = 0; i < 2; i++) emit_split_bf16(e, x[i], part[i]);
    for (int q = 0; q < a->tile_parts; q++) {
        LLVMValueRef pairs = emit_pair_up_parts(e, part[0][q], part[1][q], false);
        emit_store(e, pairs, emit_at(e, e->f32, to, q * TILE_WORDS), NULL, 4);
    }
}

void attn_pair_of_keys(const Attn *a, LLVMValueRef from, LLVMValueRef to,
                       LLVMValueRef top, LLVMValueRef *sum, LLVMValueRef *keep) {
    Emit *e = a->e;
    LLVMValueRef p[2];
    for (int i = 0; i < 2; i++) {
        p[i] = probability(a, emit_at(e, e->f32, from, i * a->bq), top);
        sum[i] = emit_fadd(e, sum[i], p[i]);
        if (keep[i]) p[i] = emit_select(e, keep[i], p[i], LLVMConstNull(e->vf32));
    }
    attn_store_pairs(a, p, to);
}

/* The same of two keys, rounded, as pairs; `alone`: there is no second one, which makes it 0. */
static LLVMValueRef pair_of_keys(const Attn *a, LLVMValueRef key, LLVMValueRef lane,
                                 LLVMValueRef top, LLVMValueRef sum, bool alone) {
    Emit *e = a->e;
    LLVMValueRef from = attn_f32(a, emit_param(e, 0), emit_plus(e, lane, key, a->bq));
    LLVMValueRef at = emit_plus(e, lane, emit_divi(e, key, 2), a->bq);
    LLVMValueRef to = attn_f32(a, emit_param(e, 5), at), p[2] = {NULL};
    for (int i = 0; i < 2 - alone; i++) {
        p[i] = probability(a, emit_at(e, e->f32, from, i * a->bq), top);
        sum = emit_fadd(e, sum, p[i]);
    }
    if (alone) p[1] = LLVMConstNull(e->vf32);
    emit_store(e, emit_to_pairs(e, p[0], p[1]), to, NULL, 4);
    return sum;
}

/* Probabilities of n vectors of queries from lane `first` on, of keys [from, to); `sum`: what they
 * add up to. step: keys at a time, of those that are rounded. */
static void probabilities(const Attn *a, int64_t first, int n, LLVMValueRef from,
                          LLVMValueRef to, int step, const LLVMValueRef *top,
                          LLVMValueRef *sum) {
    Emit *e = a->e;
    Loop l;
    LLVMValueRef next[4];
    loop_begin(e, &l, from, to, step, n, sum);
    for (int v = 0; v < n; v++) {
        LLVMValueRef lane = emit_i64(e, first + v * e->vl);
        next[v] = attn_rounds_at_once(a)
                      ? pair_of_keys(a, l.i, lane, top[v], l.carry[v], step == 1)
                      : one_key(a, l.i, lane, top[v], l.carry[v]);
    }
    loop_end(e, &l, next);
    for (int v = 0; v < n; v++) sum[v] = l.carry[v];
}

/* name.softmax(s, keys, max, sum, decay, p), for up to four vectors of queries. */
static void softmax_columns(const Attn *a, int64_t first, int n) {
    Emit *e = a->e;
    LLVMValueRef old[4], sum[4], top[4] = {NULL}, next[4], row, at[4];
    LLVMValueRef zero = emit_i64(e, 0), keys = emit_param(e, 1);
    LLVMValueRef s = emit_at(e, e->f32, emit_param(e, 0), first);
    /* the largest score with its factor is the least without */
    const bool least = a->times < 0;
    LLVMValueRef any = NULL;
    for (int v = 0; v < n; v++) next[v] = attn_score_of_none(a);
    Loop l;
    loop_begin(e, &l, zero, keys, 1, n, next);
    row = attn_f32(a, s, emit_muli(e, l.i, a->bq));
    for (int v = 0; v < n; v++) {
        LLVMValueRef x =
            emit_load(e, e->vf32, emit_at(e, e->f32, row, v * e->vl), NULL, 4);
        next[v] = (least ? emit_fmin : emit_fmax)(e, x, l.carry[v]);
    }
    loop_end(e, &l, next);
    for (int v = 0; v < n; v++) {
        at[v] = emit_at(e, e->f32, emit_param(e, 2), first + v * e->vl);
        old[v] = emit_load(e, e->vf32, at[v], NULL, 4);
        top[v] = attn_maximum(a, old[v], l.carry[v], &any);
        emit_store(e, top[v], at[v], NULL, 4);
        LLVMValueRef decay = vmath_exp2_fast(e, emit_fsub(e, old[v], top[v]));
        at[v] = emit_at(e, e->f32, emit_param(e, 4), first + v * e->vl);
        emit_store(e, decay, at[v], NULL, 4);
        at[v] = emit_at(e, e->f32, emit_param(e, 3), first + v * e->vl);
        sum[v] = emit_fmul(e, emit_load(e, e->vf32, at[v], NULL, 4), decay);
    }
    LLVMValueRef pairs = zero;
    if (attn_rounds_at_once(a)) {
        pairs = emit_sub(e, keys, emit_remi(e, keys, 2));
        probabilities(a, first, n, zero, pairs, 2, top, sum);
    }
    probabilities(a, first, n, pairs, keys, 1, top, sum);
    if (any) {
        LLVMValueRef moved = emit_at(e, e->f32, emit_param(e, 4), a->bq);
        LLVMValueRef before = first ? emit_load(e, e->i32, moved, NULL, 4) : NULL;
        any = LLVMBuildZExt(e->b, any, e->i32, "");
        if (before) any = LLVMBuildOr(e->b, any, before, "");
        emit_store(e, any, moved, NULL, 4);
    }
    for (int v = 0; v < n; v++) emit_store(e, sum[v], at[v], NULL, 4);
}

void attn_softmax_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "softmax", "pipppp");
    for (int64_t j = 0; j < a->bq; j += 4 * e->vl) {
        softmax_columns(a, j, (int)MIN(4, (a->bq - j) / e->vl));
    }
    emit_ret(e, NULL);
}

void attn_drop_emit(const Attn *a) {
    Emit *e = a->e;
    Loop l;
    LLVMValueRef row = attn_rows_begin(a, "drop", "pipi", &l);
    Loop c;
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, a->bq), e->vl, 0, NULL);
    LLVMValueRef index = emit_add(e, emit_param(e, 3), l.i);
    index = emit_add(e, index, emit_muli(e, c.i, a->next_query));
    LLVMValueRef keep = attn_keep(a, emit_param(e, 2), index);
    LLVMValueRef drop = LLVMBuildNot(e->b, keep, "");
    emit_store(e, LLVMConstNull(e->vf32), attn_f32(a, row, c.i), drop, 4);
    loop_end(e, &c, NULL);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

void attn_narrow_emit(const Attn *a) {
    Emit *e = a->e;
    Loop l;
    attn_func(a, "narrow", "pip");
    loop_begin(e, &l, emit_i64(e, 0), emit_param(e, 1), 2, 0, NULL);
    LLVMValueRef at = emit_muli(e, l.i, a->bq);
    LLVMValueRef row = attn_f32(a, emit_param(e, 0), at);
    LLVMValueRef to = attn_f32(a, emit_param(e, 2), emit_divi(e, at, 2));
    LLVMValueRef next = emit_addi(e, l.i, 1);
    LLVMValueRef there = emit_icmp(e, LLVMIntSLT, next, emit_param(e, 1));
    for (int64_t v = 0; v < a->bq; v += e->vl) {
        LLVMValueRef p[2];
        for (int i = 0; i < 2; i++) {
            LLVMValueRef from = emit_at(e, e->f32, row, i * a->bq + v);
            p[i] = emit_load(e, e->vf32, from, NULL, 4);
        }
        p[1] = emit_select(e, there, p[1], LLVMConstNull(e->vf32));
        LLVMValueRef pairs = emit_to_pairs(e, p[0], p[1]);
        emit_store(e, pairs, emit_at(e, e->f32, to, v), NULL, 4);
    }
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}
