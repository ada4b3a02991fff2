/* attention_grad.c - attention backward; see attention.h. For each block of queries, Q
 * and dO are packed like in the forward part; for each block of keys, with lanes of
 * queries:  P = exp2(K Q - lse),  dP = V dO,  dS = P (dP - delta),  delta = dO o, and
 * then dV += P dO,  dK += dS Q,  dQ += dS^T K,  whose operands are used as they are in
 * memory. The factor `scale` enters through the packed dO and delta, log2(e) through the
 * packed Q.
 *   Where heads lie apart in memory (attn_copies_pay), K and V of a head, Q and dO of a block are
 * copied, and sums are in scratch until they are done.
 *   With bf16 in pairs (Attn.narrow) all operands of the products are copied to scratch, in pairs of bf16 along
 * what is summed over: Q and dO twice per block of queries, K twice per block of keys; P
 * and dS are rounded, dS in two orders; dQ, dK and dV are summed in f32 in scratch and
 * rounded at the end. Factors enter with the softmax. Tile registers take K for dQ turned, in tiles
 * that are made once a head, and sum dQ turned as well: dQ^T += K^T dS. Most shapes go through them
 * in strips, and f32 only so: attention_grad_strips.c. */
#include "codegen/attention_backward.h"
#include "codegen/attention_pack.h"
#include "codegen/attention_weave.h"
#include <math.h>

static int64_t parts_of(const AttnShape *s) {
    return attn_key_parts(s, s->batch * s->kv_heads);
}

/* With parts of the keys, each has a dQ of its own, before the scratch of the threads. */
static int64_t query_sums_floats(const AttnShape *s) {
    int64_t parts = parts_of(s), sums = s->batch * s->tq * s->heads * s->dim;
    return parts > 1 ? round_up(parts * sums, 16) : 0;
}

/* Of a thread, whatever CPU it is for. */
static int64_t scratch_floats(const AttnShape *s, int64_t block) {
    int64_t floats = attn_backward_floats(s, block);
    return MAX(floats, attn_grad_strip_floats(s));
}

int64_t attn_grad_floats(const AttnShape *s, int threads, int vl) {
    return query_sums_floats(s) + threads * scratch_floats(s, attn_block_queries(s, vl));
}

/* Is dQ summed turned? */
static bool turns(const Attn *a) {
    return a->tiles && a->parts == 1;
}

/* Are sums in scratch until they are done? bf16 cannot be summed in the result. */
static bool sums_apart(const Attn *a) {
    return a->narrow || a->copies;
}

/* From query to query in what dQ is summed in: the result or scratch; with parts of the keys a tensor
 * for each of them. */
static int64_t sums_row(const Attn *a) {
    return sums_apart(a) && a->parts == 1 ? a->s.dim : a->q_row;
}

/* The same of keys in dK and dV. */
static int64_t key_sums_row(const Attn *a) {
    return sums_apart(a) ? a->s.dim : a->kv_row;
}

/* name.keys(x, rows, y, keys, queries): y[keys][dim] += X[keys][queries] rows, for dV and
 * dK; name.sums(ds, k, dq, queries, keys): dq[queries][dim] += dS^T k, or turned dq[dim][bq] +=
 * k^T dS. With bf16 the last parameter counts pairs, and all is in scratch. */
