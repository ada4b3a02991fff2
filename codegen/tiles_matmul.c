/* tiles_matmul.c - see tiles_matmul.h.
 *     void name(a, b, bias, c, ws):
 *         for each slab of columns, rows and k:
 *             in parallel: share     B for all rows, where there are several blocks of them
 *             in parallel: pack      A that lies across, for all groups of panels
 *             in parallel, items: body
 *     void body(ctx, begin, end, thread):
 *         for item (a block of rows and a group of panels):
 *             for each block of k: the rows of A to tiles, where they are not packed yet
 *                 for each panel (the outer one of the two where A is small: panels_first):
 *                     pack B, where it is not shared
 *                     for each tile of C: sums = A B (+ sums of the blocks before)
 *                         C = sums (+ bias) (+ C), while the next tile's product runs
 * Rows of A are put into tiles even where they could be read as they are: rows that are a power of
 * two apart meet in few sets of the first cache, which costs an eighth of the rate. Numbers of f32
 * become three of bf16 while they are packed (gemm.h, parts). */
#include "codegen/tiles_matmul.h"
#include "codegen/gemm_tiles.h"
#include "codegen/tiles_parts.h"

enum { PACK_ROWS = 4 * TILES_WIDE }; /* of A, at a time */

/* Where the shared B has the block of k at `word` of a panel, in the order in which they are
 * used. */
static LLVMValueRef shared_b(const Tiles2d *t, LLVMValueRef ctx, LLVMValueRef panel,
                             LLVMValueRef word) {
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    panel = emit_sub(e, panel, pairs_number(p, ctx, SLOT_PANEL));
    LLVMValueRef block = emit_sub(e, word, pairs_number(p, ctx, SLOT_WORD));
    block = emit_divi(e, block, p->block_words);
    LLVMValueRef at = t->panels_first ? emit_plus(e, block, panel, tiles_k_blocks(p))
                                      : emit_plus(e, panel, block, t->slab_panels);
    at = emit_plus(e, emit_i64(e, p->a_bytes + p->all_sums_bytes), at,
                   tiles_panel_bytes(p));
    return emit_gep(e, e->i8, emit_slot(p->e, ctx, SLOT_WS), at);
}

static LLVMValueRef column_of(const Pairs2d *p, LLVMValueRef panel) {
    return emit_muli(p->e, panel, p->panel);
}

/* Blocks of k that the slab of now has. */
static LLVMValueRef blocks_now(const Pairs2d *p, LLVMValueRef ctx) {
    Emit *e = p->e;
    LLVMValueRef words = emit_sub(e, pairs_number(p, ctx, SLOT_WORDS_END),
                                  pairs_number(p, ctx, SLOT_WORD));
    words = emit_addi(e, words, p->block_words - 1);
    return emit_divi(e, words, p->block_words);
}

/* void name.share(ctx, begin, end, thread): packs blocks of k of the slab's panels. */
static LLVMValueRef share_emit(const Tiles2d *t) {
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    LLVMValueRef fn = emit_items_func(e, p->name, "share");
    LLVMValueRef ctx = emit_param(e, 0), blocks = blocks_now(p, ctx);
    LLVMValueRef first = pairs_number(p, ctx, SLOT_WORD);
    LLVMValueRef end = pairs_number(p, ctx, SLOT_WORDS_END);
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef panel = emit_div(e, items.i, blocks);
    panel = emit_add(e, pairs_number(p, ctx, SLOT_PANEL), panel);
    LLVMValueRef word = emit_plus(e, first, emit_rem(e, items.i, blocks), p->block_words);
    LLVMValueRef words = emit_imini(e, emit_sub(e, end, word), p->block_words);
    pairs_pack_b(p, emit_slot(p->e, ctx, SLOT_B), shared_b(t, ctx, panel, word),
                 column_of(p, panel), word, words);
    loop_end(e, &items, NULL);
    emit_ret(e, NULL);
    return fn;
}

/* The lines that the next words of rows `row` and on are in, where A lies across: of memory
 * so far apart no cache guesses the next. */
