/* pairs_matmul.c - see pairs_matmul.h.
 *     void name(a, b, bias, c, ws):  rt_parallel(rows of A, pack_a);  if A needs packing
 *                                    rt_parallel(items, body)
 *     void body(ctx, begin, end, thread):
 *         for item (a block of rows and a panel of columns, one panel after the other):
 *             for each block of k: pack_b
 *                 for each tile of C: sums = A B (+ sums of the blocks before)
 *                     C = sums (+ bias) (+ C) from the registers, after the last block
 * A panel of B for a block of k stays in the second cache, and so do the sums of blocks before;
 * rows of A come from memory once. While a tile's product runs its lines of C are fetched, and
 * a part of the B that is packed next. A is read as it is where pairs of k are words of its rows, else packed
 * before, by all threads. */
#include "codegen/pairs_matmul.h"
#include "codegen/gemm.h"
#include "codegen/gemm_tiles.h"
#include "codegen/rt_call.h"

enum {
    PANEL_VECTORS = 4,
    BLOCK_WORDS = 1024, /* of k: 2048 numbers */
    BLOCK_ROWS = 768,   /* at most */
    TILE_ROWS = 12,     /* what tiles of gemm.c have, or a multiple */
    PACK_TILES = 4,
    ITEMS_A_THREAD = 4, /* at least, where there are rows for it */
};

typedef struct Pairs2d {
    Emit *e;
    const PairsMatmul *s;
    const char *name;
    int64_t panel, words; /* columns of a panel; pairs of k */
    int64_t a_row;        /* words from row to row of A, packed or not */
    bool packs_a;
    int64_t panels, blocks, rows; /* items are blocks of rows x panels */
    int64_t a_bytes, sums_bytes, thread_bytes;
} Pairs2d;

enum { SLOT_A, SLOT_B, SLOT_BIAS, SLOT_C, SLOT_WS, SLOTS };

static int64_t divided_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

bool pairs_matmul_takes(const PairsMatmul *s) {
    return (s->a_m == 1 || s->a_k == 1) && (s->b_n == 1 || s->b_k == 1) && s->m > 0 &&
           s->n > 0 && s->k > 0;
}

/* Words from row to row of packed A: rows of a tile that are a power of two apart would meet in
 * few sets of the first cache. */
static int64_t packed_row(int64_t words, int vl) {
    int64_t lines = divided_up(words, vl);
    return (lines + !(lines & 1)) * vl;
}

static Pairs2d pairs_of(const PairsMatmul *s, int vl) {
    Pairs2d p = {.s = s, .panel = PANEL_VECTORS * vl, .words = divided_up(s->k, 2)};
    p.packs_a = s->a_k != 1 || s->k % 2 || s->a_m % 2;
    p.panels = divided_up(s->n, p.panel);
    int64_t wanted = divided_up((int64_t)ITEMS_A_THREAD * s->threads, p.panels);
    int64_t blocks = MAX(divided_up(s->m, BLOCK_ROWS), s->threads > 1 ? wanted : 1);
    p.rows = divided_up(divided_up(s->m, blocks), TILE_ROWS) * TILE_ROWS;
    p.blocks = divided_up(s->m, p.rows);
    p.a_row = p.packs_a ? packed_row(p.words, vl) : s->a_m / 2;
    p.a_bytes = p.packs_a ? align_up(s->m * p.a_row * 4) : 0;
    bool sums = p.words > BLOCK_WORDS;
    p.sums_bytes = sums ? align_up(MIN(s->m, p.rows) * p.panel * 4) : 0;
    int64_t words = MIN(divided_up(p.words, vl) * vl, BLOCK_WORDS); /* packed by vl */
    p.thread_bytes = align_up(p.sums_bytes + words * p.panel * 4);
    return p;
}

int64_t pairs_matmul_workspace_bytes(const PairsMatmul *s, int vl) {
    Pairs2d p = pairs_of(s, vl);
    return p.a_bytes + s->threads * p.thread_bytes;
}

static LLVMValueRef slot(const Pairs2d *p, LLVMValueRef ctx, int i) {
    return emit_load(p->e, p->e->ptr, emit_at(p->e, p->e->ptr, ctx, i), NULL, 8);
}