static void products_emit(const Attn *a) {
    Emit *e = a->e;
    int64_t dim = a->s.dim, key_row = a->narrow ? dim : attn_key_row(a);
    GemmStrides keys = {a->bq, 1, sums_apart(a) ? dim : a->q_row, key_sums_row(a)};
    GemmStrides sums = {1, a->bq, key_row, sums_row(a)};
    if (a->narrow) {
        keys.a_row = a->bq / 2;
        keys.pairs = sums.pairs = true;
        sums.k_most = a->bk / 2;
    }
    for (int i = 0; i < 2; i++) {
        attn_func(a, i ? "sums" : "keys", "pppii");
        if (i && turns(a)) {
            GemmStrides turned = {1, dim, a->bq, a->bq, .pairs = true};
            turned.a_block = attn_tiled_block(a);
            GemmData data = {emit_param(e, 1), emit_param(e, 0), emit_param(e, 2)};
            GemmSize size = {emit_i64(e, dim), emit_i64(e, a->bq), emit_param(e, 4)};
            gemm_emit(e, &turned, GEMM_ADD, &data, &size);
            emit_ret(e, NULL);
            continue;
        }
        GemmData data = {emit_param(e, 0), emit_param(e, 1), emit_param(e, 2)};
        GemmSize size = {emit_param(e, 3), emit_i64(e, dim), emit_param(e, 4)};
        gemm_emit(e, i ? &sums : &keys, GEMM_ADD, &data, &size);
        emit_ret(e, NULL);
    }
}

/* The pointers that the block of queries works on; dq, dk, dv: what is summed into. */
typedef struct Block {
    LLVMValueRef work, q, do_, dq, k, v, dk, dv, rng, index, ahead, rows;
    AttnQueries queries;
} Block;

static LLVMValueRef scratch_at(const Attn *a, LLVMValueRef work, int64_t at) {
    return emit_at(a->e, a->e->f32, work, at);
}

/* What the products of a block of queries and one of keys work on. */
typedef struct Operands {
    LLVMValueRef k, v;                   /* rows, for S and dP */
    LLVMValueRef p, do_, ds, q;          /* for dV and dK */
    LLVMValueRef ds_keys, k_keys;        /* for dQ */
    LLVMValueRef dk, dv;                 /* rows of the block's keys */
    LLVMValueRef key_turns, query_turns; /* lengths of sums over keys, over queries */
} Operands;

static Operands in_memory(const Attn *a, const Block *b, LLVMValueRef j0,
                          LLVMValueRef keys) {
    Emit *e = a->e;
    BackwardScratch x = attn_backward_scratch(a);
    LLVMValueRef at = emit_muli(e, j0, attn_key_row(a));
    Operands o = {.q = b->q, .do_ = b->do_};
    o.p = scratch_at(a, b->work, x.s);
    o.ds = o.ds_keys = scratch_at(a, b->work, x.ds);
    o.k = attn_f32(a, a->copies ? scratch_at(a, b->work, x.k_rows) : b->k, at);
    o.v = attn_f32(a, a->copies ? scratch_at(a, b->work, x.v_rows) : b->v, at);
    if (a->copies) {
        o.q = scratch_at(a, b->work, x.q_rows);
        o.do_ = scratch_at(a, b->work, x.do_rows);
    }
    o.k_keys = o.k;
    at = emit_muli(e, j0, key_sums_row(a));
    o.dk = attn_f32(a, b->dk, at);
    o.dv = attn_f32(a, b->dv, at);
    o.key_turns = keys;
    o.query_turns = b->rows;
    return o;
}

static LLVMValueRef half_of(Emit *e, LLVMValueRef n) {
    return emit_divi(e, emit_addi(e, n, 1), 2);
}

/* Rows of a block of keys and its values, from j0 on, to scratch; the next ones are fetched. */
static void copy_keys(const Attn *a, LLVMValueRef work, LLVMValueRef k, LLVMValueRef v,
                      LLVMValueRef j0, LLVMValueRef keys) {
    Emit *e = a->e;
    BackwardScratch x = attn_backward_scratch(a);
    LLVMValueRef at = emit_muli(e, j0, a->s.dim);
    LLVMValueRef from[] = {k, v}, next = emit_i64(e, a->bk * a->kv_row);
    for (int i = 0; i < 2; i++) {
        LLVMValueRef to = attn_f32(a, scratch_at(a, work, i ? x.v_rows : x.k_rows), at);
        attn_fetch(a, attn_element(a, from[i], next), emit_i64(e, a->bk), a->kv_row);
        ATTN_CALL(a, "key_rows", from[i], to, keys);
    }
}

