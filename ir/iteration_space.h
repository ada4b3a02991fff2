/* iteration_space.h - the iteration space of a kernel function: which loops its elementwise ops and
 * reductions can share. Used by fuse (may these ops be one kernel?), by memplan (may a
 * result overwrite an operand?) and by codegen (which loops to emit?).
 *
 * The space is rows x inner: the dimensions of the largest value, where dimensions that
 * every value either has or lacks together count as one. A value that lacks `inner` is
 * one number per row. A loop may go over a row several times (phases): a sum over inner
 * is known only after its phase. Layernorm has three: sum of x; sum of (x - mean)^2; the
 * result. */
#ifndef STATOR_ITERATION_SPACE_H
#define STATOR_ITERATION_SPACE_H
#include "ir/ir.h"

enum {
    SPACE_MAX_GROUPS = MAX_RANK,
    SPACE_MAX_SUMS = 64, /* Space.nsums, all of which a loop of code carries */
    SPACE_BLOCK = 4096
};

typedef enum ReduceKind {
    REDUCE_NONE, /* elementwise (or a sum over nothing) */
    REDUCE_ROW,  /* over inner: one number a row, usable in the next phase */
    REDUCE_COL,  /* over all rows: a vector of inner, ready at the end */
    REDUCE_ALL   /* over everything: a scalar, ready at the end */
} ReduceKind;

typedef struct SpaceValue {
    Value *v;
    uint32_t mask; /* groups it has; bit ngroups-1 is inner */
    uint32_t dims; /* the same over single dimensions of the largest value */
    int phase;
    bool made;   /* by an op of the kernel */
    bool at_end; /* result of a column or whole reduction */
    bool table;  /* an operand with dimensions of its own, read whole: not part of the
                  * space */
} SpaceValue;

typedef struct Space {
    int nops;
    Op **op;
    ReduceKind *reduce;                 /* per op */
    int ngroups;                        /* 0: everything is a scalar */
    int64_t size[SPACE_MAX_GROUPS];     /* the last one is inner */
    uint32_t dims_of[SPACE_MAX_GROUPS]; /* by group */
    int64_t inner, rows;
    int nvalues, nphases, values_cap;
    int nsums; /* reductions to a number, of a row or of everything */
    SpaceValue *value;
    int *slot;             /* hash table of values: number + 1; 0: free */
    int slots;             /* a power of 2 */
    int64_t block, blocks; /* a row is cut into blocks when no row reduction forbids it */
} Space;

/* The dimensions of an op of a kernel. */
const Dims *space_dims(Arena *mem, const Op *op);
/* NULL, or why the ops (in program order, of one function) cannot be one kernel. dims: space_dims
 * of each. */
const char *space_analyze(Arena *mem, Op **op, const Dims *const *dims, int nops,
                          Space *s);
/* Adds one more op behind the others, if that is quickly seen to leave the space as it is but for
 * its values: an elementwise op on some of the dimensions, or a reduction. False: space_analyze
 * says whether it fits. Only values, their groups and the number of sums are kept: ops, reductions
 * and blocks are not. */
bool space_extend(Space *s, const Op *op, const Dims *d);
/* The same for a kernel function; fails with EXIT_CONFIG when it is none. */
Space space_of(Arena *mem, const Func *kernel);
SpaceValue *space_value(const Space *s, const Value *v);
static inline uint32_t space_inner_bit(const Space *s) {
    return s->ngroups ? 1u << (s->ngroups - 1) : 0;
}
static inline uint32_t space_full(const Space *s) {
    return (1u << s->ngroups) - 1;
}
/* May result `ret` of the kernel overwrite argument `arg`? */
bool space_inplace(Arena *mem, const Func *kernel, int arg, int ret);

#endif
