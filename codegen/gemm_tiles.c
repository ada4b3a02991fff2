/* gemm_tiles.c - see gemm_tiles.h. Four tiles of sums, 32 x 32 of C, stay in registers
 * while k runs; two tiles of A and two of B are loaded for each 16 pairs of k. Blocks go down the
 * rows of C, so that two columns of tiles of B stay in the first cache. Tiles at the edges of a
 * matrix are put together in memory first, filled up with zeros; and 32 rows of an A whose rows
 * are not contiguous, which then meet all columns. */
#include "codegen/gemm_tiles.h"
#include "codegen/gemm_result.h"

enum {
    SIDE = 16,
    TILE = SIDE * SIDE,
    TILES = 8,
    A_TILE = 4,
    B_TILE = 6,
    WIDE = 2 * SIDE
};

/* Where the emulated registers are. */
typedef struct Tiles {
    Emit *e;
    LLVMValueRef room;
} Tiles;

/* The operations on tile registers. Strides in bytes. stream: load what need not stay in the
 * first cache. dot: sum += a b. */
typedef struct TileOps {
    void (*zero)(const Tiles *t, int tile);
    void (*load)(const Tiles *t, int tile, LLVMValueRef from, LLVMValueRef stride);
    void (*stream)(const Tiles *t, int tile, LLVMValueRef from, LLVMValueRef stride);
    void (*dot)(const Tiles *t, int sum, int a, int b);
    void (*store)(const Tiles *t, int tile, LLVMValueRef to, LLVMValueRef stride);
} TileOps;

/* ---- by instructions ---- */

static LLVMValueRef number(Emit *e, int tile) {
    return LLVMConstInt(e->i8, (unsigned)tile, 0);
}

static void zero_by_cpu(const Tiles *t, int tile) {
    LLVMValueRef arg = number(t->e, tile);
    emit_intrinsic(t->e, "llvm.x86.tilezero", NULL, 0, &arg, 1);
}

static void load_by_cpu(const Tiles *t, int tile, LLVMValueRef from,
                        LLVMValueRef stride) {
    LLVMValueRef args[] = {number(t->e, tile), from, stride};
    emit_intrinsic(t->e, "llvm.x86.tileloadd64", NULL, 0, args, 3);
}

static void stream_by_cpu(const Tiles *t, int tile, LLVMValueRef from,
                          LLVMValueRef stride) {
    LLVMValueRef args[] = {number(t->e, tile), from, stride};
    emit_intrinsic(t->e, "llvm.x86.tileloaddt164", NULL, 0, args, 3);
}

static void dot_by_cpu(const Tiles *t, int sum, int a, int b) {
    LLVMValueRef args[] = {number(t->e, sum), number(t->e, a), number(t->e, b)};
    emit_intrinsic(t->e, "llvm.x86.tdpbf16ps", NULL, 0, args, 3);
}

static void store_by_cpu(const Tiles *t, int tile, LLVMValueRef to, LLVMValueRef stride) {
    LLVMValueRef args[] = {number(t->e, tile), to, stride};
    emit_intrinsic(t->e, "llvm.x86.tilestored64", NULL, 0, args, 3);
}

/* Palette 1: eight tiles of 16 rows of 64 bytes. */
void gemm_tiles_begin(Emit *e) {
    if (e->tiles != TILES_CPU) return;
    LLVMValueRef shapes = emit_alloca(e, 64);
    emit_store(e, LLVMConstNull(e->vi32), shapes, NULL, 64);
    emit_store(e, LLVMConstInt(e->i8, 1, 0), shapes, NULL, 1);
    for (int i = 0; i < TILES; i++) {
        LLVMValueRef row_bytes = LLVMConstInt(e->i16, 4 * SIDE, 0);
        emit_store(e, row_bytes, emit_at(e, e->i8, shapes, 16 + 2 * i), NULL, 2);
        LLVMValueRef rows = LLVMConstInt(e->i8, SIDE, 0);
        emit_store(e, rows, emit_at(e, e->i8, shapes, 48 + i), NULL, 1);
    }
    emit_intrinsic(e, "llvm.x86.ldtilecfg", NULL, 0, &shapes, 1);
}

