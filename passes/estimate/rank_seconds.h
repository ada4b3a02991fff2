/* rank_seconds.h - a step with a clock for every rank: slow ranks, slow links, jitter. The
 * order of a rank's ops is fixed, so clocks depend on clocks by sums and maxima alone, and more
 * of any of these never makes a step shorter. Ranks share no cores: each has its own. */
#ifndef STATOR_RANK_SECONDS_H
#define STATOR_RANK_SECONDS_H
#include "passes/estimate/jitter.h"
#include "passes/estimate/rank_program.h"
#include "passes/estimate/step_seconds.h"

/* Ranks `first` to `last` compute everything `factor` times as long. */
typedef struct SlowRanks {
    int first, last;
    double factor;
} SlowRanks;

/* What goes from a to b or back takes so many times as long: two ranks, or two hosts; b -1: all
 * that leaves host a. */
typedef struct SlowLink {
    bool hosts;
    int a, b;
    double factor;
} SlowLink;

typedef struct RankNoise {
    const SlowRanks *slow;
    int nslow;
    const SlowLink *link;
    int nlinks;
    Jitter compute; /* of each stretch of compute of each rank */
    Jitter message; /* of each collective of a group, each message of a pair */
    Jitter rank;    /* of a rank, in all steps */
    uint64_t seed;
} RankNoise;

/* Seconds of all ranks together, which sum to their number times the step. */
typedef struct RankSums {
    double compute, messages; /* what messages take themselves and is not hidden */
    double *wait;  /* by set of axes: for other members of the group to begin */
    double stages; /* waits for other stages */
    double end;    /* from a rank's end to the last one's */
} RankSums;

/* What a rank did, in the order in which it began. */
typedef struct RankEvent {
    const RankPiece *piece;
    int func; /* that the piece is of: Func.nth */
    double begin, end;
    bool beside; /* the collective of an arrive, beside compute */
} RankEvent;
typedef struct RankLog {
    RankEvent *event;
    int n, cap;
} RankLog;

/* Of which rank of each stage tasks are noted, -1: of none; and all pieces? */
typedef struct RankShow {
    int rank;
    bool pieces;
} RankShow;
#define RANK_SHOW_NONE ((RankShow){-1, false})

typedef struct RankStep {
    double seconds;
    RankSums sums;
    /* By rank, then by slow link: seconds for which ranks wait because it is slow, or because
     * those are late that it kept waiting; jitter is nobody's. Each wait counts for the one
     * that most of the lateness is from, up to that. */
    double *blame;
    StageTime *shown; /* by stage: tasks and end of the rank that is shown */
    RankLog *log;     /* by stage, of that rank; NULL: not asked for */
} RankStep;

typedef struct RankRun RankRun;
/* What is the same in all steps. `noise` stays as long as it. */
RankRun *rank_run_new(Arena *mem, const RankProgram *p, const RankNoise *noise);
/* One rank of each stage for all, which are alike without noise. */
RankRun *rank_run_alone(Arena *mem, const RankProgram *p);
/* All ranks begin step `step` at once. Several threads may call it. */
RankStep rank_run_step(Arena *mem, const RankRun *run, int64_t step, RankShow show);
#endif
