/* program.c (test) - compiled programs against the interpreter: every module of tests/ir
 * through the training passes, on both vector widths, with one thread and two. */
#include "../test.h"
#include "../tiles.h"
#include "codegen/codegen.h"
#include "ir/sample.h"
#include <dirent.h>

TEST_LABEL(SLOW);

static Module *read_module(Arena *mem, const char *path) {
    size_t n;
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    return module_parse(mem, path, text, n);
}

static int is_model(const struct dirent *d) {
    size_t n = strlen(d->d_name);
    return n > 3 && !strcmp(d->d_name + n - 3, ".ir");
}

/* Largest difference of two tensors over the largest magnitude. */
static double difference(const Tensor *want, const void *got) {
    double worst = 0, size = 1e-20;
    Tensor g = {want->ty, (void *)got};
    for (int64_t k = 0, n = type_count(&want->ty); k < n; k++) {
        double a = tensor_get(want, k), b = tensor_get(&g, k);
        if (a != a && b != b) continue;
        if (!(fabs(a - b) <= worst)) worst = fabs(a - b);
        size = fmax(size, fabs(a));
    }
    return worst / size;
}

/* Runs the module both ways on the same arguments; every result must agree. */
static void compare(Arena *mem, Module *m, const char *passes, const PassOptions *po,
                    const char *cpu, int threads, double tolerance, const char *what) {
    CompileOptions co = {
        .cpu = cpu, .threads = threads, .quick = test_quick(), .lower_anew = true};
    Program *p = program_make(mem, m, passes, po, &co);
    program_allocate(p, NULL, 0);
    Tensor ***arg = sample_arguments(mem, p->entry),
           ***ret = sample_results(mem, p->entry);
    for (int i = 0; i < p->entry->narg; i++) {
        memcpy(p->arg[i], arg[0][i]->data, (size_t)type_bytes(&p->entry->arg[i]->ty));
    }
    interp_run(mem, p->entry, arg, ret);
    program_run(p);
    for (int i = 0; i < p->entry->nret; i++) {
        double d = difference(ret[0][i], p->ret[i]);
        if (!(d <= tolerance)) {
            test_fail(__FILE__, __LINE__,
                      "%s, %s, %d threads: result %d (%s) differs by %.3g", what, cpu,
                      threads, i, p->entry->ret[i]->name, d);
        }
    }
    program_free(p);
}

/* A model that can be trained: it has parameters and a loss. */
static bool is_trainable(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (f->role != ROLE_MODEL || m->level != LEVEL_GLOBAL || mesh_ranks(&m->mesh) > 1)
            continue;
        bool param = false;
        for (int i = 0; i < f->narg; i++) param |= arg_role(f, i) == ARG_param;
        return param && f->nret && f->ret[0]->ty.rank == 0 && f->ret[0]->ty.dt == DT_F32;
    }
    return false;
}

static bool is_f32(Arena *mem, const Module *m) {
    const char *text = module_print(mem, m);
    return !strstr(text, "f64[") && !strstr(text, "f16[");
}

static void all_modules(const char *cpu, int threads, int micro_batches) {
    struct dirent **list;
    Arena *mem = arena_new();
    char *dir = arena_printf(mem, "%s/ir", tests_dir());
    int n = scandir(dir, &list, is_model, alphasort), ran = 0;
    for (int i = 0; i < n; i++) {
        const char *path = path_join(mem, dir, list[i]->d_name);
        Module *m = read_module(mem, path);
        if (!is_trainable(m) || !is_f32(mem, m)) continue;
        PassOptions po = pass_options_default();
        po.clip_norm = 1;
        po.decay_weights = true;
        po.micro_batches = micro_batches;
        if (micro_batches > 1) po.tile_bytes = 100, po.tile_rows = 1;
        static const char *const optimizers[] = {"adamw", "sgd", "adam", "momentum"};
        po.optimizer = optimizers[i % ARRAY_LEN(optimizers)];
        po.momentum = 0.9;
        compare(mem, m, train_passes, &po, cpu, threads, 2e-5, list[i]->d_name);
        ran++;
    }
    EXPECT(ran >= 2);
}

TEST(train_native_two_threads) {
    all_modules("native", 2, 1);
}
TEST(train_native_one_thread_micro_batches) {
    all_modules("native", 1, 3);
}
TEST(train_avx2) {
    all_modules("x86-64-v3", 2, 2);
}

