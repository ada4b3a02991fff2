/* attention_token.c - attention forward of one query a sequence, as when text is generated
 * from a cache of keys and values. No product has more than one row, so lanes are numbers
 * of a head, not queries, and what counts is to read the cache once: a piece of work is
 * some keys of one kv head, for all query heads that share it, a block of keys at a time,
 * which stays in cache from head to head. Each piece leaves sums relative to its own
 * maximum; they are joined in the order of the keys. Probabilities are not rounded where
 * operands are bf16. */
#include "codegen/attention_forward.h"
#include "codegen/vmath.h"
#include <float.h>
#include <math.h>

/* Multiply-adds below which starting the threads costs more than they gain: fewer than
 * elsewhere, as each takes a number from memory. WIDE: vectors of a head at a time. */
enum { SMALL_TOKEN = 1 << 15, WIDE = 8, CACHE_LINE = 64 };

/* What a piece leaves for each head: sums of values, and behind those the maximum, the sum
 * of probabilities, and room for what join multiplies it by. Scores are of one block. */
typedef struct State {
    int64_t row, stats, scores, floats;
} State;
enum { STAT_MAX, STAT_SUM, STAT_WEIGHT, STATS = 4 };

/* Numbers of a head that are loaded at a time. */
static int64_t numbers_of(const AttnShape *s, int vl) {
    return vl * (s->dt == DT_BF16 ? 2 : 1);
}

static State state_of(const AttnShape *s, int vl) {
    int64_t group = s->heads / s->kv_heads;
    State x = {.row = round_up(s->dim, numbers_of(s, vl))};
    x.stats = group * x.row;
    x.scores = round_up(x.stats + group * STATS, 16);
    x.floats = x.scores + ATTN_BLOCK_KEYS;
    return x;
}

bool attn_is_token(const AttnShape *s) {
    return s->tq == 1 && s->dropout == 0;
}

/* As few parts as keep nine tenths of the threads busy, of at least a block of keys. */
static int64_t parts_of(const AttnShape *s) {
    int64_t items = s->batch * s->kv_heads, threads = MAX(s->threads, 1);
    int64_t seen = s->window ? MIN(s->tk, s->window) : s->tk, best = 1;
    double work = (double)(s->batch * s->heads) * (double)(seen * s->dim), most = 0;
    if (work < SMALL_TOKEN) return 1;
    for (int64_t n = 1; n <= MIN(threads, MAX(1, seen / ATTN_BLOCK_KEYS)); n++) {
        int64_t rounds = (items * n + threads - 1) / threads;
        double busy = (double)(items * n) / (double)(rounds * threads);
        if (busy > most) most = busy, best = n;
        if (most >= 0.9) break;
    }
    return best;
}

int64_t attn_token_floats(const AttnShape *s, int vl) {
    return s->batch * s->kv_heads * parts_of(s) * state_of(s, vl).floats;
}

static int64_t numbers(const Attn *a) {
    return numbers_of(&a->s, a->e->vl);
}

/* Those that are left at the end of a head. */
static LLVMValueRef tail_mask(const Attn *a) {
    Emit *e = a->e;
    LLVMValueRef left = emit_i64(e, a->s.dim % numbers(a));
    if (a->s.dim % numbers(a) == 0) return NULL;
    return a->narrow ? emit_halves_mask(e, left) : emit_tail_mask(e, left);
}

/* vl words of a head: numbers of f32, or pairs of bf16. */
typedef struct Words {
    LLVMValueRef f32;
    Pairs pairs;
} Words;

static LLVMValueRef load_bits(const Attn *a, LLVMValueRef at, LLVMValueRef mask) {
    Emit *e = a->e;
    LLVMValueRef x = emit_load(e, emit_vec(e->i16, 2 * e->vl), at, mask, 2);
    return LLVMBuildBitCast(e->b, x, e->vi32, "");
}

