/* attention_pack.c - see attention_pack.h. */
#include "codegen/attention_pack.h"
#include "codegen/tile_ops.h"

/* Words w.. of a row of a head, `width` of them. Of bf16 every word holds two numbers,
 * maybe but the last of the head, which gets a 0. */
static LLVMValueRef load_words(const Attn *a, LLVMValueRef row, LLVMValueRef w,
                               int width) {
    Emit *e = a->e;
    if (!a->narrow) {
        LLVMValueRef mask = width < e->vl ? emit_tail_mask(e, emit_i64(e, width)) : NULL;
        return emit_load(e, e->vf32, attn_f32(a, row, w), mask, 4);
    }
    LLVMValueRef at = attn_element(a, row, emit_mul(e, w, emit_i64(e, 2)));
    if (width == e->vl && a->s.dim % 2 == 0) return emit_load(e, e->vf32, at, NULL, 2);
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef lane[32],
        n = emit_sub(e, emit_i64(e, a->s.dim), emit_mul(e, w, emit_i64(e, 2)));
    for (int i = 0; i < 2 * e->vl; i++) lane[i] = emit_i32(e, i);
    LLVMValueRef iota = LLVMConstVector(lane, (unsigned)(2 * e->vl));
    n = emit_imin(e, n, emit_i64(e, 2 * width));
    n = emit_splat_n(e, LLVMBuildTrunc(e->b, n, e->i32, ""), 2 * e->vl);
    LLVMValueRef mask = LLVMBuildICmp(e->b, LLVMIntSLT, iota, n, "");
    LLVMValueRef x = emit_load(e, halves, at, mask, 2);
    return LLVMBuildBitCast(e->b, x, e->vf32, "");
}

static void pack_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef w0, int width) {
    Emit *e = a->e;
    LLVMValueRef v[16], src = emit_param(e, 0), dst = emit_param(e, 1);
    LLVMValueRef last = emit_sub(e, emit_param(e, 2), emit_i64(e, 1));
    LLVMValueRef scale = emit_splat(e, emit_param(e, 3));
    for (int t = 0; t < e->vl; t++) {
        LLVMValueRef row = emit_imin(e, emit_add(e, r0, emit_i64(e, t)), last);
        LLVMValueRef at = emit_mul(e, row, emit_i64(e, a->q_row));
        v[t] = load_words(a, attn_element(a, src, at), w0, width);
    }
    emit_transpose(e, v);
    LLVMValueRef at = emit_add(e, emit_mul(e, w0, emit_i64(e, a->bq)), r0);
    LLVMValueRef base = attn_f32(a, dst, at);
    const int rows = a->strips > 1 ? e->vl : width; /* strips go on with zeros */
    for (int x = 0; x < rows; x++) {
        LLVMValueRef to = emit_at(e, e->f32, base, x * a->bq);
        if (!a->narrow) v[x] = emit_fmul(e, v[x], scale);
        emit_store(e, v[x], to, NULL, 4);
    }
}

/* `width` values of the row, from number d on, if there is such a row. */
static void unpack_row(const Attn *a, LLVMValueRef value, LLVMValueRef row,
                       LLVMValueRef d, int width) {
    Emit *e = a->e;
    LLVMValueRef dst = emit_param(e, 1), rows = emit_param(e, 2);
    LLVMValueRef there = LLVMBuildICmp(e->b, LLVMIntSLT, row, rows, "");
    LLVMValueRef at = emit_add(e, emit_mul(e, row, emit_i64(e, a->q_row)), d);
    LLVMValueRef to = attn_element(a, dst, at);
    if (!a->narrow) {
        LLVMValueRef n = emit_select(e, there, emit_i64(e, width), emit_i64(e, 0));
        emit_store(e, value, to, emit_tail_mask(e, n), 4);
        return;
    }
    If s; /* AVX2 has no masks for 16 bits */
    if_begin(e, &s, there);
    LLVMValueRef mask = width < e->vl ? emit_tail_mask(e, emit_i64(e, width)) : NULL;
    emit_store_narrow(e, DT_BF16, value, to, mask);
    if_end(e, &s);
}

