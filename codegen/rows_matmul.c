/* rows_matmul.c - see rows_matmul.h. B lies in one of two ways.
 *
 * Along n, numbers of a row of B belong to different sums: lanes are columns.
 *     for item (a part of k, and a tile of columns), over the threads:
 *         for each block of BLOCK rows of B: sums[m][tile] += A[m][block] B[block][tile]
 *     C = the sums of the parts in order (+ bias) (+ C)
 * Along k, a column of B lies in one piece: lanes are places of k.
 *     for item (some columns), over the threads:
 *         for each group of them: m * group sums of vl lanes, over all of k
 *         the lanes of each are added up, all sums at once (a transpose)
 * In both B is read in long runs, and what comes next is fetched ahead: that of the next rows
 * lies too far away for the CPU to see it. */
#include "codegen/rows_matmul.h"
#include "codegen/rt_call.h"

enum {
    BLOCK_BYTES =
        160 << 10, /* of a tile of B that are fetched while those before are used: both
                               fit into the second cache, with what else is there */
    BLOCK = 32,    /* rows of that at most */
    UNROLL = 4,
    VECTORS = 4,          /* of columns at a time, at most */
    TILE_BYTES = 1 << 18, /* of the sums of a tile: they stay in the second cache */
    TILE_LEAST = 1024,    /* columns, so that B is read in long runs */
    PART_LEAST = 2 * BLOCK,
    JOIN_SMALL = 1 << 14, /* sums below which one thread puts them together */
    JOIN_VECTORS = 16,    /* of an item */
    AHEAD_BYTES = 8192,
    LINE = 64,
};

typedef struct Rows {
    Emit *e;
    const RowsMatmul *s;
    const char *name;
    bool along_n;
    int64_t parts, part, tiles, tile; /* along n: of k, of columns */
    int64_t block;                    /* rows of B */
    int64_t sums_row;                 /* floats from row to row of sums */
    int64_t rows, group, item,
        items;              /* along k: rows and columns at a time, of an item */
    int64_t a_row;          /* from row to row of A, as it is read */
    int64_t a_bytes, bytes; /* of the workspace: A as f32, and all */
} Rows;

enum { SLOT_A, SLOT_B, SLOT_BIAS, SLOT_C, SLOT_WS, SLOTS };

bool rows_matmul_takes(const RowsMatmul *s) {
    return s->m >= 1 && s->m <= ROWS_MATMUL_MOST && s->n >= 1 && s->k >= 1 &&
           (s->b_n == 1 || s->b_k == 1);
}

/* A part of k for each thread, as far as it goes: so each reads rows of B one after the other, in
 * one piece. That is worth more than what putting the parts together takes. */
static void cut_along_n(Rows *r, int vl) {
    const RowsMatmul *s = r->s;
    int64_t fits = TILE_BYTES / 4 / s->m / vl * vl;
    r->parts = MIN(s->threads, MAX(1, s->k / PART_LEAST));
    int64_t wide = MIN(divided_up(s->threads, r->parts), MAX(1, s->n / TILE_LEAST));
    r->part = round_up(divided_up(s->k, r->parts), BLOCK);
    r->parts = divided_up(s->k, r->part);
    int64_t turns = divided_up(divided_up(s->n, wide), MAX(fits, TILE_LEAST));
    r->tile = round_up(divided_up(s->n, wide * turns), vl);
    r->tiles = divided_up(s->n, r->tile);
    r->items = r->parts * r->tiles;
    int64_t tile_bytes = r->tile * (s->narrow ? 2 : 4);
    r->block = MAX(UNROLL, MIN(BLOCK, BLOCK_BYTES / tile_bytes / UNROLL * UNROLL));
    r->sums_row = round_up(s->n, vl);
    r->a_row = s->narrow ? round_up(s->k, vl) : s->a_m;
    r->a_bytes = s->narrow ? align_up(s->m * r->a_row * 4) : 0;
    r->bytes = r->a_bytes + align_up(r->parts * s->m * r->sums_row * 4);
}

