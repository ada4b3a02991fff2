/* attention_forward.c - see attention_forward.h. */
#include "codegen/attention_forward.h"
#include "codegen/attention_pack.h"
#include "codegen/attention_weave.h"
#include "codegen/vmath.h"
#include <float.h>
#include <math.h>

/* Without parts of the keys a pair is two blocks of queries of one head, one from each end: under
 * a causal mask every pair then has the same work. With an odd number the middle block is
 * alone. */
int64_t attn_forward_pairs(int64_t q_blocks) {
    return (q_blocks + 1) / 2;
}

int64_t attn_forward_parts(const AttnShape *s, int64_t q_blocks) {
    return attn_key_parts(s, s->batch * s->heads * attn_forward_pairs(q_blocks));
}

/* Is there room for V of all keys in tiles or copies, made once an item? The plan does not know if the
 * CPU has tile registers. In a window few blocks of queries see the same keys. */
static bool has_room_for_values(const AttnShape *s, int64_t parts) {
    return !s->window && parts == 1;
}

/* With 512 queries it takes 4 % longer than without copies, with 1024 6 % less. */
enum { COPIED_QUERIES = 1024 };

/* Narrow types are copied block by block where copies of all keys have no room. */
static bool copies_keys(const AttnShape *s, int64_t parts) {
    return dtype_is_narrow(s->dt) || (has_room_for_values(s, parts) &&
                                      attn_copies_pay(s, s->kv_heads, COPIED_QUERIES));
}

bool attn_copies_keys(const Attn *a) {
    return !a->narrow && !a->tiles && copies_keys(&a->s, a->parts);
}

bool attn_keeps_values(const Attn *a) {
    return (a->tiles || a->copies) && has_room_for_values(&a->s, a->parts);
}

/* Words that a block of keys or values has in tiles or as a copy. */
static int64_t block_words(const AttnShape *s, bool tiles) {
    return tiles ? attn_tiled_words(s, ATTN_BLOCK_KEYS) : ATTN_BLOCK_KEYS * s->dim;
}

/* Blocks of keys and values that are kept, in tiles or copies, or that there is room for one of. */
static int64_t kept_blocks(const AttnShape *s, int64_t parts) {
    return has_room_for_values(s, parts) ? divided_up(s->tk, ATTN_BLOCK_KEYS) : 1;
}

/* Of what is multiplied as f32, in blocks of bq queries. */
static ForwardScratch plain_scratch(const AttnShape *s, int64_t bq) {
    const int64_t parts = attn_forward_parts(s, divided_up(s->tq, bq));
    const int64_t blocks = copies_keys(s, parts) ? kept_blocks(s, parts) : 0;
    ForwardScratch x = {0};
    x.out = x.packed + s->dim * bq;
    x.s = x.out + s->dim * bq;
    x.max = x.p = x.s + ATTN_BLOCK_KEYS * bq;
    x.sum = x.max + bq;
    x.decay = x.sum + bq;
    x.k = align_up(x.decay + bq);
    x.v = x.k + blocks * block_words(s, false);
    x.floats = align_up(x.v + blocks * block_words(s, false));
    return x;
}

/* Of pairs, in blocks of queries in `strips` strips of bq. */
static ForwardScratch pairs_scratch(const AttnShape *s, int64_t bq, int64_t strips) {
    ForwardScratch x = {0};
    const int64_t parts = attn_tile_parts(s), dim = attn_tiled_dim(s);
    const int64_t key_parts = attn_forward_parts(s, divided_up(s->tq, bq * strips));
    const int64_t blocks = kept_blocks(s, key_parts);
    x.out = x.packed + dim / 2 * parts * bq;
    x.s = x.out + dim * bq;
    x.p = x.s + ATTN_BLOCK_KEYS * bq;
    x.max = x.p + ATTN_BLOCK_KEYS / 2 * parts * bq;
    x.sum = x.max + bq;
    x.decay = x.sum + bq;
    x.moved = x.decay + bq;
    x.keep = x.moved + 1;
    x.strip = align_up(x.keep + ATTN_BLOCK_KEYS / 2);
    x.k = x.strip * strips;
    x.v = x.k + blocks * block_words(s, true);
    x.floats = x.v + blocks * block_words(s, true);
    x.floats = align_up(x.floats);
    return x;
}

ForwardScratch attn_forward_scratch(const Attn *a) {
    if (!a->narrow && a->strips == 1) return plain_scratch(&a->s, a->bq);
    return pairs_scratch(&a->s, a->bq, a->strips);
}

/* Whatever CPU it is for. */
int64_t attn_forward_floats(const AttnShape *s, int64_t bq) {
    int64_t floats = plain_scratch(s, bq).floats;
    if (s->dt == DT_BF16) floats = MAX(floats, pairs_scratch(s, bq, 1).floats);
    if (bq % ATTN_STRIP) return floats;
    return MAX(floats, pairs_scratch(s, ATTN_STRIP, bq / ATTN_STRIP).floats);
}

