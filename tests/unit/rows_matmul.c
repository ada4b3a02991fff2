/* rows_matmul.c (test) - generated products of a few rows against sums in double: both orders
 * of the matrix, numbers of rows, sizes with every kind of rest, threads, addends, f32, bf16 and f16.
 * What no matrix owns is NaN before and must be as before after; and a row has the same bits
 * whatever the rows beside it. */
#include "codegen/rows_matmul.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "jitted.h"
#include "numbers.h"
#include "runtime/core/rt.h"

typedef void (*Product)(const void *a, const void *b, const float *bias, void *c,
                        void *ws);

enum { PAD = 3, GUARD = 32 };

/* lines of `length` numbers and PAD that are NaN */
static void *lines_new(Arena *mem, DType dt, int64_t lines, int64_t length,
                       uint64_t salt) {
    int64_t row = length + PAD;
    void *at = arena_alloc(mem, (size_t)(lines * row * 4));
    for (int64_t i = 0; i < lines * row; i++)
        set_number(
            dt, at, i,
            i % row >= length ? NAN : (float)(2 * rng_uniform(3, salt, (uint64_t)i) - 1));
    return at;
}

/* 16 lanes without the CPU's instructions for bf16; with them, as a CPU has it where they are
 * fast. */
enum { WIDENED = 17, PAIRED = 18 };

static Target *target_of(int vl) {
    if (vl <= 16) return target_of_lanes(vl);
    return vl == WIDENED ? target_widening() : target_of_lanes(16);
}

static Emit *emit_of(Arena *mem, Target *t, int vl) {
    Emit *e = emit_for(mem, t);
    if (vl == PAIRED) e->cpu = "znver4";
    if (vl == PAIRED && !emit_has_dots(e)) test_skip("the CPU has no AVX512-BF16");
    return e;
}

static Product product_make(const RowsMatmul *s, int vl) {
    static const JitSymbol symbols[] = {{"rt_parallel", (void *)rt_parallel}};
    Arena *mem = arena_new();
    Target *t = target_of(vl);
    Emit *e = emit_of(mem, t, vl);
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->ptr, e->ptr};
    rows_matmul_emit(e, "inner", s);
    emit_func(e, "product", e->void_, params, 5, false);
    LLVMValueRef args[5];
    for (int i = 0; i < 5; i++) args[i] = emit_param(e, i);
    emit_call(e, "inner", args, 5);
    emit_ret(e, NULL);
    Jit *j = emit_finish(e, t, symbols, ARRAY_LEN(symbols));
    return (Product)(uintptr_t)jit_lookup(j, "product");
}

typedef struct Case {
    RowsMatmul s;
    void *a, *b, *old, *c;
    float *bias;
    int64_t count; /* of numbers of C, guards included */
} Case;

static DType c_type(const RowsMatmul *s) {
    return s->rounds ? s->dt : DT_F32;
}

static void expect_element(const Case *x, int64_t i, int64_t j) {
    const RowsMatmul *s = &x->s;
    double sum = 0, size = 0;
    for (int64_t l = 0; l < s->k; l++) {
        double p = number_at(s->dt, x->a, i * s->a_m + l) *
                   number_at(s->dt, x->b, l * s->b_k + j * s->b_n);
        sum += p;
        size += fabs(p);
    }
    int64_t at = GUARD + i * s->c_m + j;
    double old = number_at(c_type(s), x->old, at), got = number_at(c_type(s), x->c, at);
    if (s->bias) sum += x->bias[j], size += fabs(x->bias[j]);
    if (s->adds) sum += old, size += fabs(old);
    double bound = size * (double)(s->k + 4) * 0x1p-24 + number_rounding(c_type(s), sum);
    if (!(fabs(got - sum) <= bound))
        test_fail(__FILE__, __LINE__,
                  "%lld x %lld x %lld, element %lld, %lld: %g, wanted %g",
                  (long long)s->m, (long long)s->n, (long long)s->k, (long long)i,
                  (long long)j, got, sum);
}

enum { BF16 = 2, ROUNDS = 16, F16 = 32 };

/* form: bit 0: B along k, 2: bias, 3: adds; BF16 or F16, else f32; ROUNDS: those. */
static Case run_one(Arena *mem, int64_t m, int64_t n, int64_t k, int form, int threads,
                    int vl) {
    bool along_k = form & 1;
    DType dt = form & F16 ? DT_F16 : form & BF16 ? DT_BF16 : DT_F32;
    Case x = {.s = {.m = m,
                    .n = n,
                    .k = k,
                    .a_m = k + PAD,
                    .b_k = along_k ? 1 : n + PAD,
                    .b_n = along_k ? k + PAD : 1,
                    .c_m = n + PAD,
                    .threads = threads,
                    .dt = dt,
                    .rounds = dtype_is_narrow(dt) && (form & ROUNDS),
                    .bias = !!(form & 4),
                    .adds = !!(form & 8)}};
    const RowsMatmul *s = &x.s;
    EXPECT(rows_matmul_takes(s));
    x.a = lines_new(mem, dt, m, k, 1);
    x.b = lines_new(mem, dt, along_k ? n : k, along_k ? k : n, 2);
    x.count = m * s->c_m + 2 * GUARD;
    x.bias = NEW_ARRAY(mem, float, (size_t)n);
    x.c = arena_alloc(mem, (size_t)x.count * 4);
    x.old = arena_alloc(mem, (size_t)x.count * 4);
    for (int64_t j = 0; j < n; j++) x.bias[j] = (float)(j % 7) - 3;
    for (int64_t i = 0; i < x.count; i++)
        set_number(c_type(s), x.old, i, (float)(i % 5) - 2);
    memcpy(x.c, x.old, (size_t)x.count * 4);
    int64_t bytes = rows_matmul_workspace_bytes(s, MIN(vl, 16));
    char *ws = aligned_alloc(64, (size_t)align_up(bytes + 64));
    memset(ws, 0xff, (size_t)bytes + 64);
    product_make(s, vl)(x.a, x.b, x.bias, (char *)x.c + GUARD * dtype_bytes[c_type(s)],
                        ws);
    for (int i = 0; i < 64; i++) EXPECT((unsigned char)ws[bytes + i] == 0xff);
    free(ws);
    return x;
}

