/* pairs_matmul.c (test) - generated products of bf16, f16 and f32 against sums in double, also by
 * tile registers: all orders of factors, sizes with every kind of rest, several blocks,
 * threads, addends. What no matrix owns is NaN before and must be as before after. */
#include "codegen/pairs_matmul.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "codegen/rt_call.h"
#include "jitted.h"
#include "numbers.h"
#include "runtime/core/rt.h"

typedef void (*Product)(const void *a, const void *b, const float *bias, void *c,
                        void *ws);

enum { PAD = 3, GUARD = 32 };

typedef struct Matrix {
    void *at;
    DType dt;
    int64_t row, col; /* strides */
} Matrix;

/* rows x cols numbers, along rows or (across) columns; lines have PAD more, which are NaN. */
static Matrix matrix_new(Arena *mem, int64_t rows, int64_t cols, DType dt, bool across,
                         int pad, uint64_t salt) {
    int64_t lines = across ? cols : rows, length = (across ? rows : cols) + pad;
    void *at = arena_alloc(mem, (size_t)(lines * length) * dtype_bytes[dt]);
    Matrix m = {at, dt, length, 1};
    if (across) m.row = 1, m.col = length;
    for (int64_t i = 0; i < lines * length; i++) {
        bool inside = i % length < length - pad;
        double x = inside ? 2 * rng_uniform(3, salt, (uint64_t)i) - 1 : NAN;
        set_number(dt, at, i, (float)x);
    }
    return m;
}

static double element(const Matrix *m, int64_t i, int64_t j) {
    return number_at(m->dt, m->at, i * m->row + j * m->col);
}

/* All with lanes of 16: dots, and tile registers, emulated in vectors or by the CPU's
 * instructions. */
enum { DOTS = 17, EMULATED = 100, BY_CPU };

static int lanes(int vl) {
    return MIN(vl, 16);
}

static Product product_make(const PairsMatmul *s, int vl) {
    Arena *mem = arena_new();
    Target *t = vl == BY_CPU ? target_tiled() : target_of_lanes(lanes(vl));
    Emit *e = emit_for(mem, t);
    if (vl == DOTS) e->cpu = "znver4";
    if (vl == DOTS && !emit_has_dots(e)) test_skip("the CPU has no AVX512-BF16");
    if (vl <= EMULATED) e->tiles = vl == EMULATED ? TILES_EMULATED : TILES_NONE;
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->ptr, e->ptr};
    pairs_matmul_emit(e, "inner", s);
    emit_func(e, "product", e->void_, params, 5, false);
    LLVMValueRef args[5];
    for (int i = 0; i < 5; i++) args[i] = emit_param(e, i);
    emit_call(e, "inner", args, 5);
    emit_ret(e, NULL);
    Jit *j = emit_finish(e, t, rt_thread_symbols, RT_THREAD_SYMBOLS);
    return (Product)(uintptr_t)jit_lookup(j, "product");
}

static void expect_product(const PairsMatmul *s, const Matrix *a, const Matrix *b,
                           const float *bias, const void *old, const void *c) {
    /* of a large product some elements, in all rows and columns */
    int64_t step = s->m * s->n * s->k > 1 << 27 ? 37 : 1;
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = i % step; j < s->n; j += step) {
            double sum = 0, size = 0;
            for (int64_t l = 0; l < s->k; l++) {
                double x = element(a, i, l) * element(b, l, j);
                sum += x;
                size += fabs(x);
            }
            int64_t at = GUARD + i * s->c_m + j;
            if (s->bias) sum += bias[j], size += fabs(bias[j]);
            if (s->adds)
                sum += number_at(pairs_matmul_result(s), old, at),
                    size += fabs(number_at(pairs_matmul_result(s), old, at));
            double got = number_at(pairs_matmul_result(s), c, at);
            double bound = size * (double)(s->k + 4) * 0x1p-24 +
                           number_rounding(pairs_matmul_result(s), sum);
            if (!(fabs(got - sum) <= bound))
                test_fail(__FILE__, __LINE__,
                          "%lld x %lld x %lld, element %lld, %lld: %g, wanted %g",
                          (long long)s->m, (long long)s->n, (long long)s->k, (long long)i,
                          (long long)j, got, sum);
        }
}

