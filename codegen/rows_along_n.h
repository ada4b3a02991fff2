/* rows_along_n.h - products of a few rows whose matrix lies along its columns, numbers of a row
 * next to each other: lanes are columns. For rows_matmul.c only. */
#ifndef STATOR_ROWS_ALONG_N_H
#define STATOR_ROWS_ALONG_N_H
#include "codegen/rows_parts.h"

/* Emits name.body over the items of r, which leaves sums of parts of k in the workspace or, where
 * there is one part, C. */
LLVMValueRef rows_along_n_emit(const Rows *r);
/* Emits name.join over rows_join_items(r): C from the sums of the parts. */
LLVMValueRef rows_join_emit(const Rows *r);
int64_t rows_join_items(const Rows *r);
/* Writes A as f32 to the start of the workspace. */
void rows_widen_emit(const Rows *r, LLVMValueRef a, LLVMValueRef ws);

#endif
