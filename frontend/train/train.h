/* train.h - what the files of the command `train` share. The order of a run:
 * train_plan (configuration, data, program; writes nothing) -> report_open (run folder, log)
 * -> train_state_start (memory, weights, resume) -> the folder becomes this run's -> train_loop
 * -> dump, plot. */
#ifndef STATOR_TRAIN_H
#define STATOR_TRAIN_H
#include "codegen/codegen.h"
#include "frontend/model/feed.h"
#include "passes/pipe/schedule.h"
#include "runtime/data/data.h"
#include "runtime/run/learning_rate.h"
#include "runtime/run/loss_scale.h"
#include "runtime/run/metrics.h"
#include "runtime/store/ckpt.h"

/* Pointers into the program's memory that the loop reads and writes, besides the
 * batch. */
typedef struct TrainSlots {
    int32_t *rng;   /* [micro, RNG_WORDS]; NULL: the model draws no random numbers */
    float *counted; /* see model.h; NULL: the loss does not ask for it */
    /* NULL: the step has none */
    float *lr, *weight_decay, *correction1, *correction2, *loss_scale;
    const float *loss, *grad_norm, *good; /* good 0: the step has changed nothing */
} TrainSlots;

/* Arguments of a program that a batch fills, each with the part that this rank gets. */
typedef struct FeedSlot {
    void *to; /* the argument, elements of 4 bytes */
    Layout layout;
    FeedSource from;
} FeedSlot;
typedef struct Feed {
    FeedSlot *slot;
    int n;
    int64_t zigzag;
} Feed;

typedef struct Train {
    Arena *mem;
    Job job;
    const char *run_dir, *ckpt_dir;
    int threads;

    /* the work */
    Data *data;
    int64_t steps;   /* of the whole run */
    bool goes_on;    /* from a checkpoint, as its words and folders have it */
    bool steps_open; /* until that is loaded */
    RateSchedule schedule;
    WeightDecay decay;
    bool scales_loss; /* compute_dtype is float16 */
    LossScale loss_scale;

    /* the program */
    Program *program;
    Program *probe; /* results and gradients of the first batch, for --dump; or NULL */
    struct Results *results; /* of the probe */
    float **gradient; /* sums over its micro-batches, by parameter; NULL: it has one */
    const PipeSchedule *pipe;     /* what its stages do; NULL: there is one */
    struct Record *record;        /* see train_profile.c; NULL: nothing is recorded */
    struct Prediction *predicted; /* see train_predict.c; NULL: nothing is */
    double predicted_seconds;     /* of a step; 0: not predicted */
    TrainSlots at;
    Feed *feed;               /* of program */
    struct Validation *valid; /* NULL: none */
    const char
        *valid_source; /* in words, where validation has data of its own; else NULL */
    struct Samples *samples; /* NULL: none */
    CkptTensor *tensor;      /* parameters and optimizer states in the program's memory */
    int ntensor;
    double peak_flops; /* of this machine, 0: not asked */
    int64_t parameters;
    uint64_t process_bytes; /* resident before the arena is there */
    uint64_t profile_bytes; /* of ops, kept until they are written */

    /* the run */
    int64_t step, start_step; /* steps done; done before this process */
    int64_t began_step;       /* done before this run folder was begun; -1: unknown */
    int64_t skipped;          /* of the steps done: those that were no update */
    int64_t skipped_in_a_row; /* up to now, but for those that were an overflow */
    bool overflow;      /* the last step was skipped, and the loss scale may mend that */
    int64_t saved_step; /* newest checkpoint of this run; -1: none */
    int64_t good_step;  /* of the checkpoint to go back to (train_loop.c); -1: none */
    int64_t updated_step; /* the last that was an update; 0: none */
    double best_loss;     /* of the best checkpoint; INFINITY: none */
    double first_loss;    /* of the first update of the run; NAN: none yet */
    bool went_back;       /* before the newest checkpoint, which had diverged */
    const char *loaded;   /* the checkpoint that the run goes on from; NULL: none */
    const char *named;    /* where a key says that it is; NULL: the newest in ckpt_dir */
    /* Parameter that had an element inf or NaN before the first step here; NULL: none. */
    const char *not_finite;
    char config_hash[HASH_HEX_BYTES];
    char plan_hash[HASH_HEX_BYTES];   /* of all stages; "": there is one */
    const char *plan_json;            /* on rank 0, what report_plan made */
    char data_print[HASH_HEX_BYTES];  /* on rank 0, see data_fingerprint */
    char valid_print[HASH_HEX_BYTES]; /* the same of what validation takes; "": nothing */
    bool valid_changed; /* on rank 0, is it another than in the loaded checkpoint? */
    int lock_fd, ckpt_lock_fd; /* see folder_lock.h; -1: none */
    bool made_ckpt_dir;        /* for checkpoints, by this process */
    bool folder_gone;          /* said already */
    FILE *log;
    Metrics *metrics;         /* NULL: not rank 0 */
    struct CurvePoint *curve; /* of the whole run, on rank 0 */
    int ncurve, curve_cap;
} Train;

