/* attention_parts.c - see attention_parts.h. */
#include "codegen/attention_parts.h"
#include "codegen/rt_call.h"
#include "codegen/tile_ops.h"
#include "codegen/vmath.h"
#include <float.h>
#include <math.h>

/* Multiply-adds below which starting the threads costs more than they gain. */
enum { BLOCK_QUERIES = 64, SMALL_ATTENTION = 1 << 18 };

int64_t attn_block_queries(const AttnShape *s, int vl) {
    int64_t lanes = round_up(MIN(s->tq, BLOCK_QUERIES), vl);
    return MIN(lanes, (int64_t)MAX(BLOCK_QUERIES, vl));
}

int64_t attn_words(const AttnShape *s, bool narrow) {
    return narrow ? (s->dim + 1) / 2 : s->dim;
}

bool attn_copies_pay(const AttnShape *s, int64_t heads, int64_t queries) {
    return dtype_is_narrow(s->dt) || (heads > 1 && s->tq >= queries);
}

int64_t attn_tiled_dim(const AttnShape *s) {
    return round_up(s->dim, 2 * TILE_SIDE);
}

int attn_tile_parts(const AttnShape *s) {
    return s->dt == DT_BF16 ? 1 : BF16_PARTS;
}

const char *attention_too_large(const AttnShape *s) {
    const int64_t most = 1 << 24;
    int64_t total = 64, sizes[] = {s->batch, s->heads, MAX(s->tq, s->tk), s->dim};
    bool fits = true;
    for (int i = 0; i < ARRAY_LEN(sizes); i++)
        fits &= sizes[i] <= most && !__builtin_mul_overflow(total, sizes[i], &total);
    if (s->dim > 4096) return "a head has at most 4096 numbers: give it more heads";
    return fits ? NULL
                : "its batch, queries, keys and heads are at most 16777216 each, and "
                  "their product with the width of a head at most 2^57: give it fewer";
}

static void check_shape(const AttnShape *s) {
    check(s->dt == DT_F32 || dtype_is_narrow(s->dt));
    check(s->batch >= 1 && s->tq >= 1 && s->tk >= 1 && s->heads >= 1);
    check(s->kv_heads >= 1 && s->heads % s->kv_heads == 0 && s->dim >= 1);
    check(!attention_too_large(s));
    check(s->window >= 0 && (s->causal || !s->window));
    check(s->dropout >= 0 && s->dropout < 1 && isfinite(s->scale));
}

Attn attn_of(Emit *e, const char *name, const AttnShape *s) {
    check_shape(s);
    Attn a = {.e = e, .name = name, .s = *s, .bk = ATTN_BLOCK_KEYS};
    a.bq = attn_block_queries(s, e->vl);
    a.q_blocks = divided_up(s->tq, a.bq);
    a.q_row = s->heads * s->dim;
    a.kv_row = s->kv_heads * s->dim;
    static const Mesh alone;
    Type own = TYPE(DT_F32, s->batch, s->heads, s->tq, s->tk);
    a.part = s->part ? *s->part : part_of(&alone, &own, 0);
    a.next_query = part_step(&a.part, 2);
    a.narrow = s->dt == DT_BF16;
    a.tiles = e->tiles != TILES_NONE;
    a.tile_parts = attn_tile_parts(s);
    a.rows_in_place = a.narrow && a.tiles && s->dim % 2 == 0;
    a.words = attn_words(s, a.narrow);
    a.times = a.narrow ? s->scale * M_LOG2E : 1;
    if (a.times == 0) a.times = FLT_MIN; /* so that masked scores become -inf, not NaN */
    a.parts = a.strips = 1;
    a.least = SMALL_ATTENTION;
    return a;
}

void attn_widen(Attn *a) {
    if (!a->narrow || a->tiles || emit_has_dots(a->e)) return;
    a->narrow = false;
    a->words = attn_words(&a->s, false);
    a->times = 1;
}

void attn_func(const Attn *a, const char *part, const char *sig) {
    Emit *e = a->e;
    LLVMTypeRef params[16];
    int n = (int)strlen(sig);
    check(n <= ARRAY_LEN(params));
    for (int i = 0; i < n; i++) {
        params[i] = sig[i] == 'p' ? e->ptr : sig[i] == 'i' ? e->i64 : e->f32;
    }
    emit_func(e, arena_printf(e->mem, "%s.%s", a->name, part), e->void_, params, n, true);
}

