/* evaluator.h - the loss of a model on data, without dropout and without backward, under
 * the strategy of a run: what validation during training and `stator eval` share. */
#ifndef STATOR_EVALUATOR_H
#define STATOR_EVALUATOR_H
#include "frontend/train/train.h"

typedef struct Evaluator {
    Program *program; /* of one micro-batch, t->job.batch samples */
    Feed *feed;
    bool weighted;  /* the loss asks for the labels that count (model.h), on some stage */
    float *counted; /* of program; NULL: this stage does not */
    bool samples;   /* sample_loss and sample_correct are there */
} Evaluator;

/* Compiles the program. samples: how many will be taken, with results for each; it fails with
 * EXIT_CONFIG for a module whose loss is made of no cross entropy of its labels, and for one
 * that mixes samples where they are no multiple of the batch. 0: without these results. Opens
 * nothing on disk. */
void evaluator_plan(Train *t, Evaluator *e, int64_t samples);
/* Finds the arguments of the program, once it has memory. */
void evaluator_start(const Train *t, Evaluator *e);

/* What a run over rows [row, row + t->job.batch) gave, which waits in the program's
 * results; weight: the labels of them that count, 1 of a loss that does not ask for them. */
typedef void EvaluatorTake(void *context, const Evaluator *e, int64_t row, double weight);
/* Runs over all micro-batches of `rows` rows of b. `there` false: the data have failed, and
 * this rank takes part with zeros (train_fault.c). */
void evaluator_run(const Train *t, const Evaluator *e, const DataBatch *b, bool there,
                   int64_t rows, EvaluatorTake *take, void *context);

/* The mean loss of the run, and for each sample (f32[batch]) the sum of the losses of its
 * labels that count and how many of these have no class before them with more. */
float evaluator_loss(const Evaluator *e);
const float *evaluator_sample_loss(const Evaluator *e);
const float *evaluator_sample_correct(const Evaluator *e);

#endif
