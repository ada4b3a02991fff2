/* tensor_fast.h - elements of tensors as the reference kernels read and write them: f32 in
 * place, other types by tensor_get and tensor_set. */
#ifndef STATOR_TENSOR_FAST_H
#define STATOR_TENSOR_FAST_H
#include "ir/ir.h"

static inline double tensor_get_fast(const Tensor *t, int64_t i) {
    return t->ty.dt == DT_F32 ? (double)((const float *)t->data)[i] : tensor_get(t, i);
}

static inline void tensor_set_fast(Tensor *t, int64_t i, double v) {
    if (t->ty.dt == DT_F32)
        ((float *)t->data)[i] = (float)v;
    else
        tensor_set(t, i, v);
}

#endif
