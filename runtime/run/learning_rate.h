/* learning_rate.h - learning rate and weight decay as functions of the step. */
#ifndef STATOR_LEARNING_RATE_H
#define STATOR_LEARNING_RATE_H
#include "base/base.h"

typedef enum RateKind {
    RATE_CONSTANT,
    RATE_LINEAR,
    RATE_COSINE,
    RATE_COSINE_RESTARTS,
    RATE_POLYNOMIAL,
    RATE_INVERSE_SQRT,
    RATE_WSD,
    RATE_COUNT
} RateKind;

typedef enum RateDecay {
    DECAY_LINEAR,
    DECAY_COSINE,
    DECAY_EXPONENTIAL,
    DECAY_MINUS_SQRT,
    DECAY_COUNT
} RateDecay;

/* "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt",
 * "wsd". */
extern const char *const learning_rate_name[RATE_COUNT];

typedef struct RateSchedule {
    RateKind kind;
    double rate, rate_end;   /* peak, and where the decay ends */
    double warmup_rate_init; /* at clock 0 of the warm-up, which adds rate * x to it, the
                                first form of MindFormers */
    int64_t warmup_steps;    /* 0: no warm-up */
    int64_t total_steps;     /* clock at which the decay ends; unused by constant */
    double power;            /* polynomial */
    double num_cycles;       /* cosine: 0.5 is half a wave, from rate to rate_end */
    RateDecay wsd_decay;     /* shape of the last part */
    int64_t wsd_decay_steps; /* its length */
} RateSchedule;

/* Rate of update number `step`, counted from 1. The clock is step - 1, as in MindFormers,
 * Megatron-LM and Hugging Face: the first update of a warm-up from 0 has rate 0. After
 * total_steps: rate_end. Formulas: MindFormers
 * core/lr/lr_schedule.py and Megatron-LM optimizer_param_scheduler.py. */
double learning_rate_at(const RateSchedule *s, int64_t step);

/* Weight decay that changes over a run, as in Megatron-LM: start + (end - start) * x, or
 * with a half cosine instead of x, where x is the share of total_steps that is done. */
typedef enum DecayStyle { RAMP_CONSTANT, RAMP_LINEAR, RAMP_COSINE } DecayStyle;
typedef struct WeightDecay {
    DecayStyle style;
    double start, end; /* constant: the same */
    int64_t total_steps;
} WeightDecay;

/* Weight decay of update number `step`, counted from 1, on the clock of learning_rate_at;
 * after total_steps: end. */
double weight_decay_at(const WeightDecay *w, int64_t step);

/* Fails with EXIT_CONFIG when the numbers make no schedule. */
void learning_rate_check(const RateSchedule *s);

#endif
