/* attention.c - attention forward; see attention.h. Per block of queries: Q is packed to
 * [dim][queries] times scale * log2(e), so softmax is a power of two; then for each block
 * of keys S = K Q, running maximum and sum per lane, and O[dim][queries] = O * decay +
 * V S, decay being what the larger maximum does to older sums.
 *   With bf16 in pairs (Attn.narrow) the factor comes with the softmax, as Q would lose digits; blocks of K and
 * V are copied to scratch, the latter in pairs of keys, and so is S once it is rounded. Tile
 * registers read K where it is, take V in tiles, and go on with older sums as they are until a
 * maximum has grown much. Most shapes go through them in strips, and f32 only so: attention_strips.c.
 * Sums, maximum and lse are of what was not rounded. */
#include "codegen/attention_forward.h"
#include "codegen/attention_pack.h"
#include "codegen/attention_weave.h"
#include <math.h>

/* An item is a pair or, where values are kept, some of a head: the pairs of every so many. */
static int64_t items_a_head(const Attn *a) {
    enum { ITEMS_A_THREAD = 8 }; /* at least, where there are pairs for it */
    int64_t heads = a->s.batch * a->s.heads, pairs = attn_forward_pairs(a->q_blocks);
    if (!attn_keeps_values(a)) return pairs;
    int64_t wanted = a->s.threads > 1 ? (int64_t)ITEMS_A_THREAD * a->s.threads : 1;
    return MIN(pairs, divided_up(wanted, heads));
}

/* A thread's scratch, or with parts that of every block of queries and part, as their sums
 * are joined in the end. */
static int64_t forward_floats(const AttnShape *s, int threads, int vl) {
    int64_t bq = attn_block_queries(s, vl), q_blocks = divided_up(s->tq, bq);
    int64_t parts = attn_forward_parts(s, q_blocks);
    int64_t rooms = parts > 1 ? s->batch * s->heads * q_blocks * parts : threads;
    return rooms * attn_forward_floats(s, bq);
}

size_t attention_workspace_bytes(const AttnShape *s, bool grad, int threads, int vl) {
    int64_t floats = grad               ? attn_grad_floats(s, threads, vl)
                     : attn_is_token(s) ? attn_token_floats(s, vl)
                                        : forward_floats(s, threads, vl);
    return array_bytes((size_t)floats, sizeof(float));
}

/* name.PART(v, s, out, decay, keys): out[dim][bq] = out * decay + V S, or out + V S (adds);
 * with bf16 of pairs of keys, of which there are `keys`. */
static void values_emit(const Attn *a, const char *part, bool adds) {
    Emit *e = a->e;
    GemmStrides s = {1, a->narrow ? a->s.dim : attn_key_row(a), a->bq, a->bq, a->narrow};
    if (a->tiles) s.a_block = attn_tiled_block(a);
    attn_func(a, part, "ppppi");
    GemmData data = {emit_param(e, 0), emit_param(e, 1), emit_param(e, 2)};
    GemmSize size = {emit_i64(e, a->s.dim), emit_i64(e, a->bq), emit_param(e, 4)};
    if (!adds) data.scale = emit_param(e, 3);
    gemm_emit(e, &s, adds ? GEMM_ADD : GEMM_SCALE, &data, &size);
    emit_ret(e, NULL);
}

/* One block of queries of one head, on its way over the keys. */
typedef struct Block {
    LLVMValueRef work, q, k, v;
    LLVMValueRef packed, scores, decay; /* in work */
    LLVMValueRef rng, number;           /* number: NULL without dropout */
    LLVMValueRef ahead;
    AttnQueries queries;
} Block;

/* The block's queries stand at element q_at of their tensor, the keys at kv_at. */
static Block block_of(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                      LLVMValueRef q_at, LLVMValueRef kv_at) {
    Emit *e = a->e;
    ForwardScratch x = attn_forward_scratch(a);
    Block b = {.work = work};
    b.k = attn_tensor(a, ctx, FORWARD_K, kv_at);
    b.v = attn_tensor(a, ctx, FORWARD_V, kv_at);
    b.q = attn_tensor(a, ctx, FORWARD_Q, q_at);
    b.packed = emit_at(e, e->f32, work, x.packed);
    b.scores = emit_at(e, e->f32, work, x.s);
    b.decay = emit_at(e, e->f32, work, x.decay);
    return b;
}

/* Scores become probabilities in their place or, if they are rounded at once, at `rounded`;
 * some are dropped. */
