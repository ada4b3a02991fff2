/* train_loop.c - the steps. A step allocates nothing but, on rank 0, the points of the curve of
 * losses; what stands between steps (a checkpoint, a validation, texts, a picture) may. */
#define _GNU_SOURCE
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/fault.h"
#include "runtime/core/op_log.h"
#include "runtime/core/rt.h"
#include "runtime/core/stop_signal.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>

static int signalled; /* number of the signal that ends the run; 0: none */

/* Between two looks at each other's signals ranks do so many steps as take this long, as
 * far as is known: who hears of one late has saved soon enough, and fast steps cost no
 * message. */
#define LOOK_SECONDS 0.2
enum { LOOK_STEPS_MOST = 1000 };
static int64_t steps_to_look, steps_looked = 1;
static double looked_at; /* 0: not yet */

/* By what the steps since the last look took, with all that came between them. */
static int64_t steps_of_look(void) {
    double now = clock_seconds(), passed = looked_at ? now - looked_at : LOOK_SECONDS;
    double steps = LOOK_SECONDS * (double)steps_looked / MAX(passed, 1e-9);
    looked_at = now;
    return (int64_t)MIN(MAX(steps, 1), LOOK_STEPS_MOST);
}

/* Looks for a signal that has come to any rank; all see it after the same step. */
static void look_for_signal(void) {
    if (comm_size() > 1 && steps_to_look-- > 0) return;
    int64_t word = stop_signal_taken() * (int64_t)(LOOK_STEPS_MOST + 1);
    word += LOOK_STEPS_MOST - steps_of_look();
    word = comm_max_i64(word);
    signalled = (int)(word / (LOOK_STEPS_MOST + 1));
    steps_looked = LOOK_STEPS_MOST - word % (LOOK_STEPS_MOST + 1);
    steps_to_look = steps_looked - 1;
}

/* Every rank has read the labels of the whole step. */
static void fill_counted(const Train *t, const DataBatch *batch) {
    int64_t n = counted_labels(&t->job, batch, 0, t->data->batch);
    *t->at.counted = (float)((double)MAX(n, 1) / (double)(t->job.micro * t->job.parts));
}

static void fill_scalars(const Train *t, int64_t update, double rate) {
    if (t->at.lr) *t->at.lr = (float)rate; /* a stage may have no parameters */
    const Config *cfg = t->job.cfg;
    double c1 = strategy_bias_correction(cfg, cfg->optimizer_beta1, update);
    double c2 = strategy_bias_correction(cfg, cfg->optimizer_beta2, update);
    if (t->at.weight_decay)
        *t->at.weight_decay = (float)weight_decay_at(&t->decay, update);
    if (t->at.correction1) *t->at.correction1 = (float)c1;
    if (t->at.correction2) *t->at.correction2 = (float)c2;
    if (t->at.loss_scale) *t->at.loss_scale = (float)t->loss_scale.value;
}

/* Are gradients that are not finite for the loss scale to mend? A loss that is not finite is
 * nothing of its. All ranks say the same. */
static bool is_overflow(const Train *t) {
    bool may = t->scales_loss && loss_scale_can_fall(&t->loss_scale);
    return may && !comm_max_i64(!isfinite(*t->at.loss));
}

/* A loss far above that of the run's first step is of weights that are worth less than those
 * it began with: the checkpoint that they are from is no good one, unless there is none. */
static void note_update(Train *t) {
    double loss = (double)*t->at.loss;
    t->updated_step = t->step;
    if (isnan(t->first_loss)) t->first_loss = loss;
    if (loss <= t->first_loss + fabs(t->first_loss) || t->good_step < 0)
        t->good_step = t->saved_step;
}

static void count_step(Train *t) {
    bool skipped = *t->at.good == 0, overflow = skipped && is_overflow(t);
    t->skipped += skipped;
    if (!overflow) t->skipped_in_a_row = skipped ? t->skipped_in_a_row + 1 : 0;
    if (!skipped) note_update(t);
    t->overflow = overflow;
    if (t->scales_loss) loss_scale_update(&t->loss_scale, !skipped);
}

/* Data and random numbers go on with every step; schedules and bias corrections with
 * every update, as in Megatron-LM. No batch: this rank takes part in a step that changes
 * nothing. */
static double run_step(Train *t, const DataBatch *batch) {
    int64_t step = t->step + 1, update = step - t->skipped;
    double rate = learning_rate_at(&t->schedule, update);
    if (t->program->stages > 1) train_end_if_data_failed(t, true);
    rt_op_begin(MARK_FEED);
    train_feed(t->feed, batch, 0);
    if (t->at.rng)
        fill_rng((uint64_t)t->job.cfg->seed, step, t->job.micro * t->job.parts,
                 t->at.rng);
    if (t->at.counted && batch) fill_counted(t, batch);
    fill_scalars(t, update, rate);
    rt_op_end(MARK_FEED);
    train_run(t->program);
    train_end_if_data_failed(t, *t->at.good == 0);
    t->step = step;
    count_step(t);
    return rate;
}

