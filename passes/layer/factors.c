/* factors.c - see factors.h. */
#include "passes/layer/factors.h"

Factors factors_new(Arena *mem) {
    return (Factors){.mem = mem};
}

int factors_var(Factors *f, int states) {
    check(states > 0);
    PUSH(f->mem, f->states, f->n, f->cap, states);
    return f->n - 1;
}

int64_t factor_entries(const Factors *f, const Factor *t) {
    int64_t n = 1;
    for (int k = 0; k < t->n; k++) n *= f->states[t->var[k]];
    return n;
}

double *factors_add(Factors *f, int n, const int *var) {
    Factor t = {.n = n};
    check(n > 0 && n <= FACTOR_VARS);
    for (int k = 0; k < n; k++) {
        check(var[k] >= 0 && var[k] < f->n);
        for (int j = 0; j < k; j++) check(var[j] != var[k]);
        t.var[k] = var[k];
    }
    t.cost = NEW_ARRAY(f->mem, double, (size_t)factor_entries(f, &t));
    PUSH(f->mem, f->factor, f->nfactors, f->factor_cap, t);
    return t.cost;
}
