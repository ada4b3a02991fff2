/* attention_strips.c - attention forward strip by strip: while softmax of 16 queries runs, tile
 * registers have the scores of the next 16 and the values of the 16 before. Keys and values come
 * in tiles, with zeros for what the last block lacks. */
#include "codegen/attention_forward.h"
#include "codegen/attention_pack.h"
#include "codegen/attention_weave.h"
#include "codegen/vmath.h"
#include <math.h>

enum { SUMS = 4 }; /* chains of additions */

/* A block of queries on its way over the keys. */
typedef struct Queries {
    const Attn *a;
    ForwardScratch x;
    LLVMValueRef work, keys, values;
    StripMasks at;
} Queries;

typedef struct Strip {
    const Attn *a;
    ForwardScratch x;
    StripPlace at;
    LLVMValueRef top, sum[SUMS];
} Strip;

static StripPlace place_of(const Queries *q, LLVMValueRef n, LLVMValueRef turn) {
    return attn_strip_place(q->a, q->work, q->x.strip, n, turn);
}

static WeaveProduct scores_of(const Queries *q, LLVMValueRef block, LLVMValueRef n,
                              LLVMValueRef turn) {
    StripPlace x = place_of(q, n, turn);
    return (WeaveProduct){.a = attn_f32(q->a, q->keys, attn_tiles_before(q->a, block)),
                          .b = attn_in_strip(&x, q->x.packed),
                          .c = attn_in_turn(&x, q->x.s),
                          .rows = q->a->bk,
                          .pairs = attn_tiled_dim(&q->a->s) / 2};
}

static WeaveProduct values_of(const Queries *q, LLVMValueRef block, LLVMValueRef n,
                              LLVMValueRef turn) {
    StripPlace x = place_of(q, n, turn);
    return (WeaveProduct){.a = attn_f32(q->a, q->values, attn_tiles_before(q->a, block)),
                          .b = attn_in_turn(&x, q->x.p),
                          .c = attn_in_strip(&x, q->x.out),
                          .rows = attn_tiled_dim(&q->a->s),
                          .pairs = q->a->bk / 2,
                          .adds = true};
}

static LLVMValueRef largest(const Strip *x) {
    Emit *e = x->a->e;
    LLVMValueRef top[SUMS];
    for (int key = 0; key < x->a->bk; key++) {
        LLVMValueRef from = attn_in_turn(&x->at, x->x.s + key * x->a->bq);
        LLVMValueRef score = emit_load(e, e->vf32, from, NULL, 4);
        const int i = key % SUMS;
        top[i] = key < SUMS ? score : emit_fmax(e, score, top[i]);
    }
    for (int i = 1; i < SUMS; i++) top[0] = emit_fmax(e, top[0], top[i]);
    return top[0];
}

/* What a larger maximum does to older sums. */
static void decay(const Strip *x, LLVMValueRef old, LLVMValueRef any) {
    const Attn *a = x->a;
    Emit *e = a->e;
    If f;
    if_begin(e, &f, any);
    LLVMValueRef factor = vmath_exp2_fast(e, emit_fsub(e, old, x->top));
    LLVMValueRef sum = attn_in_strip(&x->at, x->x.sum),
                 out = attn_in_strip(&x->at, x->x.out);
    emit_store(e, x->top, attn_in_strip(&x->at, x->x.max), NULL, 4);
    LLVMValueRef less = emit_fmul(e, emit_load(e, e->vf32, sum, NULL, 4), factor);
    emit_store(e, less, sum, NULL, 4);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, a->s.dim * a->bq), a->bq, 0, NULL);
    LLVMValueRef at = attn_f32(a, out, l.i);
    less = emit_fmul(e, emit_load(e, e->vf32, at, NULL, 4), factor);
    emit_store(e, less, at, NULL, 4);
    loop_end(e, &l, NULL);
    if_end(e, &f);
}

static void two_keys(void *ctx, int i) {
    Strip *x = ctx;
    LLVMValueRef from = attn_in_turn(&x->at, x->x.s + 2 * i * x->a->bq);
    LLVMValueRef to = attn_in_turn(&x->at, x->x.p + attn_pair_at(x->a, i));
    LLVMValueRef room = attn_in_turn(&x->at, x->x.keep);
    LLVMValueRef keep[] = {attn_strip_kept(x->a, room, 2 * i),
                           attn_strip_kept(x->a, room, 2 * i + 1)};
    attn_pair_of_keys(x->a, from, to, x->top, &x->sum[2 * i % SUMS], keep);
}