static Rows rows_of(const RowsMatmul *s, int vl) {
    Rows r = {.s = s, .along_n = s->b_n == 1 && (s->n > 1 || s->b_k != 1)};
    if (r.along_n) {
        cut_along_n(&r, vl);
        return r;
    }
    int64_t sums = vl >= 16 ? 24 : 12;
    r.rows = divided_up(s->m, divided_up(s->m, sums / 3));
    r.group = MIN(vl, sums / r.rows);
    r.item = r.group * divided_up(vl, r.group);
    r.items = divided_up(s->n, r.item);
    r.a_row = s->a_m;
    return r;
}

int64_t rows_matmul_workspace_bytes(const RowsMatmul *s, int vl) {
    return rows_of(s, vl).bytes;
}

/* ---- what both need ---- */

static LLVMValueRef slot(const Rows *r, LLVMValueRef ctx, int i) {
    return emit_load(r->e, r->e->ptr, emit_at(r->e, r->e->ptr, ctx, i), NULL, 8);
}

static LLVMTypeRef element(const Rows *r) {
    return r->s->narrow ? r->e->i16 : r->e->f32;
}

static LLVMValueRef plus(Emit *e, LLVMValueRef base, LLVMValueRef i, int64_t scale) {
    return emit_add(e, base, emit_mul(e, i, emit_i64(e, scale)));
}

/* To the second cache: the first has the sums, or rows of A. */
static void fetch(const Rows *r, LLVMValueRef at) {
    Emit *e = r->e;
    LLVMValueRef args[] = {at, emit_i32(e, 0), emit_i32(e, 2), emit_i32(e, 1)};
    emit_intrinsic(e, "llvm.prefetch", &e->ptr, 1, args, ARRAY_LEN(args));
}

/* C[i][j ..] from finished sums. */
static void write_c(const Rows *r, LLVMValueRef ctx, LLVMValueRef i, LLVMValueRef j,
                    LLVMValueRef x, LLVMValueRef mask) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    LLVMTypeRef type = s->rounds ? e->i16 : e->f32;
    LLVMValueRef to = emit_gep(e, type, slot(r, ctx, SLOT_C), plus(e, j, i, s->c_m));
    if (s->bias) {
        LLVMValueRef at = emit_gep(e, e->f32, slot(r, ctx, SLOT_BIAS), j);
        x = emit_fadd(e, x, emit_load(e, e->vf32, at, mask, 4));
    }
    emit_store_sum(e, x, to, mask, s->adds, s->rounds);
}

static LLVMValueRef body_begin(const Rows *r, const char *part) {
    Emit *e = r->e;
    LLVMTypeRef params[] = {e->ptr, e->i64, e->i64, e->i64};
    return emit_func(e, arena_printf(e->mem, "%s.%s", r->name, part), e->void_, params, 4,
                     true);
}

/* ---- B along n ---- */

/* Sums that are in registers at a time. */
static int64_t sums_at_once(const Emit *e) {
    return e->vl >= 16 ? 24 : 12;
}

/* Rows of A, and vectors of each. */
static int64_t rows_at_once(const Rows *r) {
    int64_t most = sums_at_once(r->e) / 3;
    return divided_up(r->s->m, divided_up(r->s->m, most));
}

static int64_t vectors_at_once(const Rows *r) {
    return MIN(VECTORS, MAX(1, sums_at_once(r->e) / rows_at_once(r)));
}

/* A tile of columns j to end, and the rows of B from l to l_end. */
typedef struct Tile {
    LLVMValueRef a, b, sums, j, end, l, l_end;
} Tile;

static LLVMValueRef load_b(const Rows *r, LLVMValueRef at, LLVMValueRef mask) {
    Emit *e = r->e;
    if (r->s->narrow) return emit_load_narrow(e, DT_BF16, at, mask);
    return emit_load(e, e->vf32, at, mask, 4);
}

