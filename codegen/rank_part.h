/* rank_part.h - where the elements of a rank's part of a tensor are in the whole tensor.
 * The coordinates of the rank are read when the program runs: the code is the same on all
 * ranks. */
#ifndef STATOR_RANK_PART_H
#define STATOR_RANK_PART_H
#include "codegen/emit.h"
#include "ir/ir.h"

/* The part of `whole` (a global type with its splits) as groups of dimensions: element i
 * of the part, written as one index a group, is element base + sum of index * step of the
 * whole. The last step is 1. With zigzag = n, dimension 1 is a group of its own whose
 * index counts from part_first_row in the order of `positions`, and is translated to a
 * true position. */
typedef struct Part {
    const Mesh *mesh;
    Type whole;
    int ngroups; /* at least 1 */
    int64_t size[MAX_RANK + 1], step[MAX_RANK + 1];
    int64_t zigzag; /* at most 1: dimension 1 is in plain order */
    int zigzag_group;
} Part;

/* The part of any rank of the mesh: sizes and steps are the same for all, where it begins is not
 * (part_base). zigzag: 0 or 1 for a plain order, else ranks that dimension 1 is in zigzag over. */
Part part_of(const Mesh *mesh, const Type *whole, int64_t zigzag);

/* This rank's number among those that differ from it in `axes` only: i64. */
LLVMValueRef part_coord(Emit *e, const Mesh *mesh, Axes axes);
/* Where the part begins (a zigzag dimension left out), and in which row of the zigzag
 * dimension; i64. A few calls, so emit them outside of loops. */
LLVMValueRef part_base(Emit *e, const Part *p);
LLVMValueRef part_first_row(Emit *e, const Part *p);
/* Number in the whole tensor, less the base, of element `i` of the part: i64, one or a
 * vector of them. */
LLVMValueRef part_distance(Emit *e, const Part *p, LLVMValueRef first_row,
                           LLVMValueRef i);
/* Number in the step's tensor of the first element of a micro-batch's, i64; rng: the
 * pointer to i32[RNG_WORDS], `count`: elements of a micro-batch. */
LLVMValueRef rng_micro_element(Emit *e, LLVMValueRef rng, int64_t count);
/* The distance from element to element along dimension d of the part. */
int64_t part_step(const Part *p, int d);

#endif
