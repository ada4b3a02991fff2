/* sink.c - moves ops into functions, to run concurrently with what the function computes.
 * Level local.
 *     %g = call %x {fn=@f}; %s = add %acc, %g          a sum over micro-batches
 *     -> %s = call %x, %acc {fn=@f}        where @f makes the sum, in the buffer of %acc
 *     %dw = call ... {fn=@layer.bwd; times=12; ...}; %r = reduce_scatter %dw
 *     -> the collective of a layer is in @layer.bwd, concurrent with the rest of backward
 *     %w = all_gather %part; %y = call %x, %w {fn=@layer; times=12; carry=1; each=1}
 *     -> @layer gathers its own weights, and hands them out if they are needed again
 *     %a, %b = call ... {fn=@f.x2}; %s = add %a, %b        the parts of a micro-batch
 *     -> %s = call ... {fn=@f.x2}
 * In a loop the op must do the same to every slice of dimension 0. Sums always move, so
 * that a matmul can add to them; collectives move where `overlap` says so, if a slice is
 * worth a message and, where they are there to be hidden, less is waited for. If the function
 * has other calls, this call gets a copy of it. */
#include "ir/placement.h"
#include "passes/comm/cost.h"
#include "passes/passes.h"

/* Of functions: a step has a few; a text with calls of calls could want any number. */
enum { MAX_COPIES = 256 };

typedef struct Sink {
    Module *m;
    int overlap; /* as in PassOptions */
    Cost cost;
    /* Of the function that is looked at, by value id: how often it is read (as a result too),
     * and by which op last. */
    Arena *mem;
    int *uses;
    Op **reader;
    int copies;
} Sink;

static bool is_own(const Op *call) {
    const Func *f = op_func(call);
    return !func_is_entry(f) && f->calls == 1;
}

static void count_calls_in(const Func *f) {
    for (const Op *op = f->first; op; op = op->next)
        if (op_is_call(op)) op_func(op)->calls++;
}

static void count_calls(Module *m) {
    for (Func *f = m->first; f; f = f->next) f->calls = 0;
    for (Func *f = m->first; f; f = f->next) count_calls_in(f);
}

/* Where a collective of a result would end, in calls within calls: how often it would run there,
 * and beside how many seconds of work that come after. */
typedef struct Innermost {
    int64_t runs;
    double work;
} Innermost;

static Innermost innermost_of(const Sink *s, const Value *v) {
    Innermost in = {.runs = 1};
    const Func *f = v->def->fn;
    while (v->def && op_calls_ops(v->def)) {
        in.runs *= call_of(v->def).times;
        f = op_func(v->def);
        v = f->ret[v->nth];
    }
    for (const Op *at = v->def ? v->def->next : f->first; at; at = at->next)
        in.work += cost_of(&s->cost, at);
    return in;
}

/* Collectives that make less of what they are given, or more, take less memory inside; others are
 * there to be hidden. */
static bool is_worth_it(const Sink *s, const Op *op, const Op *call) {
    bool same = type_bytes(&op->in[0]->ty) == type_bytes(&op->out[0]->ty);
    if (!same || op->in[0]->def != call)
        return cost_fills_message(&s->cost, op, call_of(call).times);
    Innermost in = innermost_of(s, op->in[0]);
    return cost_fills_message(&s->cost, op, in.runs) &&
           cost_pays_apart(&s->cost, op, in.runs, in.work);
}

static bool moves(const Sink *s, const Op *op, const Op *call) {
    unsigned flags = optab[op->kind].flags;
    if (op->nout != 1) return false;
    if (s->copies == MAX_COPIES && !is_own(call)) return false;
    if (!(flags & F_COMM)) return (flags & F_PLUS) != 0;
    if (!s->overlap || op->nin != 1) return false;
    return s->overlap > 1 || is_worth_it(s, op, call);
}

/* Does the op do the same to each slice of dimension 0? */
static bool acts_on_slices(const Op *op) {
    for (const Attr *a = op->attr; a; a = a->next)
        if (a->kind == ATTR_DIM && (a->i == 0 || a->i == -op->in[0]->ty.rank))
            return false;
    if (optab[op->kind].flags & F_COMM) return true;
    for (int i = 0; i < op->nin; i++) {
        if (!type_same_shape(&op->in[i]->ty, &op->out[0]->ty)) return false;
    }
    return (optab[op->kind].flags & F_MAP) && !op_attr(op, "rule");
}

