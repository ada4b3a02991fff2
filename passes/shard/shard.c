/* shard.c - propagates placements through the training step. Level diffed -> sharded.
 *
 * Seeds are the placements that types already have: those of arguments (every argument of
 * the entry is placed, without axes = whole on every rank) and of named values. From
 * there a walk in program order decides for each op and mesh axis which dimension of its
 * rule the axis splits: that of a parameter with a seed before that of a result with a
 * seed before that of any operand, and among equals the one that moves the fewest bytes.
 * A dimension that the result lacks leaves a partial sum, which linear ops pass on.
 * Nothing is moved here: pass reshard makes the mismatches explicit. */
#include "passes/shard/shard.h"
#include "passes/cost/message.h"

static FuncPlacements *placements_of(Shard *s, Func *f) {
    for (FuncPlacements *p = s->all; p; p = p->next) {
        if (p->f == f) return p;
    }
    FuncPlacements *p = NEW(s->mem, FuncPlacements);
    func_number(f);
    p->uses = func_uses(s->mem, f);
    p->f = f;
    p->at = NEW_ARRAY(s->mem, Placed, (size_t)f->nvalues + 1);
    p->over = NEW_ARRAY(s->mem, Over, (size_t)f->nops + 1);
    for (int i = 0; i < f->narg; i++) take_seed(s, p, f->arg[i]);
    for (Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) take_seed(s, p, op->out[i]);
    }
    p->next = s->all;
    return s->all = p;
}

/* Writes the placements of operands that are known so far into their types while an op is
 * decided, so that placement.c sees them. */
static void show_operands(FuncPlacements *p, Op *op) {
    for (int i = 0; i < op->nin; i++) op->in[i]->ty = placed(p, op->in[i])->ty;
}

/* ---- one op, one axis ---- */

static void vote(Votes *b, const Over *o, int term, const Type *t, int axis,
                 int priority) {
    for (int k = 0; k < o->d.rank[term]; k++) {
        if (!(t->split[k] >> axis & 1)) continue;
        int id = over_leader(&o->d, o->d.term[term][k]);
        if (b->priority[id] >= priority) continue;
        b->priority[id] = priority;
        b->term[id] = term;
    }
}

/* Bytes a rank sends when the axis splits `id`: operands that have it elsewhere are
 * exchanged or gathered, results that lack the dimension are sums. */
static double moved_bytes(const Op *op, const Over *o, int id, int axis) {
    const Mesh *m = &op->fn->mod->mesh;
    double bytes = 0, n = m->axis[axis].size;
    for (int i = 0; i < op->nin; i++) {
        const Type *t = &op->in[i]->ty;
        for (int k = 0; k < o->d.rank[i]; k++) {
            if (!(t->split[k] >> axis & 1) || over_leader(&o->d, o->d.term[i][k]) == id)
                continue;
            int kind = over_dim(o, i, id) >= 0 ? OP_all_to_all : OP_all_gather;
            bytes += message_sent(kind, type_part_bytes(m, t), n);
        }
    }
    for (int i = 0; i < op->nout; i++) {
        Type t = over_result(op, o, i);
        if (over_dim(o, o->d.nin + i, id) >= 0 || !dtype_is_float(t.dt)) continue;
        bytes += message_sent(OP_reduce_scatter, type_part_bytes(m, &t), n);
    }
    return bytes;
}

/* Can a partial sum of operands over the axis go on into the results? */
static bool hands_on(FuncPlacements *p, const Op *op, int axis) {
    SumOperands in = {0};
    for (int i = 0; i < op->nin; i++) {
        const Type *t = &placed(p, op->in[i])->ty;
        bool zero, free = is_free(p, op->in[i], &zero);
        sum_operand(&in, t, free, zero, t->pending >> axis & 1);
    }
    return sums_go_on(op, &in);
}

/* Has a sum over the axis fewer bytes behind an elementwise op than before it, as behind a sum of two
 * or a rounding, of values that nothing else reads? */
