/* kinds_ir.c - textual IR; see read.h. Here the second opinion is the program's own: what
 * is printed reads back as itself, and passes keep what the interpreter computes. */
#include "ir/sample.h"
#include "passes/passes.h"
#include "read.h"
#include <math.h>

/* Larger programs are read and printed, but not run: the interpreter is slow. */
enum { MOST_ELEMENTS = 20000, MOST_RANKS = 8, MOST_RUNS = 64 };
/* Numbers beyond say nothing about an order of sums. */
static const double most_value = 1e4, rounding = 1e-3, rounding_narrow = 0.05;

static Module *parse(Arena *mem, const char *name, const char *text) {
    return module_parse(mem, name, text, strlen(text));
}

static bool is_small(const Module *m) {
    int64_t elements = 0;
    if (mesh_ranks(&m->mesh) > MOST_RANKS) return false;
    for (const Func *f = m->first; f; f = f->next) {
        for (int i = 0; i < f->narg; i++) elements += type_count(&f->arg[i]->ty);
        for (const Op *o = f->first; o; o = o->next) {
            const Attr *times = attr_find(o->attr, "times");
            if (times && times->i > MOST_RUNS) return false;
            for (int i = 0; i < o->nout; i++) {
                int64_t n = type_count(&o->out[i]->ty);
                if (n > MOST_ELEMENTS || (elements += n) > MOST_ELEMENTS) return false;
            }
        }
        if (elements > MOST_ELEMENTS) return false;
    }
    return true;
}

static const Func *entry(const Module *m, const char *name) {
    for (const Func *f = m->first; f; f = f->next)
        if (func_is_entry(f) && (!name || !strcmp(f->name, name))) return f;
    return NULL;
}

/* false: the numbers are too large to compare, or none. */
static bool near(double a, double b, double tolerance, bool *comparable) {
    if (!(fabs(a) < most_value)) *comparable = false;
    return !*comparable || fabs(a - b) <= tolerance * fmax(1, fabs(a));
}

static const char *differs(Arena *mem, const Func *f, Tensor ***a, Tensor ***b, int ranks,
                           double tolerance) {
    bool comparable = true;
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < f->nret; i++)
            for (int64_t k = 0, n = type_count(&f->ret[i]->ty); k < n; k++) {
                double x = tensor_get(a[r][i], k), y = tensor_get(b[r][i], k);
                if (!near(x, y, tolerance, &comparable))
                    return arena_printf(mem, "result %d, element %lld: %.9g, then %.9g",
                                        i, (long long)k, x, y);
            }
    return "the same numbers";
}

/* As the program of one rank; false: it has more, or its placements are not decided. */
static bool plan(Module *m) {
    PassOptions o = pass_options_default();
    Catch c;
    if (!CATCH(c)) return false;
    passes_run(m, m->level < LEVEL_SHARDED ? "simplify,place,expand" : "simplify,expand",
               &o);
    passes_run(m, "epilogue,arrange,fuse,memplan", &o);
    catch_end(&c);
    return true;
}

/* Runs it, plans its printed form as the program of one rank, runs that. */
static const char *run_twice(Arena *mem, const Module *m, const char *text) {
    Module *p = parse(mem, "after.ir", text);
    const Func *f = entry(m, NULL), *g;
    if (!f || !is_small(m) || m->level > LEVEL_LOCAL) return "the same text";
    Tensor ***a = sample_results(mem, f);
    interp_run(mem, f, sample_arguments(mem, f), a);
    if (!plan(p)) return "the same text";
    g = entry(p, f->name);
    if (!g || g->narg != f->narg || g->nret != f->nret) return "another entry";
    Tensor ***b = sample_results(mem, g);
    interp_run(mem, g, sample_arguments(mem, g), b);
    return differs(mem, f, a, b, mesh_ranks(&m->mesh),
                   strstr(text, "f16[") ? rounding_narrow : rounding);
}

void read_ir(Arena *mem, const char *path, const char *more, Text *out) {
    (void)more;
    size_t n;
    const char *text = file_read(mem, path, 1 << 20, &n, EXIT_CONFIG);
    const Module *m = module_parse(mem, path, text, n);
    const char *once = module_print(mem, m);
    Catch c;
    if (!CATCH(c)) {
        text_add(out, "is printed, and then refused: %s\n%s", c.message, once);
        return;
    }
    const char *twice = module_print(mem, parse(mem, "again.ir", once));
    catch_end(&c);
    if (strcmp(once, twice)) {
        text_add(out, "is read back as another:\n%s\n%s", once, twice);
        return;
    }
    text_add(out, "%s", run_twice(mem, m, once));
}