/* Where the turned block of keys from j0 on is. */
static LLVMValueRef k_tiles_at(const Attn *a, LLVMValueRef work, LLVMValueRef j0) {
    Emit *e = a->e;
    BackwardScratch x = attn_backward_scratch(a);
    LLVMValueRef at = attn_tiles_before(a, emit_divi(e, j0, a->bk));
    return attn_f32(a, scratch_at(a, work, x.k_tiles), at);
}

/* Copies the block of keys to scratch. */
static Operands in_scratch(const Attn *a, const Block *b, LLVMValueRef j0,
                           LLVMValueRef keys) {
    Emit *e = a->e;
    BackwardScratch x = attn_backward_scratch(a);
    LLVMValueRef at = emit_muli(e, j0, a->kv_row), work = b->work;
    LLVMValueRef k = attn_element(a, b->k, at), v = attn_element(a, b->v, at);
    Operands o = {.k = scratch_at(a, work, x.k_rows), .v = scratch_at(a, work, x.v_rows)};
    o.k_keys = scratch_at(a, work, x.k_pairs);
    if (a->rows_in_place) {
        o.k = k, o.v = v;
    } else {
        ATTN_CALL(a, "rows", k, o.k, keys);
        ATTN_CALL(a, "rows", v, o.v, keys);
    }
    if (turns(a))
        o.k_keys = k_tiles_at(a, work, j0);
    else
        ATTN_CALL(a, "key_pairs", k, o.k_keys, keys);
    o.p = scratch_at(a, work, x.p_rows);
    o.ds = scratch_at(a, work, x.ds_rows);
    o.ds_keys = scratch_at(a, work, x.ds_pairs);
    o.q = scratch_at(a, work, x.q_pairs);
    o.do_ = scratch_at(a, work, x.do_pairs);
    at = emit_muli(e, j0, a->s.dim);
    o.dk = attn_f32(a, b->dk, at);
    o.dv = attn_f32(a, b->dv, at);
    o.key_turns = half_of(e, keys);
    o.query_turns = half_of(e, b->rows);
    return o;
}

/* One block of keys from j0 on, `keys` of them, against the block of queries. */
static void pair_emit(const Attn *a, const Block *b, LLVMValueRef j0, LLVMValueRef keys) {
    Emit *e = a->e;
    BackwardScratch x = attn_backward_scratch(a);
    LLVMValueRef work = b->work;
    LLVMValueRef s = scratch_at(a, work, x.s), ds = scratch_at(a, work, x.ds);
    Operands o = a->narrow ? in_scratch(a, b, j0, keys) : in_memory(a, b, j0, keys);
    LLVMValueRef ahead = emit_add(e, b->ahead, j0), packed = scratch_at(a, work, x.q);
    ATTN_CALL(a, "scores", o.k, packed, s, keys);
    attn_block_masks(a, s, keys, ahead, j0, &b->queries);
    ATTN_CALL(a, "values", o.v, scratch_at(a, work, x.out), ds, keys);
    LLVMValueRef soft[] = {s, ds, work, keys, b->rng, emit_add(e, b->index, j0)};
    attn_call(a, "soft", soft, 6);
    ATTN_CALL(a, "keys", o.p, o.do_, o.dv, keys, o.query_turns);
    ATTN_CALL(a, "keys", o.ds, o.q, o.dk, keys, o.query_turns);
    ATTN_CALL(a, "sums", o.ds_keys, o.k_keys, b->dq, b->rows, o.key_turns);
}

/* Where dK or dV of the kv head that starts at element `kv` is summed. */
static LLVMValueRef key_sums(const Attn *a, LLVMValueRef ctx, LLVMValueRef work, int slot,
                             LLVMValueRef kv) {
    BackwardScratch x = attn_backward_scratch(a);
    if (sums_apart(a)) return scratch_at(a, work, slot == SLOT_DK ? x.dk : x.dv);
    return attn_f32(a, emit_slot(a->e, ctx, slot), kv);
}