static Words load_words(const Attn *a, LLVMValueRef at, LLVMValueRef mask) {
    Emit *e = a->e;
    if (a->narrow) return (Words){.pairs = emit_pairs(e, load_bits(a, at, mask))};
    return (Words){.f32 = emit_load(e, e->vf32, at, mask, 4)};
}

static LLVMValueRef add_words(const Attn *a, const Words *x, const Words *y,
                              LLVMValueRef sum) {
    if (a->narrow) return emit_dot_pairs(a->e, &x->pairs, &y->pairs, sum);
    return emit_fma(a->e, x->f32, y->f32, sum);
}

/* Starts loading what is at `at`, or a row of a head: these are too far from each other for
 * the CPU to see which comes next. To the second cache: a block of all heads is larger than
 * the first. */
static void fetch(const Attn *a, LLVMValueRef at) {
    Emit *e = a->e;
    LLVMValueRef args[] = {at, emit_i32(e, 0), emit_i32(e, 2), emit_i32(e, 1)};
    emit_intrinsic(e, "llvm.prefetch", &e->ptr, 1, args, ARRAY_LEN(args));
}

static void fetch_row(const Attn *a, LLVMValueRef row) {
    int64_t bytes = a->s.dim * (a->narrow ? 2 : 4);
    for (int64_t at = 0; at < bytes; at += CACHE_LINE)
        fetch(a, emit_at(a->e, a->e->i8, row, at));
}

/* sum[t] += q times row t from k on, lane by lane, for n rows; meanwhile those from `ahead`
 * on come nearer (NULL: none). */
static void dot_rows(const Attn *a, LLVMValueRef q, LLVMValueRef k, LLVMValueRef ahead,
                     int n, LLVMValueRef *sum) {
    Emit *e = a->e;
    int64_t whole = a->s.dim / numbers(a) * numbers(a);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, whole), numbers(a), n, sum);
    Words x = load_words(a, attn_element(a, q, l.i), NULL);
    for (int t = 0; t < n; t++) {
        LLVMValueRef at = emit_add(e, l.i, emit_i64(e, t * a->kv_row));
        Words row = load_words(a, attn_element(a, k, at), NULL);
        sum[t] = add_words(a, &row, &x, l.carry[t]);
        if (ahead) fetch(a, attn_element(a, ahead, at));
    }
    loop_end(e, &l, sum);
    for (int t = 0; t < n; t++) sum[t] = l.carry[t];
    if (whole == a->s.dim) return;
    LLVMValueRef mask = tail_mask(a);
    x = load_words(a, attn_element(a, q, emit_i64(e, whole)), mask);
    for (int t = 0; t < n; t++) {
        LLVMValueRef at = attn_element(a, k, emit_i64(e, whole + t * a->kv_row));
        Words row = load_words(a, at, mask);
        sum[t] = add_words(a, &row, &x, sum[t]);
    }
}

/* Scores of vl keys: lane t is that of key t. */
static LLVMValueRef score_tile(const Attn *a, LLVMValueRef q, LLVMValueRef k,
                               LLVMValueRef ahead) {
    Emit *e = a->e;
    LLVMValueRef sum[16];
    for (int t = 0; t < e->vl; t++) sum[t] = LLVMConstNull(e->vf32);
    dot_rows(a, q, k, ahead, e->vl, sum);
    LLVMValueRef x = emit_add_lanes(e, sum);
    return emit_fmul(e, x, emit_f32_like(e, x, a->s.scale * M_LOG2E));
}

