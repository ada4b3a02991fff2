/* attention_join.c - attention of one query a sequence: what the parts of its keys leave becomes a
 * result. */
#include "codegen/attention_token.h"
#include "codegen/vmath.h"
#include <float.h>
#include <math.h>

static int64_t numbers_of(const AttnShape *s, int vl) {
    return vl * (s->dt == DT_BF16 ? 2 : 1);
}

TokenState attn_token_state(const AttnShape *s, int vl) {
    int64_t group = s->heads / s->kv_heads;
    TokenState x = {.row = round_up(s->dim, numbers_of(s, vl))};
    x.stats = group * x.row;
    x.scores = round_up(x.stats + group * STATS, 16);
    x.floats = x.scores + group * ATTN_BLOCK_KEYS;
    return x;
}

int64_t attn_token_numbers(const Attn *a) {
    return numbers_of(&a->s, a->e->vl);
}

LLVMValueRef attn_token_mask(const Attn *a) {
    Emit *e = a->e;
    LLVMValueRef left = emit_i64(e, a->s.dim % attn_token_numbers(a));
    if (a->s.dim % attn_token_numbers(a) == 0) return NULL;
    return a->narrow ? emit_halves_mask(e, left) : emit_tail_mask(e, left);
}

LLVMValueRef attn_token_work(const Attn *a, const TokenState *x, LLVMValueRef ctx,
                             LLVMValueRef item) {
    LLVMValueRef at = emit_muli(a->e, item, x->floats);
    return attn_f32(a, emit_slot(a->e, ctx, FORWARD_WORK), at);
}

/* What part p has of what the first part of a head has at `of`. */
static LLVMValueRef in_part(const Attn *a, const TokenState *x, LLVMValueRef of,
                            LLVMValueRef p) {
    LLVMValueRef step = emit_i64(a->e, a->s.kv_heads * x->floats);
    return attn_f32(a, of, emit_mul(a->e, p, step));
}

static LLVMValueRef stat_at(const Attn *a, const TokenState *x, LLVMValueRef stats,
                            LLVMValueRef p, int stat) {
    return emit_at(a->e, a->e->f32, in_part(a, x, stats, p), stat);
}

/* The sum over the parts, each with its weight, and the lse. */
static LLVMValueRef join_stats(const Attn *a, const TokenState *x, LLVMValueRef stats,
                               LLVMValueRef lse_at) {
    Emit *e = a->e;
    LLVMValueRef zero = emit_i64(e, 0), n = emit_i64(e, a->parts), none = emit_f32(e, 0);
    LLVMValueRef top = emit_f32(e, -FLT_MAX), sum = none;
    Loop l;
    loop_begin(e, &l, zero, n, 1, 1, &top);
    top = emit_load(e, e->f32, stat_at(a, x, stats, l.i, STAT_MAX), NULL, 4);
    top = emit_fmax(e, l.carry[0], top);
    loop_end(e, &l, &top);
    top = l.carry[0];
    loop_begin(e, &l, zero, n, 1, 1, &sum);
    LLVMValueRef max = emit_load(e, e->f32, stat_at(a, x, stats, l.i, STAT_MAX), NULL, 4);
    LLVMValueRef weight = vmath_exp2_fast(e, emit_fsub(e, max, top));
    emit_store(e, weight, stat_at(a, x, stats, l.i, STAT_WEIGHT), NULL, 4);
    sum = emit_load(e, e->f32, stat_at(a, x, stats, l.i, STAT_SUM), NULL, 4);
    sum = emit_fma(e, sum, weight, l.carry[0]);
    loop_end(e, &l, &sum);
    sum = l.carry[0];
    LLVMValueRef empty = emit_fcmp(e, LLVMRealOEQ, sum, none);
    LLVMValueRef lse = emit_fma(e, top, emit_f32(e, M_LN2), vmath_log(e, sum));
    lse = emit_select(e, empty, emit_f32(e, NO_KEYS), lse);
    emit_store(e, lse, lse_at, NULL, 4);
    LLVMValueRef factor = emit_fdiv(e, emit_f32(e, 1), sum);
    return emit_select(e, empty, none, factor);
}