/* The op on one slice (loops) or as it is. */
static Op *op_inside(Builder *b, const Op *op, Value **in, bool sliced) {
    Op *copy = op_again(b, op, in);
    if (sliced) copy->out[0]->ty = type_slice(&op->out[0]->ty);
    for (Attr *a = copy->attr; sliced && a; a = a->next)
        if (a->kind == ATTR_DIM && a->i > 0) a->i--;
    return copy;
}

/* The callee, of which this is the only call from now on. An entry keeps its arguments. */
static Func *own_callee(Sink *s, Op *call) {
    Func *f = op_func(call);
    if (is_own(call)) return f;
    Func *copy = func_clone(f, f->name, ROLE_FUNC);
    cost_add(&s->cost, copy);
    s->copies++;
    f->calls--;
    copy->calls = 1;
    count_calls_in(copy);
    op_set_func(call, copy);
    return copy;
}

/* Room for one more operand and argument at `at`. */
static Value *add_operand(Op *call, Func *callee, int at, Value *v, Type ty) {
    Arena *mem = callee->mod->mem;
    Value **in = NEW_ARRAY(mem, Value *, (size_t)call->nin + 1);
    memcpy(in, call->in, (size_t)at * sizeof *in);
    in[at] = v;
    memcpy(in + at + 1, call->in + at, (size_t)(call->nin - at) * sizeof *in);
    call->in = in;
    call->nin++;
    return func_arg_at(callee, at, v->name, ty);
}

/* One more operand of which every run sees its slice, or the whole of a plain call. */
static Value *add_each(Op *call, Func *callee, Value *v, const Type *slice) {
    const Call c = call_of(call);
    int at = c.loop ? c.carry + c.each : call->nin;
    if (c.loop) op_set_int(call, "each", c.each + 1);
    return add_operand(call, callee, at, v, *slice);
}

/* ---- after a call ---- */

/* Stays right when ops go up; not when they go down. */
static void count_uses(Sink *s, Func *f) {
    s->mem = arena_new();
    func_number(f);
    s->uses = func_uses(s->mem, f);
    s->reader = NEW_ARRAY(s->mem, Op *, (size_t)f->nvalues + 1);
    for (Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) s->reader[op->in[i]->id] = op;
}

/* The one op that reads result j of the call, if it alone does. */
static Op *only_reader(const Sink *s, const Op *call, int j) {
    int id = call->out[j]->id;
    return s->uses[id] == 1 ? s->reader[id] : NULL;
}

/* May `out` take the buffer of v, which one op of the function that is looked at reads on the way
 * to it? */
static bool gives_buffer(const Sink *s, const Func *f, const Value *v, const Value *out) {
    if (!type_same_shape(&v->ty, &out->ty) || s->uses[v->id] != 1) return false;
    if (v->def) return true;
    int r = func_result_over(f, v->nth);
    return r >= 0 && f->ret[r] == out;
}

/* May the op have the value where it is made: does the call make it, for it alone? */
static bool is_inside(const Sink *s, const Op *call, const Value *v, const Op *op) {
    bool carried = v->nth < call_of(call).carry;
    return v->def == call && only_reader(s, call, v->nth) == op && !carried;
}

/* Of the results of the call that the op reads, at most one is over an argument; so may
 * one be that the op gets from elsewhere. */
static bool one_buffer(const Op *call, const Op *op) {
    const Func *callee = op_func(call);
    int over = 0, outer = 0;
    for (int i = 0; i < op->nin; i++) {
        outer += op->in[i]->def != call;
        if (op->in[i]->def == call) over += callee->alias[op->in[i]->nth] >= 0;
    }
    return over + (over && outer) <= 1;
}

static bool can_go_up(const Sink *s, const Op *call, const Op *op) {
    if (!op || !moves(s, op, call)) return false;
    if (op_is_loop(call) && !acts_on_slices(op)) return false;
    for (int i = 0; i < op->nin; i++) {
        const Value *v = op->in[i];
        bool before = !v->def || v->def->id < call->id;
        if (!is_inside(s, call, v, op) && !before) return false;
    }
    return one_buffer(call, op);
}

/* Behind the ops of the callee that make what op reads of the call. */
static Builder build_behind_read(Func *f, const Op *call, const Op *op) {
    Op *last = NULL;
    int reads = 0;
    for (int i = 0; i < op->nin; i++) reads += op->in[i]->def == call;
    if (reads > 1) func_number(f);
    for (int i = 0; i < op->nin; i++) {
        const Value *v = op->in[i];
        Op *def = v->def == call ? f->ret[v->nth]->def : NULL;
        if (def && (!last || def->id > last->id)) last = def;
    }
    return last ? build_behind(last) : build_at_start(f);
}

typedef struct Sum { /* of ops of one type, which are added up two by two */
    Arena *mem;
    Value **term;
    Op **add;
    int nterms, term_cap, nadds, add_cap;
} Sum;

