/* model_read.c - the user's own module (model.file): what training needs of it. */
#include "frontend/model/model.h"
#include "ir/placement.h"

static int count_role(const Func *f, ArgRole role) {
    int n = 0;
    for (int i = 0; i < f->narg; i++) n += arg_role(f, i) == role;
    return n;
}

static const Value *arg_of_role(const Func *f, ArgRole role) {
    int i = func_arg_role(f, role);
    return i < 0 ? NULL : f->arg[i];
}

static void check_param(const char *path, const Func *f, int i) {
    static const char *const kinds[] = {"normal", "zeros", "ones"};
    const Value *v = f->arg[i];
    const char *init = arg_str(f, i, "init", "");
    bool known = false;
    for (int k = 0; k < ARRAY_LEN(kinds); k++) known |= !strcmp(init, kinds[k]);
    if (!known)
        fail(EXIT_CONFIG,
             "%s: parameter %%%s of @%s has %s%s; write init=\"normal\" (with "
             "std), \"zeros\" or \"ones\"",
             path, v->name, f->name, *init ? "an unknown init " : "no init", init);
    if (v->ty.dt != DT_F32)
        fail(EXIT_CONFIG, "%s: parameter %%%s of @%s is %s; parameters are f32", path,
             v->name, f->name, dtype_name[v->ty.dt]);
}

static void check_arguments(const char *path, const Func *f) {
    static const ArgRole roles[] = {ARG_tokens, ARG_labels, ARG_counted,
                                    ARG_data,   ARG_param,  ARG_rng};
    for (int i = 0; i < f->narg; i++) {
        const char *role = arg_str(f, i, "role", "");
        bool known = false;
        for (int k = 0; k < ARRAY_LEN(roles); k++) known |= arg_role(f, i) == roles[k];
        if (!known)
            fail(EXIT_CONFIG,
                 "%s: argument %%%s of @%s has %s%s; a model to train has the "
                 "roles tokens, labels, counted, data, param and rng",
                 path, f->arg[i]->name, f->name, *role ? "role " : "no role", role);
        if (arg_role(f, i) == ARG_param) check_param(path, f, i);
    }
}

/* Dimension 0 of what a sample fills counts the samples of a micro-batch. */
static void check_samples(const char *path, const Func *f) {
    static const ArgRole roles[] = {ARG_tokens, ARG_labels, ARG_data};
    const Value *first = NULL;
    for (int i = 0; i < f->narg; i++) {
        bool sample = false;
        const Value *v = f->arg[i];
        for (int k = 0; k < ARRAY_LEN(roles); k++) sample |= arg_role(f, i) == roles[k];
        if (!sample) continue;
        if (!v->ty.rank || (v->ty.dt != DT_F32 && v->ty.dt != DT_I32))
            fail(EXIT_CONFIG,
                 "%s: %%%s of @%s must be f32 or i32 with the samples of a batch as its "
                 "first dimension",
                 path, v->name, f->name);
        if (!first) first = v;
        if (v->ty.dim[0] != first->ty.dim[0])
            fail(EXIT_CONFIG,
                 "%s: %%%s of @%s has %lld samples, %%%s has %lld: the first dimension "
                 "of tokens, labels and data is the batch",
                 path, v->name, f->name, (long long)v->ty.dim[0], first->name,
                 (long long)first->ty.dim[0]);
    }
    if (!first)
        fail(EXIT_CONFIG,
             "%s: @%s has no argument of role tokens (i32[batch,sequence]) or data", path,
             f->name);
}

static void check_tokens(const char *path, const Func *f) {
    const Value *rng = arg_of_role(f, ARG_rng);
    if (arg_of_role(f, ARG_tokens) && !arg_of_role(f, ARG_labels))
        fail(EXIT_CONFIG, "%s: @%s has tokens, but no argument of role labels", path,
             f->name);
    Type key = TYPE(DT_I32, RNG_WORDS);
    if (rng && !type_same_shape(&rng->ty, &key))
        fail(EXIT_CONFIG, "%s: %%%s of @%s must be i32[%d]", path, rng->name, f->name,
             RNG_WORDS);
    const Value *counted = arg_of_role(f, ARG_counted);
    Type scalar = type_scalar(DT_F32);
    if (counted &&
        (!arg_of_role(f, ARG_labels) || !type_same_shape(&counted->ty, &scalar)))
        fail(EXIT_CONFIG,
             "%s: %%%s of @%s must be f32[], together with an argument of role labels: "
             "it is "
             "filled with the labels that count",
             path, counted->name, f->name);
    static const ArgRole single[] = {ARG_tokens, ARG_labels, ARG_counted, ARG_rng};
    for (int i = 0; i < ARRAY_LEN(single); i++) {
        if (count_role(f, single[i]) > 1)
            fail(EXIT_CONFIG, "%s: @%s has several arguments of role %s", path, f->name,
                 arg_role_name[single[i]]);
    }
}

static void check_model(const char *path, const Func *f) {
    Type scalar = type_scalar(DT_F32);
    check_arguments(path, f);
    check_samples(path, f);
    check_tokens(path, f);
    if (!count_role(f, ARG_param))
        fail(EXIT_CONFIG, "%s: @%s has no argument of role param: nothing to train", path,
             f->name);
    if (f->nret < 1 || !type_same_shape(&f->ret[0]->ty, &scalar))
        fail(EXIT_CONFIG, "%s: the first result of @%s must be the loss, f32[]", path,
             f->name);
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
    check_model(path, model_entry(m));
    check_types(m);
    remove_unread(m);
    return m;
}
