/* rows_along_n.c - see rows_along_n.h.
 *     for item (a part of k, and a tile of columns), over the threads:
 *         for each block of rows of B:
 *             for each group of rows of A, whose numbers for the block are in registers:
 *                 sums[group][tile] += A[group][block] B[block][tile]
 *     C = the sums of the parts in order (+ bias) (+ C)
 * So each row of B is read from one end of the tile to the other, and the next block's are fetched
 * meanwhile. f16 becomes f32 where it is loaded; bf16 is taken in pairs of rows, whose numbers are put side by side in registers. */
#include "codegen/rows_along_n.h"

enum {
    GROUP_MOST = 4,    /* rows of A */
    JOIN_VECTORS = 16, /* of an item */
    LINE = 64,
};

/* A tile of columns j to end. */
typedef struct Tile {
    LLVMValueRef a, b, sums, j, end;
} Tile;

/* Rows l to l + by of B, and `rows` rows of A from row i on. */
typedef struct Block {
    LLVMValueRef l, i;
    int64_t by, rows;
    Pairs a[ROWS_BLOCK_NUMBERS]; /* of row x for place u: [x * by / deep + u / deep] */
    LLVMValueRef fetch[ROWS_BLOCK_NUMBERS]; /* rows that are fetched meanwhile */
    int64_t fetches;
} Block;

static LLVMValueRef a_at(const Rows *r, const Tile *t, const Block *b, LLVMTypeRef type,
                         int64_t row, int64_t u) {
    Emit *e = r->e;
    int64_t a_row = rows_widen(r) ? r->wide_row : r->s->a_m;
    LLVMValueRef at = emit_plus(e, b->l, emit_addi(e, b->i, row), a_row);
    return emit_at(e, type, emit_gep(e, type, t->a, at), u);
}

static LLVMValueRef splat_a(const Rows *r, const Tile *t, const Block *b, int64_t row,
                            int64_t u) {
    Emit *e = r->e;
    return emit_splat(e, emit_load(e, e->f32, a_at(r, t, b, e->f32, row, u), NULL, 4));
}

