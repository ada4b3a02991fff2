/* attention_grad_strips.c - attention backward strip by strip: while P and dS of 16 queries are made,
 * tile registers have S and dP of the next 16 and dQ of the 16 before; behind the last strip of a
 * block dV and dK follow. All operands are in tiles, with zeros for what the last blocks lack, and
 * sums in strips: of 16 queries, or of 16 numbers of a head for dV and dK. */
#include "codegen/attention_backward.h"
#include "codegen/attention_pack.h"
#include "codegen/attention_weave.h"
#include "codegen/tile_ops.h"
#include <math.h>

/* More queries make fewer passes over the sums of keys. */
enum { KEYS = ATTN_GRAD_STRIP_KEYS, MOST_QUERIES = 128 };

/* A thread's scratch, in floats from its start: a strip's part, and what all have. p, ds: of a block
 * in tiles; ds_pairs: a strip of pairs of keys. q_pairs, do_pairs: strips of pairs of queries. */
typedef struct StripScratch {
    int64_t q, out, s, dp, ds_pairs, dq, delta, lse, keep, strip;
    int64_t p, ds, q_pairs, do_pairs, dk, dv, k_rows, v_rows, k_turned, floats;
} StripScratch;

int64_t attn_grad_strip_queries(const AttnShape *s) {
    return round_up(MIN(s->tq, MOST_QUERIES), 2 * ATTN_STRIP);
}

static StripScratch scratch_of(const AttnShape *s) {
    StripScratch x = {0};
    const int64_t strips = attn_grad_strip_queries(s) / ATTN_STRIP;
    const int64_t parts = attn_tile_parts(s);
    const int64_t dim = attn_tiled_dim(s), words = dim / 2 * parts, n = ATTN_STRIP;
    const int64_t keys = round_up(s->tk, KEYS);
    x.out = x.q + words * n;
    x.s = x.out + words * n;
    x.dp = x.s + KEYS * n;
    x.ds_pairs = x.dp + KEYS * n;
    x.dq = x.ds_pairs + KEYS / 2 * parts * n;
    x.delta = x.dq + dim * n;
    x.lse = x.delta + n;
    x.keep = x.lse + n;
    x.strip = align_up(x.keep + KEYS / 2);
    x.p = x.strip * strips;
    x.ds = x.p + KEYS * strips * parts * n / 2;
    x.q_pairs = x.ds + KEYS * strips * parts * n / 2;
    x.do_pairs = x.q_pairs + words * strips * n;
    x.dk = x.do_pairs + words * strips * n;
    x.dv = x.dk + dim * keys;
    x.k_rows = x.dv + dim * keys;
    x.v_rows = x.k_rows + words * keys;
    x.k_turned = x.v_rows + words * keys;
    x.floats = align_up(x.k_turned + keys / KEYS * attn_tiled_words(s, KEYS));
    return x;
}

int64_t attn_grad_strip_floats(const AttnShape *s) {
    return scratch_of(s).floats;
}

/* A block of queries on its way over the keys. */
typedef struct Queries {
    const Attn *a;
    StripScratch x;
    LLVMValueRef work;
    LLVMValueRef left; /* queries from its first one on */
    StripMasks at;
} Queries;

typedef struct Strip {
    const Queries *q;
    StripPlace at;
    LLVMValueRef delta, lse;
    LLVMValueRef p, ds; /* its words of the first row in tiles */
} Strip;

static LLVMValueRef shared(const Queries *q, int64_t at) {
    return emit_at(q->a->e, q->a->e->f32, q->work, at);
}

static StripPlace place_of(const Queries *q, LLVMValueRef n, LLVMValueRef turn) {
    return attn_strip_place(q->a, q->work, q->x.strip, n, turn);
}

/* Tiles of block `block` that begin at float `at` of the scratch. */
static LLVMValueRef tiles_at(const Queries *q, int64_t at, LLVMValueRef block) {
    return attn_f32(q->a, shared(q, at), attn_tiles_before(q->a, block));
}