/* Those of the last keys, fewer than vl, one by one; -inf up to the end of a vector. */
static void score_rest(const Attn *a, LLVMValueRef q, LLVMValueRef k, LLVMValueRef scores,
                       LLVMValueRef from, LLVMValueRef keys) {
    Emit *e = a->e;
    If some;
    if_begin(e, &some, LLVMBuildICmp(e->b, LLVMIntSLT, from, keys, ""));
    LLVMValueRef zero = LLVMConstNull(e->vf32);
    emit_store(e, emit_f32_like(e, zero, -INFINITY), attn_f32(a, scores, from), NULL, 4);
    Loop l;
    loop_begin(e, &l, from, keys, 1, 0, NULL);
    LLVMValueRef at = emit_mul(e, l.i, emit_i64(e, a->kv_row)), sum = zero;
    dot_rows(a, q, attn_element(a, k, at), NULL, 1, &sum);
    sum = emit_fmul(e, emit_reduce_add(e, sum), emit_f32(e, a->s.scale * M_LOG2E));
    emit_store(e, sum, attn_f32(a, scores, l.i), NULL, 4);
    loop_end(e, &l, NULL);
    if_end(e, &some);
}

/* name.scores(q, k, scores, keys, v): meanwhile the rows of v come nearer. */
static void scores_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "scores", "pppip");
    LLVMValueRef q = emit_param(e, 0), k = emit_param(e, 1), to = emit_param(e, 2);
    LLVMValueRef keys = emit_param(e, 3), vl = emit_i64(e, e->vl);
    LLVMValueRef whole = emit_mul(e, emit_div(e, keys, vl), vl);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), whole, e->vl, 0, NULL);
    LLVMValueRef at = emit_mul(e, l.i, emit_i64(e, a->kv_row));
    LLVMValueRef ahead = attn_element(a, emit_param(e, 4), at);
    LLVMValueRef tile = score_tile(a, q, attn_element(a, k, at), ahead);
    emit_store(e, tile, attn_f32(a, to, l.i), NULL, 4);
    loop_end(e, &l, NULL);
    score_rest(a, q, k, to, whole, keys);
    emit_ret(e, NULL);
}

/* name.softmax(scores, stats, keys): probabilities relative to the maximum so far; leaves
 * in the stats what older sums are multiplied by. */
static void softmax_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "softmax", "ppi");
    LLVMValueRef scores = emit_param(e, 0), stats = emit_param(e, 1);
    LLVMValueRef zero = emit_i64(e, 0), keys = emit_param(e, 2), old, sum;
    LLVMValueRef top_at = emit_at(e, e->f32, stats, STAT_MAX);
    LLVMValueRef sum_at = emit_at(e, e->f32, stats, STAT_SUM);
    old = emit_load(e, e->f32, top_at, NULL, 4);
    LLVMValueRef carry = emit_splat(e, old);
    Loop l;
    loop_begin(e, &l, zero, keys, e->vl, 1, &carry);
    LLVMValueRef x = emit_load(e, e->vf32, attn_f32(a, scores, l.i), NULL, 4);
    x = emit_fmax(e, x, l.carry[0]);
    loop_end(e, &l, &x);
    LLVMValueRef top = emit_reduce_max(e, l.carry[0]), tops = emit_splat(e, top);
    carry = LLVMConstNull(e->vf32);
    loop_begin(e, &l, zero, keys, e->vl, 1, &carry);
    LLVMValueRef at = attn_f32(a, scores, l.i);
    x = emit_fsub(e, emit_load(e, e->vf32, at, NULL, 4), tops);
    x = vmath_exp2_fast(e, x);
    emit_store(e, x, at, NULL, 4);
    x = emit_fadd(e, l.carry[0], x);
    loop_end(e, &l, &x);
    LLVMValueRef decay = vmath_exp2_fast(e, emit_fsub(e, old, top));
    sum = emit_fmul(e, emit_load(e, e->f32, sum_at, NULL, 4), decay);
    sum = emit_fadd(e, sum, emit_reduce_add(e, l.carry[0]));
    emit_store(e, top, top_at, NULL, 4);
    emit_store(e, sum, sum_at, NULL, 4);
    emit_store(e, decay, emit_at(e, e->f32, stats, STAT_WEIGHT), NULL, 4);
    emit_ret(e, NULL);
}

/* `n` vectors of a row of values as f32, the last of them masked. Of bf16 two vectors come from
 * one of words: numbers of even columns, then those of odd ones. */
