/* gemm_tiles.c - see gemm_tiles.h. Four tiles of sums, 32 x 32 of C, stay in registers
 * while k runs; two tiles of A and two of B are loaded for each 16 pairs of k. Blocks go down the
 * rows of C, so that two columns of tiles of B stay in the first cache. Tiles at the edges of a
 * matrix are put together in memory first, filled up with zeros; and 32 rows of an A whose rows
 * are not contiguous, which then meet all columns. */
#include "codegen/gemm_tiles.h"
#include "codegen/gemm_result.h"
#include "codegen/tile_ops.h"
#include "runtime/core/peak.h"

enum { A_TILE = 4, B_TILE = 6, WIDE = 2 * TILE_SIDE, FEW_ROWS = 4 };

static LLVMValueRef count_if_less(Emit *e, int i, LLVMValueRef n, LLVMValueRef count) {
    LLVMValueRef there = emit_icmp(e, LLVMIntSLT, emit_i64(e, i), n);
    return emit_select(e, there, count, emit_i64(e, 0));
}

/* name(src, dst, rows, columns, stride): dst[16][16] = the words of src as far as it has
 * rows and columns, else 0. Its rows are `stride` words apart, or its columns. */
static const char *stage_function(Emit *e, bool by_columns) {
    const char *name = by_columns ? "stator.tiles.columns" : "stator.tiles.rows";
    if (LLVMGetNamedFunction(e->mod, name)) return name;
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->i64, e->i64, e->i64};
    LLVMValueRef fn = e->fn, v[TILE_SIDE];
    LLVMBasicBlockRef block = LLVMGetInsertBlock(e->b);
    emit_func(e, name, e->void_, params, 5, true);
    LLVMValueRef lines = emit_param(e, by_columns ? 3 : 2);
    LLVMValueRef length = emit_param(e, by_columns ? 2 : 3);
    for (int i = 0; i < TILE_SIDE; i++) {
        LLVMValueRef mask = emit_tail_mask(e, count_if_less(e, i, lines, length));
        LLVMValueRef at = emit_muli(e, emit_param(e, 4), i);
        at = emit_gep(e, e->f32, emit_param(e, 0), at);
        v[i] = emit_load(e, e->vf32, at, mask, 4);
    }
    if (by_columns) emit_transpose(e, v);
    for (int i = 0; i < TILE_SIDE; i++)
        emit_store(e, v[i], emit_at(e, e->f32, emit_param(e, 1), i * TILE_SIDE), NULL, 4);
    emit_ret(e, NULL);
    e->fn = fn;
    LLVMPositionBuilderAtEnd(e->b, block);
    return name;
}

typedef struct Product {
    Tiles t;
    const TileOps *ops;
    const GemmStrides *s;
    GemmInit init;
    LLVMValueRef a, b, c, scale, m, n, k;
    LLVMValueRef staged, sums; /* a tile; 32 x 32 floats */
    LLVMValueRef rows; /* 32 rows of A, tile after tile; NULL: they are contiguous */
    /* Of a user, in memory. held: the block whose sums are in the tiles; late: the one before, with
     * sums in `sums`, which are taken while those of the held one run. */
    LLVMValueRef held[3], late[3]; /* i64: i, j, rows */
} Product;

enum { BLOCK_I, BLOCK_J, BLOCK_ROWS };

static int parts_of(const GemmStrides *s) {
    return MAX(s->parts, 1);
}

/* A part of A or B from its first element on: how many rows and columns are left. */
typedef struct Source {
    LLVMValueRef at, rows, columns;
    int64_t stride;
} Source;

static void load_tile(const Product *p, int tile, const Source *s) {
    Emit *e = p->t.e;
    LLVMValueRef side = emit_i64(e, TILE_SIDE), stride = emit_i64(e, s->stride);
    LLVMValueRef rows = emit_icmp(e, LLVMIntSGE, s->rows, side);
    LLVMValueRef columns = emit_icmp(e, LLVMIntSGE, s->columns, side);
    LLVMValueRef whole = LLVMBuildAnd(e->b, rows, columns, "");
    const char *stage = stage_function(e, false);
    If f;
    if_begin(e, &f, whole);
    p->ops->load(&p->t, tile, s->at, emit_i64(e, 4 * s->stride));
    if_else(e, &f);
    LLVMValueRef args[] = {s->at, p->staged, s->rows, s->columns, stride};
    emit_call(e, stage, args, 5);
    p->ops->load(&p->t, tile, p->staged, emit_i64(e, 4 * TILE_SIDE));
    if_end(e, &f);
}

