/* gemm.c - emitted matrix products against a double reference: sizes with every kind of
 * rest, both stride orders, constants and run-time sizes, guard values round C. */
#include "codegen/gemm_tiles.h"
#include "jitted.h"

/* c, a, b and scale as seen by the emitted function. */
typedef void (*Product)(const float *a, const float *b, float *c, const float *scale,
                        int64_t m, int64_t n, int64_t k);

typedef struct Case {
    int64_t m, n, k;
    bool transposed; /* A stored [k, m] */
    GemmInit init;
    int known;  /* bit 0: m, bit 1: n, bit 2: k are constants */
    bool pairs; /* words of A and B are two bf16 numbers each */
    bool tiled; /* of which tiles add up 16 at a time */
} Case;

enum { PAD = 3, GUARD = 64 }; /* extra columns of every row; extra values round C */

static GemmStrides strides_of(const Case *c) {
    GemmStrides s = {.b_row = c->n + PAD, .c_row = c->n + PAD, .pairs = c->pairs};
    s.a_row = c->transposed ? 1 : c->k + PAD;
    s.a_col = c->transposed ? c->m + PAD : 1;
    s.k_most = MAX(c->k, 1);
    return s;
}

static void case_emit(Emit *e, const char *name, const Case *c) {
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->ptr, e->i64, e->i64, e->i64};
    emit_func(e, name, e->void_, params, 7, false);
    GemmStrides s = strides_of(c);
    LLVMValueRef m = c->known & 1 ? emit_i64(e, c->m) : emit_param(e, 4);
    LLVMValueRef n = c->known & 2 ? emit_i64(e, c->n) : emit_param(e, 5);
    LLVMValueRef k = c->known & 4 ? emit_i64(e, c->k) : emit_param(e, 6);
    LLVMValueRef scale = c->init == GEMM_SCALE ? emit_param(e, 3) : NULL;
    gemm_tiles_begin(e);
    GemmData data = {emit_param(e, 0), emit_param(e, 1), emit_param(e, 2), scale};
    gemm_emit(e, &s, c->init, &data, &(GemmSize){m, n, k});
    gemm_tiles_end(e);
    emit_ret(e, NULL);
}

static float value(uint64_t i) {
    return (float)(int)((i * 2654435761u >> 7) % 2001) / 1000 - 1;
}

static float *filled(int64_t n, uint64_t salt) {
    float *p = malloc((size_t)MAX(n, 1) * sizeof(float));
    for (int64_t i = 0; i < n; i++) p[i] = value((uint64_t)i + salt * 1000003u);
    return p;
}

/* Half of a word, as bf16. */
static float half_of(float word, int second) {
    uint32_t u;
    memcpy(&u, &word, sizeof u);
    u = second ? u & 0xffff0000 : u << 16;
    memcpy(&word, &u, sizeof u);
    return word;
}

/* One more step of a sum. */
static float step_of(const Case *c, float a, float b, float sum) {
    if (!c->pairs) return fmaf(a, b, sum);
    sum = fmaf(half_of(a, 1), half_of(b, 1), sum);
    return fmaf(half_of(a, 0), half_of(b, 0), sum);
}

/* Makes words of pairs: the second number is the first one cut, the first one another. */
static void words_of_pairs(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t u, low;
        float other = value((uint64_t)i * 7 + 5);
        memcpy(&u, &x[i], sizeof u);
        memcpy(&low, &other, sizeof low);
        u = (u & 0xffff0000) | low >> 16;
        memcpy(&x[i], &u, sizeof u);
    }
}

/* The emitted code is not instrumented: only what the matrices own may be finite or may
 * change, so a stray read shows as NaN and a stray write as a lost guard. */
