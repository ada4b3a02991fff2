/* model_read.c - the user's own module (model.file): what training needs of it. */
#include "frontend/model/job.h"
#include "ir/placement.h"
#include <math.h>

static const Value *arg_of_role(const Func *f, ArgRole role) {
    int i = func_arg_role(f, role);
    return i < 0 ? NULL : f->arg[i];
}

/* What only later levels, or stator itself, say of an argument. */
static void check_attributes(const Func *f, int i) {
    static const char *const own[] = {"role",  "init", "std", "mean",
                                      "decay", "hf",   "rows"};
    for (const Attr *a = f->arg_attr[i]; a; a = a->next)
        if (!is_one_of(a->key, own, ARRAY_LEN(own)))
            fail(EXIT_CONFIG,
                 "argument %%%s of @%s has %s, which a model to train has not: leave it "
                 "out",
                 f->arg[i]->name, f->name, a->key);
}

static void check_numbers(const Func *f, int i) {
    const Value *v = f->arg[i];
    double std = arg_float(f, i, "std", 0), decay = arg_float(f, i, "decay", 0);
    if (!(std >= 0) || !isfinite(std) || !isfinite(arg_float(f, i, "mean", 0)))
        fail(EXIT_CONFIG,
             "parameter %%%s of @%s: std is a number of at least 0, mean a number",
             v->name, f->name);
    if (decay != 0 && decay != 1)
        fail(EXIT_CONFIG,
             "parameter %%%s of @%s has decay=%g; write decay=1, or leave it out: "
             "optimizer.weight_decay is how much",
             v->name, f->name, decay);
    double rows = arg_float(f, i, "rows", 1),
           most = v->ty.rank ? (double)v->ty.dim[0] : 1;
    if (rows < 1 || rows > most)
        fail(EXIT_CONFIG, "parameter %%%s of @%s has rows=%g of %g", v->name, f->name,
             rows, most);
}

static void check_param(const Func *f, int i) {
    static const char *const kinds[] = {"normal", "zeros", "ones"};
    const Value *v = f->arg[i];
    const char *init = arg_str(f, i, "init", "");
    bool known = false;
    for (int k = 0; k < ARRAY_LEN(kinds); k++) known |= !strcmp(init, kinds[k]);
    if (!known)
        fail(EXIT_CONFIG,
             "parameter %%%s of @%s has %s%s; write init=\"normal\" (with "
             "std), \"zeros\" or \"ones\"",
             v->name, f->name, *init ? "an unknown init " : "no init", init);
    if (v->ty.dt != DT_F32)
        fail(EXIT_CONFIG, "parameter %%%s of @%s is %s; parameters are f32", v->name,
             f->name, dtype_name[v->ty.dt]);
    check_numbers(f, i);
}

static void check_arguments(const Func *f) {
    static const ArgRole roles[] = {ARG_tokens, ARG_labels, ARG_counted,
                                    ARG_data,   ARG_param,  ARG_rng};
    for (int i = 0; i < f->narg; i++) {
        const char *role = arg_str(f, i, "role", "");
        bool known = false;
        for (int k = 0; k < ARRAY_LEN(roles); k++) known |= arg_role(f, i) == roles[k];
        if (!known)
            fail(EXIT_CONFIG,
                 "argument %%%s of @%s has %s%s; a model to train has the "
                 "roles tokens, labels, counted, data, param and rng",
                 f->arg[i]->name, f->name, *role ? "role " : "no role", role);
        check_attributes(f, i);
        if (arg_role(f, i) == ARG_param) check_param(f, i);
    }
}

/* Dimension 0 of what a sample fills counts the samples of a micro-batch. */
static void check_samples(const Func *f) {
    const Value *first = NULL;
    for (int i = 0; i < f->narg; i++) {
        const Value *v = f->arg[i];
        if (!job_is_sample(f, i)) continue;
        if (!v->ty.rank || (v->ty.dt != DT_F32 && v->ty.dt != DT_I32))
            fail(EXIT_CONFIG,
                 "%%%s of @%s must be f32 or i32 with the samples of a batch as its "
                 "first dimension",
                 v->name, f->name);
        if (!first) first = v;
        if (v->ty.dim[0] != first->ty.dim[0])
            fail(EXIT_CONFIG,
                 "%%%s of @%s has %lld samples, %%%s has %lld: the first dimension "
                 "of tokens, labels and data is the batch",
                 v->name, f->name, (long long)v->ty.dim[0], first->name,
                 (long long)first->ty.dim[0]);
    }
    if (!first)
        fail(EXIT_CONFIG,
             "@%s has no argument of role tokens (i32[batch,sequence]) or data", f->name);
}

