/* seconds_run.c - the steps of all ranks, some at a time on the threads of this process. */
#include "frontend/simulate/seconds.h"
#include "runtime/core/rt.h"
#include <math.h>

static int axes_sets(const Seconds *s) {
    return 1 << s->program.parts.mesh->naxes;
}

RankPlace seconds_place(const Seconds *s, int rank) {
    RankPlace p = {.host = rank / s->host_ranks};
    mesh_place(s->program.parts.mesh, s->program.parts.stages, rank, &p.stage,
               &p.of_stage);
    return p;
}

static void refuse_shared_cores(const Seconds *s) {
    const Machine *m = s->machine;
    int used = s->host_ranks * s->plan->threads;
    if (m->cores > 0 && used > m->cores)
        fail(
            EXIT_CONFIG,
            "machine %s: %d ranks of %d thread%s share the %d core%s of a host, and "
            "what a slow one costs its neighbours there is not simulated\n    hint: "
            "%sa machine whose host_ranks have cores of their own, or stator plan, which "
            "knows of shared cores",
            m->name, s->host_ranks, s->plan->threads, s->plan->threads == 1 ? "" : "s",
            m->cores, m->cores == 1 ? "" : "s",
            s->host_ranks <= m->cores ? "fewer context.threads, " : "");
}

void seconds_open(Seconds *s, Plan *p, const Machine *m) {
    int stages = plan_stage_count(p);
    plan_set_machine(s->mem, p, m, 0);
    s->plan = p;
    s->machine = m;
    s->all = p->ranks * stages;
    s->host_ranks = machine_host_ranks(m, s->all);
    s->hosts = (int)divided_up(s->all, s->host_ranks);
    refuse_shared_cores(s);
    s->program = rank_program(s->mem, m, plan_entries(s->mem, p), stages, p->threads);
}

/* ---- steps ---- */

typedef struct Batch {
    const RankRun *run;
    int64_t first;
    RankStep *step;
    Arena **mem;
} Batch;

static void run_part(void *context, int64_t begin, int64_t end, int64_t thread) {
    Batch *b = context;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        b->step[i] = rank_run_step(b->mem[i], b->run, b->first + i, RANK_SHOW_NONE);
}

static void add_sums(const Seconds *s, RankSums *to, const RankSums *from, double times) {
    to->compute += times * from->compute;
    to->messages += times * from->messages;
    to->stages += times * from->stages;
    to->end += times * from->end;
    for (int a = 0; a < axes_sets(s); a++) to->wait[a] += times * from->wait[a];
}

/* Added up in the order of the steps, whatever the threads. */
static void add_step(Seconds *s, int64_t number, const RankStep *step) {
    double share = 1.0 / (double)s->steps;
    s->step[number] = step->seconds;
    add_sums(s, &s->sums, &step->sums, share);
    for (int k = 0; k < s->all + s->noise.nlinks; k++)
        s->blame[k] += share * step->blame[k];
}

static void run_steps(Seconds *s, const RankRun *run) {
    int most = rt_threads();
    Batch b = {.run = run,
               .step = NEW_ARRAY(s->mem, RankStep, (size_t)most),
               .mem = NEW_ARRAY(s->mem, Arena *, (size_t)most)};
    for (; b.first < s->steps; b.first += most) {
        int64_t n = MIN(most, s->steps - b.first);
        for (int64_t i = 0; i < n; i++) b.mem[i] = arena_new();
        rt_parallel(n, run_part, &b);
        for (int64_t i = 0; i < n; i++) {
            add_step(s, b.first + i, &b.step[i]);
            arena_free(b.mem[i]);
        }
    }
}

/* ---- what came out ---- */

double seconds_quantile(const Seconds *s, double q) {
    int64_t at = (int64_t)ceil(q * (double)s->steps) - 1;
    return s->step[MIN(MAX(at, 0), s->steps - 1)];
}

static void find_culprits(Seconds *s) {
    for (int k = 0; k < s->all + s->noise.nlinks; k++) {
        SecondsCulprit c = {k, s->blame[k]};
        for (int i = 0; i < SECONDS_WAITED_FOR; i++) {
            if (!(c.seconds > s->culprit[i].seconds)) continue;
            SecondsCulprit other = s->culprit[i];
            s->culprit[i] = c;
            c = other;
        }
    }
}

static void find_median(Seconds *s, const double *as_run) {
    double median = seconds_quantile(s, 0.5);
    while (s->median_step + 1 < s->steps && as_run[s->median_step] != median)
        s->median_step++;
}

void seconds_run(Seconds *s) {
    static const RankNoise none = {0};
    double start = clock_seconds();
    size_t sets = (size_t)axes_sets(s), steps = (size_t)s->steps;
    rt_set_threads(0);
    s->ideal = rank_run_step(s->mem, rank_run_new(s->mem, &s->program, &none), 0,
                             RANK_SHOW_NONE);
    s->step = NEW_ARRAY(s->mem, double, steps);
    s->sums.wait = NEW_ARRAY(s->mem, double, sets);
    s->blame = NEW_ARRAY(s->mem, double, (size_t)s->all + (size_t)s->noise.nlinks);
    run_steps(s, rank_run_new(s->mem, &s->program, &s->noise));
    double *as_run = NEW_ARRAY(s->mem, double, steps);
    memcpy(as_run, s->step, steps * sizeof *as_run);
    sort_doubles(s->step, steps);
    find_median(s, as_run);
    find_culprits(s);
    s->run_seconds = clock_seconds() - start;
}

/* ---- as a picture ---- */

int seconds_shown(const Seconds *s) {
    const SecondsCulprit *most = &s->culprit[0];
    int rank = s->noise.nslow ? s->noise.slow[0].first : 0;
    if (most->seconds > 0 && most->who < s->all) rank = most->who;
    return seconds_place(s, rank).of_stage;
}

RankStep seconds_step(const Seconds *s, RankShow show) {
    return rank_run_step(s->mem, rank_run_new(s->mem, &s->program, &s->noise),
                         s->median_step, show);
}

Timeline seconds_timeline(const Seconds *s, const RankStep *step, int shown) {
    int stages = s->program.parts.stages;
    StepTime time = {step->seconds, step->shown, stages};
    Plan p = *s->plan;
    p.time = &time;
    Timeline l = plan_time_timeline(s->mem, &p);
    for (int k = 0; k < stages; k++)
        l.row[k].name = arena_printf(
            s->mem, "rank %d", mesh_rank_at(s->program.parts.mesh, stages, k, shown));
    return l;
}
