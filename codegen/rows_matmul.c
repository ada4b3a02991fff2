/* rows_matmul.c - see rows_matmul.h. B lies in one of two ways: along n (rows_along_n.c), or along
 * k, a column in one piece: then lanes are places of k, and a thread reads its columns in several
 * stretches, one beside the other.
 *     for tile (vl columns of each stretch)
 *         for column of the tile: m * stretches sums of vl lanes, over all of k
 *             the lanes of each are added up, all sums at once
 *         C of the tile, vl columns at a time
 * In both B is read in long runs, which the CPU follows by itself: columns of one stretch, each at
 * a distance of 3 or 12 kB from the next, had 0.8 to 0.9 of the bandwidth. */
#include "codegen/rows_along_n.h"
#include "codegen/rt_call.h"

enum {
    JOIN_SMALL = 1 << 14, /* sums below which one thread puts them together */
    AHEAD_BYTES = 2048,
};

bool rows_matmul_takes(const RowsMatmul *s) {
    return s->m >= 1 && s->m <= ROWS_MATMUL_MOST && s->n >= 1 && s->k >= 1 &&
           (s->b_n == 1 || s->b_k == 1);
}

int64_t rows_matmul_workspace_bytes(const RowsMatmul *s, int vl) {
    return rows_of(s, vl).bytes;
}

/* vl words of a row of A or a column of B, from place l of k on: numbers as f32, or pairs. */
static LLVMValueRef load_words(const Rows *r, LLVMValueRef row, LLVMValueRef l,
                               bool tail) {
    Emit *e = r->e;
    LLVMValueRef at = emit_gep(e, rows_element(r), row, l);
    LLVMValueRef left = emit_sub(e, emit_i64(e, r->s->k), l);
    if (!r->pairs)
        return emit_load_as(e, r->s->dt, at, tail ? emit_tail_mask(e, left) : NULL);
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef mask = tail ? emit_halves_mask(e, left) : NULL;
    return LLVMBuildBitCast(e->b, emit_load(e, halves, at, mask, 2), e->vi32, "");
}

/* A column of each stretch, and the rows of A that meet them. */
typedef struct Group {
    LLVMValueRef column[16], a;
    int64_t i0, rows, columns;
} Group;

/* How far ahead a column is fetched, in numbers. Several groups of rows go through the same
 * columns: each fetches some of the next ones. */
static int64_t numbers_ahead(const Rows *r, int64_t groups) {
    int64_t ahead = AHEAD_BYTES / dtype_bytes[r->s->dt];
    return groups == 1 ? ahead : round_up(ahead, r->s->b_n);
}

/* sum[i * columns + c] += A[i][l ..] B[.. l][c] */
static void add_words(const Rows *r, const Group *g, LLVMValueRef l, bool tail,
                      LLVMValueRef *sum) {
    Emit *e = r->e;
    int64_t groups = divided_up(r->s->m, r->rows), nth = g->i0 / r->rows;
    LLVMValueRef b[16];
    Pairs pairs[16];
    for (int64_t c = 0; c < g->columns; c++) {
        b[c] = load_words(r, g->column[c], l, tail);
        if (r->pairs) pairs[c] = emit_pairs(e, b[c]);
        if (tail || c % groups != nth) continue;
        LLVMValueRef at = emit_gep(e, rows_element(r), g->column[c], l);
        rows_fetch(r, emit_at(e, rows_element(r), at, numbers_ahead(r, groups)));
    }
    for (int64_t i = 0; i < g->rows; i++) {
        LLVMValueRef row = emit_at(e, rows_element(r), g->a, (g->i0 + i) * r->s->a_m);
        LLVMValueRef x = load_words(r, row, l, tail);
        Pairs p = {0};
        if (r->pairs) p = emit_pairs(e, x);
        for (int64_t c = 0; c < g->columns; c++) {
            LLVMValueRef *to = &sum[i * g->columns + c];
            *to = r->pairs ? emit_dot_pairs(e, &p, &pairs[c], *to)
                           : emit_fma(e, x, b[c], *to);
        }
    }
}

/* The sums of row i for a column of stretch c, vl columns of which are written together. */
static LLVMValueRef tile_sums(const Rows *r, LLVMValueRef tile, LLVMValueRef i,
                              int64_t c) {
    Emit *e = r->e;
    LLVMValueRef row = emit_muli(e, i, r->stretches);
    row = emit_addi(e, row, c);
    return emit_gep(e, e->f32, tile, emit_muli(e, row, e->vl));
}

/* Numbers from vectors of sums, as many as a transpose takes at a time: column `t` of the tile. */
static void add_lanes(const Rows *r, const Group *g, LLVMValueRef tile, LLVMValueRef t,
                      const LLVMValueRef *sum) {
    Emit *e = r->e;
    int64_t n = g->rows * g->columns;
    LLVMValueRef x[16];
    for (int64_t first = 0; first < n; first += e->vl) {
        for (int64_t i = 0; i < e->vl; i++)
            x[i] = first + i < n ? sum[first + i] : LLVMConstNull(e->vf32);
        LLVMValueRef sums = emit_add_lanes(e, x);
        for (int64_t i = first; i < MIN(n, first + e->vl); i++) {
            LLVMValueRef row = emit_i64(e, g->i0 + i / g->columns);
            LLVMValueRef to = tile_sums(r, tile, row, i % g->columns);
            LLVMValueRef lane = emit_i32(e, i - first);
            emit_store(e, LLVMBuildExtractElement(e->b, sums, lane, ""),
                       emit_gep(e, e->f32, to, t), NULL, 4);
        }
    }
}

