/* tiles_result.c - what products by tile registers fetch while they run, and where their sums go
 * (tiles_parts.h).
 *
 * What comes from further away than the second cache is fetched in even shares with each step of
 * k: a burst of fetches holds up the loads behind it. Lines of C go past the caches: a thread of
 * an Intel Xeon (Emerald Rapids) writes 20 GB/s of them, and 7 of lines that it has to read
 * first. */
#include "codegen/tiles_parts.h"

enum {
    FETCH_LINES = 8, /* at most, a step */
    FETCH_ROWS = 2,  /* of C, a step */
};

/* ---- what is fetched with a step of k ---- */

/* Column j of row r of the block. */
static LLVMValueRef c_at(const TilesBlock *b, LLVMValueRef r, LLVMValueRef j) {
    const PairsMatmul *s = b->t->p.s;
    Emit *e = b->t->p.e;
    LLVMValueRef row = emit_mul(e, emit_add(e, b->i, r), emit_i64(e, s->c_m));
    return emit_gep(e, s->rounds ? e->i16 : e->f32, b->c,
                    emit_add(e, row, emit_add(e, b->j, j)));
}

/* The panel of B that is packed next, as it is in memory: in rows of the panel, or columns of k. */
static void fetch_b(const TilesBlock *b, LLVMValueRef step, LLVMValueRef steps,
                    LLVMValueRef j) {
    const Pairs2d *p = &b->t->p;
    const PairsMatmul *s = p->s;
    Emit *e = p->e;
    LLVMValueRef strip = emit_div(e, j, emit_i64(e, TILES_WIDE));
    step = emit_add(e, step, emit_mul(e, strip, steps));
    int64_t k = 2 * p->block_words, rows = MIN(p->rows, round_up(p->s->m, TILES_WIDE));
    int64_t all =
        rows / TILES_WIDE * (p->panel / TILES_WIDE) * (p->block_words / TILES_SIDE);
    int64_t strips = s->b_n == 1 ? k : p->panel;
    int64_t lines = divided_up(2 * (s->b_n == 1 ? p->panel : k), LINE_BYTES);
    int64_t share = MIN(divided_up(strips * lines, all), FETCH_LINES);
    pairs_fetch_share(e, b->next_b, step, share, lines,
                      2 * (s->b_n == 1 ? s->b_k : s->b_n));
}

/* The next 32 columns of the packed panel, or of the one behind it. */
static void fetch_packed(const TilesBlock *b, LLVMValueRef step, LLVMValueRef j) {
    const Pairs2d *p = &b->t->p;
    Emit *e = p->e;
    LLVMValueRef next =
        emit_mul(e, emit_add(e, j, emit_i64(e, TILES_WIDE)), emit_i64(e, p->b_words * 4));
    int64_t share = MIN(divided_up(TILES_WIDE * TILES_WIDE, p->rows), FETCH_LINES);
    pairs_fetch_share(e, emit_gep(e, e->i8, b->packed, next), step, share, share,
                      share * LINE_BYTES);
}

/* Some rows of the block of C, which is added to. */
static void fetch_c(const TilesBlock *b, const GemmBlock *at, LLVMValueRef l) {
    const PairsMatmul *s = b->t->p.s;
    Emit *e = b->t->p.e;
    const int64_t each = s->rounds ? 2 : 4;
    LLVMValueRef row = emit_div(e, l, emit_i64(e, TILES_SIDE / FETCH_ROWS));
    LLVMValueRef due = LLVMBuildICmp(e->b, LLVMIntSLT, row, emit_i64(e, TILES_WIDE), "");
    if (b->last) due = LLVMBuildAnd(e->b, due, b->last, "");
    If f;
    if_begin(e, &f, due);
    LLVMValueRef c = c_at(b, emit_add(e, at->i, row), at->j);
    for (int r = 0; r < FETCH_ROWS; r++)
        for (int64_t byte = 0; byte < TILES_WIDE * each; byte += LINE_BYTES)
            emit_prefetch(e, emit_at(e, e->i8, c, r * s->c_m * each + byte), true, 3);
    if_end(e, &f);
}