static LLVMValueRef plus_scaled(Emit *e, LLVMValueRef base, LLVMValueRef i,
                                int64_t scale) {
    return emit_add(e, base, emit_mul(e, i, emit_i64(e, scale)));
}

/* ---- packing ---- */

/* vl words of a row of numbers that lie one after the other, from word w on; numbers from k
 * on are 0. */
static LLVMValueRef row_words(const Pairs2d *p, LLVMValueRef row, LLVMValueRef w,
                              bool tail) {
    Emit *e = p->e;
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef first = emit_mul(e, w, emit_i64(e, 2)), mask = NULL;
    if (tail) {
        LLVMValueRef lane[32];
        for (int i = 0; i < 2 * e->vl; i++) lane[i] = emit_i32(e, i);
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->k), first);
        left = emit_imax(e, emit_imin(e, left, emit_i64(e, 2 * e->vl)), emit_i64(e, 0));
        left = emit_splat_n(e, LLVMBuildTrunc(e->b, left, e->i32, ""), 2 * e->vl);
        mask = LLVMBuildICmp(e->b, LLVMIntSLT,
                             LLVMConstVector(lane, (unsigned)(2 * e->vl)), left, "");
    }
    LLVMValueRef x = emit_load(e, halves, emit_gep(e, e->i16, row, first), mask, 2);
    return LLVMBuildBitCast(e->b, x, e->vi32, "");
}

/* vl words of two rows of k, 2w and 2w + 1: of columns from j on. Beyond k rows are 0. */
static LLVMValueRef column_words(const Pairs2d *p, LLVMValueRef base, LLVMValueRef w,
                                 int64_t row_stride, LLVMValueRef j, LLVMValueRef mask) {
    Emit *e = p->e;
    LLVMTypeRef halves = emit_vec(e->i16, e->vl);
    LLVMValueRef first = emit_mul(e, w, emit_i64(e, 2)), x[2];
    LLVMValueRef second = emit_add(e, first, emit_i64(e, 1)), there = NULL;
    if (p->s->k % 2) {
        there = LLVMBuildICmp(e->b, LLVMIntSLT, second, emit_i64(e, p->s->k), "");
        second = emit_select(e, there, second, first);
    }
    LLVMValueRef row[] = {first, second};
    for (int i = 0; i < 2; i++) {
        LLVMValueRef at = plus_scaled(e, j, row[i], row_stride);
        x[i] = emit_load(e, halves, emit_gep(e, e->i16, base, at), mask, 2);
    }
    if (there) x[1] = emit_select(e, there, x[1], LLVMConstNull(halves));
    return emit_pair_up(e, x[0], x[1]);
}

/* Words w0 to w0 + vl of vl rows of A from row i on, into packed rows. */
static void pack_a_tile(const Pairs2d *p, LLVMValueRef a, LLVMValueRef to, LLVMValueRef i,
                        LLVMValueRef w, bool tail) {
    Emit *e = p->e;
    const PairsMatmul *s = p->s;
    LLVMValueRef v[16], last = emit_i64(e, s->m - 1);
    LLVMValueRef left = emit_sub(e, emit_i64(e, p->words), w);
    LLVMValueRef rows = emit_sub(e, emit_i64(e, s->m), i);
    for (int t = 0; t < e->vl; t++) {
        LLVMValueRef n = emit_add(e, s->a_k == 1 ? i : w, emit_i64(e, t));
        if (s->a_k == 1) {
            LLVMValueRef at = emit_mul(e, emit_imin(e, n, last), emit_i64(e, s->a_m));
            v[t] = row_words(p, emit_gep(e, e->i16, a, at), w, tail);
        } else {
            n = emit_imin(e, n, emit_i64(e, p->words - 1));
            v[t] = column_words(p, a, n, s->a_k, i, emit_tail_mask(e, rows));
        }
    }
    if (s->a_k != 1) {
        for (int t = 0; t < e->vl; t++) v[t] = LLVMBuildBitCast(e->b, v[t], e->vf32, "");
        emit_transpose(e, v);
    }
    for (int t = 0; t < e->vl; t++) {
        LLVMValueRef row = emit_add(e, i, emit_i64(e, t)), mask = NULL;
        LLVMValueRef there = LLVMBuildICmp(e->b, LLVMIntSLE, row, last, "");
        LLVMValueRef n =
            emit_select(e, there, tail ? left : emit_i64(e, e->vl), emit_i64(e, 0));
        if (tail || s->m % e->vl) mask = emit_tail_mask(e, n);
        LLVMValueRef at = plus_scaled(e, w, emit_imin(e, row, last), p->a_row);
        LLVMValueRef x = LLVMBuildBitCast(e->b, v[t], e->vf32, "");
        emit_store(e, x, emit_gep(e, e->f32, to, at), mask, 4);
    }
}

