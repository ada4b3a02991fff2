/* expand.c - composite ops in terms of primitive ones, by the expand hook of their row.
 *     level local; %y, %m, %r = layernorm ...  ->  sum, scale, sub, mul, ... */
#include "passes/passes.h"

static bool expand_op(Op *op, Value **out, void *context) {
    (void)context;
    if (!optab[op->kind].expand) return false;
    Builder b = build_before(op);
    op_expand(&b, op, out);
    return true;
}

void pass_expand(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) func_rewrite(f, expand_op, NULL);
}