static void try_one(int64_t m, int64_t n, int64_t k, int form, int threads, int vl) {
    Arena *mem = arena_new();
    Case x = run_one(mem, m, n, k, form, threads, vl);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) expect_element(&x, i, j);
    for (int64_t i = 0; i < x.count; i++) {
        int64_t at = i - GUARD, row = x.s.c_m;
        bool mine = at >= 0 && at < m * row && at % row < n;
        if (!mine)
            EXPECT(number_at(c_type(&x.s), x.c, i) == number_at(c_type(&x.s), x.old, i));
    }
    arena_free(mem);
}

static void all_forms(int vl) {
    static const int64_t size[][3] = {{1, 1, 1},     {1, 600, 200}, {2, 33, 65},
                                      {3, 300, 130}, {5, 16, 7},    {8, 1030, 70},
                                      {13, 65, 129}, {16, 520, 40}, {1, 9, 1500},
                                      {8, 210, 900}, {12, 70, 1100}};
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(size); i++)
        for (int form = 0; form < F16 + 32; form++, n++) {
            if (form & F16 && form & BF16) continue;
            if (n % 3 && i) continue; /* every third, other ones for every size */
            try_one(size[i][0], size[i][1], size[i][2], form, 1 + n % 4, vl);
        }
}

TEST_LABEL_OF(wide, SLOW);
TEST_LABEL_OF(wide, RELEASED);
TEST_LIMIT(wide, 120) {
    all_forms(16);
}

TEST_LABEL_OF(widened, QUICK);
TEST_LABEL_OF(widened, SLOW);
TEST_LABEL_OF(widened, RELEASED);
TEST_LIMIT(widened, 120) {
    all_forms(WIDENED);
}

TEST_LABEL_OF(paired, SLOW);
TEST_LABEL_OF(paired, RELEASED);
TEST_LIMIT(paired, 120) {
    all_forms(PAIRED);
}

TEST_LABEL_OF(narrow, QUICK);
TEST_LABEL_OF(narrow, SLOW);
TEST_LABEL_OF(narrow, RELEASED);
TEST_LIMIT(narrow, 120) {
    all_forms(8);
}

TEST(one_of_each_kind) {
    for (int form = 0; form < 4; form++) try_one(3, 70, 34, form | ROUNDS, 2, 8);
    try_one(3, 70, 34, F16, 2, 8);
    try_one(3, 70, 34, F16 | ROUNDS | 1, 2, 8);
}

/* bf16 along the columns: an odd number of rows of B, which has no pair for the last one, and
 * columns that end within each kind of vector; threads with parts of k. */
static void pairs_of_rows(int vl) {
    static const int64_t size[][3] = {
        {1, 31, 129}, {3, 33, 1}, {7, 97, 67}, {8, 48, 193}, {16, 17, 3}};
    for (int i = 0; i < ARRAY_LEN(size); i++)
        try_one(size[i][0], size[i][1], size[i][2], 2, 1 + i % 3, vl);
}

TEST(pairs_of_rows_8) {
    pairs_of_rows(8);
}

TEST(pairs_of_rows_widened) {
    pairs_of_rows(WIDENED);
}

TEST(pairs_of_rows_paired) {
    pairs_of_rows(PAIRED);
}

/* The two ways differ by no bit: a pair is two multiply-adds. */
TEST(pairs_have_the_same_bits) {
    enum { M = 5, N = 75, K = 99 };
    Arena *mem = arena_new();
    Case paired = run_one(mem, M, N, K, 2, 2, PAIRED);
    Case widened = run_one(mem, M, N, K, 2, 2, WIDENED);
    EXPECT(!memcmp(paired.c, widened.c, (size_t)paired.count * sizeof(float)));
    arena_free(mem);
}

/* k: rows of A that stay in the first cache, and more of them than do. */
TEST(rows_are_independent) {
    enum { N = 290 };
    static const int rows[] = {2, 8, 16}, sums[] = {150, 1700};
    for (int n = 0; n < 8; n++) {
        Arena *mem = arena_new();
        int form = n % 2 | (n % 4 > 1 ? BF16 : n > 4 ? F16 : 0), k = sums[n / 4];
        Case one = run_one(mem, 1, N, k, form, 3, 8);
        for (int i = 0; i < ARRAY_LEN(rows); i++) {
            Case many = run_one(mem, rows[i], N, k, form, 3, 8);
            EXPECT(!memcmp((float *)one.c + GUARD, (float *)many.c + GUARD, N * 4));
        }
        arena_free(mem);
    }
}

TEST(others_are_left) {
    RowsMatmul s = {.m = ROWS_MATMUL_MOST, .n = 8, .k = 8, .b_k = 8, .b_n = 1};
    EXPECT(rows_matmul_takes(&s));
    s.b_n = 2;
    EXPECT(!rows_matmul_takes(&s));
    s.b_n = 1, s.m++;
    EXPECT(!rows_matmul_takes(&s));
}
