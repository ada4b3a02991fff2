/* problem.c - the choice for a layer as tables over few variables: the seed of each group, how
 * each op is computed, where each value lies, and which placements its readers need of it. */
#include "passes/layer/layer.h"
#include <math.h>

enum {
    MOST_ENTRIES = 1 << 27,
    MOST_NEEDS = MAX_RANK + 1, /* placements that the readers of a value may need */
    MOST_PRICES = 40
};

typedef struct Make {
    const LayerGraph *g;
    LayerProblem *p;
    LayerPrice price;
    int *need; /* by value: MOST_NEEDS placements that its readers may need */
    int *nneeds;
} Make;

static double *table(Make *k, int n, int a, int b, int c) {
    return factors_add(&k->p->f, n, (int[]){a, b, c});
}

static int states_of(const Make *k, int var) {
    return k->p->f.states[var];
}

static const Type *type_of(const LayerGraph *g, int value) {
    return &g->value[value].v->ty;
}

static double moved(const LayerGraph *g, int value, int from, int to) {
    Move m = layer_move(g, &g->value[value], from, to);
    return m.can ? m.seconds : INFINITY;
}

/* ---- what readers need ---- */

static int need_of(const LayerOp *op, const LayerOption *o, int i) {
    bool sum = o->pending >> i & 1;
    return layer_need(op, o->letter, i,
                      sum ? place_pending(&op->op->in[i]->ty) : PLACE_WHOLE);
}

static int need_index(const Make *k, int value, int place) {
    for (int i = 0; i < k->nneeds[value]; i++)
        if (k->need[value * MOST_NEEDS + i] == place) return i;
    return -1;
}

static void may_need(Make *k, int value, int place) {
    if (place == place_pending(type_of(k->g, value))) return;
    if (need_index(k, value, place) >= 0) return;
    check(k->nneeds[value] < MOST_NEEDS);
    k->need[value * MOST_NEEDS + k->nneeds[value]++] = place;
}

static void find_needs(Make *k) {
    const LayerGraph *g = k->g;
    for (int n = 0; n < g->nops; n++)
        for (int j = 0; j < g->op[n].noptions; j++)
            for (int i = 0; i < g->op[n].op->nin; i++)
                if (g->value[g->op[n].in[i]].reads > 1)
                    may_need(k, g->op[n].in[i],
                             need_of(&g->op[n], &g->op[n].option[j], i));
    for (int r = 0; r < g->nrets; r++) {
        if (g->ret[r].end != END_CARRIED || g->value[g->ret[r].value].reads < 2) continue;
        for (int q = 0; q <= type_of(g, g->ret[r].value)->rank; q++)
            may_need(k, g->ret[r].value, q);
    }
}

/* ---- variables ---- */

static void add_group(Make *k, int nth) {
    const LayerGroup *u = &k->g->group[nth];
    int v = k->p->group_var[nth] = factors_var(&k->p->f, 1 + u->ty.rank);
    double *cost = table(k, 1, v, 0, 0);
    for (int s = 0; s <= u->ty.rank; s++) {
        bool may = s == PLACE_WHOLE || u->may >> (s - 1) & 1;
        cost[s] = layer_update_seconds(k->g, u, s) +
                  k->price.seconds_per_byte * layer_weight_bytes(k->g, u, s);
        if (!may) cost[s] = INFINITY;
    }
}

static void add_value(Make *k, int nth) {
    const LayerValue *x = &k->g->value[nth];
    k->p->value_var[nth] = k->p->need_var[nth] = -1;
    if (x->free || (x->op >= 0 && !k->g->op[x->op].noptions)) return;
    int v = k->p->value_var[nth] = factors_var(&k->p->f, x->v->ty.rank + 2);
    if (x->reads < 2 || !k->nneeds[nth]) return;
    int n = k->p->need_var[nth] = factors_var(&k->p->f, 1 << k->nneeds[nth]);
    double *cost = table(k, 2, v, n, 0);
    for (int p = 0; p < states_of(k, v); p++)
        for (int set = 0; set < states_of(k, n); set++, cost++)
            for (int i = 0; i < k->nneeds[nth]; i++)
                if (set >> i & 1)
                    *cost += moved(k->g, nth, p, k->need[nth * MOST_NEEDS + i]);
}

static void add_op(Make *k, int nth) {
    const LayerOp *op = &k->g->op[nth];
    k->p->op_var[nth] = -1;
    if (!op->noptions) return;
    int v = k->p->op_var[nth] = factors_var(&k->p->f, op->noptions);
    double *cost = table(k, 1, v, 0, 0);
    for (int j = 0; j < op->noptions; j++) {
        int letter = op->option[j].letter;
        cost[j] = op->seconds[letter < 0 ? 0 : letter + 1];
    }
}

