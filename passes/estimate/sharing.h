/* sharing.h - ranks that are more than the cores of their host: where each computes, and how fast
 * while others do. */
#ifndef STATOR_SHARING_H
#define STATOR_SHARING_H
#include "passes/cost/machine.h"

/* load[s * places + p] ranks of stage s are on place p, which has cores for `room` ranks. As
 * `stator launch` binds them: where each can have as many, ranks are dealt out in their order to
 * places of as many cores as a rank has threads (`room` is 1); else none is bound, and a host is
 * one place. No places: every rank has cores of its own. */
typedef struct Sharing {
    int stages, places;
    double room;
    int *load;
} Sharing;
/* Of so many stages of a mesh, whose ranks have `threads` threads each. */
Sharing sharing_of(Arena *mem, const Machine *m, const Mesh *mesh, int stages,
                   int threads);
/* How many times as long the ranks of a stage compute while no other stage does. */
double sharing_stage_stretch(const Sharing *h, int stage);
/* How fast a stage is while those stages compute that `works` says, itself one of them: 1 is alone.
 * Ranks of a place have equal parts of it, and a stage is as fast as its slowest rank. */
double sharing_speed(const Sharing *h, int stage, const bool *works);
/* Do other stages compute where a rank of this one, which waits, could not do so as well? */
bool sharing_is_crowded(const Sharing *h, int stage, const bool *works);

#endif
