/* model_read.c - the user's own module (model.file): what training needs of it. */
#include "model.h"

#define MODULE_MAX_BYTES (64ull << 20)

static bool role_is(const Func *f, int i, const char *role) {
    return !strcmp(arg_str(f, i, "role", ""), role);
}

static int count_role(const Func *f, const char *role) {
    int n = 0;
    for (int i = 0; i < f->narg; i++) n += role_is(f, i, role);
    return n;
}

static const Value *arg_of_role(const Func *f, const char *role) {
    for (int i = 0; i < f->narg; i++) {
        if (role_is(f, i, role)) return f->arg[i];
    }
    return NULL;
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
    static const char *const roles[] = {"tokens", "labels", "data", "param", "rng"};
    for (int i = 0; i < f->narg; i++) {
        const char *role = arg_str(f, i, "role", "");
        bool known = false;
        for (int k = 0; k < ARRAY_LEN(roles); k++) known |= !strcmp(role, roles[k]);
        if (!known)
            fail(EXIT_CONFIG,
                 "%s: argument %%%s of @%s has %s%s; a model to train has the "
                 "roles tokens, labels, data, param and rng",
                 path, f->arg[i]->name, f->name, *role ? "role " : "no role", role);
        if (!strcmp(role, "param")) check_param(path, f, i);
    }
}

static void check_tokens(const char *path, const Func *f) {
    const Value *tokens = arg_of_role(f, "tokens"), *labels = arg_of_role(f, "labels");
    const Value *rng = arg_of_role(f, "rng");
    if (!tokens && !arg_of_role(f, "data"))
        fail(EXIT_CONFIG,
             "%s: @%s has no argument of role tokens (i32[batch,sequence]) or "
             "data",
             path, f->name);
    if (tokens && !labels)
        fail(EXIT_CONFIG, "%s: @%s has tokens, but no argument of role labels", path,
             f->name);
    const Value *both[2] = {tokens, labels};
    for (int i = 0; i < 2 && both[i]; i++) {
        if (both[i]->ty.dt != DT_I32 || both[i]->ty.rank != 2 ||
            (tokens && !type_same_shape(&both[i]->ty, &tokens->ty)))
            fail(EXIT_CONFIG,
                 "%s: %%%s of @%s must be i32[batch,sequence], tokens and "
                 "labels alike",
                 path, both[i]->name, f->name);
    }
    Type key = TYPE(DT_I32, 3);
    if (rng && !type_same_shape(&rng->ty, &key))
        fail(EXIT_CONFIG, "%s: %%%s of @%s must be i32[3]", path, rng->name, f->name);
    static const char *const single[] = {"tokens", "labels", "rng"};
    for (int i = 0; i < ARRAY_LEN(single); i++) {
        if (count_role(f, single[i]) > 1)
            fail(EXIT_CONFIG, "%s: @%s has several arguments of role %s", path, f->name,
                 single[i]);
    }
}

static void check_model(const char *path, const Func *f) {
    Type scalar = type_scalar(DT_F32);
    check_arguments(path, f);
    check_tokens(path, f);
    if (!count_role(f, "param"))
        fail(EXIT_CONFIG, "%s: @%s has no argument of role param: nothing to train", path,
             f->name);
    if (f->nret < 1 || !type_same_shape(&f->ret[0]->ty, &scalar))
        fail(EXIT_CONFIG, "%s: the first result of @%s must be the loss, f32[]", path,
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

Module *model_read(Arena *mem, const char *path) {
    size_t n;
    char *text = file_read(mem, path, MODULE_MAX_BYTES, &n, EXIT_CONFIG);
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
    return m;
}
