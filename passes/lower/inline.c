/* inline.c - a function that is called once, and in no loop, becomes a part of its caller. Level
 * fused.
 *
 * A frame holds whole the frames of the functions that are called, so values of two functions
 * share memory only where one function's are all dead. In one frame each value has its own
 * life: what forward keeps makes room for the gradients of a step with one micro-batch. Ops of
 * the model say by `model=1` that they were in it, or 2 of a second one in that function. */
#include "passes/passes.h"

/* A task of a schedule stays a call: it is what timelines show. */
static bool goes_inline(const Module *m, const Op *op) {
    const Func *f = op_is_call(op) ? op_func(op) : NULL;
    return f && f->role == ROLE_FUNC && !f->task && !call_of(op).loop &&
           only_call(m, f) == op;
}

/* model: a number for the ops, 0: none. */
static void inline_call(Func *caller, Op *op, int model) {
    Func *f = op_func(op);
    func_number(f);
    Value **map = NEW_ARRAY(caller->mod->mem, Value *, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++) map[f->arg[i]->id] = op->in[i];
    Builder b = build_before(op);
    for (const Op *of = f->first; of; of = of->next) {
        Op *copy = op_clone(&b, of, map);
        if (model) op_set_int(copy, "model", model);
    }
    for (int i = 0; i < op->nout; i++)
        func_replace(caller, op->out[i], map[f->ret[i]->id]);
    op_remove(op);
}

void pass_inline(Module *m, const PassOptions *o) {
    (void)o;
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    for (int i = 0; order[i]; i++) {
        int models = 0;
        for (Op *op = order[i]->first, *next; op; op = next) {
            next = op->next;
            if (!goes_inline(m, op)) continue;
            bool model = func_is_gradient(op_func(op));
            inline_call(order[i], op, model ? ++models : 0);
        }
    }
    module_remove_unused(m);
    arena_free(mem);
}
