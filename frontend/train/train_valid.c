/* train_valid.c - validation: a program without dropout and without backward, which
 * shares the weights of the training program and works in its memory, over the first
 * batches of other data; every time the same ones. Points go to valid.jsonl in the run
 * folder, one JSON object a line. */
#include "frontend/config/commands.h"
#include "frontend/train/train.h"
#include "passes/pipe/schedule.h"
#include "runtime/comm/comm.h"
#include "runtime/core/fault.h"
#include <math.h>

typedef struct Validation {
    Data *data;
    Program *program;
    int64_t every, batches;
    DataBatch batch; /* room for one batch */
    Feed *feed;
    bool weighted;  /* the loss asks for the labels that count (model.h), on some stage */
    float *counted; /* of program; NULL: this stage does not */
} Validation;

void valid_plan(Train *t, Data *data, int64_t every, int64_t batches) {
    Validation *v = t->valid = NEW(t->mem, Validation);
    *v = (Validation){.data = data, .every = every, .batches = batches};
    Module *m = job_build(&t->job, MODEL_TRAIN, t->job.batch);
    v->weighted = func_arg_role(model_entry(m), ARG_counted) >= 0;
    PassOptions o = pass_options_default();
    o.tile_bytes = t->job.cfg->context_tile_size;
    o.micro_batches = t->job.micro; /* of the schedule that training has */
    ranks_apply(t, m, &o);
    if (o.schedule) o.schedule = schedule_forward(t->mem, o.schedule);
    if (zero_gathers_ahead(&o)) o.zero_level = 3; /* as training leaves the parameters */
    CompileOptions co = {.cpu = t->job.cfg->context_cpu,
                         .threads = (int)t->job.cfg->context_threads};
    const char *passes = arena_printf(t->mem, "evaluate,%s", forward_passes);
    v->program = program_make(t->mem, m, passes, &o, &co);
    v->batch = data_batch_new(t->mem, data);
}

/* Labels of the run from row `row` on that count, which its loss is the mean of; 1 of a
 * loss that does not ask for them. */
static double run_weight(const Train *t, const Validation *v, int64_t row) {
    if (!v->weighted) return 1;
    int64_t n = counted_labels(t, &v->batch, row, t->job.batch);
    if (v->counted) *v->counted = (float)MAX(n, 1);
    return (double)n;
}

/* False: it cannot be read (train_fault.c). */
static bool read_batch(const Validation *v, int64_t k, const DataBatch *to) {
    Catch c;
    if (CATCH(c)) {
        data_batch_full(v->data, k, to);
        catch_end(&c);
        return true;
    }
    fault_keep(c.code, c.message);
    return false;
}

/* Mean over the counted labels of the first batches, as training counts its loss; 0 when
 * there are none. Of nothing when data fail. */
static double mean_loss(const Train *t, Validation *v) {
    double sum = 0, weights = 0;
    for (int64_t k = 0; k < v->batches; k++) {
        bool there = read_batch(v, k, &v->batch);
        for (int64_t row = 0; row < v->data->batch; row += t->job.batch) {
            double weight = run_weight(t, v, row);
            train_feed(v->feed, there ? &v->batch : NULL, row);
            train_run(v->program);
            sum += weight * (double)*(const float *)v->program->ret[0];
            weights += weight;
        }
    }
    return sum / MAX(weights, 1);
}

/* On rank 0, for all. */
static void write_points(const Train *t, int64_t last_step, const ValidPoint *more) {
    int error = comm_rank() ? 0 : valid_points_write(t, last_step, more);
    if (error)
        report_say(t, "WARNING: cannot write %s: %s", RUN_VALIDATION, strerror(error));
}

void valid_start(Train *t) {
    if (!t->valid) return;
    program_borrow(t->valid->program, t->program);
    t->valid->feed = feed_make(t, t->valid->program);
    int counted = program_arg_role(t->valid->program, ARG_counted);
    if (counted >= 0) t->valid->counted = t->valid->program->arg[counted];
    write_points(t, t->start_step, NULL);
}

void valid_step(Train *t) {
    Validation *v = t->valid;
    if (!v) return;
    bool due = v->every > 0 && t->step % v->every == 0;
    if (!due && t->step != t->steps) return;
    double start = clock_seconds();
    ValidPoint p = {t->step, mean_loss(t, v)};
    train_end_if_data_failed(t, true);
    char perplexity[48] = "";
    if (!t->job.ncolumns)
        snprintf(perplexity, sizeof perplexity, ", perplexity %.2f",
                 exp(MIN(20, p.loss)));
    report_say(t, "validation at step %lld: loss %.4f%s (%lld batches, %.1f s)",
               (long long)t->step, p.loss, perplexity, (long long)v->batches,
               clock_seconds() - start);
    write_points(t, t->step - 1, &p);
}

void valid_end(Train *t) {
    if (!t->valid) return;
    program_free(t->valid->program);
    data_close(t->valid->data);
}
