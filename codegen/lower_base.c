/* lower_base.c - what the lowering of every op needs. */
#include "codegen/lower.h"
#include "ir/placement.h"

LLVMValueRef lower_pointer(Lower *l, const Value *v) {
    if (!v->def) return l->arg[v->nth];
    switch (v->loc.kind) {
    case LOC_FRAME:
        return emit_at(l->e, l->e->i8, l->frame, v->loc.at);
    case LOC_ARG:
        return l->arg[v->loc.at];
    case LOC_RET:
        return l->ret[v->loc.at];
    default:
        die("%%%s has no location", v->name);
    }
}

LLVMValueRef lower_workspace(Lower *l, const Op *op, int64_t skip_bytes) {
    if (!op_attr(op, "ws") || skip_bytes > op_int(op, "ws_bytes", 0))
        die("%s of @%s has no workspace of more than %lld bytes", optab[op->kind].name,
            op->fn->name, (long long)skip_bytes);
    return emit_at(l->e, l->e->i8, l->frame, op_int(op, "ws", 0) + skip_bytes);
}

LLVMValueRef lower_workspace_if_any(Lower *l, const Op *op) {
    return op_attr(op, "ws") ? lower_workspace(l, op, 0) : l->frame;
}

const char *lower_symbol(Lower *l, const Func *f) {
    return arena_printf(l->mem, "stator:%s", f->name);
}

_Noreturn void lower_refuse(const Op *op, const char *why) {
    fail_op(op, "no code can be generated for %s: %s", optab[op->kind].name, why);
}