static void load_values(const Attn *a, LLVMValueRef at, int n, LLVMValueRef mask,
                        LLVMValueRef *x) {
    Emit *e = a->e;
    int each = a->narrow ? 2 : 1;
    for (int i = 0; i < n; i += each) {
        LLVMValueRef from = attn_element(a, at, emit_i64(e, i * e->vl));
        LLVMValueRef some = i + each >= n ? mask : NULL;
        if (!a->narrow) {
            x[i] = emit_load(e, e->vf32, from, some, 4);
            continue;
        }
        Pairs columns = emit_wide_pairs(e, load_bits(a, from, some));
        x[i] = columns.first, x[i + 1] = columns.second;
    }
}

/* `n` vectors of the sums of values from column c on, the last of them masked. */
static void value_span(const Attn *a, LLVMValueRef decay, LLVMValueRef c, int n,
                       LLVMValueRef mask) {
    Emit *e = a->e;
    LLVMValueRef sum[WIDE], x[WIDE], to = attn_f32(a, emit_param(e, 2), c);
    LLVMValueRef v = attn_element(a, emit_param(e, 0), c);
    for (int i = 0; i < n; i++) {
        LLVMValueRef at = emit_at(e, e->f32, to, i * e->vl);
        sum[i] = emit_fmul(e, emit_load(e, e->vf32, at, NULL, 4), decay);
    }
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_param(e, 4), 1, n, sum);
    LLVMValueRef p = attn_f32(a, emit_param(e, 1), l.i);
    p = emit_splat(e, emit_load(e, e->f32, p, NULL, 4));
    LLVMValueRef row = emit_mul(e, l.i, emit_i64(e, a->kv_row));
    fetch_row(a, attn_element(a, emit_param(e, 5), row));
    load_values(a, attn_element(a, v, row), n, mask, x);
    for (int i = 0; i < n; i++) sum[i] = emit_fma(e, p, x[i], l.carry[i]);
    loop_end(e, &l, sum);
    for (int i = 0; i < n; i++)
        emit_store(e, l.carry[i], emit_at(e, e->f32, to, i * e->vl), NULL, 4);
}

/* name.values(v, p, sums, stats, keys, next): sums = sums * decay + p V; meanwhile the rows
 * of the next keys come nearer. */
static void values_emit(const Attn *a) {
    Emit *e = a->e;
    int64_t span = WIDE * e->vl, whole = a->s.dim / span * span, left = a->s.dim - whole;
    attn_func(a, "values", "ppppip");
    LLVMValueRef decay = emit_at(e, e->f32, emit_param(e, 3), STAT_WEIGHT);
    decay = emit_splat(e, emit_load(e, e->f32, decay, NULL, 4));
    if (whole) {
        Loop l;
        loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, whole), span, 0, NULL);
        value_span(a, decay, l.i, WIDE, NULL);
        loop_end(e, &l, NULL);
    }
    if (left) {
        int n = (int)(round_up(left, numbers(a)) / e->vl);
        value_span(a, decay, emit_i64(e, whole), n, tail_mask(a));
    }
    emit_ret(e, NULL);
}

/* Keys that the query of sequence b sees; none when from >= to. */
static AttnRange seen_keys(const Attn *a, LLVMValueRef ctx, LLVMValueRef b) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    AttnOrigin at = attn_origin(a, ctx, FORWARD_Q_AT, FORWARD_K_AT, b);
    AttnRange r = {emit_i64(e, 0), emit_i64(e, s->tk)};
    LLVMValueRef end = emit_add(e, emit_sub(e, at.q, at.k), emit_i64(e, 1));
    if (s->causal) r.to = emit_imin(e, r.to, end);
    if (s->window)
        r.from = emit_imax(e, r.from, emit_sub(e, end, emit_i64(e, s->window)));
    if (!s->within) return r;
    LLVMValueRef first = emit_gep(e, e->i32, attn_slot(a, ctx, FORWARD_FIRST), b);
    first = LLVMBuildSExt(e->b, emit_load(e, e->i32, first, NULL, 4), e->i64, "");
    r.from = emit_imax(e, r.from, emit_sub(e, first, at.k));
    return r;
}

