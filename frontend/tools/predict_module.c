/* predict_module.c - see predict_module.h. */
#include "frontend/tools/predict_module.h"
#include "base/json.h"
#include "frontend/model/job.h"
#include "frontend/train/program_tensors.h"
#include "frontend/train/results.h"
#include "ir/placement.h"
#include "runtime/data/data.h"
#include <errno.h>

typedef struct Forward {
    Func *model; /* level global, without its loss */
    Program *program;
    Data *data;
    DataBatch batch;
    Results *results;
} Forward;

/* Takes the loss away, and with it what only the loss reads. */
static Func *without_loss(Module *m, const char *path) {
    Func *f = model_entry(m);
    if (f->nret < 2)
        fail(EXIT_CONFIG,
             "%s: @%s returns its loss alone; return what is to be predicted after it",
             path, f->name);
    f->nret--;
    memmove(f->ret, f->ret + 1, (size_t)f->nret * sizeof *f->ret);
    memmove(f->alias, f->alias + 1, (size_t)f->nret * sizeof *f->alias);
    PassOptions o = pass_options_default();
    passes_run(m, "simplify", &o);
    int counted = func_arg_role(f, ARG_counted);
    if (counted >= 0 && value_uses(f, f->arg[counted]))
        fail(
            EXIT_CONFIG,
            "%s: a result of @%s besides the loss reads %%%s of role counted, which only "
            "training has",
            path, f->name, f->arg[counted]->name);
    return f;
}

/* By which results are known: simplify may give them the value of another name. */
static const char **result_names(Arena *mem, const Func *f) {
    const char **name = NEW_ARRAY(mem, const char *, (size_t)f->nret);
    for (int i = 1; i < f->nret; i++) name[i - 1] = f->ret[i]->name;
    return name;
}

static int64_t batch_of(const Func *f, const DataColumn *c) {
    for (int i = 0; i < f->narg; i++)
        if (!strcmp(f->arg[i]->name, c->name)) return f->arg[i]->ty.dim[0];
    die("no argument %s", c->name);
}

static Data *open_samples(Arena *mem, const Func *f, const char *path) {
    DataSpec spec = {.type = "Tensors", .path = path, .seq = 1};
    spec.column = job_columns(mem, f, &spec.ncolumns);
    if (!spec.ncolumns)
        fail(EXIT_CONFIG, "@%s: no result besides the loss reads a sample", f->name);
    spec.batch = batch_of(f, &spec.column[0]);
    return data_open(mem, &spec);
}

static void feed(const Forward *f) {
    for (int k = 0; k < f->data->ncolumns; k++) {
        const DataColumn *c = &f->data->column[k];
        int i = program_arg_named(f->program, c->name);
        check(i >= 0);
        memcpy(f->program->arg[i], f->batch.column[k],
               (size_t)(f->data->batch * c->count) * sizeof(float));
    }
}

/* A short last batch is filled up with other samples, which must not change what is told. */
static void check_mixing(const Results *r) {
    for (int i = 0; i < r->n; i++) {
        const Result *x = &r->result[i];
        if (!x->per_sample || !x->mixes || r->samples % r->batch == 0) continue;
        fail_op(
            x->mixes,
            "by this op a sample's %%%s depends on others of its batch, or may, and the "
            "last batch of %lld has %lld of %lld samples, so others would have to fill "
            "it up: leave these out, or make the batch of the module a divisor of the "
            "samples",
            x->name, (long long)r->batch, (long long)(r->samples % r->batch),
            (long long)r->samples);
    }
}

/* The last batch is filled up with the first samples; their results are not taken. */
static void run_all(const Forward *f) {
    const Data *d = f->data;
    for (int64_t k = 0; k * d->batch < d->samples; k++) {
        data_batch(d, k, &f->batch);
        feed(f);
        program_run(f->program);
        results_take(f->results, f->program, MIN(d->batch, d->samples - k * d->batch));
    }
}

static void add_value(Text *t, const Result *r, int64_t sample) {
    const char *data = r->data;
    int64_t row = type_bytes(&r->ty) / r->ty.dim[0];
    text_add(t, ", ");
    json_write_string(t, r->name);
    text_add(t, ": ");
    numbers_add_json(t, r->ty.dt == DT_F32, r->ty.rank - 1, r->ty.dim + 1,
                     data + sample * row);
}

/* On stdout there are lines of samples alone. */
static void say_unprinted(const Results *r) {
    for (int i = 0; i < r->n; i++)
        if (!r->result[i].per_sample)
            fprintf(stderr,
                    "note: %%%s is no result of each sample and is not printed: --out "
                    "FILE.safetensors takes it where it is a mean over the samples\n",
                    r->result[i].name);
}

static void print_results(const Results *r) {
    say_unprinted(r);
    for (int64_t s = 0; s < r->samples; s++) {
        Arena *mem = arena_new();
        Text line = text_new(mem);
        text_add(&line, "{\"sample\": %lld", (long long)s);
        for (int i = 0; i < r->n; i++)
            if (r->result[i].per_sample) add_value(&line, &r->result[i], s);
        text_add(&line, "}\n");
        fwrite(line.s, 1, line.n, stdout);
        arena_free(mem);
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(EXIT_DATA, "cannot write the results to stdout: %s", strerror(errno));
}

static void write_results(Arena *mem, const Results *r, const char *out) {
    SafeTensor *t = NEW_ARRAY(mem, SafeTensor, (size_t)r->n);
    int n = 0;
    for (int i = 0; i < r->n; i++)
        if (results_known(r, i)) t[n++] = results_tensor(r, i);
    int error = safetensors_write(out, t, n, NULL, NULL);
    if (error) fail(EXIT_DATA, "cannot write %s: %s", out, strerror(error));
}

void predict_module(Arena *mem, const Source *s, const Config *cfg, const char *data,
                    const char *out) {
    Forward f = {0};
    const char *name = source_module_name(mem, s);
    Module *m = model_parse(mem, name, s->module, strlen(s->module));
    const char **results = result_names(mem, model_entry(m));
    f.model = without_loss(m, name);
    f.data = open_samples(mem, f.model, data);
    f.batch = data_batch_new(mem, f.data);
    f.results = results_new(mem, f.model, 0, f.data->batch, f.data->samples);
    for (int i = 0; i < f.results->n; i++) f.results->result[i].name = results[i];
    check_mixing(f.results);
    PassOptions o = pass_options_default();
    if (cfg->dump_ir[0]) o.dump_dir = cfg->dump_ir;
    CompileOptions co = strategy_compile_options(cfg);
    co.memory_limit = config_memory_limit(cfg);
    co.memory_hint = "a module (model.file) of a smaller batch";
    f.program =
        program_make(mem, m, arena_printf(mem, "evaluate,%s", predict_passes), &o, &co);
    program_allocate(f.program, NULL, (uint64_t)cfg->context_max_device_memory);
    const char *from = source_load(mem, s, f.program->entry, program_weight, f.program);
    say_aside("model %s: %lld samples of %s", from, (long long)f.data->samples, data);
    run_all(&f);
    if (out)
        write_results(mem, f.results, out);
    else
        print_results(f.results);
    program_free(f.program);
    data_close(f.data);
}
