/* shard.h - what pass shard (shard.c) knows of every value while it decides, and which
 * seeds its placement comes from (trace_seeds.c), for messages about contradictions. */
#ifndef STATOR_SHARD_H
#define STATOR_SHARD_H
#include "passes/shard/conflict.h"

typedef struct Placed {
    Type ty;                  /* with its placement */
    Type seed;                /* that of the module; split nowhere: there is none */
    int priority;             /* of the placement */
    bool open;                /* a carried constant: any placement will do */
    const Seed *own;          /* its seed, if it counts in conflicts */
    const Seed *by[MAX_RANK]; /* the seed that a dimension's split comes from */
} Placed;

typedef struct FuncPlacements { /* of one function */
    Func *f;
    Placed *at;      /* by value id */
    Over *over;      /* by op id */
    int *uses;       /* by value id: ops and results that read it */
    const Op *owner; /* the call that placed the arguments */
    bool expanded;   /* a composite of it was */
    struct FuncPlacements *next;
} FuncPlacements;

typedef struct Shard {
    Module *m;
    const PassOptions *o;
    Arena *mem; /* scratch of one entry */
    FuncPlacements *all;
} Shard;

typedef struct Votes { /* for splitting a dimension over one axis */
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

/* Notes the seed of a value, if it has one. */
void take_seed(Shard *s, FuncPlacements *p, const Value *v);
/* Fails if seeds ask for different axes on one letter of the op. Else asked[MAX_DIMS]
 * gets, by dimension id, the seeded dimension with the most axes. */
void trace_operands(Shard *s, FuncPlacements *p, const Op *op, const Over *o,
                    SeededDim *asked);
/* Fails when seeds ask for an axis on two dimensions of an elementwise op. */
void refuse_two_dimensions(Shard *s, FuncPlacements *p, const Op *op, const Over *o,
                           const Votes *b, int axis);
/* Result nth, y, of an op gets the seeds that asked for the axes that split the op. */
void trace_result(Placed *y, const Over *o, int nth, const SeededDim *asked);
/* The same where a tensor is passed into a function (argument i, already placed), out of
 * it (result i), and from its end to its next run or over an argument. */
void meet_argument(Shard *s, FuncPlacements *p, FuncPlacements *callee, const Call *c,
                   int i);
void meet_result(Shard *s, FuncPlacements *p, FuncPlacements *callee, const Call *c,
                 int i);
void meet_returns(Shard *s, FuncPlacements *p, int carry);

#endif