/* As a reader expects it: printf writes the sign of a NaN. */
static double shown(float v) {
    return isnan(v) ? (double)NAN : (double)v;
}

/* What a step took: all of it, and communication of that. */
typedef struct Taken {
    double seconds, communication_seconds;
} Taken;

static Taken taken_since(const Taken *start) {
    return (Taken){clock_seconds() - start->seconds,
                   comm_program_seconds() - start->communication_seconds};
}

static void write_metrics(Train *t, double rate, double scale, const Taken *taken) {
    double tokens = (double)(t->data->batch * t->job.seq);
    MetricsRow row = {.step = t->step,
                      .of_samples = t->job.ncolumns > 0,
                      .loss = shown(*t->at.loss),
                      .grad_norm = shown(*t->at.grad_norm),
                      .loss_scale = t->scales_loss ? scale : 0,
                      .skipped = *t->at.good == 0,
                      .lr = rate,
                      .tokens = t->data->batch * t->job.seq,
                      .seconds = taken->seconds,
                      .communication_seconds = taken->communication_seconds,
                      .tokens_per_second = tokens / MAX(taken->seconds, 1e-9),
                      .mfu = -1};
    if (t->peak_flops > 0)
        row.mfu = row.tokens_per_second * t->job.flops_per_token / t->peak_flops;
    if (!t->metrics) return; /* not rank 0 */
    metrics_write(t->metrics, &row);
    report_point(t, row.loss);
}

static void say_overflow(const Train *t, double scale) {
    const LossScale *s = &t->loss_scale;
    report_say(t,
               "note: step %lld is skipped: gradients overflow at a loss scale of %.10g; "
               "it %s %.10g",
               (long long)t->step, scale, s->value < scale ? "is now" : "stays",
               s->value);
}

static void say_skipped(const Train *t) {
    char most[48] = "";
    int64_t n = t->job.cfg->runner_config_max_skipped_steps;
    if (n) snprintf(most, sizeof most, " of at most %lld", (long long)n);
    report_say(
        t,
        "WARNING: step %lld is skipped: loss %g, gradient norm %g; no parameter and "
        "no optimizer state has changed (skipped in a row: %lld%s)",
        (long long)t->step, shown(*t->at.loss), shown(*t->at.grad_norm),
        (long long)t->skipped_in_a_row, most);
}

static const char *milder(const Train *t) {
    static const char smaller[] = "try a smaller learning rate, a longer warm-up or "
                                  "clipping (runner_wrapper.max_grad_norm)";
    if (!train_divides_by_zero(t)) return smaller;
    return arena_printf(t->mem,
                        "write an optimizer.eps above 0, as with 0 the step of a number "
                        "without a gradient is 0/0; else %s",
                        smaller);
}

static const char *advice(const Train *t, const char *not_finite) {
    const char *smaller = milder(t);
    if (t->not_finite)
        return arena_printf(t->mem,
                            "%s was not finite before the first step: start from "
                            "other weights",
                            t->not_finite);
    if (!not_finite && t->scales_loss && !t->loss_scale.rule.dynamic)
        return arena_printf(t->mem,
                            "try a smaller runner_wrapper.loss_scale, or none, which "
                            "lets it adjust itself; else %s",
                            smaller);
    if (!not_finite) return smaller;
    return arena_printf(t->mem, "%s is not finite any more: %s", not_finite, smaller);
}

/* The newest ones may hold the weights that gave the bad steps. */
static const char *checkpoints_left(const Train *t) {
    if (t->saved_step < 0) return "there is no checkpoint";
    const char *newest = arena_printf(t->mem, "the newest checkpoint is of step %lld",
                                      (long long)t->saved_step);
    if (t->good_step < 0 || t->good_step == t->saved_step) return newest;
    return arena_printf(t->mem,
                        "%s, the newest good one of step %lld "
                        "(--resume %s/step_%08lld)",
                        newest, (long long)t->good_step, t->ckpt_dir,
                        (long long)t->good_step);
}

/* Weights that are not finite are not worth a checkpoint that replaces an older one. */
static int diverged(Train *t) {
    const char *bad = train_state_not_finite(t), *why = advice(t, bad);
    long long in_a_row = (long long)t->skipped_in_a_row;
    if (!bad && t->saved_step != t->step) train_state_save(t);
    const char *last = checkpoints_left(t);
    report_plot(t);
    report_say(t,
               "ERROR: the run has diverged: %lld steps in a row were skipped, the "
               "weights are those of step %lld; %s; %s",
               in_a_row, (long long)t->updated_step, last, why);
    if (comm_rank() == 0)
        fprintf(stderr,
                "stator: error: loss or gradient norm not finite in %lld steps up "
                "to step %lld; %s; %s\n",
                in_a_row, (long long)t->step, last, why);
    return EXIT_DIVERGED;
}