/* void name.pack(ctx, begin, end, thread): PACK_TILES x vl rows of A an item, of which it goes
 * over vl words at a time: where A lies across, these rows are neighbours in memory, so that
 * whole cache lines are used at once. */
static LLVMValueRef pack_a_emit(const Pairs2d *p) {
    Emit *e = p->e;
    LLVMTypeRef params[] = {e->ptr, e->i64, e->i64, e->i64};
    LLVMValueRef fn =
        emit_func(e, arena_printf(e->mem, "%s.pack", p->name), e->void_, params, 4, true);
    LLVMValueRef ctx = emit_param(e, 0), a = slot(p, ctx, SLOT_A),
                 to = slot(p, ctx, SLOT_WS);
    int64_t whole = p->s->k / 2 / e->vl * e->vl;
    Loop items, words, tiles;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    const int64_t rows = PACK_TILES * e->vl;
    LLVMValueRef i = emit_mul(e, items.i, emit_i64(e, rows));
    LLVMValueRef end =
        emit_imin(e, emit_add(e, i, emit_i64(e, rows)), emit_i64(e, p->s->m));
    for (int tail = 0; tail < 2; tail++) {
        LLVMValueRef from = emit_i64(e, tail ? whole : 0);
        LLVMValueRef until = emit_i64(e, tail ? p->words : whole);
        if (tail ? whole == p->words : !whole) continue;
        loop_begin(e, &words, from, until, e->vl, 0, NULL);
        loop_begin(e, &tiles, i, end, e->vl, 0, NULL);
        pack_a_tile(p, a, to, tiles.i, words.i, tail);
        loop_end(e, &tiles, NULL);
        loop_end(e, &words, NULL);
    }
    loop_end(e, &items, NULL);
    emit_ret(e, NULL);
    return fn;
}

/* Columns j to j + vl of the panel at columns j0 of B: words w.. of k, `count` of them, to
 * panel rows. B lies along n. */
static void pack_b_rows(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to,
                        LLVMValueRef j0, LLVMValueRef w0, LLVMValueRef count) {
    Emit *e = p->e;
    Loop words;
    loop_begin(e, &words, emit_i64(e, 0), count, 1, 0, NULL);
    for (int v = 0; v < PANEL_VECTORS; v++) {
        LLVMValueRef j = emit_add(e, j0, emit_i64(e, v * e->vl)), mask = NULL;
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->n), j);
        if (p->s->n % p->panel) mask = emit_tail_mask(e, left);
        LLVMValueRef x = column_words(p, b, emit_add(e, w0, words.i), p->s->b_k, j, mask);
        LLVMValueRef at = emit_mul(e, words.i, emit_i64(e, p->panel));
        at = emit_add(e, at, emit_i64(e, v * e->vl));
        emit_store(e, x, emit_gep(e, e->f32, to, at), NULL, 4);
    }
    loop_end(e, &words, NULL);
}

static void pack_b_tile(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to, LLVMValueRef j,
                        LLVMValueRef w, LLVMValueRef at, bool tail) {
    Emit *e = p->e;
    LLVMValueRef v[16], last = emit_i64(e, p->s->n - 1);
    for (int t = 0; t < e->vl; t++) {
        LLVMValueRef column = emit_imin(e, emit_add(e, j, emit_i64(e, t)), last);
        LLVMValueRef row = emit_mul(e, column, emit_i64(e, p->s->b_n));
        v[t] = row_words(p, emit_gep(e, e->i16, b, row), w, tail);
        v[t] = LLVMBuildBitCast(e->b, v[t], e->vf32, "");
    }
    emit_transpose(e, v);
    for (int t = 0; t < e->vl; t++)
        emit_store(e, v[t],
                   emit_gep(e, e->f32, to, emit_add(e, at, emit_i64(e, t * p->panel))),
                   NULL, 4);
}

