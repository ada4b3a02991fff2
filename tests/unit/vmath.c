/* vmath.c - accuracy of the emitted functions against libm in double, the same bits at
 * every width, and Philox against the vectors that Random123 publishes. */
#include "codegen/vmath.h"
#include "base/rng.h"
#include "jitted.h"

typedef LLVMValueRef (*Unary)(Emit *, LLVMValueRef);
typedef void (*Map)(const float *x, float *y, int64_t n);

/* void name(ptr x, ptr y, i64 n): y = f(x), `lanes` at a time (0: scalar). */
static void map_emit(Emit *e, const char *name, Unary f, int lanes) {
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->i64};
    LLVMTypeRef type = lanes ? emit_vec(e->f32, lanes) : e->f32;
    emit_func(e, name, e->void_, params, 3, false);
    Loop l;
    int step = MAX(lanes, 1);
    loop_begin(e, &l, emit_i64(e, 0), emit_param(e, 2), step, 0, NULL);
    LLVMValueRef x = emit_gep(e, e->f32, emit_param(e, 0), l.i);
    LLVMValueRef y = emit_gep(e, e->f32, emit_param(e, 1), l.i);
    emit_store(e, f(e, emit_load(e, type, x, NULL, 4)), y, NULL, 4);
    loop_end(e, &l, NULL);
    emit_ret(e, NULL);
}

static double ref_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double ref_reciprocal(double x) {
    return 1 / x;
}

static double ref_rsqrt(double x) {
    return 1 / (double)sqrtf((float)x);
}

/* Distance of y from the true value, in units of the last place of an f32 there. */
static double ulps(float y, double want) {
    if (isnan(want)) return isnan(y) ? 0 : INFINITY;
    float rounded = (float)want;
    if (isnan(y)) return INFINITY;
    if (isinf(rounded) || isinf(y)) {
        /* The first value beyond the largest float counts as 2^128. */
        double a = isinf(y) ? copysign(0x1p128, y) : y;
        double b = isinf(want) ? copysign(0x1p128, want) : want;
        if (fabs(b) > 0x1p128) b = copysign(0x1p128, b);
        return fabs(a - b) / 0x1p104;
    }
    int power;
    frexp(want, &power);
    return fabs(y - want) / ldexp(1, MAX(power - 24, -149));
}

enum { CHUNK = 1 << 16 };

/* Every stride-th bit pattern whose value lies in [lo, hi], and NaN; max error. */
static double worst(Map f, Map scalar, double (*ref)(double), double lo, double hi,
                    uint32_t stride, float *where) {
    static float x[CHUNK], y[CHUNK], z[CHUNK];
    double most = 0;
    uint64_t bits = 0;
    while (bits < (1ull << 32)) {
        int n = 0;
        for (; n < CHUNK && bits < (1ull << 32); bits += stride) {
            uint32_t u = (uint32_t)bits;
            memcpy(&x[n], &u, 4);
            if (x[n] >= lo && x[n] <= hi) n++;
        }
        for (int i = n; i < CHUNK; i++) x[i] = (float)lo;
        f(x, y, CHUNK);
        scalar(x, z, CHUNK);
        EXPECT(memcmp(y, z, sizeof y) == 0);
        for (int i = 0; i < n; i++) {
            double error = ulps(y[i], ref(x[i]));
            if (error > most) {
                most = error;
                *where = x[i];
            }
        }
    }
    return most;
}

static const struct Row {
    const char *name;
    Unary f;
    double (*ref)(double);
    double lo, hi, max_ulps;
} rows[] = {
    {"exp", vmath_exp, exp, -INFINITY, INFINITY, 2},
    {"exp2", vmath_exp2_fast, exp2, -126, 127, 2},
    {"exp2_narrow", vmath_exp2_narrow, exp2, -126, 127, 0x1p-18 * 0x1p24},
    {"reciprocal", vmath_reciprocal, ref_reciprocal, 0x1p-126, 0x1p126, 0.5},
    {"log", vmath_log, log, -INFINITY, INFINITY, 2},
    {"tanh", vmath_tanh, tanh, -INFINITY, INFINITY, 3},
    {"erf", vmath_erf, erf, -INFINITY, INFINITY, 3},
    {"sigmoid", vmath_sigmoid, ref_sigmoid, -INFINITY, INFINITY, 3},
    {"sqrt", vmath_sqrt, sqrt, 0, INFINITY, 0.5},
    {"rsqrt", vmath_rsqrt, ref_rsqrt, 0x1p-149, INFINITY, 0.5},
};

