/* rows_matmul.h - our own products of a few rows with a large matrix, as when text is generated:
 * each number of the matrix is used by a few sums only, so what counts is to read it once, by all
 * threads, at the speed of memory. */
#ifndef STATOR_ROWS_MATMUL_H
#define STATOR_ROWS_MATMUL_H
#include "codegen/codegen.h"
#include "codegen/emit.h"

/* C[m x n] = A[m x k] B[k x n] (+ bias[n]) (+ C). Strides in elements: A[i][l] at i * a_m + l,
 * B[l][j] at l * b_k + j * b_n, C[i][j] at i * c_m + j. The bias is f32. */
typedef struct RowsMatmul {
    int64_t m, n, k, a_m, b_k, b_n, c_m;
    int64_t threads;
    DType dt;       /* of A and B: DT_F32, DT_BF16 or DT_F16 */
    int rounds;     /* C is of that type, else f32 */
    int bias, adds; /* yes or no; adds: to what C holds */
} RowsMatmul;

/* Is there code for such a product? It has few rows, and B one unit stride. */
bool rows_matmul_takes(const RowsMatmul *s);
/* Bytes of workspace, 64-byte aligned, for lanes of `vl`. */
int64_t rows_matmul_workspace_bytes(const RowsMatmul *s, int vl);
/* Emits  void name(ptr a, ptr b, ptr bias, ptr c, ptr workspace). The order in which an element
 * is summed depends on n, k, where B's unit stride is, the lanes and the number of threads, not
 * on m: a row has the same bits whatever the rows beside it. */
void rows_matmul_emit(Emit *e, const char *name, const RowsMatmul *s);

#endif