enum { ROUNDS = 16, WIDE = 32, SHIFTED = 64, HALF = 128 };

/* form: bits 0, 1: A, B across; 2: bias, 3: adds; ROUNDS, or WIDE (f32), HALF (f16), else bf16; SHIFTED: C does not
 * begin with a line. Blocks: 0, the rule's. */
static void try_blocks(int64_t m, int64_t n, int64_t k, int form, int pad, int threads,
                       int vl, int block_rows, int block_words) {
    Arena *mem = arena_new();
    DType dt = form & WIDE ? DT_F32 : form & HALF ? DT_F16 : DT_BF16;
    Matrix a = matrix_new(mem, m, k, dt, form & 1, pad, 1);
    Matrix b = matrix_new(mem, k, n, dt, form & 2, pad, 2);
    PairsMatmul s = {m,
                     n,
                     k,
                     a.row,
                     a.col,
                     b.row,
                     b.col,
                     n + pad,
                     threads,
                     !!(form & 4),
                     !!(form & 8),
                     form & ROUNDS && dt != DT_F32,
                     block_rows,
                     block_words,
                     dt,
                     .tiles = vl >= EMULATED,
                     .dots = vl == DOTS && dt == DT_BF16};
    EXPECT(pairs_matmul_takes(&s));
    int64_t count = m * s.c_m + 2 * GUARD;
    int64_t bytes = pairs_matmul_workspace_bytes(&s, lanes(vl));
    float *bias = NEW_ARRAY(mem, float, (size_t)n);
    /* C begins with a line, as GUARD numbers are whole ones, or a number behind one */
    char *lines = aligned_alloc(64, (size_t)align_up((count + 1) * 4));
    void *c = lines + (form & SHIFTED ? dtype_bytes[pairs_matmul_result(&s)] : 0);
    void *old = arena_alloc(mem, (size_t)count * 4);
    for (int64_t j = 0; j < n; j++) bias[j] = (float)(j % 7) - 3;
    for (int64_t i = 0; i < count; i++)
        set_number(pairs_matmul_result(&s), old, i, (float)(i % 5) - 2);
    memcpy(c, old, (size_t)count * 4);
    char *ws = aligned_alloc(64, (size_t)align_up(bytes + 64));
    memset(ws, 0xff, (size_t)bytes + 64);
    product_make(&s, vl)(a.at, b.at, bias,
                         (char *)c + GUARD * dtype_bytes[pairs_matmul_result(&s)], ws);
    expect_product(&s, &a, &b, bias, old, c);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i - GUARD;
        bool mine = at >= 0 && at < m * s.c_m && at % s.c_m < n;
        if (!mine)
            EXPECT(number_at(pairs_matmul_result(&s), c, i) ==
                   number_at(pairs_matmul_result(&s), old, i));
    }
    for (int i = 0; i < 64; i++) EXPECT((unsigned char)ws[bytes + i] == 0xff);
    free(ws);
    free(lines);
    arena_free(mem);
}

static void try_one(int64_t m, int64_t n, int64_t k, int form, int pad, int threads,
                    int vl) {
    try_blocks(m, n, k, form, pad, threads, vl, 0, 0);
}

static void all_forms(int vl) {
    static const int64_t size[][3] = {{1, 1, 1},    {5, 70, 33},   {17, 64, 32},
                                      {33, 129, 7}, {8, 16, 2500}, {520, 65, 40}};
    int n = 0, step = vl >= EMULATED ? 1 : target_case_step(lanes(vl)),
        others = test_long() ? 3 : 5;
    for (int i = 0; i < ARRAY_LEN(size); i++)
        for (int x = 0; x < WIDE + 48; x++, n++) {
            int form = x < WIDE + 16 ? x : x - WIDE - 16 + HALF;
            if (n % (i ? others * step : step)) continue; /* other ones for every size */
            int pad = form % 2 ? PAD : PAD + 1;
            try_one(size[i][0], size[i][1], size[i][2], form, pad, 1 + form % 3, vl);
        }
}