/* train_setup.c: everything up to a compiled program. Fails before anything is written.
 */
void train_plan(Train *t, int argc, char **argv);

/* train_ranks.c: the strategy of the configuration, for as many processes as run. */
void ranks_choose(Train *t);
/* Gives a module its mesh and the passes their options, and lays the
 * mesh over the ranks. */
void ranks_apply(Train *t, Module *m, PassOptions *o);
/* These fail, naming the first difference, unless all ranks have the same: build and
 * environment; configuration; text of the model.file, if there is one; module to compile
 * and schedule of its stages; data as far as a run of `steps` steps takes them. Nothing
 * with one rank. */
void ranks_agree_build(const Train *t);
void ranks_agree_config(const Train *t);
void ranks_agree_module_file(const Train *t);
void ranks_agree_module(const Train *t, const Module *m, const PipeSchedule *schedule);
void ranks_agree_data(const Train *t, const Data *d, int64_t steps);
/* Hash of batches spread over an epoch, all of a small one; "" where there are none. */
void data_fingerprint(const Data *d, char hex[HASH_HEX_BYTES]);
/* Hash of the first `batches`, spread as well: with their labels and how many they are. */
void data_fingerprint_first(const Data *d, int64_t batches, char hex[HASH_HEX_BYTES]);
/* For an allocated program. */
Feed *feed_make(const Train *t, const Program *p);
/* This rank's part of the batch, from row `first_row` on, into the
 * program's arguments. */
void feed_batch(const Feed *f, const DataBatch *b, int64_t first_row);
void feed_zeros(const Feed *f);

/* train_state.c: memory, first weights, checkpoints. */
void train_state_start(Train *t);
/* When what others left is out of the way: which checkpoints this run has, and where it began. */
void train_state_own(Train *t);
/* Only the weights, of job.source, into t->program, which may be any program of the model.
 * Returns the folder they are from. */
const char *train_state_weights(Train *t);
void train_state_save(Train *t);
/* As the one checkpoint in `dir`, with that loss in its state; t->saved_step stays. Is it there?
 * On all ranks the same. */
bool train_state_save_best(Train *t, const char *dir, double valid_loss);
/* Name of a parameter with an element that is inf or NaN on any rank, the same on all
 * ranks; NULL: all are finite. */
const char *train_state_not_finite(const Train *t);
/* Is the step of a number without a gradient 0/0, as optimizer.eps is 0? */
bool train_divides_by_zero(const Train *t);

/* train_aside.c: what other runs left in the folders of this one; all of it on rank 0. */
/* Makes the folder of checkpoints, which a signal may ask for, and keeps other runs from writing
 * there; unlocking removes it if it was made and has got none. */
void aside_lock_checkpoints(Train *t);
void aside_unlock_checkpoints(Train *t);
/* Of a run that goes on from a checkpoint in its folder, those of later steps, which would be
 * taken for newer ones; of one whose state is from elsewhere, or new, everything that another
 * run has written. */
void aside_move_others(Train *t);
/* The best checkpoint, with what it takes to read it: before report_keep. */
void aside_move_best(const Train *t);

/* train_changes.c: says what differs from the run that is gone on with, whose state in the
 * checkpoint `s` is; then the bits differ too. */
