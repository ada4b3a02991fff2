/* dtype.h - element types of tensors. */
#ifndef STATOR_DTYPE_H
#define STATOR_DTYPE_H
#include <stddef.h>
#include <stdint.h>

typedef enum DType { DT_F32, DT_F64, DT_BF16, DT_I32, DT_I64, DT_COUNT } DType;

static const char *const dtype_name[DT_COUNT] = {"f32", "f64", "bf16", "i32", "i64"};
static const uint8_t dtype_bytes[DT_COUNT] = {4, 8, 2, 4, 8};

static inline int dtype_is_float(DType t) {
    return t <= DT_BF16;
}

/* The type in which numbers of that float type are added up: at least f32. */
static inline DType dtype_sum(DType t) {
    return dtype_bytes[t] < dtype_bytes[DT_F32] ? DT_F32 : t;
}

/* bf16 is the upper half of an f32. */
static inline float bf16_to_f32(uint16_t bits) {
    union {
        uint32_t bits;
        float f;
    } x = {(uint32_t)bits << 16};
    return x.f;
}

/* Rounded to the nearest, to even where two are as near; NaN stays NaN, and subnormal
 * numbers become 0, as AVX512-BF16 has it. */
static inline uint16_t f32_to_bf16(float f) {
    union {
        float f;
        uint32_t bits;
    } x = {f};
    if ((x.bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(x.bits >> 16 | 0x40);
    if (!(x.bits & 0x7f800000)) return (uint16_t)(x.bits >> 16 & 0x8000);
    return (uint16_t)((x.bits + 0x7fff + (x.bits >> 16 & 1)) >> 16);
}

#endif
