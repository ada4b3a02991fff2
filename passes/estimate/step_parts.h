/* step_parts.h - what the seconds of a step are reckoned from, on whatever ranks: the sizes and
 * seconds of the functions of all stages, and the messages between these. */
#ifndef STATOR_STEP_PARTS_H
#define STATOR_STEP_PARTS_H
#include "passes/estimate/func_seconds.h"
#include "passes/estimate/sharing.h"

/* From stage to stage: of each pair of ranks of equal coordinates. */
typedef struct StageMessage {
    int from, to;
    double seconds; /* once both ends are at it */
} StageMessage;

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
