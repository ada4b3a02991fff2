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
    LLVMValueRef row = emit_muli(e, emit_add(e, b->i, r), s->c_m);
    return emit_gep(e, s->rounds ? e->i16 : e->f32, b->c,
                    emit_add(e, row, emit_add(e, b->j, j)));
}

/* The panel of B that is packed next, as it is in memory: in rows of the panel, or columns of k. */
static void fetch_b(const TilesBlock *b, LLVMValueRef step, LLVMValueRef steps,
                    LLVMValueRef j) {
    const Pairs2d *p = &b->t->p;
    const PairsMatmul *s = p->s;
    Emit *e = p->e;
    LLVMValueRef strip = emit_divi(e, j, TILES_WIDE);
    step = emit_add(e, step, emit_mul(e, strip, steps));
    int64_t k = 2 * p->block_words, rows = MIN(p->rows, round_up(p->s->m, TILES_WIDE));
    int64_t all =
        rows / TILES_WIDE * (p->panel / TILES_WIDE) * (p->block_words / TILE_SIDE);
    int64_t strips = s->b_n == 1 ? k : p->panel;
    int64_t lines =
        divided_up(p->number_bytes * (s->b_n == 1 ? p->panel : k), EMIT_LINE_BYTES);
    int64_t share = MIN(divided_up(strips * lines, all), FETCH_LINES * p->parts);
    pairs_fetch_share(e, b->next_b, step, share, lines,
                      p->number_bytes * (s->b_n == 1 ? s->b_k : s->b_n));
}

/* The next 32 columns of the packed panel, or of the one behind it. */
static void fetch_packed(const TilesBlock *b, LLVMValueRef step, LLVMValueRef j) {
    const Pairs2d *p = &b->t->p;
    Emit *e = p->e;
    LLVMValueRef next = emit_muli(e, emit_addi(e, j, TILES_WIDE), p->b_words * 4);
    int64_t share = MIN(divided_up(TILES_WIDE * TILES_WIDE * p->parts, p->rows),
                        FETCH_LINES * p->parts);
    pairs_fetch_share(e, emit_gep(e, e->i8, b->packed, next), step, share, share,
                      share * EMIT_LINE_BYTES);
}

/* Some rows of the block of C, which is added to. */
static void fetch_c(const TilesBlock *b, const GemmBlock *at, LLVMValueRef l) {
    const PairsMatmul *s = b->t->p.s;
    Emit *e = b->t->p.e;
    const int64_t each = s->rounds ? 2 : 4;
    LLVMValueRef row = emit_divi(e, l, TILE_SIDE / FETCH_ROWS);
    LLVMValueRef due = emit_icmp(e, LLVMIntSLT, row, emit_i64(e, TILES_WIDE));
    if (b->last) due = LLVMBuildAnd(e->b, due, b->last, "");
    If f;
    if_begin(e, &f, due);
    LLVMValueRef c = c_at(b, emit_add(e, at->i, row), at->j);
    for (int r = 0; r < FETCH_ROWS; r++)
        for (int64_t byte = 0; byte < TILES_WIDE * each; byte += EMIT_LINE_BYTES)
            emit_prefetch(e, emit_at(e, e->i8, c, r * s->c_m * each + byte), true, 3);
    if_end(e, &f);
}