static void soften(const Attn *a, const Block *b, LLVMValueRef from, LLVMValueRef keys,
                   LLVMValueRef rounded) {
    Emit *e = a->e;
    ForwardScratch x = attn_forward_scratch(a);
    ATTN_CALL(a, "softmax", b->scores, keys, emit_at(e, e->f32, b->work, x.max),
              emit_at(e, e->f32, b->work, x.sum), b->decay, rounded);
    if (!b->number) return;
    LLVMValueRef drop[] = {b->scores, keys, b->rng, emit_add(e, b->number, from)};
    attn_call(a, "drop", drop, 4);
}

/* Values in pairs of keys, of bf16: those that are kept, or copied from v to scratch. */
static LLVMValueRef value_pairs(const Attn *a, const Block *b, LLVMValueRef v,
                                LLVMValueRef from, LLVMValueRef keys) {
    if (attn_keeps_values(a)) return attn_kept_values(a, b->work, from);
    LLVMValueRef pairs = emit_at(a->e, a->e->f32, b->work, attn_forward_scratch(a).v);
    ATTN_CALL(a, "pairs", v, pairs, keys);
    return pairs;
}

/* O = O * decay + V P; with tile registers without decay where no maximum has grown. turns: how
 * many products a sum has, keys or pairs of them. */
static void add_values(const Attn *a, const Block *b, LLVMValueRef v, LLVMValueRef p,
                       LLVMValueRef turns) {
    Emit *e = a->e;
    ForwardScratch x = attn_forward_scratch(a);
    LLVMValueRef values[] = {v, p, emit_at(e, e->f32, b->work, x.out), b->decay, turns};
    If moved;
    if (a->tiles) {
        LLVMValueRef any =
            emit_load(e, e->i32, emit_at(e, e->f32, b->work, x.moved), NULL, 4);
        LLVMValueRef none = LLVMConstNull(e->i32);
        if_begin(e, &moved, emit_icmp(e, LLVMIntEQ, any, none));
        attn_call(a, "more_values", values, 5);
        if_else(e, &moved);
    }
    attn_call(a, "values", values, 5);
    if (a->tiles) if_end(e, &moved);
}

/* Copies rows of keys or values to scratch. */
static LLVMValueRef rows_of(const Attn *a, LLVMValueRef from, LLVMValueRef to,
                            LLVMValueRef keys) {
    ATTN_CALL(a, "rows", from, to, keys);
    return to;
}

/* One block of `keys` keys, the first of them `from`: scores, masks, softmax, sums of values. Of
 * bf16 rows of keys go to scratch before the scores, pairs of values and of rounded
 * probabilities behind softmax, each where products do not take it as it is. */
static void keys_emit(const Attn *a, const Block *b, LLVMValueRef from,
                      LLVMValueRef keys) {
    Emit *e = a->e;
    ForwardScratch x = attn_forward_scratch(a);
    LLVMValueRef at = emit_muli(e, from, a->kv_row);
    LLVMValueRef ahead = emit_add(e, b->ahead, from);
    LLVMValueRef k = attn_element(a, b->k, at), v = attn_element(a, b->v, at);
    if (attn_keeps_values(a) && a->copies) {
        k = attn_kept_keys(a, b->work, from);
        v = attn_kept_values(a, b->work, from);
    } else if (a->copies || (a->narrow && !a->rows_in_place)) {
        k = rows_of(a, k, emit_at(e, e->f32, b->work, x.k), keys);
        if (a->copies) v = rows_of(a, v, emit_at(e, e->f32, b->work, x.v), keys);
    }
    ATTN_CALL(a, "scores", k, b->packed, b->scores, keys);
    attn_block_masks(a, b->scores, keys, ahead, from, &b->queries);
    LLVMValueRef rounded = emit_at(e, e->f32, b->work, x.p);
    soften(a, b, from, keys, rounded);
    if (!a->narrow) {
        add_values(a, b, v, b->scores, keys);
        return;
    }
    v = value_pairs(a, b, v, from, keys);
    if (!attn_rounds_at_once(a)) ATTN_CALL(a, "narrow", b->scores, keys, rounded);
    LLVMValueRef pairs = emit_divi(e, emit_addi(e, keys, 1), 2);
    add_values(a, b, v, rounded, pairs);
}

/* name.queries(ctx, work, bh, block, part): one block of queries of one head against a
 * part of its keys; finished if there is no other. */
