/* peak.c - measured limits of the machine; see peak.h. */
#include "runtime/core/peak.h"
#include "base/base.h"
#include <cpuid.h>
#include <omp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An FMA has a latency of 4 to 5 cycles and two of them start per cycle: ten independent
 * chains or more keep the units full. x = x/2 + 1 converges, so nothing overflows. It is
 * assembly because a compiler may keep the chains in memory, and then measures that. */
enum { CHAINS = 12, LOOPS = 1 << 14, MIN_SLICES = 8 };
enum { DOT_FLOPS = 2 * 32 * CHAINS * LOOPS };

/* Each round of clang-format would move one more to a line of its own. */
/* clang-format off */
#define EACH(OP, R)                                                                      \
    OP(R, "0") OP(R, "1") OP(R, "2") OP(R, "3") OP(R, "4") OP(R, "5") OP(R, "6")         \
    OP(R, "7") OP(R, "8") OP(R, "9") OP(R, "10") OP(R, "11")
/* clang-format on */
#define CLEAR(R, i)     "vxorps %%xmm" i ", %%xmm" i ", %%xmm" i "\n\t"
#define FMA(R, i)       "vfmadd132ps %%" R "12, %%" R "13, %%" R i "\n\t"
#define DOT(R, i)       "vdpbf16ps %%" R "12, %%" R "12, %%" R i "\n\t"
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

/* Pairs of bf16 zeros: the rate does not depend on the numbers. */
static void dot_bf16(void) {
    CHAIN_LOOP(EACH(CLEAR, ""), "vpxor %%xmm12, %%xmm12, %%xmm12\n\t", EACH(DOT, "zmm"),
               "vzeroupper");
}

/* Six tiles of sums; a tile product is 16 x 16 sums of 32 products. Of numbers: where all are 0
 * the clock of an Intel Xeon (Emerald Rapids) is up to a quarter higher. */
enum { TILE_CHAINS = 6, TILE_FLOPS = 2 * 16 * 16 * 32 };

static void tiles_bf16(void) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) shape.row_bytes[i] = 64, shape.rows[i] = 16;
    uint16_t factor[2][16 * 32];
    uint32_t bits = 1;
    for (int i = 0; i < 2 * 16 * 32; i++) { /* 1 to 2, of either sign */
        bits = bits * 1664525 + 1013904223;
        factor[i / 512][i % 512] = (uint16_t)(0x3f80 | (bits >> 16 & 0x807f));
    }
    int64_t left = LOOPS / 4, row_bytes = 64;
    __asm__ volatile("ldtilecfg %1\n\t"
                     "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"
                     "tilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5\n\t"
                     "tileloadd (%2,%4,1), %%tmm6\n\ttileloadd (%3,%4,1), %%tmm7\n\t"
                     "1:\n\t"
                     "tdpbf16ps %%tmm7, %%tmm6, %%tmm0\n\t"
                     "tdpbf16ps %%tmm7, %%tmm6, %%tmm1\n\t"
                     "tdpbf16ps %%tmm7, %%tmm6, %%tmm2\n\t"
                     "tdpbf16ps %%tmm7, %%tmm6, %%tmm3\n\t"
                     "tdpbf16ps %%tmm7, %%tmm6, %%tmm4\n\t"
                     "tdpbf16ps %%tmm7, %%tmm6, %%tmm5\n\t"
                     "dec %0\n\tjnz 1b\n\ttilerelease"
                     : "+r"(left)
                     : "m"(shape), "r"(factor[0]), "r"(factor[1]), "r"(row_bytes)
                     : "cc", "memory");
}

