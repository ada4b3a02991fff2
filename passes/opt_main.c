/* opt_main.c - stator-opt: passes on textual IR.
 *     stator-opt [-p pass,pass] [-r] [--dump_ir DIR] [--time] FILE.ir
 * prints the module, or with -r runs every entry function in the interpreter, on all
 * ranks of its mesh, and prints a digest of each result, put together from its parts.
 * Arguments are parts of tensors made from their names, so digests before and after a
 * pass agree. */
#include "ir/sample.h"
#include "passes/passes.h"
#include <errno.h>

static void usage(FILE *to) {
    fprintf(
        to,
        "usage: stator-opt [-p pass,pass...] [-r] [-o KEY=VALUE] [-s PATTERN=PLACEMENT] "
        "[--dump_ir DIR] [--time] FILE.ir\n\npasses, in the order of a training "
        "program:\n");
    for (int i = 0; i < npasses; i++)
        fprintf(to, "  %-10s %s\n", passtab[i].name, passtab[i].doc);
    fprintf(to, "\noptions of passes (-o): ");
    pass_options_print(to);
    fputc('\n', to);
}

enum { MAX_ANNOTATIONS = 256 };
static Annotation annotation[MAX_ANNOTATIONS];

static void add_annotation(PassOptions *o, char *text) {
    char *eq = strrchr(text, '=');
    if (!eq) fail(EXIT_CONFIG, "-s wants PATTERN=PLACEMENT, got '%s'", text);
    if (o->nannotations == MAX_ANNOTATIONS) {
        fail(EXIT_CONFIG, "more than %d annotations", MAX_ANNOTATIONS);
    }
    *eq = 0;
    annotation[o->nannotations++] = (Annotation){text, eq + 1, "-s", false};
    o->annotation = annotation;
}

/* One line for a result, whatever its placement; one per rank where they differ. */
static void print_digest(const Func *f, const char *rank, int i, const Tensor *t) {
    double sum = 0, square = 0;
    for (int64_t k = 0, n = type_count(&t->ty); k < n; k++) {
        double v = tensor_get(t, k);
        sum += v;
        square += v * v;
    }
    printf("@%s %sresult %d: sum %.9g, sum of squares %.9g\n", f->name, rank, i, sum,
           square);
}

static void print_results(Arena *mem, const Func *f, Tensor ***ret) {
    for (int i = 0; i < f->nret; i++) {
        const Tensor *whole = sample_together(mem, f, ret, i);
        if (whole) print_digest(f, "", i, whole);
        for (int r = 0; !whole && r < mesh_ranks(&f->mod->mesh); r++)
            print_digest(f, arena_printf(mem, "rank %d ", r), i, ret[r][i]);
    }
}

static void run_stages(Arena *mem, const Module *m) {
    Tensor ****arg = NEW_ARRAY(mem, Tensor ***, (size_t)m->stages);
    Tensor ****ret = NEW_ARRAY(mem, Tensor ***, (size_t)m->stages);
    for (int k = 0; k < m->stages; k++) {
        const Func *f = module_stage(m, k);
        if (!f) fail(EXIT_CONFIG, "module @%s has no step of stage %d", m->name, k);
        arg[k] = sample_parts(mem, f);
        ret[k] = sample_results(mem, f);
    }
    const char *stuck = interp_run_stages(mem, m, arg, ret);
    if (stuck) fail(EXIT_CONFIG, "the stages wait for each other: %s", stuck);
    for (int k = 0; k < m->stages; k++) print_results(mem, module_stage(m, k), ret[k]);
}

static void run_entries(Arena *mem, const Module *m) {
    if (m->stages) {
        run_stages(mem, m);
        return;
    }
    int entries = 0;
    for (Func *f = m->first; f; f = f->next) {
        if (!func_is_entry(f)) continue;
        entries++;
        Tensor ***arg = sample_parts(mem, f), ***ret = sample_results(mem, f);
        interp_run(mem, f, arg, ret);
        print_results(mem, f, ret);
    }
    if (!entries)
        fail(EXIT_CONFIG,
             "module @%s has no function of role model or step to run: write "
             "func @NAME:model(...)",
             m->name);
}

typedef struct Command {
    Arena *mem;
    const char *passes, *file;
    bool run;
    PassOptions o;
} Command;

/* What several -p name goes on behind each other. */
static void add_passes(Command *c, char *list) {
    c->passes = *c->passes ? arena_printf(c->mem, "%s,%s", c->passes, list) : list;
}

/* Takes `word`, or both; how many, 0: neither is known. `value` is NULL behind the last. */
static int take(Command *c, const char *word, char *value) {
    bool option = word[0] == '-';
    if (!strcmp(word, "-r"))
        c->run = true;
    else if (!strcmp(word, "--time"))
        c->o.verbose = true;
    else if (!option && !c->file)
        c->file = word;
    else if (!option || !value)
        return 0;
    else if (!strcmp(word, "-p"))
        return add_passes(c, value), 2;
    else if (!strcmp(word, "-o"))
        return pass_option_set(&c->o, value), 2;
    else if (!strcmp(word, "-s"))
        return add_annotation(&c->o, value), 2;
    else if (!strcmp(word, "--dump_ir"))
        return c->o.dump_dir = value, 2;
    else
        return 0;
    return 1;
}

/* What was printed has gone out, or the exit code says that it has not. */
static int printed(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    fprintf(stderr, "%s: error: cannot write to stdout: %s\n", program_name,
            strerror(errno));
    return EXIT_DATA;
}

int main(int argc, char **argv) {
    program_name = "stator-opt";
    Arena *mem = arena_new();
    Command c = {.mem = mem, .passes = "", .o = pass_options_default()};
    for (int i = 1, n; i < argc; i += n) {
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) {
            usage(stdout);
            return printed();
        }
        n = take(&c, argv[i], argv[i + 1]);
        if (!n) {
            usage(stderr);
            return EXIT_CONFIG;
        }
    }
    if (!c.file) {
        usage(stderr);
        return EXIT_CONFIG;
    }
    size_t n;
    char *text = file_read(mem, c.file, 64 << 20, &n, EXIT_CONFIG);
    Module *m = module_parse(mem, c.file, text, n);
    passes_run(m, c.passes, &c.o);
    if (c.run)
        run_entries(mem, m);
    else
        fputs(module_print(mem, m), stdout);
    arena_free(mem);
    return printed();
}
