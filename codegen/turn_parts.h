/* turn_parts.h - tiles of numbers that are sums of several of bf16, turned. */
#ifndef STATOR_TURN_PARTS_H
#define STATOR_TURN_PARTS_H
#include "codegen/emit.h"

/* Line t (i64) of what is turned: a vector of words for each part. */
typedef void (*TurnLine)(const void *ctx, LLVMValueRef t, LLVMValueRef *word);

/* The transposes of vl lines of each of so many parts: at `to` rows `row` words apart, parts `part`.
 * In loops, as code for all lines of all parts would take long to compile. */
void turn_parts(Emit *e, TurnLine line, const void *ctx, int parts, LLVMValueRef to,
                int64_t row, int64_t part);

#endif
