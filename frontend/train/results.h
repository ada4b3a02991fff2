/* results.h - the named results of a model (all but its loss), gathered over runs that
 * each see a part of the samples. */
#ifndef STATOR_RESULTS_H
#define STATOR_RESULTS_H
#include "codegen/codegen.h"
#include "runtime/store/safetensors.h"

typedef struct Result {
    const char *name;
    Type ty;         /* of one run */
    int nth;         /* which result of the program */
    bool per_sample; /* dimension 0 is the batch; else the mean over the runs */
    bool along;      /* else: another dimension is, and there is no mean */
    bool alike;      /* it reads no sample: as in any run */
    const Op *mixes; /* by which a sample's depends on others of its batch; or NULL */
    void *data;      /* [samples, ...] or as in one run */
} Result;

typedef struct Results {
    Result *result;
    int n;
    int64_t batch, samples, seen;
} Results;

/* Room for the results of `model` (level global; its names are those of the results) from
 * number `first` on, over `samples` samples, `batch` in a run. What is of which sample says
 * sample_flow.h; where that does not follow, dimension 0 is the batch if it has its size. Fails
 * with EXIT_CONFIG for a result that is neither a number for each sample nor f32. */
Results *results_new(Arena *mem, Func *model, int first, int64_t batch, int64_t samples);
/* Has result i a meaning over all samples? If not, a note says why it is left out. */
bool results_known(const Results *r, int i);
/* Takes what the program just computed for the next `count` samples, the first rows of
 * its batch. */
void results_take(Results *r, const Program *p, int64_t count);
/* Result i with its whole shape, as a tensor of a file. */
SafeTensor results_tensor(const Results *r, int i);

/* Adds f32 or i32 numbers as nested lists of their shape (rank 0: one number), f32 with the
 * nine digits that tell any two apart; what JSON cannot say is null. */
void numbers_add_json(Text *t, bool is_float, int rank, const int64_t *dim,
                      const void *data);

#endif