/* factor: of the queries from r0 on, or NULL. */
static void unpack_times(const Attn *a, LLVMValueRef r0, LLVMValueRef d0, int width,
                         LLVMValueRef factor) {
    Emit *e = a->e;
    LLVMValueRef v[16], src = emit_param(e, 0);
    LLVMValueRef at = emit_add(e, emit_mul(e, d0, emit_i64(e, a->bq)), r0);
    LLVMValueRef base = attn_f32(a, src, at);
    for (int x = 0; x < e->vl; x++) {
        LLVMValueRef from = emit_at(e, e->f32, base, x * a->bq);
        v[x] = LLVMConstNull(e->vf32);
        if (x < width) v[x] = emit_load(e, e->vf32, from, NULL, 4);
        if (x < width && factor) v[x] = emit_fmul(e, v[x], factor);
    }
    emit_transpose(e, v);
    for (int t = 0; t < e->vl; t++)
        unpack_row(a, v[t], emit_add(e, r0, emit_i64(e, t)), d0, width);
}

static void unpack_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef d0, int width) {
    Emit *e = a->e;
    LLVMValueRef factor = attn_f32(a, emit_param(e, 3), r0);
    unpack_times(a, r0, d0, width, emit_load(e, e->vf32, factor, NULL, 4));
}

static void turn_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef d0, int width) {
    unpack_times(a, r0, d0, width, NULL);
}

/* Tiles of vl rows and of vl of the n columns. */
static void tiles_emit(const Attn *a, const char *part, int64_t n,
                       void (*tile)(const Attn *, LLVMValueRef, LLVMValueRef, int),
                       const char *sig) {
    Emit *e = a->e;
    int64_t whole = n / e->vl * e->vl;
    Loop rows, columns;
    attn_func(a, part, sig);
    loop_begin(e, &rows, emit_i64(e, 0), emit_i64(e, a->bq), e->vl, 0, NULL);
    if (whole) {
        loop_begin(e, &columns, emit_i64(e, 0), emit_i64(e, whole), e->vl, 0, NULL);
        tile(a, rows.i, columns.i, e->vl);
        loop_end(e, &columns, NULL);
    }
    if (n > whole) tile(a, rows.i, emit_i64(e, whole), (int)(n - whole));
    loop_end(e, &rows, NULL);
    emit_ret(e, NULL);
}

void attn_pack_emit(const Attn *a) {
    tiles_emit(a, "pack", a->words, pack_tile, "ppif");
}

void attn_unpack_emit(const Attn *a) {
    tiles_emit(a, "unpack", a->s.dim, unpack_tile, "ppip");
}

void attn_turn_emit(const Attn *a, const char *part) {
    tiles_emit(a, part, a->s.dim, turn_tile, "ppi");
}

/* What a row function does with `width` columns from c on of row r. */
typedef void (*Span)(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                     int64_t stride);

/* `span` for every step-th row of [from, to) and all vectors of n columns. */
static void spans(const Attn *a, bool from_q, LLVMValueRef from, LLVMValueRef to,
                  int step, int64_t n, Span span) {
    Emit *e = a->e;
    int64_t stride = from_q ? a->q_row : a->kv_row, whole = n / e->vl * e->vl;
    Loop rows, columns;
    loop_begin(e, &rows, from, to, step, 0, NULL);
    if (whole) {
        loop_begin(e, &columns, emit_i64(e, 0), emit_i64(e, whole), e->vl, 0, NULL);
        span(a, rows.i, columns.i, e->vl, stride);
        loop_end(e, &columns, NULL);
    }
    if (n > whole) span(a, rows.i, emit_i64(e, whole), (int)(n - whole), stride);
    loop_end(e, &rows, NULL);
}

/* name.part(src, dst, rows): that of all rows. */
static void spans_emit(const Attn *a, const char *part, bool from_q, int step, int64_t n,
                       Span span) {
    Emit *e = a->e;
    attn_func(a, part, "ppi");
    spans(a, from_q, emit_i64(e, 0), emit_param(e, 2), step, n, span);
    emit_ret(e, NULL);
}