void gemm_tiles_end(Emit *e) {
    if (e->tiles != TILES_CPU) return;
    emit_intrinsic(e, "llvm.x86.tilerelease", NULL, 0, NULL, 0);
}

/* ---- emulated ---- */

static LLVMValueRef tile_row(const Tiles *t, int tile, int row) {
    return emit_at(t->e, t->e->f32, t->room, tile * TILE + row * SIDE);
}

static LLVMValueRef row_at(Emit *e, LLVMValueRef base, LLVMValueRef stride, int row) {
    return emit_gep(e, e->i8, base, emit_mul(e, stride, emit_i64(e, row)));
}

static void zero_emulated(const Tiles *t, int tile) {
    LLVMValueRef zero = LLVMConstNull(t->e->vf32);
    for (int r = 0; r < SIDE; r++) emit_store(t->e, zero, tile_row(t, tile, r), NULL, 4);
}

static void load_emulated(const Tiles *t, int tile, LLVMValueRef from,
                          LLVMValueRef stride) {
    Emit *e = t->e;
    for (int r = 0; r < SIDE; r++) {
        LLVMValueRef x = emit_load(e, e->vf32, row_at(e, from, stride, r), NULL, 4);
        emit_store(e, x, tile_row(t, tile, r), NULL, 4);
    }
}

static void store_emulated(const Tiles *t, int tile, LLVMValueRef to,
                           LLVMValueRef stride) {
    Emit *e = t->e;
    for (int r = 0; r < SIDE; r++) {
        LLVMValueRef x = emit_load(e, e->vf32, tile_row(t, tile, r), NULL, 4);
        emit_store(e, x, row_at(e, to, stride, r), NULL, 4);
    }
}

static LLVMValueRef half_as_f32(Emit *e, LLVMValueRef pairs, bool second) {
    LLVMValueRef bits =
        second ? LLVMBuildAnd(e->b, pairs, emit_i32_like(e, pairs, 0xffff0000), "")
               : LLVMBuildShl(e->b, pairs, emit_i32_like(e, pairs, 16), "");
    return LLVMBuildBitCast(e->b, bits, e->vf32, "");
}

static void dot_emulated(const Tiles *t, int sum, int a, int b) {
    Emit *e = t->e;
    Loop row, turn;
    LLVMValueRef zero = LLVMConstNull(e->vf32), none[] = {zero, zero};
    loop_begin(e, &row, emit_i64(e, 0), emit_i64(e, SIDE), 1, 0, NULL);
    LLVMValueRef at = emit_mul(e, row.i, emit_i64(e, SIDE));
    loop_begin(e, &turn, emit_i64(e, 0), emit_i64(e, SIDE), 1, 2, none);
    LLVMValueRef from = emit_gep(e, e->i32, tile_row(t, a, 0), emit_add(e, at, turn.i));
    LLVMValueRef x = emit_splat(e, emit_load(e, e->i32, from, NULL, 4));
    LLVMValueRef y_at = emit_mul(e, turn.i, emit_i64(e, SIDE));
    LLVMValueRef y = emit_gep(e, e->i32, tile_row(t, b, 0), y_at), next[2];
    y = emit_load(e, e->vi32, y, NULL, 4);
    for (int i = 0; i < 2; i++)
        next[i] = emit_fma(e, half_as_f32(e, x, i), half_as_f32(e, y, i), turn.carry[i]);
    loop_end(e, &turn, next);
    LLVMValueRef to = emit_gep(e, e->f32, tile_row(t, sum, 0), at);
    LLVMValueRef more = emit_fadd(e, turn.carry[0], turn.carry[1]);
    LLVMValueRef old = emit_load(e, e->vf32, to, NULL, 4);
    emit_store(e, emit_fadd(e, old, more), to, NULL, 4);
    loop_end(e, &row, NULL);
}

static const TileOps tile_ops[] = {
    [TILES_CPU] = {zero_by_cpu, load_by_cpu, stream_by_cpu, dot_by_cpu, store_by_cpu},
    [TILES_EMULATED] = {zero_emulated, load_emulated, load_emulated, dot_emulated,
                        store_emulated},
};

/* ---- products ---- */

