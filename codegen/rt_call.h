/* rt_call.h - calls of runtime functions from generated code, held against rt.def. */
#ifndef STATOR_RT_CALL_H
#define STATOR_RT_CALL_H
#include "codegen/emit.h"
#include "codegen/jit.h"

typedef enum RtCall {
#define RT(result, name, params, what) CALL_##name,
#include "runtime/core/rt.def"
    RT_CALLS
} RtCall;

/* CALL_RT(e, rt_copy, to, from, bytes): calls it; the result, of those that have one. */
#define CALL_RT(e, name, ...)                                                            \
    rt_call(e, CALL_##name, (LLVMValueRef[]){__VA_ARGS__},                               \
            (int)(sizeof((LLVMValueRef[]){__VA_ARGS__}) / sizeof(LLVMValueRef)))
/* Arguments of another number or of other types than the row's are our bug: dies. */
LLVMValueRef rt_call(Emit *e, RtCall which, const LLVMValueRef *args, int n);

/* Runs void fn(ctx, begin, end, thread) over the items, an i64: in one call without the threads, or
 * by rt_parallel or rt_parallel_balanced. */
typedef enum RtRun { RUN_ALONE, RUN_PARALLEL, RUN_BALANCED } RtRun;
void rt_run(Emit *e, LLVMValueRef fn, LLVMValueRef ctx, LLVMValueRef items, RtRun how);

/* What code of products and attention needs where it is linked without a program. */
enum { RT_THREAD_SYMBOLS = 2 };
extern const JitSymbol rt_thread_symbols[RT_THREAD_SYMBOLS];

#endif
