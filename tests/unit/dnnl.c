/* dnnl.c - products of the oneDNN shim against a plain loop in double. */
#include "codegen/dnnl.h"
#include "../test.h"
#include <dnnl.h>

enum { GUARD = 64 };

typedef struct Buffer {
    char *all; /* guard, data, guard */
    size_t bytes;
    DType dtype;
} Buffer;

static uint32_t noise_state;
static double noise(void) {
    noise_state = noise_state * 1664525u + 1013904223u;
    return (double)(noise_state >> 8) / (1 << 24) * 2 - 1;
}

static char *data_of(const Buffer *b) {
    return b->all + GUARD;
}

static double get(const Buffer *b, int64_t i) {
    if (b->dtype == DT_BF16) {
        uint16_t h;
        memcpy(&h, data_of(b) + i * 2, 2);
        return (double)bf16_to_f32(h);
    }
    float f;
    memcpy(&f, data_of(b) + i * 4, 4);
    return (double)f;
}

static void put(Buffer *b, int64_t i, double v) {
    float f = (float)v;
    uint16_t h = f32_to_bf16(f);
    if (b->dtype == DT_BF16)
        memcpy(data_of(b) + i * 2, &h, 2);
    else
        memcpy(data_of(b) + i * 4, &f, 4);
}

static int64_t span(const DnnlDesc *d) {
    int64_t last = 0;
    for (int i = 0; i < d->rank; i++) last += (d->dim[i] - 1) * d->stride[i];
    return last + 1;
}

static Buffer buffer_for(const DnnlDesc *d) {
    int64_t n = span(d);
    Buffer b = {.bytes = (size_t)n * dtype_bytes[d->dtype], .dtype = d->dtype};
    b.all = aligned_alloc(64, (b.bytes + 2 * GUARD + 63) & ~(size_t)63);
    EXPECT(b.all);
    memset(b.all, 0x5a, b.bytes + 2 * GUARD);
    for (int64_t i = 0; i < n; i++) put(&b, i, noise());
    return b;
}

static void expect_guards(const Buffer *b) {
    for (int i = 0; i < GUARD; i++)
        EXPECT(b->all[i] == 0x5a && b->all[GUARD + b->bytes + (size_t)i] == 0x5a);
}

/* Element offset of position `at` (of c's rank), dimensions of size 1 broadcast. */
static int64_t offset(const DnnlDesc *d, const int64_t *at) {
    int64_t o = 0;
    for (int i = 0; i < d->rank; i++) o += d->dim[i] == 1 ? 0 : at[i] * d->stride[i];
    return o;
}

static bool next(const DnnlDesc *c, int64_t *at) {
    for (int i = c->rank - 1; i >= 0; i--) {
        if (++at[i] < c->dim[i]) return true;
        at[i] = 0;
    }
    return false;
}

typedef struct Case {
    DnnlDesc a, b, bias, c;
    bool with_bias, accumulate;
    int threads;
    DnnlForm how;
} Case;

static DnnlMatmul *matmul_of(const Case *t, char *why, size_t why_size) {
    ProductShape s = {
        .a = t->a, .b = t->b, .c = t->c, .adds = t->accumulate, .threads = t->threads};
    if (t->with_bias) s.bias = t->bias;
    return dnnl_matmul_new(&s, t->how, why, why_size);
}

static double wanted(const Case *t, const Buffer *a, const Buffer *b, const Buffer *bias,
                     double before, const int64_t *at, double *size) {
    int r = t->c.rank;
    int64_t x[DNNL_MAX_RANK], y[DNNL_MAX_RANK];
    memcpy(x, at, sizeof x);
    memcpy(y, at, sizeof y);
    double sum = t->accumulate ? before : 0;
    if (t->with_bias) sum += get(bias, at[r - 1]);
    *size = fabs(sum);
    for (int64_t k = 0; k < t->a.dim[r - 1]; k++) {
        x[r - 1] = y[r - 2] = k;
        double p = get(a, offset(&t->a, x)) * get(b, offset(&t->b, y));
        sum += p;
        *size += fabs(p);
    }
    return sum;
}

/* Runs a case twice (the second time on what the first left) and compares everything:
 * every element of c, the holes between its rows, the guards, and the inputs. */
