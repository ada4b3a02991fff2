/* products.c - the products of bf16 that a training step has, one at a time, as a share of the
 * unit's peak, for rows of `width`, four times that in the middle, and a vocabulary.
 *     bench_products [ROWS [WIDTH [VOCABULARY [TILE [THREADS [CPU]]]]]]
 *                                                  (4096 768 50257 512 2 native)
 *     bench_products TYPE M N K HOW THREADS
 * The second is one product in every form that there is, a line "FORM SECONDS" each, the
 * fixed rule's first: TYPE f32 or bf16, HOW letters or -: a or b, that factor lies across; +,
 * a bias; s, it adds to the result; f, the result of bf16 is f32.
 * Medians of runs over as many copies of the operands as caches cannot hold. The peak is that
 * of the bf16 unit, measured before and after each row; where there is none, of f32. */
#include "base/rng.h"
#include "codegen/product_trial.h"
#include "codegen/rt_call.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { RUNS = 15, COPIES = 3 };

typedef void (*Product)(const void *a, const void *b, const float *bias, void *c,
                        void *work);

typedef struct Row {
    const char *name;
    PairsMatmul s;
} Row;

/* With large pages, as the memory of a program has them. */
static void *room(int64_t bytes) {
    enum { PAGE = 2 << 20 };
    size_t n = (size_t)round_up(bytes, PAGE);
    void *p = aligned_alloc(PAGE, n);
    if (!p) fail(EXIT_MEMORY, "out of memory");
    madvise(p, n, MADV_HUGEPAGE);
    memset(p, 0, (size_t)bytes);
    return p;
}

static void *random_bf16(int64_t n) {
    uint16_t *p = room(2 * n);
    for (int64_t i = 0; i < n; i++) /* 1 to 2, of either sign */
        p[i] =
            (uint16_t)(0x3f80 | (rng_uniform(1, 2, (uint64_t)i) < 0.5) << 15 | (i & 127));
    return p;
}

static Product product_make(Target *t, const PairsMatmul *s) {
    Arena *mem = arena_new();
    char why[512] = "";
    Emit *e = emit_new(mem, "bench", t->lanes, t->cpu, t->features);
    pairs_matmul_emit(e, "inner", s);
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->ptr, e->ptr};
    emit_func(e, "product", e->void_, params, 5, false);
    LLVMValueRef args[5];
    for (int i = 0; i < 5; i++) args[i] = emit_param(e, i);
    emit_call(e, "inner", args, 5);
    emit_ret(e, NULL);
    Object *o = jit_compile(t, e->mod, NULL);
    Jit *j = jit_load(t, o->bytes, o->n, rt_thread_symbols, RT_THREAD_SYMBOLS, why,
                      sizeof why);
    if (!j) die("%s", why);
    object_free(o);
    emit_free(e);
    arena_free(mem);
    return (Product)jit_lookup(j, "product");
}

static double seconds_of(Target *t, const PairsMatmul *product) {
    PairsMatmul one = *product, *s = &one;
    one.tiles = target_has_tiles(t);
    one.dots = !one.tiles && target_has_dots(t);
    Product run = product_make(t, s);
    char *a[COPIES], *b[COPIES], *c[COPIES];
    double seconds[RUNS];
    float *bias = room(s->n * 4);
    char *work = room(pairs_matmul_workspace_bytes(s, t->lanes));
    for (int i = 0; i < COPIES; i++) {
        a[i] = random_bf16(s->m * s->k);
        b[i] = random_bf16(s->k * s->n);
        c[i] = room(s->m * s->n * 4);
    }
    for (int i = -1; i < RUNS; i++) {
        double start = clock_seconds();
        int x = (i + COPIES) % COPIES;
        run(a[x], b[x], bias, c[x], work);
        if (i >= 0) seconds[i] = clock_seconds() - start;
    }
    for (int i = 0; i < COPIES; i++) free(a[i]), free(b[i]), free(c[i]);
    free(bias), free(work);
    sort_doubles(seconds, RUNS);
    return seconds[RUNS / 2];
}

static double peak_of(int threads) {
    const char *unit;
    double peak = peak_bf16(threads, PEAK_SECONDS, &unit);
    return peak > 0 ? peak : peak_f32(threads, PEAK_SECONDS, &unit);
}

