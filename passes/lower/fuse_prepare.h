/* fuse_prepare.h - for pass fuse: the order of ops, before kernels are made of them. */
#ifndef STATOR_FUSE_PREPARE_H
#define STATOR_FUSE_PREPARE_H
#include "ir/ir.h"

/* Can the op be in a kernel? */
bool fuse_takes(const Op *op);
/* Gives each reader of a wider copy its own, and moves ops behind those that can then be one kernel
 * with what stands before them. */
void fuse_prepare(Func *f);

#endif