static void fetch_across(const Tiles2d *t, LLVMValueRef a, LLVMValueRef row,
                         LLVMValueRef word) {
    const PairsMatmul *s = t->p.s;
    Emit *e = t->p.e;
    const int64_t stride = t->p.number_bytes * s->a_k;
    const int64_t bytes =
        t->p.number_bytes * PACK_ROWS + (stride % EMIT_LINE_BYTES ? EMIT_LINE_BYTES : 0);
    LLVMValueRef next = emit_addi(e, word, TILE_SIDE);
    LLVMValueRef at =
        emit_gep(e, pairs_number_type(&t->p), a, emit_plus(e, row, next, 2 * s->a_k));
    for (int x = 0; x < 2 * TILE_SIDE; x++)
        for (int64_t byte = 0; byte < bytes; byte += EMIT_LINE_BYTES)
            emit_prefetch(e, emit_at(e, e->i8, at, x * stride + byte), false, 3);
}

/* The tile that 16 rows of A have, r rows behind the first one packed, of words l and on. */
static LLVMValueRef tile_at(const Tiles2d *t, LLVMValueRef to, LLVMValueRef r,
                            LLVMValueRef l) {
    Emit *e = t->p.e;
    LLVMValueRef wide = emit_i64(e, TILES_WIDE);
    LLVMValueRef at = emit_muli(e, emit_rem(e, r, wide), TILE_SIDE);
    at = emit_plus(e, emit_plus(e, at, l, TILES_WIDE * t->p.parts), emit_div(e, r, wide),
                   t->a_block);
    return emit_gep(e, e->f32, to, at);
}

/* Of 16 rows behind those of now the lines that have the same words. */
static void fetch_along(const Tiles2d *t, LLVMValueRef a, LLVMValueRef row,
                        LLVMValueRef word) {
    const PairsMatmul *s = t->p.s;
    Emit *e = t->p.e;
    row = emit_addi(e, row, TILE_SIDE);
    LLVMValueRef at = emit_plus(e, emit_muli(e, word, 2), row, s->a_m);
    at = emit_gep(e, pairs_number_type(&t->p), a, at);
    const int64_t stride = t->p.number_bytes, bytes = 2 * TILE_SIDE * t->p.number_bytes;
    for (int x = 0; x < TILE_SIDE; x++)
        for (int64_t byte = 0; byte < bytes; byte += EMIT_LINE_BYTES)
            emit_prefetch(e, emit_at(e, e->i8, at, x * stride * s->a_m + byte), false, 3);
}

/* Words `word` and on of `rows` rows of A from `row` on, at most PACK_ROWS, `count` of them, to
 * tiles. Lines of memory are read as a whole, or one after the other. */
static void pack_rows(const Tiles2d *t, LLVMValueRef a, LLVMValueRef to, LLVMValueRef row,
                      LLVMValueRef rows, LLVMValueRef word, LLVMValueRef count) {
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    const bool across = p->s->a_k != 1;
    LLVMValueRef side = emit_i64(e, TILE_SIDE), end = emit_add(e, word, count);
    LLVMValueRef whole =
        emit_i64(e, p->s->k / 2 / TILE_SIDE * TILE_SIDE); /* of all words */
    whole = emit_imax(e, word, emit_imin(e, end, whole));
    whole = emit_sub(e, whole, word);
    whole = emit_mul(e, emit_div(e, whole, side), side);
    for (int tail = 0; tail <= (p->s->k % TILES_WIDE > 0); tail++) {
        LLVMValueRef zero = emit_i64(e, 0), lo[] = {zero, tail ? whole : zero};
        LLVMValueRef hi[] = {rows, tail ? count : whole};
        Loop l[2]; /* over rows, over words */
        loop_begin(e, &l[across], lo[across], hi[across], TILE_SIDE, 0, NULL);
        if (across && !tail) fetch_across(t, a, row, emit_add(e, word, l[1].i));
        loop_begin(e, &l[!across], lo[!across], hi[!across], TILE_SIDE, 0, NULL);
        if (!across && !tail)
            fetch_along(t, a, emit_add(e, row, l[0].i), emit_add(e, word, l[1].i));
        LLVMValueRef tile = tile_at(t, to, l[0].i, l[1].i);
        pairs_pack_a_tile(p, a, tile, emit_add(e, row, l[0].i), emit_add(e, word, l[1].i),
                          tail);
        loop_end(e, &l[!across], NULL);
        loop_end(e, &l[across], NULL);
    }
}

