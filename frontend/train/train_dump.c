/* train_dump.c - --dump FILE.safetensors: numbers to compare with other frameworks, under
 * Hugging Face's names and shapes. A second program, which shares the weights, computes
 * logits and gradients of the first step's whole batch. */
#include "frontend/model/weights.h"
#include "frontend/train/results.h"
#include "frontend/train/train.h"
#include "runtime/store/safetensors.h"
#include <errno.h>
#include <unistd.h>

static const char probe_passes[] =
    "simplify,autodiff,simplify,place,expand,simplify,epilogue,arrange,fuse,memplan";

static void check_writable(const Train *t) {
    const char *dir = path_folder(t->mem, t->job.cfg->dump);
    if (access(dir, W_OK) != 0)
        fail(EXIT_CONFIG, "dump: cannot write to the folder %s: %s", dir,
             strerror(errno));
}

/* Zeros, shaped like the gradients, which are the last results. */
static float **gradient_sums(Arena *mem, const Func *f) {
    int n = func_arg_count(f, ARG_param);
    float **sum = NEW_ARRAY(mem, float *, (size_t)n + 1);
    for (int i = 0; i < n; i++)
        sum[i] = NEW_ARRAY(mem, float, (size_t)type_count(&f->ret[f->nret - n + i]->ty));
    return sum;
}

/* In the file gradients are grad.NAME of their parameter, and its last elements final.NAME. */
static void check_names(Arena *mem, const Func *f) {
    HfMap map = hf_map(mem, f);
    for (int k = 1; k < f->nret; k++)
        for (int i = 0; i < map.n; i++) {
            const char *name = f->ret[k]->name, *dot = strchr(name, '.');
            if (!dot || strcmp(dot + 1, map.t[i].name)) continue;
            if (begins_with(name, "grad.") || begins_with(name, "final."))
                fail(EXIT_CONFIG,
                     "dump: the result %%%s of @%s has the name of what is written of "
                     "parameter %s: give it another one",
                     name, f->name, map.t[i].name);
        }
}

void dump_plan(Train *t) {
    check_writable(t);
    if (strategy_ranks(&t->job.strategy) > 1)
        fail(EXIT_CONFIG,
             "dump: logits and gradients are written by runs of one rank; take "
             "the final weights of several ranks from a checkpoint (%s)",
             t->job.has_spec ? "stator convert"
                             : "on one rank, when the run is done: stator train "
                               "CONFIG.yaml --resume RUN --output_dir OTHER --dump FILE");
    PassOptions o = pass_options_default();
    CompileOptions co = strategy_compile_options(t->job.cfg);
    int64_t samples = t->data->batch, batch = t->job.has_spec ? samples : t->job.batch;
    Module *m = job_build(&t->job, MODEL_TRAIN_LOGITS, batch);
    check_names(t->mem, model_entry(m));
    t->results = results_new(t->mem, model_entry(m), 1, batch, samples);
    t->probe = program_make(t->mem, m, probe_passes, &o, &co);
    if (batch < samples) t->gradient = gradient_sums(t->mem, t->probe->entry);
}

static void add_gradients_up(const Train *t) {
    const Func *f = t->probe->entry;
    int n = func_arg_count(f, ARG_param);
    for (int i = 0; i < n; i++) {
        const float *g = t->probe->ret[f->nret - n + i];
        int64_t count = type_count(&f->ret[f->nret - n + i]->ty);
        for (int64_t k = 0; k < count; k++) t->gradient[i][k] += g[k];
    }
}

/* The training step's argument that is parameter i of the probe; -1: the step has its layers in
 * several, as some of them are recomputed. */
static int whole_parameter(const Train *t, int i) {
    const Value *v = t->probe->entry->arg[i];
    int k = program_arg_named(t->program, v->name);
    const Func *f = t->program->entry;
    bool same =
        k >= 0 && arg_role(f, k) == ARG_param && type_same_shape(&f->arg[k]->ty, &v->ty);
    return same ? k : -1;
}

uint64_t dump_shared_bytes(const Train *t) {
    const Func *f = t->probe->entry;
    uint64_t bytes = 0;
    for (int i = 0; i < f->narg; i++)
        if (arg_role(f, i) == ARG_param && whole_parameter(t, i) >= 0)
            bytes += (uint64_t)type_bytes(&f->arg[i]->ty);
    return bytes;
}

