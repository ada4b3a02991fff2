/* pairs_matmul.h - our own matrix products of bf16, f16 and f32, from matrices in memory: packing
 * and blocks around gemm.h, which has the CPU's units for bf16 and their equivalents. */
#ifndef STATOR_PAIRS_MATMUL_H
#define STATOR_PAIRS_MATMUL_H
#include "codegen/emit.h"

/* C[m x n] = A[m x k] B[k x n] (+ bias[n]) (+ C). A and B are of one type; the bias
 * is f32, C f32 or of that type. They are taken in words of 4 bytes: pairs of bf16,
 * neighbours in k, or numbers in f32. Strides in elements: A[i][l] at i * a_m + l * a_k, B[l][j] at
 * l * b_k + j * b_n, C[i][j] at i * c_m + j.
 * By tile registers numbers of f32 and f16 are multiplied as sums of BF16_PARTS numbers of bf16,
 * which is about as exact as fma but for numbers below 2^-110, whose last parts count as 0;
 * infinities times more than 256 may be NaN. */
typedef struct PairsMatmul {
    int64_t m, n, k, a_m, a_k, b_k, b_n, c_m;
    int64_t
        threads;    /* so wide that nothing lies between fields: all bytes are compared */
    int bias, adds; /* yes or no; adds: to what C holds */
    int rounds;     /* C is of the type of A and B, else f32 */
    /* Blocks: rows of A, and words of k, at most; 0: as the rule has them. The order of sums
     * follows from block_words. */
    int block_rows, block_words;
    DType dt;  /* of A and B: DT_F32, DT_BF16 or DT_F16 */
    int tiles; /* yes: the CPU's tile registers multiply */
    int dots; /* yes: an instruction multiplies pairs of bf16 (emit_has_dots); narrow numbers that
                * neither multiplies become f32 where they are packed */
} PairsMatmul;

/* The type of C. */
static inline DType pairs_matmul_result(const PairsMatmul *s) {
    return s->rounds ? s->dt : DT_F32;
}

/* Is there code for such a product? Each factor needs one unit stride. */
bool pairs_matmul_takes(const PairsMatmul *s);
/* Bytes of workspace, 64-byte aligned, for lanes of `vl`. */
int64_t pairs_matmul_workspace_bytes(const PairsMatmul *s, int vl);
/* Are they the same code, for lanes of `vl`, but for how the blocks were asked for? */
bool pairs_matmul_same(const PairsMatmul *x, const PairsMatmul *y, int vl);
/* Emits  void name(ptr a, ptr b, ptr bias, ptr c, ptr workspace). Every element is summed
 * over k in order, a block of words after the other, whatever the threads. */
void pairs_matmul_emit(Emit *e, const char *name, const PairsMatmul *s);

#endif
