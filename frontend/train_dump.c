/* train_dump.c - --dump FILE.safetensors: numbers to compare with other frameworks, under
 * Hugging Face's names and shapes. A second program, which shares the weights, computes
 * logits and gradients of the first step's whole batch. */
#include "../runtime/safetensors.h"
#include "train.h"
#include "weights.h"
#include <errno.h>
#include <unistd.h>

static const char probe_passes[] =
    "simplify,autodiff,simplify,place,expand,simplify,epilogue,fuse,memplan";

static void check_writable(const Train *t) {
    const char *path = t->cfg->dump, *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    const char *dir = slash ? (n ? arena_strndup(t->mem, path, n) : "/") : ".";
    if (access(dir, W_OK) != 0)
        fail(EXIT_CONFIG, "dump: cannot write to the folder %s: %s", dir,
             strerror(errno));
}

void dump_plan(Train *t) {
    check_writable(t);
    if (strategy_ranks(&t->strategy) > 1)
        fail(EXIT_CONFIG,
             "dump: logits and gradients are written by runs of one rank; take "
             "the final weights of several ranks from a checkpoint (stator "
             "convert)");
    if (!t->has_spec && t->micro > 1)
        fail(EXIT_CONFIG, "dump: %s has a fixed batch; set micro_batch_num to 1",
             t->cfg->model_file);
    PassOptions o = pass_options_default();
    CompileOptions co = {.cpu = t->cfg->context_cpu,
                         .threads = (int)t->cfg->context_threads};
    Module *m = train_model_build(t, MODEL_TRAIN_LOGITS, t->data->batch);
    t->probe = program_make(t->mem, m, probe_passes, &o, &co);
}

static void *probe_slot(const Train *t, const char *role) {
    int i = program_arg_role(t->probe, role);
    return i < 0 ? NULL : t->probe->arg[i];
}

void dump_first_step(Train *t, const DataBatch *batch) {
    float *dloss = probe_slot(t, "dloss");
    int32_t *rng = probe_slot(t, "rng");
    feed_batch(feed_make(t, t->probe), batch, 0);
    /* With dropout these are not the numbers of any step, but those of one key. */
    if (rng) memset(rng, 0, 3 * sizeof *rng);
    *dloss = 1;
    program_run(t->probe);
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
static void add_gradients(Dump *d, const Program *p) {
    const Func *f = p->entry;
    int *nth = NEW_ARRAY(d->mem, int, (size_t)f->narg), count = 0;
    for (int i = 0; i < f->narg; i++)
        nth[i] = strcmp(arg_str(f, i, "role", ""), "param") ? -1 : count++;
    HfMap map = hf_map(d->mem, f);
    for (int i = 0; i < map.n; i++)
        add(d, "grad", &map.t[i], p->ret[f->nret - count + nth[map.t[i].arg]]);
}

static void add_logits(Dump *d, const Program *p) {
    const Func *f = p->entry;
    int nparam = 0;
    for (int i = 0; i < f->narg; i++)
        nparam += !strcmp(arg_str(f, i, "role", ""), "param");
    if (f->nret - nparam < 2) return; /* a model.file that only has a loss */
    const Type *ty = &f->ret[1]->ty;
    SafeTensor s = {
        .name = "logits", .dtype = ty->dt, .rank = ty->rank, .data = p->ret[1]};
    memcpy(s.dim, ty->dim, sizeof s.dim);
    PUSH(d->mem, d->t, d->n, d->cap, s);
}

void dump_write(Train *t) {
    Dump d = {.mem = arena_new()};
    if (t->step > t->start_step) {
        add_logits(&d, t->probe);
        add_gradients(&d, t->probe);
    }
    HfMap map = hf_map(d.mem, t->program->entry);
    for (int i = 0; i < map.n; i++)
        add(&d, "final", &map.t[i], t->program->arg[map.t[i].arg]);
    int error = safetensors_write(t->cfg->dump, d.t, d.n, NULL, NULL);
    arena_free(d.mem);
    if (error)
        fail(EXIT_CHECKPOINT, "cannot write %s: %s", t->cfg->dump, strerror(error));
    report_say(t, "wrote %s", t->cfg->dump);
}