TEST_LABEL_OF(wide, SLOW);
TEST_LABEL_OF(wide, RELEASED);
TEST_LIMIT(wide, 120) {
    all_forms(16);
}

TEST_LABEL_OF(narrow, QUICK);
TEST_LABEL_OF(narrow, SLOW);
TEST_LABEL_OF(narrow, RELEASED);
TEST_LIMIT(narrow, 120) {
    all_forms(8);
}

TEST_LABEL_OF(dots, SLOW);
TEST_LABEL_OF(dots, RELEASED);
TEST_LIMIT(dots, 120) {
    all_forms(DOTS);
}

TEST_LABEL_OF(tiles, SLOW);
TEST_LABEL_OF(tiles, RELEASED);
TEST_LIMIT(tiles, 120) {
    all_forms(BY_CPU);
    tiles_expect_dots(1000);
}

/* More of A than is packed at once: slabs of rows, the last of which leaves other rows over than
 * the first; and slabs of a part of k. */
static void slabs(int vl) {
    for (int f32 = 0; f32 < 2; f32++) {
        int64_t per_word = vl == DOTS && !f32 ? 2 : 1;
        try_one(1500, 5, 1600 * per_word, 1 | (f32 ? WIDE : 0), 2, 2, vl);
        try_one(1000, 5, 2800 * per_word, 1 | 8 | (f32 ? WIDE : 0), 2, 2, vl);
        /* rows that stay as they are, of an A that no cache has room for */
        try_one(100, 5, 84000 * per_word, f32 ? WIDE : 0, 2, 2, vl);
        try_one(vl < 16 ? 900 : 1700, 5, (vl < 16 ? 11000 : 5600) * per_word,
                4 | 8 | (f32 ? WIDE : 0), 2, 2, vl);
    }
}

TEST_LABEL_OF(tile_slabs, SLOW);
TEST_LABEL_OF(tile_slabs, RELEASED);
TEST(tile_slabs) {
    try_one(1500, 5, 3200, 1, 2, 2, EMULATED);
    try_one(1000, 5, 5600, 1 | 8, 2, 2, EMULATED);
    /* 819 rows of a block, which are no whole vectors */
    try_one(1000, 5, 5700, 1 | 8, 2, 2, EMULATED);
    /* the blocks of the rule, of rows and of k: those of a panel one after the other, as A is
     * small, and with all panels in turn */
    try_one(1100, 70, 1500, ROUNDS, 4, 2, EMULATED);
    try_one(1500, 5, 1100, 1 | WIDE, 2, 2, EMULATED);
    try_one(1000, 5, 1900, 1 | 8 | WIDE, 2, 2, EMULATED);
    try_one(1100, 70, 500, WIDE, 4, 2, EMULATED);
    try_one(300, 300, 3100, ROUNDS, 20, 2, EMULATED);
    try_one(300, 300, 3100, 2 | ROUNDS, 4, 2, EMULATED);
}

TEST_LABEL_OF(wide_slabs, QUICK);
TEST_LABEL_OF(wide_slabs, SLOW);
TEST_LABEL_OF(wide_slabs, RELEASED);
TEST(wide_slabs) {
    slabs(16);
}

TEST_LABEL_OF(dot_slabs, QUICK);
TEST_LABEL_OF(dot_slabs, SLOW);
TEST_LABEL_OF(dot_slabs, RELEASED);
TEST(dot_slabs) {
    slabs(DOTS);
}

TEST_LABEL_OF(narrow_slabs, QUICK);
TEST_LABEL_OF(narrow_slabs, SLOW);
TEST_LABEL_OF(narrow_slabs, RELEASED);
TEST(narrow_slabs) {
    slabs(8);
}

