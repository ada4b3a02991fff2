/* share.c - functions that do the same become one, so that the layers of all chunks of a stage
 * are compiled once. Level local.
 *     %y = call %x, %w {fn=@layer.fwd.1; ...}; %z = call %y, %v {fn=@layer.fwd.2; ...}
 *     -> %y = call %x, %w {fn=@layer.fwd.1; ...}; %z = call %y, %v {fn=@layer.fwd.1; ...}
 * Names of values do not count. Tasks stay as they are: what runs is told by them. */
#include "passes/passes.h"

typedef struct Shared {
    Func *f;
    uint64_t hash; /* func_hash */
} Shared;

static Func *equal_to(const Shared *list, int n, const Shared *one) {
    for (int i = 0; i < n; i++)
        if (list[i].hash == one->hash && funcs_same(list[i].f, one->f)) return list[i].f;
    return NULL;
}

static void call_shared(Func *f, Func *const *instead) {
    for (Op *op = f->first; op; op = op->next) {
        Func *callee = op_is_call(op) ? op_func(op) : NULL;
        if (callee && instead[callee->nth]) op_set_func(op, instead[callee->nth]);
    }
}

/* Callees come first, so that equal callers call the same. */
void pass_share(Module *m, const PassOptions *o) {
    (void)o;
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    int n = 0, nlist = 0;
    while (order[n]) n++;
    Shared *list = NEW_ARRAY(mem, Shared, (size_t)n + 1);
    Func **instead = NEW_ARRAY(mem, Func *, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        Func *f = order[i];
        call_shared(f, instead);
        if (f->role != ROLE_FUNC || f->task) continue;
        Shared one = {f, func_hash(f)};
        instead[f->nth] = equal_to(list, nlist, &one);
        if (!instead[f->nth]) list[nlist++] = one;
    }
    module_remove_unused(m);
    arena_free(mem);
}