/* Fetches the share of the next rows' lines that the panel at column j has for row l: all panels
 * and rows together go through the lines of a tile as they lie in memory. */
static void fetch_next(const Rows *r, const Tile *t, LLVMValueRef l, LLVMValueRef j,
                       int64_t vecs) {
    Emit *e = r->e;
    int64_t width = r->s->narrow ? 2 : 4, share = MAX(1, vecs * e->vl * width / LINE);
    int64_t lines = divided_up(r->tile * width, LINE);
    bool one_piece = r->tile == r->s->b_k;
    LLVMValueRef panel = emit_div(e, emit_sub(e, j, t->j), emit_i64(e, vecs * e->vl));
    LLVMValueRef n = plus(e, emit_sub(e, l, t->l), panel, r->block);
    n = emit_mul(e, n, emit_i64(e, share));
    LLVMValueRef row = one_piece ? emit_i64(e, 0) : emit_div(e, n, emit_i64(e, lines));
    LLVMValueRef line = one_piece ? n : emit_rem(e, n, emit_i64(e, lines));
    row = emit_add(e, emit_add(e, row, t->l), emit_i64(e, r->block));
    LLVMValueRef at = emit_gep(e, element(r), t->b, plus(e, t->j, row, r->s->b_k));
    at = emit_gep(e, e->i8, at, emit_mul(e, line, emit_i64(e, LINE)));
    for (int64_t i = 0; i < share; i++) fetch(r, emit_at(e, e->i8, at, i * LINE));
}

typedef struct Panel { /* rows of A from i0 on, vectors of columns from j on */
    int64_t i0, rows, vecs;
    LLVMValueRef j, mask;
} Panel;

/* sum[i * vecs + v] += A[i0 + i][l] B[l][j + v ..] */
static void add_row(const Rows *r, const Tile *t, const Panel *p, LLVMValueRef l,
                    LLVMValueRef *sum) {
    Emit *e = r->e;
    LLVMValueRef b[VECTORS];
    LLVMValueRef row = emit_gep(e, element(r), t->b, plus(e, p->j, l, r->s->b_k));
    for (int64_t v = 0; v < p->vecs; v++)
        b[v] = load_b(r, emit_at(e, element(r), row, v * e->vl), p->mask);
    for (int64_t i = 0; i < p->rows; i++) {
        LLVMValueRef n = emit_add(e, l, emit_i64(e, (p->i0 + i) * r->a_row));
        LLVMValueRef x = emit_load(e, e->f32, emit_gep(e, e->f32, t->a, n), NULL, 4);
        x = emit_splat(e, x);
        for (int64_t v = 0; v < p->vecs; v++)
            sum[i * p->vecs + v] = emit_fma(e, x, b[v], sum[i * p->vecs + v]);
    }
}

static LLVMValueRef sums_at(const Rows *r, const Tile *t, const Panel *p, int64_t i) {
    Emit *e = r->e;
    int64_t row = p->i0 + i / p->vecs, v = i % p->vecs;
    LLVMValueRef n = emit_add(e, p->j, emit_i64(e, row * r->sums_row + v * e->vl));
    return emit_gep(e, e->f32, t->sums, n);
}

/* The sums of the panel, and all rows of the tile. */
static void add_panel(const Rows *r, const Tile *t, const Panel *p) {
    Emit *e = r->e;
    LLVMValueRef sum[24], next[24];
    int n = (int)(p->rows * p->vecs);
    for (int i = 0; i < n; i++)
        sum[i] = emit_load(e, e->vf32, sums_at(r, t, p, i), NULL, 4);
    LLVMValueRef step = emit_i64(e, UNROLL), rows = emit_sub(e, t->l_end, t->l);
    LLVMValueRef whole = emit_mul(e, emit_div(e, rows, step), step);
    LLVMValueRef from = t->l, to = emit_add(e, t->l, whole);
    for (int by = UNROLL; by; by = by > 1 ? 1 : 0) {
        Loop l;
        loop_begin(e, &l, from, to, by, n, sum);
        memcpy(next, l.carry, (size_t)n * sizeof *next);
        for (int u = 0; u < by; u++) {
            LLVMValueRef at = emit_add(e, l.i, emit_i64(e, u));
            if (!p->i0) fetch_next(r, t, at, p->j, p->vecs);
            add_row(r, t, p, at, next);
        }
        loop_end(e, &l, next);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
        from = to, to = t->l_end;
    }
    for (int i = 0; i < n; i++) emit_store(e, sum[i], sums_at(r, t, p, i), NULL, 4);
}

