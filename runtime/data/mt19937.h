/* mt19937.h - the Mersenne twister as numpy's RandomState(seed) has it, and its shuffle:
 * the order of Megatron-LM's data sets comes out of these. */
#ifndef STATOR_MT19937_H
#define STATOR_MT19937_H
#include "base/base.h"

enum { MT_WORDS = 624 };

typedef struct Mt19937 {
    uint32_t word[MT_WORDS];
    int at; /* next word to hand out */
} Mt19937;

/* init_genrand of Matsumoto and Nishimura (2002), which RandomState(seed) calls. */
void mt19937_seed(Mt19937 *m, uint32_t seed);
uint32_t mt19937_next(Mt19937 *m);
/* Evenly 0 .. most by masks and rejection (numpy's random_interval): one word a try, or
 * two, the high one first, when most is above 2^32 - 1. */
uint64_t mt19937_interval(Mt19937 *m, uint64_t most);

/* RandomState.shuffle of n numbers of 4 bytes: i from n - 1 down to 1 is exchanged with
 * interval(i). */
void mt19937_shuffle(Mt19937 *m, uint32_t *items, int64_t n);

#endif
