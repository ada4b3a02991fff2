/* attention_tiles.c - between rows of heads in memory and tiles (attention_pack.h). */
#include "codegen/attention_pack.h"
#include "codegen/attention_rows.h"
#include "codegen/tile_ops.h"
#include "codegen/turn_parts.h"

/* name.part(src, dst, rows): dst, of so many words, is cleared if it gets less than all rows. */
static void padded_begin(const Attn *a, const char *part, int64_t rows, int64_t words) {
    Emit *e = a->e;
    If f;
    attn_func(a, part, "ppi");
    LLVMValueRef all = emit_i64(e, rows), zero = emit_i64(e, 0);
    if_begin(e, &f, emit_icmp(e, LLVMIntSLT, emit_param(e, 2), all));
    attn_zeros(a, emit_param(e, 1), zero, emit_i64(e, words));
    if_end(e, &f);
}

int64_t attn_tiled_block(const Attn *a) {
    return round_up(a->bk / 2, TILE_SIDE) * 2 * TILE_SIDE * a->tile_parts;
}

int64_t attn_tiled_words(const AttnShape *s, int64_t keys) {
    return round_up(keys / 2, TILE_SIDE) * attn_tiled_dim(s) * attn_tile_parts(s);
}

LLVMValueRef attn_tiles_before(const Attn *a, LLVMValueRef block) {
    return emit_muli(a->e, block, attn_tiled_words(&a->s, a->bk));
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
    LLVMValueRef last = emit_subi(e, emit_param(e, 2), 1), x[2];
    LLVMValueRef mask = attn_width_mask(a, p->width);
    for (int i = 0; i < 2; i++) {
        LLVMValueRef r = emit_addi(e, p->r0, i);
        r = emit_plus(e, r, t, 2);
        LLVMValueRef from = p->whole ? r : emit_imin(e, r, last);
        x[i] = attn_load_row(
            a, attn_memory_at(a, emit_param(e, 0), from, p->c, p->stride), mask);
        if (p->whole) continue;
        LLVMValueRef there = emit_icmp(e, LLVMIntSLE, r, last);
        x[i] = emit_select(e, there, x[i], LLVMConstNull(LLVMTypeOf(x[i])));
    }
    attn_pair_words(a, x, word);
}

/* As a tile with columns for rows. */
static void transposed_tile(const PairsTile *p) {
    const Attn *a = p->a;
    Emit *e = a->e;
    LLVMValueRef two = emit_i64(e, 2 * TILE_SIDE), v[TILE_SIDE], word;
    LLVMValueRef at = emit_muli(e, emit_rem(e, p->c, two), TILE_SIDE);
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
    attn_spans(a, from_q, emit_i64(e, 0), whole, step, a->s.dim, whole_tile);
    attn_spans(a, from_q, whole, rows, step, a->s.dim, last_tile);
    emit_ret(e, NULL);
}

static void row_tile_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                          int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef row = attn_memory_at(a, emit_param(e, 0), r, emit_i64(e, 0), stride);
    LLVMValueRef block = emit_i64(e, 2 * TILE_SIDE), side = emit_i64(e, TILE_SIDE);
    const int64_t words = attn_tiled_dim(&a->s) * TILE_SIDE * a->tile_parts;
    LLVMValueRef at = emit_muli(e, emit_div(e, r, block), words);
    at = emit_plus(e, at, c, 2 * TILE_SIDE * a->tile_parts);
    at = emit_plus(e, at, emit_div(e, emit_rem(e, r, block), side), TILE_WORDS);
    at = emit_plus(e, at, emit_rem(e, r, side), TILE_SIDE);
    LLVMValueRef to = attn_f32(a, emit_param(e, 1), at), word[BF16_PARTS];
    attn_tile_words(a, row, c, width, NULL, word);
    for (int q = 0; q < a->tile_parts; q++)
        emit_store(e, word[q], emit_at(e, e->f32, to, q * 2 * TILE_WORDS), NULL, 4);
}