static void case_run(Product f, const Case *c, float *first) {
    GemmStrides s = strides_of(c);
    int64_t na = c->transposed ? c->k * s.a_col : c->m * s.a_row, nb = c->k * s.b_row;
    int64_t nc = c->m * s.c_row;
    float *a = filled(na, 1), *b = filled(nb, 2), *scale = filled(c->n + PAD, 4);
    float *room = filled(nc + 2 * GUARD, 3), *old = filled(nc + 2 * GUARD, 3);
    if (c->pairs) words_of_pairs(a, na), words_of_pairs(b, nb);
    for (int64_t i = 0; i < nb; i++) b[i] = i % s.b_row < c->n ? b[i] : NAN;
    int64_t line = c->transposed ? c->m : c->k;
    for (int64_t i = 0; i < na; i++) a[i] = i % (line + PAD) < line ? a[i] : NAN;
    f(a, b, room + GUARD, scale, c->m, c->n, c->k);
    for (int64_t i = 0; i < nc + 2 * GUARD; i++) {
        int64_t at = i - GUARD, row = at / s.c_row, col = at % s.c_row;
        if (at < 0 || at >= nc || col >= c->n) {
            EXPECT(room[i] == old[i]);
            continue;
        }
        bool goes_on = c->tiled && c->init == GEMM_ADD;
        float sum = goes_on ? old[i] : 0, apart[2] = {0, 0};
        for (int64_t l = 0; l < c->k; l++) {
            float x = a[row * s.a_row + l * s.a_col], y = b[l * s.b_row + col];
            if (!c->tiled) sum = step_of(c, x, y, sum);
            for (int h = 0; h < 2; h++)
                apart[h] = fmaf(half_of(x, h), half_of(y, h), apart[h]);
            if (!c->tiled || (l % 16 < 15 && l < c->k - 1)) continue;
            sum += apart[0] + apart[1];
            apart[0] = apart[1] = 0;
        }
        if (c->init == GEMM_ADD && !goes_on) sum = old[i] + sum;
        if (c->init == GEMM_SCALE) sum = fmaf(old[i], scale[col], sum);
        if (sum != room[i]) {
            test_fail(__FILE__, __LINE__, "%d x %d x %d at %d, %d: %g, wanted %g",
                      (int)c->m, (int)c->n, (int)c->k, (int)row, (int)col, room[i], sum);
        }
    }
    if (first) memcpy(first, room + GUARD, (size_t)nc * sizeof(float));
    free(a), free(b), free(scale), free(room), free(old);
}

static void cases_run_on(Target *t, TileKind tiles, const Case *cases, int n) {
    Arena *mem = arena_new();
    Emit *e = emit_for(mem, t);
    e->tiles = tiles;
    for (int i = 0; i < n; i++) case_emit(e, arena_printf(mem, "f%d", i), &cases[i]);
    Jit *j = emit_finish(e, t, NULL, 0);
    for (int i = 0; i < n; i++) {
        case_run((Product)jit_lookup(j, arena_printf(mem, "f%d", i)), &cases[i], NULL);
    }
}

static void cases_run(int vl, const Case *cases, int n) {
    cases_run_on(target_of_lanes(vl), TILES_NONE, cases, n);
}

static const int64_t sizes[][3] = {
    {1, 1, 1},   {6, 64, 64},  {64, 64, 64}, {5, 17, 3},   {7, 80, 9},  {13, 24, 31},
    {29, 33, 2}, {15, 48, 16}, {3, 8, 40},   {25, 127, 5}, {8, 200, 7}, {12, 96, 1},
};

static void constant_sizes(int vl) {
    Case cases[ARRAY_LEN(sizes)];
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        cases[i] =
            (Case){sizes[i][0], sizes[i][1], sizes[i][2], i & 1, (GemmInit)(i % 3), 7};
    }
    cases_run(vl, cases, ARRAY_LEN(sizes));
}

TEST(constant_sizes_16) {
    constant_sizes(16);
}

TEST(constant_sizes_8) {
    constant_sizes(8);
}

static void mixed_sizes(int vl) {
    Case cases[ARRAY_LEN(sizes)];
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        cases[i] = (Case){
            sizes[i][0], sizes[i][1], sizes[i][2], !(i & 1), (GemmInit)((i + 1) % 3),
            i % 7};
    }
    cases_run(vl, cases, ARRAY_LEN(sizes));
}

TEST(mixed_sizes_16) {
    mixed_sizes(16);
}

TEST(mixed_sizes_8) {
    mixed_sizes(8);
}