/* &ptr[x * x_stride + y * y_stride] of words. */
static LLVMValueRef word_at(Emit *e, LLVMValueRef ptr, LLVMValueRef x, int64_t x_stride,
                            LLVMValueRef y, int64_t y_stride) {
    LLVMValueRef at = emit_muli(e, x, x_stride);
    return emit_gep(e, e->f32, ptr, emit_add(e, at, emit_muli(e, y, y_stride)));
}

/* 32 rows of A from row i on, whose columns are contiguous: tile after tile, those of the same
 * k side by side. */
static void stage_rows(const Product *p, LLVMValueRef i) {
    Emit *e = p->t.e;
    const GemmStrides *s = p->s;
    const char *stage = stage_function(e, true);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), p->k, TILE_SIDE, 0, NULL);
    for (int x = 0; x < 2; x++) {
        LLVMValueRef row = emit_addi(e, i, x * TILE_SIDE);
        LLVMValueRef to = word_at(e, p->rows, l.i, WIDE, emit_i64(e, x * TILE_WORDS), 1);
        LLVMValueRef args[] = {word_at(e, p->a, row, s->a_row, l.i, s->a_col), to,
                               emit_sub(e, p->m, row), emit_sub(e, p->k, l.i),
                               emit_i64(e, s->a_col)};
        emit_call(e, stage, args, 5);
    }
    loop_end(e, &l, NULL);
}

/* Part q of 16 pairs of k of A, rows of half x of the block. */
static void load_a(const Product *p, int x, int q, LLVMValueRef i, LLVMValueRef l) {
    Emit *e = p->t.e;
    const GemmStrides *s = p->s;
    if (p->rows) {
        LLVMValueRef at = word_at(e, p->rows, l, WIDE, emit_i64(e, x * TILE_WORDS), 1);
        p->ops->load(&p->t, A_TILE + x, at, emit_i64(e, 4 * TILE_SIDE));
        return;
    }
    if (s->a_block) {
        LLVMValueRef first = emit_i64(e, (q * 2 + x) * TILE_WORDS);
        LLVMValueRef at = word_at(e, p->a, l, WIDE * parts_of(s), first, 1);
        at = word_at(e, at, emit_divi(e, i, WIDE), s->a_block, l, 0);
        (s->a_streams ? p->ops->stream : p->ops->load)(&p->t, A_TILE + x, at,
                                                       emit_i64(e, 4 * TILE_SIDE));
        return;
    }
    LLVMValueRef row = emit_addi(e, i, x * TILE_SIDE);
    Source from = {word_at(e, p->a, row, s->a_row, l, 1), emit_sub(e, p->m, row),
                   emit_sub(e, p->k, l), s->a_row};
    load_tile(p, A_TILE + x, &from);
}

static void load_b(const Product *p, int x, int q, LLVMValueRef j, LLVMValueRef l) {
    Emit *e = p->t.e;
    const GemmStrides *s = p->s;
    LLVMValueRef column = emit_addi(e, j, x * TILE_SIDE);
    int64_t step = s->b_col ? s->b_col : 1;
    LLVMValueRef row = emit_muli(e, l, parts_of(s));
    row = emit_addi(e, row, q * TILE_SIDE);
    Source from = {word_at(e, p->b, row, s->b_row, column, step), emit_sub(e, p->k, l),
                   emit_sub(e, p->n, column), s->b_row};
    if (s->b_whole)
        p->ops->load(&p->t, B_TILE + x, from.at, emit_i64(e, 4 * s->b_row));
    else
        load_tile(p, B_TILE + x, &from);
}

/* Where the sums of a block begin and end: 32 x 32 numbers, rows `stride` bytes apart. */
typedef struct Sums {
    LLVMValueRef at, stride;
} Sums;

static void sum_move(const Product *p, const Sums *s, int tile, bool load) {
    Emit *e = p->t.e;
    LLVMValueRef row = emit_muli(e, s->stride, tile / 2 * TILE_SIDE);
    LLVMValueRef at = emit_gep(e, e->i8, s->at, row);
    at = emit_at(e, e->f32, at, tile % 2 * TILE_SIDE);
    (load ? p->ops->load : p->ops->store)(&p->t, tile, at, s->stride);
}

