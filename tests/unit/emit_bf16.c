/* emit_bf16.c - bf16 vectors and scalars in memory against a rounding in C, with and
 * without the CPU's instruction for it. */
#include "base/rng.h"
#include "jitted.h"

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
static uint16_t want(float f) {
    uint32_t u = bits_of(f);
    if (isnan(f)) return (uint16_t)(u >> 16 | 0x40);
    if (fabsf(f) < 0x1p-126f) return (uint16_t)(u >> 16 & 0x8000);
    uint32_t rest = u & 0xffff, up = rest > 0x8000 || (rest == 0x8000 && u & 0x10000);
    return (uint16_t)((u >> 16) + up);
}

typedef void (*Copy)(const float *x, uint16_t *y, float *back, int64_t n);

/* y = bf16 of the first n of x; back = f32 of y, then of x rounded in registers. */
static Copy compiled(Target *t, const char *features) {
    Emit *e = emit_new(arena_new(), "test", t->lanes, t->cpu, features);
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->i64};
    emit_func(e, "copy", e->void_, params, 4, false);
    LLVMValueRef mask = emit_tail_mask(e, emit_param(e, 3)), y = emit_param(e, 1);
    LLVMValueRef back = emit_param(e, 2),
                 x = emit_load(e, e->vf32, emit_param(e, 0), mask, 4);
    emit_store_bf16(e, x, y, mask);
    emit_store(e, emit_load_bf16(e, y, mask), back, NULL, 4);
    emit_store(e, emit_round_bf16(e, x), emit_at(e, e->f32, back, e->vl), NULL, 4);
    emit_ret(e, NULL);
    return (Copy)jit_lookup(emit_finish(e, t, NULL, 0), "copy");
}

static Copy compiled_one(Target *t) {
    Emit *e = emit_for(arena_new(), t);
    LLVMTypeRef params[] = {e->ptr, e->ptr, e->ptr, e->i64};
    emit_func(e, "copy_one", e->void_, params, 4, false);
    LLVMValueRef x = emit_load(e, e->f32, emit_param(e, 0), NULL, 4);
    LLVMValueRef y = emit_param(e, 1), back = emit_param(e, 2);
    emit_store_bf16_one(e, x, y);
    emit_store(e, emit_load_bf16_one(e, y), back, NULL, 4);
    emit_store(e, emit_round_bf16(e, x), emit_at(e, e->f32, back, 1), NULL, 4);
    emit_ret(e, NULL);
    return (Copy)jit_lookup(emit_finish(e, t, NULL, 0), "copy_one");
}

/* All kinds of numbers: random bits, ties, ends of ranges. */
static float number(int64_t i) {
    static const uint32_t ends[] = {0,          0x80000000, 0x7f800000, 0xff800000,
                                    0x7fc00001, 0x7f800001, 0xffffffff, 0x7f7fffff,
                                    0x7f7f8000, 0x007fffff, 0x807fffff, 0x00800000,
                                    0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001};
    if (i < ARRAY_LEN(ends)) return float_of(ends[i]);
    uint32_t u = (uint32_t)(rng_uniform(3, 1, (uint64_t)i) * 0x1p32);
    return float_of(i % 3 ? u : (u & 0xffff0000) | 0x8000);
}

static void check_copy(Copy f, int lanes, int64_t at, int64_t n) {
    float x[16], back[32];
    uint16_t y[18];
    for (int i = 0; i < 16; i++) x[i] = number(at + i);
    for (int i = 0; i < 18; i++) y[i] = 0x5a5a;
    f(x, y + 1, back, n);
    EXPECT(y[0] == 0x5a5a);
    for (int i = 0; i < lanes; i++) {
        uint32_t bits = i < n ? (uint32_t)want(x[i]) << 16 : 0;
        EXPECT_INT(y[i + 1], i < n ? want(x[i]) : 0x5a5a);
        EXPECT_INT(bits_of(back[i]), bits);
        EXPECT_INT(bits_of(back[lanes + i]), bits);
    }
    for (int i = lanes + 1; i < 18; i++) EXPECT(y[i] == 0x5a5a);
}

static void all_numbers(int vl, bool plain) {
    Target *t = target_of_lanes(vl);
    Copy f = compiled(t, plain ? "+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
                               : t->features);
    for (int64_t at = 0; at < 20000; at += vl) check_copy(f, vl, at, vl);
    for (int64_t n = 0; n < vl; n++) check_copy(f, vl, 0, n);
}

TEST(vectors_of_16) {
    all_numbers(16, false);
}
TEST(vectors_of_16_without_the_instruction) {
    all_numbers(16, true);
}
TEST(vectors_of_8) {
    all_numbers(8, false);
}

static void scalars(int vl) {
    Copy f = compiled_one(target_of_lanes(vl));
    for (int64_t at = 0; at < 5000; at++) check_copy(f, 1, at, 1);
}

TEST(scalars_16) {
    scalars(16);
}
TEST(scalars_8) {
    scalars(8);
}
