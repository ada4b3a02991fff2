/* eliminate.c - see eliminate.h. */
#include "passes/layer/eliminate.h"
#include "passes/layer/alive.h"
#include <math.h>

/* ---- elimination ---- */

typedef struct Table { /* over any number of variables, ascending */
    int n, *var;
    double *cost;
    bool used; /* it has been added to another */
} Table;

typedef struct Step { /* a variable that was eliminated */
    int var;
    Table over;     /* the other variables */
    uint16_t *best; /* its state, by entry */
} Step;

typedef struct Elimination {
    Arena *mem;
    int n;
    const int *states; /* that are left */
    Table *table;
    int ntables, cap;
    bool *done;
    bool *near;     /* [n][n]: in a table together */
    double sum;     /* of tables without variables */
    int *neighbour; /* room for a list of them */
} Elimination;

static Table shrunk(Elimination *e, const Factors *f, const Factor *t, const Alive *a) {
    Table r = {.n = t->n, .var = NEW_ARRAY(e->mem, int, FACTOR_VARS)};
    int order[FACTOR_VARS], n = 1;
    for (int k = 0; k < t->n; k++) {
        int at = k;
        while (at > 0 && t->var[order[at - 1]] > t->var[k])
            order[at] = order[at - 1], at--;
        order[at] = k;
    }
    for (int k = 0; k < t->n; k++) {
        r.var[k] = t->var[order[k]];
        n *= a->n[r.var[k]];
    }
    r.cost = NEW_ARRAY(e->mem, double, (size_t)n);
    for (int i = 0; i < n; i++) {
        int at[FACTOR_VARS], rest = i;
        int64_t entry = 0;
        for (int k = t->n; k-- > 0; rest /= a->n[r.var[k]])
            at[order[k]] = a->left[r.var[k]][rest % a->n[r.var[k]]];
        for (int k = 0; k < t->n; k++) entry = entry * f->states[t->var[k]] + at[k];
        r.cost[i] = t->cost[entry];
    }
    return r;
}

static void put(Elimination *e, Table t) {
    for (int i = 0; i < t.n; i++)
        for (int j = 0; j < t.n; j++) e->near[t.var[i] * e->n + t.var[j]] = true;
    if (t.n)
        PUSH(e->mem, e->table, e->ntables, e->cap, t);
    else
        e->sum += t.cost[0];
}

/* Entries of the table that eliminating v leaves. */
static double size_without(const Elimination *e, int v) {
    double size = 1;
    for (int u = 0; u < e->n; u++)
        if (u != v && !e->done[u] && e->near[v * e->n + u]) size *= e->states[u];
    return size;
}

/* ---- in which order ---- */

/* Trying an order takes as long as to go through some entries. */
enum { ORDERS = 16, ENTRIES_OF_AN_ORDER = 1 << 19 };

typedef struct Order {
    int *var;
    double entries; /* that are gone through in all */
    double most;    /* for one variable */
} Order;

/* Pairs of its neighbours that come together by eliminating v, weighed by their states. */
static double fill_of(const Elimination *e, int v) {
    double fill = 0;
    int *list = e->neighbour, n = 0;
    for (int a = 0; a < e->n; a++)
        if (a != v && !e->done[a] && e->near[v * e->n + a]) list[n++] = a;
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (!e->near[list[i] * e->n + list[k]])
                fill += log2(e->states[list[i]]) * log2(e->states[list[k]]);
    return fill;
}

/* The less the earlier: entries, or pairs that come together; from the third order on with a
 * little chance, which is the same every time. */
static double rank_of(const Elimination *e, int v, int nth) {
    uint64_t key[2] = {(uint64_t)nth, (uint64_t)v};
    double chance = nth < 2 ? 0 : (double)(hash64(key, sizeof key) >> 40) / (1 << 24);
    double by = nth % 2 ? fill_of(e, v) : log2(size_without(e, v) * e->states[v]);
    return (by + 1) * (1 + 0.5 * chance);
}

/* Ranks of an order that is tried; those that the last variables changed are reckoned again. */
typedef struct Ranks {
    double *of;
    bool *stale;
} Ranks;

static int first_var(const Elimination *e, int nth, Ranks *r) {
    int best = -1;
    for (int v = 0; v < e->n; v++) {
        if (e->done[v]) continue;
        if (r->stale[v]) r->of[v] = rank_of(e, v, nth);
        r->stale[v] = false;
        if (best < 0 || r->of[v] < r->of[best]) best = v;
    }
    return best;
}

/* Eliminating v changes what its neighbours are near; pairs that come together are neighbours of
 * those. */
static void mark_stale(const Elimination *e, int v, int nth, Ranks *r) {
    for (int a = 0; a < e->n; a++) {
        if (!e->near[v * e->n + a]) continue;
        r->stale[a] = true;
        for (int b = 0; nth % 2 && b < e->n; b++) r->stale[b] |= e->near[a * e->n + b];
    }
}