/* A vector of the sums of values at `sums`, over the parts. */
static LLVMValueRef join_sums(const Attn *a, const TokenState *x, LLVMValueRef stats,
                              LLVMValueRef sums, int64_t at) {
    Emit *e = a->e;
    LLVMValueRef sum = LLVMConstNull(e->vf32);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, a->parts), 1, 1, &sum);
    LLVMValueRef w = stat_at(a, x, stats, l.i, STAT_WEIGHT);
    w = emit_splat(e, emit_load(e, e->f32, w, NULL, 4));
    sum = emit_at(e, e->f32, in_part(a, x, sums, l.i), at);
    sum = emit_load(e, e->vf32, sum, NULL, 4);
    sum = emit_fma(e, sum, w, l.carry[0]);
    loop_end(e, &l, &sum);
    return l.carry[0];
}

/* name.join(ctx, row): o and lse of head `row` of all sequences, from its parts. */
static void join_emit(const Attn *a, const TokenState *x) {
    Emit *e = a->e;
    int64_t group = a->s.heads / a->s.kv_heads, dim = a->s.dim;
    attn_func(a, "join", "pi");
    LLVMValueRef ctx = emit_param(e, 0), row = emit_param(e, 1),
                 size = emit_i64(e, group);
    LLVMValueRef pair = emit_div(e, row, size), head = emit_rem(e, row, size);
    LLVMValueRef heads = emit_i64(e, a->s.kv_heads);
    LLVMValueRef first = emit_muli(e, emit_div(e, pair, heads), a->parts);
    first = emit_add(e, emit_mul(e, first, heads), emit_rem(e, pair, heads));
    LLVMValueRef state = attn_token_work(a, x, ctx, first);
    LLVMValueRef stats = emit_muli(e, head, STATS);
    stats = attn_f32(a, emit_at(e, e->f32, state, x->stats), stats);
    LLVMValueRef sums = attn_f32(a, state, emit_muli(e, head, x->row));
    LLVMValueRef lse = attn_f32(a, emit_slot(a->e, ctx, FORWARD_LSE), row);
    LLVMValueRef factor = emit_splat(e, join_stats(a, x, stats, lse));
    LLVMValueRef o = emit_muli(e, row, dim);
    o = attn_tensor(a, ctx, FORWARD_O, o);
    for (int64_t c = 0; c < dim; c += attn_token_numbers(a)) {
        LLVMValueRef to = attn_element(a, o, emit_i64(e, c));
        LLVMValueRef mask = dim - c < attn_token_numbers(a) ? attn_token_mask(a) : NULL;
        LLVMValueRef y = emit_fmul(e, join_sums(a, x, stats, sums, c), factor);
        if (!a->narrow) {
            attn_store(a, y, to, mask);
            continue;
        }
        LLVMValueRef odd = join_sums(a, x, stats, sums, c + e->vl);
        y = emit_to_pairs(e, y, emit_fmul(e, odd, factor));
        y = LLVMBuildBitCast(e->b, y, emit_vec(e->i16, 2 * e->vl), "");
        emit_store(e, y, to, mask, 2);
    }
    emit_ret(e, NULL);
}

void attn_join_emit(const Attn *a, const TokenState *x) {
    Emit *e = a->e;
    Loop l;
    join_emit(a, x);
    attn_func(a, "join_rows", "pii");
    loop_begin(e, &l, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    ATTN_CALL(a, "join", emit_param(e, 0), l.i);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
    attn_func(a, "join_body", "piii");
    ATTN_CALL(a, "join_rows", emit_param(e, 0), emit_param(e, 1), emit_param(e, 2));
    emit_ret(e, NULL);
}
