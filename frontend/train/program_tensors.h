/* program_tensors.h - the parameters and states of a program as tensors of a checkpoint. */
#ifndef STATOR_PROGRAM_TENSORS_H
#define STATOR_PROGRAM_TENSORS_H
#include "codegen/codegen.h"
#include "runtime/store/ckpt.h"

/* Has a rank not all of every tensor as one argument? */
bool program_in_parts(const Program *p);

/* Parameters, then states, of all stages of an allocated program, the same list on all
 * ranks, with this rank's memory; *n of them. What every stage has is listed once. */
CkptTensor *program_tensors(Arena *mem, const Program *p, int *n);
/* The memory of an argument of a Program, for source_load. */
float *program_weight(void *program, int arg);

#endif
