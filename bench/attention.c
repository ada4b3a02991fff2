/* attention.c - attention alone, forward and backward, as a share of what the CPU can do:
 * 4 sequences of 12 heads, causal, so that half of the products count, or those of a
 * window.
 *     bench_attention [--window N] [SEQUENCE [HEAD_SIZE [THREADS [CPU]]]]
 *                                                                (1024 64 2 native)
 *     bench_attention --token [KEYS [HEAD_SIZE [THREADS [CPU]]]]
 * With --token it is one query of 1 and of 8 sequences against that many keys, in caches
 * that together are larger than those of the CPU: bytes of keys and values a second, as a
 * share of what a[i] = b[i] + c * d[i] moves.
 * The peaks are measured before and after each row: of f32's multiply-adds and, for rows of bf16, of
 * the CPU's unit for these. */
#include "codegen/attention.h"
#include "base/rng.h"
#include "codegen/rt_call.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { BATCH = 4, HEADS = 12, RUNS = 40, CACHES_BYTES = 256 << 20 };

typedef void (*Forward)(void *q, void *k, void *v, int32_t *q_at, int32_t *k_at,
                        int32_t *rng, void *o, float *lse, void *work);
typedef void (*Backward)(void *q, void *k, void *v, void *o, float *lse, void *d_o,
                         int32_t *q_at, int32_t *k_at, int32_t *rng, void *dq, void *dk,
                         void *dv, void *work);

enum { Q, K, V, O, D_O, DQ, DK, DV, TENSORS };

typedef struct Bench {
    AttnShape s;
    void *tensor[TENSORS], *work;
    float *lse;
    Forward forward;
    Backward backward;
} Bench;

/* With large pages, as the memory of a program has them. */
static void *room(size_t bytes) {
    enum { PAGE = 2 << 20 };
    size_t n = (size_t)round_up((int64_t)bytes, PAGE);
    void *p = aligned_alloc(PAGE, n);
    if (!p) fail(EXIT_MEMORY, "out of memory");
    madvise(p, n, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
}

static void *random_tensor(DType dt, int64_t n, uint64_t stream) {
    char *p = room((size_t)n * dtype_bytes[dt]);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)(2 * rng_uniform(1, stream, (uint64_t)i) - 1);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t high = (uint16_t)(bits >> 16);
        if (dt == DT_BF16)
            memcpy(p + 2 * i, &high, sizeof high);
        else
            memcpy(p + 4 * i, &x, sizeof x);
    }
    return p;
}

static Bench prepare(Target *t, const AttnShape *s, int threads, int64_t caches) {
    Arena *mem = arena_new();
    char why[512] = "";
    Emit *e = emit_new(mem, "bench", t->lanes, t->cpu, t->features);
    attention_emit(e, "forward", s);
    attention_grad_emit(e, "backward", s);
    Object *o = jit_compile(t, e->mod, NULL);
    Jit *j = jit_load(t, o->bytes, o->n, rt_thread_symbols, RT_THREAD_SYMBOLS, why,
                      sizeof why);
    if (!j) die("%s", why);
    object_free(o);
    emit_free(e);
    Bench b = {.s = *s,
               .forward = (Forward)jit_lookup(j, "forward"),
               .backward = (Backward)jit_lookup(j, "backward")};
    int64_t rows = s->batch * s->tq * s->heads;
    int64_t keys = s->batch * s->tk * s->kv_heads;
    for (int i = 0; i < TENSORS; i++) {
        bool of_keys = i == K || i == V || i == DK || i == DV;
        int64_t n = (of_keys ? keys * caches : rows) * s->dim;
        b.tensor[i] = random_tensor(s->dt, n, (uint64_t)i);
    }
    b.lse = room((size_t)rows * sizeof(float));
    b.work = room(MAX(attention_workspace_bytes(s, false, threads, t->lanes),
                      attention_workspace_bytes(s, true, threads, t->lanes)));
    arena_free(mem);
    return b;
}

static double seconds_of(Bench *b, bool grad) {
    static int32_t zero, rng[RNG_WORDS];
    void **x = b->tensor;
    double best = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        double start = clock_seconds();
        if (grad)
            b->backward(x[Q], x[K], x[V], x[O], b->lse, x[D_O], &zero, &zero, rng, x[DQ],
                        x[DK], x[DV], b->work);
        else
            b->forward(x[Q], x[K], x[V], &zero, &zero, rng, x[O], b->lse, b->work);
        best = fmin(best, clock_seconds() - start);
    }
    return best;
}

