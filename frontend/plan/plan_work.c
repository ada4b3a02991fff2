/* plan_work.c - what the mathematics of a step needs, beside what its program does. */
#include "frontend/plan/plan.h"

static Plan *stage_of(Plan *p, int k) {
    return p->pipe ? &p->pipe->stage[k] : p;
}

/* The module is made again, since nothing that the plan has of it is whole any more. */
static void count_products(Arena *mem, const Job *j, Work *work) {
    Arena *own = arena_new();
    Job copy = *j;
    copy.mem = own;
    PassOptions o = strategy_pass_options(j->cfg);
    Module *m = job_module(&copy, &o);
    work_add_needed(mem, m, &o, work);
    arena_free(own);
}

void plan_count_needed(Arena *mem, Plan *p) {
    Work *work = NEW_ARRAY(mem, Work, (size_t)p->job->strategy.stages);
    count_products(mem, p->job, work);
    for (int k = 0; k < plan_stage_count(p); k++) {
        Plan *stage = stage_of(p, k);
        stage->needed = &work[stage->stage];
        work_add_update(mem, stage->entry, &work[stage->stage]);
    }
    p->needed = &work[p->stage];
}

static void need_rate(double rate, const char *option, const char *of) {
    if (rate > 0) return;
    fail(EXIT_CONFIG,
         "the bound of a step is not known without the rate of %s\n    hint: %s "
         "RATE, or --measure, which measures this machine",
         of, option);
}

void plan_set_rates(Plan *p, WorkRates rates) {
    check(p->needed);
    for (int k = 0; k < plan_stage_count(p); k++) {
        Plan *stage = stage_of(p, k);
        need_rate(rates.f32_flops, "--peak_gflops", "f32");
        need_rate(rates.bytes, "--bandwidth_gbytes", "memory");
        if (work_asks_bf16(stage->needed))
            need_rate(rates.bf16_flops, "--peak_bf16_gflops", "products of bf16");
        stage->rates = rates;
    }
    p->rates = rates;
}

double plan_bound_seconds(const Plan *p) {
    return p->rates.bytes > 0 ? work_bound_total(p->needed, &p->rates) : 0;
}
