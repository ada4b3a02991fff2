/* turn_parts.c - see turn_parts.h. */
#include "codegen/turn_parts.h"

void turn_parts(Emit *e, TurnLine line, const void *ctx, int parts, LLVMValueRef to,
                int64_t row, int64_t part) {
    const int64_t vl = e->vl;
    LLVMValueRef zero = emit_i64(e, 0), word[BF16_PARTS], v[16];
    LLVMValueRef room = emit_alloca(e, 4 * vl * vl * parts);
    Loop t, q;
    loop_begin(e, &t, zero, emit_i64(e, vl), 1, 0, NULL);
    line(ctx, t.i, word);
    LLVMValueRef at = emit_gep(e, e->f32, room, emit_muli(e, t.i, vl));
    for (int i = 0; i < parts; i++)
        emit_store(e, word[i], emit_at(e, e->f32, at, i * vl * vl), NULL, 4);
    loop_end(e, &t, NULL);
    loop_begin(e, &q, zero, emit_i64(e, parts), 1, 0, NULL);
    at = emit_gep(e, e->f32, room, emit_muli(e, q.i, vl * vl));
    to = emit_gep(e, e->f32, to, emit_muli(e, q.i, part));
    for (int64_t i = 0; i < vl; i++)
        v[i] = emit_load(e, e->vf32, emit_at(e, e->f32, at, i * vl), NULL, 4);
    emit_transpose(e, v);
    for (int64_t i = 0; i < vl; i++)
        emit_store(e, v[i], emit_at(e, e->f32, to, i * row), NULL, 4);
    loop_end(e, &q, NULL);
}