static void print_row(Target *t, const Row *r, int threads) {
    double peak = peak_of(threads), seconds = seconds_of(t, &r->s);
    peak = fmax(peak, peak_of(threads));
    double rate = 2e-9 * (double)r->s.m * (double)r->s.n * (double)r->s.k / seconds;
    printf("  %-22s %6lld x %6lld x %6lld %9.2f ms %8.1f GFLOP/s, %.3f of %.1f\n",
           r->name, (long long)r->s.m, (long long)r->s.n, (long long)r->s.k,
           seconds * 1e3, rate, rate / peak, peak);
}

enum { A_ACROSS = 1, B_ACROSS = 2, BIAS = 4, ADDS = 8, F32 = 16 };

static PairsMatmul product(int64_t m, int64_t n, int64_t k, int how, int threads) {
    return (PairsMatmul){
        .m = m,
        .n = n,
        .k = k,
        .a_m = how & A_ACROSS ? 1 : k,
        .a_k = how & A_ACROSS ? m : 1,
        .b_k = how & B_ACROSS ? 1 : n,
        .b_n = how & B_ACROSS ? k : 1,
        .c_m = n,
        .bias = !!(how & BIAS),
        .adds = !!(how & ADDS),
        .rounds = !(how & F32),
        .dt = DT_BF16,
        .threads = threads,
    };
}

static int argument(int argc, char **argv, int i, int otherwise) {
    return argc > i ? MAX(1, atoi(argv[i])) : otherwise;
}

static DnnlDesc matrix(DType t, int64_t rows, int64_t columns, bool across) {
    return (DnnlDesc){.rank = 2,
                      .dim = {rows, columns},
                      .stride = {across ? 1 : columns, across ? rows : 1},
                      .dtype = t};
}

static int print_forms(char **word) {
    DType t = strcmp(word[1], "f32") ? DT_BF16 : DT_F32;
    int64_t m = atoll(word[2]), n = atoll(word[3]), k = atoll(word[4]);
    const char *how = word[5];
    ProductShape s = product_shape_clear();
    s.a = matrix(t, m, k, strchr(how, 'a'));
    s.b = matrix(t, k, n, strchr(how, 'b'));
    s.c = matrix(strchr(how, 'f') ? DT_F32 : t, m, n, false);
    if (strchr(how, '+')) s.bias = matrix(DT_F32, 1, n, false);
    s.adds = strchr(how, 's') != NULL;
    s.threads = MAX(1, atoi(word[6]));
    rt_set_threads(s.threads);
    ProductTime time[PRODUCT_FORMS + 1];
    int forms;
    Target *target = target_open(NULL);
    s.tiles = target_has_tiles(target);
    s.dots = target_has_dots(target);
    if (!product_times(target, &s, clock_seconds() + 60, time, &forms))
        fail(EXIT_MEMORY, "no form of this product, no memory or no time");
    for (int i = 0; i < forms; i++) printf("%s %.9f\n", time[i].form, time[i].seconds);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 7 && (!strcmp(argv[1], "f32") || !strcmp(argv[1], "bf16")))
        return print_forms(argv);
    int64_t m = argument(argc, argv, 1, 4096), c = argument(argc, argv, 2, 768);
    int64_t v = argument(argc, argv, 3, 50257), tile = argument(argc, argv, 4, 512);
    int n = argument(argc, argv, 5, 2);
    Target *t = target_open(argc > 6 ? argv[6] : NULL);
    rt_set_threads(n);
    printf("products of bf16, %d threads, %d lanes\n", n, t->lanes);
    const int weight = A_ACROSS | F32;
    const Row rows[] = {
        {"qkv", product(m, 3 * c, c, BIAS, n)},
        {"qkv, of inputs", product(m, c, 3 * c, B_ACROSS, n)},
        {"qkv, of weights", product(c, 3 * c, m, weight, n)},
        {"out", product(m, c, c, BIAS, n)},
        {"out, of inputs", product(m, c, c, B_ACROSS, n)},
        {"out, of weights", product(c, c, m, weight, n)},
        {"up", product(m, 4 * c, c, BIAS, n)},
        {"up, of inputs", product(m, c, 4 * c, B_ACROSS, n)},
        {"up, of weights", product(c, 4 * c, m, weight, n)},
        {"down", product(m, c, 4 * c, BIAS, n)},
        {"down, of inputs", product(m, 4 * c, c, B_ACROSS, n)},
        {"down, of weights", product(4 * c, c, m, weight, n)},
        {"logits", product(tile, v, c, B_ACROSS | F32, n)},
        {"logits, of inputs", product(tile, c, v, 0, n)},
        {"logits, of the table", product(v, c, tile, weight | ADDS, n)},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) print_row(t, &rows[i], n);
    return 0;
}