static void queries_emit(const Attn *a) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    attn_func(a, "queries", "ppiii");
    LLVMValueRef ctx = emit_param(e, 0), work = emit_param(e, 1);
    AttnPlace p = attn_place(a, emit_param(e, 2), emit_param(e, 3));
    AttnOrigin origin = attn_origin(a, ctx, FORWARD_Q_AT, FORWARD_K_AT, p.b);
    Block at = block_of(a, ctx, work, p.q_at, p.kv_at);
    LLVMValueRef pack[] = {at.q, at.packed, p.rows, emit_f32(e, s->scale * M_LOG2E)};
    attn_call(a, "pack", pack, 4);
    ATTN_CALL(a, "start", work);
    AttnRange range = attn_range(a, &origin, p.i0, p.rows);
    range = attn_part(a, range, a->bk, emit_param(e, 4));
    at.queries = attn_queries(a, ctx, FORWARD_FIRST, &origin, &p);
    at.rng = emit_slot(a->e, ctx, FORWARD_RNG);
    if (s->dropout > 0) at.number = attn_number(a, at.rng, &origin, &p);
    at.ahead = attn_ahead(a, &origin, p.i0);
    Loop l;
    loop_begin(e, &l, range.from, range.to, a->bk, 0, NULL);
    LLVMValueRef keys = emit_imini(e, emit_sub(e, range.to, l.i), a->bk);
    keys_emit(a, &at, l.i, keys);
    loop_end(e, &l, NULL);
    if (a->parts == 1) attn_finish(a, ctx, work, &p, emit_i64(e, 0), p.rows);
    emit_ret(e, NULL);
}

static void pair_emit(const Attn *a, LLVMValueRef ctx, LLVMValueRef work, LLVMValueRef bh,
                      LLVMValueRef low) {
    Emit *e = a->e;
    LLVMValueRef whole = emit_i64(e, 0);
    LLVMValueRef high = emit_sub(e, emit_i64(e, a->q_blocks - 1), low);
    ATTN_CALL(a, "queries", ctx, work, bh, low, whole);
    If two;
    if_begin(e, &two, emit_icmp(e, LLVMIntNE, low, high));
    ATTN_CALL(a, "queries", ctx, work, bh, high, whole);
    if_end(e, &two);
}

/* Values of all keys that the head's block of queries sees, and those before it. */
static void keep_values(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                        LLVMValueRef bh, LLVMValueRef block) {
    Emit *e = a->e;
    AttnPlace p = attn_place(a, bh, block);
    AttnOrigin origin = attn_origin(a, ctx, FORWARD_Q_AT, FORWARD_K_AT, p.b);
    AttnRange range = attn_range(a, &origin, p.i0, p.rows);
    Loop l;
    loop_begin(e, &l, range.from, range.to, a->bk, 0, NULL);
    LLVMValueRef at = emit_plus(e, p.kv_at, l.i, a->kv_row);
    LLVMValueRef keys = emit_imini(e, emit_sub(e, range.to, l.i), a->bk);
    LLVMValueRef args[] = {attn_tensor(a, ctx, FORWARD_V, at),
                           attn_kept_values(a, work, l.i), keys};
    LLVMValueRef k = attn_tensor(a, ctx, FORWARD_K, at);
    LLVMValueRef next = emit_i64(e, a->bk * a->kv_row), rows = emit_i64(e, a->bk);
    attn_fetch(a, attn_element(a, args[0], next), rows, a->kv_row);
    const bool keys_too = a->strips > 1 || a->copies;
    if (keys_too) attn_fetch(a, attn_element(a, k, next), rows, a->kv_row);
    attn_call(a, a->copies ? "rows" : "pairs", args, 3);
    if (keys_too) {
        args[0] = k;
        args[1] = attn_kept_keys(a, work, l.i);
        attn_call(a, a->copies ? "rows" : "key_tiles", args, 3);
    }
    loop_end(e, &l, NULL);
}

static void pairs_emit(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                       LLVMValueRef item) {
    Emit *e = a->e;
    const int64_t items = items_a_head(a), pairs = attn_forward_pairs(a->q_blocks);
    LLVMValueRef bh = emit_divi(e, item, items);
    LLVMValueRef first = emit_remi(e, item, items);
    if (!attn_keeps_values(a)) {
        pair_emit(a, ctx, work, bh, first);
        return;
    }
    keep_values(a, ctx, work, bh, emit_sub(e, emit_i64(e, a->q_blocks - 1), first));
    Loop l;
    loop_begin(e, &l, first, emit_i64(e, pairs), (int)items, 0, NULL);
    pair_emit(a, ctx, work, bh, l.i);
    loop_end(e, &l, NULL);
}

/* With parts an item is a part of the keys of a block of queries, with a scratch of its
 * own; all blocks of the first part come first. */
