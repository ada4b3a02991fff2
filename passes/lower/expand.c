/* expand.c - composite ops in terms of primitive ones, by the expand hook of their row.
 *     level local; %y, %m, %r = layernorm ...  ->  sum, scale, sub, mul, ... */
#include "passes/passes.h"

static void expand_func(Func *f) {
    Arena *mem = arena_new();
    Renames r = renames_new(mem, f);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        renames_reach(&r, op);
        if (!optab[op->kind].expand) continue;
        Builder b = build_before(op);
        Value *out[MAX_TERMS] = {NULL};
        optab[op->kind].expand(&b, op, out);
        for (int i = 0; i < op->nout; i++) {
            out[i]->name = op->out[i]->name;
            r.now[op->out[i]->id] = out[i];
        }
        op_remove(op);
    }
    renames_end(&r);
    arena_free(mem);
}

void pass_expand(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) expand_func(f);
}
