/* attention_token_block.c - attention of one query a sequence with a block of keys: scores,
 * probabilities, sums of values. No product has more than one row, so lanes are numbers of a
 * head, not queries. A tile of vl keys is read for all heads, then the next, for the scores of the
 * block and then for its values, while what comes next is fetched. Probabilities are not rounded
 * where operands are bf16. */
#include "codegen/attention_token.h"
#include "codegen/vmath.h"
#include <math.h>

/* WIDE: vectors of a head at a time. */
enum { WIDE = 8 };

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
    return (Words){.f32 = attn_load(a, at, mask)};
}

static LLVMValueRef add_words(const Attn *a, const Words *x, const Words *y,
                              LLVMValueRef sum) {
    if (a->narrow) return emit_dot_pairs(a->e, &x->pairs, &y->pairs, sum);
    return emit_fma(a->e, x->f32, y->f32, sum);
}

/* Starts loading the line at `at`: rows of a head are too far from each other for the CPU to see
 * which comes next. To the second cache: a tile of all heads is larger than the first. */
static void fetch(const Attn *a, LLVMValueRef at) {
    emit_prefetch(a->e, at, false, 2);
}

static void fetch_numbers(const Attn *a, LLVMValueRef at, int64_t n) {
    int64_t bytes = n * dtype_bytes[a->s.dt];
    for (int64_t i = 0; i < bytes; i += EMIT_LINE_BYTES)
        fetch(a, emit_at(a->e, a->e->i8, at, i));
}

/* sum[t] += q times row t from k on, lane by lane, for n rows; meanwhile those from `ahead`
 * on come nearer (NULL: none). */
static void dot_rows(const Attn *a, LLVMValueRef q, LLVMValueRef k, LLVMValueRef ahead,
                     int n, LLVMValueRef *sum) {
    Emit *e = a->e;
    int64_t whole = a->s.dim / attn_token_numbers(a) * attn_token_numbers(a);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, whole), attn_token_numbers(a), n, sum);
    Words x = load_words(a, attn_element(a, q, l.i), NULL);
    for (int t = 0; t < n; t++) {
        LLVMValueRef at = emit_addi(e, l.i, t * a->kv_row);
        Words row = load_words(a, attn_element(a, k, at), NULL);
        sum[t] = add_words(a, &row, &x, l.carry[t]);
        if (ahead) fetch(a, attn_element(a, ahead, at));
    }
    loop_end(e, &l, sum);
    for (int t = 0; t < n; t++) sum[t] = l.carry[t];
    if (whole == a->s.dim) return;
    LLVMValueRef mask = attn_token_mask(a);
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

/* Those of fewer keys, one by one; -inf up to the end of a vector. */
static void score_rest(const Attn *a, LLVMValueRef q, LLVMValueRef k, LLVMValueRef scores,
                       LLVMValueRef keys) {
    Emit *e = a->e;
    LLVMValueRef zero = LLVMConstNull(e->vf32);
    emit_store(e, emit_f32_like(e, zero, -INFINITY), scores, NULL, 4);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), keys, 1, 0, NULL);
    LLVMValueRef at = emit_muli(e, l.i, a->kv_row), sum = zero;
    dot_rows(a, q, attn_element(a, k, at), NULL, 1, &sum);
    sum = emit_fmul(e, emit_reduce_add(e, sum), emit_f32(e, a->s.scale * M_LOG2E));
    emit_store(e, sum, attn_f32(a, scores, l.i), NULL, 4);
    loop_end(e, &l, NULL);
}

/* Query heads of a row of kv heads: kv is the kv head, g the query head in its group. */
typedef struct Heads {
    Loop kv, g;
    LLVMValueRef work, column; /* of the kv head: its state, and where it is in a row */
} Heads;

static void heads_begin(const Attn *a, const TokenState *x, Heads *h, LLVMValueRef work,
                        LLVMValueRef heads) {
    Emit *e = a->e;
    LLVMValueRef zero = emit_i64(e, 0), group = emit_i64(e, a->s.heads / a->s.kv_heads);
    loop_begin(e, &h->kv, zero, heads, 1, 0, NULL);
    h->work = attn_f32(a, work, emit_muli(e, h->kv.i, x->floats));
    h->column = emit_muli(e, h->kv.i, a->s.dim);
    loop_begin(e, &h->g, zero, group, 1, 0, NULL);
}

static void heads_end(const Attn *a, Heads *h) {
    loop_end(a->e, &h->g, NULL);
    loop_end(a->e, &h->kv, NULL);
}

static LLVMValueRef scores_of(const Attn *a, const TokenState *x, const Heads *h) {
    LLVMValueRef scores = emit_at(a->e, a->e->f32, h->work, x->scores);
    return attn_f32(a, scores, emit_muli(a->e, h->g.i, ATTN_BLOCK_KEYS));
}

