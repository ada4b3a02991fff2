/* conflict.h - who asked for a placement, and what is said when two placements that
 * somebody asked for contradict each other. Used by pass shard; the rule is in
 * docs/design.md, "Several ranks". */
#ifndef STATOR_CONFLICT_H
#define STATOR_CONFLICT_H
#include "ir/placement.h"
#include "passes/passes.h"

/* An annotated value; values that are placed by it point to it, by dimension. */
typedef struct Seed {
    const Value *v;
    const Func *f;
    Type ty; /* as it is annotated */
} Seed;

/* One dimension of a value, split because a claim says so. */
typedef struct SeededDim {
    const Seed *by;   /* NULL: nobody asks */
    Type ty;          /* of the value, which need not be the one of the claim */
    const char *name; /* of the value */
    int dim;
} SeededDim;

static inline Axes seeded_axes(const SeededDim *s) {
    return s->by ? s->ty.split[s->dim] : 0;
}

/* Where two sides meet: at an op, or where a value is handed on. */
typedef struct Meeting {
    const PassOptions *o; /* whose annotations explain the claims */
    const Func *f;
    const Op *op;     /* NULL: no line to name */
    const char *what; /* "dot", or "the next run" */
} Meeting;

/* Both sides stand for one dimension (`letter` of the rule, 0 without one). Fails with
 * EXIT_CONFIG when their axes do not agree; else the side with more axes. */
SeededDim seeds_meet(const Meeting *at, char letter, const SeededDim *a,
                     const SeededDim *b);
/* One axis on two dimensions of an elementwise op. a_there: the dimension of a that
 * corresponds to the one of b that is split, -1: there is none; b_there the same of b.
 * Fails with EXIT_CONFIG. */
_Noreturn void refuse_axis(const Meeting *at, int axis, const SeededDim *a, int a_there,
                           const SeededDim *b, int b_there);

#endif
