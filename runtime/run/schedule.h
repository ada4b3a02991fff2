/* schedule.h - learning rate and weight decay as functions of the step. */
#ifndef STATOR_SCHEDULE_H
#define STATOR_SCHEDULE_H
#include "base/base.h"

typedef enum ScheduleKind {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_COSINE_RESTARTS,
    SCHEDULE_POLYNOMIAL,
    SCHEDULE_INVERSE_SQRT,
    SCHEDULE_WSD,
    SCHEDULE_COUNT
} ScheduleKind;

typedef enum ScheduleDecay {
    DECAY_LINEAR,
    DECAY_COSINE,
    DECAY_EXPONENTIAL,
    DECAY_MINUS_SQRT,
    DECAY_COUNT
} ScheduleDecay;

/* "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt",
 * "wsd". */
extern const char *const schedule_name[SCHEDULE_COUNT];

typedef struct Schedule {
    ScheduleKind kind;
    double rate, rate_end;   /* peak, and where the decay ends */
    double warmup_rate_init; /* at clock 0 of the warm-up, which adds rate * x to it, the
                                first form of MindFormers */
    int64_t warmup_steps;    /* 0: no warm-up */
    int64_t total_steps;     /* clock at which the decay ends; unused by constant */
    double power;            /* polynomial */
    double num_cycles;       /* cosine: 0.5 is half a wave, from rate to rate_end */
    ScheduleDecay wsd_decay; /* shape of the last part */
    int64_t wsd_decay_steps; /* its length */
} Schedule;

/* Rate of update number `step`, counted from 1. The clock is step - 1, as in MindFormers,
 * Megatron-LM and Hugging Face: the first update of a warm-up from 0 has rate 0. After
 * total_steps: rate_end. Formulas: MindFormers
 * core/lr/lr_schedule.py and Megatron-LM optimizer_param_scheduler.py. */
double schedule_rate(const Schedule *s, int64_t step);

/* Weight decay that changes over a run, as in Megatron-LM: start + (end - start) * x, or
 * with a half cosine instead of x, where x is the share of total_steps that is done. */
typedef enum DecayStyle { RAMP_CONSTANT, RAMP_LINEAR, RAMP_COSINE } DecayStyle;
typedef struct WeightDecay {
    DecayStyle style;
    double start, end; /* constant: the same */
    int64_t total_steps;
} WeightDecay;

/* Weight decay of update number `step`, counted from 1, on the clock of schedule_rate;
 * after total_steps: end. */
double schedule_weight_decay(const WeightDecay *w, int64_t step);

/* Fails with EXIT_CONFIG when the numbers make no schedule. */
void schedule_check(const Schedule *s);

#endif
