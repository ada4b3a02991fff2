/* gemm_result.h - what products do with a finished sum; not for others. */
#ifndef STATOR_GEMM_RESULT_H
#define STATOR_GEMM_RESULT_H
#include "codegen/gemm.h"

/* Writes a vector of A B to C at `at`; scale: GEMM_SCALE's for these columns. */
void gemm_result(Emit *e, GemmInit init, LLVMValueRef sum, LLVMValueRef at,
                 LLVMValueRef scale, LLVMValueRef mask);

#endif
