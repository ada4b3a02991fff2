/* simulate_print.c - a simulation for people, and whether it passes. */
#include "frontend/simulate/simulate.h"
#include <math.h>

/* ---- does it pass? ---- */

static double apart(double a, double b) {
    double d = fabs(a - b) / MAX(fabs(b), 1e-30);
    return a == b ? 0 : d == d ? d : INFINITY;
}

static void largest(SimulateCompare *c, SimulateNumber n, double d) {
    c->difference[n] = MAX(c->difference[n], d);
}

/* With those of losses and norms, which are by step. */
static SimulateCompare compared(const Simulation *s) {
    SimulateCompare c = s->compare;
    for (int64_t k = 0; k < s->steps; k++) {
        largest(&c, SIMULATE_LOSS, apart(s->ranks[k].loss, s->one[k].loss));
        largest(&c, SIMULATE_NORM, apart(s->ranks[k].norm, s->one[k].norm));
    }
    return c;
}

/* Of the values of a user's module the type that rounds most; f32: none is narrow. */
static DType narrowest(Arena *mem, const UserModule *u) {
    const Module *m = model_parse(mem, u->path, u->text, u->bytes);
    DType narrow = DT_F32;
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++) {
                DType dt = op->out[i]->ty.dt;
                if (dtype_is_narrow(dt) && narrow != DT_BF16) narrow = dt;
            }
    return narrow;
}

static const double *tolerance_of(const Simulation *s) {
    const Job *j = &s->job->job;
    if (!j->has_spec) return simulate_tolerance(narrowest(s->mem, &j->module));
    return simulate_tolerance(strategy_pass_options(j->cfg).narrow);
}

static bool as_planned(const Simulation *s, const SimulateTraffic *r) {
    return r->operations == r->planned_operations * s->steps &&
           r->sent_bytes == r->planned_bytes * s->steps;
}

/* What keeps it from passing, a sentence; NULL: nothing. */
static const char *trouble(const Simulation *s) {
    const double *most = tolerance_of(s);
    SimulateCompare c = compared(s);
    for (int64_t k = 0; k < s->steps; k++) {
        const SimulateStep *a = &s->ranks[k], *b = &s->one[k];
        if (a->other_rank)
            return arena_printf(s->mem,
                                "in step %lld rank %d has loss %.8g and gradient norm "
                                "%.8g, rank 0 %.8g and %.8g",
                                (long long)k + 1, a->other_rank, a->other_loss,
                                a->other_norm, a->loss, a->norm);
        if (!a->good || !b->good)
            return arena_printf(
                s->mem,
                "step %lld is skipped, since its loss or its gradients are "
                "not finite: nothing can be compared",
                (long long)k + 1);
    }
    for (int n = 0; n < SIMULATE_NUMBERS; n++)
        if (!(c.difference[n] <= most[n]))
            return arena_printf(s->mem, "%s differ%s by %.2g%s%s, more than %g",
                                simulate_number_name[n], n < SIMULATE_WEIGHTS ? "s" : "",
                                c.difference[n], c.tensor[n] ? ", those of " : "",
                                c.tensor[n] ? c.tensor[n] : "", most[n]);
    for (int i = 0; i < s->traffic.n && !s->ir; i++) /* a text may do as it likes */
        if (!as_planned(s, &s->traffic.row[i]))
            return arena_printf(s->mem,
                                "ranks of stage %d send other messages than planned",
                                s->traffic.row[i].stage);
    return NULL;
}

bool simulate_passes(const Simulation *s) {
    return !trouble(s);
}

/* ---- what is shown ---- */

void simulate_print_ranks(Arena *mem, const Plan *p, int64_t steps, Text *out) {
    const Mesh *m = &p->m->mesh;
    int stages = plan_stage_count(p), n = 0;
    text_add(out, "simulated %d rank%s", p->ranks * stages,
             p->ranks * stages == 1 ? "" : "s");
    if (stages > 1) text_add(out, " = pp %d", stages), n++;
    for (int a = 0; a < m->naxes; a++)
        if (m->axis[a].size > 1)
            text_add(out, "%s%s %d", n++ ? " x " : " = ", m->axis[a].name,
                     m->axis[a].size);
    if (p->pipe) text_add(out, "; %s", plan_schedule_title(mem, p->pipe->schedule));
    text_add(out, "; %lld step%s\n", (long long)steps, steps == 1 ? "" : "s");
}

static void add_ranks(const Simulation *s, Text *out) {
    simulate_print_ranks(s->mem, s->shrunk, s->steps, out);
    if (s->ir) text_add(out, "program   %s\n", s->ir);
    text_add(out, "data      %s\n", s->data.what);
}

