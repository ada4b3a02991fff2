/* cost.h - for passes that decide what is sent when. */
#ifndef STATOR_COST_H
#define STATOR_COST_H
#include "ir/ir.h"

/* The work of functions that are called: a list, the newest first. */
typedef struct Cost {
    const Func *f;
    double total;
    struct Cost *next;
} Cost;
/* Adds f, whose callees must be in the list. */
Cost *cost_add(Arena *mem, Cost *known, const Func *f);
/* Of an op, runs of a loop counted: at least 1, but 0 for collectives and views. */
double cost_of(const Cost *known, const Op *op);
/* What could be done while these collectives are on their way, as one message. */
double cost_to_send(int n, const Op *const *op);

/* Is a message of so many bytes more than its latency, so that it may go by itself? */
bool fills_message(int64_t bytes);

/* Where a collective may stand: behind `ready` (NULL: from the start on), and `use` is the
 * first op that needs its results (NULL: none before the end). Views and moves of results
 * do not count, they can wait too. Ids must be those of func_number. */
typedef struct Window {
    Op *ready, *use;
    Op **moved; /* those views and moves */
    int nmoved, moved_cap;
    double work; /* from ready to use */
} Window;
Window window_of(Arena *mem, const Cost *known, const Op *op);
/* Is `at` the collective itself, or one of those views and moves? */
bool window_moves(const Window *w, const Op *op, const Op *at);
/* Work of the ops behind `ready` and before `use`. */
double cost_between(const Cost *known, const Func *f, const Op *ready, const Op *use);

#endif