/* S of Q, or dP of dO. */
static WeaveProduct scores_of(const Queries *q, LLVMValueRef block, LLVMValueRef n,
                              LLVMValueRef turn, bool of_values) {
    const Attn *a = q->a;
    StripPlace x = place_of(q, n, turn);
    int64_t rows = of_values ? q->x.v_rows : q->x.k_rows;
    return (WeaveProduct){.a = tiles_at(q, rows, block),
                          .b = attn_in_strip(&x, of_values ? q->x.out : q->x.q),
                          .c = attn_in_turn(&x, of_values ? q->x.dp : q->x.s),
                          .rows = a->bk,
                          .pairs = attn_tiled_dim(&a->s) / 2};
}

static WeaveProduct query_sums_of(const Queries *q, LLVMValueRef block, LLVMValueRef n,
                                  LLVMValueRef turn) {
    const Attn *a = q->a;
    StripPlace x = place_of(q, n, turn);
    return (WeaveProduct){.a = tiles_at(q, q->x.k_turned, block),
                          .b = attn_in_turn(&x, q->x.ds_pairs),
                          .c = attn_in_strip(&x, q->x.dq),
                          .rows = attn_tiled_dim(&a->s),
                          .pairs = a->bk / 2,
                          .adds = true};
}

/* Strip d of dV or dK: numbers from 16 d on of the head. */
static WeaveProduct key_sums_of(const Queries *q, LLVMValueRef block, LLVMValueRef d,
                                bool of_values) {
    const Attn *a = q->a;
    Emit *e = a->e;
    const int64_t pairs = a->strips * ATTN_STRIP / 2, keys = round_up(a->s.tk, a->bk);
    LLVMValueRef b = shared(q, of_values ? q->x.do_pairs : q->x.q_pairs);
    LLVMValueRef c = shared(q, of_values ? q->x.dv : q->x.dk);
    LLVMValueRef row = emit_muli(e, block, a->bk);
    row = emit_plus(e, row, d, keys);
    return (WeaveProduct){
        .a = shared(q, of_values ? q->x.p : q->x.ds),
        .b = attn_f32(a, b, emit_muli(e, d, pairs * a->tile_parts * ATTN_STRIP)),
        .c = attn_f32(a, c, emit_muli(e, row, ATTN_STRIP)),
        .rows = a->bk,
        .pairs = pairs,
        .adds = true};
}

static void key_sums(const Queries *q, LLVMValueRef block) {
    const Attn *a = q->a;
    Emit *e = a->e;
    Loop d;
    loop_begin(e, &d, emit_i64(e, 0), emit_i64(e, divided_up(a->s.dim, ATTN_STRIP)), 1, 0,
               NULL);
    WeaveProduct product[] = {key_sums_of(q, block, d.i, true),
                              key_sums_of(q, block, d.i, false)};
    attn_weave(a, product, 2, 0, NULL, NULL);
    loop_end(e, &d, NULL);
}

/* Where a row of P and dS in tiles has the words of the first strip. */
static int64_t row_in_tiles(const Attn *a, int64_t key) {
    const int64_t block = 2 * TILE_SIDE, words = a->strips * ATTN_STRIP / 2;
    return key / block * (words * a->tile_parts * block) + key % block * TILE_SIDE;
}

/* From there to those of strip n. */
static LLVMValueRef words_of_strip(const Attn *a, LLVMValueRef n) {
    Emit *e = a->e;
    LLVMValueRef two = emit_i64(e, 2), half = emit_i64(e, ATTN_STRIP / 2);
    LLVMValueRef step = emit_i64(e, 2 * TILE_WORDS * a->tile_parts);
    LLVMValueRef at = emit_mul(e, emit_div(e, n, two), step);
    return emit_add(e, at, emit_mul(e, emit_rem(e, n, two), half));
}