struct Json;
void train_say_changes(const Train *t, const struct Json *s);
/* As CkptExplain, of the Train `context`. */
const char *train_explain_misfit(void *context, const char *state_json);
/* Does this run validate, and on other samples than those that the state has a mark of? */
bool train_other_validation(const Train *t, const struct Json *s);
/* Is the configuration the one of the state, as far as that knows its keys? */
bool train_same_config(const Train *t, const struct Json *s);
/* Has a key that counts another value now? */
bool train_key_changed(const Train *t, const struct Json *s, const char *path);
/* train_go_on.c: the run goes on with the sample behind those that the state of a checkpoint
 * says were used, whatever the size of a step is now. On all ranks. */
void train_go_on_with_data(Train *t, const struct Json *s);
/* Fails with EXIT_CONFIG where the data end before the run does: of one that goes on, when it is
 * known which of them were used. */
void train_check_steps(const Train *t);
/* train_schedules.c: of the learning rate and the weight decay, for t->steps steps; then fails
 * with EXIT_CONFIG where they are none, and may have a note. */
void train_choose_schedules(Train *t);
void train_check_schedules(const Train *t);

/* train_strategy.c: the configuration of the command, the same on all ranks; with parallel_mode 2
 * its strategy is what rank 0 finds, or that of the run which is gone on with. Sets the folders
 * of the run. */
void train_load_config(Train *t, int argc, char **argv);
/* The notes of the configuration from the `first` on, on rank 0. */
void train_say_notes(const Train *t, int first);

/* Does the run go on from a checkpoint? Where its file of that name is, or NULL. */
bool train_goes_on(const Train *t, const char *name, const char **file);

/* train_products.c: which forms products have (codegen/product_choices.h). Before the program
 * is made: on rank 0 those of the run that this one goes on from. */
void products_choose(Train *t);
/* On rank 0, into the run folder. */
void products_keep(const Train *t);
/* To checkpoints that are elsewhere, once their folder is this run's. */
void products_keep_beside(const Train *t);

/* train_loop.c: the steps. Returns the exit code. */
int train_loop(Train *t);

/* train_fault.c: data that fail while the run goes on; see fault.h. */
/* Has a step been made here that no checkpoint has? */
bool train_has_news(const Train *t);
/* feed_batch, or zeros where there is no batch. */
void train_feed(const Feed *f, const DataBatch *b, int64_t first_row);
/* program_run; not on one rank whose data have failed. */
void train_run(Program *p);
/* On all ranks: where the data of any have failed, ends them all with the failure, with
 * what the steps up to t->step made saved. `possible`, the same on all: they may have. */
void train_end_if_data_failed(Train *t, bool possible);

/* train_inputs.c: what is made of a step's number and its labels. */
/* Labels that count of rows [first_row, first_row + rows) of a batch of the job's length. */
int64_t counted_labels(const Job *j, const DataBatch *b, int64_t first_row, int64_t rows);
/* The operand of dropout for step `step` (from 1 on) in so many runs of the model:
 * rng[micro, RNG_WORDS]. */
void fill_rng(uint64_t seed, int64_t step, int64_t micro, int32_t *rng);

/* Does a key change what is computed? Those are compared when a run is resumed. */
struct Key;
bool train_key_counts(const struct Key *key);

/* train_valid.c: the loss on other data, during training and at its end. The plan opens
 * nothing on disk and needs t->program; valid_step runs when it is due after a step. */
typedef struct ValidPart {
    Data *data;      /* NULL: there is none */
    int64_t batches; /* that are taken of it */
} ValidPart;
void valid_plan(Train *t, ValidPart valid, ValidPart test, int64_t every);
void valid_start(
    Train *t); /* drops points after the resumed step, also without validation */
/* Before the first step, when data may fail: what follows the step that is loaded and was not
 * come to, since the run was killed behind saving it. */
void valid_catch_up(Train *t);
void valid_step(Train *t);
/* Makes t->valid_print, on rank 0, before a checkpoint is looked for. */
void valid_fingerprint(Train *t);
void valid_end(Train *t);