/* ---- tables ---- */

/* The reader gets the value as `place`, from its own placement or from what is needed
 * besides. */
static void read_by_op(Make *k, int nth, int i) {
    const LayerOp *op = &k->g->op[nth];
    int value = op->in[i], v = k->p->value_var[value], o = k->p->op_var[nth];
    int n = k->p->need_var[value], sum = place_pending(type_of(k->g, value));
    if (v < 0) return;
    double *cost = table(k, 2, v, o, 0);
    for (int p = 0; p < states_of(k, v); p++)
        for (int j = 0; j < op->noptions; j++, cost++) {
            int need = need_of(op, &op->option[j], i);
            bool may = layer_allows(k->g, op, &op->option[j], i, p);
            if (may && (n < 0 || need == sum)) *cost = moved(k->g, value, p, need);
            if (!may) *cost = INFINITY;
        }
    if (n < 0) return;
    cost = table(k, 2, o, n, 0);
    for (int j = 0; j < op->noptions; j++)
        for (int set = 0; set < states_of(k, n); set++, cost++) {
            int at = need_index(k, value, need_of(op, &op->option[j], i));
            if (at >= 0 && !(set >> at & 1)) *cost = INFINITY;
        }
}

/* Result i lies as its seed says, or as the op gives it. */
static void make_result(Make *k, int nth, int i) {
    const LayerOp *op = &k->g->op[nth];
    int value = op->out[i], v = k->p->value_var[value], o = k->p->op_var[nth];
    int group = k->g->value[value].group;
    int s = group >= 0 ? k->p->group_var[group] : -1;
    if (v < 0) return;
    double *cost = table(k, s < 0 ? 2 : 3, v, o, s);
    for (int p = 0; p < states_of(k, v); p++)
        for (int j = 0; j < op->noptions; j++)
            for (int seed = 0; seed < (s < 0 ? 1 : states_of(k, s)); seed++, cost++) {
                int gives = layer_gives(op, op->option[j].letter, i);
                int want = seed == PLACE_WHOLE ? gives : seed;
                *cost = p == want ? moved(k->g, value, gives, want) : INFINITY;
            }
    if (s < 0) return;
    cost = table(k, 2, o, s, 0);
    for (int j = 0; j < op->noptions; j++)
        for (int seed = 0; seed < states_of(k, s); seed++, cost++)
            if (!layer_allows(k->g, op, &op->option[j], op->op->nin + i, seed))
                *cost = INFINITY;
}

static void take_argument(Make *k, int nth) {
    const LayerValue *x = &k->g->value[nth];
    int v = k->p->value_var[nth], sum = place_pending(&x->v->ty), from = -1;
    if (v < 0) return;
    if (x->source == FROM_GROUP) from = k->p->group_var[x->group];
    if (x->source == FROM_SAVED) from = k->p->value_var[x->saved];
    if (from < 0) {
        double *cost = table(k, 1, v, 0, 0);
        for (int p = 0; p < states_of(k, v); p++)
            if (p != PLACE_WHOLE) cost[p] = INFINITY;
        return;
    }
    double *cost = table(k, 2, v, from, 0);
    for (int p = 0; p < states_of(k, v); p++)
        for (int q = 0; q < states_of(k, from); q++, cost++)
            if (p != q || p == sum) *cost = INFINITY;
}

static void carry(Make *k, const LayerReturn *r) {
    int v = k->p->value_var[r->value], to = k->p->value_var[r->to];
    int n = k->p->need_var[r->value];
    if (v < 0 || to < 0 || v == to) return;
    double *cost = n < 0 ? table(k, 2, v, to, 0) : table(k, 2, n, to, 0);
    for (int a = 0; a < states_of(k, n < 0 ? v : n); a++)
        for (int q = 0; q < states_of(k, to); q++, cost++) {
            int at = need_index(k, r->value, q);
            if (n < 0)
                *cost = moved(k->g, r->value, a, q);
            else if (at < 0 || !(a >> at & 1))
                *cost = INFINITY;
        }
}

/* A gradient that is split where its parameter is whole would make three gathers of the
 * update; it is left out. */