static LLVMValueRef width_mask(const Attn *a, int width) {
    return width < a->e->vl ? emit_tail_mask(a->e, emit_i64(a->e, width)) : NULL;
}

/* &src[r][c] of the rows in memory; &dst[r][c] of rows of `stride` words in scratch. */
static LLVMValueRef memory_at(const Attn *a, LLVMValueRef ptr, LLVMValueRef r,
                              LLVMValueRef c, int64_t stride) {
    Emit *e = a->e;
    return attn_element(a, ptr, emit_add(e, emit_mul(e, r, emit_i64(e, stride)), c));
}

static LLVMValueRef scratch_at(const Attn *a, LLVMValueRef ptr, LLVMValueRef r,
                               LLVMValueRef c, int64_t stride) {
    Emit *e = a->e;
    return attn_f32(a, ptr, emit_add(e, emit_mul(e, r, emit_i64(e, stride)), c));
}

static void rows_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                      int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef row = memory_at(a, emit_param(e, 0), r, emit_i64(e, 0), stride);
    LLVMValueRef to = scratch_at(a, emit_param(e, 1), r, c, a->words);
    emit_store(e, load_words(a, row, c, width), to, width_mask(a, width), 4);
}

void attn_rows_emit(const Attn *a, const char *part, bool from_q) {
    spans_emit(a, part, from_q, 1, a->words, rows_span);
}

/* Words of rows r and r + 1, which is 0 if there is none. */
static LLVMValueRef pair_of_rows(const Attn *a, LLVMValueRef r, LLVMValueRef c,
                                 LLVMValueRef mask, int64_t stride) {
    Emit *e = a->e;
    LLVMTypeRef halves = emit_vec(e->i16, e->vl);
    LLVMValueRef src = emit_param(e, 0), x[2];
    LLVMValueRef next = emit_add(e, r, emit_i64(e, 1));
    LLVMValueRef there = LLVMBuildICmp(e->b, LLVMIntSLT, next, emit_param(e, 2), "");
    next = emit_select(e, there, next, r);
    x[0] = emit_load(e, halves, memory_at(a, src, r, c, stride), mask, 2);
    x[1] = emit_load(e, halves, memory_at(a, src, next, c, stride), mask, 2);
    x[1] = emit_select(e, there, x[1], LLVMConstNull(halves));
    return emit_pair_up(e, x[0], x[1]);
}

static void pairs_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                       int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef mask = width_mask(a, width), half = emit_div(e, r, emit_i64(e, 2));
    LLVMValueRef to = scratch_at(a, emit_param(e, 1), half, c, a->s.dim);
    emit_store(e, pair_of_rows(a, r, c, mask, stride), to, mask, 4);
}

void attn_pairs_emit(const Attn *a, const char *part, bool from_q) {
    spans_emit(a, part, from_q, 2, a->s.dim, pairs_span);
}

/* Vectors of zeros at dst. */
static void clear(const Attn *a, LLVMValueRef dst, LLVMValueRef from, LLVMValueRef to) {
    Emit *e = a->e;
    Loop l;
    loop_begin(e, &l, from, to, e->vl, 0, NULL);
    emit_store(e, LLVMConstNull(e->vf32), attn_f32(a, dst, l.i), NULL, 4);
    loop_end(e, &l, NULL);
}

/* name.part(src, dst, rows): dst, of so many words, is cleared if it gets less than all rows. */
static void padded_begin(const Attn *a, const char *part, int64_t rows, int64_t words) {
    Emit *e = a->e;
    If f;
    attn_func(a, part, "ppi");
    LLVMValueRef all = emit_i64(e, rows), zero = emit_i64(e, 0);
    if_begin(e, &f, LLVMBuildICmp(e->b, LLVMIntSLT, emit_param(e, 2), all, ""));
    clear(a, emit_param(e, 1), zero, emit_i64(e, words));
    if_end(e, &f);
}

int64_t attn_tiled_block(const Attn *a) {
    return round_up(a->bk / 2, TILE_SIDE) * 2 * TILE_SIDE;
}

int64_t attn_tiled_words(const AttnShape *s, int64_t keys) {
    return round_up(keys / 2, TILE_SIDE) * attn_tiled_dim(s);
}

