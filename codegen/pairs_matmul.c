/* pairs_matmul.c - see pairs_matmul.h.
 *     void name(a, b, bias, c, ws):  rt_parallel(rows of A, pack_a);  if A needs packing
 *                                    rt_parallel(items, body)
 *     void body(ctx, begin, end, thread):
 *         for item (a block of rows and a panel of columns, one panel after the other):
 *             for each block of k: pack_b; sums (+)= A B
 *             C = sums (+ bias) (+ C)
 * A panel of B for a block of k stays in the second cache, and so do the sums; rows of A come
 * from memory once. A is read as it is where pairs of k are words of its rows, else packed
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

static Pairs2d pairs_of(const PairsMatmul *s, int vl) {
    Pairs2d p = {.s = s, .panel = PANEL_VECTORS * vl, .words = divided_up(s->k, 2)};
    p.packs_a = s->a_k != 1 || s->k % 2 || s->a_m % 2;
    p.panels = divided_up(s->n, p.panel);
    int64_t wanted = divided_up((int64_t)ITEMS_A_THREAD * s->threads, p.panels);
    int64_t blocks = MAX(divided_up(s->m, BLOCK_ROWS), s->threads > 1 ? wanted : 1);
    p.rows = divided_up(divided_up(s->m, blocks), TILE_ROWS) * TILE_ROWS;
    p.blocks = divided_up(s->m, p.rows);
    p.a_bytes = p.packs_a ? align_up(s->m * p.words * 4) : 0;
    p.sums_bytes = align_up(MIN(s->m, p.rows) * p.panel * 4);
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
        LLVMValueRef at = plus_scaled(e, w, emit_imin(e, row, last), p->words);
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

/* C of `rows` rows from i on and columns j.. from the sums. */
static void finish(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef sums, LLVMValueRef i,
                   LLVMValueRef rows, LLVMValueRef j0) {
    Emit *e = p->e;
    const PairsMatmul *s = p->s;
    LLVMTypeRef type = s->rounds ? e->i16 : e->f32;
    LLVMValueRef c = slot(p, ctx, SLOT_C), bias = slot(p, ctx, SLOT_BIAS);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), rows, 1, 0, NULL);
    LLVMValueRef row = emit_mul(e, emit_add(e, i, l.i), emit_i64(e, s->c_m));
    for (int v = 0; v < PANEL_VECTORS; v++) {
        LLVMValueRef j = emit_add(e, j0, emit_i64(e, v * e->vl)), mask = NULL;
        LLVMValueRef left = emit_sub(e, emit_i64(e, s->n), j);
        if (s->n % p->panel) mask = emit_tail_mask(e, left);
        LLVMValueRef from = plus_scaled(e, emit_i64(e, v * e->vl), l.i, p->panel);
        LLVMValueRef x = emit_load(e, e->vf32, emit_gep(e, e->f32, sums, from), NULL, 4);
        LLVMValueRef to = emit_gep(e, type, c, emit_add(e, row, j));
        if (s->bias)
            x = emit_fadd(e, x,
                          emit_load(e, e->vf32, emit_gep(e, e->f32, bias, j), mask, 4));
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
    loop_end(e, &l, NULL);
}

/* sums (+)= A B for a block of k; of the first one they are set. */
static void add_block(const Pairs2d *p, LLVMValueRef a, LLVMValueRef packed,
                      LLVMValueRef sums, LLVMValueRef rows, LLVMValueRef words,
                      GemmInit init) {
    Emit *e = p->e;
    int64_t a_row = p->packs_a ? p->words : p->s->a_m / 2;
    GemmStrides s = {a_row, 1, p->panel, p->panel, .pairs = true};
    gemm_emit(e, &s, init, a, packed, sums, NULL, rows, emit_i64(e, p->panel), words);
}

static void block(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef work, LLVMValueRef i,
                  LLVMValueRef rows, LLVMValueRef j0) {
    Emit *e = p->e;
    LLVMValueRef packed = emit_at(e, e->i8, work, p->sums_bytes);
    LLVMValueRef b = slot(p, ctx, SLOT_B);
    LLVMValueRef a = slot(p, ctx, p->packs_a ? SLOT_WS : SLOT_A);
    int64_t a_row = p->packs_a ? p->words : p->s->a_m / 2;
    int64_t blocks = divided_up(p->words, BLOCK_WORDS);
    a = emit_gep(e, e->f32, a, emit_mul(e, i, emit_i64(e, a_row)));
    Loop l;
    if (blocks > 1) { /* the first one adds to zeros, so that one loop does */
        LLVMValueRef bytes = emit_mul(e, rows, emit_i64(e, p->panel * 4));
        LLVMBuildMemSet(e->b, work, LLVMConstInt(e->i8, 0, 0), bytes, 64);
    }
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, p->words), BLOCK_WORDS, 0, NULL);
    LLVMValueRef words = emit_sub(e, emit_i64(e, p->words), l.i);
    words = emit_imin(e, words, emit_i64(e, BLOCK_WORDS));
    if (p->s->b_n == 1)
        pack_b_rows(p, b, packed, j0, l.i, words);
    else
        pack_b_columns(p, b, packed, j0, l.i, words);
    add_block(p, emit_gep(e, e->f32, a, l.i), packed, work, rows, words,
              blocks > 1 ? GEMM_ADD : GEMM_SET);
    loop_end(e, &l, NULL);
    finish(p, ctx, work, i, rows, j0);
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