static void finish_gradient(Make *k, const LayerReturn *r) {
    const LayerValue *x = &k->g->value[r->value];
    int v = k->p->value_var[r->value], sum = place_pending(&x->v->ty);
    int s = x->group >= 0 ? k->p->group_var[x->group] : -1;
    if (v < 0) return;
    double *cost = table(k, s < 0 ? 1 : 2, v, s, 0);
    for (int p = 0; p < states_of(k, v); p++)
        for (int seed = 0; seed < (s < 0 ? 1 : states_of(k, s)); seed++, cost++) {
            *cost = moved(k->g, r->value, p, seed) / k->g->micro;
            if (p != seed && p != sum) *cost = INFINITY;
        }
}

static void save(Make *k, const LayerReturn *r) {
    int v = k->p->value_var[r->value];
    if (v < 0) return;
    double *cost = table(k, 1, v, 0, 0);
    for (int p = 0; p < states_of(k, v); p++)
        cost[p] = k->price.seconds_per_byte * layer_kept_bytes(k->g, r->value, p);
}

LayerProblem layer_problem(Arena *mem, const LayerGraph *g, LayerPrice price) {
    static void (*const end[])(Make *, const LayerReturn *) = {
        [END_CARRIED] = carry, [END_GRADIENT] = finish_gradient, [END_SAVED] = save};
    LayerProblem p = {.f = factors_new(mem),
                      .group_var = NEW_ARRAY(mem, int, (size_t)g->ngroups + 1),
                      .op_var = NEW_ARRAY(mem, int, (size_t)g->nops + 1),
                      .value_var = NEW_ARRAY(mem, int, (size_t)g->nvalues + 1),
                      .need_var = NEW_ARRAY(mem, int, (size_t)g->nvalues + 1)};
    Make k = {g, &p, price, NEW_ARRAY(mem, int, (size_t)g->nvalues *MOST_NEEDS + 1),
              NEW_ARRAY(mem, int, (size_t)g->nvalues + 1)};
    find_needs(&k);
    for (int i = 0; i < g->ngroups; i++) add_group(&k, i);
    for (int i = 0; i < g->nops; i++) add_op(&k, i);
    for (int i = 0; i < g->nvalues; i++) add_value(&k, i);
    for (int i = 0; i < g->nvalues; i++)
        if (g->value[i].source != FROM_OP) take_argument(&k, i);
    for (int n = 0; n < g->nops; n++) {
        if (!g->op[n].noptions) continue;
        for (int i = 0; i < g->op[n].op->nin; i++) read_by_op(&k, n, i);
        for (int i = 0; i < g->op[n].op->nout; i++) make_result(&k, n, i);
    }
    for (int i = 0; i < g->nrets; i++) end[g->ret[i].end](&k, &g->ret[i]);
    return p;
}

/* ---- solutions ---- */

LayerKnown *layer_known(Arena *mem) {
    LayerKnown *k = NEW(mem, LayerKnown);
    *k = (LayerKnown){.mem = mem, .orders = factors_orders(mem)};
    return k;
}

LayerChoice *layer_choice_new(Arena *mem, const LayerGraph *g) {
    LayerChoice *c = NEW(mem, LayerChoice);
    c->seed = NEW_ARRAY(mem, int, (size_t)g->ngroups + 1);
    c->letter = NEW_ARRAY(mem, int, (size_t)g->nops + 1);
    c->place = NEW_ARRAY(mem, int, (size_t)g->nvalues + 1);
    return c;
}

static LayerChoice *choice_of(Arena *mem, const LayerGraph *g, const LayerProblem *p,
                              const int *state) {
    LayerChoice *c = layer_choice_new(mem, g);
    for (int i = 0; i < g->ngroups; i++) c->seed[i] = state[p->group_var[i]];
    for (int i = 0; i < g->nops; i++)
        c->letter[i] =
            p->op_var[i] < 0 ? OVER_WHOLE : g->op[i].option[state[p->op_var[i]]].letter;
    for (int i = 0; i < g->nvalues; i++)
        c->place[i] = p->value_var[i] < 0 ? PLACE_WHOLE : state[p->value_var[i]];
    return c;
}

static void make_exact(LayerGraph *g, int i) {
    LayerOp *op = &g->op[i];
    op->exact = g->known->exact[i] = true;
    layer_options(g, op);
}

/* Ops that were not exact enough in another graph: each would cost this one a solution too. */
static void make_known_exact(LayerGraph *g) {
    LayerKnown *k = g->known;
    if (k->nops != g->nops) {
        k->exact = NEW_ARRAY(k->mem, bool, (size_t)g->nops + 1);
        k->nops = g->nops;
    }
    for (int i = 0; i < g->nops; i++)
        if (k->exact[i] && !g->op[i].exact) make_exact(g, i);
}

/* Ops that a solution splits though nothing decides for it say so from then on; false: there
 * are none. */