/* Gradients of tables in narrow numbers: rounded once, so as near as one place of bf16. */
TEST(train_narrow_tables) {
    static const char *const cpus[] = {"native", "x86-64-v3"};
    Arena *mem = arena_new();
    const char *path = arena_printf(mem, "%s/ir/narrow_tables.ir", tests_dir());
    for (int i = 0; i < ARRAY_LEN(cpus); i++) {
        PassOptions po = pass_options_default();
        po.optimizer = "momentum";
        po.momentum = 0.9;
        Module *m = read_module(mem, path);
        compare(mem, m, train_passes, &po, cpus[i], 2, 0x1p-7, path);
    }
    arena_free(mem);
}

/* How far the results of a step in narrow numbers are from those in f32 at most, by the
 * interpreter. */
static double noise_of(Arena *mem, const Module *m, const PassOptions *narrow) {
    PassOptions plain = *narrow;
    const PassOptions *option[] = {&plain, narrow};
    Tensor ***ret[2];
    const Func *f = NULL;
    plain.narrow = DT_F32;
    for (int i = 0; i < 2; i++) {
        Module *step = module_clone(mem, m);
        passes_run(step, train_passes, option[i]);
        f = step->first;
        while (!func_is_entry(f)) f = f->next;
        ret[i] = sample_results(mem, f);
        interp_run(mem, f, sample_arguments(mem, f), ret[i]);
    }
    double most = 0;
    for (int i = 0; i < f->nret; i++)
        most = fmax(most, difference(ret[0][0][i], ret[1][0][i]->data));
    return most;
}

/* A sum in another order may be rounded to the neighbour, 2^-8 away in bf16, and what is
 * made of it is off by about as much as rounding does in that model at all; in models of
 * some dozen numbers by some times that. Gradients are the states of momentum. */
static void all_narrow(DType type, const char *cpu, bool residual_exact) {
    struct dirent **list;
    Arena *mem = arena_new();
    char *dir = arena_printf(mem, "%s/ir", tests_dir());
    int n = scandir(dir, &list, is_model, alphasort), ran = 0;
    for (int i = 0; i < n; i++) {
        Module *m = read_module(mem, path_join(mem, dir, list[i]->d_name));
        if (!is_trainable(m) || !is_f32(mem, m)) continue;
        PassOptions po = pass_options_default();
        po.narrow = type;
        po.scale_loss = type == DT_F16;
        po.residual_exact = residual_exact;
        po.micro_batches = 2;
        po.optimizer = "momentum";
        po.momentum = 0.9;
        compare(mem, m, train_passes, &po, cpu, 2, 4 * noise_of(mem, m, &po),
                list[i]->d_name);
        passes_run(m, train_passes, &po);
        const char *text = module_print(mem, m);
        ran += strstr(text, arena_printf(mem, " %s[", dtype_name[type])) != NULL;
    }
    EXPECT(ran >= 8);
}

/* A text that rounds itself: kernels round where it says so, so that the numbers, which it
 * makes coarse, are those of the interpreter. */
#define ROUNDED(T)                                                                       \
    "module @rounded mesh() level(global)\n"                                             \
    "\n"                                                                                 \
    "func @m:model(%x: f32[32,6] {role=\"data\"}, %labels: i32[32] {role=\"labels\"}, "  \
    "%w: f32[6,8] {role=\"param\"; init=\"normal\"; std=0.3}, %b: f32[32] "              \
    "{role=\"param\"; init=\"normal\"; std=0.3}, %c: f32[8] {role=\"param\"; "           \
    "init=\"normal\"; std=0.3}, %p: f32[8,5] {role=\"param\"; init=\"normal\"; "         \
    "std=0.3}) "                                                                         \
    "-> (f32[]) {\n"                                                                     \
    "  %xb = cast %x : " T "[32,6]\n"                                                    \
    "  %wb = cast %w : " T "[6,8]\n"                                                     \
    "  %h1 = dot %xb, %wb {mk,kn->mn} : " T "[32,8]\n"                                   \
    "  %k = fill {value=0.1} : " T "[32,8]\n"                                            \
    "  %h2 = mul %h1, %k : " T "[32,8]\n"                                                \
    "  %h3 = add %h2, %h1 : " T "[32,8]\n"                                               \
    "  %k2 = fill {value=1000} : " T "[32,8]\n"                                          \
    "  %h4 = add %h3, %k2 : " T "[32,8]\n"                                               \
    "  %h5 = sub %h4, %k2 : " T "[32,8]\n"                                               \
    "  %h = cast %h5 : f32[32,8]\n"                                                      \
    "  %a = gelu %h : f32[32,8]\n"                                                       \
    "  %y = dot %a, %p {mk,kn->mn} : f32[32,5]\n"                                        \
    "  %rows, %lse = xent %y, %labels : f32[32], f32[32]\n"                              \
    "  %l = sum %rows {m->_} : f32[]\n"                                                  \
    "  return %l\n"                                                                      \
    "}\n"

