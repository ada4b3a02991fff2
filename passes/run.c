/* run.c - runs passes by name; this file alone checks levels, verifies, dumps and
 * times. */
#include "passes/passes.h"

#define PASS(name, from, to, doc) {#name, pass_##name, from, to, doc},
const Pass passtab[] = {
#include "passes/passes.def"
};
#undef PASS
const int npasses = ARRAY_LEN(passtab);

const char train_passes[] =
    "simplify,seed,zero,narrow,remake,cut,autodiff,simplify,round,halve,train,hoist,"
    "simplify,shard,reshard,collect,simplify,localize,simplify,keep,beside,sink,simplify,"
    "pipeline,meet,stage,simplify,ahead,simplify,tile,share,bucket,expand,simplify,"
    "epilogue,arrange,fuse,overlap,inline,memplan";
const char forward_passes[] =
    "simplify,seed,zero,narrow,remake,cut,hoist,simplify,hold,turn,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,pipeline,meet,stage,simplify,tile,share,"
    "bucket,"
    "expand,simplify,epilogue,arrange,fuse,overlap,inline,memplan";
const char predict_passes[] =
    "simplify,place,tile,expand,simplify,epilogue,arrange,fuse,memplan";

/* The name behind that one; an empty one at the end. */
static const char *next_of_list(const char *name) {
    name += strcspn(name, ",");
    return name + (*name == ',');
}

/* Is the first name of `at` one of the list? */
static bool list_has(const char *list, const char *at) {
    size_t n = strcspn(at, ",");
    for (; *list; list = next_of_list(list))
        if (strcspn(list, ",") == n && !memcmp(list, at, n)) return true;
    return false;
}

char *passes_part(Arena *mem, const char *list, const char *from, const char *to,
                  const char *without) {
    Text part = text_new(mem);
    bool begun = !from, ended = false;
    for (const char *p = without; *p; p = next_of_list(p)) check(list_has(list, p));
    for (const char *p = list; *p && !ended; p = next_of_list(p)) {
        begun = begun || list_has(from, p);
        ended = begun && to && list_has(to, p);
        if (!begun || ended || list_has(without, p)) continue;
        text_add(&part, "%s%.*s", part.n ? "," : "", (int)strcspn(p, ","), p);
    }
    check(begun && (ended || !to));
    return part.s;
}

PassOptions pass_options_default(void) {
    return (PassOptions){.stage = -1,
                         .stages = 1,
                         .stage_chunks = 1,
                         .schedule_name = "1f1b",
                         .micro_batches = 1,
                         .interleave = 1,
                         .optimizer = "adamw",
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .tile_bytes = 200 << 20,
                         .tile_rows = 128,
                         .zero_axes = ""};
}

const Pass *pass_find(const char *name) {
    for (int i = 0; i < npasses; i++) {
        if (!strcmp(passtab[i].name, name)) return &passtab[i];
    }
    return NULL;
}

static void dump(const Module *m, const PassOptions *o, int nth, const char *name) {
    Arena *mem = arena_new();
    char *text = module_print(mem, m);
    char *path = arena_printf(mem, "%s/%02d-%s.ir", o->dump_dir, nth, name);
    int error = dir_make(o->dump_dir);
    if (!error) error = file_write_atomic(path, text, strlen(text));
    if (error) fail(EXIT_CONFIG, "cannot write %s: %s", path, strerror(error));
    arena_free(mem);
}

/* "global or diffed" */
static const char *levels_text(Arena *mem, unsigned levels) {
    Text t = text_new(mem);
    for (int i = 0; levels >> i; i++) {
        if (levels >> i & 1) text_add(&t, "%s%s", t.n ? " or " : "", level_name[i]);
    }
    return t.s;
}

static void verify_after(const Module *m, const char *name) {
    Catch c;
    if (CATCH(c)) {
        module_verify(m, NULL, NULL);
        catch_end(&c);
    } else {
        die("after pass %s: %s", name, c.message);
    }
}

static void run_one(Module *m, const char *name, const PassOptions *o, int nth) {
    const Pass *p = pass_find(name);
    if (!p) {
        const char *names[ARRAY_LEN(passtab)];
        for (int i = 0; i < npasses; i++) names[i] = passtab[i].name;
        const char *near = nearest_name(name, names, npasses);
        fail(EXIT_CONFIG, "unknown pass '%s'%s%s", name, near ? "; did you mean " : "",
             near ? near : "");
    }
    if (!(p->from >> m->level & 1)) {
        fail(EXIT_CONFIG, "pass %s does not take a module at level %s; it takes %s", name,
             level_name[m->level], levels_text(m->mem, p->from));
    }
    double start = clock_seconds();
    p->run(m, o);
    if (p->to >= 0) m->level = (Level)p->to;
    double seconds = clock_seconds() - start;
    if (o->dump_dir) dump(m, o, nth, name);
    if (!o->unverified) verify_after(m, name);
    if (o->verbose) fprintf(stderr, "%-10s %8.2f ms\n", name, 1e3 * seconds);
}

void passes_run(Module *m, const char *names, const PassOptions *o) {
    char name[64];
    int nth = 0;
    for (const char *p = names; *p; nth++) {
        size_t n = strcspn(p, ",");
        if (n == 0 || n >= sizeof name)
            fail(EXIT_CONFIG, "a list of passes such as a,b,c");
        memcpy(name, p, n);
        name[n] = 0;
        run_one(m, name, o, nth + 1);
        p += n;
        p += *p == ',';
    }
}
