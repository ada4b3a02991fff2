/* rows_along_n.c - see rows_along_n.h.
 *     for item (a part of k, and a tile of columns), over the threads:
 *         for each block of BLOCK rows of B: sums[m][tile] += A[m][block] B[block][tile]
 *     C = the sums of the parts in order (+ bias) (+ C)
 * Rows of B are read in long runs, and those of the next block are fetched ahead: they lie too far
 * away for the CPU to see them. bf16 is taken in pairs of rows, whose numbers are put side by side
 * in registers. */
#include "codegen/rows_along_n.h"

enum {
    VECTORS = 4,       /* of columns at a time, at most; of pairs twice as many */
    JOIN_VECTORS = 16, /* of an item */
    LINE = 64,
};

/* Rows of A, and vectors of each. */
static int64_t rows_at_once(const Rows *r) {
    int64_t most = rows_sums(r->e->vl) / 3;
    return divided_up(r->s->m, divided_up(r->s->m, most));
}

static int64_t vectors_at_once(const Rows *r) {
    int64_t n = rows_sums(r->e->vl) / rows_at_once(r) / r->deep * r->deep;
    return MIN(VECTORS * r->deep, MAX(r->deep, n));
}

/* A tile of columns j to end, and the rows of B from l to l_end. */
typedef struct Tile {
    LLVMValueRef a, b, sums, j, end, l, l_end;
} Tile;

/* Fetches the share of the next rows' lines that the panel at column j has for row l: all panels
 * and rows together go through the lines of a tile as they lie in memory. */
static void fetch_next(const Rows *r, const Tile *t, LLVMValueRef l, LLVMValueRef j,
                       int64_t vecs) {
    Emit *e = r->e;
    int64_t width = r->s->narrow ? 2 : 4, share = MAX(1, vecs * e->vl * width / LINE);
    int64_t lines = divided_up(r->tile * width, LINE);
    bool one_piece = r->tile == r->s->b_k;
    LLVMValueRef panel = emit_div(e, emit_sub(e, j, t->j), emit_i64(e, vecs * e->vl));
    LLVMValueRef n = rows_plus(e, emit_sub(e, l, t->l), panel, r->block);
    n = emit_mul(e, n, emit_i64(e, share));
    LLVMValueRef row = one_piece ? emit_i64(e, 0) : emit_div(e, n, emit_i64(e, lines));
    LLVMValueRef line = one_piece ? n : emit_rem(e, n, emit_i64(e, lines));
    row = emit_add(e, emit_add(e, row, t->l), emit_i64(e, r->block));
    LLVMValueRef at =
        emit_gep(e, rows_element(r), t->b, rows_plus(e, t->j, row, r->s->b_k));
    at = emit_gep(e, e->i8, at, emit_mul(e, line, emit_i64(e, LINE)));
    for (int64_t i = 0; i < share; i++) rows_fetch(r, emit_at(e, e->i8, at, i * LINE));
}

typedef struct Panel { /* rows of A from i0 on, vectors of columns from j on */
    int64_t i0, rows, vecs;
    LLVMValueRef j, mask;
} Panel;

static LLVMValueRef a_at(const Rows *r, const Tile *t, LLVMTypeRef type, int64_t row,
                         LLVMValueRef l) {
    int64_t a_row = rows_widen(r) ? r->wide_row : r->s->a_m;
    return emit_gep(r->e, type, t->a, emit_add(r->e, l, emit_i64(r->e, row * a_row)));
}

static LLVMValueRef splat_a(const Rows *r, const Tile *t, int64_t row, LLVMValueRef l) {
    Emit *e = r->e;
    return emit_splat(e, emit_load(e, e->f32, a_at(r, t, e->f32, row, l), NULL, 4));
}

/* sum[i * vecs + v] += A[i0 + i][l] B[l][j + v ..] */
static void add_row(const Rows *r, const Tile *t, const Panel *p, LLVMValueRef l,
                    LLVMValueRef *sum) {
    Emit *e = r->e;
    LLVMValueRef b[VECTORS];
    LLVMValueRef row = emit_gep(e, e->f32, t->b, rows_plus(e, p->j, l, r->s->b_k));
    for (int64_t v = 0; v < p->vecs; v++)
        b[v] = emit_load(e, e->vf32, emit_at(e, e->f32, row, v * e->vl), p->mask, 4);
    for (int64_t i = 0; i < p->rows; i++) {
        LLVMValueRef x = splat_a(r, t, p->i0 + i, l);
        for (int64_t v = 0; v < p->vecs; v++)
            sum[i * p->vecs + v] = emit_fma(e, x, b[v], sum[i * p->vecs + v]);
    }
}

