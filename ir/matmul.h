/* matmul.h - an op `dot` as one multiplication of matrices. The letters of its rule fall
 * into batch (in both factors and the result), rows (first factor and result), columns
 * (second factor and result) and summed ones; neighbours whose strides allow it become
 * one axis. What pass arrange and code generation agree on. */
#ifndef STATOR_MATMUL_H
#define STATOR_MATMUL_H
#include "ir/ir.h"

enum { MATMUL_MAX_BATCH = 10 }; /* axes besides rows and columns */

typedef struct MatmulAxis {  /* one or several letters as one dimension */
    int64_t size, stride[3]; /* elements; in a, b, c; 0 where it is missing */
    uint32_t ids;            /* the dimensions it is made of */
} MatmulAxis;

typedef struct Matmul {
    MatmulAxis batch[MATMUL_MAX_BATCH], m, n, k;
    int nbatch;
    /* Operands that are added, or -1: one over exactly the columns, contiguous; one of
     * any shape, which the result holds before the matmul is added to it. */
    int bias, sum;
} Matmul;

/* NULL, or why operands of these sizes and orders are no matrices: each factor and the
 * result needs one matrix (rows and columns of one axis each) with a unit stride, and
 * there is room for two addends, a bias and another one. */
const char *matmul_of(const Dims *d, Matmul *mm);
/* Does the term have the dimensions of the result, in its order? */
bool matmul_like_result(const Dims *d, int term);

#endif
