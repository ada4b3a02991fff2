/* shard.h - what pass shard (shard.c) knows of every value while it decides, and who
 * asked for it (trace_seeds.c), for the messages of placements that contradict each other. */
#ifndef STATOR_SHARD_H
#define STATOR_SHARD_H
#include "passes/shard/conflict.h"

typedef struct Placed {
    Type ty;                  /* with its placement */
    Type seed;                /* what the module said; split nowhere = it said nothing */
    int priority;             /* of the placement */
    bool open;                /* a carried constant: any placement will do */
    const Seed *own;          /* the seed as an annotation that counts in conflicts */
    const Seed *by[MAX_RANK]; /* who asked for the split of a dimension */
} Placed;

typedef struct FuncPlacements { /* of one function */
    Func *f;
    Placed *at;      /* by value id */
    Over *over;      /* by op id */
    const Op *owner; /* the call that placed the arguments */
    struct FuncPlacements *next;
} FuncPlacements;

typedef struct Shard {
    Module *m;
    const PassOptions *o;
    Arena *mem; /* scratch of one attempt */
    FuncPlacements *all;
    Op *expand; /* a composite that must be split inside: expand it and start again */
} Shard;

typedef struct Votes { /* what speaks for splitting a dimension over one axis */
    int priority[MAX_DIMS];
    int term[MAX_DIMS]; /* whose */
} Votes;

static inline Placed *placed(FuncPlacements *p, const Value *v) {
    return &p->at[v->id];
}

static inline bool annotated(const Placed *p) {
    return type_is_split(&p->seed);
}

/* A value, or one whose placement is open, that may have any placement. */
static inline bool is_free(FuncPlacements *p, const Value *v, bool *zero) {
    if (placed(p, v)->open) return *zero = true;
    return value_is_free(v, zero);
}

/* Notes what the module says of a value, and that it asks for that. */
void take_seed(Shard *s, FuncPlacements *p, const Value *v);
/* Do two terms of the op ask for different axes on one letter? Fails then; else asked
 * [MAX_DIMS] gets, by dimension id, the side that asks for the most axes. */
void trace_operands(Shard *s, FuncPlacements *p, const Op *op, const Over *o,
                    SeededDim *asked);
/* Fails when an elementwise op is asked for an axis on two dimensions. */
void refuse_two_dimensions(Shard *s, FuncPlacements *p, const Op *op, const Over *o,
                           const Votes *b, int axis);
/* Whoever asked for the axes that split the op asked for those of result nth, y. */
void trace_result(Placed *y, const Over *o, int nth, const SeededDim *asked);
/* The same where a tensor goes into a function (argument i, already placed), out of it
 * (result i), and from its end to its next run or over an argument. */
void meet_argument(Shard *s, FuncPlacements *p, FuncPlacements *callee, const Call *c,
                   int i);
void meet_result(Shard *s, FuncPlacements *p, FuncPlacements *callee, const Call *c,
                 int i);
void meet_returns(Shard *s, FuncPlacements *p, int carry);

#endif
