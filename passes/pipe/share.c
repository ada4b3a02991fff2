/* share.c - functions that do the same become one, so that the layers of all chunks of a stage
 * are compiled once. Level local.
 *     %y = call %x, %w {fn=@layer.fwd.1; ...}; %z = call %y, %v {fn=@layer.fwd.2; ...}
 *     -> %y = call %x, %w {fn=@layer.fwd.1; ...}; %z = call %y, %v {fn=@layer.fwd.1; ...}
 * Names of values do not count. Tasks stay as they are: what runs is told by them. */
#include "passes/passes.h"

static void call_shared(Func *f, Func *const *instead) {
    for (Op *op = f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        if (callee && instead[callee->nth] != callee)
            op_set_func(op, instead[callee->nth]);
    }
}

/* Callees come first, so that equal callers call the same. */
void pass_share(Module *m, const PassOptions *o) {
    (void)o;
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    FuncSet kept = {.mem = mem};
    Func **instead = module_order(mem, m); /* by number: what is called */
    for (int i = 0; order[i]; i++) {
        Func *f = order[i];
        call_shared(f, instead);
        if (f->role == ROLE_FUNC && !f->task) instead[i] = func_set_take(&kept, f);
    }
    module_remove_unused(m);
    arena_free(mem);
}
