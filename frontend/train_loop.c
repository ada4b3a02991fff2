/* train_loop.c - the steps. Nothing is allocated from one step to the next, but when a
 * checkpoint is saved or the loss is drawn. */
#include "../ir/rng.h"
#include "commands.h"
#include "train.h"
#include <math.h>
#include <signal.h>

static volatile sig_atomic_t signalled;

static void note_signal(int number) {
    signalled = number;
}

/* The first signal ends the run after its step; a second one ends it at once. */
static void catch_signals(void) {
    struct sigaction stop = {.sa_handler = note_signal,
                             .sa_flags = SA_RESETHAND | SA_RESTART};
    sigemptyset(&stop.sa_mask);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGUSR1, &stop, NULL);
    /* A file size limit gives an error that is told, like a full disk. */
    signal(SIGXFSZ, SIG_IGN);
}

/* Key words of each micro-batch: a function of seed, step and micro-batch alone. */
static void fill_rng(const Train *t, int64_t step) {
    uint64_t seed = (uint64_t)t->cfg->seed;
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int64_t m = 0; m < t->micro; m++) {
        uint32_t counter[4] = {(uint32_t)step, (uint32_t)((uint64_t)step >> 32),
                               (uint32_t)m, 0x64726f70};
        uint32_t word[4];
        rng_philox(counter, key, word);
        word[2] = 0;
        memcpy(t->at.rng + 3 * m, word, 3 * sizeof word[0]);
    }
}

static void fill_scalars(const Train *t, int64_t step, double rate) {
    *t->at.lr = (float)rate;
    double c1 = 1, c2 = 1;
    if (t->bias_correction) {
        c1 -= pow(t->beta1, (double)step);
        c2 -= pow(t->beta2, (double)step);
    }
    if (t->at.correction1) *t->at.correction1 = (float)c1;
    if (t->at.correction2) *t->at.correction2 = (float)c2;
}

static double run_step(Train *t, const int32_t *tokens, const int32_t *labels) {
    int64_t step = t->step + 1;
    size_t bytes = (size_t)(t->data->batch * t->seq) * sizeof *tokens;
    double rate = schedule_rate(&t->schedule, step);
    memcpy(t->at.tokens, tokens, bytes);
    memcpy(t->at.labels, labels, bytes);
    if (t->at.rng) fill_rng(t, step);
    fill_scalars(t, step, rate);
    program_run(t->program);
    t->step = step;
    return rate;
}

static void write_metrics(Train *t, double rate, double seconds) {
    double tokens = (double)(t->data->batch * t->seq);
    MetricsRow row = {.step = t->step,
                      .loss = *t->at.loss,
                      .grad_norm = *t->at.grad_norm,
                      .lr = rate,
                      .tokens = t->data->batch * t->seq,
                      .seconds = seconds,
                      .tokens_per_second = tokens / MAX(seconds, 1e-9),
                      .mfu = -1};
    if (t->peak_flops > 0)
        row.mfu = row.tokens_per_second * t->flops_per_token / t->peak_flops;
    metrics_write(t->metrics, &row);
    bool shown = t->step % t->cfg->runner_config_log_interval == 0 || t->step == t->steps;
    if (t->terminal != t->metrics && shown) metrics_write(t->terminal, &row);
}

/* The update is done already, so the weights are lost with the loss. */
static int diverged(Train *t) {
    char last[128] = "there is no checkpoint before it";
    if (t->saved_step >= 0)
        snprintf(last, sizeof last, "the last good checkpoint is of step %lld",
                 (long long)t->saved_step);
    report_say(t,
               "ERROR: step %lld has loss %g and gradient norm %g: the run has diverged "
               "and stops without saving; %s. Try a smaller learning rate, a longer "
               "warm-up or clipping (runner_wrapper.max_grad_norm)",
               (long long)t->step, (double)*t->at.loss, (double)*t->at.grad_norm, last);
    fprintf(stderr, "stator: error: the loss is not a number after step %lld; %s\n",
            (long long)t->step, last);
    return EXIT_DIVERGED;
}

static bool save_due(const Train *t) {
    int64_t every = t->cfg->checkpoint_save_checkpoint_steps;
    return every > 0 && (t->step % every == 0 || t->step == t->steps);
}

static int stopped(Train *t) {
    if (t->saved_step != t->step) train_state_save(t);
    report_plot(t);
    report_say(t,
               "stopped by signal %d after step %lld; the same command goes on from "
               "there",
               (int)signalled, (long long)t->step);
    return t->saved_step == t->step ? EXIT_SIGNALLED : EXIT_CHECKPOINT;
}

/* Draws the loss when a minute has gone by, so that its cost never shows. */
static void plot_sometimes(const Train *t, double *last) {
    if (clock_seconds() - *last < 60) return;
    report_plot(t);
    *last = clock_seconds();
}

static int run_steps(Train *t, Prefetch *batches) {
    const int32_t *tokens, *labels;
    double plotted = clock_seconds();
    while (!signalled && t->step < t->steps) {
        double begin = clock_seconds();
        if (!prefetch_next(batches, &tokens, &labels)) die("the data ended early");
        if (t->probe && t->step == t->start_step) {
            dump_first_step(t, tokens, labels);
            begin = clock_seconds();
        }
        double rate = run_step(t, tokens, labels);
        write_metrics(t, rate, clock_seconds() - begin);
        if (!isfinite(*t->at.loss) || !isfinite(*t->at.grad_norm)) return diverged(t);
        if (save_due(t)) train_state_save(t);
        plot_sometimes(t, &plotted);
    }
    return signalled && t->step < t->steps ? stopped(t) : 0;
}

int train_loop(Train *t) {
    catch_signals();
    Prefetch *batches = prefetch_start(t->data, t->step, t->steps - t->step,
                                       (int)t->cfg->train_dataset_prefetch_size);
    int code = run_steps(t, batches);
    prefetch_stop(batches);
    return code;
}