/* Rows `key` and the next one of a part of P or dS in tiles, which are numbers of bf16. */
static void store_rows(const Strip *x, LLVMValueRef tiles, int64_t key, int part,
                       LLVMValueRef both) {
    Emit *e = x->q->a->e;
    for (int n = 0; n < 2; n++) {
        const int64_t at = row_in_tiles(x->q->a, key + n) + part * 2 * TILE_WORDS;
        emit_store(e, emit_part(e, both, n * ATTN_STRIP, ATTN_STRIP),
                   emit_at(e, e->f32, tiles, at), NULL, 2);
    }
}

/* Of P or dS of two keys from `key` on rows in tiles, and in pairs, if there is room for them. */
static void store_both(const Strip *x, LLVMValueRef tiles, int64_t key,
                       const LLVMValueRef *row, LLVMValueRef pairs) {
    const Attn *a = x->q->a;
    Emit *e = a->e;
    LLVMTypeRef halves = emit_vec(e->i16, 2 * ATTN_STRIP);
    LLVMValueRef part[2][BF16_PARTS];
    if (pairs) attn_store_pairs(a, row, pairs);
    if (a->narrow) {
        store_rows(x, tiles, key, 0, emit_to_bf16_both(e, row[0], row[1]));
        return;
    }
    for (int i = 0; i < 2; i++) emit_split_bf16(e, row[i], part[i]);
    for (int q = 0; q < a->tile_parts; q++) {
        LLVMValueRef both = emit_pair_up_parts(e, part[0][q], part[1][q], true);
        store_rows(x, tiles, key, q, LLVMBuildBitCast(e->b, both, halves, ""));
    }
}

static void two_keys(void *ctx, int i) {
    const Strip *x = ctx;
    const Queries *q = x->q;
    const Attn *a = q->a;
    Soft soft[2];
    for (int n = 0; n < 2; n++) {
        const int64_t key = 2 * i + n, at = key * ATTN_STRIP;
        soft[n] = attn_soft(a, attn_in_turn(&x->at, q->x.s + at),
                            attn_in_turn(&x->at, q->x.dp + at), x->lse, x->delta,
                            attn_strip_kept(a, attn_in_turn(&x->at, q->x.keep), key));
    }
    LLVMValueRef p[] = {soft[0].p, soft[1].p}, ds[] = {soft[0].ds, soft[1].ds};
    store_both(x, x->p, 2 * i, p, NULL);
    store_both(x, x->ds, 2 * i, ds,
               attn_in_turn(&x->at, q->x.ds_pairs + attn_pair_at(a, i)));
}

/* P and dS of the first strips, which were left out. */
static void clear_skipped(const Queries *q, LLVMValueRef strips) {
    const Attn *a = q->a;
    Emit *e = a->e;
    const int64_t at[] = {q->x.p, q->x.ds};
    LLVMTypeRef half = emit_vec(e->i16, ATTN_STRIP);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), strips, 1, 0, NULL);
    for (int i = 0; i < ARRAY_LEN(at); i++) {
        LLVMValueRef rows = attn_f32(a, shared(q, at[i]), words_of_strip(a, l.i));
        for (int64_t n = 0; n < a->bk * a->tile_parts; n++) {
            const int64_t part = n / a->bk, key = n % a->bk;
            LLVMValueRef to =
                emit_at(e, e->f32, rows, row_in_tiles(a, key) + part * 2 * TILE_WORDS);
            emit_store(e, LLVMConstNull(half), to, NULL, 2);
        }
    }
    loop_end(e, &l, NULL);
}