/* Tile registers: results whose rows are whole lines, and others; several panels, groups of them,
 * blocks of rows and of k; with each of them all orders of factors. */
TEST_LABEL_OF(tile_blocks, QUICK);
TEST_LABEL_OF(tile_blocks, SLOW);
TEST_LABEL_OF(tile_blocks, RELEASED);
TEST(tile_blocks) {
    static const int64_t size[][3] = {{70, 96, 150}, {100, 300, 70}, {40, 560, 100}};
    static const int how[] = {ROUNDS,   4,        8,        8 | ROUNDS,       4 | ROUNDS,
                              WIDE | 4, WIDE | 8, HALF | 8, HALF | 4 | ROUNDS};
    for (int n = 0; n < 108; n++) {
        const int64_t *z = size[n % 3];
        int64_t to_line = n % 2 ? 0 : round_up(z[1], 32) - z[1];
        try_blocks(z[0], z[1], z[2], n / 2 % 4 | how[n % ARRAY_LEN(how)],
                   (int)(to_line + n % 2), 1 + n / 3 % 3, EMULATED,
                   n % 4 ? 32 * (n / 6 % 3) : 0, n % 7 ? 16 * (n % 4) : 0);
    }
}

/* Slabs of rows of an A that lies across, packed for several groups of panels, and of k. */
TEST_LABEL_OF(tile_slabs_across, QUICK);
TEST_LABEL_OF(tile_slabs_across, SLOW);
TEST_LABEL_OF(tile_slabs_across, RELEASED);
TEST_LIMIT(tile_slabs_across, 120) {
    try_one(1200, 300, 8192, 1 | ROUNDS, 4, 2, EMULATED);
    try_one(320, 300, 30000, 1, 4, 2, EMULATED);
    try_one(320, 300, 30000, 2 | 8, 4, 2, EMULATED);
    try_one(1200, 300, 2731, 1 | WIDE, 4, 2, EMULATED);
    try_one(320, 70, 10000, 1 | WIDE, 4, 2, EMULATED);
    try_one(400, 70, 10000, 2 | 8 | WIDE, 4, 2, EMULATED);
}

/* 16 lanes: results in f32 so large that they go past the caches, where their lines are whole;
 * panels of two strips and of one, several blocks of k. */
TEST_LABEL_OF(wide_past_the_caches, SLOW);
TEST_LABEL_OF(wide_past_the_caches, RELEASED);
TEST(wide_past_the_caches) {
    for (int form = 0; form < 8; form++)
        try_one(1100, 1024, 20, form | WIDE | (form & 4 ? SHIFTED : 0), 0, 2, 16);
    try_one(1100, 960, 20, 1 | WIDE, 0, 1, 16);
    try_one(1100, 1030, 20, 1 | 4 | WIDE, 10, 2, 16);
    try_one(1600, 704, 1100, 2 | 4 | WIDE, 0, 2, 16);
    try_one(1100, 1024, 20, 1 | 8 | WIDE, 0, 2, 16);
    try_one(1100, 1024, 20, 0, 0, 2, 16); /* of bf16 */
    try_one(1600, 704, 1100, 2 | 4 | SHIFTED, 0, 2, 16);
}

/* Several blocks of rows and of k, also where the rule has one. */
TEST(blocks_that_are_asked_for) {
    for (int form = 0; form < 16; form++)
        try_blocks(50, 70, 150,
                   form % 4 | (form & 4 ? 8 | ROUNDS : 4) | (form & 8 ? WIDE : 0), 2,
                   1 + form % 2, 8, form & 1 ? 12 : 24, form & 2 ? 32 : 16);
}

TEST(one_of_each_order) {
    for (int form = 0; form < 4; form++) try_one(20, 70, 34, form | ROUNDS, 2, 2, 8);
    for (int form = 0; form < 4; form++) try_one(20, 70, 35, form | WIDE, 3, 2, 8);
    for (int form = 0; form < 4; form++)
        try_one(20, 70, 35, form | HALF | ROUNDS, 3, 2, 8);
}

