/* cost.h - seconds of ops and collectives on the machine of PassOptions, for passes that decide
 * what is sent when. */
#ifndef STATOR_COST_H
#define STATOR_COST_H
#include "passes/estimate/op_size.h"

typedef struct FuncCost {
    const Func *f;
    double seconds, before_wait;
    struct FuncCost *next;
} FuncCost;

typedef struct Cost {
    Arena *mem;
    const Machine *m;
    const MachineRank *rank;
    const GroupShape *shape; /* by set of axes */
    FuncCost *func;          /* of functions that are called, the newest first */
} Cost;
/* For programs on the mesh of m, a stage of o->stages. The memory lives as long as it. */
Cost cost_new(Arena *mem, const Module *m, const PassOptions *o);
/* Adds f, whose callees were added before, in place of what was added of it. */
void cost_add(Cost *c, const Func *f);
/* Seconds of an op with all runs of its loop. Only products count: ops that move memory alone
 * compete with messages for it, and take next to nothing, but never 0, as collectives and
 * views do. */
double cost_of(const Cost *c, const Op *op);
/* Of them those before it waits for messages, of which one that has been begun goes first; INFINITY: it
 * does not wait. Collectives that are not late do. */
double cost_before_wait(const Cost *c, const Op *op);
/* Seconds of sending these collectives, which have the same kind and axes, as one message. */
double cost_to_send(const Cost *c, int n, const Op *const *op);
/* Seconds that a message of the collective takes to start. */
double cost_start(const Cost *c, const Op *op);
/* Does it take longer to send one run's part of the collective, of so many runs, than to start
 * it, so that each may be sent on its own? */
bool cost_fills_message(const Cost *c, const Op *op, int64_t runs);
/* Is less waited for so many messages of a part each, beside so many seconds of work each, than for
 * one of all of it, which may go along with others? */
bool cost_pays_apart(const Cost *c, const Op *op, int64_t runs, double work);

/* Where a collective may be: after `ready` (NULL: from the start on) and before `use`,
 * the first op that needs its results (NULL: none before the end). Views and moves of its
 * results do not count as uses: they can be moved along. Ids must be those of
 * func_number. */
typedef struct Window {
    Op *ready, *use;
    Op **moved; /* those views and moves */
    int nmoved, moved_cap;
    double work; /* seconds from ready to use */
} Window;
Window window_of(const Cost *c, const Op *op);
/* Is `at` the collective itself, or one of those views and moves? */
bool window_moves(const Window *w, const Op *op, const Op *at);
/* Seconds of the ops after `ready` and before `use`. */
double cost_between(const Cost *c, const Func *f, const Op *ready, const Op *use);

#endif
