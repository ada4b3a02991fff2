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
    int n, words;      /* of a set of variables, 64 to a word */
    const int *states; /* that are left */
    double *bits;      /* log2 of them */
    Table *table;
    int ntables, cap;
    uint64_t *left; /* the set of those that are not eliminated */
    uint64_t *near; /* [n] sets: in a table together, also with itself */
    double sum;     /* of tables without variables */
    int *neighbour; /* room for a list of them */
} Elimination;

static uint64_t *near_of(const Elimination *e, int v) {
    return e->near + (size_t)v * (size_t)e->words;
}

static bool has(const uint64_t *set, int v) {
    return set[v / 64] >> v % 64 & 1;
}

static void set_add(uint64_t *set, int v) {
    set[v / 64] |= (uint64_t)1 << v % 64;
}

static void set_drop(uint64_t *set, int v) {
    set[v / 64] &= ~((uint64_t)1 << v % 64);
}

/* The variables that are left and near v, ascending. */
static int neighbours(const Elimination *e, int v, int *list) {
    int n = 0;
    const uint64_t *near = near_of(e, v);
    for (int w = 0; w < e->words; w++)
        for (uint64_t rest = near[w] & e->left[w]; rest; rest &= rest - 1) {
            int u = 64 * w + __builtin_ctzll(rest);
            if (u != v) list[n++] = u;
        }
    return n;
}

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
        for (int j = 0; j < t.n; j++) set_add(near_of(e, t.var[i]), t.var[j]);
    if (t.n)
        PUSH(e->mem, e->table, e->ntables, e->cap, t);
    else
        e->sum += t.cost[0];
}

/* Entries of the table that eliminating v leaves. */
static double size_without(const Elimination *e, int v) {
    double size = 1;
    int n = neighbours(e, v, e->neighbour);
    for (int i = 0; i < n; i++) size *= e->states[e->neighbour[i]];
    return size;
}

/* ---- in which order ---- */

/* Trying an order takes as long as to go through some entries. */
enum { ORDERS = 256, ENTRIES_OF_AN_ORDER = 1 << 16 };

typedef struct Order {
    int *var;
    double entries; /* that are gone through in all */
    double most;    /* for one variable */
} Order;

/* Pairs of its neighbours that come together by eliminating v, weighed by their states. */
static double fill_of(const Elimination *e, int v) {
    double fill = 0;
    const int *list = e->neighbour;
    int n = neighbours(e, v, e->neighbour);
    for (int i = 0; i < n; i++) {
        const uint64_t *near = near_of(e, list[i]);
        for (int k = i + 1; k < n; k++)
            if (!has(near, list[k])) fill += e->bits[list[i]] * e->bits[list[k]];
    }
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
    uint64_t *stale; /* a set */
} Ranks;

static int first_var(const Elimination *e, int nth, Ranks *r) {
    int best = -1;
    for (int w = 0; w < e->words; w++)
        for (uint64_t rest = e->left[w]; rest; rest &= rest - 1) {
            int v = 64 * w + __builtin_ctzll(rest);
            if (has(r->stale, v)) r->of[v] = rank_of(e, v, nth);
            if (best < 0 || r->of[v] < r->of[best]) best = v;
        }
    memset(r->stale, 0, (size_t)e->words * sizeof *r->stale);
    return best;
}

/* Eliminating v changes what its neighbours are near; pairs that come together are neighbours of
 * those. */
static void mark_stale(const Elimination *e, int v, int nth, Ranks *r) {
    int n = neighbours(e, v, e->neighbour);
    for (int i = 0; i < n; i++) {
        const uint64_t *near = near_of(e, e->neighbour[i]);
        set_add(r->stale, e->neighbour[i]);
        for (int w = 0; nth % 2 && w < e->words; w++) r->stale[w] |= near[w];
    }
}

static void bring_together(Elimination *e, int v) {
    int n = neighbours(e, v, e->neighbour);
    for (int i = 0; i < n; i++) {
        uint64_t *near = near_of(e, e->neighbour[i]);
        for (int w = 0; w < e->words; w++) near[w] |= near_of(e, v)[w];
    }
    set_drop(e->left, v);
}

