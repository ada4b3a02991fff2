/* rows_parts.h - what products of a few rows have in common, whichever way the matrix lies; for
 * rows_matmul.c and rows_along_n.c only. */
#ifndef STATOR_ROWS_PARTS_H
#define STATOR_ROWS_PARTS_H
#include "codegen/rows_matmul.h"

enum {
    ROWS_SUMS = 24,          /* along k: vectors of sums in registers, at most */
    ROWS_BLOCK_NUMBERS = 16, /* along n: vectors of numbers of A in them, at most */
};

typedef struct Rows {
    Emit *e;
    const RowsMatmul *s;
    const char *name;
    bool along_n;
    int64_t deep; /* along n: rows of B that are multiplied
                                         at a time: pairs of bf16 */
    bool pairs;   /* of bf16, taken as words; others are taken as f32 */
    int64_t parts, part, tiles, tile; /* along n: of k, of columns */
    int64_t block;                    /* along n: rows of B at a time */
    int64_t sums_row;                 /* floats from row to row of sums */
    int64_t rows;                     /* of A at a time */
    int64_t stretches;                /* along k: of the columns of a thread */
    int64_t item, items;              /* along k: columns of an item */
    int64_t wide_row;                 /* from row to row of A as f32 */
    int64_t a_bytes, bytes;           /* of the workspace: A as f32, and all */
} Rows;

enum { SLOT_A, SLOT_B, SLOT_BIAS, SLOT_C, SLOT_WS, SLOTS };

/* How the product is cut, for lanes of vl; `e` and `name` are left to the caller. */
Rows rows_of(const RowsMatmul *s, int vl);
/* Along n, of narrow types but for dots: A is copied as f32 to the start of the workspace. */
bool rows_widen(const Rows *r);

/* Of A and B. */
LLVMTypeRef rows_element(const Rows *r);
/* Fetches a line to the second cache: the first has the sums, or rows of A. */
void rows_fetch(const Rows *r, LLVMValueRef at);
/* C[i][j ..] from finished sums. */
void rows_write(const Rows *r, LLVMValueRef ctx, LLVMValueRef i, LLVMValueRef j,
                LLVMValueRef x, LLVMValueRef mask);
/* Starts name.PART(ptr ctx, i64 begin, i64 end, i64 thread). */
LLVMValueRef rows_body(const Rows *r, const char *part);

#endif
