/* trial.h - a program of a few ops, made as training programs are, and timed on all ranks at
 * once. All ranks make and run the same trials in the same order. */
#ifndef STATOR_TRIAL_H
#define STATOR_TRIAL_H
#include "codegen/codegen.h"

typedef struct TrialOptions {
    int threads;
    const char *mesh; /* "", or "b=2, a=2" of all ranks */
    /* Operands and results are taken in turns from so many bytes of them at least, so that
     * those of a run are not where the run before left them. */
    int64_t spread_bytes;
    bool fused; /* the ops are at level fused already */
    /* Ranks that share a core take turns, so a run is short on one rank because it is long on
     * another: the mean of all runs counts. */
    bool turns;
    double pause_seconds; /* before each run, in which nothing is touched */
} TrialOptions;

typedef struct Trial {
    Arena *mem;
    Program *p;
    char *pool;
    int64_t copies, copy_bytes, next;
    bool turns;
    double pause_seconds;
} Trial;

/* func: "(%x: f32[4]) -> (f32[4]) { ... }", of ops at level local, or fused.
 * Operands are numbers from
 * -1 to 1, integers 0. */
Trial *trial_make(const TrialOptions *o, const char *func);
/* Seconds of a run: of runs that take about `seconds` together, three at least, the mean, without
 * the slowest eighth, one at least, unless ranks take turns; the most of all ranks, of whom each
 * waits for the slowest. */
double trial_seconds(Trial *t, double seconds);
void trial_free(Trial *t);
/* All of it. */
double trial_of(const TrialOptions *o, const char *func, double seconds);
/* Mean of a number over the ranks. */
double ranks_mean(double mine);
#endif
