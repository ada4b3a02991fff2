/* preserve.c - passes keep the meaning of programs: every file of tests/ir and a few
 * hundred made programs, run by the interpreter before and after every pass. A pass that
 * does not reorder sums must keep every bit. */
#include "made.h"
#include "passes/passes.h"
#include "step_by_hand.h"
#include <dirent.h>

/* Where sums in another order are rounded to bf16, some become a neighbour, 2^-8 away. */
static const double narrow_rounding = 1.0 / 64;

/* ---- modules and their results ---- */

static Module *parse(Arena *mem, const char *name, const char *text) {
    return module_parse(mem, name, text, strlen(text));
}

/* print(parse(print(m))) must be print(m), byte for byte. */
static void check_round_trip(const char *what, const Module *m) {
    Arena *mem = arena_new();
    char *once = module_print(mem, m);
    char *twice = module_print(mem, parse(mem, what, once));
    if (strcmp(once, twice)) {
        test_fail(__FILE__, __LINE__, "%s: text\n%s\nis read back as\n%s", what, once,
                  twice);
    }
    arena_free(mem);
}

static void compare(const char *what, const Module *before, const Module *after,
                    double tol) {
    Arena *mem = arena_new();
    Func *f = entry(before), *g = entry(after);
    EXPECT_STR(g->name, f->name);
    EXPECT(f->narg == g->narg && f->nret == g->nret);
    Tensor ***a = sample_results(mem, f), ***b = sample_results(mem, g);
    interp_run(mem, f, sample_arguments(mem, f), a);
    interp_run(mem, g, sample_arguments(mem, g), b);
    for (int r = 0; r < mesh_ranks(&before->mesh); r++) {
        for (int i = 0; i < f->nret; i++) {
            Type now = g->ret[i]->ty;
            if (dtype_is_narrow(now.dt))
                now.dt = f->ret[i]->ty.dt; /* gradients, by round */
            EXPECT(type_same_shape(&f->ret[i]->ty, &now));
            for (int64_t k = 0, n = type_count(&f->ret[i]->ty); k < n; k++) {
                expect_same(what, f->ret[i]->name, k, tensor_get(b[r][i], k),
                            tensor_get(a[r][i], k), tol);
            }
        }
    }
    arena_free(mem);
}

/* ---- autodiff ---- */

static char *replaced(Arena *mem, const char *text, const char *from, const char *to) {
    Text t = text_new(mem);
    for (const char *p = text; *p;) {
        bool here = !strncmp(p, from, strlen(from));
        text_add(&t, "%.*s", here ? (int)strlen(to) : 1, here ? to : p);
        p += here ? strlen(from) : 1;
    }
    return t.s;
}

/* The same program with all floats in f64. */
static Module *doubled(Arena *mem, const Module *m) {
    char *text = replaced(mem, module_print(mem, m), "bf16[", "f64[");
    text = replaced(mem, text, "f16[", "f64[");
    return parse(mem, m->name, replaced(mem, text, "f32[", "f64["));
}

static double loss_at(const Func *f, Tensor **arg, Tensor *t, int64_t k, double v) {
    Arena *mem = arena_new();
    double old = tensor_get(t, k);
    tensor_set(t, k, v);
    double loss = tensor_get(run_on(mem, f, arg)[0], 0);
    tensor_set(t, k, old);
    arena_free(mem);
    return loss;
}

/* First, middle and last element of the gradient of every parameter against differences.
 */
static void check_slopes(const char *what, const Func *model, const Func *grad) {
    Arena *mem = arena_new();
    Tensor **arg = sample_arguments(mem, grad)[0], **ret = run_on(mem, grad, arg);
    int nth = model->nret;
    for (int i = 0; i < model->narg; i++) {
        if (arg_role(model, i) != ARG_param) continue;
        Tensor *g = ret[nth++];
        int64_t n = type_count(&arg[i]->ty), at[] = {0, n / 2, n - 1};
        for (int k = 0; k < 3; k++) {
            double x = tensor_get(arg[i], at[k]), h = 1e-5;
            double slope = (loss_at(model, arg, arg[i], at[k], x + h) -
                            loss_at(model, arg, arg[i], at[k], x - h)) /
                           (2 * h);
            expect_same(what, arg_str(grad, i, "hf", grad->arg[i]->name), at[k],
                        tensor_get(g, at[k]), slope, 1e-6);
        }
    }
    EXPECT_INT(nth, grad->nret);
    arena_free(mem);
}