static Jit *rows_jit(int vl) {
    Arena *mem = arena_new();
    Target *t = target_of_lanes(vl);
    Emit *e = emit_for(mem, t);
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        map_emit(e, arena_printf(mem, "%s_v", rows[i].name), rows[i].f, vl);
        map_emit(e, arena_printf(mem, "%s_s", rows[i].name), rows[i].f, 0);
    }
    return emit_finish(e, t, NULL, 0);
}

static void accuracy(int vl, uint32_t stride) {
    Jit *j = rows_jit(vl);
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        char name[32];
        float where = 0;
        snprintf(name, sizeof name, "%s_v", rows[i].name);
        Map vector = (Map)jit_lookup(j, name);
        snprintf(name, sizeof name, "%s_s", rows[i].name);
        Map scalar = (Map)jit_lookup(j, name);
        double error =
            worst(vector, scalar, rows[i].ref, rows[i].lo, rows[i].hi, stride, &where);
        printf("    %-8s %2d lanes: %.3f ulp at %a\n", rows[i].name, vl, error, where);
        if (!(error <= rows[i].max_ulps)) {
            test_fail(__FILE__, __LINE__, "%s: %g ulp at %a", rows[i].name, error, where);
        }
    }
}

TEST_LABEL_OF(accuracy_16, RELEASED);
TEST(accuracy_16) {
    accuracy(16, 997);
}

TEST(accuracy_8) {
    accuracy(8, 1999);
}

static void special_values(int vl) {
    static const float x[16] = {NAN,       INFINITY, -INFINITY, 0.0f,    -0.0f,   1,
                                -1,        88.7f,    89,        -103.9f, -104.1f, -87.4f,
                                0x1p-149f, 1e30f,    -1e30f,    4};
    float y[16];
    Jit *j = rows_jit(vl);
    ((Map)jit_lookup(j, "exp_v"))(x, y, 16);
    EXPECT(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && y[3] == 1 && y[4] == 1);
    EXPECT(y[8] == INFINITY && y[9] == 0x1p-149f && y[10] == 0);
    EXPECT(isfinite(y[7]) && y[11] > 0 && y[11] < 0x1p-126f);
    EXPECT(y[13] == INFINITY && y[14] == 0);
    ((Map)jit_lookup(j, "exp2_v"))(x, y, 16);
    EXPECT(isnan(y[0]) && y[2] == 0 && y[3] == 1 && y[6] == 0.5f && y[14] == 0);
    EXPECT(y[15] == 16);
    ((Map)jit_lookup(j, "log_v"))(x, y, 16);
    EXPECT(isnan(y[0]) && y[1] == INFINITY && isnan(y[2]) && y[3] == -INFINITY);
    EXPECT(y[4] == -INFINITY && y[5] == 0 && isnan(y[6]));
    ((Map)jit_lookup(j, "tanh_v"))(x, y, 16);
    EXPECT(isnan(y[0]) && y[1] == 1 && y[2] == -1 && y[3] == 0 && signbit(y[4]));
    EXPECT(y[12] == 0x1p-149f);
    ((Map)jit_lookup(j, "erf_v"))(x, y, 16);
    EXPECT(isnan(y[0]) && y[1] == 1 && y[2] == -1 && y[3] == 0 && signbit(y[4]));
    EXPECT(y[15] == 1);
    ((Map)jit_lookup(j, "sigmoid_v"))(x, y, 16);
    EXPECT(isnan(y[0]) && y[1] == 1 && y[2] == 0 && y[3] == 0.5f);
    ((Map)jit_lookup(j, "rsqrt_v"))(x, y, 16);
    EXPECT(isnan(y[0]) && y[1] == 0 && isnan(y[2]) && y[3] == INFINITY && y[15] == 0.5f);
}

