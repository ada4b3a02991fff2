/* seconds.h - `stator simulate --seconds`: how long a step takes when ranks or links are slow
 * and times vary. The order: the plan of the configuration -> seconds_noise, of the options ->
 * seconds_run -> seconds_print. docs/simulate.md describes what is shown. */
#ifndef STATOR_SIMULATE_SECONDS_H
#define STATOR_SIMULATE_SECONDS_H
#include "frontend/config/options.h"
#include "frontend/plan/plan.h"
#include "passes/estimate/rank_seconds.h"

enum { SECONDS_MOST_RANKS = 1 << 17, SECONDS_MOST_STEPS = 10000, SECONDS_WAITED_FOR = 5 };

/* Where a rank of all is. */
typedef struct RankPlace {
    int stage, of_stage, host;
} RankPlace;

/* A rank or a link that others wait for. */
typedef struct SecondsCulprit {
    int who; /* as in RankStep.blame */
    double seconds;
} SecondsCulprit;

typedef struct Seconds {
    Arena *mem;
    const Plan *plan;
    const Machine *machine;
    RankProgram program;
    RankNoise noise;
    const char **noise_text; /* a line each, for people */
    int nnoise;
    int64_t steps;
    int hosts, host_ranks, all; /* ranks of one; of all */
    RankStep ideal;
    double *step;                               /* seconds, sorted */
    RankSums sums;                              /* of a step, on average */
    double *blame;                              /* the same */
    SecondsCulprit culprit[SECONDS_WAITED_FOR]; /* most first; seconds 0: no more */
    int64_t median_step; /* the one that takes closest to the median */
    double plan_seconds, run_seconds;
} Seconds;

/* seconds_options.c: the noise of the options, in mem. Fails with EXIT_CONFIG. */
void seconds_noise(Seconds *s, const Options *o);
/* seconds_run.c. Of a plan: sets its machine, and everything of `s` behind noise and steps. */
void seconds_open(Seconds *s, Plan *p, const Machine *m);
void seconds_run(Seconds *s);
/* The share q of all steps is at most so long. */
double seconds_quantile(const Seconds *s, double q);
RankPlace seconds_place(const Seconds *s, int rank);
/* The rank of each stage that is shown: with the coordinates of the one that is waited for
 * most; and the step in the median once more. */
int seconds_shown(const Seconds *s);
RankStep seconds_step(const Seconds *s, RankShow show);
Timeline seconds_timeline(const Seconds *s, const RankStep *step, int shown);
/* seconds_print.c */
void seconds_print(const Seconds *s, Text *out);
void seconds_json(const Seconds *s, Text *out);

#endif
