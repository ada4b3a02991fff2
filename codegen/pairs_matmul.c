/* pairs_matmul.c - see pairs_matmul.h.
 *     void name(a, b, bias, c, ws):
 *         for each slab of A (rows, and a part of k):
 *             in parallel, its rows: pack    where A needs packing
 *             in parallel, items: body
 *     void body(ctx, begin, end, thread):
 *         for item (a block of rows and a panel of columns, one panel after the other):
 *             for each block of k: pack B
 *                 for each tile of C: sums = A B (+ sums of the blocks before)
 *                     C = sums (+ bias) (+ C) from the registers, after the last block
 * A panel of B for a block of k stays in the second cache, and so do the sums of blocks before;
 * a packed slab stays in the last one, for all panels. A is read as it is where words of k are
 * words of its rows. While a tile's product runs its lines of C are fetched, unless they go
 * past the caches, and a part of the B that is packed next. */
#include "codegen/gemm.h"
#include "codegen/pairs_pack.h"
#include "codegen/tiles_matmul.h"

enum {
    SLAB_BYTES =
        8 << 20, /* a part of the last cache that a server's CPU has for some cores */
    FAR_BYTES =
        32 << 20,       /* rows of A, as they are: more come from memory for each panel */
    BLOCK_ROWS = 768,   /* at most, by the rule of CPUs without tile registers */
    MORE_ROWS = 1536,   /* of f32 with 16 lanes: B is packed half as often */
    BLOCK_WORDS = 1024, /* of k, by that rule: 2048 numbers of bf16 */
    TILE_ROWS = 12,     /* what tiles of gemm.c have, or a multiple */
    ITEMS_A_THREAD = 4, /* at least, where there are rows for it */
    FETCH_LINES = 8,    /* at most, for a row */
    STREAM_BYTES =
        4 << 20, /* of C, at least: less may still be in a cache when it is read */
};

_Static_assert(sizeof(PairsMatmul) == 9 * sizeof(int64_t) + 8 * sizeof(int),
               "nothing lies between its fields");

bool pairs_matmul_takes(const PairsMatmul *s) {
    return (s->a_m == 1 || s->a_k == 1) && (s->b_n == 1 || s->b_k == 1) && s->m > 0 &&
           s->n > 0 && s->k > 0;
}

static int64_t per_word(const PairsMatmul *s) {
    return s->dots ? 2 : 1;
}

static int64_t words_of(const PairsMatmul *s) {
    return s->block_words ? s->block_words : BLOCK_WORDS;
}

static int64_t rows_of(const PairsMatmul *s, int vl) {
    if (s->block_rows) return s->block_rows;
    return per_word(s) == 1 && vl >= 16 ? MORE_ROWS : BLOCK_ROWS;
}

bool pairs_matmul_same(const PairsMatmul *x, const PairsMatmul *y, int vl) {
    if (x->tiles) return tiles_matmul_same(x, y);
    PairsMatmul like = *y;
    int64_t words = divided_up(x->k, per_word(x));
    like.block_rows = x->block_rows, like.block_words = x->block_words;
    return !memcmp(x, &like, sizeof like) &&
           MIN(rows_of(x, vl), x->m) == MIN(rows_of(y, vl), y->m) &&
           MIN(words_of(x), words) == MIN(words_of(y), words);
}

/* Words from row to row of packed A: rows of a tile that are a power of two apart would meet in
 * few sets of the first cache. */
static int64_t packed_row(int64_t words, int vl) {
    int64_t lines = divided_up(words, vl);
    return (lines + !(lines & 1)) * vl;
}

/* Slabs of whole rows where one has enough of them, else of a part of k; an A that is not packed
 * is one slab unless its rows are very long. A is packed by whole vectors of rows, so but for the
 * last slab they have such. */
static void cut_slabs(Pairs2d *p, int vl) {
    const PairsMatmul *s = p->s;
    p->slab_rows = s->m;
    p->slab_words = p->words;
    int64_t rows = SLAB_BYTES / 4 / p->words;
    if (rows >= s->m) return;
    if (!p->packs_a && MIN(s->m, rows_of(s, vl)) * p->words <= FAR_BYTES / 4) return;
    if (rows >= rows_of(s, vl)) {
        p->slab_rows = round_up(divided_up(s->m, divided_up(s->m, rows)), vl);
        return;
    }
    p->slab_rows = MIN(s->m, MAX(rows_of(s, vl) / vl, 1) * vl);
    int64_t blocks = MAX(1, SLAB_BYTES / 4 / p->slab_rows / p->block_words);
    p->slab_words = MIN(p->words, blocks * p->block_words);
}

