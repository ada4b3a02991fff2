/* seed.c - writes the placements that a strategy or a user asks for on arguments and
 * named values. Level global. An annotation is a pattern and a placement:
 *     "h.mlp.c_fc.weight"  "-,tp"      an argument of the model
 *     "layer/x"            "dp,cp.tp,-" a value of function @layer
 * `*` stands for any letters; one entry a dimension, `-` for whole; the dimension of
 * stacked layers may be left out. Parameters that nobody placed follow from their use. */
#include "over.h"
#include "passes.h"

static bool glob(const char *p, const char *s) {
    const char *star = NULL, *back = NULL;
    while (*s) {
        if (*p == '*')
            star = p++, back = s;
        else if (*p == *s)
            p++, s++;
        else if (star)
            p = star + 1, s = ++back;
        else
            return false;
    }
    while (*p == '*') p++;
    return !*p;
}

static Func *model_of(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_MODEL) return f;
    }
    fail(EXIT_CONFIG, "module @%s has no model: write func @name:model(...)", m->name);
}

static int entries(const char *text) {
    int n = 1;
    for (; *text; text++) n += *text == ',';
    return n;
}

static void place(const Module *m, const Annotation *a, const char *where, Value *v) {
    int n = entries(a->placement), d = v->ty.rank - n;
    Axes used = 0;
    Type ty = v->ty;
    if (d < 0 || d > 1 || !v->ty.rank) {
        fail(EXIT_CONFIG,
             "%s: '%s' has %d entr%s, but %%%s of @%s has %d dimensions: write one for each "
             "(the first may be left out), '-' where it is whole",
             a->source, a->placement, n, n == 1 ? "y" : "ies", v->name, where, v->ty.rank);
    }
    memset(ty.split, 0, sizeof ty.split);
    for (const char *p = a->placement; *p; d++) {
        size_t len = strcspn(p, ",");
        char *word = arena_strndup(m->mem, p, len);
        Axes axes = 0;
        if (strcmp(word, "-") && !mesh_axes_parse(&m->mesh, word, &axes)) {
            fail(EXIT_CONFIG, "%s: '%s': '%s' is not '-' nor made of the axes %s",
                 a->source, a->placement, word,
                 mesh_axes_text(m->mem, &m->mesh, (Axes)((1u << m->mesh.naxes) - 1)));
        }
        if (used & axes & (Axes)~AXES_REVERSED) {
            fail(EXIT_CONFIG,
                 "%s: '%s' uses an axis twice; an axis can split one dimension "
                 "of a tensor",
                 a->source, a->placement);
        }
        used |= axes;
        ty.split[d] = splitting_axes(&m->mesh, axes);
        int parts = mesh_group_size(&m->mesh, ty.split[d]);
        if (ty.dim[d] % parts) {
            fail(EXIT_CONFIG,
                 "%s: dimension %d of %%%s is %lld, which %d parts (%s) do not "
                 "divide",
                 a->source, d, v->name, (long long)ty.dim[d], parts, word);
        }
        p += len;
        p += *p == ',';
    }
    v->ty = ty;
}

static int place_arguments(const Module *m, const Annotation *a) {
    Func *f = model_of(m);
    int found = 0;
    for (int i = 0; i < f->narg; i++) {
        if (!glob(a->pattern, f->arg[i]->name)) continue;
        place(m, a, f->name, f->arg[i]);
        found++;
    }
    return found;
}

static int place_values(const Module *m, const Annotation *a, const char *slash) {
    char *func = arena_strndup(m->mem, a->pattern, (size_t)(slash - a->pattern));
    int found = 0;
    for (Func *f = m->first; f; f = f->next) {
        if (!glob(func, f->name)) continue;
        for (int i = 0; i < f->narg; i++) {
            if (!glob(slash + 1, f->arg[i]->name)) continue;
            place(m, a, f->name, f->arg[i]);
            found++;
        }
        for (Op *op = f->first; op; op = op->next) {
            for (int i = 0; i < op->nout; i++) {
                if (!glob(slash + 1, op->out[i]->name)) continue;
                place(m, a, f->name, op->out[i]);
                found++;
            }
        }
    }
    return found;
}

static void refuse_unmatched(const Module *m, const Annotation *a) {
    Func *f = model_of(m);
    const char **names = NEW_ARRAY(m->mem, const char *, (size_t)f->narg + 1);
    for (int i = 0; i < f->narg; i++) names[i] = f->arg[i]->name;
    const char *near = nearest_name(a->pattern, names, f->narg);
    fail(EXIT_CONFIG, "%s: nothing is called '%s'%s%s", a->source, a->pattern,
         near ? "; did you mean " : "; values of a function are written function/value",
         near ? near : "");
}

/* The placement of an argument that is handed to a function is that of the function's
 * argument. */
static void hand_on(Func *f) {
    for (Op *op = f->first; op; op = op->next) {
        if (!op_attr(op, "fn")) continue;
        Func *callee = op_func(op);
        int64_t carry = op_int(op, "carry", 0), each = op_int(op, "each", 0);
        for (int i = 0; i < op->nin; i++) {
            const Value *v = op->in[i];
            bool sliced = op_attr(op, "times") && i >= carry && i < carry + each;
            if (v->def || !type_is_split(&v->ty) || type_is_split(&callee->arg[i]->ty))
                continue;
            Type ty = sliced ? type_slice(&v->ty) : v->ty;
            memcpy(callee->arg[i]->ty.split, ty.split, sizeof ty.split);
        }
        hand_on(callee);
    }
}

/* Parameters without a placement of their own, nor an annotation that leaves them whole.
 */
static void place_open(Module *m, const PassOptions *o) {
    Func *f = model_of(m);
    bool *open = NEW_ARRAY(m->mem, bool, (size_t)f->narg + 1), any = false;
    for (int i = 0; i < f->narg; i++) {
        open[i] =
            !strcmp(arg_str(f, i, "role", ""), "param") && !type_is_split(&f->arg[i]->ty);
        for (int k = 0; k < o->nannotations && open[i]; k++) {
            open[i] = !glob(o->annotation[k].pattern, f->arg[i]->name);
        }
        any |= open[i];
    }
    if (any) follow_uses(m, f, open);
}

void pass_seed(Module *m, const PassOptions *o) {
    drop_single_axes(m);
    if (mesh_ranks(&m->mesh) == 1 && !o->nannotations) return;
    for (int i = 0; i < o->nannotations; i++) {
        const Annotation *a = &o->annotation[i];
        const char *slash = strchr(a->pattern, '/');
        int found = slash ? place_values(m, a, slash) : place_arguments(m, a);
        if (!found && !a->optional) refuse_unmatched(m, a);
    }
    place_open(m, o);
    hand_on(model_of(m));
}