static void add_panels(const Rows *r, const Tile *t, LLVMValueRef j, int64_t vecs,
                       LLVMValueRef mask) {
    int64_t most = rows_at_once(r);
    for (int64_t i = 0; i < r->s->m; i += most) {
        Panel p = {i, MIN(most, r->s->m - i), vecs, j, mask};
        add_panel(r, t, &p);
    }
}

/* All columns of the tile. */
static void add_tile(const Rows *r, const Tile *t) {
    Emit *e = r->e;
    int64_t vecs = vectors_at_once(r), vl = e->vl;
    LLVMValueRef j = t->j;
    for (int64_t n = vecs;; n = 1) {
        LLVMValueRef count = emit_sub(e, t->end, j);
        LLVMValueRef whole = emit_div(e, count, emit_i64(e, n * vl));
        LLVMValueRef to = emit_add(e, j, emit_mul(e, whole, emit_i64(e, n * vl)));
        Loop c;
        loop_begin(e, &c, j, to, n * vl, 0, NULL);
        add_panels(r, t, c.i, n, NULL);
        loop_end(e, &c, NULL);
        j = to;
        if (n == 1) break;
    }
    if (r->s->n % vl == 0) return;
    Loop rest;
    loop_begin(e, &rest, j, t->end, vl, 0, NULL);
    add_panels(r, t, rest.i, 1, emit_tail_mask(e, emit_sub(e, t->end, rest.i)));
    loop_end(e, &rest, NULL);
}

/* Columns j to end of C, from the sums of all parts. */
static void join(const Rows *r, LLVMValueRef ctx, LLVMValueRef i, LLVMValueRef j,
                 LLVMValueRef end) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    LLVMValueRef sums = emit_at(e, e->i8, slot(r, ctx, SLOT_WS), r->a_bytes);
    Loop c;
    loop_begin(e, &c, j, end, e->vl, 0, NULL);
    LLVMValueRef at = emit_gep(e, e->f32, sums, plus(e, c.i, i, r->sums_row));
    LLVMValueRef x = emit_load(e, e->vf32, at, NULL, 4), mask = NULL;
    if (r->parts > 1) {
        Loop p;
        loop_begin(e, &p, emit_i64(e, 1), emit_i64(e, r->parts), 1, 1, &x);
        LLVMValueRef n = emit_mul(e, p.i, emit_i64(e, s->m * r->sums_row));
        x = emit_load(e, e->vf32, emit_gep(e, e->f32, at, n), NULL, 4);
        x = emit_fadd(e, p.carry[0], x);
        loop_end(e, &p, &x);
        x = p.carry[0];
    }
    if (s->n % e->vl) mask = emit_tail_mask(e, emit_sub(e, emit_i64(e, s->n), c.i));
    write_c(r, ctx, i, c.i, x, mask);
    loop_end(e, &c, NULL);
}

static void join_rows(const Rows *r, LLVMValueRef ctx, LLVMValueRef j, LLVMValueRef end) {
    Loop i;
    loop_begin(r->e, &i, emit_i64(r->e, 0), emit_i64(r->e, r->s->m), 1, 0, NULL);
    join(r, ctx, i.i, j, end);
    loop_end(r->e, &i, NULL);
}

