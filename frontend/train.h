/* train.h - what the files of the command `train` share. The order of a run:
 * train_plan (configuration, data, program; writes nothing) -> report_open (run folder)
 * -> train_state_start (memory, weights, resume) -> train_loop -> dump, plot. */
#ifndef STATOR_TRAIN_H
#define STATOR_TRAIN_H
#include "../codegen/codegen.h"
#include "../runtime/ckpt.h"
#include "../runtime/data.h"
#include "../runtime/metrics.h"
#include "../runtime/schedule.h"
#include "config.h"
#include "source.h"
#include "strategy.h"

/* The places in the program's memory that the loop reads and writes, beside the batch. */
typedef struct TrainSlots {
    int32_t *rng;             /* [micro, 3]; NULL: the model draws no random numbers */
    float *lr, *correction1, *correction2; /* NULL: the optimizer has none */
    const float *loss, *grad_norm;
} TrainSlots;

/* The arguments of a program that a batch fills, with the part of it
 * that this rank gets. */
enum { FEEDS = 4 };
typedef struct Feed {
    int32_t *slot[FEEDS]; /* NULL: the program has no such argument */
    Layout layout[FEEDS];
    int64_t zigzag, seq;
} Feed;

typedef struct Train {
    Arena *mem;
    Config *cfg;
    const char *run_dir, *ckpt_dir;
    int threads;

    /* the model */
    bool has_spec; /* false: a model.file */
    ModelSpec spec;
    bool has_source; /* weights from `source` (init_from), else from the seed */
    Source source;

    Strategy strategy;

    /* the work */
    Data *data;
    /* Micro-batches of a step, each of `batch` sequences on all ranks. */
    int64_t micro, batch, seq;
    int64_t steps;             /* of the whole run */
    Schedule schedule;
    bool bias_correction;
    double beta1, beta2;

    /* the program */
    Program *program;
    Program *probe; /* logits and gradients of a whole batch, for --dump; or NULL */
    TrainSlots at;
    Feed *feed; /* of program */
    struct Validation *valid; /* NULL: none */
    CkptTensor *tensor; /* parameters and optimizer states, where they lie */
    int ntensor;
    double flops_per_token, peak_flops; /* of the model; of this machine, 0: not asked */
    int64_t parameters;
    uint64_t process_bytes; /* resident before the arena is there */

    /* the run */
    int64_t step, start_step; /* updates done; done before this process */
    int64_t saved_step;       /* newest checkpoint of this run; -1: none */
    char config_hash[33];
    int lock_fd;
    FILE *log;
    Metrics *metrics, *terminal; /* one and the same when every step is shown */
} Train;

/* train_setup.c: everything up to a compiled program. Fails before anything is written.
 */
void train_plan(Train *t, int argc, char **argv);

/* train_model.c: the module of a configuration; sets spec, source and seq. */
void train_model_choose(Train *t);
Module *train_model_build(Train *t, ModelUse use, int64_t batch);
/* The model with whole parameters, as files have them. */
Module *train_model_whole(Train *t);
/* Rows of the token table (and classes of the loss): no token may lead outside. */
int64_t train_model_vocab(Train *t);
/* The same for a model.file: sequences and tokens of its argument of role tokens. */
void train_model_shape(Train *t, int64_t *batch, int64_t *seq);

/* train_ranks.c: the strategy of the configuration, for as many processes as run. */
void ranks_choose(Train *t);
/* Gives a module its mesh and the passes their options, and lays the
 * mesh over the ranks. */
void ranks_apply(Train *t, Module *m, PassOptions *o);
/* These fail, naming the first difference, unless all ranks have the same: build and
 * environment; configuration; text of the model.file, if there is one; module to compile;
 * data as far as a run of `steps` steps takes them. Nothing with one rank. */
void ranks_agree_build(const Train *t);
void ranks_agree_config(const Train *t);
void ranks_agree_model_file(const Train *t);
void ranks_agree_module(const Train *t, const Module *m);
void ranks_agree_data(const Train *t, const Data *d, int64_t steps);
/* For an allocated program. */
Feed *feed_make(const Train *t, const Program *p);
/* This rank's part of the batch, from row `first_row` on, into the
 * program's arguments. */
void feed_batch(const Feed *f, const DataBatch *b, int64_t first_row);

/* train_state.c: memory, first weights, checkpoints. */
void train_state_start(Train *t);
void train_state_save(Train *t);

/* train_loop.c: the steps. Returns the exit code. */
int train_loop(Train *t);

/* train_valid.c: the loss on other data, during training and at its end. The plan opens
 * nothing on disk and needs t->program; valid_step runs when it is due after a step.
 * valid_points are those of the run folder, for the picture. */
void valid_plan(Train *t, Data *data, int64_t every, int64_t batches);
void valid_start(Train *t); /* drops points behind the resumed step */
void valid_step(Train *t);
int valid_points(const Train *t, Arena *mem, double **step, double **loss);

/* train_dump.c: --dump. */
void dump_plan(Train *t);
void dump_first_step(Train *t, const DataBatch *batch);
void dump_write(Train *t);

/* train_report.c: what the run tells, on the terminal and in the run folder. */
void report_open(Train *t);
void report_header(Train *t); /* measures peak_flops */
void report_plot(const Train *t);
void report_end(const Train *t);
/* A line on the terminal and in logs/rank_0.log. */
void report_say(const Train *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t resident_bytes(void); /* of this process now */

/* SIGTERM, SIGINT and SIGUSR1 wait from here on, in all threads made later, until
 * train_loop takes them between two steps. */
void train_hold_signals(void);

#endif
