/* shard.c - the passes from placements to the program of a rank, on a module from any
 * bytes with placements by dice (their seed is the hash of the bytes): they refuse it
 * with a sentence, or make a module that holds (the runner verifies after each pass) and
 * reads back as it prints. */
#define _GNU_SOURCE /* memmem */
#include "base/rng.h"
#include "passes/passes.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { MOST_VALUES = 2000 /* more only takes longer */, MOST_ANNOTATIONS = 2 };

typedef struct Dice {
    uint64_t seed, thrown;
} Dice;

static int throw(Dice * d, int sides) {
    return (int)(rng_uniform(d->seed, 1, d->thrown++) * sides);
}

static void add_mesh(Dice *d, Mesh *m) {
    static const char *const names[] = {"dp", "cp", "tp"};
    static const int sizes[] = {2, 3, 4, 1, 2};
    if (m->naxes && throw(d, 2)) return;
    m->naxes = 1 + throw(d, 3);
    for (int a = 0; a < m->naxes; a++) {
        m->axis[a].name = names[a];
        m->axis[a].size = sizes[throw(d, 5)];
    }
}

/* As the parser reads it: sizes divide, an axis stands once, two have an order. */
static void place(Dice *d, const Mesh *m, Value *v) {
    memset(v->ty.split, 0, sizeof v->ty.split);
    v->ty.pending = 0;
    for (int a = 0; a < m->naxes; a++) {
        int at = throw(d, 2 * v->ty.rank + 1);
        if (at >= v->ty.rank) continue;
        Axes axes = v->ty.split[at] | (Axes)(1u << a);
        if (throw(d, 2)) axes |= AXES_REVERSED;
        axes = axes_normal(axes);
        if (v->ty.dim[at] % mesh_group_size(m, axes) == 0) v->ty.split[at] = axes;
    }
}

/* Arguments and values lose their placements, which may be over axes that are no more. */
static int place_all(Dice *d, Module *m, int one_in) {
    int values = 0;
    for (Func *f = m->first; f; f = f->next) {
        for (int i = 0; i < f->narg; i++, values++) {
            bool often = f->role == ROLE_MODEL || !throw(d, one_in);
            place(d, often ? &m->mesh : &(Mesh){0}, f->arg[i]);
        }
        for (Op *op = f->first; op; op = op->next) {
            for (int i = 0; i < op->nout; i++, values++)
                place(d, throw(d, one_in) ? &(Mesh){0} : &m->mesh, op->out[i]);
        }
    }
    return values;
}

static Annotation annotation(Dice *d) {
    static const char *const patterns[] = {"*", "*/*", "w*", "*/y", "x", "**/", "/"};
    static const char *const placements[] = {
        "dp", "-,tp", "tp.cp,-", "cp,dp,tp", "-,-", "tp,-,-", "dp,dp", "", ",,", "dp..x"};
    return (Annotation){patterns[throw(d, ARRAY_LEN(patterns))],
                        placements[throw(d, ARRAY_LEN(placements))], "fuzz",
                        .optional = throw(d, 4), .derived = throw(d, 2)};
}

static PassOptions options(Dice *d, Annotation *list) {
    PassOptions o = pass_options_default();
    o.annotation = list;
    o.nannotations = throw(d, 3) ? 0 : MOST_ANNOTATIONS;
    for (int i = 0; i < o.nannotations; i++) list[i] = annotation(d);
    o.zero_level = throw(d, 4);
    o.zero_axes = "dp";
    o.micro_batches = 1 + throw(d, 2);
    static const char *const optimizers[] = {"adamw", "adam", "momentum", "sgd"};
    o.optimizer = optimizers[throw(d, ARRAY_LEN(optimizers))];
    o.overlap = throw(d, 3);
    o.bucket_bytes = throw(d, 2) ? 64 : 1 << 20;
    return o;
}

static const char *passes_for(Dice *d, Level level) {
    static const char *const of_level[][2] = {
        [LEVEL_GLOBAL] =
            {"simplify,seed,zero,autodiff,simplify,train,simplify,shard,reshard,"
             "collect,simplify,localize,simplify,keep,sink,simplify,bucket",
             "simplify,seed,zero,shard,reshard,collect,simplify,localize,bucket"},
        [LEVEL_DIFFED] = {"train,simplify,shard,reshard,collect,localize,bucket",
                          "shard,reshard,collect,localize"},
        [LEVEL_SHARDED] = {"reshard,collect,localize,bucket", "collect,localize"}};
    return of_level[level][throw(d, 2)];
}

static void read_back(Arena *mem, const Module *m) {
    const char *once = module_print(mem, m), *volatile twice = NULL;
    Catch c;
    if (CATCH(c)) {
        twice = module_print(mem, module_parse(mem, "again.ir", once, strlen(once)));
        catch_end(&c);
    }
    if (twice && !strcmp(once, twice)) return;
    fprintf(stderr, "%s\nis read back as\n%s\n", once, twice ? twice : c.message);
    abort();
}

/* A module at level sharded keeps its own placements. */
static void run(Arena *mem, Module *m, Dice *d) {
    Annotation list[MOST_ANNOTATIONS];
    PassOptions o = options(d, list);
    if (m->level < LEVEL_SHARDED) {
        add_mesh(d, &m->mesh);
        if (place_all(d, m, 2 + throw(d, 10)) > MOST_VALUES) return;
    }
    passes_run(m, passes_for(d, m->level), &o);
    read_back(mem, m);
}

/* Cases of tests/passes have what comes out behind the module. */
static size_t input_bytes(const char *text, size_t n) {
    static const char mark[] = "\n# EXPECT";
    const char *at = memmem(text, n, mark, strlen(mark));
    return at ? (size_t)(at - text) : n;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    Arena *mem = arena_new();
    Module *volatile m = NULL;
    const char *text = (const char *)bytes;
    Dice d = {hash64(bytes, n), 0};
    Catch c;
    if (CATCH(c)) {
        m = module_parse(mem, "fuzz.ir", text, input_bytes(text, n));
        catch_end(&c);
    }
    if (m && m->level <= LEVEL_SHARDED) {
        if (CATCH(c)) {
            run(mem, m, &d);
            catch_end(&c);
        }
        if (c.code && (c.code < EXIT_CONFIG || c.code > EXIT_MEMORY)) abort();
    }
    arena_free(mem);
    return 0;
}
