/* sample.h - numbers to run a function on when there are no inputs: each depends on the
 * name of the argument and the element only, so that a module has the same arguments
 * before and after a pass. */
#ifndef STATOR_SAMPLE_H
#define STATOR_SAMPLE_H
#include "ir/ir.h"

/* arg[rank][i], other numbers on every rank; integers are below every dimension 0 of a
 * table they could index. */
Tensor ***sample_arguments(Arena *mem, const Func *f);
/* The same for an entry function, each rank with its part (ir/layout.h) of the tensor that
 * the argument is a part of, by whose name it is made: the tensors are those of the function
 * before it was cut, split, flattened, turned or made local. Padding is 0. */
Tensor ***sample_parts(Arena *mem, const Func *f);
/* ret[rank], for interp_run to fill. */
Tensor ***sample_results(Arena *mem, const Func *f);
/* Result i of an entry as one tensor: for one that overwrites an argument from its parts,
 * which are those of the argument; any other is whole on every rank. NULL where ranks
 * have different bits for one element. */
Tensor *sample_together(Arena *mem, const Func *f, Tensor ***ret, int i);

#endif
