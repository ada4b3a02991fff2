/* pipe_trained.h - for tests of pipelines of models written as text: trained under stages as
 * under one, with all stages simulated by the interpreter. */
#ifndef STATOR_TEST_PIPE_TRAINED_H
#define STATOR_TEST_PIPE_TRAINED_H
#include "ir/layout.h"
#include "ir/sample.h"
#include "passes/passes.h"
#include "passes/pipe/schedule.h"
#include "pipe_order.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

static const char to_local[] =
    "simplify,cut,autodiff,simplify,halve,train,simplify,place,simplify,keep,sink,"
    "simplify,pipeline,meet,simplify";
static const char to_memory[] =
    "bucket,expand,simplify,epilogue,arrange,fuse,overlap,memplan";

enum { STEPS = 3 };

typedef struct Trained {
    Arena *mem;
    Module *m;
    int stages;
    Tensor ****arg, ****ret; /* by stage, of rank 0 */
    double loss[STEPS], norm[STEPS];
} Trained;

typedef struct How {
    int stages, chunks, micro;
    const char *name;   /* of a schedule */
    const char *orders; /* its text in place of that */
    const int64_t *layers;
    bool planned;
} How;

/* Of a file of tests/ir, or a path. */
static Module *made(Arena *mem, const char *file, const How *h) {
    size_t n;
    const char *path =
        file[0] == '/' ? file : arena_printf(mem, "%s/ir/%s", tests_dir(), file);
    const char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    Module *m = module_parse(mem, path, text, n);
    PassOptions o = pass_options_default();
    o.micro_batches = h->micro;
    o.decay_weights = true;
    o.clip_norm = 1;
    o.stages = h->stages;
    o.stage_chunks = h->chunks;
    o.chunk_layers = h->layers;
    if (h->name) o.schedule_name = h->name;
    if (h->orders) o.schedule = schedule_parse(mem, "orders.csv", h->orders, h->micro);
    passes_run(m, to_local, &o);
    if (h->planned) passes_run(m, to_memory, &o);
    return m;
}

static Trained opened(Arena *mem, Module *m) {
    Trained t = {.mem = mem, .m = m, .stages = MAX(m->stages, 1)};
    t.arg = NEW_ARRAY(mem, Tensor ***, (size_t)t.stages);
    t.ret = NEW_ARRAY(mem, Tensor ***, (size_t)t.stages);
    for (int k = 0; k < t.stages; k++) {
        EXPECT(module_stage(m, k));
        t.arg[k] = sample_parts(mem, module_stage(m, k));
        t.ret[k] = sample_results(mem, module_stage(m, k));
    }
    return t;
}

/* What argument i of a step is a part or a copy of, in the step of one stage. */
static int origin(const Func *one, const Func *f, int i) {
    const char *name = arg_str(f, i, "tensor", arg_str(f, i, "same", f->arg[i]->name));
    for (int k = 0; k < one->narg; k++)
        if (!strcmp(arg_str(one, k, "tensor", one->arg[k]->name), name)) return k;
    test_fail(__FILE__, __LINE__, "%%%s is nothing of @%s", name, one->name);
}

static void set_rates(Tensor **arg, const Func *f, int step) {
    for (int i = 0; i < f->narg; i++) {
        const char *role = arg_str(f, i, "role", "");
        if (!strcmp(role, "lr")) tensor_set(arg[i], 0, 0.01);
        if (!strcmp(role, "weight_decay")) tensor_set(arg[i], 0, 0.1);
        if (!strcmp(role, "bias_correction1"))
            tensor_set(arg[i], 0, 1 - pow(0.9, step + 1));
        if (!strcmp(role, "bias_correction2"))
            tensor_set(arg[i], 0, 1 - pow(0.95, step + 1));
    }
}

/* The first arguments are those of one stage. */
static void begin_as(Trained *t, const Trained *one) {
    const Func *whole = module_stage(one->m, 0);
    for (int k = 0; k < t->stages; k++) {
        const Func *f = module_stage(t->m, k);
        for (int i = 0; i < f->narg; i++) {
            Layout l = layout_of(t->mem, f, i);
            Tensor *from = one->arg[0][0][origin(whole, f, i)];
            EXPECT_INT(type_bytes(&l.whole), type_bytes(&from->ty));
            layout_scatter(&l, k, from->data, t->arg[k][0][i]->data);
        }
    }
}