static void run_case(const Case *t, const char *label) {
    char why[256] = "";
    DnnlMatmul *m = matmul_of(t, why, sizeof why);
    if (!m) test_fail(__FILE__, __LINE__, "%s: %s", label, why);
    EXPECT(strncmp(dnnl_matmul_impl(m), "ref", 3) != 0);
    Buffer a = buffer_for(&t->a), b = buffer_for(&t->b), c = buffer_for(&t->c);
    Buffer bias = {0};
    if (t->with_bias) bias = buffer_for(&t->bias);
    size_t scratch_bytes = dnnl_matmul_scratch_bytes(m);
    char *scratch = aligned_alloc(64, (scratch_bytes + 127) & ~(size_t)63);
    size_t whole = c.bytes + 2 * GUARD;
    char *before = malloc(whole), *expected = malloc(whole);
    EXPECT(scratch && before && expected);
    for (int round = 0; round < 2; round++) {
        memset(scratch, 0xff, scratch_bytes);
        memset(scratch + scratch_bytes, 0x5a, 64);
        memcpy(before, c.all, whole);
        memcpy(expected, c.all, whole);
        dnnl_matmul_run(m, data_of(&a), data_of(&b), t->with_bias ? data_of(&bias) : NULL,
                        data_of(&c), scratch_bytes ? scratch : NULL);
        Buffer old = {before, c.bytes, c.dtype}, holes = {expected, c.bytes, c.dtype};
        int64_t at[DNNL_MAX_RANK] = {0};
        do {
            int64_t o = offset(&t->c, at);
            double size, got = get(&c, o);
            double want = wanted(t, &a, &b, &bias, get(&old, o), at, &size);
            double eps = c.dtype == DT_BF16 ? 0x1p-8 * fabs(want) + 2e-6 * size
                                            : 4e-7 * (size + 1);
            if (!(fabs(got - want) <= eps + 1e-6))
                test_fail(__FILE__, __LINE__, "%s (%s): c[%lld] = %.9g, wanted %.9g",
                          label, dnnl_matmul_impl(m), (long long)o, got, want);
            put(&holes, o, got);
        } while (next(&t->c, at));
        EXPECT(memcmp(expected, c.all, whole) == 0);
        for (int i = 0; i < 64; i++) EXPECT_INT(scratch[scratch_bytes + (size_t)i], 0x5a);
        expect_guards(&a);
        expect_guards(&b);
    }
    free(scratch), free(before), free(expected);
    free(a.all), free(b.all), free(c.all), free(bias.all);
    dnnl_matmul_free(m);
}

static DnnlDesc matrix(DType t, int64_t rows, int64_t cols, bool transposed,
                       int64_t pad) {
    DnnlDesc d = {.rank = 2, .dim = {rows, cols}, .dtype = t};
    d.stride[0] = transposed ? 1 : cols + pad;
    d.stride[1] = transposed ? rows + pad : 1;
    return d;
}

static Case product(DType in, DType out, int64_t m, int64_t n, int64_t k, int form,
                    int64_t pad) {
    Case t = {.threads = 2};
    t.a = matrix(in, m, k, form & 1, pad);
    t.b = matrix(in, k, n, form & 2, pad);
    t.c = matrix(out, m, n, form & 4, pad);
    t.bias = (DnnlDesc){.rank = 2, .dim = {1, n}, .stride = {n, 1}, .dtype = DT_F32};
    return t;
}