/* The same where B lies along k. Room for a multiple of vl words. */
static void pack_b_columns(const Pairs2d *p, LLVMValueRef b, LLVMValueRef to,
                           LLVMValueRef j0, LLVMValueRef w0, LLVMValueRef count) {
    Emit *e = p->e;
    Loop words, vectors;
    LLVMValueRef vl = emit_i64(e, e->vl);
    for (int tail = 0; tail < 2; tail++) {
        /* the last numbers of k: apart, with a mask */
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->k / 2), w0);
        LLVMValueRef whole = emit_mul(e, emit_div(e, emit_imin(e, count, left), vl), vl);
        loop_begin(e, &words, tail ? whole : emit_i64(e, 0), tail ? count : whole, e->vl,
                   0, NULL);
        loop_begin(e, &vectors, emit_i64(e, 0), emit_i64(e, p->panel), e->vl, 0, NULL);
        LLVMValueRef at = plus_scaled(e, vectors.i, words.i, p->panel);
        pack_b_tile(p, b, to, emit_add(e, j0, vectors.i), emit_add(e, w0, words.i), at,
                    tail);
        loop_end(e, &vectors, NULL);
        loop_end(e, &words, NULL);
    }
}

/* ---- a block ---- */

/* A block of rows and a panel of C while its product runs. */
typedef struct Block {
    const Pairs2d *p;
    LLVMValueRef c, bias, sums; /* all of C; of the block */
    LLVMValueRef i, j;          /* its first row and column of C */
    LLVMValueRef last;          /* is this the last block of k? NULL: there is only one */
    LLVMValueRef next_b;        /* what is packed next, whole cache lines of it */
} Block;

static LLVMTypeRef c_type(const Pairs2d *p) {
    return p->s->rounds ? p->e->i16 : p->e->f32;
}

/* Row r and column 0 of a part of C. */
static LLVMValueRef c_row(const Block *b, LLVMValueRef r, LLVMValueRef j) {
    Emit *e = b->p->e;
    LLVMValueRef row = emit_mul(e, emit_add(e, b->i, r), emit_i64(e, b->p->s->c_m));
    return emit_gep(e, c_type(b->p), b->c, emit_add(e, row, emit_add(e, b->j, j)));
}

static void prefetch(Emit *e, LLVMValueRef at, bool writes, int level) {
    LLVMValueRef args[] = {at, emit_i32(e, writes), emit_i32(e, level), emit_i32(e, 1)};
    emit_intrinsic(e, "llvm.prefetch", &e->ptr, 1, args, 4);
}

static LLVMValueRef sums_at(const Block *b, const GemmBlock *at, int r, int v) {
    Emit *e = b->p->e;
    LLVMValueRef row = emit_add(e, at->i, emit_i64(e, r));
    LLVMValueRef n = plus_scaled(e, at->j, row, b->p->panel);
    return emit_gep(e, e->f32, b->sums, emit_add(e, n, emit_i64(e, v * e->vl)));
}

enum { LINE_BYTES = 64 };

/* The lines of C that a tile will write, and of B its share of what is packed next: both come
 * from memory while the tile's product runs. */
static void fetch_ahead(void *ctx, const GemmBlock *at) {
    const Block *b = ctx;
    const Pairs2d *p = b->p;
    Emit *e = p->e;
    int64_t bytes = (int64_t)at->vecs * e->vl * (p->s->rounds ? 2 : 4);
    int64_t k_rows = divided_up(2 * MIN(p->words, BLOCK_WORDS), p->rows);
    for (int r = 0; r < at->rows; r++) {
        LLVMValueRef row = emit_add(e, at->i, emit_i64(e, r));
        LLVMValueRef c = c_row(b, row, at->j);
        for (int64_t byte = 0; byte < bytes; byte += LINE_BYTES)
            prefetch(e, emit_at(e, e->i8, c, byte), true, 3);
        for (int v = 0; v < at->vecs && b->last; v++)
            prefetch(e, sums_at(b, at, r, v), true, 3);
        if (p->s->b_n != 1) continue;
        LLVMValueRef first = emit_mul(e, row, emit_i64(e, k_rows));
        for (int64_t k = 0; k < k_rows; k++) {
            LLVMValueRef line = emit_add(e, first, emit_i64(e, k));
            line =
                emit_gep(e, e->i16, b->next_b, emit_mul(e, line, emit_i64(e, p->s->b_k)));
            for (int64_t n = 0; n < 2 * p->panel; n += LINE_BYTES)
                prefetch(e, emit_at(e, e->i8, line, n), false, 2);
        }
    }
}

