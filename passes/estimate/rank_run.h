/* rank_run.h - what is the same in all steps of rank_seconds.h: who is slow, and the groups. */
#ifndef STATOR_RANK_RUN_H
#define STATOR_RANK_RUN_H
#include "passes/estimate/rank_links.h"

typedef struct SlowOfStage {
    int *rank, n;
} SlowOfStage;

struct RankRun {
    const RankProgram *p;
    const RankNoise *noise;
    RankLinks links;
    int ranks, axes_sets;
    int **number;        /* by stage and rank of it: the rank of all */
    double **factor;     /* by stage and rank: of compute */
    SlowOfStage *slow;   /* by stage: those with another factor than 1 */
    bool any_late;       /* is anything slow in all steps? */
    RankGroups **groups; /* by stage and set of axes; of none where nothing uses it */
    LinkDelay **delay;   /* by message and rank; NULL: no link is slow */
    const JitterTable *compute, *message;
};

/* Of draws. */
enum { PURPOSE_COMPUTE = 1, PURPOSE_COLLECTIVE, PURPOSE_MESSAGE, PURPOSE_RANK };
#endif
