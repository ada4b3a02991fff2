/* plan_config.c - from a configuration to its planned module, as `stator train` makes it
 * but without data and without code. */
#include "codegen/planned.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/plan/plan.h"
#include "frontend/plan/recompute_auto.h"
#include "runtime/core/rt.h"

/* ---- how many ranks ---- */

static void choose_ranks(Config *cfg, int64_t ranks) {
    static const char key[] = "parallel_config.data_parallel";
    int64_t others = config_replica_ranks(cfg);
    if (!ranks || config_given(cfg, key)) return;
    if (ranks % others)
        config_refuse(cfg, strategy_degree_given(cfg), NULL, NULL,
                      "%lld ranks are no multiple of model_parallel x context_parallel x "
                      "pipeline_stage, %lld",
                      (long long)ranks, (long long)others);
    strategy_replicate(cfg, ranks, "ranks are asked for");
}

static void compare_ranks(const Config *cfg, const Strategy *s, int64_t ranks) {
    int64_t have = strategy_ranks(s);
    if (!ranks || ranks == have) return;
    config_refuse(cfg, strategy_degree_given(cfg), NULL,
                  "leave data_parallel out, or -n with the product",
                  "data_parallel x model_parallel x context_parallel x pipeline_stage is "
                  "%lld x %lld "
                  "x %lld x %lld = %lld ranks, but -n says %lld",
                  (long long)s->data, (long long)s->tensor, (long long)s->context,
                  (long long)s->stages, (long long)have, (long long)ranks);
}

/* ---- the module ---- */

/* Values that the strategy changes are lines of the plan. */
static void note_changes(const Job *j) {
    if (!j->has_spec || j->shape.vocab_rows <= j->spec.vocab) return;
    config_note(
        j->cfg, "parallel_config.vocab_emb_dp",
        "the vocabulary of %lld is padded to %lld rows, so that model_parallel %lld "
        "divides it",
        (long long)j->spec.vocab, (long long)j->shape.vocab_rows,
        (long long)j->strategy.tensor);
}

/* An entry of parallel.shard may name axes of one rank, which split nothing. */
static void note_single_axes(Config *cfg, const Module *m, const Annotation *a) {
    for (const char *p = a->placement; *p; p += strcspn(p, ","), p += *p == ',') {
        Axes axes = 0;
        mesh_axes_parse(&m->mesh, arena_strndup(m->mem, p, strcspn(p, ",")), &axes);
        for (int i = 0; i < m->mesh.naxes; i++) {
            if (!(axes >> i & 1) || m->mesh.axis[i].size > 1) continue;
            config_note(cfg, "parallel.shard",
                        "parallel.shard '%s=%s': %s has no effect there: it has one rank",
                        a->pattern, a->placement, m->mesh.axis[i].name);
        }
    }
}

/* How many values `by` takes from the annotations that one key makes. */
static int replaced_by(const Module *m, const PassOptions *o, const Annotation *by,
                       const char *key) {
    int n = 0;
    for (int i = 0; i < o->nannotations; i++)
        if (!strcmp(o->annotation[i].source, key))
            n += seed_replaces(m, by, &o->annotation[i]);
    return n;
}

static bool is_first_of_key(const PassOptions *o, int nth) {
    for (int i = 0; i < nth; i++)
        if (!strcmp(o->annotation[i].source, o->annotation[nth].source)) return false;
    return true;
}

/* Entries of parallel.shard that place what other keys would place otherwise, or not at
 * all. */
static void note_entries(Config *cfg, const Module *m, const PassOptions *o) {
    for (int u = 0; u < o->nannotations; u++) {
        const Annotation *by = &o->annotation[u];
        if (by->derived) continue;
        note_single_axes(cfg, m, by);
        for (int i = 0; i < o->nannotations; i++) {
            const char *key = o->annotation[i].source;
            int n = is_first_of_key(o, i) ? replaced_by(m, o, by, key) : 0;
            if (n)
                config_note(cfg, "parallel.shard",
                            "parallel.shard '%s=%s' replaces the placement that %s gives "
                            "%d %s",
                            by->pattern, by->placement, key, n,
                            n == 1 ? "value" : "values");
        }
    }
}

/* The module under its strategy, and what the passes are to do. */
static Module *make_module(Job *j, PassOptions *o) {
    *o = strategy_pass_options(j->cfg);
    Module *m = job_module(j, o);
    note_entries(j->cfg, m, o);
    strategy_note_zero(j->cfg, m, o);
    return m;
}

static Plan plan_one(Arena *mem, const Job *j, Module *m, const PassOptions *o) {
    CompileOptions co = plan_compile_options(j);
    return plan_read(mem, module_plan(mem, m, train_passes, o, &co), j);
}