static LLVMValueRef count_if_less(Emit *e, int i, LLVMValueRef n, LLVMValueRef count) {
    LLVMValueRef there = LLVMBuildICmp(e->b, LLVMIntSLT, emit_i64(e, i), n, "");
    return emit_select(e, there, count, emit_i64(e, 0));
}

/* name(src, dst, rows, columns, stride): dst[16][16] = the words of src as far as it has
 * rows and columns, else 0. Its rows are `stride` words apart, or its columns. */
static const char *stage_function(Emit *e, bool by_columns) {
    const char *name = by_columns ? "stator.tiles.columns" : "stator.tiles.rows";
    if (LLVMGetNamedFunction(e->mod, name)) return name;
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->i64, e->i64, e->i64};
    LLVMValueRef fn = e->fn, v[SIDE];
    LLVMBasicBlockRef block = LLVMGetInsertBlock(e->b);
    emit_func(e, name, e->void_, params, 5, true);
    LLVMValueRef lines = emit_param(e, by_columns ? 3 : 2);
    LLVMValueRef length = emit_param(e, by_columns ? 2 : 3);
    for (int i = 0; i < SIDE; i++) {
        LLVMValueRef mask = emit_tail_mask(e, count_if_less(e, i, lines, length));
        LLVMValueRef at = emit_mul(e, emit_param(e, 4), emit_i64(e, i));
        at = emit_gep(e, e->f32, emit_param(e, 0), at);
        v[i] = emit_load(e, e->vf32, at, mask, 4);
    }
    if (by_columns) emit_transpose(e, v);
    for (int i = 0; i < SIDE; i++)
        emit_store(e, v[i], emit_at(e, e->f32, emit_param(e, 1), i * SIDE), NULL, 4);
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
} Product;

/* A part of A or B from its first element on: how many rows and columns are left. */
typedef struct Source {
    LLVMValueRef at, rows, columns;
    int64_t stride;
    bool streams;
} Source;

static void load_tile(const Product *p, int tile, const Source *s) {
    Emit *e = p->t.e;
    LLVMValueRef side = emit_i64(e, SIDE), stride = emit_i64(e, s->stride);
    LLVMValueRef rows = LLVMBuildICmp(e->b, LLVMIntSGE, s->rows, side, "");
    LLVMValueRef columns = LLVMBuildICmp(e->b, LLVMIntSGE, s->columns, side, "");
    LLVMValueRef whole = LLVMBuildAnd(e->b, rows, columns, "");
    const char *stage = stage_function(e, false);
    If f;
    if_begin(e, &f, whole);
    (s->streams ? p->ops->stream : p->ops->load)(&p->t, tile, s->at,
                                                 emit_i64(e, 4 * s->stride));
    if_else(e, &f);
    LLVMValueRef args[] = {s->at, p->staged, s->rows, s->columns, stride};
    emit_call(e, stage, args, 5);
    p->ops->load(&p->t, tile, p->staged, emit_i64(e, 4 * SIDE));
    if_end(e, &f);
}

/* &ptr[x * x_stride + y * y_stride] of words. */
static LLVMValueRef word_at(Emit *e, LLVMValueRef ptr, LLVMValueRef x, int64_t x_stride,
                            LLVMValueRef y, int64_t y_stride) {
    LLVMValueRef at = emit_mul(e, x, emit_i64(e, x_stride));
    return emit_gep(e, e->f32, ptr,
                    emit_add(e, at, emit_mul(e, y, emit_i64(e, y_stride))));
}

/* 32 rows of A from row i on, whose columns are contiguous: tile after tile, those of the same
 * k side by side. */
static void stage_rows(const Product *p, LLVMValueRef i) {
    Emit *e = p->t.e;
    const GemmStrides *s = p->s;
    const char *stage = stage_function(e, true);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), p->k, SIDE, 0, NULL);
    for (int x = 0; x < 2; x++) {
        LLVMValueRef row = emit_add(e, i, emit_i64(e, x * SIDE));
        LLVMValueRef to = word_at(e, p->rows, l.i, WIDE, emit_i64(e, x * TILE), 1);
        LLVMValueRef args[] = {word_at(e, p->a, row, s->a_row, l.i, s->a_col), to,
                               emit_sub(e, p->m, row), emit_sub(e, p->k, l.i),
                               emit_i64(e, s->a_col)};
        emit_call(e, stage, args, 5);
    }
    loop_end(e, &l, NULL);
}

