/* placement.h - how an op is spread over the ranks: which mesh axes split which dimension of its
 * rule. Pass shard decides it and writes it down as the attribute `over` of the op, e.g.
 *     %y = dot %x, %w {bth,hc->btc; over="b:dp t:cp h:tp"} : f32[8:dp,16:cp,32]+tp
 * Dimensions without a letter are named by their number (#0). "+tp" says that a partial
 * sum over tp of the operands goes on into the results. */
#ifndef STATOR_PLACEMENT_H
#define STATOR_PLACEMENT_H
#include "ir/ir.h"

typedef struct Over {
    bool has_dims; /* false: the op has no known dimensions; nothing is split */
    Dims d;
    Axes split[MAX_DIMS]; /* by dimension id; tied ids have those of their leader */
    Axes passes; /* axes over which partial sums of operands go on into results */
} Over;

/* How much the split of a term counts where terms of an op want different dimensions split: an
 * operand is split so, a result has a seed for it, a parameter is stored so. */
enum { PRIORITY_FOLLOWS = 1, PRIORITY_RESULT = 2, PRIORITY_PARAMETER = 3 };

/* The op's dimensions, with nothing split. */
Over over_none(const Op *op);
/* From the attribute; none without it. Fails when the op cannot be split so. */
Over over_read(const Op *op);
void over_write(Op *op, const Over *o); /* no attribute when nothing is split */
void over_drop(Op *op);
/* May dimension id be split over these axes: may it be split at all, and do the axes
 * divide all sizes that it has (and those tied to it)? */
bool over_fits(const Op *op, const Over *o, int id, Axes axes);
/* Splits id, and what is tied to it, over one more axis. */
void over_add(const Op *op, Over *o, int id, int axis);
/* The placement that operand i must have, and the one result i gets. */
Type over_operand(const Op *op, const Over *o, int i);
Type over_result(const Op *op, const Over *o, int i);

/* The placement that a call needs for operand i, which is that of the callee's argument,
 * and that of result i: carried results and those that overwrite an argument have that
 * argument's placement. */
Type call_operand(const Op *op, int i);
Type call_result(const Op *op, int i);
/* collect.c. Bytes that a rank sends to bring a tensor from one placement to another in
 * the cheapest way (where there are too many placements in between: by gathering all of
 * it); -1: no collectives do. */
int64_t reshard_sent_bytes(const Mesh *m, const Type *from, const Type *to);
/* collect.c. Is a reshard one step, as its attributes say? */
bool reshard_is_step(const Op *op);
/* check_placement.c. Fails with EXIT_CONFIG where an operand has another placement than
 * its op or callee takes, or a reshard is not a single step: localize needs both. */
void check_placed(const Module *m);

/* Types of slices and stacks: without dimension 0, and with one more that is whole. */
Type type_slice(const Type *t);
Type type_stack(const Type *slice, int64_t n);
bool type_same_placement(const Type *a, const Type *b);
bool type_is_split(const Type *t); /* any dimension over any axis */
/* The dimension that id is split along with, or id itself. */
int over_leader(const Dims *d, int id);
/* Does one of two orders of axes on a dimension begin with the other? Then the parts of
 * the one are made of whole parts of the other. */
bool axes_agree(Axes a, Axes b);
/* The dimension of a term that has this id, or one tied to it; -1: there is none. */
int over_dim(const Over *o, int term, int id);
/* The axes of more than one rank. */
Axes splitting_axes(const Mesh *m, Axes axes);
/* Bytes that a rank has of the tensor. */
double type_part_bytes(const Mesh *m, const Type *t);
/* Removes splits over axes of one rank, which split nothing. */
void drop_single_axes(Module *m);
/* A value that may have any placement because every rank can compute any part of it
 * without inputs: a constant, or a map of constants and scalars. *zero: it may be a
 * partial sum too. */
bool value_is_free(const Value *v, bool *zero);

/* The operands of an op that are floats, by what an axis does to them. */
typedef struct SumOperands {
    int floats;     /* all of them */
    int zeros;      /* free ones that may be partial sums */
    int pending;    /* partial sums that are not free */
    int64_t summed; /* numbers in these */
} SumOperands;
void sum_operand(SumOperands *in, const Type *t, bool free, bool zero, bool pending);
/* Are the results of the op partial sums where these operands are? */
bool sums_may_go_on(const Op *op, const SumOperands *in);
/* And is it worth it? Then none is finished first. */
bool sums_go_on(const Op *op, const SumOperands *in);

/* Fails with EXIT_CONFIG: "@function: ...", at the line of the text the op came from. */
_Noreturn void fail_op(const Op *op, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