static LLVMValueRef along_n_emit(const Rows *r) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    LLVMValueRef fn = body_begin(r, "body"), ctx = emit_param(e, 0);
    LLVMValueRef tiles = emit_i64(e, r->tiles), ws = slot(r, ctx, SLOT_WS);
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef part = emit_div(e, items.i, tiles);
    LLVMValueRef j = emit_mul(e, emit_rem(e, items.i, tiles), emit_i64(e, r->tile));
    LLVMValueRef end = emit_add(e, j, emit_i64(e, r->tile));
    end = emit_imin(e, end, emit_i64(e, s->n));
    LLVMValueRef l = emit_mul(e, part, emit_i64(e, r->part));
    LLVMValueRef l_end = emit_add(e, l, emit_i64(e, r->part));
    l_end = emit_imin(e, l_end, emit_i64(e, s->k));
    LLVMValueRef sums = emit_at(e, e->i8, ws, r->a_bytes);
    Tile t = {.b = slot(r, ctx, SLOT_B)};
    t.a = s->narrow ? ws : slot(r, ctx, SLOT_A);
    t.sums =
        emit_gep(e, e->f32, sums, emit_mul(e, part, emit_i64(e, s->m * r->sums_row)));
    Loop i, c, block;
    loop_begin(e, &i, emit_i64(e, 0), emit_i64(e, s->m), 1, 0, NULL);
    loop_begin(e, &c, j, end, e->vl, 0, NULL);
    emit_store(e, LLVMConstNull(e->vf32),
               emit_gep(e, e->f32, t.sums, plus(e, c.i, i.i, r->sums_row)), NULL, 4);
    loop_end(e, &c, NULL);
    loop_end(e, &i, NULL);
    t.j = j;
    t.end = end;
    loop_begin(e, &block, l, l_end, r->block, 0, NULL);
    t.l = block.i;
    t.l_end = emit_imin(e, emit_add(e, block.i, emit_i64(e, r->block)), l_end);
    add_tile(r, &t);
    loop_end(e, &block, NULL);
    if (r->parts == 1) join_rows(r, ctx, j, end);
    loop_end(e, &items, NULL);
    emit_ret(e, NULL);
    return fn;
}

static int64_t join_items(const Rows *r) {
    return divided_up(r->s->n, JOIN_VECTORS * r->e->vl);
}

static LLVMValueRef join_emit(const Rows *r) {
    Emit *e = r->e;
    int64_t columns = JOIN_VECTORS * e->vl;
    LLVMValueRef fn = body_begin(r, "join"), n = emit_i64(e, columns);
    LLVMValueRef j = emit_mul(e, emit_param(e, 1), n);
    LLVMValueRef end = emit_mul(e, emit_param(e, 2), n);
    join_rows(r, emit_param(e, 0), j, emit_imin(e, end, emit_i64(e, r->s->n)));
    emit_ret(e, NULL);
    return fn;
}

/* A as f32, to the start of the workspace. */
static void widen_a(const Rows *r, LLVMValueRef a, LLVMValueRef ws) {
    Emit *e = r->e;
    Loop i, c;
    loop_begin(e, &i, emit_i64(e, 0), emit_i64(e, r->s->m), 1, 0, NULL);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, r->s->k), e->vl, 0, NULL);
    LLVMValueRef left = emit_sub(e, emit_i64(e, r->s->k), c.i);
    LLVMValueRef mask = r->s->k % e->vl ? emit_tail_mask(e, left) : NULL;
    LLVMValueRef from = emit_gep(e, e->i16, a, plus(e, c.i, i.i, r->s->a_m));
    emit_store(e, emit_load_narrow(e, DT_BF16, from, mask),
               emit_gep(e, e->f32, ws, plus(e, c.i, i.i, r->a_row)), NULL, 4);
    loop_end(e, &c, NULL);
    loop_end(e, &i, NULL);
}

/* ---- B along k ---- */

