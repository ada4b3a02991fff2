/* mt19937.c - numpy's legacy random stream; see mt19937.h. */
#include "runtime/data/mt19937.h"

enum { MT_MIDDLE = 397 };

void mt19937_seed(Mt19937 *m, uint32_t seed) {
    for (uint32_t i = 0; i < MT_WORDS; i++) {
        m->word[i] = seed;
        seed = 1812433253u * (seed ^ seed >> 30) + i + 1;
    }
    m->at = MT_WORDS;
}

static uint32_t twist(uint32_t high, uint32_t low) {
    uint32_t x = (high & 0x80000000u) | (low & 0x7fffffffu);
    return x >> 1 ^ (x & 1 ? 0x9908b0dfu : 0);
}

static void refill(Mt19937 *m) {
    uint32_t *w = m->word;
    for (int i = 0; i < MT_WORDS; i++) {
        int next = i + 1 < MT_WORDS ? i + 1 : 0;
        int other = i + MT_MIDDLE < MT_WORDS ? i + MT_MIDDLE : i + MT_MIDDLE - MT_WORDS;
        w[i] = w[other] ^ twist(w[i], w[next]);
    }
    m->at = 0;
}

uint32_t mt19937_next(Mt19937 *m) {
    if (m->at == MT_WORDS) refill(m);
    uint32_t x = m->word[m->at++];
    x ^= x >> 11;
    x ^= x << 7 & 0x9d2c5680u;
    x ^= x << 15 & 0xefc60000u;
    return x ^ x >> 18;
}

uint64_t mt19937_interval(Mt19937 *m, uint64_t most) {
    if (most == 0) return 0;
    uint64_t mask = UINT64_MAX >> __builtin_clzll(most), x;
    do {
        x = mt19937_next(m);
        if (most > UINT32_MAX) x = x << 32 | mt19937_next(m);
        x &= mask;
    } while (x > most);
    return x;
}

void mt19937_shuffle(Mt19937 *m, uint32_t *items, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t j = mt19937_interval(m, (uint64_t)i);
        uint32_t x = items[i];
        items[i] = items[j];
        items[j] = x;
    }
}
