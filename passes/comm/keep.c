/* keep.c - what one call exchanged is handed to the next call in its exchanged form, so
 * that it is not exchanged again there. Level local.
 *     @f: %y = all_to_all %q; ...; return %q          @g(%q): %y = all_to_all %q; ...
 *     -> @f: ...; return %y                           @g(%y): ...
 * where @f's result is used by @g only, such as what the forward of a layer saves for its
 * backward. Only where the exchanged form takes no more memory: a gather is done
 * again. */
#include "ir/placement.h"
#include "passes/passes.h"

/* The only use of the argument, a collective that makes it no larger; or NULL. */
static Op *exchange_of(const Func *f, const Value *arg) {
    Op *op = value_only_reader(f, arg);
    bool fits = op && op->nin == 1 && op->nout == 1 && op_has(op, F_COMM) &&
                type_bytes(&op->out[0]->ty) <= type_bytes(&arg->ty);
    return fits ? op : NULL;
}

static Value *same_exchange(const Func *f, const Value *v, const Op *like) {
    for (const Op *op = f->first; op; op = op->next) {
        bool same = op->kind == like->kind && op->nin == 1 && op->in[0] == v;
        if (same && attrs_equal(op->attr, like->attr)) return op->out[0];
    }
    return NULL;
}

/* Is operand i the stack of what the runs of `from` made, of which each run of `to` sees the
 * one of the same number? Or are both plain calls? */
static bool run_by_run(const Op *from, int j, const Op *to, int i) {
    const Call a = call_of(from), b = call_of(to);
    if (a.loop != b.loop) return false;
    return !a.loop || (a.times == b.times && j >= a.carry && call_slices(&b, i));
}

static void set_slices(Value *v, const Type *slice, const Op *call) {
    const Call c = call_of(call);
    v->ty = c.loop ? type_stack(slice, c.times) : *slice;
}

static void visit(Module *m, Op *to, int i) {
    Value *v = to->in[i];
    Op *from = v->def;
    if (!from || !op_is_call(from)) return;
    Func *f = op_func(from), *g = op_func(to);
    int j = v->nth;
    if (f == g || f->role == ROLE_KERNEL || f->alias[j] >= 0) return;
    if (func_is_entry(f) || func_is_entry(g)) return;
    if (!run_by_run(from, j, to, i)) return;
    Op *again = exchange_of(g, g->arg[i]);
    Value *made = again ? same_exchange(f, f->ret[j], again) : NULL;
    if (!made || value_uses(to->fn, v) != 1) return;
    if (only_call(m, f) != from || only_call(m, g) != to) return;
    f->ret[j] = made;
    set_slices(v, &made->ty, from);
    g->arg[i]->ty = made->ty;
    g->arg[i]->name = v->name = made->name;
    func_replace(g, again->out[0], g->arg[i]);
    op_remove(again);
}

void pass_keep(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first; op; op = op->next) {
            bool call = op_calls_ops(op);
            for (int i = 0; call && i < op->nin; i++) visit(m, op, i);
        }
    }
}
