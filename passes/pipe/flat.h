/* flat.h - the step of all stages with every task as an op of its own: calls that lead to
 * chunks are written out, a loop over micro-batches run by run. */
#ifndef STATOR_FLAT_H
#define STATOR_FLAT_H
#include "ir/ir.h"
#include "passes/pipe/schedule.h"

typedef struct Flat {
    Module *m;
    const PipeSchedule *s;
    Arena *mem;
    Func *f;         /* the step */
    Op **task;       /* by task_index; NULL: nothing to do */
    bool *is_task;   /* by op id */
    bool *leads;     /* by number of a function: does it, or one it calls, run a chunk? */
    int64_t written; /* calls of chunks so far */
} Flat;

/* Writes the step out, and links sums over micro-batches in the order of the schedule. Fails
 * with EXIT_CONFIG where module and schedule do not go together. */
Flat flat_make(Module *m, Arena *mem, const PipeSchedule *s, const Func *step);
/* The ops of a task of the schedule, in their order; how many: at most 2. Where backward is
 * in halves B is both; where it is whole (nobody waits for its first half) it is the W. */
int flat_task_ops(const Flat *flat, Task t, Op *list[2]);
/* The task that makes a value, as text; NULL: none does. */
const char *flat_maker(const Flat *flat, const Value *v, Task *made);
#endif