static void sums_move(const Product *p, const Sums *s, bool load) {
    for (int t = 0; t < 4; t++) sum_move(p, s, t, load);
}

static LLVMValueRef late(const Product *p, int what) {
    return emit_load(p->t.e, p->t.e->i64, p->late[what], NULL, 8);
}

/* Row r of the late block, both vectors of it, to the user. */
static void take_row(const Product *p, LLVMValueRef r) {
    Emit *e = p->t.e;
    LLVMValueRef x[WIDE / TILE_SIDE];
    for (int v = 0; v < WIDE / TILE_SIDE; v++) {
        LLVMValueRef from = word_at(e, p->sums, r, WIDE, emit_i64(e, v * TILE_SIDE), 1);
        x[v] = emit_load(e, e->vf32, from, NULL, 4);
    }
    GemmBlock at = {emit_add(e, late(p, BLOCK_I), r), late(p, BLOCK_J), NULL, 1,
                    WIDE / TILE_SIDE};
    p->s->user->take(p->s->user->ctx, &at, x);
}

/* The late block from row r to `end`, if it has so many. */
static void take_rest(const Product *p, LLVMValueRef r, LLVMValueRef end) {
    Emit *e = p->t.e;
    Loop l;
    loop_begin(e, &l, r, emit_imin(e, end, late(p, BLOCK_ROWS)), 1, 0, NULL);
    take_row(p, l.i);
    loop_end(e, &l, NULL);
}

/* Rows r and on of the late block, n of them as far as it has so many: of many not one by one,
 * whose code takes long to compile. */
static void take_rows(const Product *p, LLVMValueRef r, int n) {
    Emit *e = p->t.e;
    If f;
    if (n > FEW_ROWS) {
        take_rest(p, r, emit_addi(e, r, n));
        return;
    }
    for (int i = 0; i < n; i++) {
        LLVMValueRef row = emit_addi(e, r, i);
        if_begin(e, &f, emit_icmp(e, LLVMIntSLT, row, late(p, BLOCK_ROWS)));
        take_row(p, row);
        if_end(e, &f);
    }
}

/* The held block becomes the late one, `at` or none the held one. */
static void hold(const Product *p, const GemmBlock *at) {
    Emit *e = p->t.e;
    LLVMValueRef none = emit_i64(e, 0), next[] = {none, none, none};
    if (at) {
        next[BLOCK_I] = at->i;
        next[BLOCK_J] = at->j;
        next[BLOCK_ROWS] = emit_imini(e, emit_sub(e, p->m, at->i), WIDE);
    }
    for (int x = 0; x < ARRAY_LEN(next); x++) {
        LLVMValueRef old = emit_load(e, e->i64, p->held[x], NULL, 8);
        emit_store(e, old, p->late[x], NULL, 8);
        emit_store(e, next[x], p->held[x], NULL, 8);
    }
}

static const int parts_of_a[] = {2, 1, 1, 0, 0, 0}, parts_of_b[] = {0, 0, 1, 1, 2, 0};
_Static_assert(ARRAY_LEN(parts_of_a) == F32_PRODUCTS_BY_TILES, "peaks count them");

int gemm_turns(int parts) {
    return parts > 1 ? ARRAY_LEN(parts_of_a) : 1;
}

GemmTurn gemm_turn(int parts, int n) {
    if (parts == 1) return (GemmTurn){0, 0, true, true};
    return (GemmTurn){parts_of_a[n], parts_of_b[n],
                      !n || parts_of_a[n] != parts_of_a[n - 1],
                      !n || parts_of_b[n] != parts_of_b[n - 1]};
}

/* What turn n of 16 pairs of k multiplies and the turn before did not. */
static void load_turn(const Product *p, const GemmBlock *at, LLVMValueRef l, int n) {
    const GemmUser *user = p->s->user;
    const GemmTurn turn = gemm_turn(parts_of(p->s), n);
    for (int x = 0; x < 2; x++) {
        if (turn.next_a) load_a(p, x, turn.a, at->i, l);
        if (turn.next_b) load_b(p, x, turn.b, at->j, l);
    }
    if (!n && user && user->step) user->step(user->ctx, at, l);
}

static void dot(const Product *p, int tile) {
    p->ops->dot(&p->t, tile, A_TILE + tile / 2, B_TILE + tile % 2);
}

