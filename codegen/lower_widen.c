/* lower_widen.c - f32 copies of narrow numbers, for ops that have no code of their own for
 * them; see lower.h. */
#include "codegen/lower.h"

int64_t lower_widened_bytes(const Value *v) {
    return align_up(type_count(&v->ty) * dtype_bytes[DT_F32]);
}

LLVMValueRef lower_widened(Lower *l, const Value *v, LLVMValueRef to) {
    CALL_RT(l->e, rt_widen, to, lower_pointer(l, v), emit_i64(l->e, type_count(&v->ty)),
            emit_i64(l->e, v->ty.dt));
    return to;
}

void lower_rounded(Lower *l, const Value *v, LLVMValueRef from) {
    CALL_RT(l->e, rt_round, lower_pointer(l, v), from, emit_i64(l->e, type_count(&v->ty)),
            emit_i64(l->e, v->ty.dt));
}
