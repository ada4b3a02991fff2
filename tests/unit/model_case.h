/* model_case.h - for tests of models: a module with its arguments in the interpreter, and
 * the golden cases. */
#ifndef STATOR_TESTS_MODEL_CASE_H
#define STATOR_TESTS_MODEL_CASE_H
#include "../test.h"
#include "base/json.h"
#include "frontend/model/model.h"
#include "frontend/model/weights.h"
#include "ir/sample.h"
#include "passes/passes.h"
#include "runtime/store/safetensors.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

static const char *const golden[] = {"gpt2_tiny", "gpt2_untied", "llama_tiny",
                                     "llama_tied_mqa"};

/* ---- a module with its arguments ---- */

typedef struct Run {
    Arena *mem;
    Module *m;
    Func *f;
    Tensor ***arg, ***ret;
} Run;

static Run run_new(Arena *mem, Module *m, const char *entry) {
    Run r = {.mem = mem, .m = m, .f = module_find(m, entry)};
    EXPECT(r.f);
    r.arg = sample_arguments(mem, r.f);
    r.ret = sample_results(mem, r.f);
    return r;
}

static Tensor *arg_named(const Run *r, const char *name) {
    for (int i = 0; i < r->f->narg; i++) {
        if (!strcmp(r->f->arg[i]->name, name)) return r->arg[0][i];
    }
    test_fail(__FILE__, __LINE__, "no argument %s", name);
}

static float *weight_at(void *context, int arg) {
    return ((Run *)context)->arg[0][arg]->data;
}

static bool is_param(const Func *f, int i) {
    return arg_role(f, i) == ARG_param;
}

static void init_params(Run *r, uint64_t seed) {
    for (int i = 0; i < r->f->narg; i++) {
        if (is_param(r->f, i)) weights_init(r->f, i, NULL, 0, r->arg[0][i]->data, seed);
    }
}

static void run(Run *r) {
    interp_run(r->mem, r->f, r->arg, r->ret);
}

/* ---- golden cases ---- */

typedef struct Case {
    Arena *mem;
    const char *dir;
    ModelSpec spec;
    Safetensors *expected;
    int64_t batch, seq;
} Case;

static Case case_open(Arena *mem, const char *name) {
    Case c = {.mem = mem};
    c.dir = arena_printf(mem, "%s/golden/%s", tests_dir(), name);
    c.spec = model_spec_of_hf(mem, c.dir);
    c.expected =
        safetensors_open(mem, path_join(mem, c.dir, "expected.safetensors"), EXIT_DATA);
    const SafeTensor *t = safetensors_need(c.expected, "tokens");
    c.batch = t->dim[1];
    c.seq = t->dim[2] - 1;
    return c;
}

/* Token j of sequence b of the first step; j up to seq, inclusive. */
static int32_t case_token(const Case *c, int64_t b, int64_t j) {
    const SafeTensor *t = safetensors_need(c->expected, "tokens");
    int64_t v;
    memcpy(&v, (const char *)t->data + 8 * (b * (c->seq + 1) + j), 8);
    return (int32_t)v;
}

static float *case_floats(const Case *c, const char *name, int64_t *n) {
    const SafeTensor *t = safetensors_need(c->expected, name);
    *n = safetensors_count(t);
    float *p = NEW_ARRAY(c->mem, float, (size_t)*n);
    safetensors_read(c->expected, t, DT_F32, p, (size_t)*n * 4);
    return p;
}

static void set_batch(const Case *c, Run *r) {
    Tensor *tokens = arg_named(r, "tokens"), *labels = arg_named(r, "labels");
    for (int64_t b = 0; b < c->batch; b++) {
        for (int64_t j = 0; j < c->seq; j++) {
            tensor_set(tokens, b * c->seq + j, case_token(c, b, j));
            tensor_set(labels, b * c->seq + j, case_token(c, b, j + 1));
        }
    }
}

static double first_loss(const Case *c) {
    const Json *root = json_read(c->mem, path_join(c->mem, c->dir, "trajectory.json"),
                                 1 << 20, EXIT_DATA);
    return json_f64(json_need(json_need(root, "steps")->first, "loss"));
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, int64_t n) {
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(diff / norm);
}

static void expect_near(const char *what, const float *a, const float *b, int64_t n) {
    double d = distance(a, b, n);
    if (!(d <= 1e-5)) test_fail(__FILE__, __LINE__, "%s is %.3g off", what, d);
}

static Run case_run(Case *c, ModelUse use, const char *passes, const char *entry) {
    Module *m = model_build(c->mem, &c->spec, (ModelShape){c->batch, c->seq, 0}, use);
    PassOptions o = pass_options_default();
    if (*passes) passes_run(m, passes, &o);
    Run r = run_new(c->mem, m, entry);
    weights_load_hf(c->dir, r.f, weight_at, &r);
    set_batch(c, &r);
    return r;
}

/* Of config.json's text. */
static ModelSpec spec_of(Arena *mem, const char *text) {
    return model_spec_of_json(mem, "config.json", text, strlen(text));
}

#endif
