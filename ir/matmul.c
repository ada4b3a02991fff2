/* matmul.c - see matmul.h. */
#include "ir/matmul.h"

enum { IN_A = 1, IN_B = 2, IN_C = 4 };

bool matmul_like_result(const Dims *d, int term) {
    int c = d->nin;
    size_t bytes = (size_t)d->rank[c] * sizeof d->term[c][0];
    return d->rank[term] == d->rank[c] && !memcmp(d->term[term], d->term[c], bytes);
}

static bool joins(const MatmulAxis *a, const MatmulAxis *b) {
    for (int t = 0; t < 3; t++) {
        if (a->stride[t] != b->size * b->stride[t]) return false;
    }
    return true;
}

/* Of both factors and the result: strides by dimension, and who has it (a set of IN_*). */
typedef struct Factors {
    int64_t stride[3][MAX_DIMS];
    uint8_t in[MAX_DIMS];
} Factors;

static void factors_of(const Dims *d, Factors *f) {
    const int term[3] = {0, 1, d->nin};
    memset(f->in, 0, (size_t)d->n);
    for (int t = 0; t < 3; t++) {
        dims_strides(d, term[t], f->stride[t]);
        for (int k = 0; k < d->rank[term[t]]; k++)
            f->in[d->term[term[t]][k]] |= (uint8_t)(1u << t);
    }
}

/* The axes with the letters `in`, in the order of term `by`. */
static int collect(const Dims *d, const Factors *f, int in, int by, MatmulAxis *axis) {
    int n = 0;
    for (int k = 0; k < d->rank[by]; k++) {
        int id = d->term[by][k];
        if (f->in[id] != in || d->size[id] == 1) continue;
        MatmulAxis a = {d->size[id],
                        {f->stride[0][id], f->stride[1][id], f->stride[2][id]},
                        1u << id};
        if (n && joins(&axis[n - 1], &a)) {
            a.size *= axis[n - 1].size;
            a.ids |= axis[n - 1].ids;
            axis[n - 1] = a;
        } else {
            axis[n++] = a;
        }
    }
    return n;
}

/* The axis to use as rows or columns of the matrices: one with unit stride in the result,
 * else in operand t, else the last; the others become batch dimensions. */
static MatmulAxis take_matrix_axis(MatmulAxis *axis, int n, int t, Matmul *mm) {
    if (!n) return (MatmulAxis){.size = 1};
    int pick = n - 1;
    for (int i = 0; i < n; i++) {
        if (axis[i].stride[2] == 1 ||
            (axis[pick].stride[2] != 1 && axis[i].stride[t] == 1)) {
            pick = i;
        }
    }
    for (int i = 0; i < n; i++) {
        if (i != pick) mm->batch[mm->nbatch++] = axis[i];
    }
    return axis[pick];
}

/* Has operand t a unit stride along one of its two matrix axes? */
static bool has_unit(const MatmulAxis *rows, const MatmulAxis *columns, int t) {
    return rows->size == 1 || columns->size == 1 || rows->stride[t] == 1 ||
           columns->stride[t] == 1;
}

static bool same_shape_as_result(const Dims *d, int term) {
    if (d->rank[term] != d->rank[d->nin]) return false;
    for (int k = 0; k < d->rank[term]; k++) {
        if (d->size[d->term[term][k]] != d->size[d->term[d->nin][k]]) return false;
    }
    return true;
}

/* Exactly the columns of the matrices, contiguous, in the order of the result. An addend
 * of the result's shape is none: the result may be written over it. */
static bool is_bias(const Dims *d, const Matmul *mm, int term) {
    int last = -1;
    uint32_t ids = 0;
    if (mm->n.stride[2] != 1 || same_shape_as_result(d, term)) return false;
    for (int k = 0; k < d->rank[term]; k++) {
        int id = d->term[term][k];
        if (d->size[id] > 1) ids |= 1u << id;
        for (int j = 0; j < d->rank[d->nin]; j++) {
            if (d->term[d->nin][j] != id) continue;
            if (j < last) return false;
            last = j;
        }
    }
    return ids == mm->n.ids;
}

static const char *take_addends(const Dims *d, Matmul *mm) {
    mm->bias = mm->sum = -1;
    for (int i = 2; i < d->nin; i++) {
        if (mm->bias < 0 && is_bias(d, mm, i))
            mm->bias = i;
        else if (mm->sum < 0)
            mm->sum = i;
        else
            return "more than one addend besides a bias";
    }
    return NULL;
}

const char *matmul_of(const Dims *d, Matmul *mm) {
    MatmulAxis batch[MAX_RANK], rows[MAX_RANK], columns[MAX_RANK], summed[MAX_RANK];
    int c = d->nin;
    Factors f;
    *mm = (Matmul){0};
    factors_of(d, &f);
    int nbatch = collect(d, &f, IN_A | IN_B | IN_C, c, batch);
    int nk = collect(d, &f, IN_A | IN_B, 0, summed);
    int nm = collect(d, &f, IN_A | IN_C, c, rows);
    int nn = collect(d, &f, IN_B | IN_C, c, columns);
    if (nk > 1) return "the summed dimensions are not adjacent in both factors";
    if (nbatch + MAX(nm - 1, 0) + MAX(nn - 1, 0) > MATMUL_MAX_BATCH)
        return "too many dimensions";
    for (int i = 0; i < nbatch; i++) mm->batch[mm->nbatch++] = batch[i];
    mm->m = take_matrix_axis(rows, nm, 0, mm);
    mm->n = take_matrix_axis(columns, nn, 1, mm);
    mm->k = nk ? summed[0] : (MatmulAxis){.size = 1};
    if (!has_unit(&mm->m, &mm->k, 0))
        return "the matrices of factor 0 have no unit stride";
    if (!has_unit(&mm->k, &mm->n, 1))
        return "the matrices of factor 1 have no unit stride";
    if (!has_unit(&mm->m, &mm->n, 2))
        return "the matrices of the result have no unit stride";
    return take_addends(d, mm);
}
