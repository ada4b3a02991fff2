/* alive.h - which states of a sum of tables need looking at. */
#ifndef STATOR_ALIVE_H
#define STATOR_ALIVE_H
#include "passes/layer/factors.h"

typedef struct Alive {
    bool **yes; /* by variable and state: no table forbids it */
    int *n;     /* states left */
    int **left; /* by variable: them */
} Alive;

/* Without states that some table forbids whatever the others are, and without those that
 * another one is never worse than (dead-end elimination, Goldstein 1994): the least sum stays.
 * False: a variable has none. */
bool alive_find(const Factors *f, Arena *mem, Alive *a);

#endif
