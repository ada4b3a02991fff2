/* attention_pack.c - see attention_pack.h. */
#include "codegen/attention_pack.h"
#include "codegen/tile_ops.h"
#include "codegen/turn_parts.h"

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

/* vl numbers of f32 of a row from number n of the head on; `some`: there may be less. */
static LLVMValueRef load_numbers(const Attn *a, LLVMValueRef row, LLVMValueRef n,
                                 bool some) {
    Emit *e = a->e;
    LLVMValueRef left = emit_sub(e, emit_i64(e, a->s.dim), n);
    LLVMValueRef mask = some ? emit_tail_mask(e, left) : NULL;
    return emit_load(e, e->vf32, attn_f32(a, row, n), mask, 4);
}

/* Words w.. of a row of a head as tiles have them, of each part; f32 times `scale`, or NULL. */
static void tile_words(const Attn *a, LLVMValueRef row, LLVMValueRef w, int width,
                       LLVMValueRef scale, LLVMValueRef *word) {
    Emit *e = a->e;
    if (a->narrow) {
        word[0] = load_words(a, row, w, width);
        return;
    }
    const bool some = width < e->vl || a->s.dim % 2;
    LLVMValueRef first = emit_mul(e, w, emit_i64(e, 2)), part[2][BF16_PARTS];
    for (int i = 0; i < 2; i++) {
        LLVMValueRef n = emit_add(e, first, emit_i64(e, i * e->vl));
        LLVMValueRef x = load_numbers(a, row, n, some);
        if (scale) x = emit_fmul(e, x, scale);
        emit_split_bf16(e, x, part[i]);
    }
    for (int q = 0; q < a->tile_parts; q++)
        word[q] = emit_pair_up_parts(e, part[0][q], part[1][q], true);
}

/* Rows r0.. of `rows`, the last of them again beyond, words w0.. of each, `width` of them. */
typedef struct PackTile {
    const Attn *a;
    LLVMValueRef r0, w0;
    int width;
} PackTile;

static LLVMValueRef packed_row(const Attn *a, LLVMValueRef r) {
    Emit *e = a->e;
    LLVMValueRef last = emit_sub(e, emit_param(e, 2), emit_i64(e, 1));
    LLVMValueRef at = emit_mul(e, emit_imin(e, r, last), emit_i64(e, a->q_row));
    return attn_element(a, emit_param(e, 0), at);
}

static void pack_line(const void *ctx, LLVMValueRef t, LLVMValueRef *word) {
    const PackTile *x = ctx;
    Emit *e = x->a->e;
    LLVMValueRef row = packed_row(x->a, emit_add(e, x->r0, t));
    tile_words(x->a, row, x->w0, x->width, emit_splat(e, emit_param(e, 3)), word);
}

/* To strips of parts. */
static void pack_parts(const Attn *a, LLVMValueRef r0, LLVMValueRef w0, int width) {
    Emit *e = a->e;
    const PackTile x = {a, r0, w0, width};
    LLVMValueRef at = emit_mul(e, w0, emit_i64(e, a->bq * a->tile_parts));
    turn_parts(e, pack_line, &x, a->tile_parts, attn_f32(a, emit_param(e, 1), at), a->bq,
               TILE_WORDS);
}

