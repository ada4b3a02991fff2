/* hoist.c - an argument that a function rounds is rounded by its callers, so that weights
 * are once a step and not once a layer and micro-batch. Level global or diffed.
 *     call %x, %w {fn=@f; times=n; carry=1; each=1}     @f: %w1 = cast %w : bf16[..]
 *  -> %w1 = cast %w : bf16[n,..]; call %x, %w1 {fn=@f; ...}
 * Only where every run sees the same argument or slices of it. Slices that a step takes once, as
 * one of a single micro-batch does, are left: each is rounded in forward and again in backward,
 * which takes a hundredth of a step, and no copy of all weights is kept between the two. What is
 * split over ranks, or stored by them in parts, is rounded before. What an entry gathers for readers
 * that all round it is rounded before it is gathered: half of the bytes, the same bits.
 *     %a = reshard %w : f32[6,6]; %b = cast %a : bf16[6,6]      %w: f32[6,6:dp]
 *  -> %c = cast %w : bf16[6,6:dp]; %b = reshard %c : bf16[6,6] */
#include "passes/passes.h"

typedef struct Calls { /* of one function */
    Op **op;
    int n, cap;
} Calls;

/* By Func.nth, of those in `order` (module_order). */
static Calls *list_calls(Arena *mem, Func **order) {
    int n = order_length(order);
    Calls *of = NEW_ARRAY(mem, Calls, (size_t)n + 1);
    for (int i = 0; i < n; i++)
        for (Op *op = order[i]->first; op; op = op->next) {
            const Func *f = op_callee(op);
            if (f) PUSH(mem, of[f->nth].op, of[f->nth].n, of[f->nth].cap, op);
        }
    return of;
}

static bool is_carried(const Calls *c, int i) {
    for (int k = 0; k < c->n; k++)
        if (call_of(c->op[k]).carry > i) return true;
    return false;
}

static bool is_sliced(const Calls *c, int i) {
    for (int k = 0; k < c->n; k++) {
        Call call = call_of(c->op[k]);
        if (call_slices(&call, i)) return true;
    }
    return false;
}

/* The argument of the entry whose elements operand i has, through callers that run once; NULL: there
 * is none. */
static const Value *given_once(const Calls *all, const Op *call, int i,
                               const Func **entry) {
    const Value *v = call->in[i];
    const Func *f = call->fn;
    for (;;) {
        while (v->def && v->def->nin == 1 && op_has(v->def, F_MOVE)) v = v->def->in[0];
        if (v->def) return NULL;
        if (func_is_entry(f)) break;
        const Calls *c = &all[f->nth];
        if (c->n != 1 || op_is_loop(c->op[0])) return NULL;
        call = c->op[0];
        v = call->in[v->nth];
        f = call->fn;
    }
    *entry = f;
    return v;
}

/* Are they slices, whole ones, that a step takes once? Not of what ranks store in parts: the copy
 * is what they gather, before the loop. */
static bool is_passing(const Calls *all, const Func *f, int i) {
    const Calls *c = &all[f->nth];
    if (type_axes(&f->arg[i]->ty)) return false;
    for (int k = 0; k < c->n; k++) {
        const Func *entry = NULL;
        Call call = call_of(c->op[k]);
        if (!call_slices(&call, i)) return false;
        const Value *v = given_once(all, c->op[k], i, &entry);
        if (!v || entry->role != ROLE_STEP) return false;
        if (attr_find(entry->arg_attr[v->nth], "zero")) return false;
    }
    return true;
}

static bool is_rounding(const Op *op) {
    if (!op_has(op, F_CAST)) return false;
    DType from = op->in[0]->ty.dt, to = op->out[0]->ty.dt;
    return dtype_is_float(from) && dtype_is_float(to) &&
           dtype_bytes[to] < dtype_bytes[from];
}

/* The first op that rounds v; NULL: none. */
static Op *rounds(const Func *f, const Value *v) {
    for (Op *op = f->first; op; op = op->next)
        if (is_rounding(op) && op->in[0] == v) return op;
    return NULL;
}