void tiles_fetch_step(void *ctx, const GemmBlock *at, LLVMValueRef l) {
    const TilesBlock *b = ctx;
    Emit *e = b->t->p.e;
    LLVMValueRef side = emit_i64(e, TILES_SIDE), wide = emit_i64(e, TILES_WIDE);
    LLVMValueRef steps = emit_div(e, b->words, side);
    LLVMValueRef step = emit_mul(e, emit_div(e, at->i, wide), steps);
    step = emit_add(e, step, emit_div(e, l, side));
    LLVMValueRef blocks =
        emit_div(e, emit_add(e, b->rows, emit_i64(e, TILES_WIDE - 1)), wide);
    if (b->next_b)
        fetch_b(b, step, emit_mul(e, blocks, steps), at->j);
    else
        fetch_packed(b, step, at->j);
    if (b->t->p.s->adds) fetch_c(b, at, l);
}

/* ---- results ---- */

static LLVMValueRef with_bias(const TilesBlock *b, LLVMValueRef x, LLVMValueRef j,
                              LLVMValueRef mask) {
    Emit *e = b->t->p.e;
    if (!b->t->p.s->bias) return x;
    LLVMValueRef at = emit_gep(e, e->f32, b->bias, emit_add(e, b->j, j));
    return emit_fadd(e, x, emit_load(e, e->vf32, at, mask, 4));
}

/* Column j of a row of the block, a line of bf16 or two of f32, past the caches. */
static void stream_row(const TilesBlock *b, LLVMValueRef row, LLVMValueRef j,
                       const LLVMValueRef *x) {
    Emit *e = b->t->p.e;
    LLVMValueRef next = emit_add(e, j, emit_i64(e, TILES_SIDE));
    LLVMValueRef y[] = {with_bias(b, x[0], j, NULL), with_bias(b, x[1], next, NULL)};
    if (b->t->p.s->rounds) {
        for (int v = 0; v < 2; v++) y[v] = emit_to_bf16(e, y[v]);
        emit_stream(e, emit_join(e, y[0], y[1]), c_at(b, row, j));
        return;
    }
    emit_stream(e, y[0], c_at(b, row, j));
    emit_stream(e, y[1], c_at(b, row, next));
}

static void store_row(const TilesBlock *b, LLVMValueRef row, LLVMValueRef j,
                      const LLVMValueRef *x) {
    const PairsMatmul *s = b->t->p.s;
    Emit *e = b->t->p.e;
    for (int v = 0; v < 2; v++) {
        LLVMValueRef column = emit_add(e, j, emit_i64(e, v * TILES_SIDE)), mask = NULL;
        LLVMValueRef left = emit_sub(e, emit_i64(e, s->n), emit_add(e, b->j, column));
        if (s->n % TILES_WIDE) mask = emit_tail_mask(e, left);
        emit_store_sum(e, with_bias(b, x[v], column, mask), c_at(b, row, column), mask,
                       s->adds, s->rounds);
    }
}

/* Where the block has sums for column j of row r. */
static LLVMValueRef sums_at(const TilesBlock *b, LLVMValueRef r, LLVMValueRef j) {
    Emit *e = b->t->p.e;
    return emit_gep(e, e->f32, b->sums, emit_plus(e, j, r, b->t->sums_row));
}

/* To what there is of sums of the blocks of k before, or in their place. */
static void keep_row(const TilesBlock *b, LLVMValueRef row, LLVMValueRef j,
                     const LLVMValueRef *x) {
    Emit *e = b->t->p.e;
    for (int v = 0; v < 2; v++) {
        LLVMValueRef to = emit_at(e, e->f32, sums_at(b, row, j), v * TILES_SIDE);
        emit_store(e, x[v], to, NULL, 4);
    }
}

/* To C. */
static void finish_row(const TilesBlock *b, LLVMValueRef row, LLVMValueRef j,
                       const LLVMValueRef *x) {
    Emit *e = b->t->p.e;
    If f;
    if (!b->t->streams) {
        store_row(b, row, j, x);
        return;
    }
    LLVMValueRef n = emit_i64(e, b->t->p.s->n);
    LLVMValueRef left = emit_sub(e, n, emit_add(e, b->j, j));
    LLVMValueRef whole =
        LLVMBuildICmp(e->b, LLVMIntSGE, left, emit_i64(e, TILES_WIDE), "");
    if_begin(e, &f, LLVMBuildAnd(e->b, whole, b->aligned, ""));
    stream_row(b, row, j, x);
    if_else(e, &f);
    store_row(b, row, j, x);
    if_end(e, &f);
}

