/* placement.h - how an op is spread over the ranks: which mesh axes split which dimension of its
 * rule. Pass shard decides it and writes it down as the attribute `over` of the op, e.g.
 *     %y = dot %x, %w {bth,hc->btc; over="b:dp t:cp h:tp"} : f32[8:dp,16:cp,32]+tp
 * Dimensions without a letter are called by their number (#0). "+tp" says that a sum over
 * tp that is pending in the operands goes on into the results. */
#ifndef STATOR_PLACEMENT_H
#define STATOR_PLACEMENT_H
#include "ir/ir.h"

typedef struct Over {
    bool has_dims; /* false: the op has no known dimensions; nothing is split */
    Dims d;
    Axes split[MAX_DIMS]; /* by dimension id; ids that are tied have their leader's */
    Axes passes;          /* axes whose pending sums go through */
} Over;

Over over_none(const Op *op);
/* From the attribute; none without it. Fails when the op cannot be split so. */
Over over_read(const Op *op);
void over_write(Op *op, const Over *o); /* no attribute when nothing is split */
void over_drop(Op *op);
/* May dimension id be split over these axes: is it not whole, and do all sizes that it
 * stands for (and those tied to it) divide? */
bool over_fits(const Op *op, const Over *o, int id, Axes axes);
/* Splits id, and what is tied to it, over one more axis. */
void over_add(const Op *op, Over *o, int id, int axis);
/* The placement that operand i must have, and the one result i gets. */
Type over_operand(const Op *op, const Over *o, int i);
Type over_result(const Op *op, const Over *o, int i);
/* Axes over which result i is a partial sum. */
Axes over_summed(const Op *op, const Over *o, int i);

/* The placement that a call needs of operand i, as its callee's argument lies, and that of
 * result i: carried results and those over an argument lie like that argument. */
Type call_operand(const Op *op, int i);
Type call_result(const Op *op, int i);
/* Bytes that a rank sends to bring a tensor from one placement to another in the cheapest
 * way (where too many placements lie between: by gathering all of it); -1: no collectives
 * do. (collect.c) */
int64_t reshard_sent_bytes(const Mesh *m, const Type *from, const Type *to);
/* Is a reshard one collective, as its attributes say? (collect.c) */
bool reshard_is_step(const Op *op);
/* Fails with EXIT_CONFIG where an operand lies in another way than its op or callee takes
 * it, or a reshard is no single step: what localize needs. (check_placement.c) */
void check_placed(const Module *m);

/* Types of slices and stacks: the placement without and with dimension 0. */
Type type_slice(const Type *t);
Type type_stack(const Type *slice, int64_t n);
bool type_same_placement(const Type *a, const Type *b);
bool type_is_split(const Type *t); /* any dimension over any axis */
/* The dimension that id is split along with, or id itself. */
int over_leader(const Dims *d, int id);
/* Does one of two orders of axes on a dimension begin with the other? Then parts of the
 * one are made of whole parts of the other. */
bool axes_agree(Axes a, Axes b);
/* The dimension of a term that stands for id, or for one tied to it; -1: it has none. */
int over_dim(const Over *o, int term, int id);
/* The axes of more than one rank. */
Axes splitting_axes(const Mesh *m, Axes axes);
/* Bytes that a rank has of the tensor. */
double type_part_bytes(const Mesh *m, const Type *t);
/* Splits over axes of one rank are none. */
void drop_single_axes(Module *m);
/* A value that may have any placement because every rank can make any part of it from
 * nothing: a constant, or a map of constants and scalars. zero: a pending sum too. */
bool value_is_free(const Value *v, bool *zero);

/* Fails with EXIT_CONFIG: "@function: ...", at the line of the text the op came from. */
_Noreturn void fail_op(const Op *op, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