static void dots_from(const Product *p, const GemmBlock *at, LLVMValueRef l, int n) {
    for (; n < gemm_turns(parts_of(p->s)); n++) {
        load_turn(p, at, l, n);
        for (int t = 0; t < 4; t++) dot(p, t);
    }
}

/* The sums of a block, in the tiles; from: those that it goes on with, or NULL. */
static void sums_emit(const Product *p, const GemmBlock *at, const Sums *from) {
    Emit *e = p->t.e;
    Loop l;
    if (from)
        sums_move(p, from, true);
    else
        for (int t = 0; t < 4; t++) p->ops->zero(&p->t, t);
    loop_begin(e, &l, emit_i64(e, 0), p->k, TILE_SIDE, 0, NULL);
    dots_from(p, at, l.i, 0);
    loop_end(e, &l, NULL);
}

/* The same for a user. The sums of the block before leave the tiles one by one between the first
 * products: stores of all four at once would keep the unit waiting for the last of them. */
static void user_block(const Product *p, const GemmBlock *at) {
    Emit *e = p->t.e;
    const Sums own = {p->sums, emit_i64(e, 4 * WIDE)};
    const int rows = p->s->user->rows_a_step;
    Loop l;
    LLVMValueRef row = emit_i64(e, 0);
    load_turn(p, at, row, 0);
    for (int t = 0; t < 4; t++) {
        sum_move(p, &own, t, false);
        p->ops->zero(&p->t, t);
        dot(p, t);
    }
    dots_from(p, at, row, 1);
    hold(p, at);
    loop_begin(e, &l, emit_i64(e, TILE_SIDE), p->k, TILE_SIDE, 1, &row);
    dots_from(p, at, l.i, 0);
    take_rows(p, l.carry[0], rows);
    row = emit_addi(e, l.carry[0], rows);
    loop_end(e, &l, &row);
    take_rest(p, l.carry[0], emit_i64(e, WIDE));
}

/* What is done with a vector of C, and where it is in the block that was put together. */
typedef void (*Vector)(const Product *p, const GemmBlock *at, LLVMValueRef sums);

/* `each` with every vector of the block of C. */
static void block_vectors(const Product *p, const GemmBlock *block, Vector each) {
    Emit *e = p->t.e;
    Loop r;
    LLVMValueRef rows = emit_imini(e, emit_sub(e, p->m, block->i), WIDE);
    loop_begin(e, &r, emit_i64(e, 0), rows, 1, 0, NULL);
    for (int x = 0; x < 2; x++) {
        LLVMValueRef column = emit_addi(e, block->j, x * TILE_SIDE);
        LLVMValueRef mask = emit_tail_mask(e, emit_sub(e, p->n, column));
        GemmBlock at = {emit_add(e, block->i, r.i), column, mask, 1, 1};
        each(p, &at, word_at(e, p->sums, r.i, WIDE, emit_i64(e, x * TILE_SIDE), 1));
    }
    loop_end(e, &r, NULL);
}

static LLVMValueRef c_at(const Product *p, LLVMValueRef i, LLVMValueRef j) {
    return word_at(p->t.e, p->c, i, p->s->c_row, j, 1);
}

static void vector_to_sums(const Product *p, const GemmBlock *at, LLVMValueRef sums) {
    Emit *e = p->t.e;
    LLVMValueRef old = emit_load(e, e->vf32, c_at(p, at->i, at->j), at->mask, 4);
    emit_store(e, old, sums, NULL, 4);
}

static void vector_to_c(const Product *p, const GemmBlock *at, LLVMValueRef sums) {
    Emit *e = p->t.e;
    LLVMValueRef x = emit_load(e, e->vf32, sums, NULL, 4);
    emit_store(e, x, c_at(p, at->i, at->j), at->mask, 4);
}

/* To what C holds times the scale. */
static void vector_scaled(const Product *p, const GemmBlock *at, LLVMValueRef sums) {
    Emit *e = p->t.e;
    LLVMValueRef x = emit_load(e, e->vf32, sums, NULL, 4);
    LLVMValueRef scale = emit_gep(e, e->f32, p->scale, at->j);
    gemm_result(e, p->init, x, c_at(p, at->i, at->j), scale, at->mask);
}