void tiles_fetch_step(void *ctx, const GemmBlock *at, LLVMValueRef l) {
    const TilesBlock *b = ctx;
    Emit *e = b->t->p.e;
    LLVMValueRef side = emit_i64(e, TILE_SIDE), wide = emit_i64(e, TILES_WIDE);
    LLVMValueRef steps = emit_div(e, b->words, side);
    LLVMValueRef step = emit_mul(e, emit_div(e, at->i, wide), steps);
    step = emit_add(e, step, emit_div(e, l, side));
    LLVMValueRef blocks = emit_div(e, emit_addi(e, b->rows, TILES_WIDE - 1), wide);
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

/* Which of a vector of columns of the block from j on C has; NULL: all. */
static LLVMValueRef columns_there(const TilesBlock *b, LLVMValueRef j) {
    Emit *e = b->t->p.e;
    const int64_t n = b->t->p.s->n;
    if (n % TILES_WIDE == 0) return NULL;
    return emit_tail_mask(e, emit_sub(e, emit_i64(e, n), emit_add(e, b->j, j)));
}

/* Column j of a row of the block, a line of narrow numbers or two of f32, past the caches. */
static void stream_row(const TilesBlock *b, LLVMValueRef row, LLVMValueRef j,
                       const LLVMValueRef *x) {
    Emit *e = b->t->p.e;
    LLVMValueRef next = emit_addi(e, j, TILE_SIDE);
    LLVMValueRef y[] = {with_bias(b, x[0], j, NULL), with_bias(b, x[1], next, NULL)};
    if (b->t->p.s->rounds) {
        LLVMValueRef line = emit_to_narrow_both(e, b->t->p.s->dt, y[0], y[1]);
        emit_stream(e, line, c_at(b, row, j));
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
        LLVMValueRef column = emit_addi(e, j, v * TILE_SIDE);
        LLVMValueRef mask = columns_there(b, column);
        emit_store_sum(e, pairs_matmul_result(s), with_bias(b, x[v], column, mask),
                       c_at(b, row, column), mask, s->adds);
    }
}

/* Lanes [from, to) of a line. */
static LLVMValueRef lanes_of(const TilesBlock *b, LLVMValueRef from, LLVMValueRef to) {
    Emit *e = b->t->p.e;
    LLVMValueRef (*below)(Emit *, LLVMValueRef) =
        b->t->p.s->rounds ? emit_halves_mask : emit_tail_mask;
    return LLVMBuildAnd(e->b, below(e, to), LLVMBuildNot(e->b, below(e, from), ""), "");
}

/* line_from on a CPU whose vectors are narrower than a line. */
static LLVMValueRef line_in_memory(const TilesBlock *b, LLVMValueRef x, LLVMValueRef y,
                                   LLVMValueRef first) {
    Emit *e = b->t->p.e;
    const bool narrow = b->t->p.s->rounds;
    LLVMValueRef lines = emit_alloca(e, 2 * EMIT_LINE_BYTES);
    emit_store(e, x, lines, NULL, 4);
    emit_store(e, y, emit_at(e, e->i8, lines, EMIT_LINE_BYTES), NULL, 4);
    LLVMValueRef from = emit_gep(e, narrow ? e->i16 : e->f32, lines, first);
    return emit_load(e, LLVMTypeOf(x), from, NULL, narrow ? 2 : 4);
}

/* Numbers of two lines that follow each other, from number `first` on, 1 to all of a line. */
static LLVMValueRef line_from(const TilesBlock *b, LLVMValueRef x, LLVMValueRef y,
                              LLVMValueRef first) {
    Emit *e = b->t->p.e;
    const bool narrow = b->t->p.s->rounds;
    const int lanes = narrow ? 2 * TILE_SIDE : TILE_SIDE;
    LLVMTypeRef type = narrow ? e->i16 : e->i32;
    LLVMValueRef step[2 * TILE_SIDE];
    if (!emit_has(e, "avx512bw")) return line_in_memory(b, x, y, first);
    for (int i = 0; i < lanes; i++) step[i] = LLVMConstInt(type, (unsigned)i, 0);
    LLVMValueRef at = emit_splat_n(e, LLVMBuildTrunc(e->b, first, type, ""), lanes);
    at = LLVMBuildAdd(e->b, at, LLVMConstVector(step, (unsigned)lanes), "");
    LLVMValueRef args[] = {x, at, y};
    return emit_intrinsic(e,
                          narrow ? "llvm.x86.avx512.vpermi2var.hi.512"
                                 : "llvm.x86.avx512.vpermi2var.ps.512",
                          NULL, 0, args, 3);
}

/* A line, or the lanes of it that `mask` has: numbers that C gets, or that are added to it. */
static void put_line(const TilesBlock *b, LLVMValueRef x, LLVMValueRef to,
                     LLVMValueRef mask) {
    const PairsMatmul *s = b->t->p.s;
    Emit *e = b->t->p.e;
    const int align = mask ? (s->rounds ? 2 : 4) : EMIT_LINE_BYTES;
    if (!s->adds && !mask) {
        emit_stream(e, x, to);
        return;
    }
    if (s->adds) x = emit_fadd(e, emit_load(e, e->vf32, to, mask, align), x);
    emit_store(e, x, to, mask, align);
}

/* Lines of a row whose first column is somewhere in a line: the one that waits, with numbers of
 * before, and those of 32 columns. Number `first` of line 0 is column `from` of C, at `to`, where
 * a line of C begins. */
typedef struct RowLines {
    int n;               /* lines of 32 columns */
    int64_t each, bytes; /* numbers of a line, bytes of a number */
    LLVMValueRef line[1 + 2];
    LLVMValueRef first, from, to;
} RowLines;

/* The lines of columns from j on, with bias; the last one waits from now on. */
static void take_lines(const TilesBlock *b, RowLines *r, LLVMValueRef row, LLVMValueRef j,
                       const LLVMValueRef *x) {
    const PairsMatmul *s = b->t->p.s;
    Emit *e = b->t->p.e;
    LLVMTypeRef type = s->rounds ? emit_vec(e->i16, (int)r->each) : e->vf32;
    LLVMValueRef y[2];
    for (int v = 0; v < 2; v++) {
        LLVMValueRef at = emit_addi(e, j, v * TILE_SIDE);
        y[v] = with_bias(b, x[v], at, s->bias ? columns_there(b, at) : NULL);
    }
    LLVMValueRef wait = emit_muli(e, row, EMIT_LINE_BYTES);
    wait = emit_gep(e, e->i8, b->waiting, wait);
    r->line[0] = emit_load(e, type, wait, NULL, EMIT_LINE_BYTES);
    if (s->rounds) {
        LLVMValueRef line = emit_to_narrow_both(e, s->dt, y[0], y[1]);
        r->line[1] = LLVMBuildBitCast(e->b, line, type, "");
    } else {
        r->line[1] = y[0];
        r->line[2] = y[1];
    }
    emit_store(e, r->line[r->n], wait, NULL, EMIT_LINE_BYTES);
}

/* Where they go, of a row whose column j is `column` of C. */
static void place_lines(const TilesBlock *b, RowLines *r, LLVMValueRef row,
                        LLVMValueRef j, LLVMValueRef column) {
    Emit *e = b->t->p.e;
    LLVMValueRef to = c_at(b, row, j), each = emit_i64(e, r->each);
    LLVMValueRef in_line = LLVMBuildPtrToInt(e->b, to, e->i64, "");
    in_line = LLVMBuildAnd(e->b, in_line, emit_i64(e, EMIT_LINE_BYTES - 1), "");
    in_line = emit_divi(e, in_line, r->bytes);
    r->first = emit_sub(e, each, in_line);
    r->from = emit_sub(e, emit_add(e, column, r->first), each);
    r->to = emit_gep(e, b->t->p.s->rounds ? e->i16 : e->f32, to,
                     emit_sub(e, r->from, column));
}

/* Line i of C from there on, or the lanes of it that `mask` has. */
static void put_nth(const TilesBlock *b, const RowLines *r, int i, LLVMValueRef mask) {
    Emit *e = b->t->p.e;
    LLVMValueRef to = emit_at(e, e->i8, r->to, i * EMIT_LINE_BYTES);
    LLVMValueRef next = r->line[MIN(i + 1, r->n)];
    put_line(b, line_from(b, r->line[i], next, r->first), to, mask);
}

/* Of a row whose first column is somewhere in a line: the numbers of before that wait, and those of
 * 32 columns from j on, as whole lines; the last ones wait. Where the item's columns begin or end,
 * as far as they go. */
static void realign_row(const TilesBlock *b, LLVMValueRef row, LLVMValueRef j,
                        const LLVMValueRef *x) {
    Emit *e = b->t->p.e;
    RowLines r = {.bytes = b->t->p.s->rounds ? 2 : 4};
    r.each = EMIT_LINE_BYTES / r.bytes;
    r.n = (int)(TILES_WIDE / r.each);
    LLVMValueRef column = emit_add(e, b->j, j);
    take_lines(b, &r, row, j, x);
    place_lines(b, &r, row, j, column);
    LLVMValueRef next = emit_addi(e, column, TILES_WIDE);
    LLVMValueRef begins = emit_icmp(e, LLVMIntSLT, r.from, b->first);
    LLVMValueRef ends = emit_icmp(e, LLVMIntSGE, next, b->end);
    If f;
    if_begin(e, &f, LLVMBuildOr(e->b, begins, ends, ""));
    /* no column twice, which may be added */
    LLVMValueRef end = emit_select(e, ends, emit_imin(e, next, b->end),
                                   emit_addi(e, r.from, r.n * r.each));
    for (int i = 0; i <= r.n; i++) {
        LLVMValueRef zero = emit_addi(e, r.from, i * r.each);
        put_nth(b, &r, i,
                lanes_of(b, emit_sub(e, b->first, zero), emit_sub(e, end, zero)));
    }
    if_else(e, &f);
    for (int i = 0; i < r.n; i++) put_nth(b, &r, i, NULL);
    if_end(e, &f);
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
        LLVMValueRef to = emit_at(e, e->f32, sums_at(b, row, j), v * TILE_SIDE);
        emit_store(e, x[v], to, NULL, 4);
    }
}