/* Two strips where A is packed, so that it is read from the last cache half as often, unless
 * the last panel would then have many columns that are none. */
static int64_t panel_of(const PairsMatmul *s, int vl, bool packs_a) {
    const int64_t strip = PANEL_VECTORS * vl;
    const int64_t more = round_up(s->n, 2 * strip) - round_up(s->n, strip);
    bool twice = packs_a && per_word(s) == 1 && vl >= 16 && more <= s->n / 16;
    return twice ? 2 * strip : strip;
}

/* Are whole lines of C written, and so many that they had better go past the caches? */
static bool streams_c(const PairsMatmul *s, int vl, int64_t panel) {
    return per_word(s) == 1 && vl >= 16 && !s->adds && !s->rounds && s->n % panel == 0 &&
           s->c_m * 4 % EMIT_LINE_BYTES == 0 && s->m * s->n >= STREAM_BYTES / 4;
}

static Pairs2d pairs_of(const PairsMatmul *s, int vl) {
    Pairs2d p = {.s = s,
                 .parts = 1,
                 .per_word = per_word(s),
                 .number_bytes = dtype_bytes[s->dt],
                 .words = divided_up(s->k, per_word(s)),
                 .block_words = words_of(s)};
    bool as_words = s->dt == DT_F32 || (s->dots && s->k % 2 == 0 && s->a_m % 2 == 0);
    p.packs_a = s->a_k != 1 || !as_words;
    p.panel = panel_of(s, vl, p.packs_a);
    p.panels = divided_up(s->n, p.panel);
    p.streams = streams_c(s, vl, p.panel);
    cut_slabs(&p, vl);
    int64_t wanted = divided_up((int64_t)ITEMS_A_THREAD * s->threads, p.panels);
    int64_t blocks =
        MAX(divided_up(p.slab_rows, rows_of(s, vl)), s->threads > 1 ? wanted : 1);
    p.rows = round_up(divided_up(p.slab_rows, blocks), TILE_ROWS);
    p.a_row = p.packs_a ? packed_row(p.slab_words, vl) : s->a_m / p.per_word;
    p.a_bytes = p.packs_a ? align_up(p.slab_rows * p.a_row * 4) : 0;
    p.adds_up = p.words > p.block_words;
    p.whole_sums = p.slab_words < p.words;
    int64_t sums = align_up(MIN(p.slab_rows, p.rows) * p.panel * 4);
    if (p.whole_sums)
        p.all_sums_bytes = align_up(p.slab_rows * p.panels * p.panel * 4);
    else if (p.adds_up)
        p.sums_bytes = sums;
    p.b_words = MIN(round_up(p.words, vl), p.block_words); /* packed by vl */
    p.thread_bytes = align_up(p.sums_bytes + p.b_words * p.panel * 4);
    return p;
}

int64_t pairs_matmul_workspace_bytes(const PairsMatmul *s, int vl) {
    if (s->tiles) return tiles_matmul_workspace_bytes(s);
    Pairs2d p = pairs_of(s, vl);
    return p.a_bytes + p.all_sums_bytes + s->threads * p.thread_bytes;
}

/* A block of rows and a panel of C while its product runs. */
typedef struct Block {
    const Pairs2d *p;
    LLVMValueRef c, bias; /* all of them */
    LLVMValueRef i, j;    /* the block's first row and column of C */
    LLVMValueRef sums;    /* of the block, rows sums_row apart */
    LLVMValueRef last;    /* is this the last block of k? NULL: there is only one */
    LLVMValueRef next_b;  /* what is packed next */
    LLVMValueRef aligned; /* do rows of C begin with a line? */
    int64_t sums_row;
} Block;

/* Column j of row r of the block. */
static LLVMValueRef c_at(const Block *b, LLVMValueRef r, LLVMValueRef j) {
    Emit *e = b->p->e;
    LLVMValueRef row = emit_muli(e, emit_add(e, b->i, r), b->p->s->c_m);
    return emit_gep(e, dtype_is_narrow(pairs_matmul_result(b->p->s)) ? e->i16 : e->f32,
                    b->c, emit_add(e, row, emit_add(e, b->j, j)));
}

