/* train_predict.c - with context.machine: how long a step was predicted to take, before the
 * run, beside how long steps took. On rank 0. */
#include "frontend/config/commands.h"
#include "frontend/config/machine_file.h"
#include "frontend/plan/plan.h"
#include "frontend/train/train.h"
#include "passes/estimate/step_seconds.h"
#include "runtime/comm/comm.h"

enum { STEPS_KEPT = 4096 };

/* Of a step; kinds as plans have them. */
typedef struct Seconds {
    double step, kind[WORK_KINDS], waiting;
} Seconds;

typedef struct Prediction {
    Seconds said;
    double step[STEPS_KEPT], communication[STEPS_KEPT]; /* of the last ones, in turns */
    int64_t steps;
    bool profiled;
    double measured[WORK_KINDS], waited;
} Prediction;

static Seconds of_stage(const StepTime *t, const StageTime *s) {
    Seconds said = {.step = t->seconds, .waiting = s->waiting};
    memcpy(said.kind, s->kind, sizeof said.kind);
    return said;
}

/* The planner makes the programs of all stages, of which this process has one. */
void predict_start(Train *t) {
    if (!t->job.cfg->context_machine[0] || comm_rank()) return;
    Arena *mem = arena_new();
    const Machine *m = config_machine(t->job.cfg);
    Plan p = plan_of_job(mem, &t->job);
    plan_set_machine(mem, &p, m, t->threads);
    Prediction *k = t->predicted = NEW(t->mem, Prediction);
    k->said = of_stage(p.time, &p.time->stage[0]);
    t->predicted_seconds = k->said.step;
    arena_free(mem);
}

/* The first step of a process warms up what later ones find. */
void predict_note_step(Train *t, double seconds, double communication) {
    Prediction *k = t->predicted;
    if (!k || t->step == t->start_step + 1) return;
    k->step[k->steps % STEPS_KEPT] = seconds;
    k->communication[k->steps++ % STEPS_KEPT] = communication;
}

void predict_note_ops(Train *t, const double *seconds, double waiting) {
    if (!t->predicted) return;
    t->predicted->profiled = true;
    t->predicted->waited = waiting;
    memcpy(t->predicted->measured, seconds, sizeof t->predicted->measured);
}

static double median(const double *x, int64_t n) {
    double sorted[STEPS_KEPT];
    memcpy(sorted, x, (size_t)n * sizeof *x);
    sort_doubles(sorted, (size_t)n);
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

static void add_json(Text *s, const char *name, double step, const double *kind,
                     double waiting) {
    text_add(s, "  \"%s\": {\"step_seconds\": %.6g", name, step);
    for (int k = 0; kind && k < WORK_KINDS; k++)
        text_add(s, ", \"%s\": %.6g", work_kind_name[k], kind[k]);
    if (kind) text_add(s, ", \"waiting\": %.6g", waiting);
}

static void write_file(const Train *t, double step, double communication) {
    const Prediction *k = t->predicted;
    Arena *mem = arena_new();
    Text s = text_new(mem);
    const char *path = path_join(mem, t->run_dir, RUN_PREDICTED);
    text_add(&s, "{\n");
    add_json(&s, "predicted", k->said.step, k->said.kind, k->said.waiting);
    text_add(&s, "},\n");
    add_json(&s, "measured", step, k->profiled ? k->measured : NULL, k->waited);
    text_add(&s, ", \"communication_seconds\": %.6g},\n", communication);
    text_add(&s, "  \"steps\": %lld,\n  \"error\": %.4f\n}\n",
             (long long)MIN(k->steps, STEPS_KEPT), k->said.step / step - 1);
    report_unwritten(t, path, file_write_atomic(path, s.s, s.n));
    arena_free(mem);
}

void predict_end(const Train *t) {
    const Prediction *k = t->predicted;
    if (!k || !k->steps) return;
    int64_t n = MIN(k->steps, STEPS_KEPT);
    double step = median(k->step, n), communication = median(k->communication, n);
    report_say(t, "predicted  %.4g s a step, measured %.4g s (median of %lld): %+.1f %%",
               k->said.step, step, (long long)n, 100 * (k->said.step / step - 1));
    for (int i = 0; i < WORK_KINDS; i++)
        if (k->said.kind[i] > 0 && k->profiled)
            report_say(t, "  %-10s %.4g s, measured %.4g s", work_kind_name[i],
                       k->said.kind[i], k->measured[i]);
    if (k->said.waiting > 0 && k->profiled)
        report_say(t, "  %-10s %.4g s, measured %.4g s", "waiting", k->said.waiting,
                   k->waited);
    report_say(t, "  messages and waits %.4g s, measured %.4g s",
               k->said.kind[WORK_MESSAGES] + k->said.waiting, communication);
    write_file(t, step, communication);
}