static double largest(const Tensor *t) {
    double most = 1;
    for (int64_t k = 0, n = type_count(&t->ty); k < n; k++)
        most = fmax(most, fabs(tensor_get(t, k)));
    return most;
}

/* The model's results stay, bit for bit; gradients are slopes, and those of the f32
 * program are near those of the f64 program. */
static void check_autodiff(const char *what, const Module *before, const Module *after) {
    Arena *mem = arena_new();
    Func *f = entry(before), *g = entry(after);
    EXPECT_INT(g->narg, f->narg + 1);
    Tensor **arg = sample_arguments(mem, g)[0];
    Tensor **a = run_on(mem, f, arg), **b = run_on(mem, g, arg);
    for (int i = 0; i < f->nret; i++) {
        for (int64_t k = 0, n = type_count(&f->ret[i]->ty); k < n; k++) {
            expect_same(what, f->ret[i]->name, k, tensor_get(b[i], k),
                        tensor_get(a[i], k), 0);
        }
    }
    Module *f64 = doubled(mem, before), *g64 = module_clone(mem, f64);
    PassOptions o = pass_options_default();
    passes_run(g64, "autodiff", &o);
    check_slopes(what, entry(f64), entry(g64));
    bool narrow = strstr(module_print(mem, before), "f16[");
    Tensor **c = run_on(mem, entry(g64), sample_arguments(mem, entry(g64))[0]);
    for (int i = f->nret; i < g->nret; i++) {
        double size = largest(c[i]);
        for (int64_t k = 0, n = type_count(&g->ret[i]->ty); k < n; k++) {
            double want = tensor_get(c[i], k);
            double tol = narrow ? 0.05 * size / fmax(1, fabs(want)) : 1e-4;
            expect_same(what, g->ret[i]->name, k, tensor_get(b[i], k), want, tol);
        }
    }
    arena_free(mem);
}

/* ---- sequences ---- */

static double tolerance_of(const char *pass, const PassOptions *o) {
    static const char *const reorder[] = {"expand", "epilogue", "arrange", "tile"};
    if (!strcmp(pass, "sink") && o->interleave > 1) return rounding; /* sums of parts */
    if (!strcmp(pass, "narrow") && o->narrow) return 0.05;           /* it rounds */
    if (!strcmp(pass, "round") && o->round_gradients) return narrow_rounding;
    for (int i = 0; i < ARRAY_LEN(reorder); i++) {
        if (!strcmp(pass, reorder[i])) return o->narrow ? narrow_rounding : rounding;
    }
    return 0;
}

/* So that the small modules of the tests have something to tile. */
static PassOptions options_with_tiles(void) {
    PassOptions o = pass_options_default();
    o.tile_bytes = 100;
    o.tile_rows = 1;
    return o;
}

/* Runs the passes one by one, each on a module read back from the text of the last. */
static void check_sequence(const char *file, const Module *start, const char *names,
                           const PassOptions *o) {
    Arena *mem = arena_new();
    Module *before = module_clone(mem, start);
    for (const char *p = names; *p;) {
        char *name = arena_strndup(mem, p, strcspn(p, ","));
        p += strlen(name);
        p += *p == ',';
        char *what = arena_printf(mem, "%s, pass %s of %s (%s, %lld micro-batches)", file,
                                  name, names, o->optimizer, (long long)o->micro_batches);
        test_at("%s", what);
        Module *after = module_clone(mem, before);
        passes_run(after, name, o);
        check_round_trip(what, after);
        if (!strcmp(name, "autodiff"))
            check_autodiff(what, before, after);
        else if (!strcmp(name, "train"))
            check_train(what, before, after, o);
        else
            compare(what, before, after, tolerance_of(name, o));
        before = after;
    }
    arena_free(mem);
}

