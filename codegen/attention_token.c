/* attention_token.c - attention forward of one query a sequence, as when text is generated
 * from a cache of keys and values. What counts is to read the cache once: a thread takes some
 * keys of a sequence with all their heads, which lie in one piece, block by block
 * (attention_token_block.c). Each part of the keys leaves sums relative to its own maximum; they
 * are joined in the order of the keys (attention_join.c). */
#include "codegen/attention_token.h"
#include <float.h>

/* Multiply-adds below which starting the threads costs more than they gain: fewer than
 * elsewhere, as each takes a number from memory. */
enum { SMALL_TOKEN = 1 << 15 };

bool attn_is_token(const AttnShape *s) {
    return s->tq == 1 && s->dropout == 0;
}

/* How the work is cut: parts of the keys, and kv heads of an item. */
typedef struct Cut {
    int64_t parts, heads;
} Cut;

/* Are nine tenths of the threads busy when each takes some of `items` that last alike? */
static bool busy(int64_t items, int64_t threads) {
    return 10 * items >= 9 * divided_up(items, threads) * threads;
}

/* Some parts for each thread, so that one that is done takes what is left of others: with all the
 * heads of a key if that can be, since what a thread reads then lies in one piece, else with
 * one. */
static Cut cut_of(const AttnShape *s) {
    enum { PARTS_A_THREAD = 4 };
    int64_t threads = MAX(s->threads, 1),
            seen = s->window ? MIN(s->tk, s->window) : s->tk;
    int64_t most = MAX(1, seen / ATTN_BLOCK_KEYS), n = 1;
    double work = (double)(s->batch * s->heads) * (double)(seen * s->dim);
    if (work < SMALL_TOKEN || threads == 1) return (Cut){1, s->kv_heads};
    n = MIN(most, divided_up(PARTS_A_THREAD * threads, s->batch));
    for (int64_t i = n; i > 0; i--)
        if (busy(s->batch * i, threads)) return (Cut){i, s->kv_heads};
    for (n = 1; n < most && !busy(s->batch * s->kv_heads * n, threads);) n++;
    return (Cut){n, 1};
}

int64_t attn_token_floats(const AttnShape *s, int vl) {
    return s->batch * s->kv_heads * cut_of(s).parts * attn_token_state(s, vl).floats;
}

/* Keys that the query of sequence b sees; none when from >= to. */
static AttnRange seen_keys(const Attn *a, LLVMValueRef ctx, LLVMValueRef b) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    AttnOrigin at = attn_origin(a, ctx, FORWARD_Q_AT, FORWARD_K_AT, b);
    AttnRange r = {emit_i64(e, 0), emit_i64(e, s->tk)};
    LLVMValueRef end = emit_addi(e, emit_sub(e, at.q, at.k), 1);
    if (s->causal) r.to = emit_imin(e, r.to, end);
    if (s->window) r.from = emit_imax(e, r.from, emit_subi(e, end, s->window));
    if (!s->within) return r;
    LLVMValueRef first = emit_gep(e, e->i32, emit_slot(a->e, ctx, FORWARD_FIRST), b);
    first = LLVMBuildSExt(e->b, emit_load(e, e->i32, first, NULL, 4), e->i64, "");
    r.from = emit_imax(e, r.from, emit_sub(e, first, at.k));
    return r;
}

/* No sums yet, and a maximum below any score. */
static void start(const Attn *a, const TokenState *x, LLVMValueRef work) {
    Emit *e = a->e;
    LLVMValueRef zero = LLVMConstNull(e->vf32);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, x->stats), e->vl, 0, NULL);
    emit_store(e, zero, attn_f32(a, work, l.i), NULL, 4);
    loop_end(e, &l, NULL);
    for (int64_t g = 0; g < a->s.heads / a->s.kv_heads; g++) {
        LLVMValueRef stats = emit_at(e, e->f32, work, x->stats + g * STATS);
        emit_store(e, emit_f32(e, -FLT_MAX), emit_at(e, e->f32, stats, STAT_MAX), NULL,
                   4);
        emit_store(e, emit_f32(e, 0), emit_at(e, e->f32, stats, STAT_SUM), NULL, 4);
    }
}

