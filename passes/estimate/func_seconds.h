/* func_seconds.h - how long each function of a planned program takes. */
#ifndef STATOR_FUNC_SECONDS_H
#define STATOR_FUNC_SECONDS_H
#include "passes/estimate/op_size.h"

/* Of one run. kind[] sums to `all`; WORK_MESSAGES is the part of collectives during which
 * nothing is computed, `hidden` the rest of them. */
typedef struct FuncTime {
    double all, kind[WORK_KINDS], hidden;
    double issue, queued; /* of its own ops: until they are in the queue; until done */
    double first_wait;    /* for messages; INFINITY: never */
} FuncTime;
/* The queue of ops runs empty: what it waited for them is time of all kinds. */
void func_time_drain(FuncTime *t);

/* By Func.nth of those in `order` (module_order): is the function run by the model, not by
 * the step around it? And is an op? */
bool *model_funcs(Arena *mem, Func **order);
bool op_in_model(const Op *op, const bool *model_funcs);

/* The functions of a module by Func.nth, callees first. */
typedef struct FuncSizes {
    OpSizes *func; /* kernels have none */
    int n;
    bool *in_model; /* model_funcs */
    int **row;      /* by function and op id: place in its sizes, -1: none */
} FuncSizes;
FuncSizes func_sizes(Arena *mem, const Module *m, const SizeScale *scale);

/* What sizes are timed with. */
typedef struct Timing {
    Arena *mem; /* for what is in flight */
    const Machine *m;
    const MachineRank *rank;
    const GroupShape *shape; /* by set of axes */
    const FuncTime *func;    /* of callees */
    const FuncSizes *sizes;  /* the same */
    double stretch; /* of compute, by ranks of the stage that share cores; 1: none do */
    double free; /* share of collectives that takes no time: for bounds; 0: none does */
} Timing;
/* Of a collective alone. */
double size_collective_seconds(const Timing *k, const OpSize *s);

/* A collective in flight: from when to when it is, and for how long of that something has been
 * computed beside it. */
typedef struct Flight {
    double begin, end, beside;
} Flight;
/* Nothing is computed from `now` on for so many seconds. */
void flight_idle(Flight *f, double now, double seconds);
/* It is waited for: for how long it has had compute beside it. */
double flight_beside(const Flight *f, double now);
/* A message behind it is waited for from `now` on: nothing is computed beside it any more. */
void flight_end_beside(Flight *f, double now);

/* A row of ops on a clock. */
typedef struct Late {
    int row;
    Flight flight;
} Late;
typedef struct OpClock {
    FuncTime t;
    double sending; /* until when collectives are in flight */
    Late *late;
    int nlate, late_cap;
} OpClock;
void clock_add(OpClock *c, const Timing *k, const OpSizes *sizes, int row);

/* Seconds until the messages that are in flight are there. */
double clock_in_flight(const OpClock *c);
/* The row goes on when they are. */
void clock_wait_in_flight(OpClock *c);

/* Time passes that is not on the clock; collectives in flight go on. */
void clock_wait(OpClock *c, double seconds);

/* Of all functions with nothing in flight; t->func and t->sizes are set. */
FuncTime *func_seconds(Arena *mem, const FuncSizes *f, Timing *t);
#endif