static void of_the_text(const char *text) {
    static const char *const cpus[] = {"native", "x86-64-v3"};
    for (int i = 0; i < ARRAY_LEN(cpus); i++) {
        Arena *mem = arena_new();
        Module *m = module_parse(mem, "rounded", text, strlen(text));
        PassOptions po = pass_options_default();
        po.optimizer = "sgd";
        compare(mem, m, train_passes, &po, cpus[i], 2, 1e-4, "rounded");
        arena_free(mem);
    }
}

TEST(bf16_of_the_text) {
    of_the_text(ROUNDED("bf16"));
}
TEST(f16_of_the_text) {
    of_the_text(ROUNDED("f16"));
}

/* ---- functions on their own ---- */

static void of_one_function(const char *text) {
    static const char passes[] = "place,expand,simplify,epilogue,arrange,fuse,memplan";
    Arena *mem = arena_new();
    Module *m = module_parse(mem, "text", text, strlen(text));
    PassOptions po = pass_options_default();
    compare(mem, m, passes, &po, "native", 2, 1e-5, "text");
    arena_free(mem);
}

/* Generated code has functions of kernels, products and tables besides. */
TEST(functions_have_any_name) {
    static const char *const names[] = {"k0", "k0.body", "product.0", "product.0.body",
                                        "f.by_table"};
    Arena *mem = arena_new();
    Text t = text_new(mem);
    text_add(&t, "module @names mesh() level(global)\n");
    for (int i = 0; i < ARRAY_LEN(names); i++)
        text_add(&t,
                 "func @%s(%%x: f32[8,6], %%w: f32[6,6]) -> (f32[8,6]) {\n"
                 "  %%y = dot %%x, %%w {mk,kn->mn} : f32[8,6]\n"
                 "  %%z = tanh %%y : f32[8,6]\n"
                 "  return %%z\n"
                 "}\n",
                 names[i]);
    text_add(&t, "func @f(%%x: f32[8,6]) -> (f32[8,6]) {\n"
                 "  %%y = exp %%x : f32[8,6]\n"
                 "  return %%y\n"
                 "}\n"
                 "func @m:model(%%x0: f32[8,6], %%w: f32[6,6], %%s: f32[2,6,6]) -> "
                 "(f32[8,6], f32[8,6]) {\n"
                 "  %%e = call %%x0 {fn=@f} : f32[8,6]\n");
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        bool loop = i % 2;
        text_add(&t, "  %%x%d = call %%x%d, %s {fn=@%s%s} : f32[8,6]\n", i + 1, i,
                 loop ? "%s" : "%w", names[i], loop ? "; times=2; carry=1; each=1" : "");
    }
    text_add(&t, "  return %%x%d, %%e\n}\n", ARRAY_LEN(names));
    of_one_function(t.s);
}

/* Of rows and of everything, of one tensor. */
TEST(more_sums_than_a_kernel_may_have) {
    Arena *mem = arena_new();
    Text ops = text_new(mem), out = text_new(mem), types = text_new(mem);
    for (int i = 0; i < 23; i++) {
        text_add(&ops,
                 "  %%t%d = scale %%x {by=0.%d} : f32[8,6]\n"
                 "  %%s%d = sum %%t%d {ab->a} : f32[8]\n"
                 "  %%m%d = max %%t%d {ab->a} : f32[8]\n"
                 "  %%u%d = sum %%t%d {ab->_} : f32[]\n",
                 i, i + 10, i, i, i, i, i, i);
        text_add(&out, "%s%%s%d, %%m%d, %%u%d", i ? ", " : "", i, i, i);
        text_add(&types, "%sf32[8], f32[8], f32[]", i ? ", " : "");
    }
    of_one_function(arena_printf(mem,
                                 "module @sums mesh() level(global)\n"
                                 "func @m:model(%%x: f32[8,6]) -> (%s) {\n"
                                 "%s  return %s\n"
                                 "}\n",
                                 types.s, ops.s, out.s));
}