/* No sums yet, and a maximum below any score. */
static void start(const Attn *a, const State *x, LLVMValueRef work) {
    Emit *e = a->e;
    LLVMValueRef zero = LLVMConstNull(e->vf32);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, x->stats), e->vl, 0, NULL);
    emit_store(e, zero, attn_f32(a, work, l.i), NULL, 4);
    loop_end(e, &l, NULL);
    for (int64_t g = 0; g < a->s.heads / a->s.kv_heads; g++) {
        LLVMValueRef stats = emit_at(e, e->f32, work, x->stats + g * STATS);
        emit_store(e, emit_f32(e, -FLT_MAX), emit_at(e, e->f32, stats, STAT_MAX), NULL,
                   4);
        emit_store(e, emit_f32(e, 0), emit_at(e, e->f32, stats, STAT_SUM), NULL, 4);
    }
}

/* name.block(q, k, v, work, keys): a block of keys for all heads of the group. */
static void block_emit(const Attn *a, const State *x) {
    Emit *e = a->e;
    attn_func(a, "block", "ppppi");
    LLVMValueRef work = emit_param(e, 3), keys = emit_param(e, 4);
    LLVMValueRef scores = emit_at(e, e->f32, work, x->scores);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, a->s.heads / a->s.kv_heads), 1, 0,
               NULL);
    LLVMValueRef q = emit_mul(e, l.i, emit_i64(e, a->s.dim));
    q = attn_element(a, emit_param(e, 0), q);
    LLVMValueRef stats = emit_at(e, e->f32, work, x->stats);
    stats = attn_f32(a, stats, emit_mul(e, l.i, emit_i64(e, STATS)));
    LLVMValueRef sums = attn_f32(a, work, emit_mul(e, l.i, emit_i64(e, x->row)));
    LLVMValueRef score[] = {q, emit_param(e, 1), scores, keys, emit_param(e, 2)};
    attn_call(a, "scores", score, 5);
    attn_call(a, "softmax", (LLVMValueRef[]){scores, stats, keys}, 3);
    LLVMValueRef next = emit_i64(e, a->bk * a->kv_row);
    next = attn_element(a, emit_param(e, 1), next);
    LLVMValueRef values[] = {emit_param(e, 2), scores, sums, stats, keys, next};
    attn_call(a, "values", values, 6);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* Where item `item` keeps its state. */
static LLVMValueRef work_at(const Attn *a, const State *x, LLVMValueRef ctx,
                            LLVMValueRef item) {
    LLVMValueRef at = emit_mul(a->e, item, emit_i64(a->e, x->floats));
    return attn_f32(a, attn_slot(a, ctx, FORWARD_WORK), at);
}

/* One block of keys from `from` on, for kv head h of sequence b. */
static void head_block(const Attn *a, LLVMValueRef ctx, LLVMValueRef b, LLVMValueRef h,
                       LLVMValueRef work, LLVMValueRef from, LLVMValueRef keys) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    LLVMValueRef heads = emit_i64(e, s->kv_heads), dim = emit_i64(e, s->dim);
    LLVMValueRef q = emit_add(e, emit_mul(e, b, heads), h);
    q = emit_mul(e, q, emit_i64(e, s->heads / s->kv_heads * s->dim));
    LLVMValueRef row = emit_add(e, emit_mul(e, b, emit_i64(e, s->tk)), from);
    LLVMValueRef kv = emit_mul(e, emit_add(e, emit_mul(e, row, heads), h), dim);
    LLVMValueRef args[] = {attn_element(a, attn_slot(a, ctx, FORWARD_Q), q),
                           attn_element(a, attn_slot(a, ctx, FORWARD_K), kv),
                           attn_element(a, attn_slot(a, ctx, FORWARD_V), kv), work, keys};
    attn_call(a, "block", args, 5);
}