static void load_a(const Product *p, int x, LLVMValueRef i, LLVMValueRef l) {
    Emit *e = p->t.e;
    const GemmStrides *s = p->s;
    if (p->rows) {
        LLVMValueRef at = word_at(e, p->rows, l, WIDE, emit_i64(e, x * TILE), 1);
        p->ops->load(&p->t, A_TILE + x, at, emit_i64(e, 4 * SIDE));
        return;
    }
    LLVMValueRef row = emit_add(e, i, emit_i64(e, x * SIDE));
    Source from = {word_at(e, p->a, row, s->a_row, l, 1), emit_sub(e, p->m, row),
                   emit_sub(e, p->k, l), s->a_row, s->a_streams};
    load_tile(p, A_TILE + x, &from);
}

static void load_b(const Product *p, int x, LLVMValueRef j, LLVMValueRef l) {
    Emit *e = p->t.e;
    const GemmStrides *s = p->s;
    LLVMValueRef column = emit_add(e, j, emit_i64(e, x * SIDE));
    int64_t step = s->b_col ? s->b_col : 1;
    Source from = {word_at(e, p->b, l, s->b_row, column, step), emit_sub(e, p->k, l),
                   emit_sub(e, p->n, column), s->b_row, false};
    load_tile(p, B_TILE + x, &from);
}

/* Where the sums of a block begin and end: 32 x 32 numbers, rows `stride` bytes apart. */
typedef struct Sums {
    LLVMValueRef at, stride;
} Sums;

static void sums_move(const Product *p, const Sums *s, bool load) {
    Emit *e = p->t.e;
    for (int t = 0; t < 4; t++) {
        LLVMValueRef row = emit_mul(e, s->stride, emit_i64(e, t / 2 * SIDE));
        LLVMValueRef at = emit_gep(e, e->i8, s->at, row);
        at = emit_at(e, e->f32, at, t % 2 * SIDE);
        (load ? p->ops->load : p->ops->store)(&p->t, t, at, s->stride);
    }
}

/* The sums of a block, in the tiles; from: those that it goes on with, unless `none` (i1, or
 * NULL: there are always some); NULL: there never are. */
static void sums_emit(const Product *p, const GemmBlock *at, const Sums *from,
                      LLVMValueRef none) {
    Emit *e = p->t.e;
    Loop l;
    If f;
    if (from && none) if_begin(e, &f, none);
    if (!from || none)
        for (int t = 0; t < 4; t++) p->ops->zero(&p->t, t);
    if (from && none) if_else(e, &f);
    if (from) sums_move(p, from, true);
    if (from && none) if_end(e, &f);
    loop_begin(e, &l, emit_i64(e, 0), p->k, SIDE, 0, NULL);
    for (int x = 0; x < 2; x++) {
        load_a(p, x, at->i, l.i);
        load_b(p, x, at->j, l.i);
    }
    for (int t = 0; t < 4; t++) p->ops->dot(&p->t, t, A_TILE + t / 2, B_TILE + t % 2);
    loop_end(e, &l, NULL);
}

/* What is done with a vector of C, and where it is in the block that was put together. */
typedef void (*Vector)(const Product *p, const GemmBlock *at, LLVMValueRef sums);