static LLVMValueRef sums_at(const Block *b, const GemmBlock *at, int r, int v) {
    Emit *e = b->p->e;
    LLVMValueRef row = emit_addi(e, at->i, r);
    LLVMValueRef n = emit_plus(e, at->j, row, b->sums_row);
    return emit_gep(e, e->f32, b->sums, emit_addi(e, n, v * e->vl));
}

/* The share that a row of a tile has of the lines of B that are packed next; a row of the block has
 * tiles of all strips of the panel. B lies in runs, rows of the panel or columns of k, of which
 * a share is some, or a part of one. */
static void fetch_b(const Block *b, LLVMValueRef row, LLVMValueRef strip) {
    const Pairs2d *p = b->p;
    const PairsMatmul *s = p->s;
    Emit *e = p->e;
    bool by_rows = s->b_n == 1;
    int64_t k = p->per_word * MIN(p->words, p->block_words);
    int64_t runs = by_rows ? k : p->panel, strips = p->panel / p->strip;
    int64_t stride = p->number_bytes * (by_rows ? s->b_k : s->b_n);
    int64_t lines =
        divided_up(p->number_bytes * (by_rows ? p->panel : k), EMIT_LINE_BYTES);
    int64_t share = MIN(divided_up(runs * lines, p->rows * strips), FETCH_LINES);
    pairs_fetch_share(e, b->next_b, emit_plus(e, strip, row, strips), share, lines,
                      stride);
}

static void fetch_c(const Block *b, const GemmBlock *at) {
    Emit *e = b->p->e;
    const int64_t each = dtype_bytes[pairs_matmul_result(b->p->s)],
                  bytes = (int64_t)at->vecs * e->vl * each;
    LLVMValueRef c = c_at(b, at->i, at->j);
    for (int r = 0; r < at->rows; r++)
        for (int64_t byte = 0; byte < bytes; byte += EMIT_LINE_BYTES)
            emit_prefetch(e, emit_at(e, e->i8, c, r * b->p->s->c_m * each + byte), true,
                          3);
}

/* What a tile will write, and a part of the next B: both come from memory while the tile's
 * product runs. */
static void fetch_ahead(void *ctx, const GemmBlock *at) {
    const Block *b = ctx;
    Emit *e = b->p->e;
    if (!b->p->streams) fetch_c(b, at);
    LLVMValueRef strip = emit_divi(e, at->j, b->p->strip);
    for (int r = 0; r < at->rows; r++) {
        LLVMValueRef row = emit_addi(e, at->i, r);
        for (int v = 0; v < at->vecs && b->last; v++)
            emit_prefetch(e, sums_at(b, at, r, v), true, 3);
        fetch_b(b, row, strip);
    }
}

/* A vector of C, done; past: the caches. */
static void write_c(const Block *b, LLVMValueRef x, LLVMValueRef to, LLVMValueRef j,
                    LLVMValueRef mask, bool past) {
    const PairsMatmul *s = b->p->s;
    Emit *e = b->p->e;
    if (s->bias) {
        LLVMValueRef at = emit_gep(e, e->f32, b->bias, emit_add(e, b->j, j));
        x = emit_fadd(e, x, emit_load(e, e->vf32, at, mask, 4));
    }
    if (past)
        emit_stream(e, x, to);
    else
        emit_store_sum(e, pairs_matmul_result(s), x, to, mask, s->adds);
}

static void tile_to_c(const Block *b, const GemmBlock *at, const LLVMValueRef *x,
                      bool past) {
    const Pairs2d *p = b->p;
    Emit *e = p->e;
    for (int v = 0; v < at->vecs; v++) {
        LLVMValueRef j = emit_addi(e, at->j, v * e->vl), mask = NULL;
        LLVMValueRef left = emit_sub(e, emit_i64(e, p->s->n), emit_add(e, b->j, j));
        if (p->s->n % p->panel) mask = emit_tail_mask(e, left);
        for (int r = 0; r < at->rows; r++) {
            LLVMValueRef row = emit_addi(e, at->i, r);
            write_c(b, x[r * at->vecs + v], c_at(b, row, j), j, mask, past);
        }
    }
}

