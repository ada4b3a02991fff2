/* step_parts.h - what the seconds of a step are reckoned from, on whatever ranks: the sizes and
 * seconds of the functions of all stages, and the messages between these. */
#ifndef STATOR_STEP_PARTS_H
#define STATOR_STEP_PARTS_H
#include "passes/estimate/func_seconds.h"

/* From stage to stage: of each pair of ranks of equal coordinates. */
typedef struct StageMessage {
    int from, to;
    double seconds; /* once both ends are at it */
} StageMessage;

/* Where ranks that are more than the cores of a host compute. load[s * places + p] ranks of
 * stage s are on place p, which has cores for `room` ranks. As `stator launch` binds them: where
 * each can have as many, ranks are dealt out in their order to places of as many cores as a rank
 * has threads (`room` is 1); else none is bound, and a host is one place. No places: every rank
 * has cores of its own. */
typedef struct Sharing {
    int places;
    double room;
    int *load;
} Sharing;
/* How many times as long so many ranks compute that are on one place. Where they do not come
 * out even, a core that has fewer is given another's rank only after a while, since ranks that
 * wait keep it busy: it counts as half of the time (3 ranks on 2 cores took 1.7 to 2.1 times
 * as long). */
double sharing_stretch(const Sharing *h, int ranks);
/* The same of the ranks of a stage while no other stage computes. */
double sharing_stage_stretch(const Sharing *h, int stage);

typedef struct StageParts {
    const Func *entry;
    FuncSizes sizes;
    Timing timing; /* with the seconds of its functions */
    int *message;  /* by op id of the entry; -1: it is about none */
} StageParts;

typedef struct StepParts {
    const Machine *machine;
    const Mesh *mesh; /* of a stage */
    int stages;
    StageParts *stage;
    StageMessage *message;
    int nmessages, cap_messages;
    Sharing share;
} StepParts;

/* entry[s]: the planned step of stage s, of ranks of `threads` threads each. */
StepParts step_parts(Arena *mem, const Machine *m, const Func *const *entry, int stages,
                     int threads);
/* Ranks of one host; all of them where the machine says nothing. */
int step_host_ranks(const StepParts *p);
#endif
