/* sharded.h - the training step of a module on a mesh, all ranks simulated by the
 * interpreter, against the step of the same module without placements. */
#ifndef STATOR_TEST_SHARDED_H
#define STATOR_TEST_SHARDED_H
#include "ir/sample.h"
#include "passes/passes.h"
#include "test.h"

static const char sharded_whole[] =
    "simplify,narrow,autodiff,simplify,round,train,hoist,simplify,place";
static const char sharded_local[] =
    "simplify,seed,zero,narrow,autodiff,simplify,round,"
    "train,hoist,simplify,shard,reshard,collect,simplify,localize,simplify,"
    "keep,sink,simplify,tile";

typedef struct Sharded {
    Arena *mem;
    Func *whole, *part; /* the two steps */
    int ranks, collectives;
    Tensor ***warg, ***wret; /* [0][i] */
    Tensor ***arg, ***ret;   /* [rank][i] */
} Sharded;

/* The module of a file, its axes of the mesh given new sizes. */
static inline Module *sharded_read(Arena *mem, const char *path, const int *axis_size) {
    size_t n;
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    const char *mesh = strstr(text, " mesh("), *end = mesh ? strchr(mesh, ')') : NULL;
    EXPECT(end);
    Text t = text_new(mem);
    for (const char *p = text; *p; p++) {
        text_add_bytes(&t, p, 1);
        if (p <= mesh || p >= end || *p != '=') continue;
        text_add(&t, "%d", *axis_size++);
        while (p[1] >= '0' && p[1] <= '9') p++;
    }
    return module_parse(mem, path, t.s, t.n);
}

static inline void sharded_forget(Value *v) {
    memset(v->ty.split, 0, sizeof v->ty.split);
    v->ty.pending = 0;
}

/* Takes mesh and placements away. */
static inline void sharded_make_whole(Module *m) {
    m->mesh.naxes = 0;
    for (Func *f = m->first; f; f = f->next) {
        for (int i = 0; i < f->narg; i++) sharded_forget(f->arg[i]);
        for (Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++) sharded_forget(op->out[i]);
    }
}

static inline Func *sharded_step_of(Module *m) {
    for (Func *f = m->first; f; f = f->next)
        if (f->role == ROLE_STEP) return f;
    test_fail(__FILE__, __LINE__, "module @%s has no step", m->name);
}

/* Numbers made from the names of the arguments, and their parts. */
static inline void sharded_fill(Sharded *s) {
    s->warg = sample_parts(s->mem, s->whole);
    s->arg = sample_parts(s->mem, s->part);
    s->wret = sample_results(s->mem, s->whole);
    s->ret = sample_results(s->mem, s->part);
    EXPECT(s->whole->narg == s->part->narg && s->whole->nret == s->part->nret);
}

static inline int sharded_collectives(const Module *m) {
    int n = 0;
    for (Func *f = m->first; f; f = f->next)
        for (Op *op = f->first; op; op = op->next)
            n += (optab[op->kind].flags & F_COMM) != 0;
    return n;
}

/* Two copies of a module; `whole` loses its placements. */
static inline Sharded sharded_open(Arena *mem, Module *whole, Module *part,
                                   const PassOptions *o) {
    Sharded s = {.mem = mem};
    PassOptions plain = *o;
    plain.nannotations = plain.zero_level = plain.overlap = 0;
    sharded_make_whole(whole);
    passes_run(whole, sharded_whole, &plain);
    passes_run(part, sharded_local, o);
    s.whole = sharded_step_of(whole);
    s.part = sharded_step_of(part);
    s.ranks = mesh_ranks(&part->mesh);
    s.collectives = sharded_collectives(part);
    sharded_fill(&s);
    return s;
}

static inline double sharded_off(double got, double want) {
    double off = fabs(got - want) / fmax(1, fabs(want));
    return off == off ? off : INFINITY;
}

/* Result i of all ranks, whose copies must be equal to the last bit, against the whole
 * one. */
static inline double sharded_compare(const Sharded *s, int i) {
    const Tensor *want = s->wret[0][i];
    const Tensor *got = sample_together(s->mem, s->part, s->ret, i);
    double worst = 0;
    EXPECT(got && type_count(&got->ty) == type_count(&want->ty));
    for (int64_t k = 0, n = type_count(&want->ty); k < n; k++)
        worst = fmax(worst, sharded_off(tensor_get(got, k), tensor_get(want, k)));
    return worst;
}

static inline void sharded_feed_back(const Func *f, Tensor **arg, Tensor **ret) {
    for (int i = 0; i < f->nret; i++)
        if (f->alias[i] >= 0)
            memcpy(arg[f->alias[i]]->data, ret[i]->data,
                   (size_t)type_bytes(&f->ret[i]->ty));
}

/* Runs both steps a few times; returns the worst difference of a number of a result,
 * relative where it is above 1. */
static inline double sharded_difference(Sharded *s, int steps) {
    double worst = 0;
    for (int step = 0; step < steps; step++) {
        interp_run(s->mem, s->whole, s->warg, s->wret);
        interp_run(s->mem, s->part, s->arg, s->ret);
        for (int i = 0; i < s->part->nret; i++)
            worst = fmax(worst, sharded_compare(s, i));
        sharded_feed_back(s->whole, s->warg[0], s->wret[0]);
        for (int r = 0; r < s->ranks; r++)
            sharded_feed_back(s->part, s->arg[r], s->ret[r]);
    }
    return worst;
}

#endif