/* Pairs of rows r0.. and columns c.. of src, as a tile with columns for rows. whole: all rows of
 * it are there. */
static void transposed_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef c, int width,
                            int64_t stride, bool whole) {
    Emit *e = a->e;
    LLVMTypeRef halves = emit_vec(e->i16, e->vl);
    LLVMValueRef src = emit_param(e, 0), rows = emit_param(e, 2), v[TILE_SIDE];
    LLVMValueRef last = emit_sub(e, rows, emit_i64(e, 1)), mask = width_mask(a, width);
    for (int t = 0; t < TILE_SIDE; t++) {
        LLVMValueRef x[2];
        for (int i = 0; i < 2; i++) {
            LLVMValueRef r = emit_add(e, r0, emit_i64(e, 2 * t + i));
            LLVMValueRef from = whole ? r : emit_imin(e, r, last);
            x[i] = emit_load(e, halves, memory_at(a, src, from, c, stride), mask, 2);
            if (whole) continue;
            LLVMValueRef there = LLVMBuildICmp(e->b, LLVMIntSLE, r, last, "");
            x[i] = emit_select(e, there, x[i], LLVMConstNull(halves));
        }
        v[t] = LLVMBuildBitCast(e->b, emit_pair_up(e, x[0], x[1]), e->vf32, "");
    }
    emit_transpose(e, v);
    LLVMValueRef two = emit_i64(e, 2 * TILE_SIDE);
    LLVMValueRef at = emit_mul(e, emit_rem(e, c, two), emit_i64(e, TILE_SIDE));
    at = emit_plus(e, at, emit_div(e, c, two), attn_tiled_block(a));
    at = emit_plus(e, at, emit_div(e, r0, two), 2 * TILE_WORDS);
    LLVMValueRef to = attn_f32(a, emit_param(e, 1), at);
    for (int t = 0; t < TILE_SIDE; t++)
        emit_store(e, v[t], emit_at(e, e->f32, to, t * TILE_SIDE), NULL, 4);
}

static void whole_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef c, int width,
                       int64_t stride) {
    transposed_tile(a, r0, c, width, stride, true);
}

static void last_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef c, int width,
                      int64_t stride) {
    transposed_tile(a, r0, c, width, stride, false);
}

void attn_tiles_emit(const Attn *a, const char *part, bool from_q) {
    Emit *e = a->e;
    const int step = 2 * TILE_SIDE;
    check(e->vl == TILE_SIDE);
    padded_begin(a, part, a->bk, attn_tiled_words(&a->s, a->bk));
    LLVMValueRef rows = emit_param(e, 2), whole = emit_i64(e, step);
    whole = emit_mul(e, emit_div(e, rows, whole), whole);
    spans(a, from_q, emit_i64(e, 0), whole, step, a->s.dim, whole_tile);
    spans(a, from_q, whole, rows, step, a->s.dim, last_tile);
    emit_ret(e, NULL);
}

static void row_tile_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                          int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef row = memory_at(a, emit_param(e, 0), r, emit_i64(e, 0), stride);
    LLVMValueRef block = emit_i64(e, 2 * TILE_SIDE), side = emit_i64(e, TILE_SIDE);
    LLVMValueRef at = emit_mul(e, emit_div(e, r, block),
                               emit_i64(e, attn_tiled_dim(&a->s) * TILE_SIDE));
    at = emit_plus(e, at, c, 2 * TILE_SIDE);
    at = emit_plus(e, at, emit_div(e, emit_rem(e, r, block), side), TILE_WORDS);
    at = emit_plus(e, at, emit_rem(e, r, side), TILE_SIDE);
    emit_store(e, load_words(a, row, c, width), attn_f32(a, emit_param(e, 1), at), NULL,
               4);
}

void attn_row_tiles_emit(const Attn *a, const char *part) {
    Emit *e = a->e;
    padded_begin(a, part, a->bk, attn_tiled_words(&a->s, a->bk));
    spans(a, false, emit_i64(e, 0), emit_param(e, 2), 1, a->words, row_tile_span);
    emit_ret(e, NULL);
}

