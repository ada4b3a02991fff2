/* seed.c - writes the placements that a strategy or a user asks for on arguments and
 * named values. Level global. An annotation is a pattern and a placement:
 *     "h.mlp.c_fc.weight"  "-,tp"      an argument of the model
 *     "layer/x"            "dp,cp.tp,-" a value of function @layer
 * `*` stands for any letters; one entry a dimension, `-` for whole; that of stacked
 * layers alone may be left out. The user's annotation of a value replaces the
 * strategy's; two of the user's that contradict each other on a value are refused.
 * A `gathered` one makes `%x.gathered = reshard %x` for the readers of %x, so that it has a
 * name, and may be kept or made again like any other value.
 * Parameters, and arguments that results overwrite (caches), without an annotation get their
 * placement from their uses. */
#include "ir/placement.h"
#include "passes/passes.h"
#include "passes/pipe/layers.h"

bool annotation_is_about(const Annotation *a, const char *func, const char *name) {
    const char *slash = strchr(a->pattern, '/');
    const char *value = slash ? slash + 1 : a->pattern;
    if (!slash != !func || (slash && !text_matches(func, a->pattern, slash)))
        return false;
    return text_matches(name, value, value + strlen(value));
}

static int entries(const char *text) {
    int n = 1;
    for (; *text; text++) n += *text == ',';
    return n;
}

/* What is wrong with an annotation: where the user says it, else at the op that makes the value
 * (may be NULL) if it has a line. */
