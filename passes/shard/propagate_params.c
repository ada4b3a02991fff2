/* propagate_params.c - parameters and caches without a seed get their placement from their
 * uses: known placements are propagated through the dimension rules, forwards and backwards, to
 * a fixed point. Level global; called by pass seed. Where an op has an axis on two
 * dimensions the axis is not propagated: pass shard decides there, by bytes. */
#include "ir/placement.h"
#include "passes/passes.h"

enum { MOST_ROUNDS = 1000 };

typedef struct Known { /* of one function */
    Func *f;
    Type *ty;    /* by value id */
    bool *fixed; /* by value id: annotated, or an argument that nobody asks about */
    struct Known *next;
} Known;

typedef struct Follow {
    Module *m;
    Arena *mem;
    Known *all;
    bool changed;
} Follow;

static Known *known(Follow *w, Func *f) {
    for (Known *k = w->all; k; k = k->next) {
        if (k->f == f) return k;
    }
    die("@%s is not in the module", f->name);
}

static void start(Follow *w, Func *f) {
    Known *k = NEW(w->mem, Known);
    func_number(f);
    *k = (Known){f, NEW_ARRAY(w->mem, Type, (size_t)f->nvalues + 1),
                 NEW_ARRAY(w->mem, bool, (size_t)f->nvalues + 1), w->all};
    for (int i = 0; i < f->narg; i++) {
        k->ty[f->arg[i]->id] = f->arg[i]->ty;
        k->fixed[f->arg[i]->id] = func_is_entry(f) || type_is_split(&f->arg[i]->ty);
    }
    for (Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++) {
            k->ty[op->out[i]->id] = op->out[i]->ty;
            k->fixed[op->out[i]->id] = type_is_split(&op->out[i]->ty);
        }
    }
    w->all = k;
}

static void set(Follow *w, Known *k, const Value *v, int d, Axes bit) {
    Type *t = &k->ty[v->id];
    if (k->fixed[v->id] || d >= t->rank) return;
    for (int i = 0; i < t->rank; i++) {
        if (t->split[i] & bit) return;
    }
    if (t->dim[d] % mesh_group_size(&w->m->mesh, t->split[d] | bit)) return;
    t->split[d] |= bit;
    w->changed = true;
}

/* The one dimension of the op that the axis splits; -1: none, or several. */
static int only_dim(const Known *k, const Op *op, const Dims *d, Axes bit) {
    int found = -1;
    for (int term = 0; term < op->nin + op->nout; term++) {
        const Type *t = &k->ty[op_term(op, term)->id];
        for (int i = 0; i < d->rank[term]; i++) {
            if (!(t->split[i] & bit)) continue;
            int id = d->term[term][i];
            if (found >= 0 && found != id) return -1;
            found = id;
        }
    }
    return found >= 0 && d->whole[found] ? -1 : found;
}

static void adopt_order(Follow *w, Axes *a, Axes reversed) {
    if (*a == reversed || (*a | AXES_REVERSED) != reversed) return;
    *a = reversed;
    w->changed = true;
}

/* Several axes on a dimension are in the same order on all values that have it. */
static void keep_order(Follow *w, Known *k, const Op *op, const Dims *d, int id) {
    Axes reversed = 0;
    for (int term = 0; term < op->nin + op->nout; term++) {
        for (int i = 0; i < d->rank[term]; i++) {
            Axes a = k->ty[op_term(op, term)->id].split[i];
            if (d->term[term][i] == id && a & AXES_REVERSED) reversed = a;
        }
    }
    for (int term = 0; reversed && term < op->nin + op->nout; term++) {
        const Value *v = op_term(op, term);
        for (int i = 0; i < d->rank[term]; i++) {
            Axes *a = &k->ty[v->id].split[i];
            if (d->term[term][i] == id && !k->fixed[v->id]) adopt_order(w, a, reversed);
        }
    }
}

static void through_op(Follow *w, Known *k, Op *op, Axes bit) {
    Dims d;
    if (!op_placement_dims(op, &d)) return;
    int id = only_dim(k, op, &d, bit);
    if (id < 0) return;
    for (int term = 0; term < op->nin + op->nout; term++) {
        for (int i = 0; i < d.rank[term]; i++) {
            if (d.term[term][i] == id) set(w, k, op_term(op, term), i, bit);
        }
    }
    keep_order(w, k, op, &d, id);
}

/* Both ways between a value of the caller and one of the callee, which may be a slice. */
static void through_border(Follow *w, Known *k, const Value *v, Known *inner,
                           const Value *u, bool sliced, Axes bit) {
    const Type *outside = &k->ty[v->id], *inside = &inner->ty[u->id];
    for (int d = 0; d < inside->rank; d++) {
        if (outside->split[d + sliced] & bit) set(w, inner, u, d, bit);
        if (inside->split[d] & bit) set(w, k, v, d + sliced, bit);
        Axes *a = &k->ty[v->id].split[d + sliced], *b = &inner->ty[u->id].split[d];
        if (!k->fixed[v->id]) adopt_order(w, a, *b);
        if (!inner->fixed[u->id]) adopt_order(w, b, *a);
    }
}

static void through_call(Follow *w, Known *k, Op *op, Axes bit) {
    const Call c = call_of(op);
    Func *f = c.f;
    Known *inner = known(w, f);
    for (int i = 0; i < op->nin; i++)
        through_border(w, k, op->in[i], inner, f->arg[i], call_slices(&c, i), bit);
    for (int i = 0; i < op->nout; i++) {
        through_border(w, k, op->out[i], inner, f->ret[i], c.loop && i >= c.carry, bit);
        if (i < c.carry) through_border(w, k, op->out[i], inner, f->arg[i], false, bit);
    }
}

static void one_round(Follow *w, Axes bit) {
    for (Known *k = w->all; k; k = k->next) {
        for (Op *op = k->f->first; op; op = op->next) {
            if (op_is_call(op))
                through_call(w, k, op, bit);
            else
                through_op(w, k, op, bit);
        }
        for (Op *op = k->f->last; op; op = op->prev) {
            if (op_is_call(op))
                through_call(w, k, op, bit);
            else
                through_op(w, k, op, bit);
        }
    }
}

void propagate_params(Module *m, Func *model, const bool *open) {
    Follow w = {.m = m, .mem = arena_new()};
    for (Func *f = m->first; f; f = f->next) start(&w, f);
    Known *k = known(&w, model);
    for (int i = 0; i < model->narg; i++) {
        if (open[i]) k->fixed[model->arg[i]->id] = false;
    }
    for (int a = 0; a < m->mesh.naxes; a++) {
        if (m->mesh.axis[a].size == 1) continue;
        w.changed = true;
        for (int n = 0; w.changed && n < MOST_ROUNDS; n++) {
            w.changed = false;
            one_round(&w, (Axes)(1u << a));
        }
    }
    for (int i = 0; i < model->narg; i++) {
        if (open[i])
            memcpy(model->arg[i]->ty.split, k->ty[model->arg[i]->id].split,
                   sizeof model->arg[i]->ty.split);
    }
    arena_free(w.mem);
}
