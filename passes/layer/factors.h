/* factors.h - a sum of tables over variables with few states: what states of all have the least
 * sum is found by eliminate.h. */
#ifndef STATOR_FACTORS_H
#define STATOR_FACTORS_H
#include "base/base.h"

enum { FACTOR_VARS = 3 };

/* cost[(i0 * n1 + i1) * n2 + i2] where variable k of n_k states is in state i_k; INFINITY: may
 * not be. At least 0. */
typedef struct Factor {
    int n, var[FACTOR_VARS];
    double *cost;
} Factor;

typedef struct Factors {
    Arena *mem;
    int *states; /* of each variable */
    int n, cap;
    Factor *factor;
    int nfactors, factor_cap;
} Factors;

/* Without variables and tables; what is added is in mem. factors_var: one more variable. */
Factors factors_new(Arena *mem);
int factors_var(Factors *f, int states); /* its number */
int64_t factor_entries(const Factors *f, const Factor *t);
/* A table of zeros over n different variables. */
double *factors_add(Factors *f, int n, const int *var);

#endif