static _Noreturn void refuse(const Annotation *a, const Value *v, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static _Noreturn void refuse(const Annotation *a, const Value *v, const char *fmt, ...) {
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    if (a->at.line) fail_at(EXIT_CONFIG, a->at, NULL, "%s: %s", a->source, message);
    if (v && v->def) fail_op(v->def, "%s: %s", a->source, message);
    fail(EXIT_CONFIG, "%s: %s", a->source, message);
}

static Axes parse_axes(const Module *m, const Annotation *a, const Value *v,
                       const char *word) {
    Axes axes = 0;
    if (!strcmp(word, "-") || mesh_axes_parse(&m->mesh, word, &axes)) return axes;
    if (!m->mesh.naxes)
        refuse(a, v, "'%s': '%s' is not '-', and the mesh has no axes", a->placement,
               word);
    refuse(a, v, "'%s': '%s' is not '-' nor made of the axes %s", a->placement, word,
           mesh_axes_text(m->mem, &m->mesh, (Axes)((1u << m->mesh.naxes) - 1)));
}

/* Is its first dimension that of stacked layers: does a loop take or give a slice a run? */
static bool is_stacked(const Func *f, const Value *v) {
    for (const Op *op = f->first; op; op = op->next) {
        if (!op_is_call(op)) continue;
        const Call c = call_of(op);
        for (int i = 0; i < op->nin; i++)
            if (op->in[i] == v && call_slices(&c, i)) return true;
        for (int i = c.carry; c.loop && i < op->nout; i++)
            if (op->out[i] == v) return true;
    }
    return false;
}

/* The type of the value as the annotation places it; fails where it cannot. */
static Type placed_by(const Module *m, const Annotation *a, const Func *f,
                      const Value *v) {
    int n = entries(a->placement), d = v->ty.rank - n;
    bool stacked = is_stacked(f, v);
    Axes used = 0;
    Type ty = v->ty;
    if (d < 0 || d > stacked || !v->ty.rank) {
        refuse(a, v,
               "'%s' has %d entr%s, but %%%s of @%s has %d dimension%s: write one for "
               "each%s, '-' where it is whole",
               a->placement, n, n == 1 ? "y" : "ies", v->name, f->name, v->ty.rank,
               v->ty.rank == 1 ? "" : "s",
               stacked ? " (that of stacked layers may be left out)" : "");
    }
    memset(ty.split, 0, sizeof ty.split);
    for (const char *p = a->placement; *p; d++) {
        size_t len = strcspn(p, ",");
        char *word = arena_strndup(m->mem, p, len);
        Axes axes = parse_axes(m, a, v, word);
        if (used & axes & (Axes)~AXES_REVERSED)
            refuse(a, v,
                   "'%s' uses an axis twice; an axis can split one dimension of a tensor",
                   a->placement);
        used |= axes;
        ty.split[d] = splitting_axes(&m->mesh, axes);
        int parts = mesh_group_size(&m->mesh, ty.split[d]);
        if (ty.dim[d] % parts)
            refuse(a, v,
                   "dimension %d of %%%s is %lld, which %d parts (%s) do not divide", d,
                   v->name, (long long)ty.dim[d], parts, word);
        p += len;
        p += *p == ',';
    }
    return ty;
}

/* ---- the values that an annotation is about ---- */

typedef struct Match {
    const Func *f;
    Value *v;
} Match;

typedef struct Matches {
    Arena *mem;
    Match *items;
    int n, cap;
} Matches;

static bool is_about(const Annotation *a, const Func *f, const Value *v) {
    if (annotation_is_about(a, f->name, v->name)) return true;
    return !v->def && f->role == ROLE_MODEL && annotation_is_about(a, NULL, v->name);
}

static void match(Matches *all, const Annotation *a, const Func *f, Value *v) {
    Match one = {f, v};
    if (is_about(a, f, v)) PUSH(all->mem, all->items, all->n, all->cap, one);
}

/* What an op keeps beside its result, as a norm its statistics, goes by the name of that. */
static bool is_kept_beside(const Annotation *a, const Func *f, const Op *op, int i) {
    const Value *result = op->out[0];
    return i && op->out[i]->ty.rank < result->ty.rank && is_about(a, f, result);
}

static Matches matches_of(const Module *m, const Annotation *a) {
    Matches all = {.mem = m->mem};
    for (const Func *f = m->first; f; f = f->next) {
        for (int i = 0; i < f->narg; i++) match(&all, a, f, f->arg[i]);
        for (const Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++)
                if (!is_kept_beside(a, f, op, i)) match(&all, a, f, op->out[i]);
    }
    return all;
}

/* The name without the number that a dump tells values of one name apart by, if one has it; NULL. */
static const char *without_number(const Module *m, const Annotation *a) {
    const char *dot = strrchr(a->pattern, '.');
    if (!dot || !dot[1] || dot[1 + strspn(dot + 1, "0123456789")]) return NULL;
    Annotation all = *a;
    all.pattern = arena_printf(m->mem, "%.*s", (int)(dot - a->pattern), a->pattern);
    return matches_of(m, &all).n ? all.pattern : NULL;
}

static void refuse_unmatched(const Module *m, const Annotation *a) {
    Func *f = layers_model(m);
    const char **names = NEW_ARRAY(m->mem, const char *, (size_t)f->narg + 1);
    for (int i = 0; i < f->narg; i++) names[i] = f->arg[i]->name;
    const char *near = without_number(m, a);
    if (!near) near = nearest_name(a->pattern, names, f->narg);
    refuse(a, NULL, "nothing is called '%s'%s%s", a->pattern,
           near ? "; did you mean "
                : "; values of a function are written function/value, and one "
                  "that nothing reads or another op computes as well is none",
           near ? near : "");
}

/* Two of the user's annotations, or two of the strategy's, say different things. */
static void refuse_both(const Module *m, const PassOptions *o, int nth, const Match *at,
                        const Type *ty) {
    const Annotation *a = &o->annotation[nth];
    for (int i = 0; i < nth; i++) {
        const Annotation *b = &o->annotation[i];
        if (a->derived != b->derived || a->gathered != b->gathered) continue;
        if (!is_about(b, at->f, at->v)) continue;
        Type other = placed_by(m, b, at->f, at->v);
        if (type_same_placement(&other, ty)) continue;
        refuse(
            a, at->v,
            "'%s=%s' places %%%s of @%s in another way than %s: '%s=%s'; write one entry "
            "for it, or patterns that do not meet",
            a->pattern, a->placement, at->v->name, at->f->name, b->source, b->pattern,
            b->placement);
    }
}

/* A product, its bias and its turned positions have one name: the last is what is gathered. */
static bool goes_on(const Annotation *a, const Func *f, const Value *v) {
    const Op *op = value_only_reader(f, v);
    return op && op->nout == 1 && is_about(a, f, op->out[0]);
}

static void gather(const Module *m, Op *def, Value *v, const Type *ty) {
    Builder b = build_behind(def);
    Value *whole = build_placed(&b, OP_reshard, NULL, *ty, v);
    whole->name = arena_printf(m->mem, "%s.gathered", v->name);
    value_replace_behind(v, whole);
}

static void place(const Module *m, const PassOptions *o, int nth) {
    const Annotation *a = &o->annotation[nth];
    Matches all = matches_of(m, a);
    if (!all.n && !a->optional) refuse_unmatched(m, a);
    for (int i = 0; i < all.n; i++) {
        Match *at = &all.items[i];
        if (a->gathered) {
            if (!at->v->def || at->v->ty.rank != entries(a->placement)) continue;
            if (goes_on(a, at->f, at->v)) continue;
            Type ty = placed_by(m, a, at->f, at->v);
            gather(m, at->v->def, at->v, &ty);
            continue;
        }
        Type ty = placed_by(m, a, at->f, at->v);
        refuse_both(m, o, nth, at, &ty);
        at->v->ty = ty;
    }
}

int seed_replaces(const Module *m, const Annotation *by, const Annotation *old) {
    Matches all = matches_of(m, by);
    int n = 0;
    for (int i = 0; i < all.n; i++) {
        const Match *at = &all.items[i];
        if (by->derived || !old->derived || !is_about(old, at->f, at->v)) continue;
        Type was = placed_by(m, old, at->f, at->v);
        Type is = placed_by(m, by, at->f, at->v);
        n += !type_same_placement(&was, &is);
    }
    return n;
}

/* The placement of an argument that is handed to a function is that of the function's
 * argument. */
static void hand_on(Func *f) {
    for (Op *op = f->first; op; op = op->next) {
        if (!op_is_call(op)) continue;
        const Call c = call_of(op);
        Func *callee = c.f;
        for (int i = 0; i < op->nin; i++) {
            const Value *v = op->in[i];
            bool sliced = call_slices(&c, i);
            if (v->def || !type_is_split(&v->ty) || type_is_split(&callee->arg[i]->ty))
                continue;
            Type ty = sliced ? type_slice(&v->ty) : v->ty;
            memcpy(callee->arg[i]->ty.split, ty.split, sizeof ty.split);
        }
    }
}

/* Parameters and caches without a placement of their own, nor an annotation that leaves
 * them whole. */
static void place_open(Module *m, const PassOptions *o) {
    Func *f = layers_model(m);
    bool *open = NEW_ARRAY(m->mem, bool, (size_t)f->narg + 1), any = false;
    for (int i = 0; i < f->narg; i++) {
        bool stored = arg_role(f, i) == ARG_param || func_result_over(f, i) >= 0;
        open[i] = stored && !type_is_split(&f->arg[i]->ty);
        for (int k = 0; k < o->nannotations && open[i]; k++) {
            open[i] = !is_about(&o->annotation[k], f, f->arg[i]);
        }
        any |= open[i];
    }
    if (any) propagate_params(m, f, open);
}

void pass_seed(Module *m, const PassOptions *o) {
    drop_single_axes(m);
    if (mesh_ranks(&m->mesh) == 1 && !o->nannotations) return;
    for (int derived = 1; derived >= 0; derived--)
        for (int i = 0; i < o->nannotations; i++)
            if (o->annotation[i].derived == derived) place(m, o, i);
    place_open(m, o);
    Func **order = module_order(m->mem, m);
    int n = order_length(order);
    while (n) hand_on(order[--n]);
}
