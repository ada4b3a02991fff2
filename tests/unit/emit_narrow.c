/* emit_narrow.c - vectors and scalars of bf16 and f16 in memory against a rounding in C, with
 * and without the CPU's instructions for it. */
#include "base/rng.h"
#include "jitted.h"
#include "runtime/core/rt.h"
#include <math.h>

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* To nearest, ties to even, by what is left of the value. */
static uint16_t want_bf16(float f) {
    uint32_t u = bits_of(f);
    if (isnan(f)) return (uint16_t)(u >> 16 | 0x40);
    if (fabsf(f) < 0x1p-126f) return (uint16_t)(u >> 16 & 0x8000);
    uint32_t rest = u & 0xffff, up = rest > 0x8000 || (rest == 0x8000 && u & 0x10000);
    return (uint16_t)((u >> 16) + up);
}

/* The same by arithmetic: how many units of the number's binade it is. */
static uint16_t want_f16(float f) {
    uint16_t sign = signbit(f) ? 0x8000 : 0;
    if (isnan(f)) return (uint16_t)(sign | 0x7e00 | (bits_of(f) >> 13 & 0x3ff));
    if (isinf(f)) return sign | 0x7c00;
    int binade = f == 0 ? -14 : (int)fmax(-14, ilogb(fabs((double)f)));
    double units = nearbyint(ldexp(fabs((double)f), 10 - binade));
    double bits = units + (binade + 14) * 1024.0;
    return (uint16_t)(sign | (bits >= 0x7c00 ? 0x7c00 : (uint16_t)bits));
}

static uint16_t want(DType dt, float f) {
    return dt == DT_F16 ? want_f16(f) : want_bf16(f);
}

/* f32 of narrow bits; NaN is quiet. */
static uint32_t widened(DType dt, uint16_t bits) {
    if (dt == DT_BF16) return (uint32_t)bits << 16;
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31;
    if (exponent == 31 && bits & 0x3ff)
        return sign | 0x7fc00000 | (uint32_t)(bits & 0x3ff) << 13;
    float size = exponent == 31 ? INFINITY
                 : exponent     ? ldexpf(1024 + (bits & 0x3ff), (int)exponent - 25)
                                : ldexpf(bits & 0x3ff, -24);
    return sign | bits_of(size);
}

typedef void (*Copy)(const float *x, uint16_t *y, float *back, int64_t n);

/* y = the first n of x, rounded when they are stored or before that (`before`); back = f32 of
 * y, then of x rounded in registers. Vectors fill `registers` of them. */
static Copy compiled(Target *t, int registers, DType dt, const char *features,
                     bool before) {
    Emit *e = emit_new(arena_new(), "test", t->lanes, t->cpu, features);
    emit_set_lanes(e, registers * t->lanes);
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->i64};
    emit_func(e, "copy", e->void_, params, 4, false);
    LLVMValueRef mask = emit_tail_mask(e, emit_param(e, 3)), y = emit_param(e, 1);
    LLVMValueRef back = emit_param(e, 2),
                 x = emit_load(e, e->vf32, emit_param(e, 0), mask, 4);
    LLVMValueRef rounded = emit_round_narrow(e, dt, x);
    if (before)
        emit_store_rounded(e, dt, rounded, y, mask);
    else
        emit_store_narrow(e, dt, x, y, mask);
    emit_store(e, emit_load_narrow(e, dt, y, mask), back, NULL, 4);
    emit_store(e, rounded, emit_at(e, e->f32, back, e->vl), NULL, 4);
    emit_ret(e, NULL);
    return (Copy)jit_lookup(emit_finish(e, t, NULL, 0), "copy");
}

static Copy compiled_one(Target *t, DType dt) {
    Emit *e = emit_for(arena_new(), t);
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->i64};
    emit_func(e, "copy_one", e->void_, params, 4, false);
    LLVMValueRef x = emit_load(e, e->f32, emit_param(e, 0), NULL, 4);
    LLVMValueRef y = emit_param(e, 1), back = emit_param(e, 2);
    emit_store_rounded(e, dt, emit_round_narrow(e, dt, x), y, NULL);
    emit_store(e, emit_load_narrow_one(e, dt, y), back, NULL, 4);
    emit_store(e, emit_round_narrow(e, dt, x), emit_at(e, e->f32, back, 1), NULL, 4);
    emit_ret(e, NULL);
    return (Copy)jit_lookup(emit_finish(e, t, NULL, 0), "copy_one");
}

/* All kinds of numbers: random bits, ties, ends of ranges. */
static float number(int64_t i) {
    static const uint32_t ends[] = {
        0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00001, 0x7f800001, 0xffffffff,
        0x7f7fffff, 0x7f7f8000, 0x007fffff, 0x807fffff, 0x00800000, 0x3f808000,
        0x3f818000, 0x3f807fff, 0x3f808001,
        /* of f16: about its largest number, ties, its least
                                       normal numbers, subnormal ones and half the least */
        0x477fe000, 0x477fefff, 0x477ff000, 0xc77fefff, 0xc7800000, 0x3f801000,
        0x3f803000, 0x3f801001, 0x38800000, 0x387fe000, 0x387ff000, 0x387fffff,
        0x33800000, 0x33000000, 0x33000001, 0xb3c00000};
    if (i < ARRAY_LEN(ends)) return float_of(ends[i]);
    uint32_t u = (uint32_t)(rng_uniform(3, 1, (uint64_t)i) * 0x1p32);
    if (i % 4 == 1) u = (u & 0x87ffffff) | 0x30000000; /* where f16 ends below .. */
    if (i % 4 == 2) u = (u & 0x83ffffff) | 0x44000000; /* .. and above */
    return float_of(i % 3   ? u
                    : i % 2 ? (u & 0xffff0000) | 0x8000
                            : (u & 0xffffe000) | 0x1000);
}