static LLVMValueRef stats_of(const Attn *a, const TokenState *x, const Heads *h) {
    LLVMValueRef stats = emit_at(a->e, a->e->f32, h->work, x->stats);
    return attn_f32(a, stats, emit_muli(a->e, h->g.i, STATS));
}

static LLVMValueRef sums_of(const Attn *a, const TokenState *x, const Heads *h) {
    return attn_f32(a, h->work, emit_muli(a->e, h->g.i, x->row));
}

/* What the first query head of a kv head fetches; others fetch what is there. */
static LLVMValueRef ahead_of(const Attn *a, const Heads *h, LLVMValueRef ahead,
                             LLVMValueRef here) {
    Emit *e = a->e;
    if (a->s.heads == a->s.kv_heads) return attn_element(a, ahead, h->column);
    LLVMValueRef first = emit_icmp(e, LLVMIntEQ, h->g.i, emit_i64(e, 0));
    return emit_select(e, first, attn_element(a, ahead, h->column), here);
}

/* name.scores(q, k, work, heads, from, keys, ahead): those of at most vl keys, number `from`
 * of a block and on, for all query heads of `heads` kv heads. */
static void scores_emit(const Attn *a, const TokenState *x) {
    Emit *e = a->e;
    attn_func(a, "scores", "pppiiip");
    LLVMValueRef from = emit_param(e, 4), keys = emit_param(e, 5);
    LLVMValueRef all = emit_icmp(e, LLVMIntEQ, keys, emit_i64(e, e->vl));
    LLVMValueRef group = emit_i64(e, a->s.heads / a->s.kv_heads);
    Heads h;
    heads_begin(a, x, &h, emit_param(e, 2), emit_param(e, 3));
    LLVMValueRef head = emit_add(e, emit_mul(e, h.kv.i, group), h.g.i);
    LLVMValueRef q = emit_muli(e, head, a->s.dim);
    q = attn_element(a, emit_param(e, 0), q);
    LLVMValueRef k = attn_element(a, emit_param(e, 1), h.column);
    LLVMValueRef to = attn_f32(a, scores_of(a, x, &h), from);
    If whole;
    if_begin(e, &whole, all);
    LLVMValueRef tile = score_tile(a, q, k, ahead_of(a, &h, emit_param(e, 6), k));
    emit_store(e, tile, to, NULL, 4);
    if_end(e, &whole);
    if_begin(e, &whole, LLVMBuildNot(e->b, all, ""));
    score_rest(a, q, k, to, keys);
    if_end(e, &whole);
    heads_end(a, &h);
    emit_ret(e, NULL);
}

/* Probabilities of a head relative to its maximum so far; returns what older sums are
 * multiplied by. */
static LLVMValueRef softmax_head(const Attn *a, LLVMValueRef scores, LLVMValueRef stats,
                                 LLVMValueRef keys) {
    Emit *e = a->e;
    LLVMValueRef zero = emit_i64(e, 0), old, sum;
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
    return decay;
}

/* name.softmax(work, heads, keys): the scores of a block become probabilities, and older sums
 * relative to the same maximum. */
static void softmax_emit(const Attn *a, const TokenState *x) {
    Emit *e = a->e;
    attn_func(a, "softmax", "pii");
    LLVMValueRef keys = emit_param(e, 2);
    Heads h;
    heads_begin(a, x, &h, emit_param(e, 0), emit_param(e, 1));
    LLVMValueRef sums = sums_of(a, x, &h);
    LLVMValueRef decay = softmax_head(a, scores_of(a, x, &h), stats_of(a, x, &h), keys);
    decay = emit_splat(e, decay);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, x->row), e->vl, 0, NULL);
    LLVMValueRef at = attn_f32(a, sums, l.i);
    LLVMValueRef sum = emit_load(e, e->vf32, at, NULL, 4);
    emit_store(e, emit_fmul(e, sum, decay), at, NULL, 4);
    loop_end(e, &l, NULL);
    heads_end(a, &h);
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
            x[i] = attn_load(a, from, some);
            continue;
        }
        Pairs columns = emit_wide_pairs(e, load_bits(a, from, some));
        x[i] = columns.first, x[i + 1] = columns.second;
    }
}

/* A product of probabilities with rows of values, and what it fetches meanwhile. */
typedef struct Values {
    LLVMValueRef p, v, sums, keys, ahead;
} Values;