/* void name.pack(ctx, begin, end, thread): packs PACK_ROWS rows an item, of the slab. */
static LLVMValueRef pack_emit(const Tiles2d *t) {
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    LLVMValueRef fn = emit_items_func(e, p->name, "pack");
    LLVMValueRef ctx = emit_param(e, 0), word = pairs_number(p, ctx, SLOT_WORD);
    LLVMValueRef count = emit_sub(e, pairs_number(p, ctx, SLOT_WORDS_END), word);
    LLVMValueRef most = emit_i64(e, PACK_ROWS);
    Loop items;
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef row = emit_plus(e, pairs_number(p, ctx, SLOT_ROW), items.i, PACK_ROWS);
    LLVMValueRef left = emit_sub(e, pairs_number(p, ctx, SLOT_ROWS_END), row);
    LLVMValueRef to = emit_muli(e, items.i, PACK_ROWS / TILES_WIDE * t->a_block);
    to = emit_gep(e, e->f32, emit_slot(p->e, ctx, SLOT_WS), to);
    pack_rows(t, emit_slot(p->e, ctx, SLOT_A), to, row, emit_imin(e, left, most), word,
              count);
    loop_end(e, &items, NULL);
    emit_ret(e, NULL);
    return fn;
}

/* A thread's rows of A, for a block of k. */
static void pack_own(const Tiles2d *t, LLVMValueRef a, LLVMValueRef to, LLVMValueRef row,
                     LLVMValueRef rows, LLVMValueRef word, LLVMValueRef count) {
    Emit *e = t->p.e;
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), rows, PACK_ROWS, 0, NULL);
    LLVMValueRef at = emit_muli(e, l.i, t->a_block / TILES_WIDE);
    LLVMValueRef left = emit_imini(e, emit_sub(e, rows, l.i), PACK_ROWS);
    pack_rows(t, a, emit_gep(e, e->f32, to, at), emit_add(e, row, l.i), left, word,
              count);
    loop_end(e, &l, NULL);
}

/* What the threads of a body see. */
typedef struct Item {
    const Tiles2d *t;
    LLVMValueRef ctx, own_a, sums, waiting, own_b; /* of the thread */
    LLVMValueRef i, row, rows;                     /* in the slab, in C; how many */
    LLVMValueRef panel, panels_end;
    LLVMValueRef first, end; /* words of the slab */
} Item;

/* Where B has what is packed after a panel's block of k: the next panel or the next block,
 * whichever comes first, or again the first of both. */
static LLVMValueRef next_of_b(const Item *m, LLVMValueRef panel, LLVMValueRef word) {
    const Pairs2d *p = &m->t->p;
    Emit *e = p->e;
    LLVMValueRef from[] = {m->panel, m->first}, end[] = {m->panels_end, m->end};
    LLVMValueRef at[] = {panel, word};
    const int64_t step[] = {1, p->block_words};
    LLVMValueRef turns = NULL; /* has the inner one, the first here, begun again? */
    for (int i = 0; i < 2; i++) {
        int x = m->t->panels_first ? !i : i;
        LLVMValueRef next = emit_addi(e, at[x], step[x]);
        LLVMValueRef over = emit_icmp(e, LLVMIntSGE, next, end[x]);
        next = emit_select(e, over, from[x], next);
        at[x] = turns ? emit_select(e, turns, next, at[x]) : next;
        turns = over;
    }
    LLVMValueRef j = emit_muli(e, column_of(p, at[0]), p->s->b_n);
    return emit_gep(e, pairs_number_type(p), emit_slot(p->e, m->ctx, SLOT_B),
                    emit_plus(e, j, at[1], 2 * p->s->b_k));
}

