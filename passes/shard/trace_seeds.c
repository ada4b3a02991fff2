/* trace_seeds.c - which seeds the placements of pass shard come from, and where two seeds
 * meet that contradict each other. See conflict.h for the messages, docs/design.md for
 * the rule. */
#include "passes/shard/shard.h"

/* A gradient that has the placement of its value has no seed: nobody asked for it. */
void take_seed(Shard *s, FuncPlacements *p, const Value *v) {
    Placed *x = &p->at[v->id];
    x->seed = v->ty;
    if (!type_is_split(&v->ty) || v->ty.open_sum) return;
    Seed *c = NEW(s->mem, Seed);
    *c = (Seed){v, p->f, v->ty};
    x->own = c;
    for (int k = 0; k < v->ty.rank; k++) x->by[k] = v->ty.split[k] ? c : NULL;
}

/* ---- one op ---- */

static Placed *term_placed(FuncPlacements *p, const Op *op, int term) {
    return placed(p, op_term(op, term));
}

/* What seeds ask for dimension k of a term: for a result only its own, for an operand
 * those that its placement comes from. */
static SeededDim seeded_dim(FuncPlacements *p, const Op *op, int term, int k) {
    const Placed *x = term_placed(p, op, term);
    bool result = term >= op->nin;
    const Seed *by = result && !x->own ? NULL : x->by[k];
    return (SeededDim){by, result ? x->seed : x->ty, op_term(op, term)->name, k};
}

/* One axis on two dimensions is a matter of cost, except for an elementwise op whose
 * operands have seeds themselves: there each element needs the one at the same
 * position. */
void refuse_two_dimensions(Shard *s, FuncPlacements *p, const Op *op, const Over *o,
                           const Votes *b, int axis) {
    int first = -1;
    if (!(optab[op->kind].flags & F_MAP)) return;
    for (int id = 0; id < o->d.n; id++) {
        if (!b->priority[id] || !term_placed(p, op, b->term[id])->own) continue;
        if (first < 0) {
            first = id;
            continue;
        }
        int t = b->term[first], u = b->term[id];
        SeededDim v = seeded_dim(p, op, t, over_dim(o, t, first));
        SeededDim w = seeded_dim(p, op, u, over_dim(o, u, id));
        refuse_axis(&(Meeting){s->o, p->f, op, optab[op->kind].name}, axis, &v,
                    over_dim(o, t, id), &w, over_dim(o, u, first));
    }
}

/* Two orders of axes on one letter are a conflict, but for a reshard, and for a view,
 * which may take several dimensions as one. */
void trace_operands(Shard *s, FuncPlacements *p, const Op *op, const Over *o,
                    SeededDim *asked) {
    Meeting at = {s->o, p->f, op, optab[op->kind].name};
    bool zero, view = optab[op->kind].flags & F_VIEW;
    if (op->kind == OP_reshard) return;
    for (int term = 0; o->has_dims && term < op->nin + op->nout; term++) {
        if (term < op->nin && is_free(p, op->in[term], &zero)) continue;
        for (int k = 0; k < o->d.rank[term]; k++) {
            SeededDim seeded = seeded_dim(p, op, term, k);
            int id = over_leader(&o->d, o->d.term[term][k]);
            char letter = o->d.letter[id] == '.' ? 0 : o->d.letter[id];
            if (!seeded.by) continue;
            if (!view)
                asked[id] = seeds_meet(&at, letter, &asked[id], &seeded);
            else if (!asked[id].by)
                asked[id] = seeded;
        }
    }
}

void trace_result(Placed *y, const Over *o, int nth, const SeededDim *asked) {
    for (int k = 0; k < y->ty.rank; k++) {
        int term = o->d.nin + nth;
        y->by[k] = NULL;
        if (!o->has_dims || !y->ty.split[k]) continue;
        const SeededDim *seeded = &asked[over_leader(&o->d, o->d.term[term][k])];
        if (axes_agree(y->ty.split[k], seeded_axes(seeded))) y->by[k] = seeded->by;
    }
}

/* ---- calls ---- */

static SeededDim placed_dim(FuncPlacements *p, const Value *v, int d) {
    const Placed *x = placed(p, v);
    return (SeededDim){x->by[d], x->ty, v->name, d};
}

static void meet(const Meeting *at, SeededDim a, SeededDim b) {
    seeds_meet(at, 0, &a, &b);
}

/* An argument and its operand are one tensor. In the call that placed it, an argument
 * without a seed of its own gets the seeds of the operand. */
void meet_argument(Shard *s, FuncPlacements *p, FuncPlacements *callee, const Call *c,
                   int i) {
    const Meeting at = {s->o, p->f, c->op, optab[c->op->kind].name};
    const Value *v = c->op->in[i], *w = c->f->arg[i];
    const Placed *x = placed(p, v);
    Placed *y = placed(callee, w);
    bool zero, owner = callee->owner == c->op;
    int slice = c->loop && i >= c->carry && i < c->carry + c->each;
    bool anywhere = is_free(p, v, &zero) || y->open;
    for (int d = 0; d < y->ty.rank; d++) {
        const Seed *by = anywhere ? NULL : x->by[d + slice];
        bool same = x->ty.split[d + slice] == y->ty.split[d];
        if (owner) y->by[d] = y->own && y->ty.split[d] ? y->own : NULL;
        if (!by) continue;
        meet(&at, placed_dim(p, v, d + slice), placed_dim(callee, w, d));
        if (owner && same) y->by[d] = by;
    }
}

/* What is returned has the placement of the argument that it overwrites, or that it is in
 * the next run. */
void meet_returns(Shard *s, FuncPlacements *p, int carry) {
    for (int i = 0; i < p->f->nret; i++) {
        int alias = i < carry ? i : p->f->alias[i];
        if (alias < 0) continue;
        const Value *v = p->f->ret[i], *w = p->f->arg[alias];
        const Meeting at = {s->o, p->f, v->def,
                            i < carry ? "the next run"
                                      : "the argument that a result overwrites"};
        for (int d = 0; d < v->ty.rank; d++)
            meet(&at, placed_dim(p, v, d), placed_dim(p, w, d));
    }
}

/* The result of a call, and what it is in the callee. */
void meet_result(Shard *s, FuncPlacements *p, FuncPlacements *callee, const Call *c,
                 int i) {
    const Meeting at = {s->o, p->f, c->op, optab[c->op->kind].name};
    int alias = i < c->carry ? i : c->f->alias[i], stacked = c->loop && i >= c->carry;
    const Value *w = alias >= 0 ? c->f->arg[alias] : c->f->ret[i], *v = c->op->out[i];
    const Placed *x = placed(callee, w);
    Placed *y = placed(p, v);
    for (int d = 0; d < y->ty.rank; d++) {
        const Seed *by = d >= stacked ? x->by[d - stacked] : NULL;
        if (!y->own)
            y->by[d] = y->seed.open_sum || !y->ty.split[d] ? NULL : by;
        else if (d >= stacked)
            meet(&at, placed_dim(callee, w, d - stacked), placed_dim(p, v, d));
    }
}