/* A block of the keys in r, from `from` on, of sequence b for `heads` kv heads from `first` on. */
static void piece_block(const Attn *a, LLVMValueRef ctx, LLVMValueRef b,
                        LLVMValueRef first, LLVMValueRef heads, LLVMValueRef work,
                        AttnRange r, LLVMValueRef from) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    LLVMValueRef all = emit_i64(e, s->kv_heads), dim = emit_i64(e, s->dim);
    LLVMValueRef bk = emit_i64(e, a->bk), left = emit_sub(e, r.to, from);
    LLVMValueRef q = emit_add(e, emit_mul(e, b, all), first);
    q = emit_muli(e, q, s->heads / s->kv_heads * s->dim);
    LLVMValueRef row = emit_add(e, emit_muli(e, b, s->tk), from);
    LLVMValueRef kv = emit_mul(e, emit_add(e, emit_mul(e, row, all), first), dim);
    LLVMValueRef k = attn_tensor(a, ctx, FORWARD_K, kv);
    LLVMValueRef v = attn_tensor(a, ctx, FORWARD_V, kv);
    LLVMValueRef last = emit_icmp(e, LLVMIntSLE, left, bk);
    LLVMValueRef next = attn_element(a, k, emit_i64(e, a->bk * a->kv_row));
    ATTN_CALL(a, "block", attn_tensor(a, ctx, FORWARD_Q, q), k, v, work, heads,
              emit_imin(e, left, bk), emit_select(e, last, v, next));
}

/* name.piece(ctx, place, from, to): kv heads [from, to) of a place, which is a sequence and
 * a part of its keys. */
static void piece_emit(const Attn *a, const TokenState *x) {
    Emit *e = a->e;
    attn_func(a, "piece", "piii");
    LLVMValueRef ctx = emit_param(e, 0), place = emit_param(e, 1),
                 n = emit_i64(e, a->parts);
    LLVMValueRef b = emit_div(e, place, n), part = emit_rem(e, place, n);
    LLVMValueRef from = emit_param(e, 2), to = emit_param(e, 3);
    LLVMValueRef item = emit_muli(e, place, a->s.kv_heads);
    LLVMValueRef work = attn_token_work(a, x, ctx, emit_add(e, item, from));
    LLVMValueRef heads = emit_sub(e, to, from);
    AttnRange r = attn_part(a, seen_keys(a, ctx, b), e->vl, part);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), heads, 1, 0, NULL);
    start(a, x, attn_f32(a, work, emit_muli(e, l.i, x->floats)));
    loop_end(e, &l, NULL);
    loop_begin(e, &l, r.from, r.to, a->bk, 0, NULL);
    piece_block(a, ctx, b, from, heads, work, r, l.i);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

/* Items are `heads` kv heads of places. Without parts an item is all there is of its heads, and
 * they are finished with it. */
static void body_emit(const Attn *a, int64_t heads) {
    Emit *e = a->e;
    attn_func(a, "body", "piii");
    LLVMValueRef ctx = emit_param(e, 0), item = emit_i64(e, heads);
    LLVMValueRef begin = emit_mul(e, emit_param(e, 1), item);
    LLVMValueRef end = emit_mul(e, emit_param(e, 2), item);
    LLVMValueRef all = emit_i64(e, a->s.kv_heads), one = emit_i64(e, 1);
    LLVMValueRef last = emit_div(e, emit_sub(e, end, one), all);
    Loop l;
    loop_begin(e, &l, emit_div(e, begin, all), emit_add(e, last, one), 1, 0, NULL);
    LLVMValueRef first = emit_mul(e, l.i, all);
    LLVMValueRef from = emit_imax(e, emit_sub(e, begin, first), emit_i64(e, 0));
    LLVMValueRef to = emit_imin(e, emit_sub(e, end, first), all);
    ATTN_CALL(a, "piece", ctx, l.i, from, to);
    loop_end(e, &l, NULL);
    if (a->parts == 1) {
        LLVMValueRef group = emit_i64(e, a->s.heads / a->s.kv_heads);
        ATTN_CALL(a, "join_rows", ctx, emit_mul(e, begin, group),
                  emit_mul(e, end, group));
    }
    emit_ret(e, NULL);
}

LLVMValueRef attn_token_emit(Emit *e, const char *name, const AttnShape *s) {
    Attn a = attn_of(e, name, s);
    TokenState x = attn_token_state(s, e->vl);
    Cut cut = cut_of(s);
    a.parts = cut.parts;
    a.least = SMALL_TOKEN;
    attn_token_block_emit(&a, &x);
    piece_emit(&a, &x);
    attn_join_emit(&a, &x);
    body_emit(&a, cut.heads);
    AttnPhase phase[] = {{"body", s->batch * a.parts * s->kv_heads / cut.heads},
                         {"join_body", s->batch * s->heads}};
    return attn_entry(&a, s->within ? FORWARD_SLOTS : FORWARD_FIRST, phase,
                      a.parts > 1 ? 2 : 1);
}
