/* factors.h - a sum of tables over variables with few states, and the states with the least
 * sum. Exact, by eliminating one variable after the other (bucket elimination, Dechter 1999):
 * the tables that a variable is in are added up and replaced by one over their other
 * variables, which has the least over its states. */
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

Factors factors_new(Arena *mem);
int factors_var(Factors *f, int states); /* its number */
/* A table of zeros over n different variables. */
double *factors_add(Factors *f, int n, const int *var);
/* Orders of elimination, by which variables are in a table together: finding one takes longer than
 * to go through it, and problems that differ in their costs alone have the same. */
typedef struct FactorOrders FactorOrders;
FactorOrders *factors_orders(Arena *mem);
/* Sets state[] to one with the least sum, the first in the order of the elimination among
 * equals, and returns the sum; INFINITY, and state[] as it was: none may be. Fails with
 * EXIT_CONFIG where a table would have more than `cap` entries. known: takes orders from there and
 * adds those that it finds; NULL: finds its own. */
double factors_least(const Factors *f, int64_t cap, int *state, FactorOrders *known);

#endif
