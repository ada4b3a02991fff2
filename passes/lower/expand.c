/* expand.c - composite ops in terms of primitive ones, by the expand hook of their row.
 *     level local; %y, %m, %r = layernorm ...  ->  sum, scale, sub, mul, ... */
#include "passes/passes.h"

static void expand_func(Func *f) {
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        if (!optab[op->kind].expand) continue;
        Builder b = build_before(op);
        Value *out[MAX_TERMS] = {NULL};
        optab[op->kind].expand(&b, op, out);
        for (int i = 0; i < op->nout; i++) {
            out[i]->name = op->out[i]->name;
            func_replace(f, op->out[i], out[i]);
        }
        op_remove(op);
    }
}

void pass_expand(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) expand_func(f);
}
