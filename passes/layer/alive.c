/* alive.c - see alive.h. */
#include "passes/layer/alive.h"
#include <math.h>

/* ---- states that cannot be ---- */

static void state_of_entry(const Factors *f, const Factor *t, int64_t entry, int *at) {
    for (int k = t->n; k-- > 0;) {
        at[k] = (int)(entry % f->states[t->var[k]]);
        entry /= f->states[t->var[k]];
    }
}

/* Drops states that no entry of the table supports; true: it dropped some. */
static bool drop_by(const Factors *f, const Factor *t, Alive *a, Arena *mem) {
    bool *ok[FACTOR_VARS], changed = false;
    int64_t n = factor_entries(f, t);
    for (int k = 0; k < t->n; k++)
        ok[k] = NEW_ARRAY(mem, bool, (size_t)f->states[t->var[k]]);
    for (int64_t e = 0; e < n; e++) {
        int at[FACTOR_VARS];
        bool may = t->cost[e] < INFINITY;
        if (may) state_of_entry(f, t, e, at);
        for (int k = 0; may && k < t->n; k++) may = a->yes[t->var[k]][at[k]];
        for (int k = 0; may && k < t->n; k++) ok[k][at[k]] = true;
    }
    for (int k = 0; k < t->n; k++)
        for (int s = 0; s < f->states[t->var[k]]; s++) {
            bool *yes = &a->yes[t->var[k]][s];
            if (!*yes || ok[k][s]) continue;
            *yes = false;
            a->n[t->var[k]]--;
            changed = true;
        }
    return changed;
}

static bool drop_impossible(const Factors *f, Arena *mem, Alive *a) {
    bool changed = true;
    *a = (Alive){NEW_ARRAY(mem, bool *, (size_t)f->n + 1),
                 NEW_ARRAY(mem, int, (size_t)f->n + 1),
                 NEW_ARRAY(mem, int *, (size_t)f->n + 1)};
    for (int v = 0; v < f->n; v++) {
        a->yes[v] = NEW_ARRAY(mem, bool, (size_t)f->states[v]);
        memset(a->yes[v], true, (size_t)f->states[v]);
        a->n[v] = f->states[v];
    }
    while (changed) {
        changed = false;
        Arena *round = arena_new();
        for (int i = 0; i < f->nfactors; i++)
            changed |= drop_by(f, &f->factor[i], a, round);
        arena_free(round);
    }
    for (int v = 0; v < f->n; v++) {
        if (!a->n[v]) return false;
        a->left[v] = NEW_ARRAY(mem, int, (size_t)a->n[v]);
        for (int s = 0, k = 0; s < f->states[v]; s++)
            if (a->yes[v][s]) a->left[v][k++] = s;
    }
    return true;
}

/* ---- states that another one is never worse than ---- */

/* Adds to more[s * n + s2] by how much the table can be more with state s2 of its variable k than
 * with s, at most; both count the n states that are left. */
static void add_more(const Factors *f, const Factor *t, int k, const Alive *a,
                     double *most, double *more) {
    int other[FACTOR_VARS], at[FACTOR_VARS] = {0}, nothers = 0, n = a->n[t->var[k]];
    int64_t stride[FACTOR_VARS], size = 1, others = 1;
    for (int j = t->n; j-- > 0; size *= f->states[t->var[j]]) stride[j] = size;
    for (int j = 0; j < t->n; j++)
        if (j != k) other[nothers++] = j, others *= a->n[t->var[j]];
    for (int i = 0; i < n * n; i++) most[i] = -INFINITY;
    for (int64_t e = 0; e < others; e++) {
        const double *cost = t->cost;
        for (int i = 0; i < nothers; i++)
            cost += a->left[t->var[other[i]]][at[i]] * stride[other[i]];
        for (int s = 0; s < n; s++) {
            double c = cost[a->left[t->var[k]][s] * stride[k]];
            for (int s2 = 0; c < INFINITY && s2 < n; s2++) {
                double d = cost[a->left[t->var[k]][s2] * stride[k]] - c;
                most[s * n + s2] = d > most[s * n + s2] ? d : most[s * n + s2];
            }
        }
        for (int i = nothers; i-- > 0 && ++at[i] == a->n[t->var[other[i]]];) at[i] = 0;
    }
    for (int i = 0; i < n * n; i++) more[i] += most[i];
}

/* Drops states of v for which another state is as good or better whatever the other variables
 * are (dead-end elimination, Goldstein 1994); true: it dropped some. */
static bool drop_worse(const Factors *f, int v, Alive *a) {
    Arena *mem = arena_new();
    int n = a->n[v], left = 0;
    double *more = NEW_ARRAY(mem, double, (size_t)n *(size_t)n);
    double *most = NEW_ARRAY(mem, double, (size_t)n *(size_t)n);
    for (int i = 0; i < f->nfactors; i++)
        for (int k = 0; k < f->factor[i].n; k++)
            if (f->factor[i].var[k] == v) add_more(f, &f->factor[i], k, a, most, more);
    bool *gone = NEW_ARRAY(mem, bool, (size_t)n);
    for (int s = 0; s < n; s++)
        for (int s2 = 0; !gone[s] && s2 < n; s2++)
            gone[s] = s2 != s && !gone[s2] && more[s * n + s2] <= 0;
    for (int s = 0; s < n; s++)
        if (!gone[s]) a->left[v][left++] = a->left[v][s];
    a->n[v] = left;
    arena_free(mem);
    return left < n;
}

static void drop_all_worse(const Factors *f, Arena *mem, Alive *a) {
    bool *stale = NEW_ARRAY(mem, bool, (size_t)f->n + 1), changed = true;
    memset(stale, true, (size_t)f->n);
    while (changed) {
        changed = false;
        for (int v = 0; v < f->n; v++) {
            if (!stale[v]) continue;
            stale[v] = false;
            if (a->n[v] == 1 || !drop_worse(f, v, a)) continue;
            changed = true;
            for (int i = 0; i < f->nfactors; i++) {
                const Factor *t = &f->factor[i];
                bool has = false;
                for (int k = 0; k < t->n; k++) has |= t->var[k] == v;
                for (int k = 0; has && k < t->n; k++) stale[t->var[k]] = true;
            }
        }
    }
}

bool alive_find(const Factors *f, Arena *mem, Alive *a) {
    if (!drop_impossible(f, mem, a)) return false;
    drop_all_worse(f, mem, a);
    return true;
}
