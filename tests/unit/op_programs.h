/* op_programs.h - programs, arguments and runs of the samples of ops.h. */
#ifndef STATOR_TESTS_OP_PROGRAMS_H
#define STATOR_TESTS_OP_PROGRAMS_H
#include "../test.h"
#include "base/rng.h"
#include "ir/ir.h"
#include "ops.h"
#include "passes/passes.h"

/* Writes `text` with F as the element type, S as that of sums, and N* / N/ by the ranks of
 * axis a. */
static inline void spell(Text *t, const char *text, const char *type, int ranks) {
    for (const char *p = text; *p; p++) {
        size_t digits = strspn(p, "0123456789");
        if (p[0] == 'F' && p[1] == '[') {
            text_add(t, "%s", type);
        } else if (p[0] == 'S' && p[1] == '[') {
            text_add(t, "%s", strcmp(type, "bf16") && strcmp(type, "f16") ? type : "f32");
        } else if (digits && (p[digits] == '*' || p[digits] == '/')) {
            int n = atoi(p);
            text_add(t, "%d", p[digits] == '*' ? n * ranks : n / ranks);
            p += digits;
        } else {
            text_add(t, "%c", *p);
        }
    }
}

static inline Module *sample_module(Arena *mem, const Sample *s, const char *type,
                                    const char *mesh, int ranks, const char *level) {
    test_at("sample %s {%s}", s->kind, s->body);
    Text t = text_new(mem);
    text_add(&t, "module @t mesh(%s) level(%s)\n", mesh, level);
    if (s->more) spell(&t, s->more, type, ranks);
    text_add(&t, "func @t:model(");
    spell(&t, s->args, type, ranks);
    text_add(&t, ") -> () {\n  ");
    spell(&t, s->body, type, ranks);
    text_add(&t, "\n  return\n}\n");
    return module_parse(mem, s->kind, t.s, t.n);
}

static inline bool is_comm(const Sample *s) {
    return (optab[op_kind(s->kind)].flags & (F_COMM | F_RANK)) != 0;
}

/* Does it need a mesh, if only to say what part of a tensor it works on? */
static inline bool on_mesh(const Sample *s) {
    return is_comm(s) || strstr(s->body, "of=\"");
}

/* `text` with every `from` replaced by `to`. */
static inline char *replaced(Arena *mem, const char *text, const char *from,
                             const char *to) {
    Text t = text_new(mem);
    for (const char *p = text, *at; *p; p = at + strlen(from)) {
        at = strstr(p, from);
        if (!at) {
            text_add(&t, "%s", p);
            break;
        }
        text_add_bytes(&t, p, (size_t)(at - p));
        text_add(&t, "%s", to);
    }
    return t.n ? t.s : "";
}

/* The program of a sample outside of a mesh, or on two ranks where it needs some. */
static inline Module *plain_module(Arena *mem, const Sample *s, const char *type) {
    bool comm = on_mesh(s);
    return sample_module(mem, s, type, comm ? "a=2" : "", comm ? 2 : 1,
                         comm ? "local" : "global");
}

static inline Func *entry(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_MODEL) return f;
    }
    test_fail(__FILE__, __LINE__, "no model in @%s", m->name);
}

static inline void return_results(Func *f) {
    for (int i = 0; i < f->last->nout; i++) func_ret(f, f->last->out[i], -1);
}

static inline bool starts(const char *s, const char *with) {
    return !strncmp(s, with, strlen(with));
}

static inline void fill_argument(Tensor *t, const char *name, int rank) {
    static const int words[RNG_WORDS] = {7, 123456789, 3, 1};
    uint64_t stream = hash64(name, strlen(name)) + (uint64_t)rank;
    for (int64_t i = 0, n = type_count(&t->ty); i < n; i++) {
        double u = rng_uniform(5, stream, (uint64_t)i), x = 2 * u - 1;
        if (starts(name, "pos")) x = 0.5 + u;
        if (starts(name, "nz")) x += x < 0 ? -0.1 : 0.1;
        if (starts(name, "ids")) x = floor(4 * u);
        if (starts(name, "lab")) x = floor(5 * u) - 1;
        if (starts(name, "off")) x = 2;
        if (starts(name, "later")) x = 4;
        if (starts(name, "back")) x = -2;
        if (starts(name, "lost")) x = -1000;
        if (starts(name, "far_back"))
            x = -70;
        else if (starts(name, "far"))
            x = INT32_MAX;
        if (starts(name, "rng")) x = words[i];
        if (starts(name, "zero")) x = 0;
        if (starts(name, "first"))
            x = floor(u * (double)(1 + i % t->ty.dim[t->ty.rank - 1]));
        tensor_set(t, i, x);
    }
}

static inline Tensor ***make_arguments(Arena *mem, const Func *f) {
    int n = mesh_ranks(&f->mod->mesh);
    Tensor ***arg = NEW_ARRAY(mem, Tensor **, (size_t)n);
    for (int r = 0; r < n; r++) {
        arg[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->narg + 1);
        for (int i = 0; i < f->narg; i++) {
            arg[r][i] = tensor_new(mem, &f->arg[i]->ty);
            fill_argument(arg[r][i], f->arg[i]->name, r);
        }
    }
    return arg;
}

static inline Tensor ***run(Arena *mem, const Func *f, Tensor ***arg) {
    int n = mesh_ranks(&f->mod->mesh);
    Tensor ***ret = NEW_ARRAY(mem, Tensor **, (size_t)n);
    for (int r = 0; r < n; r++) ret[r] = NEW_ARRAY(mem, Tensor *, (size_t)f->nret + 1);
    interp_run(mem, f, arg, ret);
    return ret;
}

/* Equal, or both not numbers, or within tol * max(1, |b|). */
static inline bool near(double a, double b, double tol) {
    return a == b || (a != a && b != b) || fabs(a - b) <= tol * fmax(1, fabs(b));
}

#endif
