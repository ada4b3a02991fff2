/* attention_weave.c - see attention_weave.h. Two tiles of sums at a time stay in registers, and
 * leave for memory after the first products of the next two: at once, the unit would wait for
 * them. */
#include "codegen/attention_weave.h"
#include "codegen/tile_ops.h"

/* A strip is emitted without loops, so heads are not too large for that. Parts of f32 are worth making
 * from so many keys on. */
enum { A_TILE = 4, B_TILE = 6, GROUP = 2, MOST_DIM = 256, LEAST_KEYS_OF_F32 = 256 };

typedef struct Weave {
    Tiles t;
    const TileOps *ops;
    const WeaveProduct
        *held; /* rows from `row` on of it are in tiles from `tile` on, or NULL */
    int64_t row;
    int tile;
    int parts, dots, dots_in_all, units, done, loads;
    WeaveUnit unit;
    void *ctx;
} Weave;

static void load(Weave *w, int tile, LLVMValueRef from, int64_t word, int64_t row_words) {
    Emit *e = w->t.e;
    w->ops->load(&w->t, tile, emit_at(e, e->f32, from, word), emit_i64(e, 4 * row_words));
}

/* Part q of 16 rows of A from `row` on, and of B, of 16 pairs from `pair` on. */
static void load_a(Weave *w, int tile, const WeaveProduct *p, int64_t row, int64_t pair,
                   int q) {
    const int64_t wide = 2 * TILE_SIDE;
    int64_t at = row / wide * (p->pairs * wide) + pair * wide;
    at = at * w->parts + q * 2 * TILE_WORDS + row % wide * TILE_SIDE;
    load(w, tile, p->a, at, TILE_SIDE);
}

static void load_b(Weave *w, int tile, const WeaveProduct *p, int64_t pair, int q) {
    load(w, tile, p->b, pair * TILE_SIDE * w->parts + q * TILE_WORDS, TILE_SIDE);
}

static void dot(Weave *w, int sum, int a, int b) {
    w->ops->dot(&w->t, sum, a, b);
    int64_t due = (int64_t)++w->dots * w->units / w->dots_in_all;
    while (w->done < due) w->unit(w->ctx, w->done++);
}

static void store_held(Weave *w) {
    Emit *e = w->t.e;
    const WeaveProduct *p = w->held;
    for (int i = 0; p && i < GROUP; i++) {
        int64_t at = (w->row + i * TILE_SIDE) * TILE_SIDE;
        w->ops->store(&w->t, w->tile + i, emit_at(e, e->f32, p->c, at),
                      emit_i64(e, 4 * TILE_SIDE));
    }
    w->held = NULL;
}

/* Sums of 16 rows from `row` on begin. */
static void sums_begin(Weave *w, const WeaveProduct *p, int64_t row, int tile) {
    if (p->adds)
        load(w, tile, p->c, row * TILE_SIDE, TILE_SIDE);
    else
        w->ops->zero(&w->t, tile);
}

/* Rows of C from `row` on, as many as GROUP tiles have. */
static void group(Weave *w, const WeaveProduct *p, int64_t row, int tile) {
    for (int64_t pair = 0; pair < p->pairs; pair += TILE_SIDE) {
        for (int n = 0; n < gemm_turns(w->parts); n++) {
            const GemmTurn turn = gemm_turn(w->parts, n);
            const bool first = !pair && !n;
            if (turn.next_b) load_b(w, B_TILE + ++w->loads % 2, p, pair, turn.b);
            for (int i = 0; i < GROUP; i++) {
                const int64_t at = row + i * TILE_SIDE;
                if (turn.next_a) load_a(w, A_TILE + i, p, at, pair, turn.a);
                if (first) sums_begin(w, p, at, tile + i);
                dot(w, tile + i, A_TILE + i, B_TILE + w->loads % 2);
            }
            if (first) store_held(w);
        }
    }
    w->held = p;
    w->row = row;
    w->tile = tile;
}

void attn_weave(const Attn *a, const WeaveProduct *product, int n, int units,
                WeaveUnit unit, void *ctx) {
    Emit *e = a->e;
    Weave w = {.t = {e, NULL}, .ops = tile_ops_of(e), .parts = a->tile_parts};
    w.units = units;
    w.unit = unit;
    w.ctx = ctx;
    if (e->tiles == TILES_EMULATED)
        w.t.room = emit_alloca(e, 4 * TILE_REGISTERS * TILE_WORDS);
    for (int i = 0; i < n; i++) {
        const WeaveProduct *p = &product[i];
        check(p->rows % (GROUP * TILE_SIDE) == 0 && p->pairs % TILE_SIDE == 0);
        w.dots_in_all +=
            (int)(p->rows / TILE_SIDE * (p->pairs / TILE_SIDE)) * gemm_turns(w.parts);
    }
    int tile = 0;
    for (int i = 0; i < n; i++) {
        for (int64_t row = 0; row < product[i].rows; row += GROUP * TILE_SIDE) {
            group(&w, &product[i], row, tile);
            tile = GROUP - tile;
        }
    }
    store_held(&w);
}