static void part_emit(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                      LLVMValueRef item) {
    Emit *e = a->e;
    LLVMValueRef all = emit_i64(e, a->s.batch * a->s.heads * a->q_blocks);
    LLVMValueRef part = emit_div(e, item, all), block = emit_rem(e, item, all);
    LLVMValueRef blocks = emit_i64(e, a->q_blocks);
    ATTN_CALL(a, "queries", ctx, work, emit_div(e, block, blocks),
              emit_rem(e, block, blocks), part);
}

static void body_emit(const Attn *a) {
    Emit *e = a->e;
    int64_t floats = attn_forward_floats(&a->s, a->bq * a->strips);
    attn_func(a, "body", "piii");
    LLVMValueRef ctx = emit_param(e, 0), thread = emit_param(e, 3);
    LLVMValueRef scratch = emit_slot(a->e, ctx, FORWARD_WORK), size = emit_i64(e, floats);
    if (a->tiles) gemm_tiles_begin(e);
    Loop l;
    loop_begin(e, &l, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef room = a->parts > 1 ? l.i : thread;
    LLVMValueRef work = attn_f32(a, scratch, emit_mul(e, room, size));
    if (a->parts > 1)
        part_emit(a, ctx, work, l.i);
    else
        pairs_emit(a, ctx, work, l.i);
    loop_end(e, &l, NULL);
    if (a->tiles) gemm_tiles_end(e);
    emit_ret(e, NULL);
}

/* name.join(ctx, begin, end, thread): the parts of blocks of queries, added up in the order
 * of the keys. */
static void join_emit(const Attn *a) {
    Emit *e = a->e;
    int64_t floats = attn_forward_floats(&a->s, a->bq);
    int64_t all = a->s.batch * a->s.heads * a->q_blocks;
    attn_func(a, "join", "piii");
    LLVMValueRef ctx = emit_param(e, 0), blocks = emit_i64(e, a->q_blocks);
    LLVMValueRef scratch = emit_slot(a->e, ctx, FORWARD_WORK), size = emit_i64(e, floats);
    Loop l, p;
    loop_begin(e, &l, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef work = attn_f32(a, scratch, emit_mul(e, l.i, size));
    loop_begin(e, &p, emit_i64(e, 1), emit_i64(e, a->parts), 1, 0, NULL);
    LLVMValueRef other = emit_muli(e, p.i, all * floats);
    ATTN_CALL(a, "merge", work, attn_f32(a, work, other));
    loop_end(e, &p, NULL);
    AttnPlace at = attn_place(a, emit_div(e, l.i, blocks), emit_rem(e, l.i, blocks));
    attn_finish(a, ctx, work, &at, emit_i64(e, 0), at.rows);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* name.queries and what it calls for a block of queries and one of keys. */
static void blocks_emit(const Attn *a) {
    attn_scores_emit(a, "scores");
    if (a->copies || (a->narrow && !a->rows_in_place)) attn_rows_emit(a, "rows", false);
    if (a->narrow && !attn_rounds_at_once(a)) attn_narrow_emit(a);
    attn_softmax_emit(a);
    if (a->s.dropout > 0) attn_drop_emit(a);
    values_emit(a, "values", false);
    if (a->tiles) values_emit(a, "more_values", true);
    queries_emit(a);
}

LLVMValueRef attention_emit(Emit *e, const char *name, const AttnShape *s) {
    if (attn_is_token(s)) return attn_token_emit(e, name, s);
    Attn a = attn_of(e, name, s);
    a.parts = attn_forward_parts(s, a.q_blocks);
    if (attn_keeps_values(&a)) attn_cut_strips(&a, a.bq, a.narrow ? a.bk : a.bk / 2);
    a.tiles &= a.narrow || a.strips > 1;
    attn_widen(&a);
    a.copies = attn_copies_keys(&a);
    attn_pack_emit(&a);
    attn_unpack_emit(&a);
    if (a.tiles)
        attn_tiles_emit(&a, "pairs", false);
    else if (a.narrow)
        attn_pairs_emit(&a, "pairs", false);
    attn_masks_emit(&a);
    attn_start_emit(&a);
    attn_finish_emit(&a);
    (a.strips > 1 ? attn_strips_emit : blocks_emit)(&a);
    body_emit(&a);
    int64_t heads = s->batch * s->heads, slots = FORWARD_FIRST + s->within;
    AttnPhase items[] = {{"body", heads * items_a_head(&a)},
                         {"join", heads * a.q_blocks}};
    if (a.parts == 1) return attn_entry(&a, (int)slots, items, 1);
    ForwardScratch x = attn_forward_scratch(&a);
    attn_merge_emit(&a, x.out, x.max, x.sum);
    join_emit(&a);
    items[0].items = heads * a.q_blocks * a.parts;
    return attn_entry(&a, (int)slots, items, 2);
}
