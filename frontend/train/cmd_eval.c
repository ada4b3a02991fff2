/* cmd_eval.c - stator eval: START HERE for an evaluation, in the order of its parts. */
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include "frontend/train/eval.h"
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/rt.h"

typedef struct Words {
    Eval *e;
    int argc;
    char **argv;
} Words;

static void look_at_config(void *context) {
    const Words *w = context;
    w->e->t.job.cfg = eval_config(w->e, w->argc, w->argv);
}

static void say_notes(const Train *t, int first) {
    for (int i = first; i < t->job.cfg->n_notes && comm_rank() == 0; i++)
        if (first || begins_with(t->job.cfg->notes[i], "command line"))
            fprintf(stderr, "note: %s\n", t->job.cfg->notes[i]);
}

/* ---- bytes of text ---- */

/* What each token is of a text; special ones are none of it. Where padding counts in the loss, that
 * is of more than the text. */
static void count_bytes(Eval *e) {
    const Job *j = &e->t.job;
    const Tokenizer *z = j->tokenizer;
    bool text = j->cfg->train_dataset_data_loader_type == LOADER_TEXT_FILE;
    if (j->cfg->train_dataset_data_loader_pad_in_loss) return;
    if (j->ncolumns || (!z && !text && !(j->has_source && j->source.bytes))) return;
    int64_t vocab = z ? tokenizer_vocab(z) : 256;
    e->bytes = NEW_ARRAY(e->t.mem, int32_t, (size_t)vocab);
    for (int64_t i = 0; i < vocab; i++) {
        size_t n = 1;
        if (z) tokenizer_piece(z, (int32_t)i, false, &n);
        if (z && tokenizer_special(z, (int32_t)i)) n = 0;
        e->bytes[i] = (int32_t)n;
    }
    e->vocab = vocab;
}

/* ---- the whole ---- */

static void look_at_work(void *context) {
    Eval *e = context;
    job_choose_shape(&e->t.job);
    if (e->endings_path)
        eval_endings_open(e);
    else
        eval_data_open(e);
    count_bytes(e);
}

static void load_config(Eval *e, int argc, char **argv) {
    Words words = {e, argc, argv};
    Train *t = &e->t;
    agree_look(look_at_config, &words);
    ranks_agree_config(t);
    watch_set(t->job.cfg->runner_config_hang_seconds,
              t->job.cfg->runner_config_on_hang == ON_HANG_END);
    ranks_choose(t);
    say_notes(t, 0);
}

/* All ranks have the same samples. */
static void agree_on_samples(const Eval *e) {
    const Data *d = e->t.data;
    if (d)
        ranks_agree_data(&e->t, d, MAX(d->samples / d->batch, 1));
    else
        agree_on_file(e->t.mem, "endings", e->endings_hash, e->endings_path);
}

static void make_program(Eval *e) {
    Train *t = &e->t;
    evaluator_plan(t, &e->evaluator, e->source.n);
    t->program = e->evaluator.program;
    t->threads = t->program->threads;
    comm_barrier();
    program_allocate(t->program, NULL, (uint64_t)t->job.cfg->context_max_device_memory);
    evaluator_start(t, &e->evaluator);
}

static void plan(Eval *e, int argc, char **argv) {
    Train *t = &e->t;
    ranks_agree_build(t);
    load_config(e, argc, argv);
    rt_set_threads((int)t->job.cfg->context_threads);
    int said = t->job.cfg->n_notes;
    job_choose_model(&t->job);
    ranks_agree_module_file(t);
    agree_look(look_at_work, e);
    say_notes(t, said);
    agree_on_samples(e);
    make_program(e);
}

int cmd_eval(int argc, char **argv) {
    Eval e = {.t = {.mem = arena_new(), .lock_fd = -1, .ckpt_lock_fd = -1}};
    e.t.job.mem = e.t.mem;
    e.t.job.evaluates = true;
    comm_start();
    watch_start(launch_say_hang);
    watch_task("start of the evaluation", -1, false);
    plan(&e, argc, argv);
    e.from = train_state_weights(&e.t);
    eval_run(&e);
    watch_task("end of the evaluation", -1, false);
    bool finite = eval_report(&e);
    data_close(e.t.data);
    program_free(e.t.program);
    if (!finite && comm_rank() == 0) {
        fprintf(stderr,
                "warning: the loss is no number: weights are broken, or too large for "
                "compute_dtype float16, if the model has that\n");
        launch_say_end(EXIT_DIVERGED);
    }
    arena_free(e.t.mem);
    comm_end();
    watch_stop();
    return finite ? 0 : EXIT_DIVERGED;
}