/* Of a panel: behind those of the group's before or, where sums outlive an item, of all before. */
static LLVMValueRef sums_of(const Item *m, LLVMValueRef panel) {
    const Pairs2d *p = &m->t->p;
    Emit *e = p->e;
    int64_t rows = p->whole_sums ? round_up(p->slab_rows, TILES_WIDE) : p->rows;
    LLVMValueRef all = m->sums, at = panel, row = emit_i64(e, 0);
    if (p->whole_sums) {
        all = emit_at(e, e->i8, emit_slot(p->e, m->ctx, SLOT_WS), p->a_bytes);
        row = m->i;
    } else {
        at = tiles_group_sums(m->t) ? emit_sub(e, panel, m->panel) : row;
    }
    at = emit_muli(e, emit_plus(e, row, at, rows), m->t->sums_row);
    return emit_gep(e, e->f32, all, at);
}

/* What a panel's product of a block of k works on, but for A: its result, and B, packed. */
static TilesBlock block_of(const Item *m, LLVMValueRef panel, LLVMValueRef word,
                           LLVMValueRef words) {
    const Tiles2d *t = m->t;
    const Pairs2d *p = &t->p;
    const PairsMatmul *s = p->s;
    Emit *e = p->e;
    LLVMValueRef j = column_of(p, panel);
    TilesBlock at = {.t = t,
                     .c = emit_slot(p->e, m->ctx, SLOT_C),
                     .bias = s->bias ? emit_slot(p->e, m->ctx, SLOT_BIAS) : NULL,
                     .i = m->row,
                     .j = j,
                     .rows = m->rows,
                     .words = words};
    at.aligned = emit_begins_line(e, at.c);
    LLVMValueRef left = emit_sub(e, emit_i64(e, p->words), word);
    if (p->adds_up) {
        at.last = emit_icmp(e, LLVMIntSLE, left, emit_i64(e, p->block_words));
        at.more = emit_icmp(e, LLVMIntSGT, word, emit_i64(e, 0));
        at.sums = sums_of(m, panel);
    }
    at.waiting = m->waiting;
    at.first = column_of(p, m->panel);
    at.end = emit_imini(e, column_of(p, m->panels_end), s->n);
    if (t->shares_b) {
        at.packed = shared_b(t, m->ctx, panel, word);
    } else {
        at.packed = m->own_b;
        at.next_b = next_of_b(m, panel, word);
        pairs_pack_b(p, emit_slot(p->e, m->ctx, SLOT_B), at.packed, j, word, words);
    }
    return at;
}

/* A panel's product of a block of k; a: the rows' words of that block. */
static void panel_emit(const Item *m, LLVMValueRef a, LLVMValueRef panel,
                       LLVMValueRef word, LLVMValueRef words) {
    const Tiles2d *t = m->t;
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    TilesBlock at = block_of(m, panel, word, words);
    GemmUser user = {.ctx = &at,
                     .take = tiles_take_row,
                     .step = tiles_fetch_step,
                     .rows_a_step = tiles_rows_a_step(t)};
    GemmStrides strides = {.a_block = t->a_block,
                           .b_row = TILE_SIDE,
                           .b_col = p->b_words,
                           .pairs = true,
                           .parts = p->parts,
                           .user = &user,
                           .a_streams = true,
                           .b_whole = true};
    LLVMValueRef n = emit_i64(e, round_up(p->s->n, TILES_WIDE));
    n = emit_imini(e, emit_sub(e, n, at.j), p->panel);
    gemm_emit(e, &strides, GEMM_SET, &(GemmData){a, at.packed},
              &(GemmSize){m->rows, n, words});
}