static bool can_train(const Module *m) {
    const Func *f = entry(m);
    return m->level == LEVEL_GLOBAL && f->ret[0]->ty.rank == 0;
}

static void check_alone(const char *file, const Module *m, const PassOptions *o) {
    for (int i = 0; i < npasses; i++) {
        const Pass *p = &passtab[i];
        bool model_only = !strcmp(p->name, "autodiff") && !can_train(m);
        bool composites = !strcmp(p->name, "fuse");  /* wants expand before */
        bool changes = !strcmp(p->name, "evaluate"); /* what it is for */
        if (!(p->from >> m->level & 1) || model_only || composites || changes) continue;
        check_sequence(file, m, p->name, o);
    }
}

static void each_file(void (*visit)(const char *, const Module *)) {
    Arena *mem = arena_new();
    char *dir = arena_printf(mem, "%s/ir", tests_dir());
    DIR *d = opendir(dir);
    EXPECT(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t length = strlen(e->d_name), size;
        if (length < 3 || strcmp(e->d_name + length - 3, ".ir")) continue;
        char *path = path_join(mem, dir, e->d_name);
        char *text = file_read(mem, path, 1 << 20, &size, EXIT_CONFIG);
        visit(e->d_name, module_parse(mem, path, text, size));
        n++;
    }
    closedir(d);
    EXPECT(n >= 10);
    arena_free(mem);
}

static void visit_alone(const char *file, const Module *m) {
    PassOptions o = options_with_tiles();
    check_round_trip(file, m);
    check_alone(file, m, &o);
}

static void visit_predict(const char *file, const Module *m) {
    PassOptions o = options_with_tiles();
    bool local = m->level == LEVEL_LOCAL;
    check_sequence(file, m, local ? strstr(predict_passes, "expand") : predict_passes,
                   &o);
    check_sequence(
        file, m,
        local ? "expand,arrange,fuse,memplan" : "place,expand,arrange,fuse,memplan", &o);
}

static void train_with(const char *file, const Module *m, int64_t micro_batches,
                       const char *optimizer) {
    PassOptions o = options_with_tiles();
    o.micro_batches = micro_batches;
    o.optimizer = optimizer;
    o.decay_weights = true;
    o.momentum = 0.9;
    o.clip_norm = micro_batches > 1 ? 0.5 : 0;
    o.remake = micro_batches > 1 ? "full" : NULL;
    if (can_train(m)) check_sequence(file, m, train_passes, &o);
}

static void visit_adamw(const char *file, const Module *m) {
    train_with(file, m, 1, "adamw");
    train_with(file, m, 3, "adamw");
}

static void visit_parts(const char *file, const Module *m) {
    PassOptions o = options_with_tiles();
    o.micro_batches = 2;
    o.interleave = 3;
    o.optimizer = "sgd";
    if (can_train(m)) check_sequence(file, m, train_passes, &o);
}

static void visit_narrow(const char *file, const Module *m) {
    PassOptions o = pass_options_default();
    o.micro_batches = 2;
    o.optimizer = "momentum";
    o.momentum = 0.9;
    for (int i = 0; i < 3 && can_train(m); i++) {
        o.narrow = i < 2 ? DT_BF16 : DT_F16;
        o.scale_loss = o.narrow == DT_F16;
        o.residual_exact = i == 1;
        o.round_sums = i == 1;
        o.round_gradients = i == 1; /* of f16 sums are inf in some of these */
        o.remake = i == 1 ? "full" : NULL;
        check_sequence(file, m, train_passes, &o);
    }
}

static void visit_adam(const char *file, const Module *m) {
    train_with(file, m, 1, "adam");
}