static void strip(void *ctx, const StripAt *at) {
    const Queries *q = ctx;
    const Attn *a = q->a;
    Emit *e = a->e;
    Strip x = {.q = q, .at = place_of(q, at->strip, at->turn)};
    LLVMValueRef tile = words_of_strip(a, at->strip);
    attn_strip_keep(a, &q->at, at, attn_in_turn(&x.at, q->x.keep));
    x.p = attn_f32(a, shared(q, q->x.p), tile);
    x.ds = attn_f32(a, shared(q, q->x.ds), tile);
    x.delta = emit_load(e, e->vf32, attn_in_strip(&x.at, q->x.delta), NULL, 4);
    x.lse = emit_load(e, e->vf32, attn_in_strip(&x.at, q->x.lse), NULL, 4);
    attn_strip_masks(a, attn_in_turn(&x.at, q->x.s), at, &q->at);
    WeaveProduct product[] = {
        scores_of(q, at->next_block, at->next_strip, at->other, false),
        scores_of(q, at->next_block, at->next_strip, at->other, true),
        query_sums_of(q, at->last_block, at->last_strip, at->other)};
    attn_weave(a, product, at->first ? 2 : 3, (int)a->bk / 2, two_keys, &x);
    If last;
    LLVMValueRef end = emit_i64(e, a->strips - 1);
    if_begin(e, &last, emit_icmp(e, LLVMIntEQ, at->strip, end));
    clear_skipped(q, at->skipped);
    key_sums(q, at->block);
    if_end(e, &last);
}

static void first_scores(void *ctx, const StripAt *at) {
    const Queries *q = ctx;
    WeaveProduct scores[] = {
        scores_of(q, at->next_block, at->next_strip, at->other, false),
        scores_of(q, at->next_block, at->next_strip, at->other, true)};
    attn_weave(q->a, scores, 2, 0, NULL, NULL);
}

static void last_sums(void *ctx, const StripAt *at) {
    const Queries *q = ctx;
    WeaveProduct sums = query_sums_of(q, at->last_block, at->last_strip, at->other);
    attn_weave(q->a, &sums, 1, 0, NULL, NULL);
}

/* The tensors of a block of queries, from its first one on. */
typedef struct Rows {
    LLVMValueRef q, d_o, o, lse, dq;
} Rows;

static Rows rows_of(const Attn *a, LLVMValueRef ctx, const AttnPlace *p) {
    Emit *e = a->e;
    return (Rows){attn_tensor(a, ctx, SLOT_Q, p->q_at),
                  attn_tensor(a, ctx, SLOT_DO, p->q_at),
                  attn_tensor(a, ctx, SLOT_O, p->q_at),
                  attn_f32(a, emit_slot(e, ctx, SLOT_LSE), p->row),
                  attn_tensor(a, ctx, SLOT_DQ, p->q_at)};
}

/* Rows of strip n of the next block of queries, into the second cache. */
static void fetch_next(const Queries *q, const Rows *t, LLVMValueRef n) {
    const Attn *a = q->a;
    Emit *e = a->e;
    const LLVMValueRef tensor[] = {t->q, t->d_o, t->o};
    If there;
    const int64_t block = a->strips * a->bq;
    LLVMValueRef all = emit_subi(e, q->left, block);
    if_begin(e, &there, emit_icmp(e, LLVMIntSGE, all, emit_i64(e, block)));
    LLVMValueRef at = emit_plus(e, emit_i64(e, block * a->q_row), n, a->bq * a->q_row);
    for (int i = 0; i < ARRAY_LEN(tensor); i++)
        attn_fetch(a, attn_element(a, tensor[i], at), emit_i64(e, a->bq), a->q_row);
    if_end(e, &there);
}

