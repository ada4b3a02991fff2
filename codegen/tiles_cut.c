/* tiles_cut.c - what products by tile registers are cut into (tiles_parts.h).
 *
 * Four tiles of sums take a tile of A or B for each product of tiles, 1 kB in 16 cycles. Measured
 * on an Intel Xeon with AMX (Emerald Rapids), a thread: in that time the first cache gives two
 * of them, the second one, the last a quarter and memory an eighth. So what B has for 32 columns
 * and a block of k stays in the first cache, A's rows and the sums of blocks before in the
 * second. */
#include "codegen/tiles_matmul.h"
#include "codegen/tiles_parts.h"

enum {
    PANEL = 16 * TILE_SIDE,    /* columns of a panel, at most */
    FEW_PANEL = 8 * TILE_SIDE, /* beside rows of A for all of k */
    A_BYTES = 768 << 10,       /* of a block of rows of A */
    SUMS_BYTES = 768 << 10,    /* of its sums, if they are kept */
    BLOCK_WORDS = 256,         /* of k, at most: 32 kB of B for 32 columns */
    FEW_WORDS = 768,           /* of all k, so that A has room for some rows of them */
    FEW_BLOCK_WORDS = 192,     /* of a block then */
    SLACK = 12, /* by that part a block may be longer, so that there are fewer */
    SLAB_BYTES = 16 << 20, /* of A or B, packed */
    SOME_PANELS = 3,       /* of a slab, at least */
    PANELS_A_THREAD = 2,   /* at least, where a block has all rows */
    ITEMS_A_THREAD = 4,    /* at least, where there are rows and columns for it */
};

static int64_t parts_of(const PairsMatmul *s) {
    return s->dt == DT_BF16 ? 1 : BF16_PARTS;
}

/* Do rows of A for all of k stay in the second cache? */
static bool is_few(const PairsMatmul *s) {
    return s->a_k == 1 && parts_of(s) * divided_up(s->k, 2) <= FEW_WORDS;
}

/* Blocks of the same length. */
static int64_t words_of(const PairsMatmul *s) {
    int64_t words = divided_up(s->k, 2), most = s->block_words;
    if (!most) {
        most = (is_few(s) ? FEW_BLOCK_WORDS : BLOCK_WORDS) / parts_of(s);
        most += most / SLACK;
    }
    most = MAX(TILE_SIDE, most / TILE_SIDE * TILE_SIDE);
    return round_up(divided_up(words, divided_up(words, most)), TILE_SIDE);
}

/* A takes half of its room where sums are kept beside it. */
static int64_t rows_of(const PairsMatmul *s) {
    if (s->block_rows) return s->block_rows;
    int64_t all = divided_up(s->k, 2), words = is_few(s) ? all : words_of(s);
    int64_t bytes = words < all ? A_BYTES / 2 : A_BYTES;
    bytes /= parts_of(s);
    if (divided_up(s->m, TILES_WIDE) * TILES_WIDE * 4 * words <= bytes + bytes / SLACK)
        return round_up(s->m, TILES_WIDE);
    return MAX(TILES_WIDE, bytes / 4 / words / TILES_WIDE * TILES_WIDE);
}

bool tiles_matmul_same(const PairsMatmul *x, const PairsMatmul *y) {
    PairsMatmul like = *y;
    like.block_rows = x->block_rows, like.block_words = x->block_words;
    return !memcmp(x, &like, sizeof like) &&
           MIN(rows_of(x), x->m) == MIN(rows_of(y), y->m) && words_of(x) == words_of(y);
}

int64_t tiles_panel_bytes(const Pairs2d *p) {
    return p->b_words * p->panel * 4;
}

int64_t tiles_k_blocks(const Pairs2d *p) {
    return divided_up(p->slab_words, p->block_words);
}

