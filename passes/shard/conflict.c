/* conflict.c - see conflict.h. */
#include "passes/shard/conflict.h"

/* ---- who asked? ---- */

/* Of a function, or of one that autodiff made of it. */
static bool is_of_function(const Annotation *a, const Func *f, const char *name) {
    return annotation_is_about(a, f->name, name) ||
           (f->made_of && annotation_is_about(a, f->made_of, name));
}

/* Is it made of a parameter that pass zero has flattened, to stand for it? */
static bool is_unflattened(const Seed *c) {
    for (int i = 0; c->v->def && i < c->f->narg; i++)
        if (attr_find(c->f->arg_attr[i], "zero") &&
            text_equal(c->f->arg[i]->name, c->v->name))
            return true;
    return false;
}

static bool stands_for(const Annotation *a, const Seed *c, const char *name) {
    bool argument = (!c->v->def && func_is_entry(c->f)) || is_unflattened(c);
    if (is_of_function(a, c->f, name)) return true;
    if (argument && annotation_is_about(a, NULL, name)) return true;
    /* the gradient of a model has the model's arguments, and so has the step */
    for (const Func *f = c->f->mod->first; argument && f; f = f->next)
        if (func_is_gradient(f) && is_of_function(a, f, name)) return true;
    return false;
}

static const Annotation *find_annotation(const PassOptions *o, const Seed *c,
                                         const char *name) {
    for (int i = o->nannotations; i-- > 0;)
        if (stands_for(&o->annotation[i], c, name)) return &o->annotation[i];
    return NULL;
}

static const Annotation *annotation_of(const PassOptions *o, const Seed *c) {
    const Annotation *a = find_annotation(o, c, c->v->name);
    return a || !c->v->grad_of ? a : find_annotation(o, c, c->v->grad_of);
}

/* "conf.yaml:6: parallel.shard, entry 2 'h.w=-,tp'": where the user finds what to change. */
static const char *source_of(const PassOptions *o, const Seed *c) {
    Arena *mem = c->f->mod->mem;
    const Annotation *a = annotation_of(o, c);
    if (a && a->derived) return a->source;
    const char *place =
        a && a->at.line ? arena_printf(mem, "%s:%d: ", a->at.file, a->at.line) : "";
    if (a)
        return arena_printf(mem, "%s%s '%s=%s'", place, a->source, a->pattern,
                            a->placement);
    bool follows =
        !c->v->def && func_is_entry(c->f) && arg_role(c->f, c->v->nth) == ARG_param;
    return follows ? "its type, or how it is used" : "its type in the module";
}

static const char *seed_text(const Meeting *at, const Seed *c) {
    const Module *m = c->f->mod;
    bool near = c->f == at->f || (!c->v->def && func_is_entry(c->f));
    const char *of = near ? "" : arena_printf(m->mem, " of @%s", c->f->name);
    return arena_printf(m->mem, "%%%s%s is %s (%s)", c->v->name, of,
                        type_text(m->mem, &m->mesh, &c->ty), source_of(at->o, c));
}

/* ---- what is at stake? ---- */

/* The type with dimension d over those axes, and no other; d < 0: none. */
static Type moved(const Type *ty, int d, Axes axes) {
    Type t = *ty;
    for (int k = 0; k < t.rank; k++)
        t.split[k] = axes_normal(t.split[k] & (Axes) ~(axes & (Axes)~AXES_REVERSED));
    if (d >= 0) t.split[d] = axes;
    return t;
}

static int64_t bytes_to(const Mesh *m, const SeededDim *s, const Type *to) {
    for (int d = 0; d < to->rank; d++)
        if (to->dim[d] % mesh_group_size(m, to->split[d])) return -1;
    return reshard_sent_bytes(m, &s->ty, to);
}

/* The cheaper way to bring one of two values to the placement of the other. */
static const char *stake_text(const Module *m, const SeededDim *a, const Type *a_to,
                              const SeededDim *b, const Type *b_to) {
    int64_t of_a = bytes_to(&m->mesh, a, a_to), of_b = bytes_to(&m->mesh, b, b_to);
    if (of_a < 0 && of_b < 0) return "No collectives bring them together";
    bool first = of_b < 0 || (of_a >= 0 && of_a < of_b);
    return arena_printf(
        m->mem, "Bringing %%%s from %s to %s would move %lld bytes a rank and run",
        first ? a->name : b->name, type_text(m->mem, &m->mesh, first ? &a->ty : &b->ty),
        type_text(m->mem, &m->mesh, first ? a_to : b_to),
        (long long)(first ? of_a : of_b));
}

/* ---- refusing ---- */

/* Where the user says one of the two, else at the op. */
static _Noreturn void refuse(const Meeting *at, const SeededDim *a, const SeededDim *b,
                             const char *message) {
    const SeededDim *const sides[] = {a, b};
    for (int i = 0; i < ARRAY_LEN(sides); i++) {
        const Annotation *by = annotation_of(at->o, sides[i]->by);
        if (by && by->at.line)
            fail_at(EXIT_CONFIG, by->at, NULL, "@%s: %s", at->f->name, message);
    }
    if (at->op) fail_op(at->op, "%s", message);
    fail(EXIT_CONFIG, "@%s: %s", at->f->name, message);
}

SeededDim seeds_meet(const Meeting *at, char letter, const SeededDim *a,
                     const SeededDim *b) {
    const Module *m = at->f->mod;
    Axes of_a = seeded_axes(a), of_b = seeded_axes(b);
    if (axes_agree(of_a, of_b)) {
        bool more = mesh_group_size(&m->mesh, of_b) > mesh_group_size(&m->mesh, of_a);
        return more || !of_a ? *b : *a;
    }
    Type a_to = moved(&a->ty, a->dim, of_b), b_to = moved(&b->ty, b->dim, of_a);
    const char *which =
        letter ? arena_printf(m->mem, "dimension %c", letter) : "one dimension";
    refuse(at, a, b,
           arena_printf(m->mem,
                        "%s meets two placements of %s, over %s and over %s: %s and %s. "
                        "%s; write the same axes there in both, or leave it whole in one",
                        at->what, which, mesh_axes_text(m->mem, &m->mesh, of_a),
                        mesh_axes_text(m->mem, &m->mesh, of_b), seed_text(at, a->by),
                        seed_text(at, b->by), stake_text(m, a, &a_to, b, &b_to)));
}

_Noreturn void refuse_axis(const Meeting *at, int axis, const SeededDim *a, int a_there,
                           const SeededDim *b, int b_there) {
    const Module *m = at->f->mod;
    Axes bit = (Axes)(1u << axis);
    Type a_to = moved(&a->ty, -1, bit), b_to = moved(&b->ty, -1, bit);
    if (a_there >= 0) a_to.split[a_there] |= bit;
    if (b_there >= 0) b_to.split[b_there] |= bit;
    refuse(at, a, b,
           arena_printf(m->mem,
                        "%s meets two placements over %s: %s and %s. %s; split the same "
                        "dimension in both, or leave one of them whole",
                        at->what, m->mesh.axis[axis].name, seed_text(at, a->by),
                        seed_text(at, b->by), stake_text(m, a, &a_to, b, &b_to)));
}