/* vl words of a row of A or a column of B, from place l of k on: numbers, or pairs. */
static LLVMValueRef load_words(const Rows *r, LLVMValueRef row, LLVMValueRef l,
                               bool tail) {
    Emit *e = r->e;
    LLVMValueRef at = emit_gep(e, element(r), row, l);
    LLVMValueRef left = emit_sub(e, emit_i64(e, r->s->k), l), lane[32];
    if (!r->s->narrow)
        return emit_load(e, e->vf32, at, tail ? emit_tail_mask(e, left) : NULL, 4);
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef mask = NULL;
    if (tail) {
        for (int i = 0; i < 2 * e->vl; i++) lane[i] = emit_i32(e, i);
        left = emit_splat_n(e, LLVMBuildTrunc(e->b, left, e->i32, ""), 2 * e->vl);
        mask = LLVMBuildICmp(e->b, LLVMIntSLT,
                             LLVMConstVector(lane, (unsigned)(2 * e->vl)), left, "");
    }
    return LLVMBuildBitCast(e->b, emit_load(e, halves, at, mask, 2), e->vi32, "");
}

typedef struct Group { /* of columns, and the rows of A that meet them */
    LLVMValueRef column[16], a;
    int64_t i0, rows, columns;
} Group;

/* sum[i * columns + c] += A[i][l ..] B[.. l][c] */
static void add_words(const Rows *r, const Group *g, LLVMValueRef l, bool tail,
                      LLVMValueRef *sum) {
    Emit *e = r->e;
    bool narrow = r->s->narrow;
    int64_t column_bytes = r->s->b_n * (narrow ? 2 : 4);
    int64_t next =
        MAX(1, divided_up(AHEAD_BYTES, g->columns * column_bytes)) * g->columns;
    LLVMValueRef b[16];
    Pairs pairs[16];
    for (int64_t c = 0; c < g->columns; c++) {
        b[c] = load_words(r, g->column[c], l, tail);
        if (narrow) pairs[c] = emit_pairs(e, b[c]);
        if (tail || g->i0) continue;
        LLVMValueRef at = emit_gep(e, element(r), g->column[c], l);
        fetch(r, emit_at(e, element(r), at, next * r->s->b_n));
    }
    for (int64_t i = 0; i < g->rows; i++) {
        LLVMValueRef row = emit_at(e, element(r), g->a, (g->i0 + i) * r->a_row);
        LLVMValueRef x = load_words(r, row, l, tail);
        Pairs p = {0};
        if (narrow) p = emit_pairs(e, x);
        for (int64_t c = 0; c < g->columns; c++) {
            LLVMValueRef *to = &sum[i * g->columns + c];
            *to = narrow ? emit_dot_pairs(e, &p, &pairs[c], *to)
                         : emit_fma(e, x, b[c], *to);
        }
    }
}

/* Lanes to the front, from lane `first` on. */
static LLVMValueRef lanes_from(Emit *e, LLVMValueRef x, int64_t first) {
    LLVMValueRef lane[16];
    if (!first) return x;
    for (int i = 0; i < e->vl; i++) lane[i] = emit_i32(e, (first + i) % e->vl);
    return LLVMBuildShuffleVector(e->b, x, x, LLVMConstVector(lane, (unsigned)e->vl), "");
}

/* C from vectors of sums: as many rows at a time as a transpose takes. */
static void add_lanes(const Rows *r, LLVMValueRef ctx, const Group *g, LLVMValueRef j,
                      const LLVMValueRef *sum) {
    Emit *e = r->e;
    int64_t rows = e->vl / g->columns;
    LLVMValueRef left = emit_sub(e, emit_i64(e, r->s->n), j), x[16];
    LLVMValueRef mask = emit_tail_mask(e, emit_imin(e, left, emit_i64(e, g->columns)));
    for (int64_t i0 = 0; i0 < g->rows; i0 += rows) {
        int64_t n = MIN(rows, g->rows - i0) * g->columns;
        for (int64_t t = 0; t < e->vl; t++)
            x[t] = t < n ? sum[i0 * g->columns + t] : LLVMConstNull(e->vf32);
        emit_transpose(e, x);
        for (int w = e->vl / 2; w; w /= 2)
            for (int t = 0; t < w; t++) x[t] = emit_fadd(e, x[t], x[t + w]);
        for (int64_t i = 0; i < n / g->columns; i++)
            write_c(r, ctx, emit_i64(e, g->i0 + i0 + i), j,
                    lanes_from(e, x[0], i * g->columns), mask);
    }
}

