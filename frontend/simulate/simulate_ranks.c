/* simulate_ranks.c - what ranks hold in a simulation, and a step of all of them. */
#include "frontend/model/weights.h"
#include "frontend/simulate/simulate.h"
#include "frontend/train/train.h"
#include <math.h>

/* ---- what they hold ---- */

/* Results of a step are made by the interpreter; here is where it leaves them. */
static InterpStep open_step(Arena *mem, const Func *f, int ranks) {
    InterpStep s = {.f = f,
                    .arg = NEW_ARRAY(mem, Tensor **, (size_t)ranks),
                    .ret = NEW_ARRAY(mem, Tensor **, (size_t)ranks)};
    for (int r = 0; r < ranks; r++) {
        s.arg[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->narg + 1);
        s.ret[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->nret + 1);
        for (int i = 0; i < f->narg; i++) s.arg[r][i] = tensor_new(mem, &f->arg[i]->ty);
    }
    return s;
}

static void first_weights(const SimulateRanks *r, int stage) {
    const Func *f = r->step[stage].f;
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_param) continue;
        Layout l = layout_of(r->mem, f, i);
        for (int k = 0; k < r->ranks; k++)
            weights_init(f, i, &l, stage * r->ranks + k, r->step[stage].arg[k][i]->data,
                         (uint64_t)r->job->cfg->seed);
    }
}

SimulateRanks simulate_ranks_new(Arena *mem, const SimulateJob *s, const Func **entry,
                                 int stages, int64_t zigzag, int64_t runs) {
    SimulateRanks r = {.mem = mem,
                       .job = &s->job,
                       .loss_scale = s->loss_scale,
                       .ranks = mesh_ranks(&entry[0]->mod->mesh),
                       .stages = stages,
                       .step = NEW_ARRAY(mem, InterpStep, (size_t)stages),
                       .zigzag = zigzag,
                       .runs = runs};
    for (int k = 0; k < stages; k++) {
        r.step[k] = open_step(mem, entry[k], r.ranks);
        first_weights(&r, k);
    }
    return r;
}

/* ---- what a step is given ---- */

static void feed(const SimulateRanks *r, int stage, int i, const DataBatch *b) {
    const Func *f = r->step[stage].f;
    FeedSource s;
    if (!feed_source(r->job, f, i, &s)) return;
    Arena *mem = arena_new();
    Layout l = layout_of(mem, f, i);
    const int32_t *from = feed_array(&s, b);
    for (int k = 0; k < r->ranks; k++)
        feed_part(&l, stage * r->ranks + k, r->zigzag, s.sample, from,
                  r->step[stage].arg[k][i]->data);
    arena_free(mem);
}

/* The scalars of step `step`, from 0 on, by role; false: the role is none of them. */
static bool scalar_of(const SimulateRanks *r, ArgRole role, int64_t step,
                      const SimulateData *d, double *v) {
    const Config *cfg = r->job->cfg;
    bool constant = cfg->optimizer_weight_decay_incr_style == WD_CONSTANT;
    switch (role) {
    case ARG_lr:
        *v = cfg->lr_schedule_learning_rate;
        return true;
    case ARG_weight_decay:
        *v = constant ? cfg->optimizer_weight_decay : cfg->optimizer_end_weight_decay;
        return true;
    case ARG_bias_correction1:
        *v = strategy_bias_correction(cfg, cfg->optimizer_beta1, step + 1);
        return true;
    case ARG_bias_correction2:
        *v = strategy_bias_correction(cfg, cfg->optimizer_beta2, step + 1);
        return true;
    case ARG_loss_scale:
        *v = r->loss_scale;
        return true;
    case ARG_counted:
        *v = (double)MAX(d->counted, 1) / (double)r->runs;
        return true;
    default:
        return false;
    }
}

static void feed_stage(const SimulateRanks *r, int stage, const SimulateData *d,
                       int64_t step) {
    const Func *f = r->step[stage].f;
    for (int i = 0; i < f->narg; i++) {
        double v;
        ArgRole role = arg_role(f, i);
        bool scalar = scalar_of(r, role, step, d, &v);
        feed(r, stage, i, &d->batch);
        for (int k = 0; k < r->ranks; k++) {
            Tensor *t = r->step[stage].arg[k][i];
            if (scalar) tensor_set(t, 0, v);
            if (role == ARG_rng)
                fill_rng((uint64_t)r->job->cfg->seed, step + 1, r->runs, t->data);
        }
    }
}

/* ---- the step ---- */

/* Results that overwrite arguments become them. */
static void take_results(const SimulateRanks *r, int stage) {
    const Func *f = r->step[stage].f;
    for (int k = 0; k < r->ranks; k++)
        for (int i = 0; i < f->nret; i++) {
            const Tensor *from = r->step[stage].ret[k][i];
            int a = f->alias[i];
            if (a < 0 || from == r->step[stage].arg[k][a]) continue;
            memcpy(r->step[stage].arg[k][a]->data, from->data,
                   (size_t)type_bytes(&from->ty));
        }
}

static bool same_number(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

static SimulateStep read_results(const SimulateRanks *r) {
    Tensor **first = r->step[0].ret[0];
    SimulateStep s = {
        .loss = tensor_get(first[0], 0), .norm = tensor_get(first[1], 0), .good = true};
    for (int n = r->stages * r->ranks - 1; n >= 0; n--) {
        Tensor **ret = r->step[n / r->ranks].ret[n % r->ranks];
        double loss = tensor_get(ret[0], 0), norm = tensor_get(ret[1], 0);
        s.good &= tensor_get(ret[2], 0) != 0;
        if (same_number(loss, s.loss) && same_number(norm, s.norm)) continue;
        s.other_rank = n;
        s.other_loss = loss;
        s.other_norm = norm;
    }
    return s;
}

SimulateStep simulate_step(SimulateRanks *r, const SimulateData *d, int64_t step) {
    Arena *mem = arena_new();
    for (int k = 0; k < r->stages; k++) feed_stage(r, k, d, step);
    const char *stuck = interp_run_steps(mem, r->step, r->stages, r->watch);
    if (stuck) fail(EXIT_CONFIG, "the ranks wait for each other for ever: %s", stuck);
    SimulateStep s = read_results(r);
    for (int k = 0; k < r->stages; k++) take_results(r, k);
    arena_free(mem);
    return s;
}