static void pack_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef w0, int width) {
    Emit *e = a->e;
    LLVMValueRef v[16], dst = emit_param(e, 1), scale = emit_splat(e, emit_param(e, 3));
    for (int t = 0; t < e->vl; t++) {
        LLVMValueRef row = packed_row(a, emit_add(e, r0, emit_i64(e, t)));
        v[t] = load_words(a, row, w0, width);
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
    const bool parts = a->tiles && a->tile_parts > 1;
    tiles_emit(a, "pack", a->words, parts ? pack_parts : pack_tile, "ppif");
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

/* Two vectors of numbers of neighbouring rows to pairs, of each part. */
static void pair_words(const Attn *a, const LLVMValueRef *x, LLVMValueRef *word) {
    Emit *e = a->e;
    LLVMValueRef part[2][BF16_PARTS];
    if (a->narrow) {
        word[0] = emit_pair_up(e, x[0], x[1]);
        return;
    }
    for (int i = 0; i < 2; i++) emit_split_bf16(e, x[i], part[i]);
    for (int q = 0; q < a->tile_parts; q++)
        word[q] = emit_pair_up_parts(e, part[0][q], part[1][q], false);
}

/* vl numbers of a row, as they are in memory. */
static LLVMValueRef load_row(const Attn *a, LLVMValueRef at, LLVMValueRef mask) {
    Emit *e = a->e;
    if (!a->narrow) return emit_load(e, e->vf32, at, mask, 4);
    return emit_load(e, emit_vec(e->i16, e->vl), at, mask, 2);
}

/* Words of rows r and r + 1, which is 0 if there is none. */
static void pair_of_rows(const Attn *a, LLVMValueRef r, LLVMValueRef c, LLVMValueRef mask,
                         int64_t stride, LLVMValueRef *word) {
    Emit *e = a->e;
    LLVMValueRef src = emit_param(e, 0), x[2];
    LLVMValueRef next = emit_add(e, r, emit_i64(e, 1));
    LLVMValueRef there = LLVMBuildICmp(e->b, LLVMIntSLT, next, emit_param(e, 2), "");
    next = emit_select(e, there, next, r);
    x[0] = load_row(a, memory_at(a, src, r, c, stride), mask);
    x[1] = load_row(a, memory_at(a, src, next, c, stride), mask);
    x[1] = emit_select(e, there, x[1], LLVMConstNull(LLVMTypeOf(x[1])));
    pair_words(a, x, word);
}

static void pairs_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                       int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef mask = width_mask(a, width), half = emit_div(e, r, emit_i64(e, 2));
    LLVMValueRef to = scratch_at(a, emit_param(e, 1), half, c, a->s.dim), word;
    pair_of_rows(a, r, c, mask, stride, &word);
    emit_store(e, word, to, mask, 4);
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
    return round_up(a->bk / 2, TILE_SIDE) * 2 * TILE_SIDE * a->tile_parts;
}

int64_t attn_tiled_words(const AttnShape *s, int64_t keys) {
    return round_up(keys / 2, TILE_SIDE) * attn_tiled_dim(s) * attn_tile_parts(s);
}

/* Pairs of rows r0.. and columns c.. of src. whole: all rows of it are there. */
typedef struct PairsTile {
    const Attn *a;
    LLVMValueRef r0, c;
    int width;
    int64_t stride;
    bool whole;
} PairsTile;

static void pairs_line(const void *ctx, LLVMValueRef t, LLVMValueRef *word) {
    const PairsTile *p = ctx;
    const Attn *a = p->a;
    Emit *e = a->e;
    LLVMValueRef last = emit_sub(e, emit_param(e, 2), emit_i64(e, 1)), x[2];
    LLVMValueRef mask = width_mask(a, p->width);
    for (int i = 0; i < 2; i++) {
        LLVMValueRef r = emit_add(e, p->r0, emit_i64(e, i));
        r = emit_plus(e, r, t, 2);
        LLVMValueRef from = p->whole ? r : emit_imin(e, r, last);
        x[i] = load_row(a, memory_at(a, emit_param(e, 0), from, p->c, p->stride), mask);
        if (p->whole) continue;
        LLVMValueRef there = LLVMBuildICmp(e->b, LLVMIntSLE, r, last, "");
        x[i] = emit_select(e, there, x[i], LLVMConstNull(LLVMTypeOf(x[i])));
    }
    pair_words(a, x, word);
}

/* As a tile with columns for rows. */
static void transposed_tile(const PairsTile *p) {
    const Attn *a = p->a;
    Emit *e = a->e;
    LLVMValueRef two = emit_i64(e, 2 * TILE_SIDE), v[TILE_SIDE], word;
    LLVMValueRef at = emit_mul(e, emit_rem(e, p->c, two), emit_i64(e, TILE_SIDE));
    at = emit_plus(e, at, emit_div(e, p->c, two), attn_tiled_block(a));
    at = emit_plus(e, at, emit_div(e, p->r0, two), 2 * TILE_WORDS * a->tile_parts);
    LLVMValueRef to = attn_f32(a, emit_param(e, 1), at);
    if (a->tile_parts > 1) {
        turn_parts(e, pairs_line, p, a->tile_parts, to, TILE_SIDE, 2 * TILE_WORDS);
        return;
    }
    for (int t = 0; t < TILE_SIDE; t++) {
        pairs_line(p, emit_i64(e, t), &word);
        v[t] = LLVMBuildBitCast(e->b, word, e->vf32, "");
    }
    emit_transpose(e, v);
    for (int t = 0; t < TILE_SIDE; t++)
        emit_store(e, v[t], emit_at(e, e->f32, to, t * TILE_SIDE), NULL, 4);
}

static void whole_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef c, int width,
                       int64_t stride) {
    transposed_tile(&(PairsTile){a, r0, c, width, stride, true});
}