/* Nor has a run shorter than that trained anything when all of its steps were skipped. */
static bool gives_up(const Train *t) {
    int64_t most = t->job.cfg->runner_config_max_skipped_steps;
    bool all = t->step >= t->steps && t->skipped_in_a_row == t->step;
    return most && (t->skipped_in_a_row >= most || all);
}

static bool save_due(const Train *t) {
    int64_t every = t->job.cfg->checkpoint_save_checkpoint_steps;
    return every > 0 && (t->step % every == 0 || t->step == t->steps);
}

/* Launch hands on what it got, and its --timeout, as SIGUSR1. */
static const char *who_stopped(const Train *t) {
    if (signalled == SIGUSR1 && getenv(LAUNCH_ENV))
        return "stator launch (a signal to it, its --timeout, or nobody who reads it)";
    return arena_printf(t->mem, "SIG%s", sigabbrev_np(signalled));
}

static int stopped(Train *t) {
    if (t->saved_step != t->step) train_state_save(t);
    report_plot(t);
    bool itself = !strcmp(t->job.cfg->resume, "auto"), saved = t->saved_step == t->step;
    const char *next = itself ? "the same command goes on from there"
                              : "the same command with --resume auto goes on from there";
    report_say(t, "stopped by %s after step %lld; %s", who_stopped(t), (long long)t->step,
               saved ? next : checkpoints_left(t));
    return saved ? EXIT_SIGNALLED : EXIT_CHECKPOINT;
}

/* Draws the loss when a minute has gone by, so that its cost never shows. */
static void plot_sometimes(const Train *t, double *last) {
    if (clock_seconds() - *last < 60) return;
    report_plot(t);
    *last = clock_seconds();
}

/* False: there is none, because data have failed (train_fault.c). */
static bool next_batch(Train *t, Prefetch *batches, DataBatch *batch) {
    Catch c;
    if (CATCH(c)) {
        if (!prefetch_next(batches, batch)) die("the data ended early");
        catch_end(&c);
        return true;
    }
    if (!train_has_news(t)) fail_again(c.code, c.message);
    fault_keep(c.code, c.message);
    return false;
}

static bool wait_for_batch(Train *t, Prefetch *batches, DataBatch *batch) {
    watch_file(t->data->path);
    bool there = next_batch(t, batches, batch);
    watch_file(NULL);
    return there;
}

static int run_steps(Train *t, Prefetch *batches) {
    DataBatch batch;
    double plotted = clock_seconds();
    for (look_for_signal(); !signalled && t->step < t->steps; look_for_signal()) {
        bool dumps = t->probe && t->step == t->start_step, there = false;
        watch_task("step", t->step + 1, true);
        if (dumps) { /* is not a part of the step's time, nor is what comes before it */
            there = wait_for_batch(t, batches, &batch);
            dump_first_step(t, &batch);
        }
        Taken begin = taken_since(&(Taken){0});
        profile_begin_step(t, t->step + 1);
        rt_op_begin(MARK_DATA);
        if (!dumps) there = wait_for_batch(t, batches, &batch);
        rt_op_end(MARK_DATA);
        double scale = t->loss_scale.value;
        double rate = run_step(t, there ? &batch : NULL);
        Taken taken = taken_since(&begin);
        profile_end_step(t);
        predict_note_step(t, taken.seconds, taken.communication_seconds);
        write_metrics(t, rate, scale, &taken);
        if (t->overflow)
            say_overflow(t, scale);
        else if (t->skipped_in_a_row)
            say_skipped(t);
        if (gives_up(t)) return diverged(t);
        if (save_due(t)) train_state_save(t);
        watch_task("behind step", t->step, false);
        valid_step(t);
        sample_step(t);
        plot_sometimes(t, &plotted);
    }
    return signalled && t->step < t->steps ? stopped(t) : 0;
}

int train_loop(Train *t) {
    int depth = (int)t->job.cfg->train_dataset_prefetch_size;
    int64_t steps = MAX(t->steps - t->step, 0); /* a checkpoint may be further */
    Prefetch *batches =
        prefetch_start(t->data, t->step, steps, depth, job_full_batches(&t->job));
    fault_go_on(comm_size() > 1);
    valid_catch_up(t);
    sample_catch_up(t);
    int code = run_steps(t, batches);
    if (code == 0 && t->program->stages > 1) train_end_if_data_failed(t, true);
    fault_go_on(false);
    prefetch_stop(batches);
    return code;
}
