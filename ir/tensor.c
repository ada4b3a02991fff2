/* tensor.c - the elements of tensors in memory. */
#include "ir/ir.h"
#include <math.h>

double tensor_get(const Tensor *t, int64_t i) {
    switch (t->ty.dt) {
    case DT_F32:
        return ((const float *)t->data)[i];
    case DT_F64:
        return ((const double *)t->data)[i];
    case DT_I32:
        return ((const int32_t *)t->data)[i];
    case DT_I64:
        return (double)((const int64_t *)t->data)[i];
    case DT_BF16:
        return bf16_to_f32(((const uint16_t *)t->data)[i]);
    case DT_F16:
        return f16_to_f32(((const uint16_t *)t->data)[i]);
    default:
        die("element type");
    }
}

int64_t tensor_get_int(const Tensor *t, int64_t i) {
    if (t->ty.dt == DT_I64) return ((const int64_t *)t->data)[i];
    if (t->ty.dt == DT_I32) return ((const int32_t *)t->data)[i];
    return (int64_t)tensor_get(t, i);
}

/* Towards zero; numbers beyond the type become its ends, NaN 0. */
static int64_t to_integer(double v, int bits) {
    if (v != v) return 0;
    int64_t most = INT64_MAX >> (63 - bits);
    if (v >= ldexp(1, bits)) return most;
    return v < -ldexp(1, bits) ? -most - 1 : (int64_t)v;
}

void tensor_set(Tensor *t, int64_t i, double v) {
    switch (t->ty.dt) {
    case DT_F32:
        ((float *)t->data)[i] = (float)v;
        return;
    case DT_F64:
        ((double *)t->data)[i] = v;
        return;
    case DT_I32:
        ((int32_t *)t->data)[i] = (int32_t)to_integer(v, 31);
        return;
    case DT_I64:
        ((int64_t *)t->data)[i] = to_integer(v, 63);
        return;
    case DT_BF16:
        ((uint16_t *)t->data)[i] = f32_to_bf16((float)v);
        return;
    case DT_F16:
        ((uint16_t *)t->data)[i] = f32_to_f16((float)v);
        return;
    default:
        die("element type");
    }
}

Tensor *tensor_new(Arena *mem, const Type *ty) {
    Tensor *t = NEW(mem, Tensor);
    t->ty = *ty;
    t->data = arena_alloc(mem, (size_t)type_bytes(ty) + 64);
    return t;
}