AttnPlace attn_place(const Attn *a, LLVMValueRef bh, LLVMValueRef block) {
    Emit *e = a->e;
    const AttnShape *s = &a->s;
    LLVMValueRef heads = emit_i64(e, s->heads);
    LLVMValueRef b = emit_div(e, bh, heads), h = emit_rem(e, bh, heads);
    LLVMValueRef kv_head = emit_divi(e, h, s->heads / s->kv_heads);
    AttnPlace p = attn_block_place(a, b, h, block);
    p.kv_at = attn_kv_at(a, b, kv_head);
    return p;
}

void attn_finish(const Attn *a, LLVMValueRef ctx, LLVMValueRef work, const AttnPlace *p,
                 LLVMValueRef from, LLVMValueRef rows) {
    Emit *e = a->e;
    LLVMValueRef q_at = emit_plus(e, p->q_at, from, a->q_row);
    LLVMValueRef row = emit_plus(e, p->row, from, a->s.heads);
    ATTN_CALL(a, "finish", work, attn_tensor(a, ctx, FORWARD_O, q_at),
              attn_f32(a, emit_slot(a->e, ctx, FORWARD_LSE), row), rows);
}

/* Of the block of keys from `from` on. */
static LLVMValueRef kept_from(const Attn *a, LLVMValueRef kept, LLVMValueRef from) {
    Emit *e = a->e;
    if (!a->tiles) return attn_f32(a, kept, emit_muli(e, from, a->s.dim));
    LLVMValueRef at = emit_divi(e, from, a->bk);
    return attn_f32(a, kept, attn_tiles_before(a, at));
}

LLVMValueRef attn_kept_values(const Attn *a, LLVMValueRef work, LLVMValueRef from) {
    Emit *e = a->e;
    return kept_from(a, emit_at(e, e->f32, work, attn_forward_scratch(a).v), from);
}

LLVMValueRef attn_kept_keys(const Attn *a, LLVMValueRef work, LLVMValueRef from) {
    Emit *e = a->e;
    return kept_from(a, emit_at(e, e->f32, work, attn_forward_scratch(a).k), from);
}

void attn_start_emit(const Attn *a) {
    Emit *e = a->e;
    ForwardScratch x = attn_forward_scratch(a);
    Loop l;
    attn_func(a, "start", "p");
    LLVMValueRef zero = LLVMConstNull(e->vf32), work = emit_param(e, 0);
    loop_begin(e, &l, emit_i64(e, x.out), emit_i64(e, x.s), e->vl, 0, NULL);
    emit_store(e, zero, attn_f32(a, work, l.i), NULL, 4);
    loop_end(e, &l, NULL);
    for (int64_t v = 0; v < a->bq; v += e->vl) {
        LLVMValueRef lowest = emit_f32_like(e, zero, -FLT_MAX);
        emit_store(e, lowest, emit_at(e, e->f32, work, x.max + v), NULL, 4);
        emit_store(e, zero, emit_at(e, e->f32, work, x.sum + v), NULL, 4);
    }
    emit_ret(e, NULL);
}

void attn_finish_emit(const Attn *a) {
    Emit *e = a->e;
    ForwardScratch x = attn_forward_scratch(a);
    attn_func(a, "finish", "pppi");
    LLVMValueRef work = emit_param(e, 0), rows = emit_param(e, 3);
    LLVMValueRef decay = emit_at(e, e->f32, work, x.decay);
    LLVMValueRef lse = emit_at(e, e->f32, work, x.sum);
    for (int64_t v = 0; v < a->bq; v += e->vl) {
        LLVMValueRef top =
            emit_load(e, e->vf32, emit_at(e, e->f32, work, x.max + v), NULL, 4);
        LLVMValueRef sum_at = emit_at(e, e->f32, lse, v);
        LLVMValueRef sum = emit_load(e, e->vf32, sum_at, NULL, 4);
        LLVMValueRef kept = emit_f32_like(e, sum, 1 - a->s.dropout);
        LLVMValueRef factor =
            emit_fdiv(e, emit_f32_like(e, sum, 1), emit_fmul(e, sum, kept));
        LLVMValueRef zero = LLVMConstNull(e->vf32);
        LLVMValueRef none = emit_fcmp(e, LLVMRealOEQ, sum, zero);
        factor = emit_select(e, none, zero, factor);
        emit_store(e, factor, emit_at(e, e->f32, decay, v), NULL, 4);
        LLVMValueRef log =
            emit_fma(e, top, emit_f32_like(e, top, M_LN2), vmath_log(e, sum));
        log = emit_select(e, none, emit_f32_like(e, log, NO_KEYS), log);
        emit_store(e, log, sum_at, NULL, 4);
    }
    ATTN_CALL(a, "unpack", emit_at(e, e->f32, work, x.out), emit_param(e, 1), rows,
              decay);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), rows, 1, 0, NULL);
    LLVMValueRef value = emit_load(e, e->f32, attn_f32(a, lse, l.i), NULL, 4);
    LLVMValueRef to = emit_muli(e, l.i, a->s.heads);
    emit_store(e, value, attn_f32(a, emit_param(e, 2), to), NULL, 4);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}