static Value *rounded(Op *before, Value *v, DType to) {
    Builder b = build_before(before);
    b.name = v->name;
    Value *made = build_cast(&b, v, to);
    made->grad_of = v->grad_of;
    return made;
}

/* Is it read by casts to this type alone? */
static bool is_read_as(const Func *f, const Value *v, DType to) {
    int casts = 0;
    for (const Op *op = f->first; op; op = op->next)
        casts += op_has(op, F_CAST) && op->in[0] == v && op->out[0]->ty.dt == to;
    return casts == value_uses(f, v);
}

static void drop_casts(Func *f, const Value *v, DType to, Value *narrow) {
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        if (!op_has(op, F_CAST) || op->in[0] != v || op->out[0]->ty.dt != to) continue;
        func_replace(f, op->out[0], narrow);
        op_remove(op);
    }
}

/* All casts of the argument to this type go; false: it stays in the function, since a stack
 * would have to be handed on twice. One that a result is written over keeps its type. */
static bool hoist_argument(Func *f, const Calls *c, int i, DType to) {
    Value *arg = f->arg[i];
    bool alone = is_read_as(f, arg, to) && func_result_over(f, i) < 0;
    if (!alone && is_sliced(c, i)) return false;
    Value *narrow = arg;
    if (!alone) {
        Type ty = arg->ty;
        ty.dt = to;
        narrow = func_arg(f, arg->name, ty);
    }
    for (int k = 0; k < c->n; k++) {
        Value *v = rounded(c->op[k], c->op[k]->in[i], to);
        if (alone)
            c->op[k]->in[i] = v;
        else
            op_add_operand(c->op[k], v);
    }
    drop_casts(f, arg, to, narrow);
    narrow->ty.dt = to;
    return true;
}

static Op *first_reader(const Func *f, const Value *v) {
    Op *op = f->first;
    while (op && !op_reads_value(op, v)) op = op->next;
    return op;
}

/* What is left is rounded where it is read first: it is in a cache then. */
static void round_late(Func *f, int i) {
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        if (!op_has(op, F_CAST) || op->in[0] != f->arg[i]) continue;
        Op *reader = first_reader(f, op->out[0]);
        if (!reader || reader == op->next) continue;
        func_replace(f, op->out[0], rounded(reader, f->arg[i], op->out[0]->ty.dt));
        op_remove(op);
    }
}

static void hoist_func(const Calls *all, Func *f, const PassOptions *o) {
    const Calls *c = &all[f->nth];
    if (!c->n || func_is_entry(f)) return;
    const int narg = f->narg;
    for (int i = 0; i < narg; i++) {
        Op *op = rounds(f, f->arg[i]);
        if (!op || is_carried(c, i)) continue;
        if (!o->hoist_slices && is_passing(all, f, i)) {
            round_late(f, i);
            continue;
        }
        while (op && hoist_argument(f, c, i, op->out[0]->ty.dt))
            op = rounds(f, f->arg[i]);
    }
}

/* A sum over ranks that is still to be made is not rounded before. */
static void round_before(Func *f, Op *op, const Op *cast) {
    Value *v = op->out[0], *from = op->in[0];
    if (from->ty.pending || from->ty.open_sum) return;
    DType to = cast->out[0]->ty.dt;
    if (!is_read_as(f, v, to)) return;
    op->in[0] = rounded(op, from, to);
    drop_casts(f, v, to, v);
    v->ty.dt = to;
}

static void round_what_is_gathered(Arena *mem, Func *f) {
    func_number(f);
    Op **round =
        NEW_ARRAY(mem, Op *, (size_t)f->nvalues + 1); /* by id: the last that does */
    for (Op *op = f->first; op; op = op->next)
        if (is_rounding(op)) round[op->in[0]->id] = op;
    for (Op *op = f->first; op; op = op->next)
        if (op->kind == OP_reshard && round[op->out[0]->id])
            round_before(f, op, round[op->out[0]->id]);
}

void pass_hoist(Module *m, const PassOptions *o) {
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    const Calls *all = list_calls(mem, order);
    for (int i = 0; order[i]; i++) {
        hoist_func(all, order[i], o);
        if (func_is_entry(order[i])) round_what_is_gathered(mem, order[i]);
    }
    arena_free(mem);
}