static bool sums_behind(FuncPlacements *p, const Op *op, int axis) {
    int64_t before = 0, behind = 0;
    if (!op_has(op, F_MAP) || !hands_on(p, op, axis)) return false;
    for (int i = 0; i < op->nin; i++) {
        const Type *t = &placed(p, op->in[i])->ty;
        if (!(t->pending >> axis & 1)) continue;
        before += type_bytes(t);
        if (p->uses[op->in[i]->id] > 1) return false;
    }
    for (int i = 0; i < op->nout; i++) behind += type_bytes(&op->out[i]->ty);
    return behind < before;
}

/* A gradient within a function has the placement of its value only if nothing else
 * decides; one that the function returns has it like a seed. */
static int result_priority(const FuncPlacements *p, const Placed *y, const Value *v) {
    if (!y->seed.open_sum) return PRIORITY_RESULT;
    return func_result(p->f, v) >= 0 ? PRIORITY_RESULT : PRIORITY_FOLLOWS;
}

enum { NONE = -1, INSIDE = -2 };

/* Which dimension does the axis split? Or NONE; INSIDE: one that a composite has whole. */
static int choose(Shard *s, FuncPlacements *p, Op *op, Over *o, int axis) {
    Votes b = {0};
    bool zero, inside = false;
    for (int i = 0; i < op->nin; i++) {
        if (is_free(p, op->in[i], &zero)) continue;
        const Placed *x = placed(p, op->in[i]);
        vote(&b, o, i, &x->ty, axis, x->priority);
    }
    for (int i = 0; i < op->nout; i++) {
        const Placed *y = placed(p, op->out[i]);
        if (annotated(y))
            vote(&b, o, o->d.nin + i, &y->seed, axis, result_priority(p, y, op->out[i]));
    }
    refuse_two_dimensions(s, p, op, o, &b, axis);
    Axes bit = (Axes)(1u << axis);
    for (int priority = PRIORITY_PARAMETER; priority > 0; priority--) {
        int best = -1;
        double least = 0;
        for (int id = 0; id < o->d.n; id++) {
            if (b.priority[id] != priority) continue;
            inside |= o->d.whole[id] && optab[op->kind].expand;
            if (!over_fits(op, o, id, o->split[id] | bit)) continue;
            double bytes = moved_bytes(op, o, id, axis);
            if (best < 0 || bytes < least) best = id, least = bytes;
        }
        if (inside) return INSIDE;
        if (best >= 0) return best;
    }
    return NONE;
}

/* Several axes on a dimension keep the order that an operand or seed has. */
static void keep_order(FuncPlacements *p, const Op *op, Over *o) {
    for (int term = 0; o->has_dims && term < op->nin + op->nout; term++) {
        const Placed *its = placed(p, op_term(op, term));
        const Type *t = term < op->nin ? &its->ty : &its->seed;
        for (int k = 0; k < o->d.rank[term]; k++) {
            Axes *at = &o->split[o->d.term[term][k]];
            if (t->split[k] == (*at | AXES_REVERSED)) *at = t->split[k];
        }
    }
}

static void place_result(FuncPlacements *p, Op *op, int i, bool follows,
                         const SeededDim *asked) {
    const Over *o = &p->over[op->id];
    Placed *y = placed(p, op->out[i]);
    Type gives = over_result(op, o, i);
    bool said = annotated(y) || op->kind == OP_reshard; /* which may say: whole */
    y->ty = said ? y->seed : gives;
    if (!said) trace_result(y, o, i, asked);
    if (y->ty.open_sum) y->ty.pending = gives.pending & (Axes)~type_axes(&y->ty);
    y->ty.open_sum = false;
    y->priority = annotated(y) || follows ? PRIORITY_FOLLOWS : 0;
    /* a parameter in another shape, or rounded, is as hard to move */
    if ((optab[op->kind].flags & (F_MOVE | F_CAST)) && op->nin == 1)
        y->priority = MAX(y->priority, placed(p, op->in[0])->priority);
}