/* A panel's product of the block of k at `word`; all: there the item's rows of A begin. */
static void block_emit(const Item *m, LLVMValueRef all, LLVMValueRef panel,
                       LLVMValueRef word) {
    const Pairs2d *p = &m->t->p;
    Emit *e = p->e;
    LLVMValueRef words = emit_imini(e, emit_sub(e, m->end, word), p->block_words);
    LLVMValueRef at = emit_muli(e, emit_sub(e, word, m->first), TILES_WIDE * p->parts);
    if (p->packs_a || m->t->panels_first) all = emit_gep(e, e->f32, all, at);
    panel_emit(m, all, panel, word, words);
}

static void item_emit(const Item *m) {
    const Tiles2d *t = m->t;
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    LLVMValueRef lo[] = {m->panel, m->first}, hi[] = {m->panels_end, m->end};
    const int64_t step[] = {1, p->block_words};
    LLVMValueRef a = m->own_a, source = emit_slot(p->e, m->ctx, SLOT_A);
    Loop l[2]; /* over panels, over words */
    const int outer = t->panels_first ? 0 : 1, inner = !outer;
    if (p->packs_a) {
        a = emit_muli(e, m->i, t->a_block / TILES_WIDE);
        a = emit_gep(e, e->f32, emit_slot(p->e, m->ctx, SLOT_WS), a);
    } else if (t->panels_first) {
        pack_own(t, source, a, m->row, m->rows, m->first, emit_sub(e, m->end, m->first));
    }
    loop_begin(e, &l[outer], lo[outer], hi[outer], step[outer], 0, NULL);
    if (!p->packs_a && !t->panels_first) {
        LLVMValueRef words = emit_sub(e, m->end, l[1].i);
        words = emit_imini(e, words, p->block_words);
        pack_own(t, source, a, m->row, m->rows, l[1].i, words);
    }
    loop_begin(e, &l[inner], lo[inner], hi[inner], step[inner], 0, NULL);
    block_emit(m, a, l[0].i, l[1].i);
    loop_end(e, &l[inner], NULL);
    loop_end(e, &l[outer], NULL);
}

/* Groups of panels that a slab of columns has. */
static LLVMValueRef groups_of(const Tiles2d *t, LLVMValueRef ctx) {
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    LLVMValueRef panels = emit_sub(e, pairs_number(p, ctx, SLOT_PANELS_END),
                                   pairs_number(p, ctx, SLOT_PANEL));
    return emit_divi(e, emit_addi(e, panels, t->group - 1), t->group);
}

