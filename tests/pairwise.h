/* pairwise.h - a short list of combinations of factors that meets every pair of values of
 * two factors, and meets them about equally often. Deterministic. */
#ifndef STATOR_TEST_PAIRWISE_H
#define STATOR_TEST_PAIRWISE_H
#include "base/rng.h"
#include "test.h"

enum { PAIR_FACTORS = 16, PAIR_VALUES = 16 };

typedef struct Pairing {
    int nfactors, nvalid;
    int (*valid)[PAIR_FACTORS]; /* combinations that may be chosen, as value numbers */
    double *bound; /* of what each is worth, which only falls; 0: it was chosen */
    int met[PAIR_FACTORS][PAIR_VALUES][PAIR_FACTORS][PAIR_VALUES]; /* times chosen */
    bool possible[PAIR_FACTORS][PAIR_VALUES][PAIR_FACTORS][PAIR_VALUES];
    int npossible, nmet;
} Pairing;

static inline void pairing_mark(Pairing *p, const int *c, bool chosen) {
    for (int i = 0; i < p->nfactors; i++) {
        for (int j = i + 1; j < p->nfactors; j++) {
            bool *possible = &p->possible[i][c[i]][j][c[j]];
            int *met = &p->met[i][c[i]][j][c[j]];
            p->npossible += !*possible;
            *possible = true;
            p->nmet += chosen && !*met;
            *met += chosen;
        }
    }
}

/* Enumerates combinations of size[] values each; `valid` says which may be chosen. */
static inline Pairing pairing_new(Arena *mem, int nfactors, const int *size,
                                  bool (*valid)(const int *)) {
    Pairing p = {.nfactors = nfactors};
    int total = 1, c[PAIR_FACTORS];
    EXPECT(nfactors <= PAIR_FACTORS);
    for (int i = 0; i < nfactors; i++) {
        EXPECT(size[i] <= PAIR_VALUES);
        total *= size[i];
    }
    p.valid = arena_alloc(mem, (size_t)total * sizeof *p.valid);
    p.bound = NEW_ARRAY(mem, double, (size_t)total);
    for (int n = 0; n < total; n++) {
        for (int i = 0, rest = n; i < nfactors; rest /= size[i], i++)
            c[i] = rest % size[i];
        if (!valid(c)) continue;
        p.bound[p.nvalid] = INFINITY;
        memcpy(p.valid[p.nvalid++], c, sizeof c);
        pairing_mark(&p, c, false);
    }
    return p;
}

/* What choosing `c` would add: pairs count the more the fewer times they were met. */
static inline double pairing_worth(const Pairing *p, const int *c) {
    double worth = 0;
    for (int i = 0; i < p->nfactors; i++) {
        for (int j = i + 1; j < p->nfactors; j++) {
            int met = p->met[i][c[i]][j][c[j]];
            worth += met ? 1.0 / (1 + met) : 2 * PAIR_FACTORS * PAIR_FACTORS;
        }
    }
    return worth;
}

/* The next combination, or NULL when all are taken. Equals are decided by fixed dice. */
static inline const int *pairing_next(Pairing *p) {
    int best = -1;
    double most = 0;
    for (int n = 0; n < p->nvalid; n++) {
        if (p->bound[n] <= most) continue;
        double worth =
            pairing_worth(p, p->valid[n]) + 1e-6 * rng_uniform(1, 0, (uint64_t)n);
        p->bound[n] = worth;
        if (worth > most) best = n, most = worth;
    }
    if (best < 0) return NULL;
    p->bound[best] = 0;
    pairing_mark(p, p->valid[best], true);
    return p->valid[best];
}

/* Do the next `count` combinations, which there must be, meet every pair? */
static inline bool pairing_meets_all(Pairing *p, int count, const char *what) {
    int all_met = 0;
    for (int n = 1; n <= count; n++) {
        EXPECT(pairing_next(p) != NULL);
        if (!all_met && p->nmet == p->npossible) all_met = n;
    }
    printf("  %s: %d of %d valid combinations meet %d of %d pairs (all after %d)\n", what,
           count, p->nvalid, p->nmet, p->npossible, all_met);
    return all_met > 0;
}

#endif