static bool has_strips(const Attn *a) {
    const AttnShape *s = &a->s;
    const bool plain = a->parts == 1 && a->times > 0;
    if (!a->narrow && s->tk < LEAST_KEYS_OF_F32) return false;
    return a->tiles && plain && s->dim <= MOST_DIM && a->bq >= 4 * ATTN_STRIP;
}

void attn_cut_strips(Attn *a, int64_t queries, int64_t keys) {
    if (!has_strips(a)) return;
    check(queries % (2 * ATTN_STRIP) == 0);
    a->strips = queries / ATTN_STRIP;
    a->q_blocks = divided_up(a->s.tq, queries);
    a->bq = ATTN_STRIP;
    a->bk = keys;
    a->words = (a->s.dim + 1) / 2;
}

int64_t attn_pair_at(const Attn *a, int64_t i) {
    return i / TILE_SIDE * TILE_WORDS * a->tile_parts + i % TILE_SIDE * TILE_SIDE;
}

StripPlace attn_strip_place(const Attn *a, LLVMValueRef scratch, int64_t floats,
                            LLVMValueRef n, LLVMValueRef turn) {
    Emit *e = a->e;
    StripPlace x = {.a = a};
    x.work = attn_f32(a, scratch, emit_muli(e, n, floats));
    x.turn = attn_f32(a, scratch, emit_muli(e, turn, floats));
    return x;
}

LLVMValueRef attn_in_strip(const StripPlace *x, int64_t at) {
    return emit_at(x->a->e, x->a->e->f32, x->work, at);
}

LLVMValueRef attn_in_turn(const StripPlace *x, int64_t at) {
    return emit_at(x->a->e, x->a->e->f32, x->turn, at);
}

StripRows attn_strip_rows(const Attn *a, LLVMValueRef n, LLVMValueRef rows) {
    Emit *e = a->e;
    LLVMValueRef one = emit_i64(e, 1), last = emit_sub(e, rows, one);
    StripRows r = {.lane = emit_muli(e, n, a->bq)};
    r.rows = emit_imini(e, emit_sub(e, rows, r.lane), a->bq);
    r.some = emit_imax(e, r.rows, one);
    r.rows = emit_imax(e, r.rows, emit_i64(e, 0));
    r.from = emit_imin(e, r.lane, last);
    return r;
}

StripMasks attn_strip_masks_of(const Attn *a, LLVMValueRef ctx, int rng, int first,
                               const AttnOrigin *origin, const AttnPlace *p) {
    StripMasks m = {.ahead = attn_ahead(a, origin, p->i0),
                    .rng = emit_slot(a->e, ctx, rng)};
    m.queries = attn_queries(a, ctx, first, origin, p);
    if (a->s.dropout > 0) m.number = attn_number(a, m.rng, origin, p);
    return m;
}

void attn_strip_keep(const Attn *a, const StripMasks *m, const StripAt *at,
                     LLVMValueRef room) {
    Emit *e = a->e;
    if (a->s.dropout == 0) return;
    LLVMValueRef number = emit_plus(e, m->number, at->block, a->bk);
    number = emit_plus(e, number, at->strip, a->bq * a->next_query);
    ATTN_CALL(a, "keep", m->rng, number, room);
}

LLVMValueRef attn_strip_kept(const Attn *a, LLVMValueRef room, int64_t key) {
    Emit *e = a->e;
    if (a->s.dropout == 0) return NULL;
    LLVMValueRef bits = emit_load(e, e->i16, emit_at(e, e->i16, room, key), NULL, 2);
    LLVMTypeRef lanes = emit_vec(LLVMInt1TypeInContext(e->ctx), ATTN_STRIP);
    return LLVMBuildBitCast(e->b, bits, lanes, "");
}

void attn_strip_keep_emit(const Attn *a) {
    Emit *e = a->e;
    Loop l;
    if (a->s.dropout == 0) return;
    attn_func(a, "keep", "pip");
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, a->bk), 1, 0, NULL);
    LLVMValueRef keep =
        attn_keep(a, emit_param(e, 0), emit_add(e, emit_param(e, 1), l.i));
    keep = LLVMBuildBitCast(e->b, keep, e->i16, "");
    emit_store(e, keep, emit_gep(e, e->i16, emit_param(e, 2), l.i), NULL, 2);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* Those of keys from `keys` on. */
static void mask_beyond(const Attn *a, LLVMValueRef s, LLVMValueRef keys) {
    Emit *e = a->e;
    Loop l;
    loop_begin(e, &l, keys, emit_i64(e, a->bk), 1, 0, NULL);
    LLVMValueRef row = attn_f32(a, s, emit_muli(e, l.i, a->bq));
    emit_store(e, attn_score_of_none(a), row, NULL, 4);
    loop_end(e, &l, NULL);
}