enum { MOST_LANES = 32 };

static void check_copy(Copy f, DType dt, int lanes, int64_t at, int64_t n) {
    float x[MOST_LANES], back[2 * MOST_LANES];
    uint16_t y[MOST_LANES + 2];
    for (int i = 0; i < MOST_LANES; i++) x[i] = number(at + i);
    for (int i = 0; i < MOST_LANES + 2; i++) y[i] = 0x5a5a;
    f(x, y + 1, back, n);
    EXPECT(y[0] == 0x5a5a);
    for (int i = 0; i < lanes; i++) {
        uint32_t bits = i < n ? widened(dt, want(dt, x[i])) : 0;
        EXPECT_INT(y[i + 1], i < n ? want(dt, x[i]) : 0x5a5a);
        EXPECT_INT(bits_of(back[i]), bits);
        EXPECT_INT(bits_of(back[lanes + i]), bits);
    }
    for (int i = lanes + 1; i < MOST_LANES + 2; i++) EXPECT(y[i] == 0x5a5a);
}

static const DType types[] = {DT_BF16, DT_F16};

static void all_numbers(int vl, int registers, bool plain) {
    Target *t = target_of_lanes(vl);
    const char *features = !plain   ? t->features
                           : vl > 8 ? "+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
                                    : "+avx2,+fma";
    int lanes = registers * vl;
    for (int i = 0; i < 2 * ARRAY_LEN(types); i++) {
        DType dt = types[i / 2];
        Copy f = compiled(t, registers, dt, features, i % 2);
        for (int64_t at = 0; at < 20000; at += lanes) check_copy(f, dt, lanes, at, lanes);
        for (int64_t n = 0; n < lanes; n++) check_copy(f, dt, lanes, 0, n);
    }
}

TEST(vectors_of_16) {
    target_need_lanes(16);
    all_numbers(16, 1, false);
}
TEST(vectors_of_16_without_the_instruction) {
    target_need_lanes(16);
    all_numbers(16, 1, true);
}
TEST(vectors_of_8) {
    all_numbers(8, 1, false);
}
TEST(vectors_of_8_without_the_instruction) {
    all_numbers(8, 1, true);
}
TEST(two_registers_of_16) {
    target_need_lanes(16);
    all_numbers(16, 2, false);
}
TEST(two_registers_of_16_without_the_instruction) {
    target_need_lanes(16);
    all_numbers(16, 2, true);
}
TEST(two_registers_of_8) {
    all_numbers(8, 2, false);
}
TEST(two_registers_of_8_without_the_instruction) {
    all_numbers(8, 2, true);
}

/* On any CPU: those for instructions that it may not have are compiled, and not called. */
TEST(code_for_16_lanes_compiles) {
    static const struct {
        const char *cpu, *features;
    } kinds[] = {
        {"znver4", "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512bf16"},
        {"skylake-avx512", "+avx2,+fma,+f16c,+avx512f,+avx512bw,+avx512dq,+avx512vl"}};
    for (int k = 0; k < ARRAY_LEN(kinds); k++)
        for (int i = 0; i < 4 * ARRAY_LEN(types); i++) {
            Target t = *target_open("x86-64-v3");
            t.lanes = 16;
            t.cpu = (char *)kinds[k].cpu;
            compiled(&t, 1 + i / 4, types[i / 2 % 2], kinds[k].features, i % 2);
        }
}

static void scalars(int vl) {
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        Copy f = compiled_one(target_of_lanes(vl), types[i]);
        for (int64_t at = 0; at < 5000; at++) check_copy(f, types[i], 1, at, 1);
    }
}

TEST(scalars_16) {
    scalars(16);
}
TEST(scalars_8) {
    scalars(8);
}

/* Those of C: tensors, runtime. */
TEST(in_c) {
    for (int64_t at = 0; at < 200000; at++) {
        float x = number(at);
        EXPECT_INT(f32_to_bf16(x), want_bf16(x));
        EXPECT_INT(f32_to_f16(x), want_f16(x));
    }
    for (uint32_t bits = 0; bits < 0x10000; bits++) { /* every f16 there is */
        float x = f16_to_f32((uint16_t)bits);
        EXPECT_INT(bits_of(x), widened(DT_F16, (uint16_t)bits));
        EXPECT_INT(f32_to_f16(x), isnan(x) ? bits | 0x200 : bits);
    }
}

/* Both ways of the runtime, with ends that fill no vector. */
TEST(in_bulk) {
    enum { MOST = 20011 };
    static float x[MOST], back[MOST];
    static uint16_t y[MOST];
    static const int64_t sizes[] = {1, 7, 8, 9, 31, MOST};
    for (int i = 0; i < MOST; i++) x[i] = number(i);
    for (int t = 0; t < ARRAY_LEN(types); t++)
        for (int s = 0; s < ARRAY_LEN(sizes); s++) {
            rt_round(y, x, sizes[s], types[t]);
            rt_widen(back, y, sizes[s], types[t]);
            for (int64_t i = 0; i < sizes[s]; i++) {
                EXPECT_INT(y[i], want(types[t], x[i]));
                EXPECT_INT(bits_of(back[i]), widened(types[t], y[i]));
            }
        }
}