static void group(const Rows *r, LLVMValueRef ctx, const Group *g, LLVMValueRef j) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    int64_t step = e->vl * (s->narrow ? 2 : 1), whole = s->k / step * step;
    int n = (int)(g->rows * g->columns);
    LLVMValueRef sum[24];
    Loop l;
    for (int t = 0; t < n; t++) sum[t] = LLVMConstNull(e->vf32);
    if (whole) {
        loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, whole), step, n, sum);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
        add_words(r, g, l.i, false, sum);
        loop_end(e, &l, sum);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
    }
    if (whole < s->k) add_words(r, g, emit_i64(e, whole), true, sum);
    add_lanes(r, ctx, g, j, sum);
}

static LLVMValueRef along_k_emit(const Rows *r) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    LLVMValueRef fn = body_begin(r, "body"), ctx = emit_param(e, 0);
    LLVMValueRef b = slot(r, ctx, SLOT_B), size = emit_i64(e, r->item);
    LLVMValueRef from = emit_mul(e, emit_param(e, 1), size);
    LLVMValueRef to = emit_mul(e, emit_param(e, 2), size);
    to = emit_imin(e, to, emit_i64(e, s->n));
    Loop l;
    loop_begin(e, &l, from, to, r->group, 0, NULL);
    Group g = {.a = slot(r, ctx, SLOT_A), .columns = r->group};
    for (int64_t c = 0; c < r->group; c++) {
        LLVMValueRef j = emit_add(e, l.i, emit_i64(e, c));
        if (s->n % r->group) j = emit_imin(e, j, emit_i64(e, s->n - 1));
        g.column[c] = emit_gep(e, element(r), b, emit_mul(e, j, emit_i64(e, s->b_n)));
    }
    for (; g.i0 < s->m; g.i0 += g.rows) {
        g.rows = MIN(s->m - g.i0, r->rows);
        group(r, ctx, &g, l.i);
    }
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
    return fn;
}

/* ---- all of it ---- */

static void run_items(const Rows *r, LLVMValueRef ctx, LLVMValueRef fn, const char *part,
                      int64_t items, bool alone) {
    Emit *e = r->e;
    if (!alone) {
        CALL_RT(e, rt_parallel, emit_i64(e, items), fn, ctx);
        return;
    }
    LLVMValueRef args[] = {ctx, emit_i64(e, 0), emit_i64(e, items), emit_i64(e, 0)};
    emit_call(e, arena_printf(e->mem, "%s.%s", r->name, part), args, 4);
}

void rows_matmul_emit(Emit *e, const char *name, const RowsMatmul *s) {
    Rows r = rows_of(s, e->vl);
    r.e = e;
    r.name = name;
    LLVMValueRef body = r.along_n ? along_n_emit(&r) : along_k_emit(&r), last = NULL;
    if (r.parts > 1) last = join_emit(&r);
    LLVMTypeRef params[SLOTS];
    for (int i = 0; i < SLOTS; i++) params[i] = e->ptr;
    emit_func(e, name, e->void_, params, SLOTS, true);
    LLVMValueRef ctx = emit_alloca(e, SLOTS * 8);
    for (int i = 0; i < SLOTS; i++)
        emit_store(e, emit_param(e, i), emit_at(e, e->ptr, ctx, i), NULL, 8);
    if (r.along_n && s->narrow)
        widen_a(&r, emit_param(e, SLOT_A), emit_param(e, SLOT_WS));
    run_items(&r, ctx, body, "body", r.items, s->threads == 1);
    if (last)
        run_items(&r, ctx, last, "join", join_items(&r),
                  s->threads == 1 || s->m * s->n < JOIN_SMALL);
    emit_ret(e, NULL);
}
