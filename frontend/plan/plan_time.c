/* plan_time.c - seconds of a step on a machine, for people and for programs. */
#include "base/json.h"
#include "frontend/plan/plan.h"
#include <unistd.h>

int plan_threads(const Config *cfg, const Machine *m, int ranks) {
    if (cfg->context_threads > 0) return (int)cfg->context_threads;
    return MAX(1, m->cores / machine_host_ranks(m, ranks));
}

void plan_set_machine(Arena *mem, Plan *p, const Machine *m, int threads) {
    int stages = plan_stage_count(p);
    if (!threads) threads = plan_threads(p->job->cfg, m, p->ranks * stages);
    StepTime *t = NEW(mem, StepTime);
    *t = step_seconds(mem, m, plan_entries(mem, p), stages, threads);
    p->threads = threads;
    p->machine = m;
    p->time = t;
    for (int k = 0; p->pipe && k < stages; k++) {
        p->pipe->stage[k].machine = m;
        p->pipe->stage[k].threads = threads;
        p->pipe->stage[k].time = t;
    }
}

static double tokens_of(const Plan *p) {
    const Job *j = p->job;
    return (double)j->batch * (double)j->micro * (double)j->seq;
}

/* Flops of the model a second over the peak of all ranks, in the type of its products. */
static double mfu_of(const Plan *p) {
    const Machine *m = p->machine;
    int ranks = p->ranks * plan_stage_count(p), host = plan_host_ranks(p);
    const MachineRank *r = plan_machine_rank(p);
    DType factors = strategy_pass_options(p->job->cfg).narrow;
    double peak = machine_peak(r, factors) * ranks;
    if (m->cores > 0 && r->threads > 0 && host * r->threads > m->cores)
        peak *= (double)m->cores / (host * r->threads);
    return p->job->flops_per_token * tokens_of(p) / p->time->seconds / peak;
}

/* The name of this host, where the machine was measured on another one; else NULL. */
static const char *other_host(const Machine *m, char here[256]) {
    here[0] = here[255] = 0;
    if (!m->host[0] || gethostname(here, 255)) return NULL;
    return strcmp(m->host, here) ? here : NULL;
}

/* Ranks of a host with which messages of a calibrated machine were measured at most, where the plan
 * has more of them; else 0. */
static int fewer_ranks(const Plan *p) {
    const Machine *m = p->machine;
    int most = 1;
    for (int i = 0; i < m->ncollectives; i++)
        if (m->collective[i].level == LINK_HOST) most = MAX(most, m->collective[i].ranks);
    return m->host[0] && plan_host_ranks(p) > most ? most : 0;
}

/* ---- for people ---- */

static void add_notes(const Plan *p, Text *out) {
    char here[256];
    int fewer = fewer_ranks(p), ranks = plan_host_ranks(p);
    const MachineRank *r = plan_machine_rank(p);
    if (machine_rank_stretch(p->machine, r, p->threads) > 1)
        text_add(
            out,
            "  note: the rates are those of ranks of %d threads, of which these have "
            "%d: their part of them is taken; stator calibrate -n %d measures it\n",
            r->threads, p->threads, ranks);
    if (other_host(p->machine, here))
        text_add(out, "  note: the rates are those of host %s, this is %s\n",
                 p->machine->host, here);
    if (fewer)
        text_add(
            out,
            "  note: messages were measured with at most %d rank%s of a host, here are "
            "%d: stator calibrate -n %d measures these\n",
            fewer, fewer == 1 ? "" : "s", ranks, ranks);
}

static void add_stage(const StageTime *t, Text *out) {
    bool first = true;
    for (int k = 0; k < WORK_KINDS; k++) {
        if (!(t->kind[k] > 0)) continue;
        text_add(out, "%s%s %.3g", first ? "" : ", ", work_kind_name[k], t->kind[k]);
        first = false;
    }
    if (t->waiting > 0) text_add(out, ", waiting for other stages %.3g", t->waiting);
    if (t->hidden > 0) text_add(out, "; messages hidden %.3g", t->hidden);
    text_add(out, "\n");
}

void plan_print_time(const Plan *p, Text *out) {
    const StepTime *t = p->time;
    if (!t) return;
    text_add(
        out, "\ntime      %.4g s a step on %s: %s, MFU %.3f\n", t->seconds,
        p->machine->name,
        human(tokens_of(p) / t->seconds, p->job->ncolumns ? "sample/s" : "token/s").s,
        mfu_of(p));
    add_notes(p, out);
    for (int k = 0; k < t->stages; k++) {
        if (t->stages > 1)
            text_add(out, "  stage %-4d %.4g s: ", k, t->stage[k].end);
        else
            text_add(out, "  ");
        add_stage(&t->stage[k], out);
    }
    plan_print_costs(p, out);
}

/* ---- as a picture ---- */

Timeline plan_time_timeline(Arena *mem, const Plan *p) {
    const PipeSchedule *s = p->pipe->schedule;
    const StepTime *t = p->time;
    Timeline l = plan_timeline(mem, s);
    l.end = l.axis_end = t->seconds;
    l.axis = "seconds";
    for (int k = 0; k < t->stages; k++)
        for (int i = 0; i < t->stage[k].ntasks; i++) {
            const TaskTime *task = &t->stage[k].task[i];
            plan_timeline_add(&l, s, k, task->task, task->begin, task->end);
        }
    l.title = arena_printf(mem, "%s: %.4g s a step on %s, %.1f %% between tasks",
                           plan_schedule_title(mem, s), t->seconds, p->machine->name,
                           100 * timeline_idle(&l));
    return l;
}

/* ---- for programs ---- */

static void add_stage_json(const StageTime *t, Text *out) {
    text_add(out, "{\"seconds\": %.6g", t->end);
    for (int k = 0; k < WORK_KINDS; k++)
        text_add(out, ", \"%s\": %.6g", work_kind_name[k], t->kind[k]);
    text_add(out, ", \"hidden\": %.6g, \"waiting\": %.6g}", t->hidden, t->waiting);
}

void plan_json_time(const Plan *p, Text *out) {
    const StepTime *t = p->time;
    if (!t) return;
    char here[256];
    json_add_text(out, ",\n  ", "machine", p->machine->name);
    json_add_text(out, ",\n  ", "machine_host", p->machine->host);
    json_add_bool(out, ",\n  ", "of_other_host", other_host(p->machine, here));
    json_add_bool(out, ",\n  ", "of_fewer_ranks", fewer_ranks(p));
    text_add(out,
             ",\n  \"step_seconds\": %.6g,\n  \"mfu\": %.4g,\n  \"stage_seconds\": [",
             t->seconds, mfu_of(p));
    for (int k = 0; k < t->stages; k++) {
        text_add(out, "%s\n    ", k ? "," : "");
        add_stage_json(&t->stage[k], out);
    }
    text_add(out, "\n  ],\n  \"costs\": ");
    plan_json_costs(p, out);
}