/* train_best.c: t->best_loss of the checkpoint that is there when the run starts; saves another when
 * the loss of this step is lower. One of a step after the first here is moved aside, whatever this
 * run saves, unless the run will make that step again; so is one whose loss is of other samples,
 * or not known, by a run that saves some and has steps to do. */
void best_start(Train *t);
void best_save(Train *t, double loss);

/* train_sample.c: texts that the model makes as it is, every runner_config.sample_every steps.
 * The plan opens nothing on disk but the tokenizer, and needs t->program. Nothing that
 * training reads is changed. */
void sample_plan(Train *t);
void sample_start(Train *t); /* drops texts after the resumed step */
void sample_step(Train *t);
void sample_catch_up(Train *t); /* as valid_catch_up, behind that */
void sample_end(Train *t);

/* train_points.c: the points of validation in the run folder, and the losses on the test part. */
#define VALID_DIGITS "%.10g"
typedef struct ValidPoint {
    int64_t step;
    double loss;
    bool test; /* on that part */
} ValidPoint;
/* All of the valid part, for the picture; returns their number. */
int valid_points(const Train *t, Arena *mem, double **step, double **loss);
/* Is there one of that step and part? With its loss. */
bool valid_point_at(const Train *t, int64_t step, bool test, double *loss);
/* How many of the steps below start_step that are multiples of `every` have none. */
int64_t valid_points_missing(const Train *t, int64_t every, int64_t *first);
/* Leaves those up to `last_step`: 0 or errno. *damage: NULL, or what to say of lines that
 * are no points, which are kept aside. */
int valid_points_cut(const Train *t, int64_t last_step, const char **damage);
/* Writes one more behind them: 0 or errno. */
int valid_points_add(const Train *t, const ValidPoint *point);

/* train_tasks.c: the tasks of a pipeline as planned (schedule.svg); on all ranks. */
void tasks_draw_schedule(const Train *t);

/* train_profile.c: the key profile, a trace and a table of the ops of some steps, and of a
 * pipeline the timeline of its tasks. On all ranks: when the program is there, and before it has
 * its memory, in whose place profile_measure looks what memory can do; before the first step;
 * around each step, what waits for its batch included; behind all, which writes what is not
 * written yet. */
void profile_plan(Train *t);
void profile_measure(Train *t);
void profile_start(Train *t);
void profile_begin_step(Train *t, int64_t step);
void profile_end_step(Train *t);
void profile_end(Train *t);

/* train_predict.c: with context.machine, seconds of a step as predicted, before the run folder
 * is there, beside those that steps take. On rank 0; nothing without the key. */
void predict_start(Train *t);
void predict_note_step(Train *t, double seconds, double communication);
/* What the ops of a step took, by WorkKind; messages between stages, and the waits in them,
 * are `waiting` and of no kind. */
void predict_note_ops(Train *t, const double *seconds, double waiting);
void predict_end(const Train *t);

/* train_dump.c: --dump. */
void dump_plan(Train *t);
/* Of the probe's weights, those that it has in common with the step's program. */
uint64_t dump_shared_bytes(const Train *t);
void dump_first_step(Train *t, const DataBatch *batch);
void dump_write(Train *t);

/* train_report.c: what the run tells, on the terminal and in the run folder. Opening makes the
 * folder, with the lock and the log, and changes nothing that is there; what the folder keeps of
 * the run (config.yaml, plan.json, module, tokenizer, products) is written when that is known to
 * go on, and what another run has left is aside. */
void report_open(Train *t);
void report_keep(const Train *t);
/* On rank 0 makes what plan.json says of all stages. It takes memory for a while, so this is done
 * before the program has its own. */
void report_plan(Train *t);
void report_header(Train *t); /* measures peak_flops */
/* The loss curve: what an earlier process of the run left, one more point, the picture, which is
 * on rank 0 unless that is told. */
void report_read_curve(Train *t);
void report_point(Train *t, double loss);
bool report_plot(const Train *t);
void report_end(const Train *t, bool drawn);
/* A line on the terminal and in logs/rank_0.log. */
void report_say(const Train *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Those that are not empty, each behind `before`. */
void report_lines(const Train *t, const char *before, const char *lines);
/* That a file could not be written, with an errno value; 0: nothing. */
void report_unwritten(const Train *t, const char *file, int error);

#endif