/* All significands of numbers in [1, 2), as division has them. */
TEST(reciprocals_16) {
    static float x[CHUNK], y[CHUNK];
    Jit *j = rows_jit(16);
    Map of = (Map)jit_lookup(j, "reciprocal_v");
    for (uint32_t bits = 0; bits < 1u << 23; bits += CHUNK) {
        for (uint32_t i = 0; i < CHUNK; i++) {
            uint32_t u = 0x3f800000u | (bits + i);
            memcpy(&x[i], &u, 4);
        }
        of(x, y, CHUNK);
        for (uint32_t i = 0; i < CHUNK; i++) EXPECT(y[i] == 1 / x[i]);
    }
}

TEST(special_values_16) {
    special_values(16);
}

TEST(special_values_8) {
    special_values(8);
}

/* Random123's kat_vectors for philox4x32-10. */
static const uint32_t kat[3][10] = {
    {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
    {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
     0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
    {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
     0x94fdcceb, 0x5001e420, 0x24126ea1},
};

TEST(philox_in_c) {
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        rng_philox(kat[i], kat[i] + 4, out);
        EXPECT(memcmp(out, kat[i] + 6, sizeof out) == 0);
    }
}

/* void philox(ptr ctr, ptr key, ptr out): ctr is u32[4][lanes]. */
static void philox_emit(Emit *e, const char *name, int lanes) {
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr};
    LLVMTypeRef type = lanes ? emit_vec(e->i32, lanes) : e->i32;
    LLVMValueRef c[4];
    emit_func(e, name, e->void_, params, 3, false);
    for (int i = 0; i < 4; i++) {
        LLVMValueRef at =
            emit_at(e, e->i32, emit_param(e, 0), (int64_t)i * MAX(lanes, 1));
        c[i] = emit_load(e, type, at, NULL, 4);
    }
    LLVMValueRef key = emit_param(e, 1);
    LLVMValueRef k0 = emit_load(e, e->i32, key, NULL, 4);
    LLVMValueRef k1 = emit_load(e, e->i32, emit_at(e, e->i32, key, 1), NULL, 4);
    emit_store(e, vmath_philox(e, c, k0, k1), emit_param(e, 2), NULL, 4);
    emit_ret(e, NULL);
}

static void philox_check(int vl) {
    Target *t = target_of_lanes(vl);
    Emit *e = emit_for(arena_new(), t);
    philox_emit(e, "vector", vl);
    philox_emit(e, "scalar", 0);
    Jit *j = emit_finish(e, t, NULL, 0);
    typedef void (*Philox)(const uint32_t *ctr, const uint32_t *key, uint32_t *out);
    Philox vector = (Philox)jit_lookup(j, "vector");
    Philox scalar = (Philox)jit_lookup(j, "scalar");
    uint32_t ctr[4][16], out[16], want[4];
    for (int i = 0; i < 3; i++) {
        scalar(kat[i], kat[i] + 4, out);
        EXPECT_INT(out[0], kat[i][6]);
    }
    for (uint32_t turn = 0; turn < 100; turn++) {
        uint32_t key[2] = {turn * 0x9E3779B9u, ~turn};
        for (int w = 0; w < 4; w++) {
            for (int l = 0; l < vl; l++)
                ctr[w][l] = turn * 77777u + (uint32_t)(w * 31 + l);
        }
        uint32_t flat[64];
        for (int w = 0; w < 4; w++) {
            memcpy(flat + w * vl, ctr[w], (size_t)vl * sizeof(uint32_t));
        }
        vector(flat, key, out);
        for (int l = 0; l < vl; l++) {
            uint32_t one[4] = {ctr[0][l], ctr[1][l], ctr[2][l], ctr[3][l]};
            rng_philox(one, key, want);
            EXPECT_INT(out[l], want[0]);
        }
    }
}

TEST(philox_16) {
    philox_check(16);
}

TEST(philox_8) {
    philox_check(8);
}

TEST(rng_moments) {
    enum { N = 200000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(1234, 5, i);
        EXPECT(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
    }
    EXPECT(fabs(sum / N - 0.5) < 0.004 && fabs(squares / N - 1.0 / 3) < 0.004);
    EXPECT(rng_uniform(1234, 5, 7) == rng_uniform(1234, 5, 7));
    EXPECT(rng_uniform(1234, 5, 7) != rng_uniform(1234, 6, 7));
    EXPECT(rng_uniform(1235, 5, 7) != rng_uniform(1234, 5, 7));
}
