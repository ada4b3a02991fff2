/* program_ops.h - the ops of a program that tell when they begin and end. */
#ifndef STATOR_PROGRAM_OPS_H
#define STATOR_PROGRAM_OPS_H
#include "ir/ir.h"
#include "runtime/run/op_rows.h"

/* Does it do anything when it runs? Others are other names of memory. */
bool op_is_logged(const Op *op);
/* Of a planned module, in the order in which code is generated; *n of them. */
OpRow *logged_ops(Arena *mem, const Module *m, Func *entry, int *n);

#endif
