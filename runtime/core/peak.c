/* peak.c - measured limits of the machine; see peak.h. */
#include "runtime/core/peak.h"
#include "base/base.h"
#include <omp.h>

/* An FMA has a latency of 4 to 5 cycles and two of them start per cycle: ten independent
 * chains or more keep the units full. x = x/2 + 1 converges, so nothing overflows. It is
 * assembly because a compiler may keep the chains in memory, and then measures that. */
enum { CHAINS = 12, LOOPS = 1 << 14, MIN_SLICES = 20 };

/* Each round of clang-format would move one more to a line of its own. */
/* clang-format off */
#define EACH(OP, R)                                                                      \
    OP(R, "0") OP(R, "1") OP(R, "2") OP(R, "3") OP(R, "4") OP(R, "5") OP(R, "6")         \
    OP(R, "7") OP(R, "8") OP(R, "9") OP(R, "10") OP(R, "11")
/* clang-format on */
#define CLEAR(R, i)     "vxorps %%xmm" i ", %%xmm" i ", %%xmm" i "\n\t"
#define FMA(R, i)       "vfmadd132ps %%" R "12, %%" R "13, %%" R i "\n\t"
#define CLEAR_SSE(R, i) "xorps %%xmm" i ", %%xmm" i "\n\t"
#define MUL_ADD(R, i)   "mulps %%xmm12, %%xmm" i "\n\taddps %%xmm13, %%xmm" i "\n\t"

#define CHAIN_LOOP(clear, load, step, finish)                                            \
    int64_t left = LOOPS;                                                                \
    float half = 0.5f, one = 1.0f;                                                       \
    __asm__ volatile(clear load "1:\n\t" step "dec %0\n\tjnz 1b\n\t" finish              \
                     : "+r"(left)                                                        \
                     : "m"(half), "m"(one)                                               \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "cc")

#define BROADCAST(R) "vbroadcastss %1, %%" R "12\n\tvbroadcastss %2, %%" R "13\n\t"
#define SPLAT                                                                            \
    "movss %1, %%xmm12\n\tshufps $0, %%xmm12, %%xmm12\n\t"                               \
    "movss %2, %%xmm13\n\tshufps $0, %%xmm13, %%xmm13\n\t"

static void fma_16(void) {
    CHAIN_LOOP(EACH(CLEAR, ""), BROADCAST("zmm"), EACH(FMA, "zmm"), "vzeroupper");
}

static void fma_8(void) {
    CHAIN_LOOP(EACH(CLEAR, ""), BROADCAST("ymm"), EACH(FMA, "ymm"), "vzeroupper");
}

static void fma_4(void) {
    CHAIN_LOOP(EACH(CLEAR_SSE, ""), SPLAT, EACH(MUL_ADD, ""), "");
}

double bench_fma_peak(int threads) {
    check(threads >= 1);
    void (*run)(void) = fma_4;
    int lanes = 4;
    if (__builtin_cpu_supports("avx512f"))
        run = fma_16, lanes = 16;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        run = fma_8, lanes = 8;
    double best = 1e30, flops = 2.0 * lanes * CHAINS * LOOPS;
    double end = clock_seconds() + 0.1;
    /* The fastest of many short slices: the others were disturbed by another process, or
     * the clock was still rising. All threads run at once, as they share power and cores.
     */
    for (int slice = 0; slice < MIN_SLICES || clock_seconds() < end; slice++) {
        double start = 0, seconds = 0;
#pragma omp parallel num_threads(threads)
        {
#pragma omp barrier
#pragma omp master
            start = clock_seconds();
            run();
#pragma omp barrier
#pragma omp master
            seconds = clock_seconds() - start;
        }
        best = MIN(best, seconds);
    }
    return flops * threads / best * 1e-9;
}