void attn_call(const Attn *a, const char *part, const LLVMValueRef *args, int n) {
    Emit *e = a->e;
    emit_call(e, arena_printf(e->mem, "%s.%s", a->name, part), args, n);
}

static double multiply_adds(const AttnShape *s) {
    return (double)(s->batch * s->heads * s->tq) * (double)(s->tk * s->dim);
}

bool attn_is_small(const AttnShape *s) {
    return multiply_adds(s) < SMALL_ATTENTION;
}

LLVMValueRef attn_entry(const Attn *a, int n, const AttnPhase *phase, int phases) {
    Emit *e = a->e;
    LLVMTypeRef body[] = {e->ptr, e->i64, e->i64, e->i64};
    LLVMValueRef ctx = emit_context_func(e, a->name, n, n, false), fn = e->fn;
    const RtRun how = multiply_adds(&a->s) < a->least ? RUN_ALONE : RUN_BALANCED;
    for (int i = 0; i < phases; i++) {
        const char *part = arena_printf(e->mem, "%s.%s", a->name, phase[i].body);
        LLVMValueRef fn_part = emit_extern(e, part, e->void_, body, ARRAY_LEN(body));
        rt_run(e, fn_part, ctx, emit_i64(e, phase[i].items), how);
    }
    emit_ret(e, NULL);
    return fn;
}

LLVMValueRef attn_f32(const Attn *a, LLVMValueRef ptr, LLVMValueRef index) {
    return emit_gep(a->e, a->e->f32, ptr, index);
}

LLVMValueRef attn_element(const Attn *a, LLVMValueRef ptr, LLVMValueRef index) {
    return emit_gep(a->e, dtype_is_narrow(a->s.dt) ? a->e->i16 : a->e->f32, ptr, index);
}

LLVMValueRef attn_tensor(const Attn *a, LLVMValueRef ctx, int64_t slot,
                         LLVMValueRef index) {
    return attn_element(a, emit_slot(a->e, ctx, slot), index);
}

LLVMValueRef attn_load(const Attn *a, LLVMValueRef ptr, LLVMValueRef mask) {
    return emit_load_as(a->e, a->s.dt, ptr, mask);
}

void attn_store(const Attn *a, LLVMValueRef value, LLVMValueRef ptr, LLVMValueRef mask) {
    emit_store_as(a->e, a->s.dt, value, ptr, mask);
}

int64_t attn_key_row(const Attn *a) {
    if (a->rows_in_place) return a->kv_row / 2;
    return a->narrow || a->copies ? a->words : a->kv_row;
}

void attn_scores_emit(const Attn *a, const char *part) {
    Emit *e = a->e;
    GemmStrides s = {attn_key_row(a), 1, a->bq, a->bq, a->narrow};
    attn_func(a, part, "pppi");
    GemmData data = {emit_param(e, 0), emit_param(e, 1), emit_param(e, 2)};
    GemmSize size = {emit_param(e, 3), emit_i64(e, a->bq), emit_i64(e, a->words)};
    gemm_emit(e, &s, GEMM_SET, &data, &size);
    emit_ret(e, NULL);
}

LLVMValueRef attn_times(const Attn *a, LLVMValueRef score) {
    Emit *e = a->e;
    return a->narrow ? emit_fmul(e, score, emit_f32_like(e, score, a->times)) : score;
}

LLVMValueRef attn_times_less(const Attn *a, LLVMValueRef score, LLVMValueRef x) {
    Emit *e = a->e;
    if (!a->narrow) return emit_fsub(e, score, x);
    return emit_fma(e, score, emit_f32_like(e, score, a->times), emit_fneg(e, x));
}

LLVMValueRef attn_score_of_none(const Attn *a) {
    double none = a->times < 0 ? INFINITY : -INFINITY;
    return emit_f32_like(a->e, LLVMConstNull(a->e->vf32), none);
}

LLVMValueRef attn_exp2(const Attn *a, LLVMValueRef x) {
    return (dtype_is_narrow(a->s.dt) ? vmath_exp2_narrow : vmath_exp2_fast)(a->e, x);
}

LLVMValueRef attn_rows_begin(const Attn *a, const char *part, const char *sig, Loop *l) {
    Emit *e = a->e;
    attn_func(a, part, sig);
    loop_begin(e, l, emit_i64(e, 0), emit_param(e, 1), 1, 0, NULL);
    return attn_f32(a, emit_param(e, 0), emit_muli(e, l->i, a->bq));
}

