/* f16c.c - see f16c.h. */
#include "runtime/core/f16c.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

enum { LANES = 8 };

/* Not every compiler knows F16C by name. */
static bool ask(void) {
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx") || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    return (c & bit_F16C) != 0;
}

/* Asked once: the instruction is slow, in virtual machines above all. */
bool f16c_works(void) {
    enum { UNKNOWN, NO, YES };
    static _Atomic int known;
    if (known == UNKNOWN) known = ask() ? YES : NO;
    return known == YES;
}

__attribute__((target("avx,f16c"))) int64_t f16c_widen(float *to, const uint16_t *from,
                                                       int64_t begin, int64_t end) {
    for (; end - begin >= LANES; begin += LANES) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(from + begin));
        _mm256_storeu_ps(to + begin, _mm256_cvtph_ps(x));
    }
    return begin;
}

__attribute__((target("avx,f16c"))) int64_t f16c_round(uint16_t *to, const float *from,
                                                       int64_t begin, int64_t end) {
    for (; end - begin >= LANES; begin += LANES) {
        __m256 x = _mm256_loadu_ps(from + begin);
        _mm_storeu_si128((__m128i *)(void *)(to + begin),
                         _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    return begin;
}

#else

bool f16c_works(void) {
    return false;
}

int64_t f16c_widen(float *to, const uint16_t *from, int64_t begin, int64_t end) {
    (void)to, (void)from, (void)end;
    return begin;
}

int64_t f16c_round(uint16_t *to, const float *from, int64_t begin, int64_t end) {
    (void)to, (void)from, (void)end;
    return begin;
}

#endif