void tiles_take_row(void *ctx, const GemmBlock *at, const LLVMValueRef *x) {
    const TilesBlock *b = ctx;
    Emit *e = b->t->p.e;
    LLVMValueRef y[2];
    If f;
    LLVMValueRef mask = b->more ? emit_splat_n(e, b->more, TILES_SIDE) : NULL;
    for (int v = 0; v < 2; v++) {
        y[v] = x[v];
        if (!mask) continue;
        LLVMValueRef from = emit_at(e, e->f32, sums_at(b, at->i, at->j), v * TILES_SIDE);
        y[v] = emit_fadd(e, x[v], emit_load(e, e->vf32, from, mask, 4));
    }
    if (b->t->flushes) {
        keep_row(b, at->i, at->j, y);
        return;
    }
    if (b->last) {
        if_begin(e, &f, LLVMBuildNot(e->b, b->last, ""));
        keep_row(b, at->i, at->j, y);
        if_else(e, &f);
    }
    finish_row(b, at->i, at->j, y);
    if (b->last) if_end(e, &f);
}

/* Numbers of row r of the block from column j on that are before `end`: from a line's first on,
 * or what there is of one. */
static void flush_part(const TilesBlock *b, LLVMValueRef r, LLVMValueRef j,
                       LLVMValueRef end, bool whole) {
    const PairsMatmul *s = b->t->p.s;
    Emit *e = b->t->p.e;
    LLVMValueRef x[2];
    const int vectors = s->rounds ? 2 : 1;
    for (int v = 0; v < vectors; v++) {
        LLVMValueRef column = emit_add(e, j, emit_i64(e, v * TILES_SIDE)), mask = NULL;
        if (!whole) mask = emit_tail_mask(e, emit_sub(e, end, column));
        x[v] = emit_load(e, e->vf32, sums_at(b, r, column), mask, 4);
        x[v] = with_bias(b, x[v], column, mask);
        if (!whole)
            emit_store_sum(e, x[v], c_at(b, r, column), mask, false, s->rounds);
        else if (s->rounds)
            x[v] = emit_to_bf16(e, x[v]);
    }
    if (whole) emit_stream(e, s->rounds ? emit_join(e, x[0], x[1]) : x[0], c_at(b, r, j));
}

void tiles_flush(const TilesBlock *b) {
    const Pairs2d *p = &b->t->p;
    Emit *e = p->e;
    const int64_t bytes = p->s->rounds ? 2 : 4, line = LINE_BYTES / bytes;
    LLVMValueRef zero = emit_i64(e, 0), per = emit_i64(e, line);
    LLVMValueRef n = emit_sub(e, emit_i64(e, p->s->n), b->j);
    n = emit_imin(e, n, emit_i64(e, p->panel));
    Loop rows, lines;
    If f;
    loop_begin(e, &rows, zero, b->rows, 1, 0, NULL);
    LLVMValueRef at = LLVMBuildPtrToInt(e->b, c_at(b, rows.i, zero), e->i64, "");
    LLVMValueRef head =
        LLVMBuildAnd(e->b, LLVMBuildNeg(e->b, at, ""), emit_i64(e, LINE_BYTES - 1), "");
    head = emit_imin(e, emit_div(e, head, emit_i64(e, bytes)), n);
    LLVMValueRef whole = emit_div(e, emit_sub(e, n, head), per);
    whole = emit_add(e, head, emit_mul(e, whole, per));
    if_begin(e, &f, LLVMBuildICmp(e->b, LLVMIntSGT, head, zero, ""));
    flush_part(b, rows.i, zero, head, false);
    if_end(e, &f);
    loop_begin(e, &lines, head, whole, (int)line, 0, NULL);
    flush_part(b, rows.i, lines.i, NULL, true);
    loop_end(e, &lines, NULL);
    if_begin(e, &f, LLVMBuildICmp(e->b, LLVMIntSLT, whole, n, ""));
    flush_part(b, rows.i, whole, n, false);
    if_end(e, &f);
    loop_end(e, &rows, NULL);
}