/* name.piece(ctx, place, from, to): kv heads [from, to) of a place, which is a sequence and
 * a part of its keys. A block of keys is gone through for all of these heads before the
 * next, as they stand next to each other in memory. */
static void piece_emit(const Attn *a, const State *x) {
    Emit *e = a->e;
    attn_func(a, "piece", "piii");
    LLVMValueRef ctx = emit_param(e, 0), place = emit_param(e, 1),
                 n = emit_i64(e, a->parts);
    LLVMValueRef b = emit_div(e, place, n), part = emit_rem(e, place, n);
    LLVMValueRef from = emit_param(e, 2), to = emit_param(e, 3);
    LLVMValueRef first = emit_mul(e, place, emit_i64(e, a->s.kv_heads));
    AttnRange r = attn_part(a, seen_keys(a, ctx, b), 1, part);
    Loop l, h;
    loop_begin(e, &h, from, to, 1, 0, NULL);
    start(a, x, work_at(a, x, ctx, emit_add(e, first, h.i)));
    loop_end(e, &h, NULL);
    loop_begin(e, &l, r.from, r.to, a->bk, 0, NULL);
    LLVMValueRef keys = emit_imin(e, emit_sub(e, r.to, l.i), emit_i64(e, a->bk));
    loop_begin(e, &h, from, to, 1, 0, NULL);
    LLVMValueRef work = work_at(a, x, ctx, emit_add(e, first, h.i));
    head_block(a, ctx, b, h.i, work, l.i, keys);
    loop_end(e, &h, NULL);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* What part p has of what the first part of a head has at `of`. */
static LLVMValueRef in_part(const Attn *a, const State *x, LLVMValueRef of,
                            LLVMValueRef p) {
    LLVMValueRef step = emit_i64(a->e, a->s.kv_heads * x->floats);
    return attn_f32(a, of, emit_mul(a->e, p, step));
}

static LLVMValueRef stat_at(const Attn *a, const State *x, LLVMValueRef stats,
                            LLVMValueRef p, int stat) {
    return emit_at(a->e, a->e->f32, in_part(a, x, stats, p), stat);
}

/* The sum over the parts, each with its weight, and the lse. */
static LLVMValueRef join_stats(const Attn *a, const State *x, LLVMValueRef stats,
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
    LLVMValueRef empty = LLVMBuildFCmp(e->b, LLVMRealOEQ, sum, none, "");
    LLVMValueRef lse = emit_fma(e, top, emit_f32(e, M_LN2), vmath_log(e, sum));
    lse = emit_select(e, empty, emit_f32(e, NO_KEYS), lse);
    emit_store(e, lse, lse_at, NULL, 4);
    LLVMValueRef factor = emit_fdiv(e, emit_f32(e, 1), sum);
    return emit_select(e, empty, none, factor);
}

/* A vector of the sums of values at `sums`, over the parts. */
static LLVMValueRef join_sums(const Attn *a, const State *x, LLVMValueRef stats,
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
static void join_emit(const Attn *a, const State *x) {
    Emit *e = a->e;
    int64_t group = a->s.heads / a->s.kv_heads, dim = a->s.dim;
    attn_func(a, "join", "pi");
    LLVMValueRef ctx = emit_param(e, 0), row = emit_param(e, 1),
                 size = emit_i64(e, group);
    LLVMValueRef pair = emit_div(e, row, size), head = emit_rem(e, row, size);
    LLVMValueRef heads = emit_i64(e, a->s.kv_heads);
    LLVMValueRef first = emit_mul(e, emit_div(e, pair, heads), emit_i64(e, a->parts));
    first = emit_add(e, emit_mul(e, first, heads), emit_rem(e, pair, heads));
    LLVMValueRef state = work_at(a, x, ctx, first);
    LLVMValueRef stats = emit_mul(e, head, emit_i64(e, STATS));
    stats = attn_f32(a, emit_at(e, e->f32, state, x->stats), stats);
    LLVMValueRef sums = attn_f32(a, state, emit_mul(e, head, emit_i64(e, x->row)));
    LLVMValueRef lse = attn_f32(a, attn_slot(a, ctx, FORWARD_LSE), row);
    LLVMValueRef factor = emit_splat(e, join_stats(a, x, stats, lse));
    LLVMValueRef o = emit_mul(e, row, emit_i64(e, dim));
    o = attn_element(a, attn_slot(a, ctx, FORWARD_O), o);
    for (int64_t c = 0; c < dim; c += numbers(a)) {
        LLVMValueRef to = attn_element(a, o, emit_i64(e, c));
        LLVMValueRef mask = dim - c < numbers(a) ? tail_mask(a) : NULL;
        LLVMValueRef y = emit_fmul(e, join_sums(a, x, stats, sums, c), factor);
        if (!a->narrow) {
            emit_store(e, y, to, mask, 4);
            continue;
        }
        LLVMValueRef odd = join_sums(a, x, stats, sums, c + e->vl);
        y = emit_to_pairs(e, y, emit_fmul(e, odd, factor));
        y = LLVMBuildBitCast(e->b, y, emit_vec(e->i16, 2 * e->vl), "");
        emit_store(e, y, to, mask, 2);
    }
    emit_ret(e, NULL);
}

/* Items are kv heads of places. Without parts an item is all there is of its heads, and
 * they are finished with it. */
static void body_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "body", "piii");
    LLVMValueRef ctx = emit_param(e, 0), begin = emit_param(e, 1), end = emit_param(e, 2);
    LLVMValueRef heads = emit_i64(e, a->s.kv_heads), one = emit_i64(e, 1);
    LLVMValueRef last = emit_div(e, emit_sub(e, end, one), heads);
    Loop l;
    loop_begin(e, &l, emit_div(e, begin, heads), emit_add(e, last, one), 1, 0, NULL);
    LLVMValueRef first = emit_mul(e, l.i, heads);
    LLVMValueRef from = emit_imax(e, emit_sub(e, begin, first), emit_i64(e, 0));
    LLVMValueRef to = emit_imin(e, emit_sub(e, end, first), heads);
    attn_call(a, "piece", (LLVMValueRef[]){ctx, l.i, from, to}, 4);
    loop_end(e, &l, NULL);
    if (a->parts == 1) {
        LLVMValueRef group = emit_i64(e, a->s.heads / a->s.kv_heads);
        LLVMValueRef rows[] = {ctx, emit_mul(e, begin, group), emit_mul(e, end, group)};
        attn_call(a, "join_rows", rows, 3);
    }
    emit_ret(e, NULL);
}