static void train(Trained *t, int steps) {
    for (int n = 0; n < steps; n++) {
        for (int k = 0; k < t->stages; k++)
            set_rates(t->arg[k][0], module_stage(t->m, k), n);
        const char *stuck = interp_run_stages(t->mem, t->m, t->arg, t->ret);
        if (stuck) test_fail(__FILE__, __LINE__, "%s", stuck);
        t->loss[n] = tensor_get(t->ret[0][0][0], 0);
        t->norm[n] = tensor_get(t->ret[0][0][1], 0);
        for (int k = 0; k < t->stages; k++) {
            const Func *f = module_stage(t->m, k);
            EXPECT(tensor_get(t->ret[k][0][0], 0) == t->loss[n]);
            EXPECT(tensor_get(t->ret[k][0][1], 0) == t->norm[n]);
            for (int i = 0; i < f->nret; i++) {
                int a = f->alias[i];
                if (a < 0 || t->ret[k][0][i] == t->arg[k][0][a]) continue;
                memcpy(t->arg[k][0][a]->data, t->ret[k][0][i]->data,
                       (size_t)type_bytes(&f->ret[i]->ty));
            }
        }
    }
}

static double off(double got, double want) {
    double d = fabs(got - want) / fmax(1, fabs(want));
    return d == d ? d : INFINITY;
}

/* The worst difference of a loss, a norm, or a number that the steps left. */
static double difference(const Trained *t, const Trained *one, int steps) {
    const Func *whole = module_stage(one->m, 0);
    double worst = 0;
    for (int n = 0; n < steps; n++)
        worst = fmax(worst,
                     fmax(off(t->loss[n], one->loss[n]), off(t->norm[n], one->norm[n])));
    for (int k = 0; k < t->stages; k++) {
        const Func *f = module_stage(t->m, k);
        for (int i = 0; i < f->narg; i++) {
            Layout l = layout_of(t->mem, f, i);
            Tensor *want = tensor_new(t->mem, &f->arg[i]->ty);
            layout_scatter(&l, k, one->arg[0][0][origin(whole, f, i)]->data, want->data);
            for (int64_t e = 0; e < type_count(&want->ty); e++)
                worst =
                    fmax(worst, off(tensor_get(t->arg[k][0][i], e), tensor_get(want, e)));
        }
    }
    return worst;
}

/* Weights as small as they are at the beginning of a training. */
static Trained opened_small(Arena *mem, Module *m) {
    Trained t = opened(mem, m);
    const Func *f = module_stage(m, 0);
    for (int i = 0; i < f->narg; i++)
        for (int64_t e = 0; e < type_count(&f->arg[i]->ty); e++)
            if (arg_role(f, i) == ARG_param)
                tensor_set(t.arg[0][0][i], e, 0.3 * tensor_get(t.arg[0][0][i], e));
    return t;
}

/* One stage, with as many micro-batches: [0] untouched, [1] after its steps. */
static void train_one(Arena *mem, const char *file, const How *h, int steps,
                      Trained one[2]) {
    const How alone = {
        .stages = 1, .chunks = 1, .micro = h->micro, .planned = h->planned};
    Module *m = made(mem, file, &alone);
    one[0] = opened_small(mem, m);
    one[1] = opened_small(mem, m);
    train(&one[1], steps);
    EXPECT(one[1].loss[0] > 0 && one[1].norm[0] > 0);
    EXPECT(one[1].loss[steps - 1] != one[1].loss[0] || steps == 1);
}

static void check_way(const char *file, const How *h) {
    Arena *mem = arena_new();
    Trained one[2];
    test_at("%s stages=%d chunks=%d micro=%d %s planned=%d", file, h->stages, h->chunks,
            h->micro, h->orders ? h->orders : h->name, h->planned);
    train_one(mem, file, h, STEPS, one);
    Trained t = opened(mem, made(mem, file, h));
    EXPECT_INT(t.stages, h->stages);
    EXPECT(pipe_order_ends(mem, t.m));
    begin_as(&t, &one[0]);
    train(&t, STEPS);
    double worst = difference(&t, &one[1], STEPS);
    printf("  %s stages=%d x %d micro=%d %s%s: worst difference %.2g\n", file, h->stages,
           h->chunks, h->micro, h->orders ? "by hand" : h->name,
           h->planned ? " planned" : "", worst);
    EXPECT(worst <= 1e-6);
    arena_free(mem);
}

#endif
