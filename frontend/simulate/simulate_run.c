/* simulate_run.c - the programs of the ranks and of the one rank, and the steps of both. */
#include "frontend/simulate/simulate.h"
#include "runtime/core/free_memory.h"
#include "runtime/core/rt.h"

/* ---- programs ---- */

/* The same passes as a run has, on the smaller model. */
static const Plan *plan_ranks(Arena *mem, const SimulateJob *s) {
    const Job *j = &s->job;
    PassOptions o = strategy_pass_options(j->cfg);
    Module *m = job_module(j, &o);
    simulate_tune(s, &o);
    Plan *p = NEW(mem, Plan);
    *p = plan_of_module(mem, j, m, &o);
    return p;
}

/* Whole tensors, in the order of their tokens, no parts and no limits: as few passes as there
 * can be. */
static const Func *program_of_one(Arena *mem, const SimulateJob *s) {
    const Job *j = &s->job;
    PassOptions o = strategy_pass_options(j->cfg);
    ModelShape shape = j->shape;
    simulate_tune(s, &o);
    o.micro_batches = j->micro;
    o.dump_dir = NULL;
    o.tile_bytes = 0;
    shape.zigzag = shape.vocab_rows = 0;
    if (shape.masked) shape.loss_groups = strategy_loss_groups(j->cfg, &j->strategy);
    Module *m = j->has_spec
                    ? model_build(mem, &j->spec, shape, MODEL_TRAIN)
                    : model_parse(mem, j->module.path, j->module.text, j->module.bytes);
    passes_run(m, "simplify,narrow,autodiff,simplify,round,train,hoist,simplify,place",
               &o);
    return module_stage(m, 0);
}

/* ---- memory ---- */

/* `need` with as much again for results and messages. */
static void check_memory(double need, const char *what) {
    FreeMemory left = memory_left("");
    if (left.bytes == UINT64_MAX || 2 * need <= (double)left.bytes) return;
    fail(EXIT_MEMORY,
         "%s takes about %s in this process; %s %s\n    hint: fewer replicas show the "
         "same "
         "(parallel_config.data_parallel), or leave --full out",
         what, human(2 * need, "B").s, left.of, human((double)left.bytes, "B").s);
}

static double planned_bytes(const Plan *p) {
    double bytes = 0;
    for (int k = 0; k < plan_stage_count(p); k++)
        bytes += (double)plan_stage(p, k)->memory.total_bytes * p->ranks;
    return bytes;
}

/* All values of all functions: more than live at a time. */
static double text_bytes(const Module *m) {
    double bytes = 0;
    for (const Func *f = m->first; f; f = f->next) {
        bytes += (double)f->frame_bytes;
        for (int i = 0; i < f->narg; i++) bytes += (double)type_bytes(&f->arg[i]->ty);
        for (const Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++)
                bytes += (double)type_bytes(&op->out[i]->ty);
    }
    return bytes * mesh_ranks(&m->mesh);
}

/* ---- a text in place of what the passes make ---- */

static _Noreturn void refuse_argument(const char *path, const Func *f, int i,
                                      const char *want) {
    fail(EXIT_CONFIG, "%s: argument %%%s of @%s must be %s", path, f->arg[i]->name,
         f->name, want);
}

/* What the simulation fills must have the sizes that it has. */
static void check_argument(const char *path, const SimulateJob *s, const Func *f, int i) {
    static const char *const init[] = {"normal", "zeros", "ones"};
    const Job *j = &s->job;
    Type ty = layout_of(f->mod->mem, f, i).whole;
    ArgRole role = arg_role(f, i);
    int64_t n = type_count(&ty), runs = j->micro * j->parts;
    bool is_i32 = ty.dt == DT_I32, known = role != ARG_param;
    for (int k = 0; k < ARRAY_LEN(init); k++)
        known |= !strcmp(arg_str(f, i, "init", ""), init[k]);
    if (!known) refuse_argument(path, f, i, "made by an init: normal, zeros or ones");
    if ((role == ARG_param || role == ARG_state) && ty.dt != DT_F32)
        refuse_argument(path, f, i, "f32");
    if (role == ARG_rng && (!is_i32 || n != runs * RNG_WORDS))
        refuse_argument(path, f, i, "an rng for each run of the model in a step");
    bool tokens = role == ARG_tokens || role == ARG_labels || role == ARG_positions ||
                  role == ARG_attends_from;
    if (tokens && !j->ncolumns && (!is_i32 || n != j->micro * j->batch * j->seq))
        refuse_argument(path, f, i, "i32 of all tokens of a step");
    for (int k = 0; k < j->ncolumns; k++)
        if (!strcmp(j->column[k].name, f->arg[i]->name) &&
            n != j->micro * j->batch * j->column[k].count)
            refuse_argument(path, f, i, "the samples of a step");
    if (role >= ARG_lr && role <= ARG_loss_scale && n != 1)
        refuse_argument(path, f, i, "one number");
}

