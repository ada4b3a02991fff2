/* calibrate_residual.c - how well what was measured predicts: steps of a small GPT-2, with data
 * parallelism over the ranks, beside their prediction. */
#include "base/rng.h"
#include "frontend/calibrate/calibrate.h"
#include "frontend/config/config.h"
#include "frontend/model/job.h"
#include "frontend/plan/plan.h"
#include "runtime/comm/comm.h"
#include <math.h>

enum { WARM_STEPS = 2, STEPS = 7 };

static const char *const type_name[] = {"float32", "bfloat16"};

static Config *configure(const Calibration *c, Arena *mem, int type) {
    const char *const words[] = {
        "--model.model_config.type=GPT2Config",
        "--model.model_config.vocab_size=4096",
        "--model.model_config.eos_token=0",
        "--model.model_config.num_heads=4",
        arena_printf(mem, "--model.model_config.num_layers=%d", c->quick ? 1 : 3),
        arena_printf(mem, "--model.model_config.hidden_size=%d", c->quick ? 64 : 256),
        arena_printf(mem, "--model.model_config.seq_length=%d", c->quick ? 32 : 256),
        arena_printf(mem, "--model.model_config.compute_dtype=%s", type_name[type]),
        arena_printf(mem, "--parallel_config.data_parallel=%d", c->ranks),
        arena_printf(mem, "--context.threads=%d", c->threads),
        "--runner_config.batch_size=4",
    };
    char *flag[ARRAY_LEN(words)];
    for (int i = 0; i < ARRAY_LEN(words); i++) flag[i] = arena_strdup(mem, words[i]);
    return config_load(mem, NULL, ARRAY_LEN(words), flag);
}

static double predict(const Calibration *c, Arena *mem, Config *cfg) {
    Plan p = plan_of_config(mem, cfg, c->ranks);
    plan_set_machine(mem, &p, c->m, c->threads);
    return p.time->seconds;
}

static void fill(const Program *p) {
    for (int i = 0; i < p->entry->narg; i++) {
        const Type *ty = &p->entry->arg[i]->ty;
        if (arg_role(p->entry, i) == ARG_state) continue; /* zero */
        for (int64_t k = 0, n = type_count(ty); k < n; k++) {
            double u = rng_uniform(1, (uint64_t)i, (uint64_t)k);
            if (ty->dt == DT_I32)
                ((int32_t *)p->arg[i])[k] = (int32_t)(1000 * u);
            else
                ((float *)p->arg[i])[k] = ty->rank ? (float)(0.04 * (u - 0.5)) : 1e-4F;
        }
    }
}

static Program *make_program(const Calibration *c, Arena *mem, Config *cfg) {
    Job *j = NEW(mem, Job);
    *j = (Job){.mem = mem, .cfg = cfg};
    j->strategy = strategy_of_config(cfg);
    job_choose_model(j);
    job_choose_shape(j);
    PassOptions o = strategy_pass_options(cfg);
    CompileOptions co = {.threads = c->threads};
    Module *m = job_module(j, &o);
    int size[MAX_AXES];
    for (int a = 0; a < m->mesh.naxes; a++) size[a] = m->mesh.axis[a].size;
    if (c->ranks > 1) comm_mesh(1, m->mesh.naxes, size);
    Program *p = program_make(mem, m, train_passes, &o, &co);
    program_allocate(p, NULL, 0);
    fill(p);
    return p;
}

static double measure(const Calibration *c, Arena *mem, Config *cfg) {
    Program *p = make_program(c, mem, cfg);
    double seconds[STEPS];
    for (int i = -WARM_STEPS; i < STEPS; i++) {
        if (c->ranks > 1) comm_barrier();
        double start = clock_seconds();
        program_run(p);
        if (i >= 0) seconds[i] = clock_seconds() - start;
    }
    program_free(p);
    sort_doubles(seconds, STEPS);
    return ranks_mean(seconds[STEPS / 2]);
}

/* What is measured in a disturbed minute is not what the next one has. */
static void say_changed(const Calibration *c, const double residual[]) {
    enum { FAR_PERCENT = 15 };
    bool far = false;
    for (int type = 0; type < ARRAY_LEN(type_name); type++)
        far |= fabs(100 * residual[type]) > FAR_PERCENT;
    if (far && !c->quick)
        calibrate_say(
            "WARNING: that is more than %d %% off: the machine was disturbed, or has "
            "changed, while it was measured; calibrate again",
            FAR_PERCENT);
}

void calibrate_residual(Calibration *c) {
    double residual[ARRAY_LEN(type_name)];
    comm_progress(comm_progress_that_pays());
    for (int type = 0; type < ARRAY_LEN(type_name); type++) {
        Arena *mem = arena_new();
        Config *cfg = configure(c, mem, type);
        double said = predict(c, mem, cfg), took = measure(c, mem, cfg);
        residual[type] = said / took - 1;
        calibrate_say("a step of a small model in %s: predicted %.4f s, measured %.4f s: "
                      "%+.1f %%",
                      type_name[type], said, took, 100 * residual[type]);
        arena_free(mem);
    }
    comm_progress(COMM_AT_ONCE);
    say_changed(c, residual);
    for (int i = 0; i < c->m->nranks; i++) {
        MachineRank *r = &c->m->rank[i];
        if (r->ranks == c->ranks && r->threads == c->threads)
            memcpy(r->residual, residual, sizeof residual);
    }
}