static void group(const Rows *r, const Group *g, LLVMValueRef tile, LLVMValueRef t) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    int64_t step = e->vl * (r->pairs ? 2 : 1), whole = s->k / step * step;
    int n = (int)(g->rows * g->columns);
    LLVMValueRef sum[ROWS_SUMS];
    Loop l;
    for (int i = 0; i < n; i++) sum[i] = LLVMConstNull(e->vf32);
    if (whole) {
        loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, whole), step, n, sum);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
        add_words(r, g, l.i, false, sum);
        loop_end(e, &l, sum);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
    }
    if (whole < s->k) add_words(r, g, emit_i64(e, whole), true, sum);
    add_lanes(r, g, tile, t, sum);
}

/* Columns [from, to), cut into stretches of `stretch` columns, tiles of vl. */
typedef struct Stretches {
    LLVMValueRef from, to, stretch;
} Stretches;

/* Where stretch c of the tile at `at` begins. */
static LLVMValueRef tile_begin(const Rows *r, const Stretches *s, LLVMValueRef at,
                               int64_t c) {
    LLVMValueRef first = emit_muli(r->e, s->stretch, c);
    return emit_add(r->e, emit_add(r->e, s->from, first), at);
}

/* Sums of column `t` of the tile at `at`; stretches that are shorter repeat the last column. */
static void tile_column(const Rows *r, LLVMValueRef ctx, const Stretches *s,
                        LLVMValueRef at, LLVMValueRef t, LLVMValueRef tile) {
    Emit *e = r->e;
    LLVMValueRef b = emit_slot(r->e, ctx, SLOT_B);
    LLVMValueRef last = emit_subi(e, s->to, 1);
    Group g = {.a = emit_slot(r->e, ctx, SLOT_A), .columns = r->stretches};
    for (int64_t c = 0; c < r->stretches; c++) {
        LLVMValueRef j = emit_add(e, tile_begin(r, s, at, c), t);
        j = emit_muli(e, emit_imin(e, j, last), r->s->b_n);
        g.column[c] = emit_gep(e, rows_element(r), b, j);
    }
    for (; g.i0 < r->s->m; g.i0 += g.rows) {
        g.rows = MIN(r->s->m - g.i0, r->rows);
        group(r, &g, tile, t);
    }
}

static void tile_write(const Rows *r, LLVMValueRef ctx, const Stretches *s,
                       LLVMValueRef at, LLVMValueRef tile) {
    Emit *e = r->e;
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, r->s->m), 1, 0, NULL);
    for (int64_t c = 0; c < r->stretches; c++) {
        LLVMValueRef j = tile_begin(r, s, at, c);
        LLVMValueRef mask = emit_tail_mask(e, emit_sub(e, s->to, j));
        LLVMValueRef sums = tile_sums(r, tile, l.i, c);
        rows_write(r, ctx, l.i, j, emit_load(e, e->vf32, sums, NULL, 4), mask);
    }
    loop_end(e, &l, NULL);
}

static LLVMValueRef along_k_emit(const Rows *r) {
    Emit *e = r->e;
    LLVMValueRef fn = rows_body(r, "body"), ctx = emit_param(e, 0);
    LLVMValueRef size = emit_i64(e, r->item), vl = emit_i64(e, e->vl);
    Stretches s = {.from = emit_mul(e, emit_param(e, 1), size)};
    s.to = emit_mul(e, emit_param(e, 2), size);
    s.to = emit_imini(e, s.to, r->s->n);
    LLVMValueRef each = emit_i64(e, r->stretches * e->vl);
    LLVMValueRef tiles = emit_add(e, emit_sub(e, s.to, s.from), each);
    tiles = emit_div(e, emit_subi(e, tiles, 1), each);
    s.stretch = emit_mul(e, tiles, vl);
    LLVMValueRef tile = emit_alloca(e, r->s->m * r->stretches * e->vl * 4);
    Loop at, t;
    loop_begin(e, &at, emit_i64(e, 0), s.stretch, e->vl, 0, NULL);
    loop_begin(e, &t, emit_i64(e, 0), vl, 1, 0, NULL);
    tile_column(r, ctx, &s, at.i, t.i, tile);
    loop_end(e, &t, NULL);
    tile_write(r, ctx, &s, at.i, tile);
    loop_end(e, &at, NULL);
    emit_ret(e, NULL);
    return fn;
}

void rows_matmul_emit(Emit *e, const char *name, const RowsMatmul *s) {
    Rows r = rows_of(s, e->vl);
    r.e = e;
    r.name = name;
    LLVMValueRef body = r.along_n ? rows_along_n_emit(&r) : along_k_emit(&r), last = NULL;
    if (r.parts > 1) last = rows_join_emit(&r);
    LLVMValueRef ctx = emit_context_func(e, name, SLOTS, SLOTS, true);
    if (r.along_n && rows_widen(&r))
        rows_widen_emit(&r, emit_param(e, SLOT_A), emit_param(e, SLOT_WS));
    RtRun how = s->threads == 1 ? RUN_ALONE : RUN_PARALLEL;
    rt_run(e, body, ctx, emit_i64(e, r.items), how);
    if (s->m * s->n < JOIN_SMALL) how = RUN_ALONE;
    if (last) rt_run(e, last, ctx, emit_i64(e, rows_join_items(&r)), how);
    emit_ret(e, NULL);
}