/* To C. */
static void finish_row(const TilesBlock *b, LLVMValueRef row, LLVMValueRef j,
                       const LLVMValueRef *x) {
    Emit *e = b->t->p.e;
    If f;
    if (b->t->realigns) {
        realign_row(b, row, j, x);
        return;
    }
    if (!b->t->p.streams) {
        store_row(b, row, j, x);
        return;
    }
    LLVMValueRef n = emit_i64(e, b->t->p.s->n);
    LLVMValueRef left = emit_sub(e, n, emit_add(e, b->j, j));
    LLVMValueRef whole = emit_icmp(e, LLVMIntSGE, left, emit_i64(e, TILES_WIDE));
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
    LLVMValueRef mask = b->more ? emit_splat_n(e, b->more, TILE_SIDE) : NULL;
    for (int v = 0; v < 2; v++) {
        y[v] = x[v];
        if (!mask) continue;
        LLVMValueRef from = emit_at(e, e->f32, sums_at(b, at->i, at->j), v * TILE_SIDE);
        y[v] = emit_fadd(e, x[v], emit_load(e, e->vf32, from, mask, 4));
    }
    if (b->last) {
        if_begin(e, &f, LLVMBuildNot(e->b, b->last, ""));
        keep_row(b, at->i, at->j, y);
        if_else(e, &f);
    }
    finish_row(b, at->i, at->j, y);
    if (b->last) if_end(e, &f);
}