/* `n` vectors of the sums of values from column c on, the last of them masked. */
static void value_span(const Attn *a, const Values *m, LLVMValueRef c, int n,
                       LLVMValueRef mask) {
    Emit *e = a->e;
    LLVMValueRef sum[WIDE], x[WIDE], to = attn_f32(a, m->sums, c);
    LLVMValueRef v = attn_element(a, m->v, c), ahead = attn_element(a, m->ahead, c);
    for (int i = 0; i < n; i++)
        sum[i] = emit_load(e, e->vf32, emit_at(e, e->f32, to, i * e->vl), NULL, 4);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), m->keys, 1, n, sum);
    LLVMValueRef p = emit_load(e, e->f32, attn_f32(a, m->p, l.i), NULL, 4);
    p = emit_splat(e, p);
    LLVMValueRef row = emit_muli(e, l.i, a->kv_row);
    fetch_numbers(a, attn_element(a, ahead, row), n * e->vl);
    load_values(a, attn_element(a, v, row), n, mask, x);
    for (int i = 0; i < n; i++) sum[i] = emit_fma(e, p, x[i], l.carry[i]);
    loop_end(e, &l, sum);
    for (int i = 0; i < n; i++)
        emit_store(e, l.carry[i], emit_at(e, e->f32, to, i * e->vl), NULL, 4);
}

/* name.values(v, work, heads, from, keys, ahead): sums += p V of at most vl keys, number `from`
 * of a block and on, for all query heads of `heads` kv heads. */
static void values_emit(const Attn *a, const TokenState *x) {
    Emit *e = a->e;
    int64_t span = WIDE * e->vl, whole = a->s.dim / span * span, left = a->s.dim - whole;
    attn_func(a, "values", "ppiiip");
    Heads h;
    heads_begin(a, x, &h, emit_param(e, 1), emit_param(e, 2));
    LLVMValueRef v = attn_element(a, emit_param(e, 0), h.column);
    Values m = {.p = attn_f32(a, scores_of(a, x, &h), emit_param(e, 3)),
                .v = v,
                .sums = sums_of(a, x, &h),
                .keys = emit_param(e, 4),
                .ahead = ahead_of(a, &h, emit_param(e, 5), v)};
    if (whole) {
        Loop l;
        loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, whole), span, 0, NULL);
        value_span(a, &m, l.i, WIDE, NULL);
        loop_end(e, &l, NULL);
    }
    if (left) {
        int n = (int)(round_up(left, attn_token_numbers(a)) / e->vl);
        value_span(a, &m, emit_i64(e, whole), n, attn_token_mask(a));
    }
    heads_end(a, &h);
    emit_ret(e, NULL);
}

/* Rows of one operand, a tile of vl keys at a time, for scores or values. The last tile fetches
 * what is read after them. */
typedef struct Tile {
    Loop l;
    LLVMValueRef row, keys, ahead;
} Tile;

static void tile_begin(const Attn *a, Tile *t, LLVMValueRef rows, LLVMValueRef keys,
                       LLVMValueRef next) {
    Emit *e = a->e;
    LLVMValueRef vl = emit_i64(e, e->vl);
    loop_begin(e, &t->l, emit_i64(e, 0), keys, e->vl, 0, NULL);
    LLVMValueRef left = emit_sub(e, keys, t->l.i);
    LLVMValueRef last = emit_icmp(e, LLVMIntSLE, left, vl);
    t->keys = emit_imin(e, left, vl);
    t->row = attn_element(a, rows, emit_muli(e, t->l.i, a->kv_row));
    t->ahead = attn_element(a, t->row, emit_i64(e, e->vl * a->kv_row));
    t->ahead = emit_select(e, last, next, t->ahead);
}

/* name.block(q, k, v, work, heads, keys, next): a block of keys for `heads` kv heads; the keys
 * that follow are at `next`. */
static void block_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "block", "ppppiip");
    LLVMValueRef q = emit_param(e, 0), k = emit_param(e, 1), v = emit_param(e, 2);
    LLVMValueRef work = emit_param(e, 3), heads = emit_param(e, 4);
    LLVMValueRef keys = emit_param(e, 5);
    Tile t;
    tile_begin(a, &t, k, keys, v);
    ATTN_CALL(a, "scores", q, t.row, work, heads, t.l.i, t.keys, t.ahead);
    loop_end(e, &t.l, NULL);
    ATTN_CALL(a, "softmax", work, heads, keys);
    tile_begin(a, &t, v, keys, emit_param(e, 6));
    ATTN_CALL(a, "values", t.row, work, heads, t.l.i, t.keys, t.ahead);
    loop_end(e, &t.l, NULL);
    emit_ret(e, NULL);
}

void attn_token_block_emit(const Attn *a, const TokenState *x) {
    scores_emit(a, x);
    softmax_emit(a, x);
    values_emit(a, x);
    block_emit(a);
}
