/* job.h - what a configuration asks to be trained: model, strategy and the shape of a
 * step. `stator plan` and `stator train` start from the same Job, so that the one plans
 * what the other runs. */
#ifndef STATOR_JOB_H
#define STATOR_JOB_H
#include "frontend/config/data_open.h"
#include "frontend/config/run_tokenizer.h"
#include "frontend/model/source.h"
#include "frontend/model/strategy.h"
#include "runtime/data/data.h"

/* A module of the user (model.file), read once. */
typedef struct UserModule {
    const char *path; /* NULL: the model is one of model.model_config */
    const char *text;
    size_t bytes;
} UserModule;

typedef struct Job {
    Arena *mem;
    Config *cfg;
    bool plans;     /* nothing will run: weights and a tokenizer need not be there */
    int threads;    /* of a rank of a plan; 0: those of this process */
    bool evaluates; /* nothing is trained: there is no dropout */
    bool has_spec;  /* the model is `spec`; false: it is `module` */
    ModelSpec spec;
    UserModule module;
    bool has_source; /* weights from `source` (init_from), else from the seed */
    Source source;
    Strategy strategy;
    /* Micro-batches of a step, each of `batch` samples on all ranks; tokens of a sample,
     * 1 where samples are no sequences of tokens. */
    int64_t micro, batch, seq;
    int64_t parts;           /* of a micro-batch in training, beside each other */
    ModelShape shape;        /* of a micro-batch; inputs besides tokens and labels */
    double flops_per_token;  /* of the model, docs/performance.md; job_count_flops */
    double remade_per_token; /* what backward makes again besides; job_count_remade */
    DataColumn *column;      /* tensors of a sample by name (data of type Tensors) */
    int ncolumns;
    const Tokenizer *tokenizer; /* of the run; NULL: none */
    int labels;                 /* the column of role labels; -1: none */
    /* Of the step's products (codegen/product_choices.h); NULL: the form of the rule. */
    struct ProductChoices *choices;
} Job;

/* Chooses the model: sets has_spec, spec or module, source, and seq where the model
 * decides. A relative model.file is looked for next to the YAML file that names it, then
 * in the working directory. */
void job_choose_model(Job *j);
/* Chooses the sizes: micro, batch, seq, shape and columns, once strategy and model are
 * chosen. Looks at the header of a file that has its own batches (TensorBatches). */
void job_choose_shape(Job *j);
/* Does the strategy fit the model and these sizes? Fails as strategy_check, with it. */
void job_check(const Job *j);
/* The end of that: tokenizer, and the tokens that end texts and documents. `vocabulary`, which may
 * refuse a module, is asked where one must not lead outside of it. */
void job_choose_tokens(Job *j, int64_t (*vocabulary)(const Job *j));
/* Do data of this kind say which labels count? Others count all. */
bool job_masks_labels(const Config *cfg);
/* A job that plans, with strategy, model and sizes chosen as cfg says. */
Job *job_to_plan(Arena *mem, Config *cfg);
/* Room for a batch of so many samples. */
DataBatch job_batch_new(Arena *mem, const Job *j, int64_t samples);
/* Does the model read more of a batch than tokens and labels, or columns? */
bool job_full_batches(const Job *j);
/* Memory of the batches that a run reads ahead; INT64_MAX / 2 when there are more. */
int64_t job_ahead_bytes(const Job *j);
/* What the data must have for this job; `rows` sequences at once, `steps` as in
 * DataShape. */
DataShape job_data_shape(const Job *j, int64_t rows, int64_t steps);

/* The module at level global, of `batch` samples. A user's module has its own batch. */
Module *job_build(const Job *j, ModelUse use, int64_t batch);
/* What a training step runs: of a part of a micro-batch; the passes get as many micro-batches
 * and parts of each. */
Module *job_build_step(const Job *j, PassOptions *o);
/* The same with the job's strategy applied to it; `o` else as the caller has set it. */
Module *job_module(const Job *j, PassOptions *o);
/* The same with whole parameters, as files have them. */
Module *job_build_whole(const Job *j);
/* Sets flops_per_token. `model`: as job_build_step gives it; it is changed. */
void job_count_flops(Job *j, Module *model);
void job_count_remade(Job *j); /* sets remade_per_token, behind the other */
/* What strategies and weights know of the model; NULL: a user's module. */
const ModelSpec *job_spec(const Job *j);
/* Is argument i one that a sample fills: tokens, labels and data? */
bool job_is_sample(const Func *f, int i);
/* What a sample gives to argument i, and in which range. */
DataColumn job_column(Arena *mem, const Func *model, int i);
/* What data of type Tensors give a user's model: a column for each argument of role
 * tokens, labels or data that it reads; *n of them. */
DataColumn *job_columns(Arena *mem, const Func *model, int *n);
/* What it is, for people: its family and sizes, or the file of a user's module. */
const char *job_title(Arena *mem, const Job *j);
/* "token", or "sample" where samples are no sequences of tokens. */
const char *job_unit(const Job *j);

#endif