/* Tiles go from C and to C, at its edges by way of the block that is put together. */
static void block_of_c(const Product *p, const GemmBlock *at) {
    Emit *e = p->t.e;
    LLVMValueRef wide = emit_i64(e, WIDE);
    LLVMValueRef rows = emit_icmp(e, LLVMIntSLT, emit_sub(e, p->m, at->i), wide);
    LLVMValueRef columns = emit_icmp(e, LLVMIntSLT, emit_sub(e, p->n, at->j), wide);
    LLVMValueRef edge = LLVMBuildOr(e->b, rows, columns, "");
    Sums sums = {
        emit_select(e, edge, p->sums, c_at(p, at->i, at->j)),
        emit_select(e, edge, emit_i64(e, 4 * WIDE), emit_i64(e, 4 * p->s->c_row))};
    If f;
    if (p->init == GEMM_ADD) {
        if_begin(e, &f, edge);
        block_vectors(p, at, vector_to_sums);
        if_end(e, &f);
    }
    sums_emit(p, at, p->init == GEMM_ADD ? &sums : NULL);
    sums_move(p, &sums, false);
    if_begin(e, &f, edge);
    block_vectors(p, at, vector_to_c);
    if_end(e, &f);
}

/* 32 x 32 of C. */
static void block_emit(const Product *p, const GemmBlock *at) {
    const Sums own = {p->sums, emit_i64(p->t.e, 4 * WIDE)};
    if (p->s->user) {
        user_block(p, at);
    } else if (p->init != GEMM_SCALE) {
        block_of_c(p, at);
    } else {
        sums_emit(p, at, NULL);
        sums_move(p, &own, false);
        block_vectors(p, at, vector_scaled);
    }
}

static void user_begin(Product *p) {
    Emit *e = p->t.e;
    for (int x = 0; x < ARRAY_LEN(p->held); x++) {
        p->held[x] = emit_alloca(e, 8);
        p->late[x] = emit_alloca(e, 8);
        emit_store(e, emit_i64(e, 0), p->held[x], NULL, 8);
    }
}

static void user_end(const Product *p) {
    const Sums own = {p->sums, emit_i64(p->t.e, 4 * WIDE)};
    sums_move(p, &own, false);
    hold(p, NULL);
    take_rest(p, emit_i64(p->t.e, 0), emit_i64(p->t.e, WIDE));
}

void gemm_tiles_emit(Emit *e, const GemmStrides *s, GemmInit init, const GemmData *data,
                     const GemmSize *size) {
    check(parts_of(s) == 1 || (parts_of(s) == BF16_PARTS && s->a_block && s->b_col));
    check(s->pairs && e->tiles != TILES_NONE && e->vl == TILE_SIDE);
    check(!s->b_col || s->b_row == TILE_SIDE);
    check(s->a_block || s->a_col == 1 || (s->a_row == 1 && s->k_most > 0));
    Product p = {.t = {e, NULL}, .ops = tile_ops_of(e), .s = s, .init = init};
    p.a = data->a, p.b = data->b, p.c = data->c, p.scale = data->scale;
    p.m = size->m, p.n = size->n, p.k = size->k;
    if (e->tiles == TILES_EMULATED)
        p.t.room = emit_alloca(e, 4 * TILE_REGISTERS * TILE_WORDS);
    p.staged = emit_alloca(e, 4 * TILE_WORDS);
    p.sums = emit_alloca(e, 4 * WIDE * WIDE);
    if (s->user) user_begin(&p);
    Loop outer, inner;
    if (!s->a_block && s->a_col != 1) {
        p.rows = emit_alloca(e, 4 * WIDE * round_up(s->k_most, TILE_SIDE));
        loop_begin(e, &outer, emit_i64(e, 0), p.m, WIDE, 0, NULL);
        stage_rows(&p, outer.i);
        loop_begin(e, &inner, emit_i64(e, 0), p.n, WIDE, 0, NULL);
    } else {
        loop_begin(e, &outer, emit_i64(e, 0), p.n, WIDE, 0, NULL);
        loop_begin(e, &inner, emit_i64(e, 0), p.m, WIDE, 0, NULL);
    }
    LLVMValueRef i = p.rows ? outer.i : inner.i, j = p.rows ? inner.i : outer.i;
    GemmBlock at = {i, j, NULL, WIDE, WIDE / TILE_SIDE};
    block_emit(&p, &at);
    loop_end(e, &inner, NULL);
    loop_end(e, &outer, NULL);
    if (s->user) user_end(&p);
}