/* ---- f32 by tile registers, as sums of three numbers of bf16 ---- */

/* C = A B of f32 along rows; A has as many columns as B has rows, k. */
static void f32_product(const float *a, const float *b, float *c, int64_t m, int64_t n,
                        int64_t k, int vl) {
    PairsMatmul s = {.m = m,
                     .n = n,
                     .k = k,
                     .a_m = k,
                     .a_k = 1,
                     .b_k = n,
                     .b_n = 1,
                     .c_m = n,
                     .threads = 1,
                     .dt = DT_F32,
                     .tiles = vl >= EMULATED};
    char *ws = aligned_alloc(
        64, (size_t)align_up(pairs_matmul_workspace_bytes(&s, lanes(vl)) + 1));
    product_make(&s, vl)(a, b, NULL, c, ws);
    free(ws);
}

/* The largest error, in units of what f32 rounds a sum of the sizes of all products to. */
static double error_of(const float *a, const float *b, const float *c, int64_t m,
                       int64_t n, int64_t k) {
    double worst = 0;
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < k; l++) {
            double x = (double)a[i / n * k + l] * b[l * n + i % n];
            sum += x;
            size += fabs(x);
        }
        worst = MAX(worst, fabs(c[i] - sum) / (size * 0x1p-24));
    }
    return worst;
}

/* Numbers of all 24 bits, of sizes that are a million times apart. */
static float some_number(uint64_t stream, int64_t i) {
    double u = 2 * rng_uniform(5, stream, (uint64_t)i) - 1;
    return (float)(u * exp2(20 * rng_uniform(6, stream, (uint64_t)i) - 10));
}

/* Sums of a few products are rounded a little more than by fma, long ones less. */
TEST(f32_by_tiles_is_as_exact) {
    enum { M = 20, N = 40 };
    static const int64_t sizes[] = {1, 2, 30, 700, 5000};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        Arena *mem = arena_new();
        const int64_t k = sizes[i];
        float *a = NEW_ARRAY(mem, float, (size_t)(M * k));
        float *b = NEW_ARRAY(mem, float, (size_t)(N * k)), c[M * N], fma[M * N];
        for (int64_t x = 0; x < M * k; x++) a[x] = some_number(1, x);
        for (int64_t x = 0; x < N * k; x++) b[x] = some_number(2, x);
        f32_product(a, b, c, M, N, k, EMULATED);
        f32_product(a, b, fma, M, N, k, 16);
        double tiles = error_of(a, b, c, M, N, k), other = error_of(a, b, fma, M, N, k);
        printf("  sums of %lld products: %.2f, by fma %.2f\n", (long long)k, tiles,
               other);
        EXPECT(tiles <= MAX(other, 2.5));
        f32_product(a, b, c, M, N, k, BY_CPU);
        EXPECT(error_of(a, b, c, M, N, k) <= MAX(other, 2.5));
        arena_free(mem);
    }
}

/* The largest numbers are not rounded to infinity; infinities and NaN stay what they are. */
TEST(f32_by_tiles_at_the_ends) {
    const float most = 0x1.fffffep127f,
                a[] = {most, -most,       INFINITY, -INFINITY,
                       NAN,  0x1.ffp127f, 0,        0x1.fffffep-100f};
    const float b[] = {1, -0.5f, 0.75f, 0x1.fffffep-1f, 200};
    enum { M = ARRAY_LEN(a), N = ARRAY_LEN(b) };
    static const int by[] = {EMULATED, BY_CPU};
    for (int x = 0; x < ARRAY_LEN(by); x++) {
        float c[M * N];
        f32_product(a, b, c, M, N, 1, by[x]);
        for (int i = 0; i < M * N; i++) {
            float want = a[i / N] * b[i % N];
            if (isfinite(want))
                EXPECT(fabsf(c[i] - want) <= fabsf(want) * 0x1p-22f);
            else
                EXPECT(isnan(want) ? isnan(c[i]) : c[i] == want);
        }
    }
}