/* `each` with every vector of the block of C. */
static void block_vectors(const Product *p, const GemmBlock *block, Vector each) {
    Emit *e = p->t.e;
    Loop r;
    LLVMValueRef rows = emit_imin(e, emit_sub(e, p->m, block->i), emit_i64(e, WIDE));
    loop_begin(e, &r, emit_i64(e, 0), rows, 1, 0, NULL);
    for (int x = 0; x < 2; x++) {
        LLVMValueRef column = emit_add(e, block->j, emit_i64(e, x * SIDE));
        LLVMValueRef mask = emit_tail_mask(e, emit_sub(e, p->n, column));
        GemmBlock at = {emit_add(e, block->i, r.i), column, mask, 1, 1};
        each(p, &at, word_at(e, p->sums, r.i, WIDE, emit_i64(e, x * SIDE), 1));
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

/* To the user, or to what C holds times the scale. */
static void vector_done(const Product *p, const GemmBlock *at, LLVMValueRef sums) {
    Emit *e = p->t.e;
    const GemmUser *user = p->s->user;
    LLVMValueRef x = emit_load(e, e->vf32, sums, NULL, 4);
    if (user && user->take) {
        user->take(user->ctx, at, &x);
        return;
    }
    LLVMValueRef scale = emit_gep(e, e->f32, p->scale, at->j);
    gemm_result(e, p->init, x, c_at(p, at->i, at->j), scale, at->mask);
}

/* Tiles go from C and to C, at its edges by way of the block that is put together. */
static void block_of_c(const Product *p, const GemmBlock *at) {
    Emit *e = p->t.e;
    LLVMValueRef wide = emit_i64(e, WIDE);
    LLVMValueRef rows =
        LLVMBuildICmp(e->b, LLVMIntSLT, emit_sub(e, p->m, at->i), wide, "");
    LLVMValueRef columns =
        LLVMBuildICmp(e->b, LLVMIntSLT, emit_sub(e, p->n, at->j), wide, "");
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
    sums_emit(p, at, p->init == GEMM_ADD ? &sums : NULL, NULL);
    sums_move(p, &sums, false);
    if_begin(e, &f, edge);
    block_vectors(p, at, vector_to_c);
    if_end(e, &f);
}

/* 32 x 32 of C. */
static void block_emit(const Product *p, const GemmBlock *at) {
    Emit *e = p->t.e;
    const GemmUser *user = p->s->user;
    const Sums own = {p->sums, emit_i64(e, 4 * WIDE)};
    if (user && user->ahead) user->ahead(user->ctx, at);
    if ((!user || !user->take) && p->init != GEMM_SCALE) {
        block_of_c(p, at);
        return;
    }
    const GemmCarry *carry = user ? user->carry : NULL;
    if (!carry) {
        sums_emit(p, at, NULL, NULL);
        sums_move(p, &own, false);
        block_vectors(p, at, vector_done);
        return;
    }
    Sums kept = {carry->at(user->ctx, at), emit_i64(e, 4 * carry->row)};
    sums_emit(p, at, &kept, carry->first);
    If f;
    if_begin(e, &f, carry->last);
    sums_move(p, &own, false);
    block_vectors(p, at, vector_done);
    if_else(e, &f);
    sums_move(p, &kept, false);
    if_end(e, &f);
}

void gemm_tiles_emit(Emit *e, const GemmStrides *s, GemmInit init, LLVMValueRef a,
                     LLVMValueRef b, LLVMValueRef c, LLVMValueRef scale, LLVMValueRef m,
                     LLVMValueRef n, LLVMValueRef k) {
    check(s->pairs && e->tiles != TILES_NONE && e->vl == SIDE);
    check(!s->b_col || s->b_row == SIDE);
    check(s->a_col == 1 || (s->a_row == 1 && s->k_most > 0));
    Product p = {.t = {e, NULL}, .ops = &tile_ops[e->tiles], .s = s, .init = init};
    p.a = a, p.b = b, p.c = c, p.scale = scale, p.m = m, p.n = n, p.k = k;
    if (e->tiles == TILES_EMULATED) p.t.room = emit_alloca(e, 4 * TILES * TILE);
    p.staged = emit_alloca(e, 4 * TILE);
    p.sums = emit_alloca(e, 4 * WIDE * WIDE);
    Loop outer, inner;
    if (s->a_col != 1) {
        p.rows = emit_alloca(e, 4 * WIDE * round_up(s->k_most, SIDE));
        loop_begin(e, &outer, emit_i64(e, 0), m, WIDE, 0, NULL);
        stage_rows(&p, outer.i);
        loop_begin(e, &inner, emit_i64(e, 0), n, WIDE, 0, NULL);
    } else {
        loop_begin(e, &outer, emit_i64(e, 0), n, WIDE, 0, NULL);
        loop_begin(e, &inner, emit_i64(e, 0), m, WIDE, 0, NULL);
    }
    LLVMValueRef i = p.rows ? outer.i : inner.i, j = p.rows ? inner.i : outer.i;
    GemmBlock at = {i, j, NULL, WIDE, WIDE / SIDE};
    block_emit(&p, &at);
    loop_end(e, &inner, NULL);
    loop_end(e, &outer, NULL);
}
