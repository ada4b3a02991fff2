/* train_step.h - what the two files of pass train share: train.c has the micro-batches and their
 * gradients, train_update.c what is made of these once a step. */
#ifndef STATOR_TRAIN_STEP_H
#define STATOR_TRAIN_STEP_H
#include "ir/placement.h"
#include "passes/passes.h"

/* A row of ops.def whose operands are p, g, the states, then the scalars of the step. */
typedef struct Optimizer {
    const char *name;
    int nstates;
    const char *state[2]; /* beginnings of their names */
    bool corrected;       /* it takes bias corrections */
} Optimizer;

typedef struct Train {
    Module *m;
    const PassOptions *o;
    Func *grad, *step;
    Builder b;
    int64_t interleave; /* runs of the model that are a micro-batch */
    int nparam, *param; /* indices of the parameters among grad's arguments */
    Value **value;      /* per argument of grad: its value in @step */
    Value **held;       /* per parameter: the argument of @step */
    int *
        same; /* per parameter: the one that it is another name of (pass cut); -1: none */
    Value **sum; /* loss, then the gradient of each parameter */
    const Optimizer *optimizer;
    Value *scalar[5]; /* operands of the optimizer after the states */
    int nscalars;
    Value *good;
    Value *scale, *unscale; /* factor of the loss, and 1 / it; NULL: there is none */
} Train;

/* An argument of the step, of f32, whose name is its role. */
Value *train_scalar_arg(Train *t, const char *role);
Value *train_constant(Train *t, double v);
/* v times a scalar. */
Value *train_times(Train *t, Value *v, Value *scalar);
/* Of parameter k; 0 without stages. */
int train_stage_of(const Train *t, int k);
/* Are the states of that argument of the step split over its copies? */
bool train_is_sharded(const Train *t, const Value *param);

/* By its name; NULL: "none". Fails with EXIT_CONFIG for another. */
const Optimizer *train_optimizer(const char *name);
/* The arguments that the optimizer multiplies or divides by. */
void train_scalar_arguments(Train *t);
/* The norm, whether the step is good, and parameters and states after it, as results. */
void train_update(Train *t);

#endif