static void bring_together(Elimination *e, int v) {
    for (int a = 0; a < e->n; a++)
        for (int b = 0; b < e->n && e->near[v * e->n + a]; b++)
            if (e->near[v * e->n + b]) e->near[a * e->n + b] = true;
    e->done[v] = true;
}

/* One order without its tables. */
static Order try_order(Arena *mem, const Elimination *from, int nth) {
    size_t pairs = (size_t)from->n * (size_t)from->n;
    Elimination e = *from;
    Order o = {.var = NEW_ARRAY(mem, int, (size_t)e.n + 1)};
    e.near = NEW_ARRAY(mem, bool, pairs + 1);
    e.done = NEW_ARRAY(mem, bool, (size_t)e.n + 1);
    memcpy(e.near, from->near, pairs);
    Ranks r = {NEW_ARRAY(mem, double, (size_t)e.n + 1),
               NEW_ARRAY(mem, bool, (size_t)e.n + 1)};
    memset(r.stale, true, (size_t)e.n);
    for (int i = 0; i < e.n; i++) {
        int v = o.var[i] = first_var(&e, nth, &r);
        double entries = size_without(&e, v) * e.states[v];
        o.entries += entries;
        o.most = MAX(o.most, entries);
        mark_stale(&e, v, nth, &r);
        bring_together(&e, v);
    }
    return o;
}

static Order best_order(Arena *mem, const Elimination *e) {
    Order best = try_order(mem, e, 0);
    for (int nth = 1; nth < ORDERS && best.entries > (double)nth * ENTRIES_OF_AN_ORDER;
         nth++) {
        Order o = try_order(mem, e, nth);
        if (o.entries < best.entries) best = o;
    }
    return best;
}

typedef struct KnownOrder {
    char shape[33]; /* hash of what orders depend on */
    Order order;
    struct KnownOrder *next;
} KnownOrder;

struct FactorOrders {
    Arena *mem;
    KnownOrder *first;
};

FactorOrders *factors_orders(Arena *mem) {
    FactorOrders *all = NEW(mem, FactorOrders);
    all->mem = mem;
    return all;
}

static void hash_shape(Arena *mem, const Elimination *e, char shape[33]) {
    size_t n = (size_t)e->n;
    Text t = text_new(mem);
    text_add_bytes(&t, e->states, n * sizeof *e->states);
    text_add_bytes(&t, e->near, n * n * sizeof *e->near);
    hash_hex(t.s, t.n, shape);
}

static Order known_order(Arena *mem, const Elimination *e, FactorOrders *known) {
    char shape[33];
    if (!known) return best_order(mem, e);
    hash_shape(mem, e, shape);
    for (const KnownOrder *k = known->first; k; k = k->next)
        if (!memcmp(k->shape, shape, sizeof shape)) return k->order;
    KnownOrder *k = NEW(known->mem, KnownOrder);
    *k = (KnownOrder){.order = best_order(mem, e), .next = known->first};
    memcpy(k->shape, shape, sizeof shape);
    int *var = NEW_ARRAY(known->mem, int, (size_t)e->n + 1);
    memcpy(var, k->order.var, (size_t)e->n * sizeof *var);
    k->order.var = var;
    known->first = k;
    return k->order;
}

/* How far entries of t lie apart when a variable goes to its next state. */
static int64_t stride_of(const Elimination *e, const Table *t, int var) {
    int64_t stride = 1;
    for (int k = t->n; k-- > 0; stride *= e->states[t->var[k]])
        if (t->var[k] == var) return stride;
    return 0;
}

static bool has_var(const Table *t, int var) {
    for (int k = 0; k < t->n; k++)
        if (t->var[k] == var) return true;
    return false;
}

typedef struct Addend { /* a table that the variable is in */
    const double *cost;
    int64_t *stride; /* by variable of the step */
    int64_t own;     /* of the variable */
    int64_t at;
} Addend;

static int find_addends(Elimination *e, const Step *s, Addend *add) {
    int n = 0;
    for (int i = 0; i < e->ntables; i++) {
        Table *t = &e->table[i];
        if (t->used || !has_var(t, s->var)) continue;
        add[n] = (Addend){.cost = t->cost, .own = stride_of(e, t, s->var)};
        add[n].stride = NEW_ARRAY(e->mem, int64_t, (size_t)s->over.n + 1);
        for (int k = 0; k < s->over.n; k++)
            add[n].stride[k] = stride_of(e, t, s->over.var[k]);
        t->used = true;
        n++;
    }
    return n;
}