/* Places u and u + 1 of a row of A for all lanes; the second is 0 where k ends. */
static Pairs splat_pair(const Rows *r, const Tile *t, const Block *b, int64_t row,
                        int64_t u) {
    Emit *e = r->e;
    bool odd = b->by == 1;
    if (rows_widen(r))
        return (Pairs){.first = splat_a(r, t, b, row, u),
                       .second =
                           odd ? LLVMConstNull(e->vf32) : splat_a(r, t, b, row, u + 1)};
    LLVMTypeRef type = odd ? e->i16 : e->i32;
    LLVMValueRef x = emit_load(e, type, a_at(r, t, b, e->i16, row, u), NULL, 2);
    if (odd) x = LLVMBuildZExt(e->b, x, e->i32, "");
    return emit_pairs(e, emit_splat(e, x));
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

/* A vector of numbers of rows l + u of B, or the two vectors of a pair of rows. */
static void load_b(const Rows *r, const Block *b, LLVMValueRef row, LLVMValueRef mask,
                   Pairs *to) {
    Emit *e = r->e;
    if (r->deep == 1) {
        to->first = emit_load_as(e, r->s->dt, row, mask);
        return;
    }
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef x = emit_load(e, halves, row, mask, 2), y = LLVMConstNull(halves),
                 pair[2];
    if (b->by > 1) y = emit_load(e, halves, emit_at(e, e->i16, row, r->s->b_k), mask, 2);
    pair_columns(r, x, y, pair);
    for (int part = 0; part < 2; part++)
        to[part] =
            rows_widen(r) ? emit_wide_pairs(e, pair[part]) : emit_pairs(e, pair[part]);
}

/* sums[group][j ..] += A[group][block] B[block][j ..], a vector of columns, or two of pairs. */
static void add_columns(const Rows *r, const Tile *t, const Block *b, LLVMValueRef j,
                        LLVMValueRef mask) {
    Emit *e = r->e;
    LLVMValueRef sum[2 * GROUP_MOST], at[2 * GROUP_MOST];
    int deep = (int)r->deep, n = (int)b->rows * deep;
    for (int i = 0; i < n; i++) {
        LLVMValueRef row = emit_addi(e, b->i, i / deep);
        LLVMValueRef first =
            emit_gep(e, e->f32, t->sums, emit_plus(e, j, row, r->sums_row));
        at[i] = emit_at(e, e->f32, first, i % deep * e->vl);
        sum[i] = emit_load(e, e->vf32, at[i], NULL, 4);
    }
    LLVMValueRef row =
        emit_gep(e, rows_element(r), t->b, emit_plus(e, j, b->l, r->s->b_k));
    for (int64_t u = 0; u < b->by; u += deep) {
        Pairs x[2];
        load_b(r, b, emit_at(e, rows_element(r), row, u * r->s->b_k), mask, x);
        for (int i = 0; i < n; i++) {
            const Pairs *a = &b->a[(i / deep) * divided_up(b->by, deep) + u / deep];
            sum[i] = deep == 1 ? emit_fma(e, a->first, x->first, sum[i])
                               : emit_dot_pairs(e, &x[i % deep], a, sum[i]);
        }
    }
    for (int i = 0; i < n; i++) emit_store(e, sum[i], at[i], NULL, 4);
}

/* Lane i of vl * deep is on where i < n. */
static LLVMValueRef columns_mask(const Rows *r, LLVMValueRef n) {
    Emit *e = r->e;
    return r->deep == 1 ? emit_tail_mask(e, n) : emit_halves_mask(e, n);
}

/* All columns of the tile: as many at a time as a line has, then vector by vector. */
static void add_tile(const Rows *r, const Tile *t, const Block *b) {
    Emit *e = r->e;
    int64_t unit = e->vl * r->deep, step[] = {MAX(1, LINE / (e->vl * 4)), 1};
    LLVMValueRef j = t->j;
    for (int i = step[0] == 1; i < 2; i++) {
        LLVMValueRef n = emit_i64(e, step[i] * unit);
        LLVMValueRef whole = emit_div(e, emit_sub(e, t->end, j), n);
        LLVMValueRef to = emit_add(e, j, emit_mul(e, whole, n));
        Loop c;
        loop_begin(e, &c, j, to, step[i] * unit, 0, NULL);
        for (int64_t f = 0; f < b->fetches; f++)
            rows_fetch(r, emit_gep(e, rows_element(r), b->fetch[f], c.i));
        for (int v = 0; v < step[i]; v++)
            add_columns(r, t, b, emit_addi(e, c.i, v * unit), NULL);
        loop_end(e, &c, NULL);
        j = to;
    }
    if (r->s->n % unit == 0) return;
    Loop rest;
    loop_begin(e, &rest, j, t->end, unit, 0, NULL);
    add_columns(r, t, b, rest.i, columns_mask(r, emit_sub(e, t->end, rest.i)));
    loop_end(e, &rest, NULL);
}

/* All groups fetch the next block, each its share of the rows. */
static void fetch_share(const Rows *r, const Tile *t, Block *b) {
    Emit *e = r->e;
    int64_t groups = r->s->m / r->rows;
    b->fetches = divided_up(r->block, groups);
    LLVMValueRef group = emit_divi(e, b->i, r->rows);
    LLVMValueRef first = emit_muli(e, group, r->block);
    first = emit_divi(e, first, groups);
    first = emit_addi(e, emit_add(e, first, b->l), r->block);
    for (int64_t f = 0; f < b->fetches; f++) {
        LLVMValueRef row = emit_muli(e, emit_addi(e, first, f), r->s->b_k);
        b->fetch[f] = emit_gep(e, rows_element(r), t->b, row);
    }
}

static void add_group(const Rows *r, const Tile *t, Block *b) {
    for (int64_t x = 0; x < b->rows; x++)
        for (int64_t u = 0; u < b->by; u += r->deep) {
            Pairs *to = &b->a[x * divided_up(b->by, r->deep) + u / r->deep];
            if (r->deep == 1)
                to->first = splat_a(r, t, b, x, u);
            else
                *to = splat_pair(r, t, b, x, u);
        }
    if (b->by == r->block && b->rows == r->rows) fetch_share(r, t, b);
    add_tile(r, t, b);
}

/* Rows l to l + by of B, for all rows of A. */
static void add_block(const Rows *r, const Tile *t, LLVMValueRef l, int64_t by) {
    Emit *e = r->e;
    int64_t whole = r->s->m / r->rows * r->rows;
    Block b = {.l = l, .by = by, .rows = r->rows};
    Loop i;
    loop_begin(e, &i, emit_i64(e, 0), emit_i64(e, whole), r->rows, 0, NULL);
    b.i = i.i;
    add_group(r, t, &b);
    loop_end(e, &i, NULL);
    if (whole == r->s->m) return;
    Block rest = {.l = l, .i = emit_i64(e, whole), .by = by, .rows = r->s->m - whole};
    add_group(r, t, &rest);
}

/* Rows l to end of B: in blocks, then as many as are left at a time. */
static void add_blocks(const Rows *r, const Tile *t, LLVMValueRef l, LLVMValueRef end) {
    Emit *e = r->e;
    const int64_t step[] = {r->block, r->deep, 1};
    for (int i = 0; i < (r->deep > 1 ? 3 : 2); i++) {
        LLVMValueRef by = emit_i64(e, step[i]);
        LLVMValueRef to = emit_mul(e, emit_div(e, emit_sub(e, end, l), by), by);
        Loop block;
        to = emit_add(e, l, to);
        loop_begin(e, &block, l, to, step[i], 0, NULL);
        add_block(r, t, block.i, step[i]);
        loop_end(e, &block, NULL);
        l = to;
    }
}

/* A vector of sums over all parts. */
static LLVMValueRef join_parts(const Rows *r, LLVMValueRef at) {
    Emit *e = r->e;
    LLVMValueRef x = emit_load(e, e->vf32, at, NULL, 4);
    if (r->parts == 1) return x;
    Loop p;
    loop_begin(e, &p, emit_i64(e, 1), emit_i64(e, r->parts), 1, 1, &x);
    LLVMValueRef n = emit_muli(e, p.i, r->s->m * r->sums_row);
    x = emit_load(e, e->vf32, emit_gep(e, e->f32, at, n), NULL, 4);
    x = emit_fadd(e, p.carry[0], x);
    loop_end(e, &p, &x);
    return p.carry[0];
}

/* Columns j to end of C, from the sums of all parts. */
static void join(const Rows *r, LLVMValueRef ctx, LLVMValueRef i, LLVMValueRef j,
                 LLVMValueRef end) {
    Emit *e = r->e;
    LLVMValueRef sums = emit_at(e, e->i8, emit_slot(r->e, ctx, SLOT_WS), r->a_bytes),
                 x[2];
    Loop c;
    loop_begin(e, &c, j, end, e->vl * r->deep, 0, NULL);
    LLVMValueRef at = emit_gep(e, e->f32, sums, emit_plus(e, c.i, i, r->sums_row));
    for (int v = 0; v < r->deep; v++)
        x[v] = join_parts(r, emit_at(e, e->f32, at, v * e->vl));
    if (r->deep > 1) unpair_columns(r, &x[0], &x[1]);
    for (int v = 0; v < r->deep; v++) {
        LLVMValueRef column = emit_addi(e, c.i, v * e->vl), mask = NULL;
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
    LLVMValueRef tiles = emit_i64(e, r->tiles), ws = emit_slot(r->e, ctx, SLOT_WS);
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef part = emit_div(e, items.i, tiles);
    LLVMValueRef j = emit_muli(e, emit_rem(e, items.i, tiles), r->tile);
    LLVMValueRef end = emit_addi(e, j, r->tile);
    end = emit_imini(e, end, s->n);
    LLVMValueRef l = emit_muli(e, part, r->part);
    LLVMValueRef l_end = emit_addi(e, l, r->part);
    l_end = emit_imini(e, l_end, s->k);
    LLVMValueRef sums = emit_at(e, e->i8, ws, r->a_bytes);
    Tile t = {.b = emit_slot(r->e, ctx, SLOT_B)};
    t.a = rows_widen(r) ? ws : emit_slot(r->e, ctx, SLOT_A);
    t.sums = emit_gep(e, e->f32, sums, emit_muli(e, part, s->m * r->sums_row));
    Loop i, c;
    loop_begin(e, &i, emit_i64(e, 0), emit_i64(e, s->m), 1, 0, NULL);
    loop_begin(e, &c, j, end, e->vl * r->deep, 0, NULL);
    LLVMValueRef at = emit_gep(e, e->f32, t.sums, emit_plus(e, c.i, i.i, r->sums_row));
    for (int v = 0; v < r->deep; v++)
        emit_store(e, LLVMConstNull(e->vf32), emit_at(e, e->f32, at, v * e->vl), NULL, 4);
    loop_end(e, &c, NULL);
    loop_end(e, &i, NULL);
    t.j = j;
    t.end = end;
    add_blocks(r, &t, l, l_end);
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
    join_rows(r, emit_param(e, 0), j, emit_imini(e, end, r->s->n));
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
    LLVMValueRef from = emit_gep(e, e->i16, a, emit_plus(e, c.i, i.i, r->s->a_m));
    emit_store(e, emit_load_narrow(e, r->s->dt, from, mask),
               emit_gep(e, e->f32, ws, emit_plus(e, c.i, i.i, r->wide_row)), NULL, 4);
    loop_end(e, &c, NULL);
    loop_end(e, &i, NULL);
}