/* One order without its tables. */
static Order try_order(Arena *mem, const Elimination *from, int nth) {
    size_t words = (size_t)from->words, sets = (size_t)from->n * words;
    Elimination e = *from;
    Order o = {.var = NEW_ARRAY(mem, int, (size_t)e.n + 1)};
    e.near = NEW_ARRAY(mem, uint64_t, sets + 1);
    e.left = NEW_ARRAY(mem, uint64_t, words + 1);
    memcpy(e.near, from->near, sets * sizeof *e.near);
    memcpy(e.left, from->left, words * sizeof *e.left);
    Ranks r = {NEW_ARRAY(mem, double, (size_t)e.n + 1),
               NEW_ARRAY(mem, uint64_t, words + 1)};
    memcpy(r.stale, e.left, words * sizeof *r.stale);
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
    char shape[HASH_HEX_BYTES]; /* hash of what orders depend on */
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

static void hash_shape(Arena *mem, const Elimination *e, char shape[HASH_HEX_BYTES]) {
    size_t n = (size_t)e->n;
    Text t = text_new(mem);
    text_add_bytes(&t, e->states, n * sizeof *e->states);
    text_add_bytes(&t, e->near, n * (size_t)e->words * sizeof *e->near);
    hash_hex(t.s, t.n, shape);
}

static Order known_order(Arena *mem, const Elimination *e, FactorOrders *known) {
    char shape[HASH_HEX_BYTES];
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

/* ---- tables that are added up ---- */

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

typedef struct Addend {
    const double *cost; /* of the entry that the walk is at */
    int64_t *stride;    /* by variable of the walk */
    int64_t row;        /* of the last of them */
    int64_t own;        /* of the variable that is eliminated */
} Addend;

/* Goes through the entries of a table, and through the same of those that are added up. */
typedef struct Walk {
    const int *states;
    Table over;
    int *at;      /* by variable: its state */
    int64_t rows; /* of entries that differ in the last variable alone */
    int row_n;    /* entries of one */
    Addend *add;
    int n;
} Walk;

static Walk walk(const Elimination *e, Table over, const Table *in, int n, int own) {
    Walk w = {.states = e->states, .over = over, .rows = 1, .row_n = 1, .n = n};
    w.at = NEW_ARRAY(e->mem, int, (size_t)over.n + 1);
    w.add = NEW_ARRAY(e->mem, Addend, (size_t)n + 1);
    for (int k = 0; k < over.n; k++) {
        w.rows *= w.row_n;
        w.row_n = e->states[over.var[k]];
    }
    for (int i = 0; i < n; i++) {
        int64_t *stride = NEW_ARRAY(e->mem, int64_t, (size_t)over.n + 1);
        for (int k = 0; k < over.n; k++) stride[k] = stride_of(e, &in[i], over.var[k]);
        w.add[i] = (Addend){.cost = in[i].cost,
                            .stride = stride,
                            .row = over.n ? stride[over.n - 1] : 0,
                            .own = own < 0 ? 0 : stride_of(e, &in[i], own)};
    }
    return w;
}

static void next_row(Walk *w) {
    for (int k = w->over.n - 1; k-- > 0;) {
        int states = w->states[w->over.var[k]];
        bool around = ++w->at[k] == states;
        for (int i = 0; i < w->n; i++)
            w->add[i].cost += (around ? 1 - states : 1) * w->add[i].stride[k];
        if (!around) return;
        w->at[k] = 0;
    }
}

/* Both ascending. */
static Table together(const Elimination *e, const Table *a, const Table *b) {
    Table t = {.var = NEW_ARRAY(e->mem, int, (size_t)(a->n + b->n) + 1)};
    for (int i = 0, k = 0; i < a->n || k < b->n;) {
        bool first = k == b->n || (i < a->n && a->var[i] <= b->var[k]);
        int v = first ? a->var[i++] : b->var[k++];
        if (first && k < b->n && b->var[k] == v) k++;
        t.var[t.n++] = v;
    }
    return t;
}

static double entries_of(const Elimination *e, const Table *t) {
    double n = 1;
    for (int k = 0; k < t->n; k++) n *= e->states[t->var[k]];
    return n;
}

static Table added_up(const Elimination *e, const Table in[2]) {
    Table t = together(e, &in[0], &in[1]);
    size_t entries = (size_t)entries_of(e, &t);
    double *sum = t.cost = arena_room(e->mem, array_bytes(entries, sizeof *sum));
    Walk w = walk(e, t, in, 2, -1);
    for (int64_t r = 0; r < w.rows; r++, next_row(&w)) {
        const double *a = w.add[0].cost, *b = w.add[1].cost;
        int64_t da = w.add[0].row, db = w.add[1].row;
        for (int i = 0; i < w.row_n; i++) *sum++ = a[i * da] + b[i * db];
    }
    return t;
}

/* Two of n tables that together have the fewest entries, which it returns. */
static double smallest_pair(const Elimination *e, const Table *in, int n, int pair[2]) {
    double least = INFINITY;
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) {
            Table t = together(e, &in[i], &in[k]);
            double size = entries_of(e, &t);
            if (!(size < least)) continue;
            least = size;
            pair[0] = i, pair[1] = k;
        }
    return least;
}

/* Small ones are added up once, rather than at each entry of the whole. That writes their sums and
 * reads them again, so it is done up to a quarter of the entries, where it surely takes less. */
static int add_up_small(const Elimination *e, Table *in, int n, double whole) {
    int pair[2] = {0, 1};
    while (n > 1 && smallest_pair(e, in, n, pair) * 4 <= whole) {
        in[pair[0]] = added_up(e, (Table[]){in[pair[0]], in[pair[1]]});
        in[pair[1]] = in[--n];
    }
    return n;
}

static int find_tables(Elimination *e, int v, Table *in) {
    int n = 0;
    for (int i = 0; i < e->ntables; i++) {
        Table *t = &e->table[i];
        if (t->used || !has_var(t, v)) continue;
        in[n++] = *t;
        t->used = true;
    }
    return n;
}

/* ---- step by step ---- */

/* One table, or two added up, at an entry of the row: by state of the variable that goes. */
typedef struct Pair {
    const double *a, *b;
    int64_t da, db;
} Pair;

static Pair pair_at(const Walk *w, int nth, int entry) {
    static const double nothing = 0;
    const Addend *add = &w->add[nth];
    Pair p = {.a = &nothing, .b = &nothing};
    if (nth < w->n) p.a = add->cost + entry * add->row, p.da = add->own;
    if (nth + 1 < w->n) p.b = add[1].cost + entry * add[1].row, p.db = add[1].own;
    return p;
}

/* Sums of all tables but the first two. */
static void add_rest(const Walk *w, int entry, int states, double *restrict sum) {
    for (int nth = 2; nth < w->n; nth += 2) {
        Pair p = pair_at(w, nth, entry);
        for (int x = 0; x < states; x++, p.a += p.da, p.b += p.db)
            sum[x] = nth > 2 ? sum[x] + (*p.a + *p.b) : *p.a + *p.b;
    }
}

/* The state of the least sum at an entry of the row, of which *least is that sum. */
static int least_state(const Walk *w, int entry, int states, double *sum, double *least) {
    Pair p = pair_at(w, 0, entry);
    int best = 0;
    double cost = *p.a + *p.b;
    if (w->n > 2) {
        add_rest(w, entry, states, sum);
        cost += sum[0];
    }
    for (int x = 1; x < states; x++) {
        double other = p.a[x * p.da] + p.b[x * p.db];
        if (w->n > 2) other += sum[x];
        best = other < cost ? x : best;
        cost = other < cost ? other : cost;
    }
    *least = cost;
    return best;
}

static Step eliminate(Elimination *e, int v) {
    Step s = {.var = v};
    int states = e->states[v];
    double size = size_without(e, v), *sum = NEW_ARRAY(e->mem, double, (size_t)states);
    s.over.var = NEW_ARRAY(e->mem, int, (size_t)e->n + 1);
    s.over.n = neighbours(e, v, s.over.var);
    s.over.cost = arena_room(e->mem, array_bytes((size_t)size, sizeof *s.over.cost));
    s.best = arena_room(e->mem, array_bytes((size_t)size, sizeof *s.best));
    Table *in = arena_room(e->mem, array_bytes((size_t)e->ntables + 1, sizeof *in));
    int n = add_up_small(e, in, find_tables(e, v, in), size * states);
    Walk w = walk(e, s.over, in, n, v);
    int64_t at = 0;
    for (int64_t r = 0; r < w.rows; r++, next_row(&w))
        for (int i = 0; i < w.row_n; i++, at++)
            s.best[at] = (uint16_t)least_state(&w, i, states, sum, &s.over.cost[at]);
    set_drop(e->left, v);
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

static Elimination elimination_of(Arena *mem, int n, const int *states) {
    size_t words = (size_t)(n + 63) / 64;
    Elimination e = {.mem = mem,
                     .n = n,
                     .words = (int)words,
                     .states = states,
                     .bits = NEW_ARRAY(mem, double, (size_t)n + 1),
                     .neighbour = NEW_ARRAY(mem, int, (size_t)n + 1),
                     .left = NEW_ARRAY(mem, uint64_t, words + 1),
                     .near = NEW_ARRAY(mem, uint64_t, (size_t)n * words + 1)};
    for (int v = 0; v < n; v++) {
        e.bits[v] = log2(states[v]);
        set_add(e.left, v);
        set_add(near_of(&e, v), v);
    }
    return e;
}

static double solve(const Factors *f, Arena *mem, int64_t cap, int *state,
                    FactorOrders *known) {
    Alive a;
    if (!alive_find(f, mem, &a)) return INFINITY;
    Elimination e = elimination_of(mem, f->n, a.n);
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
    Arena *mem = arena_scratch();
    double sum = solve(f, mem, cap, state, known);
    arena_free(mem);
    return sum;
}