/* The sums of all states, two tables at a time; `sum` has room for them. */
static void add_states(const Addend *add, int n, int states, double *restrict sum) {
    static const double nothing = 0;
    if (!n) memset(sum, 0, (size_t)states * sizeof *sum);
    for (int i = 0; i < n; i += 2) {
        bool two = i + 1 < n;
        const double *a = add[i].cost + add[i].at;
        const double *b = two ? add[i + 1].cost + add[i + 1].at : &nothing;
        int64_t da = add[i].own, db = two ? add[i + 1].own : 0;
        for (int x = 0; x < states; x++, a += da, b += db)
            sum[x] = i ? sum[x] + (*a + *b) : *a + *b;
    }
}

static void least_of_entry(const Elimination *e, Step *s, const Addend *add, int n,
                           int64_t entry, double *sum) {
    int states = e->states[s->var], best = 0;
    add_states(add, n, states, sum);
    double least = INFINITY;
    for (int x = 0; x < states; x++) {
        best = sum[x] < least ? x : best;
        least = sum[x] < least ? sum[x] : least;
    }
    s->best[entry] = (uint16_t)best;
    s->over.cost[entry] = least;
}

/* To the next entry: the last variable counts fastest. */
static void advance(const Elimination *e, const Step *s, int *at, Addend *add, int n) {
    for (int k = s->over.n; k-- > 0;) {
        int states = e->states[s->over.var[k]];
        bool around = ++at[k] == states;
        for (int i = 0; i < n; i++)
            add[i].at += around ? -(states - 1) * add[i].stride[k] : add[i].stride[k];
        if (!around) return;
        at[k] = 0;
    }
}

static Step eliminate(Elimination *e, int v) {
    Step s = {.var = v};
    double size = size_without(e, v);
    s.over.var = NEW_ARRAY(e->mem, int, (size_t)e->n + 1);
    for (int u = 0; u < e->n; u++)
        if (u != v && !e->done[u] && e->near[v * e->n + u]) s.over.var[s.over.n++] = u;
    s.over.cost = NEW_ARRAY(e->mem, double, (size_t)size);
    s.best = NEW_ARRAY(e->mem, uint16_t, (size_t)size);
    Addend *add = NEW_ARRAY(e->mem, Addend, (size_t)e->ntables + 1);
    int n = find_addends(e, &s, add), *at = NEW_ARRAY(e->mem, int, (size_t)s.over.n + 1);
    double *sum = NEW_ARRAY(e->mem, double, (size_t)e->states[v]);
    for (int64_t i = 0; i < (int64_t)size; i++) {
        least_of_entry(e, &s, add, n, i, sum);
        advance(e, &s, at, add, n);
    }
    e->done[v] = true;
    put(e, s.over);
    return s;
}

static void choose_states(const Elimination *e, const Step *step, const Alive *a,
                          int *state) {
    int *at = NEW_ARRAY(e->mem, int, (size_t)e->n + 1);
    for (int i = e->n; i-- > 0;) {
        const Step *s = &step[i];
        int64_t entry = 0;
        for (int k = 0; k < s->over.n; k++)
            entry = entry * e->states[s->over.var[k]] + at[s->over.var[k]];
        at[s->var] = s->best[entry];
        state[s->var] = a->left[s->var][at[s->var]];
    }
}

static double solve(const Factors *f, Arena *mem, int64_t cap, int *state,
                    FactorOrders *known) {
    Alive a;
    if (!alive_find(f, mem, &a)) return INFINITY;
    Elimination e = {.mem = mem,
                     .n = f->n,
                     .neighbour = NEW_ARRAY(mem, int, (size_t)f->n + 1),
                     .states = a.n,
                     .done = NEW_ARRAY(mem, bool, (size_t)f->n + 1),
                     .near = NEW_ARRAY(mem, bool, (size_t)f->n *(size_t)f->n + 1)};
    for (int i = 0; i < f->nfactors; i++) put(&e, shrunk(&e, f, &f->factor[i], &a));
    Step *step = NEW_ARRAY(mem, Step, (size_t)f->n + 1);
    Order o = known_order(mem, &e, known);
    if (o.most > (double)cap)
        fail(EXIT_CONFIG,
             "choosing placements inside of this layer needs a table of %.3g entries, "
             "more "
             "than %lld; give fewer ops a name, or let the layer have fewer",
             o.most, (long long)cap);
    for (int i = 0; i < f->n; i++) step[i] = eliminate(&e, o.var[i]);
    if (e.sum < INFINITY) choose_states(&e, step, &a, state);
    return e.sum;
}

double factors_least(const Factors *f, int64_t cap, int *state, FactorOrders *known) {
    Arena *mem = arena_new();
    Catch c;
    volatile double sum = INFINITY;
    if (CATCH(c)) {
        sum = solve(f, mem, cap, state, known);
        catch_end(&c);
    }
    arena_free(mem);
    if (c.code) fail_again(c.code, c.message);
    return sum;
}
