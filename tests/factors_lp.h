/* factors_lp.h - a sum of tables (passes/layer/factors.h) as an integer program in the LP format of
 * CPLEX: a variable of 0 or 1 for each state (x_VAR_STATE), one of 0 to 1 for each finite entry
 * of a table over several (z_FACTOR_ENTRY), whose sums over the others' states are those
 * variables. */
#ifndef STATOR_TEST_FACTORS_LP_H
#define STATOR_TEST_FACTORS_LP_H
#include "passes/layer/factors.h"
#include <math.h>

enum { TERMS_OF_LINE = 8 };

static inline int64_t entries_of(const Factors *f, const Factor *t) {
    int64_t n = 1;
    for (int k = 0; k < t->n; k++) n *= f->states[t->var[k]];
    return n;
}

static inline int state_in(const Factors *f, const Factor *t, int64_t entry, int k) {
    for (int j = t->n - 1; j > k; j--) entry /= f->states[t->var[j]];
    return (int)(entry % f->states[t->var[k]]);
}

static inline void add_term(Text *out, int *n, double by, const char *name) {
    text_add(out, "%s %s %.17g %s", (*n)++ % TERMS_OF_LINE ? "" : "\n",
             by < 0 ? "-" : "+", fabs(by), name);
}

static inline char *entry_name(const Factors *f, Arena *mem, int nth, int64_t entry) {
    const Factor *t = &f->factor[nth];
    if (t->n == 1) return arena_printf(mem, "x_%d_%lld", t->var[0], (long long)entry);
    return arena_printf(mem, "z_%d_%lld", nth, (long long)entry);
}

static inline void add_objective(const Factors *f, Arena *mem, Text *out) {
    int n = 0;
    text_add(out, "Minimize\n obj:");
    for (int i = 0; i < f->nfactors; i++)
        for (int64_t e = 0; e < entries_of(f, &f->factor[i]); e++) {
            double cost = f->factor[i].cost[e];
            if (cost > 0 && cost < INFINITY)
                add_term(out, &n, cost, entry_name(f, mem, i, e));
        }
    if (!n) text_add(out, " 0 x_0_0");
}

/* One state of each variable; none that a table over it alone forbids. */
static inline void add_states(const Factors *f, Arena *mem, Text *out) {
    for (int v = 0; v < f->n; v++) {
        int n = 0;
        text_add(out, "\n one_%d:", v);
        for (int s = 0; s < f->states[v]; s++)
            add_term(out, &n, 1, arena_printf(mem, "x_%d_%d", v, s));
        text_add(out, " = 1");
    }
    for (int i = 0; i < f->nfactors; i++)
        for (int64_t e = 0; f->factor[i].n == 1 && e < entries_of(f, &f->factor[i]); e++)
            if (!(f->factor[i].cost[e] < INFINITY))
                text_add(out, "\n not_%d_%lld: %s = 0", i, (long long)e,
                         entry_name(f, mem, i, e));
}

/* The finite entries of a table in which variable k has state s are that state. */
static inline void add_sums(const Factors *f, Arena *mem, int nth, int k, Text *out) {
    const Factor *t = &f->factor[nth];
    for (int s = 0; s < f->states[t->var[k]]; s++) {
        int n = 0;
        text_add(out, "\n sum_%d_%d_%d:", nth, k, s);
        for (int64_t e = 0; e < entries_of(f, t); e++)
            if (t->cost[e] < INFINITY && state_in(f, t, e, k) == s)
                add_term(out, &n, 1, entry_name(f, mem, nth, e));
        add_term(out, &n, -1, arena_printf(mem, "x_%d_%d", t->var[k], s));
        text_add(out, " = 0");
    }
}

static inline void factors_write_lp(const Factors *f, Text *out) {
    Arena *mem = arena_new();
    add_objective(f, mem, out);
    text_add(out, "\nSubject To");
    add_states(f, mem, out);
    for (int i = 0; i < f->nfactors; i++)
        for (int k = 0; f->factor[i].n > 1 && k < f->factor[i].n; k++)
            add_sums(f, mem, i, k, out);
    text_add(out, "\nBinary\n");
    for (int v = 0; v < f->n; v++)
        for (int s = 0; s < f->states[v]; s++) text_add(out, " x_%d_%d\n", v, s);
    text_add(out, "End\n");
    arena_free(mem);
}

#endif
