/* attention_rows.c - see attention_rows.h. */
#include "codegen/attention_rows.h"
#include "codegen/attention_pack.h"

LLVMValueRef attn_load_words(const Attn *a, LLVMValueRef row, LLVMValueRef w, int width) {
    Emit *e = a->e;
    if (!a->narrow) {
        LLVMValueRef mask = width < e->vl ? emit_tail_mask(e, emit_i64(e, width)) : NULL;
        return attn_load(a, attn_element(a, row, w), mask);
    }
    LLVMValueRef at = attn_element(a, row, emit_muli(e, w, 2));
    if (width == e->vl && a->s.dim % 2 == 0) return emit_load(e, e->vf32, at, NULL, 2);
    LLVMTypeRef halves = emit_vec(e->i16, 2 * e->vl);
    LLVMValueRef lane[32], n = emit_sub(e, emit_i64(e, a->s.dim), emit_muli(e, w, 2));
    for (int i = 0; i < 2 * e->vl; i++) lane[i] = emit_i32(e, i);
    LLVMValueRef iota = LLVMConstVector(lane, (unsigned)(2 * e->vl));
    n = emit_imini(e, n, 2 * width);
    n = emit_splat_n(e, LLVMBuildTrunc(e->b, n, e->i32, ""), 2 * e->vl);
    LLVMValueRef mask = emit_icmp(e, LLVMIntSLT, iota, n);
    LLVMValueRef x = emit_load(e, halves, at, mask, 2);
    return LLVMBuildBitCast(e->b, x, e->vf32, "");
}

/* vl numbers of a row, as f32, from number n of the head on; `some`: there may be less. */
static LLVMValueRef load_numbers(const Attn *a, LLVMValueRef row, LLVMValueRef n,
                                 bool some) {
    Emit *e = a->e;
    LLVMValueRef left = emit_sub(e, emit_i64(e, a->s.dim), n);
    LLVMValueRef mask = some ? emit_tail_mask(e, left) : NULL;
    return attn_load(a, attn_element(a, row, n), mask);
}

void attn_tile_words(const Attn *a, LLVMValueRef row, LLVMValueRef w, int width,
                     LLVMValueRef scale, LLVMValueRef *word) {
    Emit *e = a->e;
    if (a->narrow) {
        word[0] = attn_load_words(a, row, w, width);
        return;
    }
    const bool some = width < e->vl || a->s.dim % 2;
    LLVMValueRef first = emit_muli(e, w, 2), part[2][BF16_PARTS];
    for (int i = 0; i < 2; i++) {
        LLVMValueRef n = emit_addi(e, first, i * e->vl);
        LLVMValueRef x = load_numbers(a, row, n, some);
        if (scale) x = emit_fmul(e, x, scale);
        emit_split_bf16(e, x, part[i]);
    }
    for (int q = 0; q < a->tile_parts; q++)
        word[q] = emit_pair_up_parts(e, part[0][q], part[1][q], true);
}

void attn_spans(const Attn *a, bool from_q, LLVMValueRef from, LLVMValueRef to, int step,
                int64_t n, AttnSpan span) {
    Emit *e = a->e;
    int64_t stride = from_q ? a->q_row : a->kv_row, whole = n / e->vl * e->vl;
    Loop rows, columns;
    loop_begin(e, &rows, from, to, step, 0, NULL);
    if (whole) {
        loop_begin(e, &columns, emit_i64(e, 0), emit_i64(e, whole), e->vl, 0, NULL);
        span(a, rows.i, columns.i, e->vl, stride);
        loop_end(e, &columns, NULL);
    }
    if (n > whole) span(a, rows.i, emit_i64(e, whole), (int)(n - whole), stride);
    loop_end(e, &rows, NULL);
}

LLVMValueRef attn_width_mask(const Attn *a, int width) {
    return width < a->e->vl ? emit_tail_mask(a->e, emit_i64(a->e, width)) : NULL;
}

LLVMValueRef attn_memory_at(const Attn *a, LLVMValueRef ptr, LLVMValueRef r,
                            LLVMValueRef c, int64_t stride) {
    Emit *e = a->e;
    return attn_element(a, ptr, emit_add(e, emit_muli(e, r, stride), c));
}

void attn_pair_words(const Attn *a, const LLVMValueRef *x, LLVMValueRef *word) {
    Emit *e = a->e;
    LLVMValueRef part[2][BF16_PARTS];
    if (a->narrow) {
        word[0] = emit_pair_up(e, x[0], x[1]);
        return;
    }
    for (int i = 0; i < 2; i++) emit_split_bf16(e, x[i], part[i]);
    for (int q = 0; q < a->tile_parts; q++)
        word[q] = emit_pair_up_parts(e, part[0][q], part[1][q], false);
}

LLVMValueRef attn_load_row(const Attn *a, LLVMValueRef at, LLVMValueRef mask) {
    Emit *e = a->e;
    if (!a->narrow) return attn_load(a, at, mask);
    return emit_load(e, emit_vec(e->i16, e->vl), at, mask, 2);
}

void attn_pair_of_rows(const Attn *a, LLVMValueRef r, LLVMValueRef c, LLVMValueRef mask,
                       int64_t stride, LLVMValueRef *word) {
    Emit *e = a->e;
    LLVMValueRef src = emit_param(e, 0), x[2];
    LLVMValueRef next = emit_addi(e, r, 1);
    LLVMValueRef there = emit_icmp(e, LLVMIntSLT, next, emit_param(e, 2));
    next = emit_select(e, there, next, r);
    x[0] = attn_load_row(a, attn_memory_at(a, src, r, c, stride), mask);
    x[1] = attn_load_row(a, attn_memory_at(a, src, next, c, stride), mask);
    x[1] = emit_select(e, there, x[1], LLVMConstNull(LLVMTypeOf(x[1])));
    attn_pair_words(a, x, word);
}

void attn_zeros(const Attn *a, LLVMValueRef dst, LLVMValueRef from, LLVMValueRef to) {
    Emit *e = a->e;
    Loop l;
    loop_begin(e, &l, from, to, e->vl, 0, NULL);
    emit_store(e, LLVMConstNull(e->vf32), attn_f32(a, dst, l.i), NULL, 4);
    loop_end(e, &l, NULL);
}

void attn_fetch(const Attn *a, LLVMValueRef ptr, LLVMValueRef rows, int64_t row) {
    Emit *e = a->e;
    const int64_t bytes = dtype_bytes[a->s.dt] * a->s.dim;
    Loop r;
    loop_begin(e, &r, emit_i64(e, 0), rows, 1, 0, NULL);
    LLVMValueRef from = attn_element(a, ptr, emit_muli(e, r.i, row));
    for (int64_t byte = 0; byte < bytes; byte += EMIT_LINE_BYTES)
        emit_prefetch(e, emit_at(e, e->i8, from, byte), false, 2);
    loop_end(e, &r, NULL);
}