static void peaks_of(int threads, double *f32, double *bf16, const char **unit) {
    for (int i = 0; i < 3; i++) {
        *f32 = fmax(*f32, peak_fma(threads, PEAK_SECONDS));
        *bf16 = fmax(*bf16, peak_bf16(threads, PEAK_SECONDS, unit));
    }
}

static void row(Bench *b, bool grad, int threads) {
    const AttnShape *s = &b->s;
    double products = grad ? 5 : 2, peak = 0, narrow = 0;
    const char *unit = NULL;
    peaks_of(threads, &peak, &narrow, &unit);
    double seen = (double)(s->window ? MIN(s->window, s->tk) : s->tk);
    double pairs = (double)(s->batch * s->heads) * seen * ((double)s->tk - seen / 2);
    double flops = products * 2 * pairs * (double)s->dim;
    double seconds = seconds_of(b, grad), rate = flops / seconds * 1e-9;
    peaks_of(threads, &peak, &narrow, &unit);
    printf("  %-4s %-8s %8.2f ms %8.1f GFLOP/s, %.3f of the f32 peak of %.1f",
           dtype_name[s->dt], grad ? "backward" : "forward", seconds * 1e3, rate,
           rate / peak, peak);
    if (s->dt == DT_BF16 && narrow > 0)
        printf(", %.3f of that of %s, %.1f", rate / narrow, unit, narrow);
    printf("\n");
}

/* The best of the rounds over all caches, so that none of them is in the CPU's own. */
static void token_row(Target *t, AttnShape s, int threads) {
    int64_t bytes = 2 * s.batch * s.tk * s.kv_heads * s.dim * (int64_t)dtype_bytes[s.dt];
    int64_t caches = MAX(CACHES_BYTES / bytes, 1), half = bytes / 2;
    static int32_t zero, rng[RNG_WORDS];
    int32_t last = (int32_t)s.tk - 1;
    Bench b = prepare(t, &s, threads, caches);
    void **x = b.tensor;
    double best = INFINITY, most = memory_bandwidth(threads);
    for (int i = 0; i < RUNS; i++) {
        double start = clock_seconds();
        for (int64_t c = 0; c < caches; c++)
            b.forward(x[Q], (char *)x[K] + c * half, (char *)x[V] + c * half, &last,
                      &zero, rng, x[O], b.lse, b.work);
        best = fmin(best, (clock_seconds() - start) / (double)caches);
    }
    most = fmax(most, memory_bandwidth(threads));
    double rate = (double)bytes / best;
    printf("  %-4s %lld sequences %8.3f ms %7.2f GB/s, %.2f of %.2f\n", dtype_name[s.dt],
           (long long)s.batch, best * 1e3, rate * 1e-9, rate / most, most * 1e-9);
}

static int argument(int argc, char **argv, int i, int otherwise) {
    return argc > i ? MAX(1, atoi(argv[i])) : otherwise;
}

static void whole_rows(Target *t, AttnShape s, int threads) {
    s.batch = BATCH;
    s.tq = s.tk;
    Bench b = prepare(t, &s, threads, 1);
    row(&b, false, threads);
    row(&b, true, threads);
}

int main(int argc, char **argv) {
    bool token = argc > 1 && !strcmp(argv[1], "--token");
    int64_t window = 0;
    if (argc > 2 && !strcmp(argv[1], "--window")) window = MAX(1, atoi(argv[2]));
    argc -= token ? 1 : window ? 2 : 0;
    argv += token ? 1 : window ? 2 : 0;
    int64_t keys = argument(argc, argv, 1, 1024), dim = argument(argc, argv, 2, 64);
    int threads = argument(argc, argv, 3, 2);
    Target *t = target_open(argc > 4 ? argv[4] : NULL);
    rt_set_threads(threads);
    printf("attention: %lld keys, %d heads of %lld, causal, %d threads, %d lanes",
           (long long)keys, HEADS, (long long)dim, threads, t->lanes);
    if (window) printf(", window %lld", (long long)window);
    printf("\n");
    static const DType types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        AttnShape s = {.batch = 1,
                       .tq = 1,
                       .tk = keys,
                       .heads = HEADS,
                       .kv_heads = HEADS,
                       .dim = dim,
                       .scale = 1 / sqrt((double)dim),
                       .causal = true,
                       .window = window,
                       .threads = threads,
                       .dt = types[i]};
        for (s.batch = 1; token && s.batch <= 8; s.batch *= 8) token_row(t, s, threads);
        if (!token) whole_rows(t, s, threads);
    }
    return 0;
}
