/* draws.h - numbers drawn from a seed, for tests of random machines and models. */
#ifndef STATOR_TEST_DRAWS_H
#define STATOR_TEST_DRAWS_H
#include "base/base.h"
#include <math.h>

typedef struct Random {
    uint64_t seed, n; /* n: how many were drawn */
} Random;

/* A whole number from `from` to `to`, both of them possible. */
static inline int64_t draw(Random *r, int64_t from, int64_t to) {
    uint64_t x = hash64(&(uint64_t[]){r->seed, r->n++}, 16);
    return from + (int64_t)(x % (uint64_t)(to - from + 1));
}

/* One from low to high, as likely to be in each tenfold range. */
static inline double between(Random *r, double low, double high) {
    return low * pow(high / low, (double)draw(r, 0, 1000) / 1000);
}

#endif