/* Numbers that are alike are rounded the same way: the sum of many would drift, and with another
 * number of threads by another amount. */
TEST(sums_of_many_rows_do_not_drift) {
    enum { ROWS = 300000, INNER = 3 };
    static const char text[] = "module @many mesh() level(global)\n"
                               "func @m:model(%%x: f32[%d,%d]) -> (f32[], f32[]) {\n"
                               "  %%r = sum %%x {ab->a} : f32[%d]\n"
                               "  %%t = sum %%r {a->_} : f32[]\n"
                               "  %%u = sum %%x {ab->_} : f32[]\n"
                               "  return %%t, %%u\n"
                               "}\n";
    static const char *const cpu[] = {"native", "x86-64-v3"};
    for (int way = 0; way < 4; way++) {
        Arena *mem = arena_new();
        const char *s = arena_printf(mem, text, ROWS, INNER, ROWS);
        Module *m = module_parse(mem, "many.ir", s, strlen(s));
        PassOptions po = pass_options_default();
        CompileOptions co = {
            .cpu = cpu[way / 2], .threads = way % 2 ? 3 : 1, .lower_anew = true};
        Program *p = program_make(mem, m, predict_passes, &po, &co);
        program_allocate(p, NULL, 0);
        for (int i = 0; i < ROWS * INNER; i++) ((float *)p->arg[0])[i] = 4.437f;
        program_run(p);
        double want = (double)4.437f * ROWS * INNER;
        for (int i = 0; i < 2; i++) EXPECT_NEAR(*(float *)p->ret[i], want, 3e-7 * want);
        /* one that is not finite stays what it is */
        ((float *)p->arg[0])[5] = INFINITY;
        program_run(p);
        for (int i = 0; i < 2; i++) EXPECT(isinf(*(float *)p->ret[i]));
        program_free(p);
        arena_free(mem);
    }
}

/* What dropout reads whole another op reads or makes element by element. */
TEST(a_table_that_is_numbers_as_well) {
    of_one_function("module @table mesh() level(global)\n"
                    "func @m:model(%x: f32[4], %rng: i32[4]) -> (f32[4]) {\n"
                    "  %c = cast %rng : f32[4]\n"
                    "  %y = dropout %x, %rng {p=0.3; site=1} : f32[4]\n"
                    "  %z = mul %y, %c : f32[4]\n"
                    "  return %z\n"
                    "}\n");
    of_one_function("module @table mesh() level(global)\n"
                    "func @m:model(%x: f32[4]) -> (f32[4]) {\n"
                    "  %s = scale %x {by=100} : f32[4]\n"
                    "  %rng = cast %s : i32[4]\n"
                    "  %y = dropout %s, %rng {p=0.3; site=1} : f32[4]\n"
                    "  %z = mul %y, %x : f32[4]\n"
                    "  return %z\n"
                    "}\n");
}

TEST_LABEL_OF(f16_native, RELEASED);
TEST_LIMIT(f16_native, 180) {
    all_narrow(DT_F16, "native", false);
}
TEST_LABEL_OF(f16_avx2, QUICK);
TEST_LABEL_OF(f16_avx2, RELEASED);
TEST_LIMIT(f16_avx2, 180) {
    all_narrow(DT_F16, "x86-64-v3", true);
}
TEST_LIMIT(bf16_native, 180) {
    all_narrow(DT_BF16, "native", false);
}
TEST_LABEL_OF(bf16_residual_exact, RELEASED);
TEST_LIMIT(bf16_residual_exact, 180) {
    all_narrow(DT_BF16, "native", true);
}
TEST_LABEL_OF(bf16_avx2, RELEASED);
TEST_LIMIT(bf16_avx2, 180) {
    all_narrow(DT_BF16, "x86-64-v3", false);
}
TEST_LABEL_OF(bf16_avx512, QUICK);
TEST_LABEL_OF(bf16_avx512, RELEASED);
TEST_LIMIT(bf16_avx512, 180) {
    bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512cd") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!here) test_skip("the CPU has no AVX-512");
    all_narrow(DT_BF16, "x86-64-v4", false);
}
TEST_LABEL_OF(bf16_tiles, QUICK);
TEST_LABEL_OF(bf16_tiles, RELEASED);
TEST_LIMIT(bf16_tiles, 180) {
    tiles_need();
    all_narrow(DT_BF16, "sapphirerapids", false);
    tiles_expect_dots(1000);
}
