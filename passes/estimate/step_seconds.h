/* step_seconds.h - how long a training step takes: the planned programs of all stages, gone
 * through op by op on a clock for each stage. */
#ifndef STATOR_STEP_SECONDS_H
#define STATOR_STEP_SECONDS_H
#include "passes/cost/machine.h"
#include "passes/model/work.h"
#include "passes/pipe/schedule.h"

/* A task of a stage, and when it ran. */
typedef struct TaskTime {
    Task task;
    double begin, end;
} TaskTime;

/* Of a rank of one stage. kind[] and waits sum to `end`; WORK_MESSAGES is the part of
 * collectives during which it computes nothing. */
typedef struct StageTime {
    double end; /* of its step, from its beginning */
    double kind[WORK_KINDS];
    double hidden;  /* of collectives, beside compute */
    double waiting; /* for messages of other stages: the bubble, and their way */
    double sending; /* of that what messages take themselves */
    TaskTime *task; /* empty where there is one stage */
    int ntasks;
} StageTime;

typedef struct StepTime {
    double seconds; /* until the last stage is done */
    StageTime *stage;
    int stages;
} StepTime;

/* entry[s]: the planned step of stage s. Ranks have `threads` threads each. Ranks that are
 * more than the cores of a host share them: one that waits leaves its core to others. */
StepTime step_seconds(Arena *mem, const Machine *m, const Func *const *entry, int stages,
                      int threads);
#endif