static void last_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef c, int width,
                      int64_t stride) {
    transposed_tile(&(PairsTile){a, r0, c, width, stride, false});
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
    const int64_t words = attn_tiled_dim(&a->s) * TILE_SIDE * a->tile_parts;
    LLVMValueRef at = emit_mul(e, emit_div(e, r, block), emit_i64(e, words));
    at = emit_plus(e, at, c, 2 * TILE_SIDE * a->tile_parts);
    at = emit_plus(e, at, emit_div(e, emit_rem(e, r, block), side), TILE_WORDS);
    at = emit_plus(e, at, emit_rem(e, r, side), TILE_SIDE);
    LLVMValueRef to = attn_f32(a, emit_param(e, 1), at), word[BF16_PARTS];
    tile_words(a, row, c, width, NULL, word);
    for (int q = 0; q < a->tile_parts; q++)
        emit_store(e, word[q], emit_at(e, e->f32, to, q * 2 * TILE_WORDS), NULL, 4);
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
    LLVMValueRef half = emit_div(e, r, emit_i64(e, 2)), side = emit_i64(e, TILE_SIDE);
    const int64_t words = a->strips * a->bq / 2 * a->tile_parts;
    LLVMValueRef at = emit_mul(e, c, emit_i64(e, words)), word[BF16_PARTS];
    at = emit_plus(e, at, emit_div(e, half, side), TILE_WORDS * a->tile_parts);
    at = emit_plus(e, at, emit_rem(e, half, side), TILE_SIDE);
    LLVMValueRef to = attn_f32(a, emit_param(e, 1), at);
    pair_of_rows(a, r, c, width_mask(a, width), stride, word);
    for (int q = 0; q < a->tile_parts; q++)
        emit_store(e, word[q], emit_at(e, e->f32, to, q * TILE_WORDS), NULL, 4);
}

void attn_pair_strips_emit(const Attn *a, const char *part) {
    Emit *e = a->e;
    const int64_t block = a->strips * a->bq;
    padded_begin(a, part, block, block / 2 * attn_tiled_dim(&a->s) * a->tile_parts);
    spans(a, true, emit_i64(e, 0), emit_param(e, 2), 2, a->s.dim, pair_strips_span);
    emit_ret(e, NULL);
}

/* &src[c][r] of strips, each with the rows of all blocks of keys. */
static LLVMValueRef in_strips(const Attn *a, LLVMValueRef r, LLVMValueRef c) {
    Emit *e = a->e;
    LLVMValueRef at = emit_mul(e, c, emit_i64(e, round_up(a->s.tk, a->bk)));
    return attn_f32(a, emit_param(e, 0), emit_plus(e, at, r, TILE_SIDE));
}

/* A line of row r, from c on. */
static void round_strips_line(const Attn *a, LLVMValueRef r, LLVMValueRef c) {
    Emit *e = a->e;
    LLVMValueRef line = emit_load(e, e->vf32, in_strips(a, r, c), NULL, 4);
    LLVMValueRef to = memory_at(a, emit_param(e, 1), r, c, a->kv_row);
    if (a->narrow) {
        LLVMValueRef next = emit_add(e, c, emit_i64(e, TILE_SIDE));
        next = emit_load(e, e->vf32, in_strips(a, r, next), NULL, 4);
        line = emit_to_bf16_both(e, line, next);
    }
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
    const int line = (a->narrow ? 2 : 1) * TILE_SIDE;
    const int64_t whole = a->s.dim / line * line;
    attn_func(a, part, "ppi");
    loop_begin(e, &r, emit_i64(e, 0), emit_param(e, 2), 1, 0, NULL);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, whole), line, 0, NULL);
    round_strips_line(a, r.i, c.i);
    loop_end(e, &c, NULL);
    for (int64_t at = whole; at < a->s.dim; at += TILE_SIDE) {
        LLVMValueRef from = emit_i64(e, at);
        LLVMValueRef x = emit_load(e, e->vf32, in_strips(a, r.i, from), NULL, 4);
        attn_store(a, x, memory_at(a, emit_param(e, 1), r.i, from, a->kv_row),
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

void attn_fetch(const Attn *a, LLVMValueRef ptr, LLVMValueRef rows, int64_t row) {
    Emit *e = a->e;
    const int64_t bytes = (a->narrow ? 2 : 4) * a->s.dim;
    Loop r;
    loop_begin(e, &r, emit_i64(e, 0), rows, 1, 0, NULL);
    LLVMValueRef from = attn_element(a, ptr, emit_mul(e, r.i, emit_i64(e, row)));
    for (int64_t byte = 0; byte < bytes; byte += EMIT_LINE_BYTES)
        emit_prefetch(e, emit_at(e, e->i8, from, byte), false, 2);
    loop_end(e, &r, NULL);
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