static void mask_emit(const Attn *a, bool window) {
    Emit *e = a->e;
    Loop l;
    LLVMValueRef row = attn_rows_begin(a, window ? "window" : "mask", "pii", &l);
    LLVMValueRef ahead = emit_add(e, emit_param(e, 2), l.i);
    if (window) ahead = emit_addi(e, ahead, a->s.window);
    LLVMValueRef never = attn_score_of_none(a);
    for (int64_t v = 0; v < a->bq; v += e->vl) {
        LLVMValueRef mask = emit_tail_mask(e, emit_subi(e, ahead, v));
        if (window) mask = LLVMBuildNot(e->b, mask, "");
        emit_store(e, never, emit_at(e, e->f32, row, v), mask, 4);
    }
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

LLVMValueRef attn_keep(const Attn *a, LLVMValueRef rng, LLVMValueRef index) {
    Emit *e = a->e;
    LLVMTypeRef wide = emit_vec(e->i64, e->vl);
    LLVMValueRef word[RNG_MICRO], x[16], c[4];
    for (int i = 0; i < RNG_MICRO; i++) {
        word[i] = emit_load(e, e->i32, emit_at(e, e->i32, rng, i), NULL, 4);
    }
    for (int i = 0; i < e->vl; i++) x[i] = emit_i64(e, i * a->next_query);
    LLVMValueRef step = LLVMConstVector(x, (unsigned)e->vl);
    LLVMValueRef at = LLVMBuildAdd(e->b, emit_splat(e, index), step, "");
    for (int i = 0; i < e->vl; i++) x[i] = emit_i64(e, 32);
    LLVMValueRef shift = LLVMConstVector(x, (unsigned)e->vl);
    check(LLVMTypeOf(at) == wide);
    c[0] = LLVMBuildTrunc(e->b, at, e->vi32, "");
    c[1] = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, at, shift, ""), e->vi32, "");
    c[2] = emit_i32_like(e, c[0], a->s.site);
    c[3] = emit_splat(e, word[RNG_LAYER]);
    LLVMValueRef limit = emit_i32_like(e, c[0], (int64_t)(a->s.dropout * 0x1p32));
    LLVMValueRef drawn = vmath_philox(e, c, word[RNG_KEY], word[RNG_KEY + 1]);
    return emit_icmp(e, LLVMIntUGE, drawn, limit);
}

AttnOrigin attn_origin(const Attn *a, LLVMValueRef ctx, int q_slot, int k_slot,
                       LLVMValueRef b) {
    Emit *e = a->e;
    bool wanted = a->s.causal || a->s.within || a->s.dropout > 0;
    AttnOrigin at = {emit_i64(e, 0), emit_i64(e, 0)};
    if (!wanted) return at;
    at.q = emit_slot(a->e, ctx, q_slot);
    if (a->s.each) at.q = emit_gep(e, e->i32, at.q, b);
    at.q = emit_load(e, e->i32, at.q, NULL, 4);
    at.q = LLVMBuildSExt(e->b, at.q, e->i64, "");
    at.k = emit_load(e, e->i32, emit_slot(a->e, ctx, k_slot), NULL, 4);
    at.k = LLVMBuildSExt(e->b, at.k, e->i64, "");
    return at;
}

AttnPlace attn_block_place(const Attn *a, LLVMValueRef b, LLVMValueRef h,
                           LLVMValueRef block) {
    Emit *e = a->e;
    LLVMValueRef queries = emit_i64(e, a->bq * a->strips), tq = emit_i64(e, a->s.tq);
    AttnPlace p = {.b = b, .h = h, .i0 = emit_mul(e, block, queries)};
    p.rows = emit_imin(e, emit_sub(e, tq, p.i0), queries);
    p.row = emit_add(e, emit_mul(e, b, tq), p.i0);
    p.row = emit_add(e, emit_muli(e, p.row, a->s.heads), h);
    p.q_at = emit_muli(e, p.row, a->s.dim);
    return p;
}

LLVMValueRef attn_kv_at(const Attn *a, LLVMValueRef b, LLVMValueRef kv_head) {
    Emit *e = a->e;
    LLVMValueRef heads = emit_muli(e, b, a->s.tk * a->s.kv_heads);
    return emit_muli(e, emit_add(e, heads, kv_head), a->s.dim);
}

