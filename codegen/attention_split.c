/* attention_split.c - work of attention that is split over keys, so that there is some for
 * every thread: how many parts, which keys each has, and how their sums are joined. */
#include "codegen/attention_parts.h"
#include "codegen/vmath.h"

int64_t attn_key_parts(const AttnShape *s, int64_t items) {
    int64_t seen = s->window ? MIN(s->tk, s->window + ATTN_BLOCK_KEYS) : s->tk;
    if (items >= s->threads || attn_is_small(s)) return 1;
    int64_t blocks = divided_up(seen, ATTN_BLOCK_KEYS);
    return MIN(blocks, divided_up(s->threads, items));
}

AttnRange attn_part(const Attn *a, AttnRange all, int64_t block, LLVMValueRef part) {
    Emit *e = a->e;
    if (a->parts == 1) return all;
    LLVMValueRef size = emit_i64(e, block), n = emit_i64(e, a->parts), at[2];
    LLVMValueRef blocks = emit_sub(e, all.to, all.from);
    blocks = emit_imax(e, emit_addi(e, blocks, block - 1), emit_i64(e, 0));
    blocks = emit_div(e, blocks, size);
    for (int i = 0; i < 2; i++) {
        LLVMValueRef p = emit_addi(e, part, i);
        at[i] = emit_mul(e, emit_div(e, emit_mul(e, blocks, p), n), size);
        at[i] = emit_imin(e, emit_add(e, all.from, at[i]), all.to);
    }
    return (AttnRange){at[0], at[1]};
}

static LLVMValueRef load(const Attn *a, LLVMValueRef ptr, int64_t at) {
    Emit *e = a->e;
    return emit_load(e, e->vf32, emit_at(e, e->f32, ptr, at), NULL, 4);
}

/* Of vl queries from lane v on. Where neither has seen a key both maxima are the same, and
 * the sums 0. */
static void merge_lanes(const Attn *a, int64_t out, int64_t max, int64_t sum, int64_t v) {
    Emit *e = a->e;
    LLVMValueRef of[] = {emit_param(e, 0), emit_param(e, 1)}, old[2], weight[2], x[2];
    for (int i = 0; i < 2; i++) old[i] = load(a, of[i], max + v);
    LLVMValueRef top = emit_fmax(e, old[0], old[1]);
    for (int i = 0; i < 2; i++) {
        weight[i] = vmath_exp2_fast(e, emit_fsub(e, old[i], top));
        x[i] = load(a, of[i], sum + v);
    }
    x[0] = emit_fma(e, x[1], weight[1], emit_fmul(e, x[0], weight[0]));
    emit_store(e, x[0], emit_at(e, e->f32, of[0], sum + v), NULL, 4);
    emit_store(e, top, emit_at(e, e->f32, of[0], max + v), NULL, 4);
    Loop l;
    loop_begin(e, &l, emit_i64(e, 0), emit_i64(e, a->s.dim * a->bq), a->bq, 0, NULL);
    for (int i = 0; i < 2; i++) x[i] = load(a, attn_f32(a, of[i], l.i), out + v);
    x[0] = emit_fma(e, x[1], weight[1], emit_fmul(e, x[0], weight[0]));
    emit_store(e, x[0], emit_at(e, e->f32, attn_f32(a, of[0], l.i), out + v), NULL, 4);
    loop_end(e, &l, NULL);
}

void attn_merge_emit(const Attn *a, int64_t out, int64_t max, int64_t sum) {
    attn_func(a, "merge", "pp");
    for (int64_t v = 0; v < a->bq; v += a->e->vl) merge_lanes(a, out, max, sum, v);
    emit_ret(a->e, NULL);
}

void attn_add_emit(const Attn *a, int to, int work, int64_t at) {
    Emit *e = a->e;
    int64_t rows = a->s.batch * a->s.tq, width = a->q_row, left = width % e->vl;
    attn_func(a, "add", "piii");
    LLVMValueRef ctx = emit_param(e, 0);
    LLVMValueRef from = emit_at(e, e->f32, emit_slot(a->e, ctx, work), at);
    Loop l, c;
    loop_begin(e, &l, emit_param(e, 1), emit_param(e, 2), 1, 0, NULL);
    LLVMValueRef row = emit_muli(e, l.i, width);
    loop_begin(e, &c, emit_i64(e, 0), emit_i64(e, width), e->vl, 0, NULL);
    LLVMValueRef mask = emit_tail_mask(e, emit_sub(e, emit_i64(e, width), c.i));
    if (!left) mask = NULL;
    LLVMValueRef x = emit_add(e, row, c.i), sum = NULL, place = attn_f32(a, from, x);
    for (int64_t p = 0; p < a->parts; p++) {
        LLVMValueRef part = emit_at(e, e->f32, place, p * rows * width);
        part = emit_load(e, e->vf32, part, mask, 4);
        sum = sum ? emit_fadd(e, sum, part) : part;
    }
    attn_store(a, sum, attn_tensor(a, ctx, to, x), mask);
    loop_end(e, &c, NULL);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}
