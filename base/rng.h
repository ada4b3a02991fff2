/* rng.h - counter-based random numbers: a value is a function of (seed, stream, index),
 * so no order of evaluation and no layout changes it. */
#ifndef STATOR_RNG_H
#define STATOR_RNG_H
#include <stdint.h>

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
void rng_philox(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);
/* Uniform in [0, 1), 53 bits. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);

#endif
