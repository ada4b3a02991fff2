/* dtype.h - element types of tensors. */
#ifndef STATOR_DTYPE_H
#define STATOR_DTYPE_H
#include <stddef.h>
#include <stdint.h>

typedef enum DType { DT_F32, DT_F64, DT_BF16, DT_F16, DT_I32, DT_I64, DT_COUNT } DType;

static const char *const dtype_name[DT_COUNT] = {"f32", "f64", "bf16",
                                                 "f16", "i32", "i64"};
static const uint8_t dtype_bytes[DT_COUNT] = {4, 8, 2, 2, 4, 8};

static inline int dtype_is_float(DType t) {
    return t <= DT_F16;
}

/* The type in which numbers of that float type are added up: at least f32. */
static inline DType dtype_sum(DType t) {
    return dtype_bytes[t] < dtype_bytes[DT_F32] ? DT_F32 : t;
}

/* Is that float type too narrow to add up in? */
static inline int dtype_is_narrow(DType t) {
    return dtype_sum(t) != t;
}

/* Is every number of that float type one of this? Neither of bf16 and f16 holds the other. */
static inline int dtype_holds(DType t, DType of) {
    return t == of || dtype_bytes[t] > dtype_bytes[of];
}

static inline uint32_t f32_bits(float f) {
    union {
        float f;
        uint32_t bits;
    } x = {f};
    return x.bits;
}

static inline float f32_of_bits(uint32_t bits) {
    union {
        uint32_t bits;
        float f;
    } x = {bits};
    return x.f;
}

/* bf16 is the upper half of an f32. */
static inline float bf16_to_f32(uint16_t bits) {
    return f32_of_bits((uint32_t)bits << 16);
}

/* Rounded to the nearest, to even where two are as near; NaN stays NaN, and subnormal
 * numbers become 0, as AVX512-BF16 has it. */
static inline uint16_t f32_to_bf16(float f) {
    uint32_t bits = f32_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    if (!(bits & 0x7f800000)) return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* f16 (IEEE 754 binary16): a sign, 5 bits of exponent, 10 of fraction. Exact, subnormal
 * numbers too; NaN becomes quiet. */
static inline float f16_to_f32(uint16_t bits) {
    uint32_t sign = (bits & 0x8000u) << 16, size = (bits & 0x7fffu) << 13;
    if (size > 0x0f800000) return f32_of_bits(sign | size | 0x7fc00000);
    if (size == 0x0f800000) return f32_of_bits(sign | 0x7f800000);
    /* a subnormal number counts units of 2^-24: as the fraction of 2^-14 it has one too many */
    float f = size < 0x00800000 ? f32_of_bits(size + 0x38800000) - 0x1p-14f
                                : f32_of_bits(size + 0x38000000);
    return f32_of_bits(sign | f32_bits(f));
}

/* Rounded to the nearest, to even where two are as near: from 65520 on to inf, below 2^-14
 * to a subnormal number, as F16C has it; NaN stays NaN. */
static inline uint16_t f32_to_f16(float f) {
    uint32_t bits = f32_bits(f), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (size >= 0x38800000)
        return (uint16_t)(sign | (size + 0xc8000fff + (size >> 13 & 1)) >> 13);
    /* beside 0.5 the unit of f32 is 2^-24, that of subnormal f16: the sum rounds */
    return (uint16_t)(sign | (f32_bits(f32_of_bits(size) + 0.5f) - 0x3f000000));
}

/* The bits of f as a number of 16 bits: f16 or bf16. */
static inline uint16_t f32_to_narrow(DType t, float f) {
    return t == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
}

static inline float narrow_to_f32(DType t, uint16_t bits) {
    return t == DT_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

#endif