/* Strip n to scratch. */
static void begin(const Queries *q, const Rows *t, LLVMValueRef n) {
    const Attn *a = q->a;
    Emit *e = a->e;
    StripPlace x = place_of(q, n, n);
    StripRows r = attn_strip_rows(a, n, q->at.queries.rows);
    LLVMValueRef from = emit_muli(e, r.from, a->q_row);
    LLVMValueRef d_o = attn_element(a, t->d_o, from), scale = emit_f32(e, a->s.scale);
    LLVMValueRef q_scale = emit_f32(e, a->s.scale * M_LOG2E);
    fetch_next(q, t, n);
    LLVMValueRef lse = attn_f32(a, t->lse, emit_muli(e, r.from, a->s.heads));
    LLVMValueRef delta[] = {d_o,
                            attn_element(a, t->o, from),
                            lse,
                            attn_in_strip(&x, q->x.delta),
                            attn_in_strip(&x, q->x.lse),
                            r.rows};
    attn_call(a, "delta", delta, 6);
    LLVMValueRef pack_q[] = {attn_element(a, t->q, from), attn_in_strip(&x, q->x.q),
                             r.some, q_scale};
    LLVMValueRef pack_do[] = {d_o, attn_in_strip(&x, q->x.out), r.some, scale};
    attn_call(a, "pack", pack_q, 4);
    attn_call(a, "pack", pack_do, 4);
    LLVMValueRef floats = emit_i64(e, attn_tiled_dim(&a->s) * ATTN_STRIP);
    ATTN_CALL(a, "clear", attn_in_strip(&x, q->x.dq), floats);
}

/* dQ of strip n, rounded. */
static void finish(const Queries *q, const Rows *t, LLVMValueRef n) {
    const Attn *a = q->a;
    Emit *e = a->e;
    StripPlace x = place_of(q, n, n);
    StripRows r = attn_strip_rows(a, n, q->at.queries.rows);
    LLVMValueRef to = attn_element(a, t->dq, emit_muli(e, r.lane, a->q_row));
    ATTN_CALL(a, "round_q", attn_in_strip(&x, q->x.dq), to, r.rows);
}

/* name.queries(ctx, work, b, h, block): one block of queries of head h. Its strips are packed, and
 * Q and dO in pairs; strips walk over the keys; dQ is rounded. */
static void queries_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "queries", "ppiii");
    LLVMValueRef ctx = emit_param(e, 0), work = emit_param(e, 1), b = emit_param(e, 2);
    LLVMValueRef zero = emit_i64(e, 0), strips = emit_i64(e, a->strips);
    AttnOrigin origin = attn_origin(a, ctx, SLOT_Q_AT, SLOT_K_AT, b);
    AttnPlace p = attn_block_place(a, b, emit_param(e, 3), emit_param(e, 4));
    Rows t = rows_of(a, ctx, &p);
    Queries q = {.a = a, .x = scratch_of(&a->s), .work = work};
    q.left = emit_sub(e, emit_i64(e, a->s.tq), p.i0);
    q.at = attn_strip_masks_of(a, ctx, SLOT_RNG, SLOT_FIRST, &origin, &p);
    AttnRange range = attn_range(a, &origin, p.i0, p.rows);
    Loop n;
    loop_begin(e, &n, zero, strips, 1, 0, NULL);
    begin(&q, &t, n.i);
    loop_end(e, &n, NULL);
    ATTN_CALL(a, "query_pairs", t.q, shared(&q, q.x.q_pairs), p.rows);
    ATTN_CALL(a, "query_pairs", t.d_o, shared(&q, q.x.do_pairs), p.rows);
    const StripWalk walk = {first_scores, strip, last_sums, &q};
    attn_walk_strips(a, &range, &q.at, &walk);
    loop_begin(e, &n, zero, strips, 1, 0, NULL);
    finish(&q, &t, n.i);
    loop_end(e, &n, NULL);
    emit_ret(e, NULL);
}

/* Keys and values of the kv head that starts at element `kv` to tiles, but those that no query
 * sees. */