static bool is_plain_sum(const Op *op) {
    if (!op || !op_has(op, F_PLUS) || op_attr(op, "rule")) return false;
    return type_same_shape(&op->in[0]->ty, &op->out[0]->ty) &&
           type_same_shape(&op->in[1]->ty, &op->out[0]->ty);
}

static void list_terms(Sum *s, const Func *f, Op *last) {
    PUSH(s->mem, s->term, s->nterms, s->term_cap, last->out[0]);
    for (int i = 0; i < s->nterms;) {
        Op *op = s->term[i]->def;
        bool inside = op == last || (op && value_uses(f, op->out[0]) == 1);
        if (!inside || !is_plain_sum(op)) {
            i++;
            continue;
        }
        s->term[i] = op->in[0];
        PUSH(s->mem, s->term, s->nterms, s->term_cap, op->in[1]);
        PUSH(s->mem, s->add, s->nadds, s->add_cap, op);
    }
}

static void sort_terms(Sum *s) {
    for (int i = 1; i < s->nterms; i++)
        for (int k = i; k > 0; k--) {
            Value *a = s->term[k - 1], *b = s->term[k];
            if (!a->def || (b->def && a->def->id <= b->def->id)) break;
            s->term[k - 1] = b;
            s->term[k] = a;
        }
}

/* Each term is added when it is made, so that none of them waits for the others: `last` is
 * the whole sum. Returns the first term. */
static Value *add_as_made(Func *f, Op *last) {
    Sum s = {.mem = arena_new()};
    list_terms(&s, f, last);
    func_number(f);
    sort_terms(&s);
    Value *old = last->out[0], *first = s.term[0], *sum = first;
    for (int i = 1; i < s.nterms && s.nadds > 1; i++) {
        Op *def = s.term[i]->def, *at = sum->def;
        if (def && (!at || def->id > at->id)) at = def;
        Builder b = at ? build_behind(at) : build_at_start(f);
        b.line = last->line;
        sum = build1(&b, last->kind, NULL, sum, s.term[i], NULL);
        sum->def->id = at ? at->id : -1;
        sum->name = old->name;
        sum->grad_of = old->grad_of;
    }
    if (s.nadds > 1) {
        func_replace(f, old, sum);
        for (int i = 0; i < s.nadds; i++) op_remove(s.add[i]);
    }
    arena_free(s.mem);
    return first;
}

/* Result j of the call is a sum with result `other`. What it is added to begins with may be
 * the accumulator that the caller's result is over. */
static void join_results(Sink *s, Op *call, Func *callee, int j, int other) {
    func_drop_result(callee, other, &call, 1);
    j -= other < j;
    const Value *first = add_as_made(callee, callee->ret[j]->def);
    bool sum = !first->def && value_uses(callee, first) == 1;
    if (callee->alias[j] >= 0 || !sum) return;
    if (gives_buffer(s, call->fn, call->in[first->nth], call->out[j]))
        callee->alias[j] = first->nth;
}

/* What reads `old`, behind an op, reads `v`, which nothing else does. */
static void hand_uses(Sink *s, const Op *behind, Value *old, Value *v) {
    Func *f = behind->fn;
    int n = s->uses[v->id] = s->uses[old->id];
    Op *only = s->reader[v->id] = s->reader[old->id];
    if (n == 1 && only) {
        op_replace_in(only, old, v);
        return;
    }
    for (Op *at = behind->next; at; at = at->next) op_replace_in(at, old, v);
    for (int i = 0; i < f->nret; i++)
        if (f->ret[i] == old) f->ret[i] = v;
}

/* `op`, which reads result j of the call, is done by the callee. */
static void go_up(Sink *s, Op *call, int j, Op *op) {
    Func *callee = own_callee(s, call), *f = call->fn;
    Value *in[2], *inner = callee->ret[j];
    Builder b = build_behind_read(callee, call, op);
    int alias = callee->alias[j], other = -1;
    bool sliced = op_is_loop(call);
    check(op->nin <= ARRAY_LEN(in));
    for (int i = 0; i < op->nin; i++) {
        Value *v = op->in[i];
        if (v->def == call) {
            in[i] = callee->ret[v->nth];
            if (v->nth != j) other = v->nth;
            continue;
        }
        bool gives = gives_buffer(s, f, v, op->out[0]);
        in[i] = add_each(call, callee, v, sliced ? &inner->ty : &v->ty);
        s->reader[v->id] = call;
        if (alias < 0 && gives) alias = in[i]->nth;
    }
    if (alias < 0 && other >= 0) alias = callee->alias[other];
    Op *made = op_inside(&b, op, in, sliced);
    made->out[0]->name = op->out[0]->name;
    if (alias >= 0 && !type_same_shape(&callee->arg[alias]->ty, &made->out[0]->ty))
        alias = -1;
    callee->ret[j] = made->out[0];
    callee->alias[j] = alias;
    call->out[j]->ty = op->out[0]->ty;
    call->out[j]->name = op->out[0]->name;
    hand_uses(s, op, op->out[0], call->out[j]);
    op_remove(op);
    if (other >= 0) join_results(s, call, callee, j, other);
}