static LLVMValueRef body_emit(const Tiles2d *t) {
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    LLVMValueRef fn = emit_items_func(e, p->name, "body");
    LLVMValueRef ctx = emit_param(e, 0), groups = groups_of(t, ctx);
    LLVMValueRef at = emit_plus(e, emit_i64(e, tiles_shared_bytes(t)), emit_param(e, 3),
                                p->thread_bytes);
    LLVMValueRef work = emit_gep(e, e->i8, emit_slot(p->e, ctx, SLOT_WS), at);
    Item m = {.t = t,
              .ctx = ctx,
              .own_a = work,
              .sums = emit_at(e, e->i8, work, t->own_a_bytes),
              .waiting = emit_at(e, e->i8, work, t->own_a_bytes + p->sums_bytes),
              .own_b = emit_at(e, e->i8, work,
                               t->own_a_bytes + p->sums_bytes + t->waiting_bytes),
              .first = pairs_number(p, ctx, SLOT_WORD),
              .end = pairs_number(p, ctx, SLOT_WORDS_END)};
    LLVMValueRef row = pairs_number(p, ctx, SLOT_ROW);
    LLVMValueRef rows = emit_sub(e, pairs_number(p, ctx, SLOT_ROWS_END), row);
    Loop items;
    gemm_tiles_begin(e);
    loop_begin(e, &items, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    m.i = emit_muli(e, emit_div(e, items.i, groups), p->rows);
    m.row = emit_add(e, row, m.i);
    m.rows = emit_imini(e, emit_sub(e, rows, m.i), p->rows);
    m.panel = emit_plus(e, pairs_number(p, ctx, SLOT_PANEL), emit_rem(e, items.i, groups),
                        t->group);
    m.panels_end = emit_imin(e, emit_addi(e, m.panel, t->group),
                             pairs_number(p, ctx, SLOT_PANELS_END));
    item_emit(&m);
    loop_end(e, &items, NULL);
    gemm_tiles_end(e);
    if (!p->s->adds) emit_stream_end(e);
    emit_ret(e, NULL);
    return fn;
}

/* The functions of a product; NULL: there is nothing to do. */
typedef struct Parts {
    LLVMValueRef share, pack, body;
} Parts;

static LLVMValueRef set_range(const Pairs2d *p, LLVMValueRef ctx, int slot,
                              LLVMValueRef from, int64_t count, int64_t all) {
    Emit *e = p->e;
    LLVMValueRef end = emit_addi(e, from, count);
    end = emit_imini(e, end, all);
    pairs_set_number(p, ctx, slot, from);
    pairs_set_number(p, ctx, slot + 1, end);
    return emit_sub(e, end, from);
}

/* A slab of columns, rows and words of k. What all words of k have room for is packed once: B with
 * the first rows, A with the first columns if it has no other rows. */
static void slab(const Tiles2d *t, LLVMValueRef ctx, const Parts *f, LLVMValueRef panel,
                 LLVMValueRef row, LLVMValueRef word) {
    const Pairs2d *p = &t->p;
    Emit *e = p->e;
    LLVMValueRef panels = set_range(p, ctx, SLOT_PANEL, panel, t->slab_panels, p->panels);
    LLVMValueRef rows = set_range(p, ctx, SLOT_ROW, row, p->slab_rows, p->s->m);
    set_range(p, ctx, SLOT_WORD, word, p->slab_words, p->words);
    LLVMValueRef zero = emit_i64(e, 0);
    If first;
    if (f->share) {
        bool kept = !p->whole_sums;
        if (kept) if_begin(e, &first, emit_icmp(e, LLVMIntEQ, row, zero));
        pairs_run(p, ctx, f->share, emit_mul(e, panels, blocks_now(p, ctx)));
        if (kept) if_end(e, &first);
    }
    LLVMValueRef strips = emit_addi(e, rows, PACK_ROWS - 1);
    strips = emit_divi(e, strips, PACK_ROWS);
    if (f->pack) {
        bool kept = !p->whole_sums && p->slab_rows >= p->s->m;
        if (kept) if_begin(e, &first, emit_icmp(e, LLVMIntEQ, panel, zero));
        pairs_run(p, ctx, f->pack, strips);
        if (kept) if_end(e, &first);
    }
    LLVMValueRef blocks = emit_addi(e, rows, p->rows - 1);
    blocks = emit_divi(e, blocks, p->rows);
    pairs_run(p, ctx, f->body, emit_mul(e, blocks, groups_of(t, ctx)));
}

void tiles_matmul_emit(Emit *e, const char *name, const PairsMatmul *s) {
    Tiles2d t = tiles_of(s);
    Pairs2d *p = &t.p;
    check(e->tiles != TILES_NONE && e->vl == TILE_SIDE);
    p->e = e;
    p->name = name;
    Parts parts = {t.shares_b ? share_emit(&t) : NULL, p->packs_a ? pack_emit(&t) : NULL,
                   body_emit(&t)};
    LLVMValueRef ctx = emit_context_func(e, name, POINTERS, SLOTS, true);
    LLVMValueRef zero = emit_i64(e, 0);
    Loop panels, rows, words;
    loop_begin(e, &panels, zero, emit_i64(e, p->panels), t.slab_panels, 0, NULL);
    loop_begin(e, &rows, zero, emit_i64(e, s->m), p->slab_rows, 0, NULL);
    loop_begin(e, &words, zero, emit_i64(e, p->words), p->slab_words, 0, NULL);
    slab(&t, ctx, &parts, panels.i, rows.i, words.i);
    loop_end(e, &words, NULL);
    loop_end(e, &rows, NULL);
    loop_end(e, &panels, NULL);
    emit_ret(e, NULL);
}
