/* type.c - types of tensors: sizes, bytes, equality. */
#include "ir/type.h"

int64_t type_count(const Type *t) {
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++) n *= t->dim[d];
    return n;
}

int64_t type_bytes(const Type *t) {
    return type_count(t) * dtype_bytes[t->dt];
}

TypeAround type_around(const Type *t, int64_t dim) {
    TypeAround a = {1, t->dim[dim], 1};
    for (int k = 0; k < dim; k++) a.before *= t->dim[k];
    for (int k = (int)dim + 1; k < t->rank; k++) a.after *= t->dim[k];
    return a;
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