/* ---- before a call ---- */

static int uses_in(const Op *op, const Value *v, int *operand) {
    int n = 0;
    for (int i = 0; i < op->nin; i++) {
        if (op->in[i] == v) n++, *operand = i;
    }
    return n;
}

/* An argument, as it is or rounded. */
static bool is_given(const Value *v) {
    const Op *def = v->def;
    return !def || (op_has(def, F_CAST) && !def->in[0]->def);
}

/* Of a collective that could start with its function and takes memory when it does: the
 * first op that reads the result, if it is a call that can do it itself. */
static Op *call_below(const Op *op, int *operand) {
    const Value *v = op->out[0];
    if (!is_given(op->in[0]) || type_bytes(&op->in[0]->ty) >= type_bytes(&v->ty))
        return NULL;
    for (Op *at = op->next; at; at = at->next) {
        int n = uses_in(at, v, operand);
        if (!n) continue;
        if (n > 1 || !op_calls_ops(at)) return NULL;
        const Call c = call_of(at);
        return !c.loop || (call_slices(&c, *operand) && acts_on_slices(op)) ? at : NULL;
    }
    return NULL;
}

static void go_down(Sink *s, Op *op, Op *call, int operand) {
    Func *callee = own_callee(s, call), *f = op->fn;
    Value *arg = callee->arg[operand], *v = op->out[0];
    arg->ty = op_is_loop(call) ? type_slice(&op->in[0]->ty) : op->in[0]->ty;
    Builder b = build_at_start(callee);
    Op *made = op_inside(&b, op, &arg, op_is_loop(call));
    made->out[0]->name = v->name;
    value_replace_behind(arg, made->out[0]);
    call->in[operand] = op->in[0];
    if (value_uses(f, v)) {
        func_ret(callee, made->out[0], -1);
        Value *out = op_add_result(call, v->ty);
        out->name = v->name;
        func_replace(f, v, out);
    }
    op_remove(op);
}

/* ---- the module ---- */

/* All that go up into the call. */
static bool move_up(Sink *s, Op *call) {
    bool moved = false;
    for (int j = 0; j < call->nout; j++) {
        Op *reader = only_reader(s, call, j);
        if (!can_go_up(s, call, reader)) continue;
        go_up(s, call, j, reader);
        moved = true;
        j = -1; /* results are others */
    }
    return moved;
}

/* From the start to the end, or to the first that goes down. */
static bool move_in(Sink *s, Func *f) {
    bool moved = false;
    for (Op *op = f->first; op; op = op->next) {
        int operand;
        if (op_calls_ops(op)) {
            moved |= move_up(s, op);
        } else if ((optab[op->kind].flags & F_COMM) && op->nout == 1) {
            Op *call = call_below(op, &operand);
            if (!call || !moves(s, op, call)) continue;
            if (func_result_over(op_func(call), operand) >= 0) continue;
            go_down(s, op, call, operand);
            return true;
        }
    }
    return moved;
}

static bool moves_in_turn(Sink *s, Func *f) {
    count_uses(s, f);
    bool moved = move_in(s, f);
    arena_free(s->mem);
    return moved;
}

/* Callees first: what can move in a function has moved when it is copied for one of its
 * calls, so copies do not multiply what is still to be moved. */
void pass_sink(Module *m, const PassOptions *o) {
    Sink s = {.m = m, .overlap = o->overlap};
    bool moved;
    Arena *of_cost = arena_new();
    s.cost = cost_new(of_cost, m, o);
    Func **all = module_order(of_cost, m);
    for (int i = 0; all[i]; i++) cost_add(&s.cost, all[i]);
    count_calls(m);
    do {
        Arena *mem = arena_new();
        Func **order = module_order(mem, m);
        moved = false;
        for (int i = 0; order[i]; i++) {
            while (order[i]->role != ROLE_KERNEL && moves_in_turn(&s, order[i]))
                moved = true;
        }
        arena_free(mem);
    } while (moved);
    arena_free(of_cost);
    module_remove_unused(m);
}