/* DNNL_MAX_CPU_ISA may hide what the CPU has. */
static bool bf16_works(void) {
    return !getenv("DNNL_MAX_CPU_ISA") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static void all_shapes(DType in, DType out) {
    static const int64_t shapes[][3] = {
        {1, 1, 1},   {1, 1, 17},  {1, 19, 1},  {23, 1, 1},    {1, 5, 7},     {3, 1, 7},
        {2, 2, 1},   {3, 5, 7},   {8, 8, 8},   {16, 16, 16},  {33, 65, 17},  {64, 64, 64},
        {1, 96, 65}, {97, 1, 33}, {31, 48, 2}, {5, 129, 127}, {130, 66, 70}, {2, 3, 257},
    };
    for (int s = 0; s < ARRAY_LEN(shapes); s++)
        for (int form = 0; form < 8; form++)
            for (int extra = 0; extra < 8; extra++) {
                const int64_t *q = shapes[s];
                Case t = product(in, out, q[0], q[1], q[2], form, extra & 4 ? 3 : 0);
                t.accumulate = extra & 1;
                t.with_bias = extra & 2;
                /* A column-major c with a bias is refused, see "refused". */
                if (t.with_bias && form & 4) continue;
                char label[96];
                snprintf(label, sizeof label, "%s>%s %dx%dx%d form %d extra %d",
                         dtype_name[in], dtype_name[out], (int)q[0], (int)q[1], (int)q[2],
                         form, extra);
                run_case(&t, label);
            }
}

TEST_LABEL_OF(f32, SLOW);
TEST_LABEL_OF(f32, RELEASED);
TEST_LIMIT(f32, 300) {
    all_shapes(DT_F32, DT_F32);
}

TEST_LABEL_OF(bf16_to_f32, SLOW);
TEST_LABEL_OF(bf16_to_f32, RELEASED);
TEST_LIMIT(bf16_to_f32, 300) {
    if (!bf16_works()) test_skip("no AVX-512: oneDNN has no bf16 product here");
    all_shapes(DT_BF16, DT_F32);
}

TEST_LABEL_OF(bf16_to_bf16, RELEASED);
TEST_LABEL_OF(bf16_to_bf16, SLOW);
TEST_LIMIT(bf16_to_bf16, 300) {
    if (!bf16_works()) test_skip("no AVX-512: oneDNN has no bf16 product here");
    all_shapes(DT_BF16, DT_BF16);
}

TEST(threads_of_one_and_three) {
    for (int threads = 1; threads <= 3; threads += 2) {
        Case t = product(DT_F32, DT_F32, 200, 150, 96, 1, 0);
        t.threads = threads;
        t.with_bias = true;
        run_case(&t, "threads");
    }
}

/* Rank 4, each leading dimension of a and b full or broadcast, the heads of a and b
 * interleaved as [batch, row, head, column] in some forms. */
TEST_LIMIT(batch, 300) {
    const int64_t dim[2] = {2, 3};
    for (int form = 0; form < 64; form++)
        for (int m = 1; m <= 5; m += 4) {
            Case t = product(DT_F32, DT_F32, m, 6, 7, form >> 4 & 3, 0);
            DnnlDesc *d[3] = {&t.a, &t.b, &t.c};
            for (int i = 0; i < 3; i++) {
                int64_t size = d[i]->dim[0] * d[i]->dim[1];
                memmove(d[i]->dim + 2, d[i]->dim, 2 * sizeof(int64_t));
                memmove(d[i]->stride + 2, d[i]->stride, 2 * sizeof(int64_t));
                d[i]->rank = 4;
                for (int k = 1; k >= 0; k--) {
                    bool one = i < 2 && form >> (2 * i + k) & 1;
                    d[i]->dim[k] = one ? 1 : dim[k];
                    d[i]->stride[k] = size;
                    size *= d[i]->dim[k];
                }
            }
            t.accumulate = m == 5;
            t.with_bias = form & 32;
            char label[64];
            snprintf(label, sizeof label, "batch form %d m %d", form, m);
            run_case(&t, label);
        }
}

TEST(batch_of_interleaved_heads) {
    /* q [batch 2, t 5, head 3, d 8] times k likewise -> scores [batch, head, t, t]. */
    Case t = {.threads = 2};
    t.a = (DnnlDesc){4, {2, 3, 5, 8}, {120, 8, 24, 1}, DT_F32};
    t.b = (DnnlDesc){4, {2, 3, 8, 5}, {120, 8, 1, 24}, DT_F32};
    t.c = (DnnlDesc){4, {2, 3, 5, 5}, {75, 25, 5, 1}, DT_F32};
    run_case(&t, "heads");
}

TEST(activations_times_one_weight) {
    Case t = {.threads = 2, .with_bias = true};
    t.a = (DnnlDesc){3, {4, 9, 16}, {9 * 16, 16, 1}, DT_F32};
    t.b = (DnnlDesc){3, {1, 16, 24}, {16 * 24, 24, 1}, DT_F32};
    t.c = (DnnlDesc){3, {4, 9, 24}, {9 * 24, 24, 1}, DT_F32};
    t.bias = (DnnlDesc){1, {24}, {1}, DT_F32};
    run_case(&t, "weight");
}

TEST_LABEL_OF(large, SLOW);
TEST_LABEL_OF(large, RELEASED);
/* Large enough for the kernel that is chosen for large f32 products only. */
TEST_LIMIT(large, 300) {
    for (int form = 0; form < 8; form++) {
        Case t = product(DT_F32, DT_F32, 261, 259, 263, form, form == 2 ? 5 : 0);
        t.accumulate = form != 3;
        t.with_bias = form < 4;
        char label[64];
        snprintf(label, sizeof label, "large form %d", form);
        run_case(&t, label);
    }
}

/* Is there such a kernel for it on this machine? */
static bool is_there(const Case *t) {
    char why[256];
    DnnlMatmul *m = matmul_of(t, why, sizeof why);
    dnnl_matmul_free(m);
    return m != NULL;
}

/* Every kernel that can be asked for, b packed or not, all orders of factors, rests. */
TEST_LIMIT(kernels_by_name, 120) {
    static const int64_t shapes[][3] = {{64, 64, 64}, {33, 70, 129}, {5, 200, 64}};
    int ran[DNNL_FORMS] = {0};
    for (int i = 0; i < 3 * 4 * 4 * 2 * DNNL_FORMS; i++) {
        const int64_t *q = shapes[i % 3];
        int order = i / 3 % 4, extra = i / 12 % 4;
        DType in = i / 48 % 2 ? DT_BF16 : DT_F32;
        if (in == DT_BF16 && !bf16_works()) continue;
        Case t = product(in, DT_F32, q[0], q[1], q[2], order, extra & 2 ? 3 : 0);
        t.accumulate = extra & 1, t.with_bias = extra & 2, t.how = (DnnlForm)(i / 96);
        if (!is_there(&t)) continue;
        char label[96];
        snprintf(label, sizeof label, "kernel %d %s %dx%dx%d order %d extra %d", t.how,
                 dtype_name[in], (int)q[0], (int)q[1], (int)q[2], order, extra);
        run_case(&t, label);
        ran[t.how]++;
    }
    EXPECT(ran[DNNL_RULE] && ran[DNNL_GEMM]);
    if (bf16_works()) EXPECT(ran[DNNL_BRGEMM] && ran[DNNL_BRGEMM_PACKED]);
}

TEST(large_products_use_gemm) {
    if (dnnl_version()->major != 2) test_skip("the rule is for oneDNN 2");
    Case t = product(DT_F32, DT_F32, 256, 256, 256, 0, 0);
    t.accumulate = true;
    char why[256];
    for (int small = 0; small < 2; small++) {
        if (small) t.a.dim[0] = t.c.dim[0] = 31;
        DnnlMatmul *m = matmul_of(&t, why, sizeof why);
        EXPECT(m);
        bool gemm = strncmp(dnnl_matmul_impl(m), "gemm", 4) == 0;
        EXPECT(gemm == !small || !bf16_works());
        dnnl_matmul_free(m);
    }
}

TEST(same_bits_every_time) {
    Case t = product(DT_F32, DT_F32, 96, 264, 1000, 1, 0);
    char why[256];
    Buffer a = buffer_for(&t.a), b = buffer_for(&t.b), c = buffer_for(&t.c);
    char *first = malloc(c.bytes);
    for (int i = 0; i < 5; i++) {
        DnnlMatmul *m = matmul_of(&t, why, sizeof why);
        EXPECT(m);
        void *scratch = aligned_alloc(64, (dnnl_matmul_scratch_bytes(m) + 127) & ~63ul);
        dnnl_matmul_run(m, data_of(&a), data_of(&b), NULL, data_of(&c), scratch);
        if (i == 0) memcpy(first, data_of(&c), c.bytes);
        EXPECT(memcmp(first, data_of(&c), c.bytes) == 0);
        free(scratch);
        dnnl_matmul_free(m);
    }
    free(first), free(a.all), free(b.all), free(c.all);
}

static void expect_refused(const Case *t, const char *part) {
    char why[256] = "";
    DnnlMatmul *m = matmul_of(t, why, sizeof why);
    if (m || !strstr(why, part))
        test_fail(__FILE__, __LINE__, "got '%s', wanted '%s'", m ? "a product" : why,
                  part);
}

TEST(refused) {
    Case good = product(DT_F32, DT_F32, 4, 6, 8, 0, 0), t = good;
    run_case(&good, "good");
    t.a.dim[1] = 7;
    expect_refused(&t, "[m,k] [k,n]");
    t = good, t.a.rank = 3;
    expect_refused(&t, "positive");
    t = good, t.c.rank = 1;
    expect_refused(&t, "same rank");
    t = good, t.c.stride[0] = 0;
    expect_refused(&t, "positive");
    t = good, t.a.dim[0] = t.c.dim[0] = INT64_MAX / 2;
    expect_refused(&t, "fit memory");
    t = good, t.a.rank = DNNL_MAX_RANK + 1;
    expect_refused(&t, "positive");
    t = good, t.a.dtype = DT_BF16;
    expect_refused(&t, "f32 (into f32)");
    t = good, t.a.dtype = t.b.dtype = t.c.dtype = DT_F64;
    expect_refused(&t, "f32 (into f32)");
    t = good, t.with_bias = true, t.bias.dim[1] = 5;
    expect_refused(&t, "bias must be [n]");
    t = good, t.threads = 0;
    expect_refused(&t, "at least one thread");
    t = product(DT_F32, DT_F32, 4, 6, 8, 4, 0), t.with_bias = true;
    expect_refused(&t, "with a bias c must be row-major");
    t = good, t.a.stride[0] = 16, t.a.stride[1] = 2;
    expect_refused(&t, "a has no unit stride");
    t = good, t.a.rank = t.b.rank = t.c.rank = 3;
    t.a = (DnnlDesc){3, {2, 4, 8}, {32, 8, 1}, DT_F32};
    t.b = (DnnlDesc){3, {3, 8, 6}, {48, 6, 1}, DT_F32};
    t.c = (DnnlDesc){3, {3, 4, 6}, {24, 6, 1}, DT_F32};
    expect_refused(&t, "leading dimension");
}
