/* train_valid.c - validation: a program without dropout and without backward, which
 * shares the weights of the training program and works in its memory, over the first
 * batches of other data; every time the same ones. Points go to valid.jsonl in the run
 * folder, one JSON object a line. */
#include "frontend/config/commands.h"
#include "frontend/train/evaluator.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/fault.h"
#include <math.h>

typedef struct Validation {
    ValidPart valid, test;
    Evaluator evaluator;
    int64_t every;
    DataBatch batch; /* room for one batch */
} Validation;

void valid_plan(Train *t, ValidPart valid, ValidPart test, int64_t every) {
    Validation *v = t->valid = NEW(t->mem, Validation);
    *v = (Validation){.valid = valid, .test = test, .every = every};
    evaluator_plan(t, &v->evaluator, 0);
    v->batch = data_batch_new(t->mem, valid.data ? valid.data : test.data);
}

/* False: it cannot be read (train_fault.c). */
static bool read_batch(const Data *d, int64_t k, const DataBatch *to) {
    Catch c;
    if (CATCH(c)) {
        data_batch(d, k, to);
        catch_end(&c);
        return true;
    }
    fault_keep(c.code, c.message);
    return false;
}

typedef struct Mean {
    double sum, weights;
} Mean;

static void take_loss(void *context, const Evaluator *e, int64_t row, double weight) {
    Mean *m = context;
    (void)row;
    m->sum += weight * (double)evaluator_loss(e);
    m->weights += weight;
}

/* Mean over the counted labels of the first batches, as training counts its loss; 0 when
 * there are none. Of nothing when data fail. */
static double mean_loss(const Train *t, Validation *v, const ValidPart *part) {
    Mean m = {0};
    for (int64_t k = 0; k < part->batches; k++) {
        bool there = read_batch(part->data, k, &v->batch);
        evaluator_run(t, &v->evaluator, &v->batch, there, part->data->batch, take_loss,
                      &m);
    }
    return m.sum / MAX(m.weights, 1);
}

/* On rank 0, for all: what this run goes on behind. */
static void cut_points(const Train *t) {
    const char *damage = NULL;
    if (comm_rank()) return;
    int error = valid_points_cut(t, t->start_step, &damage);
    if (damage) report_say(t, "WARNING: %s", damage);
    report_unwritten(t, RUN_VALIDATION, error);
}

static void say_missing(const Train *t, int64_t every) {
    int64_t first = 0, n = comm_rank() ? 0 : valid_points_missing(t, every, &first);
    if (n)
        report_say(t,
                   "note: " RUN_VALIDATION
                   " has no point of %lld of the steps up to %lld "
                   "at which this run validates, the first of them step %lld",
                   (long long)n, (long long)t->start_step, (long long)first);
}

void valid_start(Train *t) {
    cut_points(t);
    if (!t->valid) return;
    program_borrow(t->valid->evaluator.program, t->program,
                   (uint64_t)t->job.cfg->context_max_device_memory);
    evaluator_start(t, &t->valid->evaluator);
    if (t->valid->valid.data && t->valid->every > 0) say_missing(t, t->valid->every);
}

void valid_fingerprint(Train *t) {
    const ValidPart *part = t->valid ? &t->valid->valid : NULL;
    if (comm_rank() == 0 && part && part->data)
        data_fingerprint_first(part->data, part->batches, t->valid_print);
}

/* Takes the loss of a part and says it. */
static double take_part(Train *t, const ValidPart *part, const char *name) {
    double start = clock_seconds(), loss = mean_loss(t, t->valid, part);
    train_end_if_data_failed(t, true);
    char perplexity[48] = "";
    if (!t->job.ncolumns)
        snprintf(perplexity, sizeof perplexity,
                 loss > 20 ? ", perplexity %.3g" : ", perplexity %.2f", exp(loss));
    report_say(t, "%s at step %lld: loss %.4f%s (%lld batches, %.1f s)", name,
               (long long)t->step, loss, perplexity, (long long)part->batches,
               clock_seconds() - start);
    return loss;
}

static bool takes_valid(const Train *t) {
    const Validation *v = t->valid;
    bool due = v->every > 0 && t->step % v->every == 0;
    return v->valid.data && (due || t->step == t->steps);
}

static bool takes_test(const Train *t) {
    return t->valid->test.data && t->step == t->steps;
}

static double take_point(Train *t, bool test) {
    const Validation *v = t->valid;
    ValidPoint p = {.step = t->step, .test = test};
    p.loss =
        test ? take_part(t, &v->test, "test") : take_part(t, &v->valid, "validation");
    report_unwritten(t, RUN_VALIDATION, comm_rank() ? 0 : valid_points_add(t, &p));
    return p.loss;
}

void valid_step(Train *t) {
    if (!t->valid) return;
    if (takes_valid(t)) best_save(t, take_point(t, false));
    if (takes_test(t)) take_point(t, true);
}

/* The point of this step as it is in the run folder (NAN: of other samples), else one that is taken
 * now; on all ranks. */
static double have_point(Train *t, bool test) {
    double loss = NAN;
    bool there = comm_rank() == 0 && valid_point_at(t, t->step, test, &loss);
    if (t->valid_changed) loss = NAN;
    comm_broadcast(&loss, sizeof loss, 0);
    if (comm_max_i64(there)) return loss;
    report_say(t, "note: " RUN_VALIDATION " has no loss on the %s part of step %lld yet",
               test ? "test" : "valid", (long long)t->step);
    return take_point(t, test);
}

void valid_catch_up(Train *t) {
    if (!t->valid || t->step <= MAX(t->began_step, 0)) return;
    watch_task("behind step", t->step, false);
    if (takes_valid(t)) best_save(t, have_point(t, false));
    if (takes_test(t)) have_point(t, true);
}

void valid_end(Train *t) {
    if (!t->valid) return;
    program_free(t->valid->evaluator.program);
    data_close(t->valid->valid.data);
    data_close(t->valid->test.data);
}
