/* type.c - types of tensors: sizes, bytes, equality. */
#include "ir/type.h"

int64_t type_count(const Type *t) {
    return sizes_product(t->dim, t->rank);
}

int64_t type_bytes(const Type *t) {
    return type_count(t) * dtype_bytes[t->dt];
}

Axes type_axes(const Type *t) {
    Axes all = 0;
    for (int d = 0; d < t->rank; d++) all |= t->split[d];
    return all & (Axes)~AXES_REVERSED;
}

TypeAround type_around(const Type *t, int64_t dim) {
    int d = (int)dim;
    return (TypeAround){sizes_product(t->dim, d), t->dim[d],
                        sizes_product(t->dim + d + 1, t->rank - d - 1)};
}

bool type_same_shape(const Type *a, const Type *b) {
    if (a->dt != b->dt || a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; d++) {
        if (a->dim[d] != b->dim[d]) return false;
    }
    return true;
}

bool type_equal(const Type *a, const Type *b) {
    if (!type_same_shape(a, b) || a->pending != b->pending) return false;
    for (int d = 0; d < a->rank; d++) {
        if (a->split[d] != b->split[d]) return false;
    }
    return true;
}

Type type_make(DType dt, int rank, const int64_t *dim) {
    Type t = {.dt = dt, .rank = rank};
    check(rank <= MAX_RANK);
    for (int d = 0; d < rank; d++) t.dim[d] = dim[d];
    return t;
}

Type type_scalar(DType dt) {
    return (Type){.dt = dt};
}
