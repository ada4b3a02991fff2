/* gemm.h - register-blocked matrix products in f32, of f32 or of pairs of bf16, as inline
 * IR, for operands in cache. */
#ifndef STATOR_GEMM_H
#define STATOR_GEMM_H
#include "codegen/emit.h"

/* What becomes of the values that C holds. */
typedef enum GemmInit {
    GEMM_SET,   /* C = A B; they are not read */
    GEMM_ADD,   /* C += A B */
    GEMM_SCALE, /* C[i][j] = C[i][j] * scale[j] + (A B)[i][j] */
} GemmInit;

/* What a caller does round a block of C that gemm_emit has in registers, of `rows` rows from i
 * on and `vecs` vectors of columns from j on (i64 values). ahead (or NULL; not on
 * tiles): before its product. take (or NULL): with its sums, vector v of row r at
 * sums[r * vecs + v], instead of what GemmInit says; mask: of the last vector, or NULL. Nothing
 * else reads or writes C then.
 * On tiles, where k is at least 1: step (or NULL): with each 16 pairs of k, from l on. take gets
 * a row with both of its vectors at a time, and sees to masks itself; it comes while the next
 * block's product runs, rows_a_step rows with each 16 pairs of k. */
typedef struct GemmBlock {
    LLVMValueRef i, j, mask;
    int rows, vecs;
} GemmBlock;
typedef struct GemmUser {
    void *ctx;
    void (*ahead)(void *ctx, const GemmBlock *at);
    void (*take)(void *ctx, const GemmBlock *at, const LLVMValueRef *sums);
    void (*step)(void *ctx, const GemmBlock *at, LLVMValueRef l);
    int rows_a_step;
} GemmUser;

enum { GEMM_M_KNOWN = 3 };

/* Strides in elements. A[i][l] = a[i * a_row + l * a_col]; B[l][j] = b[l * b_row + j];
 * C[i][j] = c[i * c_row + j]. With `pairs` an element of A and B is a pair of bf16, two
 * neighbours in the summed dimension, of which k counts the pairs: strides are in words of
 * 4 bytes then too.
 * b_col: 0, or B's columns lie in strips of gemm_tile_columns, b_row = so many, of which a
 * constant n is a multiple: the first of a strip, j, begins at b[j * b_col]. Rows of A meet all
 * strips in turn then, for a B that the first cache has no room for. On tiles strips have 16
 * columns, and columns meet all rows in turn.
 * m_is: the values that an m which is no constant takes, as far as they are not 0; none: any.
 * For tiles: k_most, what k is at most, wherever a_col is not 1; a_block: 0, or A is
 * in tiles: for each 16 pairs of k two tiles of 16 x 16 pairs, of 32 rows, and the next 32 rows
 * a_block words behind; pairs from k on are 0 as far as tiles reach, and rows from m on anything;
 * parts: 0 and 1, or BF16_PARTS: numbers of A, in tiles, and of B, in strips, are sums of so many
 * (emit_split_bf16). Behind 16 pairs of k of a part, two tiles of A or 16 rows of a strip, are
 * those of the next part, then the next 16 pairs. Products too small for f32 are left out.
 * b_whole: strips of B are 0 from k on as far as tiles reach.
 * a_streams: there it does not stay in the first cache between the columns of B, which should. */
typedef struct GemmStrides {
    int64_t a_row, a_col, b_row, c_row;
    bool pairs;
    const GemmUser *user; /* or NULL */
    int64_t b_col;
    int64_t m_is[GEMM_M_KNOWN];
    int64_t k_most;
    bool a_streams, b_whole;
    int parts;
    int64_t a_block;
} GemmStrides;

/* The factors A and B, what they are multiplied into, and f32[n] for GEMM_SCALE. */
typedef struct GemmData {
    LLVMValueRef a, b, c, scale; /* pointers; scale: else NULL */
} GemmData;

/* C[m x n] from A[m x k] and B[k x n]: i64 values >= 0, constant or not. */
typedef struct GemmSize {
    LLVMValueRef m, n, k;
} GemmSize;

/* Columns that a tile of C in registers has at most. */
int64_t gemm_tile_columns(const Emit *e);

/* C (f32) from A and B. Each element is summed over k in order by fma (emit_dot_pairs), starting
 * from 0, and then C is added (one fma with its scale): the bits depend on neither blocking nor
 * vector width. Nothing outside the matrices is read or written; C must not overlap A or B. */
void gemm_emit(Emit *e, const GemmStrides *s, GemmInit init, const GemmData *data,
               const GemmSize *size);

#endif