/* A vector of C, done. */
static void write_c(const Block *b, LLVMValueRef x, LLVMValueRef to, LLVMValueRef j,
                    LLVMValueRef mask) {
    const PairsMatmul *s = b->p->s;
    Emit *e = b->p->e;
    if (s->bias) {
        LLVMValueRef at = emit_gep(e, e->f32, b->bias, emit_add(e, b->j, j));
        x = emit_fadd(e, x, emit_load(e, e->vf32, at, mask, 4));
    }
    if (s->adds)
        x = emit_fadd(e,
                      s->rounds ? emit_load_bf16(e, to, mask)
                                : emit_load(e, e->vf32, to, mask, 4),
                      x);
    if (s->rounds)
        emit_store_bf16(e, x, to, mask);
    else
        emit_store(e, x, to, mask, 4);
}

static void sums_to_c(const Block *b, const GemmBlock *at, const LLVMValueRef *x) {
    const Pairs2d *p = b->p;
    Emit *e = p->e;
    for (int v = 0; v < at->vecs; v++) {
        LLVMValueRef j = emit_add(e, at->j, emit_i64(e, v * e->vl)), mask = NULL;
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->n), emit_add(e, b->j, j));
        if (p->s->n % p->panel) mask = emit_tail_mask(e, left);
        for (int r = 0; r < at->rows; r++) {
            LLVMValueRef row = emit_add(e, at->i, emit_i64(e, r));
            write_c(b, x[r * at->vecs + v], c_row(b, row, j), j, mask);
        }
    }
}

/* Sums of a tile: of the last block of k to C, of those before to the sums in memory, which
 * were 0 before the first. */
static void take_sums(void *ctx, const GemmBlock *at, const LLVMValueRef *sums) {
    const Block *b = ctx;
    Emit *e = b->p->e;
    if (!b->last) {
        sums_to_c(b, at, sums);
        return;
    }
    LLVMValueRef x[LOOP_CARRY_MAX];
    for (int i = 0; i < at->rows * at->vecs; i++) {
        LLVMValueRef from = sums_at(b, at, i / at->vecs, i % at->vecs);
        x[i] = emit_fadd(e, emit_load(e, e->vf32, from, NULL, 4), sums[i]);
    }
    If f;
    if_begin(e, &f, b->last);
    sums_to_c(b, at, x);
    if_else(e, &f);
    for (int i = 0; i < at->rows * at->vecs; i++)
        emit_store(e, x[i], sums_at(b, at, i / at->vecs, i % at->vecs), NULL, 4);
    if_end(e, &f);
}

/* Where the block of k behind `from` of this panel begins in B, or the first of the next. */
static LLVMValueRef next_of_b(const Block *b, LLVMValueRef all, LLVMValueRef from) {
    const Pairs2d *p = b->p;
    Emit *e = p->e;
    LLVMValueRef k = emit_i64(e, 0), j = emit_add(e, b->j, emit_i64(e, p->panel));
    if (b->last) {
        LLVMValueRef behind = emit_add(e, from, emit_i64(e, BLOCK_WORDS));
        k = emit_select(e, b->last, k, emit_mul(e, behind, emit_i64(e, 2)));
        j = emit_select(e, b->last, j, b->j);
    }
    return emit_gep(e, e->i16, all, plus_scaled(e, j, k, p->s->b_k));
}

