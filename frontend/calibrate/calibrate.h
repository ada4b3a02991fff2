/* calibrate.h - measuring what a machine does in a second. The order: calibrate_rank (what a
 * rank computes), calibrate_comm (what ranks send). docs/machines.md says what is measured
 * and how. */
#ifndef STATOR_CALIBRATE_H
#define STATOR_CALIBRATE_H
#include "frontend/calibrate/trial.h"
#include "passes/cost/machine.h"

typedef struct Calibration {
    Arena *mem;
    Machine *m;         /* what has been measured */
    int ranks, threads; /* of each: the same on all hosts */
    int host_ranks;     /* of the host that has most */
    bool crowded;       /* there are more threads than cores, on some host */
    bool quick;         /* few points of small sizes, for tests */
    double seconds;     /* of a point */
    double began;
} Calibration;

/* What takes seconds is measured in so many rounds: what else runs on the machine seldom disturbs
 * a point twice. */
enum { CALIBRATE_ROUNDS = 2 };
/* Seconds of a point from those of the rounds: their mean, as steps are disturbed too, without
 * those that took a quarter longer than the fastest. */
double calibrate_mean(const double seconds[CALIBRATE_ROUNDS]);

/* Of a table of which some rates are measured and others 0: a point that is 15 % slower than most
 * of those next to it in one of the three sizes, which a size more or less should not cost. */
bool calibrate_is_dip(const ProductTable *p, int at);

/* MachineRank.keeps_seconds by what caches have lost after n pauses, shares of 0 to 1: those for which
 * 1 - exp(-pause / seconds) is closest to them, by squares; 0.1 ms to 1 s, in steps of 2 %. */
double calibrate_keeps_seconds(const double *pause_seconds, const double *lost, int n);

/* Adds the section of this number of ranks and threads, with peaks, memory, products; and the
 * start of an op. */
MachineRank *calibrate_rank(Calibration *c);
/* The same of ops with products inside: rate over intensity; of elementwise ops. */
void calibrate_inner(Calibration *c, MachineRank *r);
void calibrate_elements(Calibration *c, MachineRank *r);
/* Trains a small model for a few steps, and notes how far the prediction is off, for a section
 * of this number of ranks. */
void calibrate_residual(Calibration *c);
/* Links, collectives, and what is hidden of them. */
void calibrate_comm(Calibration *c);

/* How trials of ops without communication are made. */
TrialOptions calibrate_options(const Calibration *c);
/* On the terminal, by rank 0. */
void calibrate_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Seconds without the start of the op, most of which are left in any case. */
double without_start(const Calibration *c, double seconds);

#endif