/* Slabs of whole rows and columns where one has some of them, else of a part of k. */
static void cut_slabs(Tiles2d *t) {
    Pairs2d *p = &t->p;
    const PairsMatmul *s = p->s;
    t->shares_b = s->m > rows_of(s);
    bool across = s->a_k != 1;
    int64_t rows = across ? MIN(s->m, 2 * rows_of(s)) : 0;
    int64_t columns = t->shares_b ? MIN(p->panels, SOME_PANELS) * p->panel : 0;
    int64_t blocks = divided_up(p->words, p->block_words);
    int64_t most =
        SLAB_BYTES / 4 / p->parts / MAX(MAX(rows, columns), 1) / p->block_words;
    blocks = divided_up(blocks, divided_up(blocks, MAX(1, most)));
    p->slab_words = MIN(p->words, blocks * p->block_words);
    p->slab_rows = s->m;
    if (across) {
        rows = MAX(rows_of(s),
                   SLAB_BYTES / 4 / p->parts / p->slab_words / TILES_WIDE * TILES_WIDE);
        p->slab_rows = round_up(divided_up(s->m, divided_up(s->m, rows)), TILES_WIDE);
    }
    t->slab_panels = p->panels;
    if (t->shares_b) {
        most = MAX(1, SLAB_BYTES / (tiles_panel_bytes(p) * tiles_k_blocks(p)));
        t->slab_panels = divided_up(p->panels, divided_up(p->panels, most));
        t->b_bytes = align_up(t->slab_panels * tiles_k_blocks(p) * tiles_panel_bytes(p));
    }
}

/* Rows of an item, at most `most`: the threads have the same work where there are a few items for
 * each of them. */
static int64_t even_rows(int64_t m, int64_t most, int64_t threads) {
    int64_t best = most, work = INT64_MAX;
    if (divided_up(m, most) < threads) return most;
    for (int64_t rows = most; rows >= MAX(most / 2, 1); rows -= TILES_WIDE) {
        int64_t all = divided_up(divided_up(m, rows), threads) * rows;
        if (all >= work) continue;
        work = all;
        best = rows;
    }
    return best;
}

/* Rows of an item, and how many panels it has. */
static void cut_items(Tiles2d *t) {
    Pairs2d *p = &t->p;
    const PairsMatmul *s = p->s;
    const int each = s->m <= rows_of(s) ? PANELS_A_THREAD : ITEMS_A_THREAD;
    int64_t wanted = s->threads > 1 ? (int64_t)each * s->threads : 1;
    int64_t rows = even_rows(p->slab_rows, rows_of(s), s->threads);
    int64_t blocks = divided_up(p->slab_rows, rows);
    blocks = MAX(blocks, divided_up(wanted, t->slab_panels));
    rows = round_up(divided_up(p->slab_rows, blocks), TILES_WIDE);
    p->rows = even_rows(p->slab_rows, rows, s->threads);
    blocks = divided_up(p->slab_rows, p->rows);
    t->group = t->slab_panels;
    if (p->adds_up && !p->whole_sums && !t->panels_first)
        t->group = MAX(1, MIN(t->group, SUMS_BYTES / 4 / p->rows / p->panel));
    int64_t groups = divided_up(t->slab_panels, t->group);
    if (s->a_k != 1 || blocks < s->threads) /* else each would put A into tiles again */
        groups = MAX(groups, divided_up(wanted, blocks));
    t->group = divided_up(t->slab_panels, MIN(groups, t->slab_panels));
}

bool tiles_group_sums(const Tiles2d *t) {
    return t->p.adds_up && !t->panels_first;
}

int tiles_rows_a_step(const Tiles2d *t) {
    int64_t steps = t->p.block_words / TILE_SIDE;
    return (int)divided_up(TILES_WIDE, MAX(1, steps - 1));
}

/* Where a block has all rows each item packs its own B: the threads have as many panels each, if
 * there are such, or else some would pack the same one. */