/* Of a thread: the best of many slices of `run`, which is that many flops. */
static double rate_of(void (*run)(void), double flops, int threads, double length) {
    double best = 1e30;
    double end = clock_seconds() + length;
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

double peak_fma(int threads, double seconds) {
    check(threads >= 1);
    const double each = 2.0 * CHAINS * LOOPS;
    if (__builtin_cpu_supports("avx512f"))
        return rate_of(fma_16, 16 * each, threads, seconds);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return rate_of(fma_8, 8 * each, threads, seconds);
    return rate_of(fma_4, 4 * each, threads, seconds);
}

bool tiles_granted(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

static bool multiplies_tiles(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    bool tiles = d >> 24 & 1, bf16 = d >> 22 & 1;
    return tiles && bf16 && tiles_granted();
}

/* A factor of two either way, so that a look at one thread tells. */
static bool dots_are_faster(void) {
    const double look = PEAK_SECONDS / 16;
    return __builtin_cpu_supports("avx512bf16") &&
           rate_of(dot_bf16, DOT_FLOPS, 1, look) > peak_fma(1, look);
}

double peak_bf16(int threads, double seconds, const char **unit) {
    check(threads >= 1);
    if (multiplies_tiles()) {
        *unit = "AMX";
        return rate_of(tiles_bf16, (double)TILE_FLOPS * TILE_CHAINS * (LOOPS / 4),
                       threads, seconds);
    }
    if (dots_are_faster()) {
        *unit = "AVX512-BF16";
        return rate_of(dot_bf16, DOT_FLOPS, threads, seconds);
    }
    *unit = "none";
    return 0;
}

double peak_f32(int threads, double seconds, const char **unit) {
    const double look = MIN(seconds, PEAK_SECONDS / 16), rest = seconds - look;
    double fma = peak_fma(threads, look), tiles = 0, longer = 0;
    if (multiplies_tiles())
        tiles = peak_bf16(threads, look, unit) / F32_PRODUCTS_BY_TILES;
    bool by_tiles = tiles > fma;
    if (!by_tiles) *unit = "FMA";
    if (rest > 0 && by_tiles)
        longer = peak_bf16(threads, rest, unit) / F32_PRODUCTS_BY_TILES;
    else if (rest > 0)
        longer = peak_fma(threads, rest);
    return MAX(longer, MAX(fma, tiles));
}

/* ---- memory ---- */

enum {
    TRIAD_MOST = 8 << 20, /* floats of an array */
    TRIAD_LEAST = 1 << 10,
    TRIAD_PASS =
        1 << 20, /* floats of a pass at least, beside which starting it is little */
    TRIAD_MOVES = 3
};

/* Each thread has the same part in every round, which it has touched first. */
static void triad(float *restrict a, const float *restrict b, const float *restrict d,
                  int64_t n, int64_t rounds, int threads) {
#pragma omp parallel num_threads(threads)
    for (int64_t k = 0; k < rounds; k++) {
        float c = 0.5f * (float)k;
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i++) a[i] = b[i] + c * d[i];
    }
}

double memory_bandwidth_within(int threads, uint64_t bytes) {
    check(threads >= 1);
    double begin = clock_seconds(), best = 1e30;
    uint64_t floats = bytes / (TRIAD_MOVES * sizeof(float));
    int64_t n = (int64_t)MAX(MIN(floats, (uint64_t)TRIAD_MOST), (uint64_t)TRIAD_LEAST);
    size_t mapped = TRIAD_MOVES * sizeof(float) * (size_t)n;
    float *a =
        mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a == MAP_FAILED) return 0;
    madvise(a, mapped, MADV_HUGEPAGE);
    float *b = a + n, *d = b + n;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n; i++) a[i] = b[i] = d[i] = 1;
    double pass = 0;
    int64_t rounds = (TRIAD_PASS + n - 1) / n;
    for (int k = 0; k < 2 || clock_seconds() + pass < begin + 0.25; k++) {
        double start = clock_seconds();
        triad(a, b, d, n, rounds, threads);
        pass = clock_seconds() - start;
        best = MIN(best, pass);
    }
    volatile float kept = a[n / 2]; /* the passes are not for nothing */
    (void)kept;
    munmap(a, mapped);
    return (double)mapped * (double)rounds / best;
}

double memory_bandwidth(int threads) {
    return memory_bandwidth_within(threads, UINT64_MAX);
}

const char *cpu_model(Arena *mem) {
    char line[400];
    const char *found = "unknown CPU";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!begins_with(line, "model name") || !colon) continue;
        colon += strspn(colon, ": \t");
        found = arena_strndup(mem, colon, strcspn(colon, "\n"));
        break;
    }
    if (f) fclose(f);
    char *clean = arena_strdup(mem, found);
    make_printable(clean, LINES_NONE);
    return clean;
}