static bool refine(LayerGraph *g, const LayerProblem *p, const int *state,
                   const LayerChoice *c) {
    bool changed = false;
    for (int i = 0; i < g->nops; i++) {
        const LayerOp *op = &g->op[i];
        if (p->op_var[i] < 0 || op->exact) continue;
        if (layer_decided(g, op, &op->option[state[p->op_var[i]]], c)) continue;
        make_exact(g, i);
        changed = true;
    }
    return changed;
}

static LayerChoice *solve(Arena *own, LayerGraph *g, LayerPrice price, double *least) {
    make_known_exact(g);
    for (;;) {
        LayerProblem p = layer_problem(own, g, price);
        int *state = NEW_ARRAY(own, int, (size_t)p.f.n + 1);
        *least = factors_least(&p.f, MOST_ENTRIES, state, g->known->orders);
        if (!(*least < INFINITY)) return NULL;
        LayerChoice *c = choice_of(own, g, &p, state);
        if (!refine(g, &p, state, c)) return c;
    }
}

static LayerChoice *copied(Arena *mem, const LayerGraph *g, const LayerChoice *from) {
    LayerChoice *c = layer_choice_new(mem, g);
    memcpy(c->seed, from->seed, (size_t)g->ngroups * sizeof *c->seed);
    memcpy(c->letter, from->letter, (size_t)g->nops * sizeof *c->letter);
    memcpy(c->place, from->place, (size_t)g->nvalues * sizeof *c->place);
    return c;
}

LayerChoice *layer_solve(Arena *mem, LayerGraph *g, LayerPrice price, double *least) {
    Arena *own = arena_scratch();
    LayerChoice *found = solve(own, g, price, least);
    if (found) found = copied(mem, g, found);
    arena_free(own);
    return found;
}

static double bytes_of(const LayerGraph *g, const LayerChoice *c) {
    LayerCost k = layer_cost(g, c);
    return k.weight_bytes + k.kept_bytes;
}

static double least_weight_bytes(const LayerGraph *g, const LayerGroup *u) {
    double least = layer_weight_bytes(g, u, PLACE_WHOLE);
    for (int d = 0; d < u->ty.rank; d++)
        if (u->may >> d & 1) least = MIN(least, layer_weight_bytes(g, u, d + 1));
    return least;
}

static double least_kept_bytes(const LayerGraph *g, int value) {
    const Type *ty = type_of(g, value);
    double least = layer_kept_bytes(g, value, PLACE_WHOLE);
    for (int d = 0; d < ty->rank; d++)
        if (ty->dim[d] % g->ranks == 0)
            least = MIN(least, layer_kept_bytes(g, value, d + 1));
    return least;
}

/* No choice takes less: each value by itself where it takes least. */
static double least_bytes(const LayerGraph *g) {
    double bytes = 0;
    for (int i = 0; i < g->ngroups; i++) bytes += least_weight_bytes(g, &g->group[i]);
    for (int i = 0; i < g->nrets; i++)
        if (g->ret[i].end == END_SAVED) bytes += least_kept_bytes(g, g->ret[i].value);
    return bytes;
}

/* Choices on the lower hull of seconds over bytes: the price between the fastest that is too
 * large and the fastest found that fits either finds one between them, or there is none. */
LayerChoice *layer_solve_within(Arena *mem, LayerGraph *g, double limit, double *bound) {
    static const double any_seconds = 1; /* a byte outweighs a layer */
    double least, much;
    *bound = INFINITY;
    if (limit > 0 && least_bytes(g) > limit) return NULL;
    LayerChoice *large = layer_solve(mem, g, (LayerPrice){0}, &least);
    *bound = least;
    if (!large || limit <= 0 || bytes_of(g, large) <= limit) return large;
    LayerChoice *small = layer_solve(mem, g, (LayerPrice){any_seconds}, &much);
    if (bytes_of(g, small) > limit) return NULL;
    for (int i = 0; i < MOST_PRICES; i++) {
        LayerCost a = layer_cost(g, large), b = layer_cost(g, small);
        double at = a.weight_bytes + a.kept_bytes, bt = b.weight_bytes + b.kept_bytes;
        double price = (b.seconds - a.seconds) / (at - bt);
        LayerChoice *c = layer_solve(mem, g, (LayerPrice){price}, &least);
        *bound = MAX(*bound, least - price * limit);
        double was = a.seconds + price * at;
        if (least >= was * (1 - 1e-12)) break;
        *(bytes_of(g, c) <= limit ? &small : &large) = c;
    }
    return small;
}