static const Func *check_step(const char *path, const SimulateJob *s, const Module *m,
                              int stage) {
    Func *f = module_stage(m, stage);
    Type scalar = type_scalar(DT_F32);
    if (!f || f->role != ROLE_STEP)
        fail(EXIT_CONFIG, "%s has no step of stage %d", path, stage);
    bool results = f->nret >= 3;
    for (int i = 0; i < 3 && results; i++)
        results = type_same_shape(&f->ret[i]->ty, &scalar);
    if (!results)
        fail(EXIT_CONFIG,
             "%s: the first results of @%s must be the loss, the gradient norm and "
             "whether both are finite, f32[] each",
             path, f->name);
    for (int i = 0; i < f->narg; i++) check_argument(path, s, f, i);
    return f;
}

static const char *mesh_text(Arena *mem, const Mesh *m, int stages) {
    Text t = text_new(mem);
    text_add(&t, "%d stage%s", MAX(stages, 1), stages > 1 ? "s" : "");
    for (int a = 0; a < m->naxes; a++)
        if (m->axis[a].size > 1)
            text_add(&t, ", %s=%d", m->axis[a].name, m->axis[a].size);
    return t.s;
}

/* The text must be of the same ranks. Its messages are proved to meet before it runs. */
static const Func **read_ir(Arena *mem, const char *path, const SimulateJob *s,
                            const Plan *p, int stages) {
    size_t n;
    PassOptions o = pass_options_default();
    char *text = file_read(mem, path, MODEL_MAX_BYTES * 16, &n, EXIT_CONFIG);
    Module *m = module_parse(mem, path, text, n);
    module_verify(m, path, text);
    if (m->level < LEVEL_LOCAL)
        fail(EXIT_CONFIG,
             "%s is at level %s; what ranks run is at level local, fused or planned: "
             "--dump_ir DIR writes such texts",
             path, level_name[m->level]);
    const char *has = mesh_text(mem, &m->mesh, m->stages);
    const char *want = mesh_text(mem, &p->m->mesh, stages);
    if (strcmp(has, want))
        fail(EXIT_CONFIG, "%s is for %s, the configuration has %s", path, has, want);
    check_memory(text_bytes(m), path);
    passes_run(m, "meet", &o);
    const Func **f = NEW_ARRAY(mem, const Func *, (size_t)stages);
    for (int k = 0; k < stages; k++) f[k] = check_step(path, s, m, k);
    return f;
}

/* ---- the steps ---- */

static void run_steps(Simulation *s, SimulateRanks *ranks, SimulateRanks *one) {
    s->ranks = NEW_ARRAY(s->mem, SimulateStep, (size_t)s->steps);
    s->one = NEW_ARRAY(s->mem, SimulateStep, (size_t)s->steps);
    float **before = simulate_keep_weights(one);
    for (int64_t k = 0; k < s->steps; k++) {
        simulate_data_next(&s->data, k);
        s->ranks[k] = simulate_step(ranks, &s->data, k);
        s->one[k] = simulate_step(one, &s->data, k);
    }
    simulate_compare(&s->compare, ranks, one, before);
}

void simulate_run(Simulation *s) {
    const Job *j = &s->job->job;
    double start = clock_seconds();
    s->shrunk = plan_ranks(s->mem, s->job);
    check_memory(planned_bytes(s->shrunk), "what all ranks have");
    int stages = plan_stage_count(s->shrunk);
    const Func **entry = plan_entries(s->mem, s->shrunk);
    if (s->ir) entry = read_ir(s->mem, s->ir, s->job, s->shrunk, stages);
    const Func *alone = program_of_one(s->mem, s->job);
    rt_set_threads(1); /* the interpreter has one; more would only wait for it */
    SimulateRanks ranks = simulate_ranks_new(s->mem, s->job, entry, stages,
                                             j->shape.zigzag, j->micro * j->parts);
    SimulateRanks one = simulate_ranks_new(s->mem, s->job, &alone, 1, 0, j->micro);
    s->traffic.mem = s->mem;
    InterpWatch watch = simulate_traffic_watch(&s->traffic);
    ranks.watch = &watch;
    simulate_traffic_plan(&s->traffic, s->shrunk);
    s->plan_seconds = clock_seconds() - start;
    start = clock_seconds();
    run_steps(s, &ranks, &one);
    s->run_seconds = clock_seconds() - start;
}
