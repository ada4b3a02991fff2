/* jitter.h - random factors of seconds, of distributions that are written as
 * "lognormal:0.05". docs/simulate.md lists them. */
#ifndef STATOR_JITTER_H
#define STATOR_JITTER_H
#include "base/base.h"

typedef struct JitterRow JitterRow;
typedef struct Jitter {
    const JitterRow *row; /* NULL: the factor is 1 */
    double a, b;
} Jitter;

/* Fails with EXIT_CONFIG; `said_as` is the name of the option. */
Jitter jitter_parse(const char *said_as, const char *text);
/* The factor that a share u of all draws is below, 0 < u < 1; at least 0. */
double jitter_quantile(const Jitter *j, double u);
/* x with a share u of a normal distribution of mean 0 and deviation 1 below it. */
double normal_quantile(double u);

/* What a row of draws is for: equal keys give equal draws. */
typedef struct JitterKey {
    uint64_t seed;
    uint32_t step, purpose, number;
} JitterKey;
/* Quantiles at equal distances, so that a draw takes some nanoseconds. Between two of them lies
 * their line, which is within 2e-4 deviations of a normal distribution; the outer 1/256 on each
 * side is as exact as the quantile. */
enum { JITTER_CELLS = 4096, JITTER_EXACT_CELLS = JITTER_CELLS / 256 };
typedef struct JitterTable {
    Jitter jitter;
    float at[JITTER_CELLS + 1];
} JitterTable;
/* NULL: all factors are 1. */
const JitterTable *jitter_table(Arena *mem, Jitter j);
/* The factors 0 to n - 1 of the row. */
void jitter_draw(const JitterTable *t, const JitterKey *key, int n, double *factor);
#endif