static Plan plan_stages(Arena *mem, const Job *j, Module *m, const PassOptions *all) {
    PlanPipe *pipe = NEW(mem, PlanPipe);
    PassOptions o = *all;
    CompileOptions co = plan_compile_options(j);
    const char *dump_dir = o.dump_dir;
    module_plan_common(mem, m, &o);
    int stages = o.schedule->stages;
    char *hash = NEW_ARRAY(mem, char, (size_t)stages *HASH_HEX_BYTES);
    *pipe = (PlanPipe){.schedule = o.schedule,
                       .layers = o.chunk_layers,
                       .stage = NEW_ARRAY(mem, Plan, (size_t)stages)};
    pipe->flops = arena_alloc(mem, (size_t)o.schedule->chunks * sizeof *pipe->flops);
    for (o.stage = 0; o.stage < stages; o.stage++) {
        /* those between are programs of one kind, and no code is made of them */
        o.unverified = all->unverified || (o.stage > 0 && o.stage < stages - 1);
        if (dump_dir) o.dump_dir = arena_printf(mem, "%s/stage-%d", dump_dir, o.stage);
        Plan *p = &pipe->stage[o.stage];
        *p = plan_read(mem, module_plan_stage(mem, m, &o, &co), j);
        plan_read_task_flops(mem, p->m, pipe->flops);
        memcpy(hash + HASH_HEX_BYTES * o.stage, p->hash, HASH_HEX_BYTES);
        p->pipe = pipe;
    }
    plan_fill_task_flops(pipe->schedule, pipe->flops);
    plan_join_hashes(hash, stages, pipe->hash);
    if (!j->has_spec) pipe->stage[0].parameters = plan_stage_parameters(pipe);
    return pipe->stage[0];
}

Plan plan_of_module(Arena *mem, const Job *j, Module *m, const PassOptions *o) {
    return j->strategy.stages > 1 ? plan_stages(mem, j, m, o) : plan_one(mem, j, m, o);
}

static void choose_buckets(Job *j) {
    j->strategy.bucket_bytes = strategy_bucket_bytes(&j->strategy, job_spec(j));
    j->strategy.gradient_groups = 0;
}

/* Of a rank of the machine, or where none is given of this one, as launch would start it. */
static int threads_of(const Config *cfg, int64_t ranks) {
    const Machine *m = config_machine(cfg);
    if (m) return plan_threads(cfg, m, (int)ranks);
    int own = (int)cfg->context_threads;
    rt_count_threads(own ? own : rt_threads_of_ranks(ranks));
    return rt_threads();
}

static Job *plan_job(Arena *mem, Config *cfg, int64_t ranks) {
    Job *j = NEW(mem, Job);
    *j = (Job){.mem = mem, .plans = true, .cfg = cfg, .choices = plan_choices(mem, cfg)};
    choose_ranks(cfg, ranks);
    j->strategy = strategy_of_config(cfg);
    compare_ranks(cfg, &j->strategy, ranks);
    j->threads = threads_of(cfg, strategy_ranks(&j->strategy));
    job_choose_model(j);
    job_choose_shape(j);
    note_changes(j);
    choose_buckets(j);
    return j;
}

/* Of a Job of which all is chosen. */
static Plan plan_chosen(Arena *mem, Job *j) {
    PassOptions o;
    job_count_remade(j);
    Module *m = make_module(j, &o);
    Plan p = plan_of_module(mem, j, m, &o);
    strategy_note_messages(j->cfg, &j->strategy, p.m, &o);
    plan_count_needed(mem, &p);
    return p;
}

Plan plan_of_config(Arena *mem, Config *cfg, int64_t ranks) {
    Job *j = plan_job(mem, cfg, ranks);
    PassOptions o;
    job_count_flops(j, job_build_step(j, &o));
    recompute_choose(j);
    return plan_chosen(mem, j);
}

Plan plan_of_job(Arena *mem, const Job *job) {
    Job *j = NEW(mem, Job);
    int notes = job->cfg->n_notes;
    *j = *job;
    j->mem = mem;
    j->plans = true;
    j->choices = plan_choices(mem, j->cfg);
    choose_buckets(j);
    Plan p = plan_chosen(mem, j);
    job->cfg->n_notes = notes;
    return p;
}

/* ---- what it costs alone ---- */

/* The nth stage to be planned: the first and the last take most, one for the micro-batches that
 * it keeps and one for the loss. */
static int nth_stage(int stages, int nth) {
    return nth == 0 ? 0 : nth == 1 ? stages - 1 : nth - 1;
}

PlanCost plan_cost(Arena *mem, Config *cfg, int64_t ranks, const Machine *m, int threads,
                   double room_bytes) {
    Job *j = plan_job(mem, cfg, ranks);
    PlanCost cost = {.ahead_bytes = job_ahead_bytes(j)};
    PassOptions o;
    recompute_choose(j);
    Module *step = make_module(j, &o);
    o.unverified = true;
    CompileOptions co = plan_compile_options(j);
    int stages = (int)MAX(j->strategy.stages, 1);
    module_plan_common(mem, step, &o);
    const Func **entry = NEW_ARRAY(mem, const Func *, (size_t)stages);
    for (int i = 0; i < stages; i++) {
        o.stage = nth_stage(stages, i);
        entry[o.stage] = module_plan_stage(mem, step, &o, &co);
        Plan p = plan_count(mem, entry[o.stage], j);
        cost.bytes = MAX(cost.bytes, p.memory.total_bytes);
        cost.sent_bytes = MAX(cost.sent_bytes, plan_sent_bytes(&p));
        if ((double)(cost.bytes + cost.ahead_bytes) > room_bytes) return cost;
    }
    cost.seconds = step_seconds(mem, m, entry, stages, threads).seconds;
    return cost;
}