static void visit_sgd(const char *file, const Module *m) {
    train_with(file, m, 1, "sgd");
    train_with(file, m, 3, "momentum");
}

TEST(each_pass_alone) {
    each_file(visit_alone);
}

/* ---- passes that have something to preserve ---- */

/* These change nothing in programs of one rank; sharded_ir, overlap and pipeline have
 * others. (meet changes no program at all: it only refuses some.) */
static const char *const for_ranks[] = {
    "seed", "zero",     "cut",  "halve", "shard", "reshard", "collect",
    "keep", "pipeline", "meet", "stage", "ahead", "bucket",  "overlap"};

static bool changed[64]; /* by pass */

static void visit_changes(const char *file, const Module *m) {
    if (!can_train(m)) return;
    test_at("%s", file);
    Arena *mem = arena_new();
    Module *now = module_clone(mem, m);
    PassOptions o = options_with_tiles();
    o.micro_batches = 2;
    o.interleave = 2;
    o.remake = "full";
    o.narrow = DT_BF16;
    o.round_gradients = true;
    char *names = arena_strdup(mem, train_passes);
    char *before = module_print(mem, now);
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
        passes_run(now, name, &o);
        char *after = module_print(mem, now);
        /* the first line has the level */
        if (strcmp(strchr(before, '\n'), strchr(after, '\n')))
            changed[pass_find(name) - passtab] = true;
        before = after;
    }
    arena_free(mem);
}

/* Else the other tests of this file hold nothing against it. */
TEST(training_passes_change_something) {
    EXPECT(npasses <= ARRAY_LEN(changed));
    each_file(visit_changes);
    for (int i = 0; i < npasses; i++) {
        const char *name = passtab[i].name;
        size_t n = strlen(name);
        bool runs = false, excused = false;
        for (const char *p = train_passes; *p; p += strcspn(p, ","), p += *p == ',')
            runs |= strcspn(p, ",") == n && !strncmp(p, name, n);
        for (int k = 0; k < ARRAY_LEN(for_ranks); k++)
            excused |= !strcmp(for_ranks[k], name);
        if (runs && !excused && !changed[i])
            test_fail(__FILE__, __LINE__,
                      "pass %s changes no file of tests/ir: add one that has what it "
                      "looks for",
                      name);
        if (excused && changed[i])
            test_fail(__FILE__, __LINE__, "pass %s needs not stand in for_ranks", name);
    }
}

TEST(predict_pipeline) {
    each_file(visit_predict);
}

TEST_LABEL_OF(train_pipeline_adamw, RELEASED);
TEST_LIMIT(train_pipeline_adamw, 180) {
    each_file(visit_adamw);
}

TEST_LABEL_OF(train_pipeline_adam, RELEASED);
TEST_LIMIT(train_pipeline_adam, 180) {
    each_file(visit_adam);
}

TEST_LABEL_OF(train_pipeline_narrow, RELEASED);
TEST_LIMIT(train_pipeline_narrow, 180) {
    each_file(visit_narrow);
}

TEST_LABEL_OF(train_pipeline_parts, RELEASED);
TEST_LIMIT(train_pipeline_parts, 180) {
    each_file(visit_parts);
}

TEST_LABEL_OF(train_pipeline_sgd, RELEASED);
TEST_LIMIT(train_pipeline_sgd, 180) {
    each_file(visit_sgd);
}

TEST_LABEL_OF(made_programs, SLOW);
TEST_LIMIT(made_programs, 120) {
    PassOptions o = options_with_tiles();
    for (uint64_t seed = 1; seed <= 400; seed++) {
        Arena *mem = arena_new();
        char *text = made_program(mem, seed),
             *name = arena_printf(mem, "made program %d", (int)seed);
        Module *m = parse(mem, name, text);
        check_sequence(name, m, "simplify,epilogue,arrange,fuse,memplan", &o);
        check_sequence(name, m, "fuse,memplan", &o);
        arena_free(mem);
    }
}