/* Where the dQ of the block from element `at` on is summed. */
static LLVMValueRef query_sums(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                               LLVMValueRef at, LLVMValueRef part) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    BackwardScratch x = attn_backward_scratch(a);
    if (a->parts > 1) {
        part = emit_muli(e, part, s->batch * s->tq * a->q_row);
        return attn_f32(a, emit_slot(a->e, ctx, SLOT_WORK), emit_add(e, part, at));
    }
    return sums_apart(a) ? scratch_at(a, work, x.dq)
                         : attn_f32(a, emit_slot(a->e, ctx, SLOT_DQ), at);
}

/* Queries stand at element `at` of their tensors, keys at `kv`. */
static void set_tensors(const Attn *a, Block *b, LLVMValueRef ctx, LLVMValueRef at,
                        LLVMValueRef kv) {
    b->q = attn_tensor(a, ctx, SLOT_Q, at);
    b->do_ = attn_tensor(a, ctx, SLOT_DO, at);
    b->k = attn_tensor(a, ctx, SLOT_K, kv);
    b->v = attn_tensor(a, ctx, SLOT_V, kv);
    b->dk = key_sums(a, ctx, b->work, SLOT_DK, kv);
    b->dv = key_sums(a, ctx, b->work, SLOT_DV, kv);
}

/* Q and dO to scratch, with lanes of queries, and in pairs of queries or copies. */
static void pack_queries(const Attn *a, const Block *b) {
    Emit *e = a->e;
    BackwardScratch x = attn_backward_scratch(a);
    LLVMValueRef work = b->work, rows = b->rows;
    LLVMValueRef pack_q[] = {b->q, scratch_at(a, work, x.q), rows,
                             emit_f32(e, a->s.scale * M_LOG2E)};
    LLVMValueRef pack_do[] = {b->do_, scratch_at(a, work, x.out), rows,
                              emit_f32(e, a->s.scale)};
    attn_call(a, "pack", pack_q, 4);
    attn_call(a, "pack", pack_do, 4);
    if (a->copies) {
        LLVMValueRef q_rows[] = {b->q, scratch_at(a, work, x.q_rows), rows};
        LLVMValueRef do_rows[] = {b->do_, scratch_at(a, work, x.do_rows), rows};
        attn_call(a, "query_rows", q_rows, 3);
        attn_call(a, "query_rows", do_rows, 3);
    }
    if (!a->narrow) return;
    LLVMValueRef q_pairs[] = {b->q, scratch_at(a, work, x.q_pairs), rows};
    LLVMValueRef do_pairs[] = {b->do_, scratch_at(a, work, x.do_pairs), rows};
    attn_call(a, "query_pairs", q_pairs, 3);
    attn_call(a, "query_pairs", do_pairs, 3);
}

/* The queries of a place, against keys that stand at element `kv` of their tensors. */
static Block block_of(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                      const AttnPlace *p, const AttnOrigin *origin, LLVMValueRef kv) {
    Emit *e = a->e;
    Block b = {.work = work, .rows = p->rows, .rng = emit_slot(e, ctx, SLOT_RNG)};
    b.queries = attn_queries(a, ctx, SLOT_FIRST, origin, p);
    b.index = a->s.dropout > 0 ? attn_number(a, b.rng, origin, p) : emit_i64(e, 0);
    b.ahead = attn_ahead(a, origin, p->i0);
    set_tensors(a, &b, ctx, p->q_at, kv);
    return b;
}

/* Zeros for dQ where `first` is not 0. */
static void clear_query_sums(const Attn *a, const Block *b, LLVMValueRef first) {
    Emit *e = a->e;
    If f;
    if_begin(e, &f, emit_icmp(e, LLVMIntNE, first, emit_i64(e, 0)));
    LLVMValueRef lines = turns(a) ? emit_i64(e, a->bq) : b->rows;
    ATTN_CALL(a, "clear_q", b->dq, lines);
    if_end(e, &f);
}

