/* numbers.h - for tests of products: numbers of any float type in memory. */
#ifndef STATOR_NUMBERS_H
#define STATOR_NUMBERS_H
#include "base/dtype.h"
#include <math.h>

static inline double number_at(DType dt, const void *at, int64_t i) {
    if (dt == DT_F32) return ((const float *)at)[i];
    return narrow_to_f32(dt, ((const uint16_t *)at)[i]);
}

static inline void set_number(DType dt, void *at, int64_t i, float v) {
    if (dt == DT_F32)
        ((float *)at)[i] = v;
    else
        ((uint16_t *)at)[i] = f32_to_narrow(dt, v);
}

/* What storing x as dt may change, beyond f32's own rounding. */
static inline double number_rounding(DType dt, double x) {
    if (dt == DT_F32) return 0;
    return dt == DT_F16 ? fabs(x) * 0x1p-11 + 0x1p-25 : fabs(x) * 0x1p-8;
}

#endif
