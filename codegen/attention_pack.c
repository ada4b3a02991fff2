/* attention_pack.c - see attention_pack.h. */
#include "codegen/attention_pack.h"
#include "codegen/attention_rows.h"
#include "codegen/tile_ops.h"
#include "codegen/turn_parts.h"

/* Rows r0.. of `rows`, the last of them again beyond, words w0.. of each, `width` of them. */
typedef struct PackTile {
    const Attn *a;
    LLVMValueRef r0, w0;
    int width;
} PackTile;

static LLVMValueRef packed_row(const Attn *a, LLVMValueRef r) {
    Emit *e = a->e;
    LLVMValueRef last = emit_subi(e, emit_param(e, 2), 1);
    LLVMValueRef at = emit_muli(e, emit_imin(e, r, last), a->q_row);
    return attn_element(a, emit_param(e, 0), at);
}

static void pack_line(const void *ctx, LLVMValueRef t, LLVMValueRef *word) {
    const PackTile *x = ctx;
    Emit *e = x->a->e;
    LLVMValueRef row = packed_row(x->a, emit_add(e, x->r0, t));
    attn_tile_words(x->a, row, x->w0, x->width, emit_splat(e, emit_param(e, 3)), word);
}

/* To strips of parts. */
static void pack_parts(const Attn *a, LLVMValueRef r0, LLVMValueRef w0, int width) {
    Emit *e = a->e;
    const PackTile x = {a, r0, w0, width};
    LLVMValueRef at = emit_muli(e, w0, a->bq * a->tile_parts);
    turn_parts(e, pack_line, &x, a->tile_parts, attn_f32(a, emit_param(e, 1), at), a->bq,
               TILE_WORDS);
}

static void pack_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef w0, int width) {
    Emit *e = a->e;
    LLVMValueRef v[16], dst = emit_param(e, 1), scale = emit_splat(e, emit_param(e, 3));
    for (int t = 0; t < e->vl; t++) {
        LLVMValueRef row = packed_row(a, emit_addi(e, r0, t));
        v[t] = attn_load_words(a, row, w0, width);
    }
    emit_transpose(e, v);
    LLVMValueRef at = emit_add(e, emit_muli(e, w0, a->bq), r0);
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
    LLVMValueRef there = emit_icmp(e, LLVMIntSLT, row, rows);
    LLVMValueRef at = emit_add(e, emit_muli(e, row, a->q_row), d);
    LLVMValueRef to = attn_element(a, dst, at);
    if (a->s.dt == DT_F32) {
        LLVMValueRef n = emit_select(e, there, emit_i64(e, width), emit_i64(e, 0));
        emit_store(e, value, to, emit_tail_mask(e, n), 4);
        return;
    }
    If s; /* AVX2 has no masks for 16 bits */
    if_begin(e, &s, there);
    LLVMValueRef mask = width < e->vl ? emit_tail_mask(e, emit_i64(e, width)) : NULL;
    emit_store_narrow(e, a->s.dt, value, to, mask);
    if_end(e, &s);
}

/* Times the factors of the queries, if the function has a parameter for them. */
static void unpack_tile(const Attn *a, LLVMValueRef r0, LLVMValueRef d0, int width) {
    Emit *e = a->e;
    LLVMValueRef v[16], src = emit_param(e, 0), factor = NULL;
    if (LLVMCountParams(e->fn) > 3)
        factor = emit_load(e, e->vf32, attn_f32(a, emit_param(e, 3), r0), NULL, 4);
    LLVMValueRef at = emit_add(e, emit_muli(e, d0, a->bq), r0);
    LLVMValueRef base = attn_f32(a, src, at);
    for (int x = 0; x < e->vl; x++) {
        LLVMValueRef from = emit_at(e, e->f32, base, x * a->bq);
        v[x] = LLVMConstNull(e->vf32);
        if (x < width) v[x] = emit_load(e, e->vf32, from, NULL, 4);
        if (x < width && factor) v[x] = emit_fmul(e, v[x], factor);
    }
    emit_transpose(e, v);
    for (int t = 0; t < e->vl; t++) unpack_row(a, v[t], emit_addi(e, r0, t), d0, width);
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

void attn_turn_emit(const Attn *a) {
    tiles_emit(a, "round_q", a->s.dim, unpack_tile, "ppi");
}

/* name.part(src, dst, rows): that of all rows. */
static void spans_emit(const Attn *a, const char *part, bool from_q, int step, int64_t n,
                       AttnSpan span) {
    Emit *e = a->e;
    attn_func(a, part, "ppi");
    attn_spans(a, from_q, emit_i64(e, 0), emit_param(e, 2), step, n, span);
    emit_ret(e, NULL);
}

/* &dst[r][c] of rows of `stride` words in scratch. */
static LLVMValueRef scratch_at(const Attn *a, LLVMValueRef ptr, LLVMValueRef r,
                               LLVMValueRef c, int64_t stride) {
    Emit *e = a->e;
    return attn_f32(a, ptr, emit_add(e, emit_muli(e, r, stride), c));
}

static void rows_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                      int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef row = attn_memory_at(a, emit_param(e, 0), r, emit_i64(e, 0), stride);
    LLVMValueRef to = scratch_at(a, emit_param(e, 1), r, c, a->words);
    emit_store(e, attn_load_words(a, row, c, width), to, attn_width_mask(a, width), 4);
}

void attn_rows_emit(const Attn *a, const char *part, bool from_q) {
    spans_emit(a, part, from_q, 1, a->words, rows_span);
}

static void pairs_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                       int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef mask = attn_width_mask(a, width), half = emit_divi(e, r, 2);
    LLVMValueRef to = scratch_at(a, emit_param(e, 1), half, c, a->s.dim), word;
    attn_pair_of_rows(a, r, c, mask, stride, &word);
    emit_store(e, word, to, mask, 4);
}

void attn_pairs_emit(const Attn *a, const char *part, bool from_q) {
    spans_emit(a, part, from_q, 2, a->s.dim, pairs_span);
}

void attn_zeros_emit(const Attn *a, const char *part) {
    attn_func(a, part, "pi");
    attn_zeros(a, emit_param(a->e, 0), emit_i64(a->e, 0), emit_param(a->e, 1));
    emit_ret(a->e, NULL);
}

static void round_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                       int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef mask = attn_width_mask(a, width);
    LLVMValueRef from = scratch_at(a, emit_param(e, 0), r, c, a->s.dim);
    LLVMValueRef to = attn_memory_at(a, emit_param(e, 1), r, c, stride);
    attn_store(a, emit_load(e, e->vf32, from, mask, 4), to, mask);
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
    LLVMValueRef at = emit_muli(e, l.i, stride);
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
