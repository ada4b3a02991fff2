/* attention.c - attention alone, forward and backward, as a share of what the CPU can do:
 * 4 sequences of 12 heads, causal, so that half of the products count.
 *     bench_attention [SEQUENCE [HEAD_SIZE [THREADS [CPU]]]]     (1024 64 2 native)
 * The peak is measured before and after each row. A bf16 unit has twice the peak of f32,
 * so its rows show the share of that too. */
#include "codegen/attention.h"
#include "base/rng.h"
#include "codegen/jit.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"
#include <math.h>
#include <stdlib.h>

enum { BATCH = 4, HEADS = 12, RUNS = 40 };

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

static void *room(size_t bytes) {
    void *p = aligned_alloc(64, round_up((int64_t)bytes, 64));
    if (!p) fail(EXIT_MEMORY, "out of memory");
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

static Bench prepare(Target *t, const AttnShape *s, int threads) {
    Arena *mem = arena_new();
    char why[512] = "";
    Emit *e = emit_new(mem, "bench", t->lanes, t->cpu, t->features);
    attention_emit(e, "forward", s);
    attention_grad_emit(e, "backward", s);
    JitSymbol parallel = {"rt_parallel", (void *)rt_parallel};
    Object *o = jit_compile(t, e->mod, NULL);
    Jit *j = jit_load(t, o->bytes, o->n, &parallel, 1, why, sizeof why);
    if (!j) die("%s", why);
    object_free(o);
    emit_free(e);
    Bench b = {.s = *s,
               .forward = (Forward)jit_lookup(j, "forward"),
               .backward = (Backward)jit_lookup(j, "backward")};
    int64_t rows = s->batch * s->tq * s->heads;
    for (int i = 0; i < TENSORS; i++)
        b.tensor[i] = random_tensor(s->dt, rows * s->dim, (uint64_t)i);
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

static double peak_of(int threads) {
    double best = 0;
    for (int i = 0; i < 3; i++) best = fmax(best, bench_fma_peak(threads));
    return best;
}

static void row(Bench *b, bool grad, int threads) {
    const AttnShape *s = &b->s;
    double products = grad ? 5 : 2, peak = peak_of(threads);
    double pairs = (double)(s->batch * s->heads) * (double)s->tq * (double)s->tk / 2;
    double flops = products * 2 * pairs * (double)s->dim;
    double seconds = seconds_of(b, grad), rate = flops / seconds * 1e-9;
    peak = fmax(peak, peak_of(threads));
    printf("  %-4s %-8s %8.2f ms %8.1f GFLOP/s, %.3f of the f32 peak of %.1f",
           dtype_name[s->dt], grad ? "backward" : "forward", seconds * 1e3, rate,
           rate / peak, peak);
    if (s->dt == DT_BF16) printf(", %.3f of twice that", rate / peak / 2);
    printf("\n");
}

static int argument(int argc, char **argv, int i, int otherwise) {
    return argc > i ? MAX(1, atoi(argv[i])) : otherwise;
}

int main(int argc, char **argv) {
    int64_t seq = argument(argc, argv, 1, 1024), dim = argument(argc, argv, 2, 64);
    int threads = argument(argc, argv, 3, 2);
    Target *t = target_open(argc > 4 ? argv[4] : NULL);
    rt_set_threads(threads);
    printf("attention: %d x %lld, %d heads of %lld, causal, %d threads, %d lanes\n",
           BATCH, (long long)seq, HEADS, (long long)dim, threads, t->lanes);
    static const DType types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        AttnShape s = {.batch = BATCH,
                       .tq = seq,
                       .tk = seq,
                       .heads = HEADS,
                       .kv_heads = HEADS,
                       .dim = dim,
                       .scale = 1 / sqrt((double)dim),
                       .causal = true,
                       .dt = types[i]};
        Bench b = prepare(t, &s, threads);
        row(&b, false, threads);
        row(&b, true, threads);
    }
    return 0;
}
