/* constants.h - the numbers of a machine that published steps are fitted with. */
#ifndef STATOR_BENCH_CONSTANTS_H
#define STATOR_BENCH_CONSTANTS_H
#include "passes/cost/machine.h"

enum { MAX_CONSTANTS = 8 };

/* `name` is the key of the machine's file; x: of these constants, in logarithms. */
typedef struct Constants {
    const struct Constant *which[MAX_CONSTANTS];
    int n;
    double prior[MAX_CONSTANTS];
} Constants;

/* Those of a list such as "reached,half"; NULL: the usual ones. Fails with EXIT_CONFIG on a
 * name that is none. Their priors are what the machine's file says. */
Constants constants_choose(Arena *mem, const char *list, const Machine *m);
/* A machine with them; m stays as it is. */
Machine *constants_machine(Arena *mem, const Machine *m, const Constants *c,
                           const double *x);
/* How far x is from the priors: mean of squares, each in its own spread. */
double constants_distance(const Constants *c, const double *x);
void constants_print(const Constants *c, const double *x, Text *out);
#endif
