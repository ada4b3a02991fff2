/* copy.c - functions and modules again: in the same arena, where texts and rules are shared, or in
 * another one, which then needs nothing of the first. */
#include "ir/ir.h"

static void copy_body(const Func *f, Func *copy) {
    Module *m = copy->mod;
    func_number((Func *)(uintptr_t)f);
    copy->made_of = f->made_of;
    copy->line = f->line;
    copy->part = f->part;
    copy->task = f->task;
    copy->chunk = f->chunk;
    Value **map = NEW_ARRAY(m->mem, Value *, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++) {
        map[f->arg[i]->id] = func_arg_given(copy, f->arg[i]);
        copy->arg_attr[i] = f->arg_attr[i];
    }
    Builder b = build_at_end(copy);
    for (const Op *op = f->first; op; op = op->next) {
        const Op *again = op_clone(&b, op, map);
        for (int i = 0; i < op->nout; i++) again->out[i]->loc = op->out[i]->loc;
    }
    for (int i = 0; i < f->nret; i++) func_ret(copy, map[f->ret[i]->id], f->alias[i]);
}

/* By number: is it the entry of the stage, or called by what is? */
static const bool *called_by_stage(Arena *mem, const Module *m, int stage) {
    int n = 0, cap = 0, all = 0;
    const Func **list = NULL;
    for (Func *f = m->first; f; f = f->next) f->nth = all++;
    bool *called = NEW_ARRAY(mem, bool, (size_t)all + 1);
    for (Func *f = m->first; f; f = f->next) {
        called[f->nth] = func_is_entry(f) && (stage < 0 || f->stage == stage);
        if (called[f->nth]) PUSH(mem, list, n, cap, f);
    }
    for (int i = 0; i < n; i++)
        for (const Op *op = list[i]->first; op; op = op->next) {
            Func *callee = op_callee(op);
            if (!callee || called[callee->nth]) continue;
            called[callee->nth] = true;
            PUSH(mem, list, n, cap, callee);
        }
    return called;
}

static Module *copy_into(Arena *to_mem, const Module *m, int stage) {
    Module *copy = module_new(to_mem, m->name);
    copy->mesh = m->mesh;
    copy->stages = m->stages;
    copy->level = m->level;
    copy->file = m->file;
    copy->text = m->text;
    Arena *mem = arena_new();
    const bool *called = called_by_stage(mem, m, stage);
    for (const Func *f = m->first; f; f = f->next) {
        if (!called[f->nth]) continue;
        Func *to = func_new(copy, f->name, f->role);
        to->stage = f->stage;
        to->frame_bytes = f->frame_bytes;
        copy_body(f, to);
    }
    arena_free(mem);
    return copy;
}

Module *module_copy(const Module *m, int stage) {
    return copy_into(m->mem, m, stage);
}

Func *func_clone(const Func *f, const char *name, Role role) {
    Func *copy = func_new_unique(f->mod, name, role);
    copy_body(f, copy);
    return copy;
}

/* ---- in an arena of its own ---- */

static void own_text(Arena *mem, const char **text) {
    if (*text) *text = arena_strdup(mem, *text);
}

static void own_attrs(Arena *mem, Attr *list) {
    for (Attr *a = list; a; a = a->next) {
        own_text(mem, &a->key);
        own_text(mem, &a->s);
        if (a->rule) a->rule = rule_of_terms(mem, a->rule);
        a->func = NULL;
    }
}

static void own_values(Arena *mem, Value **v, int n) {
    for (int i = 0; i < n; i++) {
        own_text(mem, &v[i]->name);
        own_text(mem, &v[i]->grad_of);
    }
}

static void own_func(Func *f) {
    Arena *mem = f->mod->mem;
    own_text(mem, &f->made_of);
    own_values(mem, f->arg, f->narg);
    for (int i = 0; i < f->narg; i++) {
        f->arg_attr[i] = attr_copy(mem, f->arg_attr[i]);
        own_attrs(mem, f->arg_attr[i]);
    }
    for (Op *op = f->first; op; op = op->next) {
        own_values(mem, op->out, op->nout);
        own_attrs(mem, op->attr);
    }
}

static void own_module(Module *m) {
    for (int a = 0; a < m->mesh.naxes; a++) own_text(m->mem, &m->mesh.axis[a].name);
    for (Func *f = m->first; f; f = f->next) own_func(f);
}

Module *module_copy_to(Arena *mem, const Module *m) {
    Module *copy = copy_into(mem, m, -1);
    own_module(copy);
    return copy;
}

Func *func_signature_to(Module *m, const Func *f) {
    Func *copy = NEW(m->mem, Func);
    copy->name = arena_strdup(m->mem, f->name);
    copy->mod = m;
    copy->stage = f->stage;
    for (int i = 0; i < f->narg; i++) {
        func_arg(copy, f->arg[i]->name, f->arg[i]->ty);
        copy->arg_attr[i] = f->arg_attr[i];
    }
    own_func(copy);
    return copy;
}