static void pairs_of_bf16(Target *t, TileKind tiles) {
    Case cases[2 * ARRAY_LEN(sizes)];
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const int64_t *x = sizes[i / 2];
        cases[i] = (Case){x[0],
                          x[1],
                          x[2],
                          i / 2 & 1,
                          (GemmInit)(i % 3),
                          i % 2 ? 7 : i % 7,
                          true,
                          tiles != TILES_NONE};
    }
    cases_run_on(t, tiles, cases, ARRAY_LEN(cases));
}

TEST(pairs_of_bf16_16) {
    pairs_of_bf16(target_of_lanes(16), TILES_NONE);
}

TEST(pairs_of_bf16_16_widened) {
    pairs_of_bf16(target_widening(), TILES_NONE);
}

TEST(pairs_of_bf16_tiled) {
    pairs_of_bf16(target_of_lanes(16), TILES_EMULATED);
}

TEST(pairs_of_bf16_tiled_by_cpu) {
    pairs_of_bf16(target_tiled(), TILES_CPU);
    tiles_expect_dots(100);
}

/* 4 of them in the loop over k. */
TEST(instructions_for_tiles) {
    Case c = {40, 64, 50, false, GEMM_ADD, 7, true, true};
    Target *t = target_tiled();
    Emit *e = emit_for(arena_new(), t);
    EXPECT_INT(e->tiles, TILES_CPU);
    case_emit(e, "f", &c);
    Object *o = jit_compile(t, e->mod, NULL);
    const uint8_t *code = o->bytes;
    int dots = 0;
    for (size_t i = 0; i + 4 < o->n; i++) /* VEX.128.F3.0F38.W0 5C */
        dots += code[i] == 0xc4 && code[i + 1] == 0xe2 && (code[i + 2] & 0x87) == 2 &&
                code[i + 3] == 0x5c;
    EXPECT_INT(dots, 4);
}

TEST(pairs_of_bf16_8) {
    pairs_of_bf16(target_of_lanes(8), TILES_NONE);
}

/* One function with m and k at run time serves every size, 0 included. */
static void run_time_rows(int vl) {
    Case c = {40, 64, 50, false, GEMM_ADD, 2};
    Target *t = target_of_lanes(vl);
    Emit *e = emit_for(arena_new(), t);
    case_emit(e, "f", &c);
    Product f = (Product)jit_lookup(emit_finish(e, t, NULL, 0), "f");
    GemmStrides s = strides_of(&c);
    float *a = filled(c.m * s.a_row, 1), *b = filled(c.k * s.b_row, 2);
    float *whole = filled(c.m * s.c_row, 3), *part = filled(c.m * s.c_row, 3);
    f(a, b, whole, NULL, c.m, c.n, c.k);
    for (int64_t m = 0; m <= c.m; m++) {
        float *old = filled(c.m * s.c_row, 3);
        memcpy(part, old, (size_t)(c.m * s.c_row) * sizeof(float));
        f(a, b, part, NULL, m, c.n, c.k);
        EXPECT(memcmp(part, whole, (size_t)(m * s.c_row) * sizeof(float)) == 0);
        EXPECT(memcmp(part + m * s.c_row, old + m * s.c_row,
                      (size_t)((c.m - m) * s.c_row) * sizeof(float)) == 0);
        f(a, b, part, NULL, m, c.n, 0);
        EXPECT(memcmp(part, whole, (size_t)(m * s.c_row) * sizeof(float)) == 0);
        free(old);
    }
}

TEST(run_time_rows_16) {
    run_time_rows(16);
}

TEST(run_time_rows_8) {
    run_time_rows(8);
}

TEST(same_bits_at_both_widths) {
    enum { M = 13, N = 40, K = 21 };
    static float out[2][M * (N + PAD)];
    Case c = {M, N, K, false, GEMM_SET, 7};
    for (int i = 0; i < 2; i++) {
        Target *t = target_of_lanes(i ? 8 : 16);
        Emit *e = emit_for(arena_new(), t);
        case_emit(e, "f", &c);
        case_run((Product)jit_lookup(emit_finish(e, t, NULL, 0), "f"), &c, out[i]);
    }
    EXPECT(memcmp(out[0], out[1], sizeof out[0]) == 0);
}