static void join_parts(const Train *t, int i) {
    const Func *f = t->program->entry;
    const Value *v = t->probe->entry->arg[i];
    int64_t rows = 0, row = type_bytes(&v->ty) / v->ty.dim[0];
    for (int k = 0; k < f->narg; k++) {
        const Attr *first = attr_find(f->arg_attr[k], "first");
        if (!first || arg_role(f, k) != ARG_param) continue;
        if (strcmp(arg_str(f, k, "tensor", ""), v->name)) continue;
        memcpy((char *)t->probe->arg[i] + first->i * row, t->program->arg[k],
               (size_t)type_bytes(&f->arg[k]->ty));
        rows += f->arg[k]->ty.dim[0];
    }
    check(rows == v->ty.dim[0]);
}

/* Parameters that the probe does not share become what those of the step are. */
static void join_parameters(const Train *t) {
    const Func *f = t->probe->entry;
    for (int i = 0; i < f->narg; i++)
        if (arg_role(f, i) == ARG_param && whole_parameter(t, i) < 0) join_parts(t, i);
}

void dump_first_step(Train *t, const DataBatch *batch) {
    float *dloss = program_slot(t->probe, ARG_dloss),
          *counted = program_slot(t->probe, ARG_counted);
    int32_t *rng = program_slot(t->probe, ARG_rng);
    const Feed *feed = feed_make(t, t->probe);
    int64_t each = t->results->batch, runs = t->results->samples / each;
    if (rng) fill_rng((uint64_t)t->job.cfg->seed, t->start_step + 1, 1, rng);
    if (counted)
        *counted =
            (float)((double)MAX(counted_labels(&t->job, batch, 0, t->data->batch), 1) /
                    (double)runs);
    join_parameters(t);
    for (int64_t k = 0; k < runs; k++) {
        feed_batch(feed, batch, k * each);
        if (rng) rng[RNG_MICRO] = (int32_t)k;
        *dloss = 1 / (float)runs;
        program_run(t->probe);
        results_take(t->results, t->probe, each);
        if (t->gradient) add_gradients_up(t);
    }
}

typedef struct Dump {
    Arena *mem;
    SafeTensor *t;
    int n, cap;
} Dump;

static void add(Dump *d, const char *prefix, const HfTensor *hf, const float *parameter) {
    SafeTensor s = {.name = arena_printf(d->mem, "%s.%s", prefix, hf->name),
                    .dtype = DT_F32,
                    .rank = hf->rank,
                    .data = parameter + hf->first};
    memcpy(s.dim, hf->dim, sizeof s.dim);
    PUSH(d->mem, d->t, d->n, d->cap, s);
}

/* The gradient of each parameter is a result, in the order of the parameters, after loss
 * and further results. */
static void add_gradients(Dump *d, const Train *t) {
    const Func *f = t->probe->entry;
    int *nth = NEW_ARRAY(d->mem, int, (size_t)f->narg), count = 0;
    for (int i = 0; i < f->narg; i++) nth[i] = arg_role(f, i) != ARG_param ? -1 : count++;
    HfMap map = hf_map(d->mem, f);
    for (int i = 0; i < map.n; i++) {
        int k = nth[map.t[i].arg];
        const float *g =
            t->gradient ? t->gradient[k] : t->probe->ret[f->nret - count + k];
        add(d, "grad", &map.t[i], g);
    }
}

static void add_results(Dump *d, const Results *r) {
    for (int i = 0; i < r->n; i++)
        if (results_known(r, i)) PUSH(d->mem, d->t, d->n, d->cap, results_tensor(r, i));
}

void dump_write(Train *t) {
    Dump d = {.mem = arena_new()};
    if (t->step > t->start_step) {
        add_results(&d, t->results);
        add_gradients(&d, t);
    }
    join_parameters(t);
    HfMap map = hf_map(d.mem, t->probe->entry);
    for (int i = 0; i < map.n; i++)
        add(&d, "final", &map.t[i], t->probe->arg[map.t[i].arg]);
    int error = safetensors_write(t->job.cfg->dump, d.t, d.n, NULL, NULL);
    arena_free(d.mem);
    if (error)
        fail(EXIT_CHECKPOINT, "cannot write %s: %s", t->job.cfg->dump, strerror(error));
    report_say(t, "wrote %s", t->job.cfg->dump);
}