static void check_tokens(const Func *f) {
    const Value *rng = arg_of_role(f, ARG_rng);
    if (arg_of_role(f, ARG_tokens) && !arg_of_role(f, ARG_labels))
        fail(EXIT_CONFIG, "@%s has tokens, but no argument of role labels", f->name);
    Type key = TYPE(DT_I32, RNG_WORDS);
    if (rng && !type_same_shape(&rng->ty, &key))
        fail(EXIT_CONFIG, "%%%s of @%s must be i32[%d]", rng->name, f->name, RNG_WORDS);
    const Value *counted = arg_of_role(f, ARG_counted);
    Type scalar = type_scalar(DT_F32);
    if (counted &&
        (!arg_of_role(f, ARG_labels) || !type_same_shape(&counted->ty, &scalar)))
        fail(EXIT_CONFIG,
             "%%%s of @%s must be f32[], together with an argument of role labels: "
             "it is "
             "filled with the labels that count",
             counted->name, f->name);
    static const ArgRole single[] = {ARG_tokens, ARG_labels, ARG_counted, ARG_rng};
    for (int i = 0; i < ARRAY_LEN(single); i++) {
        if (func_arg_count(f, single[i]) > 1)
            fail(EXIT_CONFIG, "@%s has several arguments of role %s", f->name,
                 arg_role_name[single[i]]);
    }
}

/* Results besides the loss are known by their names: to predict, and to who writes them to a file. */
static void check_results(const Func *f) {
    for (int i = 1; i < f->nret; i++)
        for (int k = 1; k < i; k++)
            if (f->ret[k] == f->ret[i])
                fail(EXIT_CONFIG,
                     "@%s returns %%%s twice, and results are known by their names: "
                     "return "
                     "it once, or a copy of it, %%other = copy %%%s",
                     f->name, f->ret[i]->name, f->ret[i]->name);
}

static void check_model(const Func *f) {
    Type scalar = type_scalar(DT_F32);
    check_arguments(f);
    check_samples(f);
    check_tokens(f);
    if (!func_arg_count(f, ARG_param))
        fail(EXIT_CONFIG, "@%s has no argument of role param: nothing to train", f->name);
    for (int k = 0; k < f->nret; k++)
        if (f->alias[k] >= 0)
            fail(EXIT_CONFIG,
                 "result %d of @%s overwrites %%%s; a model to train changes none of its "
                 "arguments: write its type alone",
                 k, f->name, f->arg[f->alias[k]]->name);
    if (f->nret < 1 || !type_same_shape(&f->ret[0]->ty, &scalar))
        fail(EXIT_CONFIG, "the first result of @%s must be the loss, f32[]", f->name);
    check_results(f);
}

/* Of other types there is no code: f64 and i64 are for the interpreter. */
static void check_types(const Module *m) {
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++) {
                DType dt = op->out[i]->ty.dt;
                if (dt == DT_F64 || dt == DT_I64)
                    fail_op(op,
                            "%%%s is %s, of which no code can be made; models have f32, "
                            "bf16, f16 and i32",
                            op->out[i]->name, dtype_name[dt]);
            }
}

/* Layers are counted, and samples asked for, of what the results are made of. */
static void remove_unread(Module *m) {
    for (Func *f = m->first; f; f = f->next) func_remove_dead(f);
    module_remove_unused(m);
}

/* A step of no data is none. */
static void check_reads_data(const Func *f) {
    for (const Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++)
            for (int k = 0; k < f->narg; k++)
                if (op->in[i] == f->arg[k] && job_is_sample(f, k)) return;
    fail(EXIT_CONFIG,
         "the results of @%s are made of no argument of role tokens, labels or data",
         f->name);
}

static int count_models(const Module *m) {
    int n = 0;
    for (const Func *f = m->first; f; f = f->next) n += f->role == ROLE_MODEL;
    return n;
}

Func *model_entry(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_MODEL) return f;
    }
    die("module @%s has no function of role model", m->name);
}

static void check_all(Module *m, Func *f) {
    check_model(f);
    check_types(m);
    remove_unread(m);
    check_reads_data(f);
}

/* What is wrong with it is told at the head of the model. */
static void check_module(Module *m, SourcePos at) {
    Catch c;
    at.line = model_entry(m)->line;
    if (!CATCH(c)) catch_fail_at(&c, at);
    check_all(m, model_entry(m));
    catch_end(&c);
}

Module *model_parse(Arena *mem, const char *path, const char *text, size_t n) {
    Module *m = module_parse(mem, path, text, n);
    module_verify(m, path, text);
    if (m->level != LEVEL_GLOBAL)
        fail(EXIT_CONFIG, "%s is at level %s; a model to train is at level global", path,
             level_name[m->level]);
    if (mesh_ranks(&m->mesh) > 1)
        fail(EXIT_CONFIG,
             "%s has a mesh of %d ranks; this run is one process, write mesh()", path,
             mesh_ranks(&m->mesh));
    int models = count_models(m);
    if (models != 1)
        fail(EXIT_CONFIG,
             "%s has %d functions of role model; write one: func @name:model(...)", path,
             models);
    check_module(m, (SourcePos){.file = path, .text = text, .col = 1});
    return m;
}