static void add_changes(const Simulation *s, Text *out) {
    const SimulateJob *j = s->job;
    if (!j->shrunk && s->plan->job->has_spec) text_add(out, "model     as it is\n");
    if (!s->plan->job->has_spec)
        text_add(out, "model     %s, as it is: its text has its sizes\n",
                 s->plan->job->module.path);
    for (int i = 0; i < j->nchanges; i++)
        text_add(out, "%-9s %-28s %s -> %s\n", i ? "" : "changed", j->change[i].what,
                 j->change[i].was, j->change[i].is);
}

static void add_steps(const Simulation *s, Text *out) {
    text_add(out, "\n%-6s%14s %14s %10s  %14s %14s %10s\n", "step", "loss", "of one rank",
             "difference", "gradient norm", "of one rank", "difference");
    for (int64_t k = 0; k < s->steps; k++) {
        const SimulateStep *a = &s->ranks[k], *b = &s->one[k];
        text_add(out, "%4lld  %14.8g %14.8g %10.2g  %14.8g %14.8g %10.2g\n",
                 (long long)k + 1, a->loss, b->loss, apart(a->loss, b->loss), a->norm,
                 b->norm, apart(a->norm, b->norm));
    }
}

static void add_differences(const Simulation *s, Text *out) {
    const double *most = tolerance_of(s);
    SimulateCompare c = compared(s);
    text_add(out, "\nlargest difference, and what rounding explains\n");
    for (int n = 0; n < SIMULATE_NUMBERS; n++)
        text_add(out, "  %-18s %9.2g %9.2g  %s\n", simulate_number_name[n],
                 c.difference[n], most[n], c.tensor[n] ? c.tensor[n] : "");
}

static bool same_rows(const SimulateTraffics *t, int a, int b) {
    for (int i = 0; i < t->n; i++) {
        const SimulateTraffic *r = &t->row[i];
        int other = r->stage == a ? b : r->stage == b ? a : -1;
        bool found = other < 0;
        for (int k = 0; k < t->n && !found; k++) {
            const SimulateTraffic *q = &t->row[k];
            found = q->stage == other && !strcmp(q->kind, r->kind) &&
                    !strcmp(q->axes, r->axes) && q->operations == r->operations &&
                    q->sent_bytes == r->sent_bytes;
        }
        if (!found) return false;
    }
    return true;
}

static const char *stage_name(Arena *mem, int stages, int from, int to) {
    if (stages == 1) return "every rank";
    return to > from ? arena_printf(mem, "stages %d to %d", from, to)
                     : arena_printf(mem, "stage %d", from);
}

/* Stages that send the same are shown once. */
static void add_traffic(const Simulation *s, Text *out) {
    const SimulateTraffics *t = &s->traffic;
    int stages = plan_stage_count(s->shrunk);
    text_add(out, "\nsent by a rank in a step: %27s %18s\n", "messages, planned",
             "bytes, planned");
    for (int k = 0, last; k < stages; k = last + 1) {
        for (last = k; last + 1 < stages && same_rows(t, k, last + 1);) last++;
        text_add(out, "  %s\n", stage_name(s->mem, stages, k, last));
        for (int i = 0; i < t->n; i++) {
            const SimulateTraffic *r = &t->row[i];
            if (r->stage != k) continue;
            text_add(out, "    %-16s %-12s %9lld %9lld %9lld %9lld%s\n", r->kind, r->axes,
                     (long long)(r->operations / s->steps),
                     (long long)r->planned_operations,
                     (long long)(r->sent_bytes / s->steps), (long long)r->planned_bytes,
                     as_planned(s, r) ? "" : "  DIFFERS");
        }
        if (!t->n) text_add(out, "    nothing\n");
    }
}

static const char *memory_text(Arena *mem, const Plan *p, int stage) {
    return arena_strdup(mem,
                        human((double)plan_stage(p, stage)->memory.total_bytes, "B").s);
}

static void add_memory(const Simulation *s, Text *out) {
    int stages = plan_stage_count(s->plan);
    text_add(out, "\nmemory of a rank, as planned %11s %10s\n", "configured",
             "simulated");
    for (int k = 0, last; k < stages; k = last + 1) {
        const char *there = memory_text(s->mem, s->plan, k);
        const char *here = memory_text(s->mem, s->shrunk, k);
        for (last = k; last + 1 < stages; last++)
            if (strcmp(there, memory_text(s->mem, s->plan, last + 1)) ||
                strcmp(here, memory_text(s->mem, s->shrunk, last + 1)))
                break;
        text_add(out, "  %-26s %11s %10s\n", stage_name(s->mem, stages, k, last), there,
                 here);
    }
}

void simulate_print(const Simulation *s, Text *out) {
    const char *why = trouble(s);
    add_ranks(s, out);
    add_changes(s, out);
    add_steps(s, out);
    add_differences(s, out);
    add_traffic(s, out);
    add_memory(s, out);
    text_add(out, "\n%s%s (%.2f s to plan, %.2f s to run)\n",
             why ? "DIFFERS: " : "passed: the ranks compute what one rank does",
             why ? why : "", s->plan_seconds, s->run_seconds);
}