/* delta and lse of the block's queries. */
static void query_numbers(const Attn *a, const Block *b, LLVMValueRef ctx,
                          const AttnPlace *p) {
    BackwardScratch x = attn_backward_scratch(a);
    LLVMValueRef o = attn_tensor(a, ctx, SLOT_O, p->q_at);
    LLVMValueRef lse = attn_f32(a, emit_slot(a->e, ctx, SLOT_LSE), p->row);
    LLVMValueRef delta[] = {
        b->do_, o, lse, scratch_at(a, b->work, x.delta), scratch_at(a, b->work, x.lse),
        b->rows};
    attn_call(a, "delta", delta, 6);
}

/* The queries of a place against keys [from, to), block by block, where they see any. */
static void meet_keys(const Attn *a, const Block *b, LLVMValueRef ctx, const AttnPlace *p,
                      LLVMValueRef from, LLVMValueRef to) {
    Emit *e = a->e;
    If some;
    Loop l;
    if_begin(e, &some, emit_icmp(e, LLVMIntSLT, from, to));
    query_numbers(a, b, ctx, p);
    pack_queries(a, b);
    loop_begin(e, &l, from, to, a->bk, 0, NULL);
    pair_emit(a, b, l.i, emit_imini(e, emit_sub(e, to, l.i), a->bk));
    loop_end(e, &l, NULL);
    if_end(e, &some);
}

/* name.queries(ctx, work, b, h, block, kv, from, to, part, first): one block of queries of
 * head h against keys [from, to); kv is where this head's keys start in k, v, dk, dv.
 * first: they are the first keys of their part, and dQ is 0 before them. dQ is rounded, if it has
 * seen all. */
static void queries_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "queries", "ppiiiiiiii");
    LLVMValueRef ctx = emit_param(e, 0), work = emit_param(e, 1),
                 batch = emit_param(e, 2), h = emit_param(e, 3), block = emit_param(e, 4),
                 kv = emit_param(e, 5), from = emit_param(e, 6), to = emit_param(e, 7),
                 part = emit_param(e, 8), first = emit_param(e, 9);
    AttnOrigin origin = attn_origin(a, ctx, SLOT_Q_AT, SLOT_K_AT, batch);
    AttnPlace p = attn_block_place(a, batch, h, block);
    Block b = block_of(a, ctx, work, &p, &origin, kv);
    b.dq = query_sums(a, ctx, work, p.q_at, part);
    clear_query_sums(a, &b, first);
    AttnRange range = attn_range(a, &origin, p.i0, p.rows);
    range.from = emit_imax(e, range.from, from);
    meet_keys(a, &b, ctx, &p, range.from, emit_imin(e, range.to, to));
    if (sums_apart(a) && a->parts == 1) {
        LLVMValueRef dq = attn_tensor(a, ctx, SLOT_DQ, p.q_at);
        ATTN_CALL(a, "round_q", b.dq, dq, p.rows);
    }
    emit_ret(e, NULL);
}

/* Keys of the kv head to tiles, or keys and values to rows in scratch, but those that no query sees. */
static void take_keys(const Attn *a, LLVMValueRef ctx, LLVMValueRef work, LLVMValueRef kv,
                      const AttnRange *r, const AttnOrigin *origin) {
    Emit *e = a->e;
    Loop l;
    const int64_t last = (a->q_blocks - 1) * a->bq;
    AttnRange seen =
        attn_range(a, origin, emit_i64(e, last), emit_i64(e, a->s.tq - last));
    LLVMValueRef to = emit_imin(e, r->to, seen.to);
    loop_begin(e, &l, r->from, to, a->bk, 0, NULL);
    LLVMValueRef keys = emit_imini(e, emit_sub(e, to, l.i), a->bk);
    LLVMValueRef at = emit_plus(e, kv, l.i, a->kv_row);
    LLVMValueRef k = attn_tensor(a, ctx, SLOT_K, at);
    if (a->copies) {
        LLVMValueRef v = attn_tensor(a, ctx, SLOT_V, at);
        copy_keys(a, work, k, v, l.i, keys);
    } else {
        ATTN_CALL(a, "turn_keys", k, k_tiles_at(a, work, l.i), keys);
    }
    loop_end(e, &l, NULL);
}