static void sums_to_c(const Block *b, const GemmBlock *at, const LLVMValueRef *x) {
    Emit *e = b->p->e;
    If f;
    if (!b->p->streams) {
        tile_to_c(b, at, x, false);
        return;
    }
    if_begin(e, &f, b->aligned);
    tile_to_c(b, at, x, true);
    if_else(e, &f);
    tile_to_c(b, at, x, false);
    if_end(e, &f);
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

/* Where B has the block of k behind `word` of this panel, or the slab's first of the next. */
static LLVMValueRef next_of_b(const Block *b, LLVMValueRef all, LLVMValueRef word,
                              LLVMValueRef first, LLVMValueRef end) {
    const Pairs2d *p = b->p;
    const PairsMatmul *s = p->s;
    Emit *e = p->e;
    LLVMValueRef behind = emit_addi(e, word, p->block_words);
    LLVMValueRef more = emit_icmp(e, LLVMIntSLT, behind, end);
    LLVMValueRef next = emit_addi(e, b->j, p->panel);
    LLVMValueRef k = emit_select(e, more, behind, first);
    LLVMValueRef j = emit_select(e, more, b->j, next);
    j = emit_muli(e, j, s->b_n);
    j = emit_plus(e, j, k, p->per_word * s->b_k);
    return emit_gep(e, pairs_number_type(p), all, j);
}

/* The sums of a block: its own, which are 0 now, or its part of the slab's. */
static void find_sums(Block *b, LLVMValueRef ws, LLVMValueRef work, LLVMValueRef i,
                      LLVMValueRef rows) {
    const Pairs2d *p = b->p;
    Emit *e = p->e;
    b->sums = work;
    b->sums_row = p->panel;
    if (p->whole_sums) {
        b->sums_row = p->panels * p->panel;
        b->sums = emit_gep(e, e->f32, emit_at(e, e->i8, ws, p->a_bytes),
                           emit_plus(e, b->j, i, b->sums_row));
    } else if (p->adds_up) {
        LLVMValueRef bytes = emit_muli(e, rows, p->panel * 4);
        LLVMBuildMemSet(e->b, work, LLVMConstInt(e->i8, 0, 0), bytes, 64);
    }
}

/* What the last part of n has, in parts of `each`. */
static int64_t last_of(int64_t n, int64_t each) {
    return n % each ? n % each : each;
}

/* Rows i to i + rows of the slab, and the panel from column j on. */
static void block(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef work, LLVMValueRef i,
                  LLVMValueRef rows, LLVMValueRef j) {
    Emit *e = p->e;
    LLVMValueRef packed = emit_at(e, e->i8, work, p->sums_bytes);
    LLVMValueRef b = emit_slot(p->e, ctx, SLOT_B), ws = emit_slot(p->e, ctx, SLOT_WS);
    LLVMValueRef row = emit_add(e, i, pairs_number(p, ctx, SLOT_ROW));
    LLVMValueRef first = pairs_number(p, ctx, SLOT_WORD);
    LLVMValueRef end = pairs_number(p, ctx, SLOT_WORDS_END);
    LLVMValueRef a = p->packs_a ? ws : emit_slot(p->e, ctx, SLOT_A);
    a = emit_gep(e, e->f32, a, emit_muli(e, p->packs_a ? i : row, p->a_row));
    Block at = {.p = p, .c = emit_slot(p->e, ctx, SLOT_C), .i = row, .j = j};
    if (p->s->bias) at.bias = emit_slot(p->e, ctx, SLOT_BIAS);
    if (p->streams) at.aligned = emit_begins_line(e, at.c);
    find_sums(&at, ws, work, i, rows);
    Loop l;
    loop_begin(e, &l, first, end, p->block_words, 0, NULL);
    LLVMValueRef most = emit_i64(e, p->block_words), total = emit_i64(e, p->words);
    LLVMValueRef words = emit_imin(e, emit_sub(e, end, l.i), most);
    if (p->adds_up) at.last = emit_icmp(e, LLVMIntSLE, emit_sub(e, total, l.i), most);
    at.next_b = next_of_b(&at, b, l.i, first, end);
    pairs_pack_b(p, b, packed, j, l.i, words);
    GemmUser user = {&at, fetch_ahead, take_sums};
    int64_t last_slab = last_of(p->s->m, p->slab_rows);
    GemmStrides s = {p->a_row,
                     1,
                     p->strip,
                     0,
                     .pairs = p->s->dots,
                     .user = &user,
                     .b_col = p->strip < p->panel ? p->b_words : 0,
                     .m_is = {MIN(p->rows, p->slab_rows), last_of(p->slab_rows, p->rows),
                              last_of(last_slab, p->rows)}};
    a = emit_gep(e, e->f32, a, p->packs_a ? emit_sub(e, l.i, first) : l.i);
    GemmSize size = {rows, emit_i64(e, p->panel), words};
    gemm_emit(e, &s, GEMM_SET, &(GemmData){a, packed}, &size);
    loop_end(e, &l, NULL);
}

static LLVMValueRef body_emit(const Pairs2d *p) {
    Emit *e = p->e;
    LLVMValueRef fn = emit_items_func(e, p->name, "body");
    LLVMValueRef ctx = emit_param(e, 0), n = emit_i64(e, p->panels);
    LLVMValueRef at = emit_plus(e, emit_i64(e, p->a_bytes + p->all_sums_bytes),
                                emit_param(e, 3), p->thread_bytes);
    LLVMValueRef work = emit_gep(e, e->i8, emit_slot(p->e, ctx, SLOT_WS), at);
    LLVMValueRef m =
        emit_sub(e, pairs_number(p, ctx, SLOT_ROWS_END), pairs_number(p, ctx, SLOT_ROW));
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef j = emit_muli(e, emit_rem(e, items.i, n), p->panel);
    LLVMValueRef i = emit_muli(e, emit_div(e, items.i, n), p->rows);
    LLVMValueRef rows = emit_imini(e, emit_sub(e, m, i), p->rows);
    block(p, ctx, work, i, rows, j);
    loop_end(e, &items, NULL);
    if (p->streams) emit_stream_end(e);
    emit_ret(e, NULL);
    return fn;
}

/* The work on rows from `row` on and pairs of k from `word` on, as far as slabs go. */
static void slab(const Pairs2d *p, LLVMValueRef ctx, LLVMValueRef pack, LLVMValueRef body,
                 LLVMValueRef row, LLVMValueRef word) {
    Emit *e = p->e;
    LLVMValueRef end = emit_addi(e, row, p->slab_rows);
    end = emit_imini(e, end, p->s->m);
    LLVMValueRef words_end = emit_addi(e, word, p->slab_words);
    pairs_set_number(p, ctx, SLOT_ROW, row);
    pairs_set_number(p, ctx, SLOT_ROWS_END, end);
    pairs_set_number(p, ctx, SLOT_WORD, word);
    pairs_set_number(p, ctx, SLOT_WORDS_END, emit_imini(e, words_end, p->words));
    LLVMValueRef rows = emit_sub(e, end, row);
    if (pack) pairs_run(p, ctx, pack, pairs_pack_a_items(p, rows));
    LLVMValueRef blocks = emit_addi(e, rows, p->rows - 1);
    blocks = emit_divi(e, blocks, p->rows);
    pairs_run(p, ctx, body, emit_muli(e, blocks, p->panels));
}

void pairs_matmul_emit(Emit *e, const char *name, const PairsMatmul *s) {
    check(!s->tiles || e->tiles != TILES_NONE);
    check(!s->dots || (s->dt == DT_BF16 && !s->tiles && emit_has_dots(e)));
    if (s->tiles) {
        tiles_matmul_emit(e, name, s);
        return;
    }
    Pairs2d p = pairs_of(s, e->vl);
    p.e = e;
    p.name = name;
    p.strip = gemm_tile_columns(e);
    LLVMValueRef pack = p.packs_a ? pairs_pack_a_emit(&p) : NULL, body = body_emit(&p);
    LLVMValueRef ctx = emit_context_func(e, name, POINTERS, SLOTS, true);
    Loop rows, words;
    loop_begin(e, &rows, emit_i64(e, 0), emit_i64(e, s->m), p.slab_rows, 0, NULL);
    if (p.whole_sums) {
        LLVMValueRef sums = emit_at(e, e->i8, emit_param(e, SLOT_WS), p.a_bytes);
        LLVMBuildMemSet(e->b, sums, LLVMConstInt(e->i8, 0, 0),
                        emit_i64(e, p.all_sums_bytes), 64);
    }
    loop_begin(e, &words, emit_i64(e, 0), emit_i64(e, p.words), p.slab_words, 0, NULL);
    slab(&p, ctx, pack, body, rows.i, words.i);
    loop_end(e, &words, NULL);
    loop_end(e, &rows, NULL);
    emit_ret(e, NULL);
}