/* False: it is a composite that is split inside. */
static bool decide(Shard *s, FuncPlacements *p, Op *op) {
    Over *o = &p->over[op->id];
    SeededDim asked[MAX_DIMS] = {0};
    *o = over_none(op);
    show_operands(p, op);
    trace_operands(s, p, op, o, asked);
    for (int a = 0; o->has_dims && a < s->m->mesh.naxes; a++) {
        if (s->m->mesh.axis[a].size == 1) continue;
        bool behind = sums_behind(p, op, a);
        int id = behind ? NONE : choose(s, p, op, o, a);
        if (id == INSIDE) return false;
        if (id >= 0)
            over_add(op, o, id, a);
        else if (behind || hands_on(p, op, a))
            o->passes |= (Axes)(1u << a);
    }
    keep_order(p, op, o);
    bool follows = false;
    for (int i = 0; i < op->nin; i++) follows |= type_is_split(&op->in[i]->ty);
    for (int i = 0; i < op->nout; i++) place_result(p, op, i, follows, asked);
    return true;
}

/* ---- functions ---- */

static void walk(Shard *s, FuncPlacements *p);

/* What an argument of the callee gets from the operand. Sums are finished before, but for
 * one that a loop goes on adding to. */
static void place_argument(FuncPlacements *p, FuncPlacements *callee, const Call *c,
                           int i) {
    const Placed *x = placed(p, c->op->in[i]);
    Placed *y = placed(callee, c->f->arg[i]);
    bool zero, sliced = call_slices(c, i);
    y->open = i < c->carry && is_free(p, c->op->in[i], &zero) && zero;
    if (annotated(y) && !y->open) {
        y->ty = y->seed;
        y->priority = MAX(x->priority, PRIORITY_FOLLOWS);
        return;
    }
    y->ty = sliced ? type_slice(&x->ty) : x->ty;
    if (i >= c->carry || c->f->alias[i] != i) y->ty.pending = 0;
    y->priority = x->priority;
}

/* Carried constants take the placement that comes back; true: one changed. */
static bool settle_carried(FuncPlacements *callee, const Call *c) {
    bool changed = false;
    for (int i = 0; i < c->carry; i++) {
        Placed *arg = placed(callee, c->f->arg[i]), *ret = placed(callee, c->f->ret[i]);
        if (!arg->open || ret == arg) continue;
        arg->open = false;
        arg->ty = ret->ty;
        arg->priority = ret->priority;
        changed = true;
    }
    return changed;
}

/* The placement in which result i leaves the function. */
static Type leaves_as(FuncPlacements *callee, const Call *c, int i) {
    int alias = i < c->carry ? i : c->f->alias[i];
    if (alias >= 0) return placed(callee, c->f->arg[alias])->ty;
    return placed(callee, c->f->ret[i])->ty;
}

/* The first call of a function decides how it is placed. */
static void enter_first(Shard *s, FuncPlacements *p, FuncPlacements *callee,
                        const Call *c) {
    for (int i = 0; i < c->op->nin; i++) place_argument(p, callee, c, i);
    for (int i = 0; i < c->op->nin; i++) meet_argument(s, p, callee, c, i);
    walk(s, callee);
    for (int again = 0; again < c->carry && settle_carried(callee, c); again++)
        walk(s, callee);
    meet_returns(s, callee, c->carry);
}

static void enter(Shard *s, FuncPlacements *p, Op *op) {
    Call c = call_of(op);
    FuncPlacements *callee = placements_of(s, c.f);
    if (!callee->owner || callee->owner == op) {
        callee->owner = op;
        enter_first(s, p, callee, &c);
    } else {
        for (int i = 0; i < op->nin; i++) meet_argument(s, p, callee, &c, i);
    }
    for (int i = 0; i < op->nout; i++) {
        Placed *y = placed(p, op->out[i]);
        y->ty = leaves_as(callee, &c, i);
        if (c.loop && i >= c.carry) y->ty = type_stack(&y->ty, c.times);
        if (annotated(y) && !y->seed.open_sum) y->ty = y->seed;
        y->priority = placed(callee, c.f->ret[i])->priority;
        meet_result(s, p, callee, &c, i);
    }
}

/* ---- composites that are split inside ---- */

static void *grown(Arena *mem, const void *items, int n, int room, size_t size) {
    void *all = arena_alloc(mem, array_bytes((size_t)room, size));
    memcpy(all, items, (size_t)n * size);
    return all;
}