static void keys_to_tiles(const Queries *q, LLVMValueRef ctx, LLVMValueRef kv,
                          const AttnOrigin *origin) {
    const Attn *a = q->a;
    Emit *e = a->e;
    Loop l;
    const int64_t last = (a->q_blocks - 1) * a->strips * a->bq;
    AttnRange seen =
        attn_range(a, origin, emit_i64(e, last), emit_i64(e, a->s.tq - last));
    loop_begin(e, &l, emit_i64(e, 0), seen.to, a->bk, 0, NULL);
    LLVMValueRef keys = emit_imini(e, emit_sub(e, seen.to, l.i), a->bk);
    LLVMValueRef block = emit_divi(e, l.i, a->bk);
    LLVMValueRef at = emit_plus(e, kv, l.i, a->kv_row);
    LLVMValueRef k = attn_tensor(a, ctx, SLOT_K, at);
    LLVMValueRef v = attn_tensor(a, ctx, SLOT_V, at);
    LLVMValueRef k_rows = tiles_at(q, q->x.k_rows, block);
    LLVMValueRef v_rows = tiles_at(q, q->x.v_rows, block);
    LLVMValueRef turned = tiles_at(q, q->x.k_turned, block);
    LLVMValueRef next = emit_i64(e, a->bk * a->kv_row);
    attn_fetch(a, attn_element(a, k, next), emit_i64(e, a->bk), a->kv_row);
    attn_fetch(a, attn_element(a, v, next), emit_i64(e, a->bk), a->kv_row);
    ATTN_CALL(a, "row_tiles", k, k_rows, keys);
    ATTN_CALL(a, "row_tiles", v, v_rows, keys);
    ATTN_CALL(a, "turn_keys", k, turned, keys);
    loop_end(e, &l, NULL);
}

/* name.head(ctx, work, pair, ...): a pair of sequence and kv head, with all query heads that use
 * it; keys are not in parts. */
static void head_emit(const Attn *a) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    LLVMValueRef zero = emit_i64(e, 0), group = emit_i64(e, s->heads / s->kv_heads);
    LLVMValueRef kv_heads = emit_i64(e, s->kv_heads), keys = emit_i64(e, s->tk);
    attn_func(a, "head", "ppiiiii");
    LLVMValueRef ctx = emit_param(e, 0), work = emit_param(e, 1), pair = emit_param(e, 2);
    LLVMValueRef b = emit_div(e, pair, kv_heads), kv_head = emit_rem(e, pair, kv_heads);
    LLVMValueRef kv = attn_kv_at(a, b, kv_head);
    Queries q = {.a = a, .x = scratch_of(s), .work = work};
    AttnOrigin origin = attn_origin(a, ctx, SLOT_Q_AT, SLOT_K_AT, b);
    LLVMValueRef all = emit_i64(e, attn_tiled_dim(s) * round_up(s->tk, a->bk));
    ATTN_CALL(a, "clear", shared(&q, q.x.dk), all);
    ATTN_CALL(a, "clear", shared(&q, q.x.dv), all);
    keys_to_tiles(&q, ctx, kv, &origin);
    Loop g, i;
    loop_begin(e, &g, zero, group, 1, 0, NULL);
    LLVMValueRef h = emit_add(e, emit_mul(e, kv_head, group), g.i);
    loop_begin(e, &i, zero, emit_i64(e, a->q_blocks), 1, 0, NULL);
    ATTN_CALL(a, "queries", ctx, work, b, h, i.i);
    loop_end(e, &i, NULL);
    loop_end(e, &g, NULL);
    LLVMValueRef dk = attn_tensor(a, ctx, SLOT_DK, kv);
    LLVMValueRef dv = attn_tensor(a, ctx, SLOT_DV, kv);
    ATTN_CALL(a, "round_kv", shared(&q, q.x.dk), dk, keys);
    ATTN_CALL(a, "round_kv", shared(&q, q.x.dv), dv, keys);
    emit_ret(e, NULL);
}

void attn_grad_strips_emit(const Attn *a) {
    attn_row_tiles_emit(a, "row_tiles");
    attn_strip_keep_emit(a);
    attn_tiles_emit(a, "turn_keys", false);
    attn_pair_strips_emit(a, "query_pairs");
    attn_turn_emit(a);
    attn_round_strips_emit(a, "round_kv");
    attn_zeros_emit(a, "clear");
    queries_emit(a);
    head_emit(a);
}