/* dK and dV of the rows of the kv head, before and after their queries. */
static void key_sums_clear(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                           LLVMValueRef kv, const AttnRange *r) {
    Emit *e = a->e;
    for (int slot = SLOT_DK; slot <= SLOT_DV; slot++) {
        LLVMValueRef sums = key_sums(a, ctx, work, slot, kv);
        sums = attn_f32(a, sums, emit_muli(e, r->from, key_sums_row(a)));
        ATTN_CALL(a, "clear_kv", sums, emit_sub(e, r->to, r->from));
    }
}

static void key_sums_finish(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                            LLVMValueRef kv, const AttnRange *r) {
    Emit *e = a->e;
    for (int slot = SLOT_DK; sums_apart(a) && slot <= SLOT_DV; slot++) {
        LLVMValueRef at = emit_muli(e, r->from, a->s.dim);
        LLVMValueRef sums = attn_f32(a, key_sums(a, ctx, work, slot, kv), at);
        at = emit_add(e, kv, emit_muli(e, r->from, a->kv_row));
        LLVMValueRef to = attn_tensor(a, ctx, slot, at);
        ATTN_CALL(a, "round_kv", sums, to, emit_sub(e, r->to, r->from));
    }
}

/* name.head(ctx, work, pair, from, to, part, first): keys [from, to) of a pair of sequence
 * and kv head, with all query heads that use it. */
static void head_emit(const Attn *a) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    LLVMValueRef zero = emit_i64(e, 0), group = emit_i64(e, s->heads / s->kv_heads);
    attn_func(a, "head", "ppiiiii");
    LLVMValueRef ctx = emit_param(e, 0), work = emit_param(e, 1), pair = emit_param(e, 2);
    AttnRange r = {emit_param(e, 3), emit_param(e, 4)};
    LLVMValueRef part = emit_param(e, 5), first = emit_param(e, 6);
    LLVMValueRef b = emit_divi(e, pair, s->kv_heads);
    LLVMValueRef kv_head = emit_remi(e, pair, s->kv_heads);
    LLVMValueRef kv = attn_kv_at(a, b, kv_head);
    key_sums_clear(a, ctx, work, kv, &r);
    AttnOrigin origin = attn_origin(a, ctx, SLOT_Q_AT, SLOT_K_AT, b);
    if (turns(a) || a->copies) take_keys(a, ctx, work, kv, &r, &origin);
    Loop g, i;
    loop_begin(e, &g, zero, group, 1, 0, NULL);
    LLVMValueRef h = emit_add(e, emit_mul(e, kv_head, group), g.i);
    loop_begin(e, &i, zero, emit_i64(e, a->q_blocks), 1, 0, NULL);
    ATTN_CALL(a, "queries", ctx, work, b, h, i.i, kv, r.from, r.to, part, first);
    loop_end(e, &i, NULL);
    loop_end(e, &g, NULL);
    key_sums_finish(a, ctx, work, kv, &r);
    emit_ret(e, NULL);
}

/* Where the keys of chunk n of twice as many as there are parts begin. */
static LLVMValueRef chunk_start(const Attn *a, LLVMValueRef n) {
    Emit *e = a->e;
    int64_t blocks = divided_up(a->s.tk, a->bk);
    LLVMValueRef at = emit_muli(e, n, blocks);
    at = emit_muli(e, emit_divi(e, at, 2 * a->parts), a->bk);
    return emit_imini(e, at, a->s.tk);
}

/* A part has one chunk from each end: under a causal mask all parts are the same work. */
static void part_emit(const Attn *a, LLVMValueRef ctx, LLVMValueRef work,
                      LLVMValueRef pair, LLVMValueRef part) {
    Emit *e = a->e;
    for (int half = 0; half < 2; half++) {
        LLVMValueRef n = half ? emit_sub(e, emit_i64(e, 2 * a->parts - 1), part) : part;
        LLVMValueRef from = chunk_start(a, n);
        LLVMValueRef to = chunk_start(a, emit_addi(e, n, 1));
        ATTN_CALL(a, "head", ctx, work, pair, from, to, part, emit_i64(e, !half));
    }
}