static void pair_strips_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                             int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef half = emit_div(e, r, emit_i64(e, 2));
    LLVMValueRef at = emit_mul(e, c, emit_i64(e, a->strips * a->bq / 2));
    at = emit_plus(e, at, half, e->vl);
    LLVMValueRef pair = pair_of_rows(a, r, c, width_mask(a, width), stride);
    emit_store(e, pair, attn_f32(a, emit_param(e, 1), at), NULL, 4);
}

void attn_pair_strips_emit(const Attn *a, const char *part) {
    Emit *e = a->e;
    const int64_t block = a->strips * a->bq;
    padded_begin(a, part, block, block / 2 * attn_tiled_dim(&a->s));
    spans(a, true, emit_i64(e, 0), emit_param(e, 2), 2, a->s.dim, pair_strips_span);
    emit_ret(e, NULL);
}

/* &src[c][r] of strips, each with the rows of all blocks of keys. */
static LLVMValueRef in_strips(const Attn *a, LLVMValueRef r, LLVMValueRef c) {
    Emit *e = a->e;
    LLVMValueRef at = emit_mul(e, c, emit_i64(e, round_up(a->s.tk, a->bk)));
    return attn_f32(a, emit_param(e, 0), emit_plus(e, at, r, TILE_SIDE));
}

/* 32 numbers of row r, from c on. */
static void round_strips_line(const Attn *a, LLVMValueRef r, LLVMValueRef c) {
    Emit *e = a->e;
    LLVMValueRef next = emit_add(e, c, emit_i64(e, TILE_SIDE)), x[2];
    x[0] = emit_load(e, e->vf32, in_strips(a, r, c), NULL, 4);
    x[1] = emit_load(e, e->vf32, in_strips(a, r, next), NULL, 4);
    LLVMValueRef to = memory_at(a, emit_param(e, 1), r, c, a->kv_row);
    LLVMValueRef line = emit_to_bf16_both(e, x[0], x[1]);
    If begins;
    if_begin(e, &begins, emit_begins_line(e, to));
    emit_stream(e, line, to);
    if_else(e, &begins);
    emit_store(e, line, to, NULL, 2);
    if_end(e, &begins);
}

void attn_round_strips_emit(const Attn *a, const char *part) {
    Emit *e = a->e;
    Loop r, c;
    const int64_t whole = a->s.dim / (2 * TILE_SIDE) * (2 * TILE_SIDE);
    attn_func(a, part, "ppi");
    loop_begin(e, &r, emit_i64(e, 0), emit_param(e, 2), 1, 0, NULL);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, whole), 2 * TILE_SIDE, 0, NULL);
    round_strips_line(a, r.i, c.i);
    loop_end(e, &c, NULL);
    for (int64_t at = whole; at < a->s.dim; at += TILE_SIDE) {
        LLVMValueRef from = emit_i64(e, at);
        LLVMValueRef x = emit_load(e, e->vf32, in_strips(a, r.i, from), NULL, 4);
        emit_store_narrow(e, DT_BF16, x,
                          memory_at(a, emit_param(e, 1), r.i, from, a->kv_row),
                          width_mask(a, (int)MIN(a->s.dim - at, TILE_SIDE)));
    }
    loop_end(e, &r, NULL);
    emit_stream_end(e);
    emit_ret(e, NULL);
}

void attn_zeros_emit(const Attn *a, const char *part) {
    attn_func(a, part, "pi");
    clear(a, emit_param(a->e, 0), emit_i64(a->e, 0), emit_param(a->e, 1));
    emit_ret(a->e, NULL);
}

static void round_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                       int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef mask = width_mask(a, width);
    LLVMValueRef from = scratch_at(a, emit_param(e, 0), r, c, a->s.dim);
    LLVMValueRef to = memory_at(a, emit_param(e, 1), r, c, stride);
    emit_store_narrow(e, DT_BF16, emit_load(e, e->vf32, from, mask, 4), to, mask);
}

void attn_round_emit(const Attn *a, const char *part, bool from_q) {
    spans_emit(a, part, from_q, 1, a->s.dim, round_span);
}

void attn_clear_emit(const Attn *a, const char *part, int64_t stride) {
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