/* name.join_rows(ctx, begin, end), and the same as a body. */
static void join_rows_emit(const Attn *a) {
    Emit *e = a->e;
    Loop l;
    attn_func(a, "join_rows", "pii");
    loop_begin(e, &l, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    attn_call(a, "join", (LLVMValueRef[]){emit_param(e, 0), l.i}, 2);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
    attn_func(a, "join_body", "piii");
    LLVMValueRef rows[] = {emit_param(e, 0), emit_param(e, 1), emit_param(e, 2)};
    attn_call(a, "join_rows", rows, 3);
    emit_ret(e, NULL);
}

LLVMValueRef attn_token_emit(Emit *e, const char *name, const AttnShape *s) {
    Attn a = attn_of(e, name, s);
    State x = state_of(s, e->vl);
    a.parts = parts_of(s);
    a.least = SMALL_TOKEN;
    scores_emit(&a);
    softmax_emit(&a);
    values_emit(&a);
    block_emit(&a, &x);
    piece_emit(&a, &x);
    join_emit(&a, &x);
    join_rows_emit(&a);
    body_emit(&a);
    AttnPhase phase[] = {{"body", s->batch * s->kv_heads * a.parts},
                         {"join_body", s->batch * s->heads}};
    return attn_entry(&a, s->within ? FORWARD_SLOTS : FORWARD_FIRST, phase,
                      a.parts > 1 ? 2 : 1);
}