static int64_t panel_of(const PairsMatmul *s, int64_t most) {
    int64_t panels = divided_up(s->n, most);
    int64_t panel = round_up(divided_up(s->n, panels), TILES_WIDE);
    if (s->m > rows_of(s) || s->threads == 1) return panel;
    panels = MAX(panels, (int64_t)PANELS_A_THREAD * s->threads);
    for (int64_t more = panels; more < panels + s->threads; more++) {
        int64_t even = round_up(divided_up(s->n, more), TILES_WIDE);
        if (divided_up(s->n, even) % s->threads == 0) return even;
    }
    return panel;
}

/* How rows of C are written, and panels, before slabs are cut. */
static void cut_panels(Tiles2d *t) {
    Pairs2d *p = &t->p;
    const PairsMatmul *s = p->s;
    const bool in_lines = s->c_m * (s->rounds ? 2 : 4) % EMIT_LINE_BYTES == 0;
    p->streams = in_lines && !s->adds;
    t->realigns = !in_lines && !(s->adds && s->rounds); /* a sum is rounded once */
    t->panels_first = is_few(s) && p->words > p->block_words;
    p->panel = panel_of(s, t->panels_first ? FEW_PANEL : PANEL);
    p->panels = divided_up(s->n, p->panel);
    p->b_words =
        p->parts * p->block_words + 1; /* else strips would meet in few sets of a cache */
    t->sums_row = p->panel + TILE_SIDE;
}

/* What the workspace has for all threads and for each, when slabs and items are cut. */
static void size_parts(Tiles2d *t) {
    Pairs2d *p = &t->p;
    const PairsMatmul *s = p->s;
    const int64_t slab_rows = round_up(p->slab_rows, TILES_WIDE);
    const int64_t rows = MIN(slab_rows, p->rows); /* of an item */
    p->packs_a = s->a_k != 1 && t->group < t->slab_panels;
    const bool all_words = p->packs_a || t->panels_first;
    const int64_t words = all_words ? p->slab_words : p->block_words;
    t->a_block = TILES_WIDE * p->parts * round_up(words, TILE_SIDE);
    if (p->packs_a)
        p->a_bytes = align_up(slab_rows / TILES_WIDE * t->a_block * 4);
    else
        t->own_a_bytes = align_up(rows / TILES_WIDE * t->a_block * 4);
    const int64_t panels = tiles_group_sums(t) ? t->group : 1;
    if (p->whole_sums)
        p->all_sums_bytes = align_up(slab_rows * p->panels * t->sums_row * 4);
    else if (p->adds_up)
        p->sums_bytes = align_up(rows * panels * t->sums_row * 4);
    if (t->realigns) t->waiting_bytes = rows * EMIT_LINE_BYTES;
    const int64_t own_b_bytes = t->shares_b ? 0 : tiles_panel_bytes(p);
    p->thread_bytes =
        align_up(t->own_a_bytes + p->sums_bytes + t->waiting_bytes + own_b_bytes);
}

/* Panels, then slabs of whole panels, then items of a slab, then the room for what each has. */
Tiles2d tiles_of(const PairsMatmul *s) {
    Tiles2d t = {.p = {.s = s,
                       .strip = TILE_SIDE,
                       .a_row = TILE_SIDE,
                       .tiles = true,
                       .parts = (int)parts_of(s),
                       .per_word = 2,
                       .number_bytes = dtype_bytes[s->dt],
                       .words = divided_up(s->k, 2),
                       .block_words = words_of(s)}};
    cut_panels(&t);
    cut_slabs(&t);
    t.p.adds_up = t.p.words > t.p.block_words;
    t.p.whole_sums = t.p.slab_words < t.p.words;
    cut_items(&t);
    size_parts(&t);
    return t;
}

int64_t tiles_shared_bytes(const Tiles2d *t) {
    return t->p.a_bytes + t->p.all_sums_bytes + t->b_bytes;
}

int64_t tiles_matmul_workspace_bytes(const PairsMatmul *s) {
    Tiles2d t = tiles_of(s);
    return tiles_shared_bytes(&t) + s->threads * t.p.thread_bytes;
}
