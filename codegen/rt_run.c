/* rt_run.c - emitted functions over items, alone or by threads; see rt_call.h. */
#include "codegen/rt_call.h"

void rt_run(Emit *e, LLVMValueRef fn, LLVMValueRef ctx, LLVMValueRef items, RtRun how) {
    size_t n;
    LLVMValueRef zero = emit_i64(e, 0), args[] = {ctx, zero, items, zero};
    if (how == RUN_ALONE)
        emit_call(e, LLVMGetValueName2(fn, &n), args, ARRAY_LEN(args));
    else if (how == RUN_PARALLEL)
        CALL_RT(e, rt_parallel, items, fn, ctx);
    else
        CALL_RT(e, rt_parallel_balanced, items, fn, ctx);
}