static void block(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef work, LLVMValueRef i,
                  LLVMValueRef rows, LLVMValueRef j0) {
    Emit *e = p->e;
    LLVMValueRef packed = emit_at(e, e->i8, work, p->sums_bytes);
    LLVMValueRef b = slot(p, ctx, SLOT_B);
    LLVMValueRef a = slot(p, ctx, p->packs_a ? SLOT_WS : SLOT_A);
    a = emit_gep(e, e->f32, a, emit_mul(e, i, emit_i64(e, p->a_row)));
    Block at = {.p = p, .c = slot(p, ctx, SLOT_C), .sums = work, .i = i, .j = j0};
    if (p->s->bias) at.bias = slot(p, ctx, SLOT_BIAS);
    Loop l;
    if (p->words > BLOCK_WORDS) {
        LLVMValueRef bytes = emit_mul(e, rows, emit_i64(e, p->panel * 4));
        LLVMBuildMemSet(e->b, work, LLVMConstInt(e->i8, 0, 0), bytes, 64);
    }
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, p->words), BLOCK_WORDS, 0, NULL);
    LLVMValueRef left = emit_sub(e, emit_i64(e, p->words), l.i);
    LLVMValueRef most = emit_i64(e, BLOCK_WORDS);
    if (p->words > BLOCK_WORDS) at.last = LLVMBuildICmp(e->b, LLVMIntSLE, left, most, "");
    at.next_b = next_of_b(&at, b, l.i);
    LLVMValueRef words = emit_imin(e, left, most);
    if (p->s->b_n == 1)
        pack_b_rows(p, b, packed, j0, l.i, words);
    else
        pack_b_columns(p, b, packed, j0, l.i, words);
    GemmUser user = {&at, fetch_ahead, take_sums};
    GemmStrides s = {p->a_row, 1, p->panel, 0, .pairs = true, .user = &user};
    gemm_emit(e, &s, GEMM_SET, emit_gep(e, e->f32, a, l.i), packed, NULL, NULL, rows,
              emit_i64(e, p->panel), words);
    loop_end(e, &l, NULL);
}

static LLVMValueRef body_emit(const Pairs2d *p) {
    Emit *e = p->e;
    LLVMTypeRef params[] = {e->ptr, e->i64, e->i64, e->i64};
    LLVMValueRef fn =
        emit_func(e, arena_printf(e->mem, "%s.body", p->name), e->void_, params, 4, true);
    LLVMValueRef ctx = emit_param(e, 0), n = emit_i64(e, p->panels);
    LLVMValueRef at =
        plus_scaled(e, emit_i64(e, p->a_bytes), emit_param(e, 3), p->thread_bytes);
    LLVMValueRef work = emit_gep(e, e->i8, slot(p, ctx, SLOT_WS), at);
    Loop items;
    gemm_tiles_begin(e);
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef j0 = emit_mul(e, emit_rem(e, items.i, n), emit_i64(e, p->panel));
    LLVMValueRef i = emit_mul(e, emit_div(e, items.i, n), emit_i64(e, p->rows));
    LLVMValueRef rows = emit_sub(e, emit_i64(e, p->s->m), i);
    block(p, ctx, work, i, emit_imin(e, rows, emit_i64(e, p->rows)), j0);
    loop_end(e, &items, NULL);
    gemm_tiles_end(e);
    emit_ret(e, NULL);
    return fn;
}

/* Runs the function on all items, alone where that is quicker. */
static void run_items(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef fn,
                      const char *part, int64_t items) {
    Emit *e = p->e;
    if (p->s->threads > 1) {
        CALL_RT(e, rt_parallel, emit_i64(e, items), fn, ctx);
        return;
    }
    LLVMValueRef args[] = {ctx, emit_i64(e, 0), emit_i64(e, items), emit_i64(e, 0)};
    emit_call(e, arena_printf(e->mem, "%s.%s", p->name, part), args, 4);
}

void pairs_matmul_emit(Emit *e, const char *name, const PairsMatmul *s) {
    Pairs2d p = pairs_of(s, e->vl);
    p.e = e;
    p.name = name;
    LLVMValueRef pack = p.packs_a ? pack_a_emit(&p) : NULL, body = body_emit(&p);
    LLVMTypeRef params[SLOTS];
    for (int i = 0; i < SLOTS; i++) params[i] = e->ptr;
    emit_func(e, name, e->void_, params, SLOTS, true);
    LLVMValueRef ctx = emit_alloca(e, SLOTS * 8);
    for (int i = 0; i < SLOTS; i++)
        emit_store(e, emit_param(e, i), emit_at(e, e->ptr, ctx, i), NULL, 8);
    if (pack) run_items(&p, ctx, pack, "pack", divided_up(s->m, PACK_TILES * e->vl));
    run_items(&p, ctx, body, "body", p.panels * p.blocks);
    emit_ret(e, NULL);
}