/* Pairs of two rows of B, of 2 vl columns: within each group of 8 columns, the first four are in
 * `pair[0]`, the others in `pair[1]`: so numbers stay in the 128 bits that they were loaded in. */
static void pair_columns(const Rows *r, LLVMValueRef first, LLVMValueRef second,
                         LLVMValueRef *pair) {
    Emit *e = r->e;
    LLVMValueRef lane[32];
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < 2 * e->vl; i++)
            lane[i] = emit_i32(e, i / 8 * 8 + part * 4 + i % 8 / 2 + (i & 1) * 2 * e->vl);
        LLVMValueRef order = LLVMConstVector(lane, (unsigned)(2 * e->vl));
        LLVMValueRef x = LLVMBuildShuffleVector(e->b, first, second, order, "");
        pair[part] = LLVMBuildBitCast(e->b, x, e->vi32, "");
    }
}

/* Vectors x and y of sums that are in the order of pair_columns, to that of columns. */
static void unpair_columns(const Rows *r, LLVMValueRef *x, LLVMValueRef *y) {
    Emit *e = r->e;
    LLVMValueRef lane[16], out[2];
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < e->vl; i++) {
            int c = part * e->vl + i;
            lane[i] = emit_i32(e, c / 8 * 4 + c % 4 + (c % 8 / 4) * e->vl);
        }
        LLVMValueRef order = LLVMConstVector(lane, (unsigned)e->vl);
        out[part] = LLVMBuildShuffleVector(e->b, *x, *y, order, "");
    }
    *x = out[0], *y = out[1];
}

/* Places l and l + 1 of a row of A for all lanes; the second is 0 where k ends (`odd`). */
static Pairs splat_pair(const Rows *r, const Tile *t, int64_t row, LLVMValueRef l,
                        bool odd) {
    Emit *e = r->e;
    if (rows_widen(r)) {
        LLVMValueRef next = emit_add(e, l, emit_i64(e, 1));
        LLVMValueRef zero = LLVMConstNull(e->vf32);
        return (Pairs){.first = splat_a(r, t, row, l),
                       .second = odd ? zero : splat_a(r, t, row, next)};
    }
    LLVMValueRef x =
        emit_load(e, odd ? e->i16 : e->i32, a_at(r, t, e->i16, row, l), NULL, 2);
    if (odd) x = LLVMBuildZExt(e->b, x, e->i32, "");
    return emit_pairs(e, emit_splat(e, x));
}

/* The same as add_row for rows l and l + 1. */
static void add_pair(const Rows *r, const Tile *t, const Panel *p, LLVMValueRef l,
                     bool odd, LLVMValueRef *sum) {
    Emit *e = r->e;
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef row = emit_gep(e, e->i16, t->b, rows_plus(e, p->j, l, r->s->b_k));
    Pairs b[2 * VECTORS];
    for (int64_t v = 0; v < p->vecs; v += 2) {
        LLVMValueRef at = emit_at(e, e->i16, row, v * e->vl), pair[2];
        LLVMValueRef x = emit_load(e, halves, at, p->mask, 2), y = LLVMConstNull(halves);
        if (!odd) y = emit_load(e, halves, emit_at(e, e->i16, at, r->s->b_k), p->mask, 2);
        pair_columns(r, x, y, pair);
        for (int part = 0; part < 2; part++)
            b[v + part] = rows_widen(r) ? emit_wide_pairs(e, pair[part])
                                        : emit_pairs(e, pair[part]);
    }
    for (int64_t i = 0; i < p->rows; i++) {
        Pairs x = splat_pair(r, t, p->i0 + i, l, odd);
        for (int64_t v = 0; v < p->vecs; v++) {
            LLVMValueRef *to = &sum[i * p->vecs + v];
            *to = emit_dot_pairs(e, &b[v], &x, *to);
        }
    }
}

static LLVMValueRef sums_at(const Rows *r, const Tile *t, const Panel *p, int64_t i) {
    Emit *e = r->e;
    int64_t row = p->i0 + i / p->vecs, v = i % p->vecs;
    LLVMValueRef n = emit_add(e, p->j, emit_i64(e, row * r->sums_row + v * e->vl));
    return emit_gep(e, e->f32, t->sums, n);
}

