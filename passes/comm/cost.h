/* cost.h - cost model for passes that decide what is sent when. */
#ifndef STATOR_COST_H
#define STATOR_COST_H
#include "ir/ir.h"

/* The cost of functions that are called: a list, the newest first. */
typedef struct Cost {
    const Func *f;
    double total;
    struct Cost *next;
} Cost;
/* Adds f, whose callees must be in the list. */
Cost *cost_add(Arena *mem, Cost *known, const Func *f);
/* Cost of an op with all runs of its loop: at least 1, but 0 for collectives and
 * views. */
double cost_of(const Cost *known, const Op *op);
/* Cost of sending these collectives as one message. */
double cost_to_send(int n, const Op *const *op);

/* Does a message of so many bytes take longer than its latency, so that it may be sent on
 * its own? */
bool fills_message(int64_t bytes);

/* Where a collective may be: after `ready` (NULL: from the start on) and before `use`,
 * the first op that needs its results (NULL: none before the end). Views and moves of its
 * results do not count as uses: they can be moved along. Ids must be those of
 * func_number. */
typedef struct Window {
    Op *ready, *use;
    Op **moved; /* those views and moves */
    int nmoved, moved_cap;
    double work; /* from ready to use */
} Window;
Window window_of(Arena *mem, const Cost *known, const Op *op);
/* Is `at` the collective itself, or one of those views and moves? */
bool window_moves(const Window *w, const Op *op, const Op *at);
/* Cost of the ops after `ready` and before `use`. */
double cost_between(const Cost *known, const Func *f, const Op *ready, const Op *use);

#endif