/* Ids after those that the function has, and room for them. */
static void take_parts(Shard *s, FuncPlacements *p, Op *first, const Op *end) {
    Func *f = p->f;
    int values = f->nvalues, ops = f->nops;
    for (Op *op = first; op != end; op = op->next) {
        op->id = f->nops++;
        for (int i = 0; i < op->nout; i++) op->out[i]->id = f->nvalues++;
    }
    p->at = grown(s->mem, p->at, values, f->nvalues, sizeof *p->at);
    p->over = grown(s->mem, p->over, ops, f->nops, sizeof *p->over);
    for (Op *op = first; op != end; op = op->next)
        for (int i = 0; i < op->nout; i++) take_seed(s, p, op->out[i]);
    p->uses = func_uses(s->mem, f);
}

static bool is_used(const Func *f, const Op *op) {
    bool used = op_has(op, F_EFFECT);
    for (int i = 0; i < op->nout && !used; i++) used = value_uses(f, op->out[i]) > 0;
    return used;
}

/* Puts the parts of a composite, which carry the sums, in its place; returns the first op that is
 * not decided. */
static Op *expand_here(Shard *s, FuncPlacements *p, Op *op) {
    Func *f = op->fn;
    Op *before = op->prev, *end = op->next;
    Builder b = build_before(op);
    Value **out = NEW_ARRAY(f->mod->mem, Value *, (size_t)op->nout + 1);
    for (int i = 0; i < op->nin; i++) op->in[i]->ty = placed(p, op->in[i])->seed;
    op_expand(&b, op, out);
    for (int i = 0; i < op->nout; i++) {
        if (!value_uses(f, op->out[i])) continue;
        check(out[i]);
        memcpy(out[i]->ty.split, placed(p, op->out[i])->seed.split,
               sizeof out[i]->ty.split);
        func_replace(f, op->out[i], out[i]);
    }
    Op *last = op->prev;
    op_remove(op);
    for (Op *prev; last != before; last = prev) {
        prev = last->prev;
        if (!is_used(f, last)) op_remove(last);
    }
    Op *first = before ? before->next : f->first;
    take_parts(s, p, first, end);
    p->expanded = true;
    return first;
}

static void walk(Shard *s, FuncPlacements *p) {
    for (Op *op = p->f->first, *next; op; op = next) {
        bool whole = true;
        if (op_is_call(op))
            enter(s, p, op);
        else
            whole = decide(s, p, op);
        next = whole ? op->next : expand_here(s, p, op);
    }
}

/* ---- the module ---- */

static void start(FuncPlacements *p) {
    Func *f = p->f;
    for (int i = 0; i < f->narg; i++) {
        Placed *x = placed(p, f->arg[i]);
        ArgRole role = arg_role(f, i);
        bool kept = role == ARG_param || role == ARG_state;
        x->ty = x->seed;
        x->priority = !annotated(x) ? 0 : kept ? PRIORITY_PARAMETER : PRIORITY_FOLLOWS;
    }
}

static void write_down(Shard *s) {
    for (FuncPlacements *p = s->all; p; p = p->next) {
        for (int i = 0; i < p->f->narg; i++)
            p->f->arg[i]->ty = placed(p, p->f->arg[i])->ty;
        for (Op *op = p->f->first; op; op = op->next) {
            for (int i = 0; i < op->nout; i++) op->out[i]->ty = placed(p, op->out[i])->ty;
        }
        for (Op *op = p->f->first; op; op = op->next) {
            if (!op_is_call(op)) over_write(op, &p->over[op->id]);
        }
    }
}

static void place_entry(Shard *s, Func *entry) {
    FuncPlacements *p = placements_of(s, entry);
    start(p);
    walk(s, p);
    meet_returns(s, p, 0);
    write_down(s);
    for (p = s->all; p; p = p->next)
        if (p->expanded) func_remove_dead(p->f);
}

void pass_shard(Module *m, const PassOptions *o) {
    module_drop_attr(m, "stage"); /* of level global */
    drop_single_axes(m);
    for (Func *f = m->first; f; f = f->next) {
        if (!func_is_entry(f)) continue;
        Shard s = {.m = m, .o = o, .mem = arena_scratch()};
        place_entry(&s, f);
        arena_free(s.mem);
    }
}
