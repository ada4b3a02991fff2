/* dnnl_problem.h - a matrix product in its plainest form, before oneDNN sees it: batch
 * dimensions merged, broadcast ones folded into m or n. For dnnl.c alone. */
#ifndef STATOR_DNNL_PROBLEM_H
#define STATOR_DNNL_PROBLEM_H
#include "codegen/dnnl.h"

enum { DNNL_MAX_BATCH = DNNL_MAX_RANK - 2 };

typedef struct DnnlMatrix {
    int64_t row, col, batch[DNNL_MAX_BATCH]; /* strides; 0 where the batch is broadcast */
    DType dtype;
} DnnlMatrix;

typedef struct DnnlProblem {
    int64_t m, n, k, batch[DNNL_MAX_BATCH];
    int nbatch;
    DnnlMatrix a, b, c;
    bool bias;
    DType bias_dtype;
    bool accumulate;
} DnnlProblem;

/* False, and a sentence in `why`, when the operands are no product; see dnnl_matmul_new. */
bool dnnl_problem_make(DnnlProblem *p, const ProductShape *s, char *why, size_t why_size);
/* c' = b' a'. Without a bias. */
DnnlProblem dnnl_problem_swap(const DnnlProblem *p);

#endif