void attn_strip_masks(const Attn *a, LLVMValueRef s, const StripAt *at,
                      const StripMasks *m) {
    Emit *e = a->e;
    StripRows r = attn_strip_rows(a, at->strip, m->queries.rows);
    LLVMValueRef j0 = emit_muli(e, at->block, a->bk);
    LLVMValueRef ahead = emit_sub(e, emit_add(e, m->ahead, j0), r.lane);
    AttnQueries q = {NULL, r.rows, m->queries.k_at};
    if (a->s.within) q.first = emit_gep(e, e->i32, m->queries.first, r.lane);
    attn_block_masks(a, s, emit_i64(e, a->bk), ahead, j0, &q);
    if (a->s.tk % a->bk) mask_beyond(a, s, emit_sub(e, emit_i64(e, a->s.tk), j0));
}

/* Strips whose last query is before the first key of the block; two stay, so that none follows upon
 * itself. */
static LLVMValueRef skipped(const Attn *a, LLVMValueRef block, const StripMasks *m) {
    Emit *e = a->e;
    LLVMValueRef zero = emit_i64(e, 0), most = emit_i64(e, a->strips - 2);
    if (!a->s.causal) return zero;
    LLVMValueRef ahead = emit_imax(e, emit_plus(e, m->ahead, block, a->bk), zero);
    return emit_imin(e, emit_divi(e, ahead, ATTN_STRIP), most);
}

static LLVMValueRef strips_in_all(const Attn *a, LLVMValueRef from, LLVMValueRef to,
                                  const StripMasks *m) {
    Emit *e = a->e;
    LLVMValueRef all = emit_muli(e, emit_sub(e, to, from), a->strips);
    Loop l;
    if (!a->s.causal) return all;
    loop_begin(e, &l, from, to, 1, 1, &all);
    all = emit_sub(e, l.carry[0], skipped(a, l.i, m));
    loop_end(e, &l, &all);
    return l.carry[0];
}

/* The n-th strip, of which block, strip and the one before are known. */
static void complete(const Attn *a, StripAt *at, LLVMValueRef n, LLVMValueRef to,
                     const StripMasks *m) {
    Emit *e = a->e;
    LLVMValueRef one = emit_i64(e, 1), end = emit_sub(e, to, one);
    at->skipped = skipped(a, at->block, m);
    at->next_strip = emit_add(e, at->strip, one);
    LLVMValueRef ends = emit_icmp(e, LLVMIntEQ, at->next_strip, emit_i64(e, a->strips));
    LLVMValueRef next = emit_imin(e, emit_add(e, at->block, one), end);
    at->next_block = emit_select(e, ends, next, at->block);
    at->next_strip = emit_select(e, ends, skipped(a, next, m), at->next_strip);
    at->turn = emit_remi(e, n, 2);
    at->other = emit_sub(e, one, at->turn);
}

static void walk(const Attn *a, LLVMValueRef from, LLVMValueRef to, const StripMasks *m,
                 const StripWalk *w) {
    Emit *e = a->e;
    LLVMValueRef zero = emit_i64(e, 0), all = strips_in_all(a, from, to, m);
    StripAt at = {.block = from, .strip = skipped(a, from, m), .first = true};
    at.last_block = at.last_strip = zero;
    complete(a, &at, zero, to, m);
    w->begin(w->ctx,
             &(StripAt){.next_block = at.block, .next_strip = at.strip, .other = zero});
    w->each(w->ctx, &at);
    LLVMValueRef state[] = {at.block, at.strip, at.next_block, at.next_strip};
    Loop l;
    loop_begin(e, &l, emit_i64(e, 1), all, 1, 4, state);
    at = (StripAt){.last_block = l.carry[0],
                   .last_strip = l.carry[1],
                   .block = l.carry[2],
                   .strip = l.carry[3]};
    complete(a, &at, l.i, to, m);
    w->each(w->ctx, &at);
    LLVMValueRef next[] = {at.block, at.strip, at.next_block, at.next_strip};
    loop_end(e, &l, next);
    LLVMValueRef last = emit_subi(e, all, 1);
    w->end(w->ctx, &(StripAt){.last_block = l.carry[0],
                              .last_strip = l.carry[1],
                              .other = emit_remi(e, last, 2)});
}

void attn_walk_strips(const Attn *a, const AttnRange *keys, const StripMasks *m,
                      const StripWalk *w) {
    Emit *e = a->e;
    LLVMValueRef bk = emit_i64(e, a->bk), zero = emit_i64(e, 0);
    LLVMValueRef from = emit_div(e, keys->from, bk);
    LLVMValueRef to = emit_addi(e, keys->to, a->bk - 1);
    to = emit_div(e, emit_imax(e, to, zero), bk);
    If some;
    if_begin(e, &some, emit_icmp(e, LLVMIntSGT, to, from));
    walk(a, from, to, m, w);
    if_end(e, &some);
}