/* Adds `by` rows of B from l on: 1 with pairs is the last row of an odd number. */
static void add_rows(const Rows *r, const Tile *t, const Panel *p, LLVMValueRef l, int by,
                     LLVMValueRef *sum) {
    Emit *e = r->e;
    for (int u = 0; u < by; u += (int)r->deep) {
        LLVMValueRef at = emit_add(e, l, emit_i64(e, u));
        if (r->deep == 1)
            add_row(r, t, p, at, sum);
        else
            add_pair(r, t, p, at, by == 1, sum);
    }
}

/* The sums of the panel, and all rows of the tile. */
static void add_panel(const Rows *r, const Tile *t, const Panel *p) {
    Emit *e = r->e;
    LLVMValueRef sum[ROWS_SUMS], next[ROWS_SUMS];
    int n = (int)(p->rows * p->vecs);
    for (int i = 0; i < n; i++)
        sum[i] = emit_load(e, e->vf32, sums_at(r, t, p, i), NULL, 4);
    LLVMValueRef from = t->l, rows = emit_sub(e, t->l_end, t->l);
    const int step[] = {ROWS_UNROLL, (int)r->deep, 1};
    for (int i = 0; i < (r->deep > 1 ? 3 : 2); i++) {
        LLVMValueRef by = emit_i64(e, step[i]),
                     to = emit_mul(e, emit_div(e, rows, by), by);
        Loop l;
        to = emit_add(e, t->l, to);
        loop_begin(e, &l, from, to, step[i], n, sum);
        memcpy(next, l.carry, (size_t)n * sizeof *next);
        if (!p->i0)
            for (int u = 0; u < step[i]; u++)
                fetch_next(r, t, emit_add(e, l.i, emit_i64(e, u)), p->j, p->vecs);
        add_rows(r, t, p, l.i, step[i], next);
        loop_end(e, &l, next);
        memcpy(sum, l.carry, (size_t)n * sizeof *sum);
        from = to;
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

/* Lane i of vl * deep is on where i < n. */
static LLVMValueRef columns_mask(const Rows *r, LLVMValueRef n) {
    Emit *e = r->e;
    return r->deep == 1 ? emit_tail_mask(e, n) : emit_halves_mask(e, n);
}

/* All columns of the tile. */
static void add_tile(const Rows *r, const Tile *t) {
    Emit *e = r->e;
    int64_t vecs = vectors_at_once(r), vl = e->vl;
    LLVMValueRef j = t->j;
    for (int64_t n = vecs;; n = r->deep) {
        LLVMValueRef count = emit_sub(e, t->end, j);
        LLVMValueRef whole = emit_div(e, count, emit_i64(e, n * vl));
        LLVMValueRef to = emit_add(e, j, emit_mul(e, whole, emit_i64(e, n * vl)));
        Loop c;
        loop_begin(e, &c, j, to, n * vl, 0, NULL);
        add_panels(r, t, c.i, n, NULL);
        loop_end(e, &c, NULL);
        j = to;
        if (n == r->deep) break;
    }
    if (r->s->n % (vl * r->deep) == 0) return;
    Loop rest;
    loop_begin(e, &rest, j, t->end, vl * r->deep, 0, NULL);
    add_panels(r, t, rest.i, r->deep, columns_mask(r, emit_sub(e, t->end, rest.i)));
    loop_end(e, &rest, NULL);
}

/* A vector of sums over all parts. */
static LLVMValueRef join_parts(const Rows *r, LLVMValueRef at) {
    Emit *e = r->e;
    LLVMValueRef x = emit_load(e, e->vf32, at, NULL, 4);
    if (r->parts == 1) return x;
    Loop p;
    loop_begin(e, &p, emit_i64(e, 1), emit_i64(e, r->parts), 1, 1, &x);
    LLVMValueRef n = emit_mul(e, p.i, emit_i64(e, r->s->m * r->sums_row));
    x = emit_load(e, e->vf32, emit_gep(e, e->f32, at, n), NULL, 4);
    x = emit_fadd(e, p.carry[0], x);
    loop_end(e, &p, &x);
    return p.carry[0];
}

/* Columns j to end of C, from the sums of all parts. */
static void join(const Rows *r, LLVMValueRef ctx, LLVMValueRef i, LLVMValueRef j,
                 LLVMValueRef end) {
    Emit *e = r->e;
    LLVMValueRef sums = emit_at(e, e->i8, rows_slot(r, ctx, SLOT_WS), r->a_bytes), x[2];
    Loop c;
    loop_begin(e, &c, j, end, e->vl * r->deep, 0, NULL);
    LLVMValueRef at = emit_gep(e, e->f32, sums, rows_plus(e, c.i, i, r->sums_row));
    for (int v = 0; v < r->deep; v++)
        x[v] = join_parts(r, emit_at(e, e->f32, at, v * e->vl));
    if (r->deep > 1) unpair_columns(r, &x[0], &x[1]);
    for (int v = 0; v < r->deep; v++) {
        LLVMValueRef column = emit_add(e, c.i, emit_i64(e, v * e->vl)), mask = NULL;
        if (r->s->n % (e->vl * r->deep))
            mask = emit_tail_mask(e, emit_sub(e, emit_i64(e, r->s->n), column));
        rows_write(r, ctx, i, column, x[v], mask);
    }
    loop_end(e, &c, NULL);
}

static void join_rows(const Rows *r, LLVMValueRef ctx, LLVMValueRef j, LLVMValueRef end) {
    Loop i;
    loop_begin(r->e, &i, emit_i64(r->e, 0), emit_i64(r->e, r->s->m), 1, 0, NULL);
    join(r, ctx, i.i, j, end);
    loop_end(r->e, &i, NULL);
}

LLVMValueRef rows_along_n_emit(const Rows *r) {
    const RowsMatmul *s = r->s;
    Emit *e = r->e;
    LLVMValueRef fn = rows_body(r, "body"), ctx = emit_param(e, 0);
    LLVMValueRef tiles = emit_i64(e, r->tiles), ws = rows_slot(r, ctx, SLOT_WS);
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
    Tile t = {.b = rows_slot(r, ctx, SLOT_B)};
    t.a = rows_widen(r) ? ws : rows_slot(r, ctx, SLOT_A);
    t.sums =
        emit_gep(e, e->f32, sums, emit_mul(e, part, emit_i64(e, s->m * r->sums_row)));
    Loop i, c, block;
    loop_begin(e, &i, emit_i64(e, 0), emit_i64(e, s->m), 1, 0, NULL);
    loop_begin(e, &c, j, end, e->vl * r->deep, 0, NULL);
    LLVMValueRef at = emit_gep(e, e->f32, t.sums, rows_plus(e, c.i, i.i, r->sums_row));
    for (int v = 0; v < r->deep; v++)
        emit_store(e, LLVMConstNull(e->vf32), emit_at(e, e->f32, at, v * e->vl), NULL, 4);
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

int64_t rows_join_items(const Rows *r) {
    return divided_up(r->s->n, JOIN_VECTORS * r->e->vl);
}

LLVMValueRef rows_join_emit(const Rows *r) {
    Emit *e = r->e;
    int64_t columns = JOIN_VECTORS * e->vl;
    LLVMValueRef fn = rows_body(r, "join"), n = emit_i64(e, columns);
    LLVMValueRef j = emit_mul(e, emit_param(e, 1), n);
    LLVMValueRef end = emit_mul(e, emit_param(e, 2), n);
    join_rows(r, emit_param(e, 0), j, emit_imin(e, end, emit_i64(e, r->s->n)));
    emit_ret(e, NULL);
    return fn;
}

void rows_widen_emit(const Rows *r, LLVMValueRef a, LLVMValueRef ws) {
    Emit *e = r->e;
    Loop i, c;
    loop_begin(e, &i, emit_i64(e, 0), emit_i64(e, r->s->m), 1, 0, NULL);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, r->s->k), e->vl, 0, NULL);
    LLVMValueRef left = emit_sub(e, emit_i64(e, r->s->k), c.i);
    LLVMValueRef mask = r->s->k % e->vl ? emit_tail_mask(e, left) : NULL;
    LLVMValueRef from = emit_gep(e, e->i16, a, rows_plus(e, c.i, i.i, r->s->a_m));
    emit_store(e, emit_load_narrow(e, DT_BF16, from, mask),
               emit_gep(e, e->f32, ws, rows_plus(e, c.i, i.i, r->wide_row)), NULL, 4);
    loop_end(e, &c, NULL);
    loop_end(e, &i, NULL);
}