/* An item is a pair of sequence and kv head, or a part of its keys. */
static void body_emit(const Attn *a) {
    Emit *e = a->e;
    attn_func(a, "body", "piii");
    LLVMValueRef ctx = emit_param(e, 0), scratch = emit_slot(a->e, ctx, SLOT_WORK);
    LLVMValueRef floats =
        emit_i64(e, scratch_floats(&a->s, attn_block_queries(&a->s, e->vl)));
    scratch = emit_at(e, e->f32, scratch, query_sums_floats(&a->s));
    LLVMValueRef work = attn_f32(a, scratch, emit_mul(e, emit_param(e, 3), floats));
    LLVMValueRef zero = emit_i64(e, 0), parts = emit_i64(e, a->parts);
    if (a->tiles) gemm_tiles_begin(e);
    Loop l;
    loop_begin(e, &l, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    if (a->parts > 1) {
        part_emit(a, ctx, work, emit_div(e, l.i, parts), emit_rem(e, l.i, parts));
    } else {
        ATTN_CALL(a, "head", ctx, work, l.i, zero, emit_i64(e, a->s.tk), zero,
                  emit_i64(e, 1));
    }
    loop_end(e, &l, NULL);
    if (a->tiles) gemm_tiles_end(e);
    emit_ret(e, NULL);
}

/* Functions that only copies have. */
static void copies_emit(const Attn *a) {
    attn_rows_emit(a, "key_rows", false);
    attn_rows_emit(a, "query_rows", true);
    attn_round_emit(a, "round_q", true);
    attn_round_emit(a, "round_kv", false);
}

/* Functions that only pairs of bf16 have. */
static void narrow_emit(const Attn *a) {
    if (!a->rows_in_place) attn_rows_emit(a, "rows", false);
    (turns(a) ? attn_tiles_emit
              : attn_pairs_emit)(a, turns(a) ? "turn_keys" : "key_pairs", false);
    attn_pairs_emit(a, "query_pairs", true);
    if (turns(a))
        attn_turn_emit(a);
    else
        attn_round_emit(a, "round_q", true);
    attn_round_emit(a, "round_kv", false);
}

/* name.head and what it calls for a block of queries and one of keys. */
static void blocks_emit(const Attn *a) {
    attn_scores_emit(a, "scores");
    attn_scores_emit(a, "values");
    if (a->narrow) narrow_emit(a);
    if (a->copies) copies_emit(a);
    attn_clear_emit(a, "clear_q", sums_row(a));
    attn_clear_emit(a, "clear_kv", key_sums_row(a));
    attn_soft_emit(a);
    products_emit(a);
    queries_emit(a);
    head_emit(a);
}

LLVMValueRef attention_grad_emit(Emit *e, const char *name, const AttnShape *s) {
    Attn a = attn_of(e, name, s);
    a.parts = parts_of(s);
    attn_cut_strips(&a, attn_grad_strip_queries(s), ATTN_GRAD_STRIP_KEYS);
    a.tiles &= a.narrow || a.strips > 1;
    attn_widen(&a);
    a.copies =
        !a.narrow && !a.tiles && attn_copies_pay(s, s->heads, ATTN_GRAD_COPIED_QUERIES);
    attn_pack_emit(&a);
    attn_masks_emit(&a);
    attn_delta_emit(&a);
    (a.strips > 1 ? attn_grad_strips_emit : blocks_emit)(&a);
    body_emit(&a);
    if (a.parts > 1) attn_add_emit(&a, SLOT_DQ, SLOT_WORK, 0);
    AttnPhase items[] = {{"body", s->batch * s->kv_heads * a.parts},
                         {"add", s->batch * s->tq}};
    return attn_entry(&a, s->within ? SLOTS : SLOT_FIRST, items, a.parts > 1 ? 2 : 1);
}