static void strip(void *ctx, const StripAt *at) {
    const Queries *q = ctx;
    const Attn *a = q->a;
    Emit *e = a->e;
    Strip x = {.a = a, .x = q->x, .at = place_of(q, at->strip, at->turn)};
    LLVMValueRef sum = attn_in_strip(&x.at, x.x.sum), any = NULL;
    attn_strip_keep(a, &q->at, at, attn_in_turn(&x.at, x.x.keep));
    LLVMValueRef old = emit_load(e, e->vf32, attn_in_strip(&x.at, x.x.max), NULL, 4);
    attn_strip_masks(a, attn_in_turn(&x.at, x.x.s), at, &q->at);
    x.top = attn_maximum(a, old, largest(&x), &any);
    decay(&x, old, any);
    x.sum[0] = emit_load(e, e->vf32, sum, NULL, 4);
    for (int i = 1; i < SUMS; i++) x.sum[i] = LLVMConstNull(e->vf32);
    WeaveProduct product[] = {scores_of(q, at->next_block, at->next_strip, at->other),
                              values_of(q, at->last_block, at->last_strip, at->other)};
    attn_weave(a, product, at->first ? 1 : 2, (int)a->bk / 2, two_keys, &x);
    for (int i = 1; i < SUMS; i++) x.sum[0] = emit_fadd(e, x.sum[0], x.sum[i]);
    emit_store(e, x.sum[0], sum, NULL, 4);
}

static void first_scores(void *ctx, const StripAt *at) {
    const Queries *q = ctx;
    WeaveProduct scores = scores_of(q, at->next_block, at->next_strip, at->other);
    attn_weave(q->a, &scores, 1, 0, NULL, NULL);
}

static void last_values(void *ctx, const StripAt *at) {
    const Queries *q = ctx;
    WeaveProduct values = values_of(q, at->last_block, at->last_strip, at->other);
    attn_weave(q->a, &values, 1, 0, NULL, NULL);
}

/* Strip n to scratch, where no key has been seen. */
static void begin(const Queries *q, LLVMValueRef q_rows, LLVMValueRef n) {
    const Attn *a = q->a;
    Emit *e = a->e;
    StripPlace x = place_of(q, n, n);
    StripRows r = attn_strip_rows(a, n, q->at.queries.rows);
    LLVMValueRef from = emit_muli(e, r.from, a->q_row);
    LLVMValueRef pack[] = {attn_element(a, q_rows, from), attn_in_strip(&x, q->x.packed),
                           r.some, emit_f32(e, a->s.scale * M_LOG2E)};
    attn_call(a, "pack", pack, 4);
    ATTN_CALL(a, "start", x.work);
}

void attn_strips_emit(const Attn *a) {
    Emit *e = a->e;
    attn_row_tiles_emit(a, "key_tiles");
    attn_strip_keep_emit(a);
    attn_func(a, "queries", "ppiii");
    LLVMValueRef ctx = emit_param(e, 0), work = emit_param(e, 1), zero = emit_i64(e, 0);
    AttnPlace p = attn_place(a, emit_param(e, 2), emit_param(e, 3));
    AttnOrigin origin = attn_origin(a, ctx, FORWARD_Q_AT, FORWARD_K_AT, p.b);
    AttnRange range = attn_range(a, &origin, p.i0, p.rows);
    Queries q = {.a = a, .x = attn_forward_scratch(a), .work = work};
    q.keys = attn_kept_keys(a, work, zero);
    q.values = attn_kept_values(a, work, zero);
    q.at = attn_strip_masks_of(a, ctx, FORWARD_RNG, FORWARD_FIRST, &origin, &p);
    LLVMValueRef rows = attn_tensor(a, ctx, FORWARD_Q, p.q_at);
    Loop n;
    attn_fetch(a, rows, p.rows, a->q_row);
    loop_begin(e, &n, zero, emit_i64(e, a->strips), 1, 0, NULL);
    begin(&q, rows, n.i);
    loop_end(e, &n, NULL);
    const StripWalk walk = {first_scores, strip, last_values, &q};
    attn_walk_strips(a, &range, &q.at, &walk);
    loop_begin(e, &n, zero, emit_i64(e, a->strips), 1, 0, NULL);
    StripPlace x = place_of(&q, n.i, n.i);
    StripRows r = attn_strip_rows(a, n.i, p.rows);
    attn_finish(a, ctx, x.work, &p, r.lane, r.rows);
    loop_end(e, &n, NULL);
    emit_ret(e, NULL);
}