void attn_row_tiles_emit(const Attn *a, const char *part) {
    Emit *e = a->e;
    padded_begin(a, part, a->bk, attn_tiled_words(&a->s, a->bk));
    attn_spans(a, false, emit_i64(e, 0), emit_param(e, 2), 1, a->words, row_tile_span);
    emit_ret(e, NULL);
}

static void pair_strips_span(const Attn *a, LLVMValueRef r, LLVMValueRef c, int width,
                             int64_t stride) {
    Emit *e = a->e;
    LLVMValueRef half = emit_divi(e, r, 2), side = emit_i64(e, TILE_SIDE);
    const int64_t words = a->strips * a->bq / 2 * a->tile_parts;
    LLVMValueRef at = emit_muli(e, c, words), word[BF16_PARTS];
    at = emit_plus(e, at, emit_div(e, half, side), TILE_WORDS * a->tile_parts);
    at = emit_plus(e, at, emit_rem(e, half, side), TILE_SIDE);
    LLVMValueRef to = attn_f32(a, emit_param(e, 1), at);
    attn_pair_of_rows(a, r, c, attn_width_mask(a, width), stride, word);
    for (int q = 0; q < a->tile_parts; q++)
        emit_store(e, word[q], emit_at(e, e->f32, to, q * TILE_WORDS), NULL, 4);
}

void attn_pair_strips_emit(const Attn *a, const char *part) {
    Emit *e = a->e;
    const int64_t block = a->strips * a->bq;
    padded_begin(a, part, block, block / 2 * attn_tiled_dim(&a->s) * a->tile_parts);
    attn_spans(a, true, emit_i64(e, 0), emit_param(e, 2), 2, a->s.dim, pair_strips_span);
    emit_ret(e, NULL);
}

/* &src[c][r] of strips, each with the rows of all blocks of keys. */
static LLVMValueRef in_strips(const Attn *a, LLVMValueRef r, LLVMValueRef c) {
    Emit *e = a->e;
    LLVMValueRef at = emit_muli(e, c, round_up(a->s.tk, a->bk));
    return attn_f32(a, emit_param(e, 0), emit_plus(e, at, r, TILE_SIDE));
}

/* A line of row r, from c on. */
static void round_strips_line(const Attn *a, LLVMValueRef r, LLVMValueRef c) {
    Emit *e = a->e;
    LLVMValueRef line = emit_load(e, e->vf32, in_strips(a, r, c), NULL, 4);
    LLVMValueRef to = attn_memory_at(a, emit_param(e, 1), r, c, a->kv_row);
    if (dtype_is_narrow(a->s.dt)) {
        LLVMValueRef next = emit_addi(e, c, TILE_SIDE);
        next = emit_load(e, e->vf32, in_strips(a, r, next), NULL, 4);
        line = emit_to_narrow_both(e, a->s.dt, line, next);
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
    const int line = EMIT_LINE_BYTES / dtype_bytes[a->s.dt];
    const int64_t whole = a->s.dim / line * line;
    attn_func(a, part, "ppi");
    loop_begin(e, &r, emit_i64(e, 0), emit_param(e, 2), 1, 0, NULL);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, whole), line, 0, NULL);
    round_strips_line(a, r.i, c.i);
    loop_end(e, &c, NULL);
    for (int64_t at = whole; at < a->s.dim; at += TILE_SIDE) {
        LLVMValueRef from = emit_i64(e, at);
        LLVMValueRef x = emit_load(e, e->vf32, in_strips(a, r.i, from), NULL, 4);
        attn_store(a, x, attn_memory_at(a, emit_param(e, 1), r.i, from, a->kv_row),
                   attn_width_mask(a, (int)MIN(a->s.dim - at, TILE_SIDE)));
    }
    loop_end(e, &r, NULL);
    emit_stream_end(e);
    emit_ret(e, NULL);
}
