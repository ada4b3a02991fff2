/* gemm_result.c - see gemm_result.h. */
#include "codegen/gemm_result.h"

void gemm_result(Emit *e, GemmInit init, LLVMValueRef sum, LLVMValueRef at,
                 LLVMValueRef scale, LLVMValueRef mask) {
    if (init != GEMM_SET) {
        LLVMValueRef old = emit_load(e, e->vf32, at, mask, 4);
        sum = init == GEMM_ADD
                  ? emit_fadd(e, old, sum)
                  : emit_fma(e, old, emit_load(e, e->vf32, scale, mask, 4), sum);
    }
    emit_store(e, sum, at, mask, 4);
}