LLVMValueRef attn_number(const Attn *a, LLVMValueRef rng, const AttnOrigin *at,
                         const AttnPlace *p) {
    Emit *e = a->e;
    LLVMValueRef index[] = {p->b, p->h, emit_add(e, at->q, p->i0), at->k};
    LLVMValueRef number = rng_micro_element(e, rng, type_count(&a->part.whole));
    number = emit_add(e, number, part_base(e, &a->part));
    for (int d = 0; d < ARRAY_LEN(index); d++) {
        LLVMValueRef step = emit_i64(e, part_step(&a->part, d));
        number = emit_add(e, number, emit_mul(e, index[d], step));
    }
    return number;
}

LLVMValueRef attn_ahead(const Attn *a, const AttnOrigin *at, LLVMValueRef i0) {
    return emit_sub(a->e, at->k, emit_add(a->e, at->q, i0));
}

AttnRange attn_range(const Attn *a, const AttnOrigin *at, LLVMValueRef i0,
                     LLVMValueRef rows) {
    Emit *e = a->e;
    AttnRange r = {emit_i64(e, 0), emit_i64(e, a->s.tk)};
    if (!a->s.causal) return r;
    LLVMValueRef ahead = attn_ahead(a, at, i0), block = emit_i64(e, a->bk);
    r.to = emit_imin(e, r.to, emit_sub(e, rows, ahead));
    if (!a->s.window) return r;
    LLVMValueRef first = emit_sub(e, emit_i64(e, 1 - a->s.window), ahead);
    r.from = emit_mul(e, emit_div(e, emit_imax(e, r.from, first), block), block);
    return r;
}

static void within_emit(const Attn *a) {
    Emit *e = a->e;
    Loop l;
    LLVMValueRef row = attn_rows_begin(a, "within", "pipii", &l);
    LLVMValueRef key = emit_add(e, emit_param(e, 3), l.i);
    key = emit_splat(e, LLVMBuildTrunc(e->b, key, e->i32, ""));
    LLVMValueRef never = attn_score_of_none(a);
    for (int64_t v = 0; v < a->bq; v += e->vl) {
        LLVMValueRef there = emit_tail_mask(e, emit_subi(e, emit_param(e, 4), v));
        LLVMValueRef from = emit_at(e, e->i32, emit_param(e, 2), v);
        LLVMValueRef first = emit_load(e, e->vi32, from, there, 4);
        LLVMValueRef before = emit_icmp(e, LLVMIntSLT, key, first);
        emit_store(e, never, emit_at(e, e->f32, row, v), before, 4);
    }
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

void attn_masks_emit(const Attn *a) {
    if (a->s.causal) mask_emit(a, false);
    if (a->s.window) mask_emit(a, true);
    if (a->s.within) within_emit(a);
}

AttnQueries attn_queries(const Attn *a, LLVMValueRef ctx, int slot, const AttnOrigin *at,
                         const AttnPlace *p) {
    AttnQueries q = {NULL, p->rows, at->k};
    if (!a->s.within) return q;
    LLVMValueRef row = emit_muli(a->e, p->b, a->s.tq);
    row = emit_add(a->e, row, p->i0);
    q.first = emit_gep(a->e, a->e->i32, emit_slot(a->e, ctx, slot), row);
    return q;
}

void attn_block_masks(const Attn *a, LLVMValueRef s, LLVMValueRef keys,
                      LLVMValueRef ahead, LLVMValueRef j0, const AttnQueries *q) {
    Emit *e = a->e;
    if (q->first) {
        LLVMValueRef at = emit_add(e, q->k_at, j0);
        ATTN_CALL(a, "within", s, keys, q->first, at, q->rows);
    }
    if (!a->s.causal) return;
    if (a->s.window) {
        LLVMValueRef seen = emit_addi(e, ahead, a->s.window);
        If edge;
        if_begin(e, &edge, emit_icmp(e, LLVMIntSGT, q->rows, seen));
        ATTN_CALL(a, "window", s, keys, ahead);
        if_end(e, &edge);
    }
    LLVMValueRef last = emit_add(e, ahead, emit_subi(e, keys, 1));
    If crosses;
    if_begin(e, &crosses, emit_icmp(e, LLVMIntSGT, last, emit_i64(e, 0)));
    ATTN_CALL(a, "mask", s, keys, ahead);
    if_end(e, &crosses);
}
