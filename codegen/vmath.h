/* vmath.h - elementary functions as inline IR. Each takes an f32 value, scalar or vector
 * of any lane count, and gives the same bits at any width: only IEEE operations and fma,
 * lane by lane. Errors are in units of the last place (ulp) of the f32 result. */
#ifndef STATOR_VMATH_H
#define STATOR_VMATH_H
#include "codegen/emit.h"

/* 1 / x to the nearest for 2^-126 <= x <= 2^126; NaN stays NaN. */
LLVMValueRef vmath_reciprocal(Emit *e, LLVMValueRef x);
/* <= 2 ulp; rounds into the subnormals, 0 below about -103.97, +inf above 88.72. */
LLVMValueRef vmath_exp(Emit *e, LLVMValueRef x);
/* 2^x for x <= 127: <= 2 ulp down to -126, exactly 0 below; NaN stays NaN. About two
 * thirds of vmath_exp's work: for softmax, where x <= 0. */
LLVMValueRef vmath_exp2_fast(Emit *e, LLVMValueRef x);
/* The same to 18 bits, for what is rounded to bf16. */
LLVMValueRef vmath_exp2_narrow(Emit *e, LLVMValueRef x);
/* <= 2 ulp over all positive floats; -inf at 0, NaN below. */
LLVMValueRef vmath_log(Emit *e, LLVMValueRef x);
LLVMValueRef vmath_tanh(Emit *e, LLVMValueRef x);    /* <= 3 ulp */
LLVMValueRef vmath_erf(Emit *e, LLVMValueRef x);     /* <= 3 ulp */
LLVMValueRef vmath_sigmoid(Emit *e, LLVMValueRef x); /* <= 3 ulp */
LLVMValueRef vmath_sqrt(Emit *e, LLVMValueRef x);    /* correctly rounded */
LLVMValueRef vmath_rsqrt(Emit *e, LLVMValueRef x);   /* 1 / sqrt(x), both rounded */

/* Philox4x32-10, word 0 of the output (rng.h's rng_philox is its C twin). ctr[4] are i32
 * values of one shape, scalar or vector; the keys are i32 scalars. */
LLVMValueRef vmath_philox(Emit *e, const LLVMValueRef ctr[4], LLVMValueRef key0,
                          LLVMValueRef key1);

#endif
