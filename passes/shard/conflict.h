/* conflict.h - the message for two seeds that contradict each other: who asked for each
 * placement. Used by pass shard; the rule is in docs/design.md, "Several ranks". */
#ifndef STATOR_CONFLICT_H
#define STATOR_CONFLICT_H
#include "ir/placement.h"
#include "passes/passes.h"

/* A seed: a value with a placement that somebody asked for. Values that get their
 * placement from it point to it, by dimension. */
typedef struct Seed {
    const Value *v;
    const Func *f;
    Type ty; /* as it was asked for */
} Seed;

/* One dimension of a value, split because of a seed. */
typedef struct SeededDim {
    const Seed *by;   /* NULL: because of none */
    Type ty;          /* of the value, which need not be that of the seed */
    const char *name; /* of the value */
    int dim;
} SeededDim;

static inline Axes seeded_axes(const SeededDim *s) {
    return s->by ? s->ty.split[s->dim] : 0;
}

/* Where two seeds meet: at an op, or where a value is passed on. */
typedef struct Meeting {
    const PassOptions *o; /* whose annotations say who asked */
    const Func *f;
    const Op *op;     /* NULL: no line to name */
    const char *what; /* "dot", or "the next run" */
} Meeting;

/* Both are the same dimension (`letter` of the rule, 0 without one). Fails with
 * EXIT_CONFIG when their axes do not agree; else returns the one with more axes. */
SeededDim seeds_meet(const Meeting *at, char letter, const SeededDim *a,
                     const SeededDim *b);
/* One axis on two dimensions of an elementwise op. a_there: the dimension of a that
 * corresponds to the one of b that is split, -1: there is none; b_there the same of b.
 * Fails with EXIT_CONFIG. */
_Noreturn void refuse_axis(const Meeting *at, int axis, const SeededDim *a, int a_there,
                           const SeededDim *b, int b_there);

#endif
