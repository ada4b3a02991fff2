/* product_choices.c - the form of each matrix product: what a text says, what is measured, what
 * is kept for the next program and the next run, and that ranks and a resume have the same. */
#include "codegen/product_choices.h"
#include "base/rng.h"
#include "codegen/codegen.h"
#include "codegen/product.h"
#include "codegen/product_trial.h"
#include "ranks.h"
#include "runtime/core/rt.h"
#include <sys/wait.h>
#include <unistd.h>

/* Two products of f32 with a bias, and one whose factor lies across. */
static const char text[] =
    "module @t mesh() level(local)\n"
    "func @t:model(%x: f32[96,80], %w: f32[80,128], %b: f32[128], %v: f32[96,64]) -> "
    "(f32[96,128], f32[80,64]) {\n"
    "  %y = dot %x, %w, %b {mk,kn,n->mn} : f32[96,128]\n"
    "  %z = dot %x, %v {mk,mn->kn} : f32[80,64]\n"
    "  return %y, %z\n}\n";

static ProductChoices choices(double seconds, const char *given) {
    return (ProductChoices){
        .mem = mem(), .limit_seconds = seconds, .given = given, .given_from = "the text"};
}

static Module *module_of(const char *of) {
    Module *m = module_parse(mem(), "products", of, strlen(of));
    module_verify(m, "products", of);
    return m;
}

static Module *parsed(void) {
    return module_of(text);
}

static Program *made(ProductChoices *c) {
    PassOptions po = pass_options_default();
    CompileOptions co = {.threads = 1, .lower_anew = true, .choices = c};
    return program_make(mem(), parsed(), "epilogue,arrange,fuse,memplan", &po, &co);
}

/* Of the program's products, in order; "rule" where there is no attribute. */
static const char *form_of(const Program *p, int nth) {
    for (const Op *op = p->entry->first; op; op = op->next) {
        if (op->kind != OP_dot || nth--) continue;
        const Attr *form = op_attr(op, "form");
        return form ? form->s : product_rule;
    }
    return "none";
}

static void expect_as(Program *p, Func *f) {
    Tensor *in[8], *out[8], **arg[1] = {in}, **ret[1] = {out};
    program_allocate(p, NULL, 0);
    for (int i = 0; i < f->narg; i++) {
        in[i] = tensor_new(mem(), &f->arg[i]->ty);
        for (int64_t k = 0, n = type_count(&f->arg[i]->ty); k < n; k++)
            tensor_set(in[i], k, 2 * rng_uniform(5, (uint64_t)i, (uint64_t)k) - 1);
        memcpy(p->arg[i], in[i]->data, (size_t)type_bytes(&f->arg[i]->ty));
    }
    for (int i = 0; i < f->nret; i++) out[i] = tensor_new(mem(), &f->ret[i]->ty);
    interp_run(mem(), f, arg, ret);
    program_run(p);
    for (int i = 0; i < f->nret; i++) {
        Tensor got = {f->ret[i]->ty, p->ret[i]};
        for (int64_t k = 0, n = type_count(&f->ret[i]->ty); k < n; k++)
            if (!(fabs(tensor_get(&got, k) - tensor_get(out[i], k)) < 1e-4))
                test_fail(__FILE__, __LINE__, "result %d, element %lld: %g, wanted %g", i,
                          (long long)k, tensor_get(&got, k), tensor_get(out[i], k));
    }
}

static void expect_interpreted(Program *p) {
    expect_as(p, parsed()->first);
}

/* The text with the form of line `nth` of the choices set. */
static const char *with_form(const char *printed, int nth, const char *form) {
    Text t = text_new(mem());
    for (const char *p = printed; *p;) {
        size_t n = strcspn(p, "\n"), word = strcspn(p, " ");
        bool choice = *p != '#' && strncmp(p, "machine ", 8) != 0;
        if (choice && nth-- == 0)
            text_add(&t, "%s%.*s\n", form, (int)(n - word), p + word);
        else
            text_add(&t, "%.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
    return t.s;
}

/* A matrix whose columns lie in one piece (across), or its rows. */
static DnnlDesc matrix_of(DType type, int64_t rows, int64_t columns, bool across) {
    return (DnnlDesc){.dtype = type,
                      .rank = 2,
                      .dim = {rows, columns},
                      .stride = {across ? 1 : columns, across ? rows : 1}};
}

/* c[rows,64] = a[rows,256] b[256,64], all of one type, for one thread; across: letters of the
 * matrices that lie so. */
static ProductShape shape_of(DType type, int64_t rows, int tiles, const char *across) {
    ProductShape s = product_shape_clear();
    s.a = matrix_of(type, rows, 256, strchr(across, 'a'));
    s.b = matrix_of(type, 256, 64, strchr(across, 'b'));
    s.c = matrix_of(type, rows, 64, strchr(across, 'c'));
    s.threads = 1, s.tiles = tiles;
    return s;
}

/* Who makes the rule's code: it depends on the lanes of the CPU it is for, on whether that has
 * tile registers, on the type, on the work and on how the factors lie. */
TEST(the_rule_by_cpu) {
    static const struct {
        DType type;
        int lanes, tiles;
        int64_t rows;
        bool generated;
        const char *across;
    } row[] = {
        {DT_F32, 16, 0, 1024, false, ""},   {DT_F32, 16, 1, 1024, true, ""},
        {DT_F32, 8, 0, 1024, true, ""},     {DT_F32, 16, 1, 96, false, ""},
        {DT_F32, 8, 0, 96, false, ""},      {DT_BF16, 16, 0, 96, true, ""},
        {DT_BF16, 16, 1, 96, true, ""},     {DT_BF16, 8, 0, 96, true, ""},
        {DT_F32, 16, 0, 1024, true, "b"},   {DT_F32, 16, 0, 96, false, "b"},
        {DT_F32, 16, 0, 1024, false, "ab"}, {DT_F32, 16, 0, 1024, true, "bc"},
        {DT_F32, 16, 0, 1024, false, "c"},
    };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        ProductShape s = shape_of(row[i].type, row[i].rows, row[i].tiles, row[i].across);
        ProductCode code;
        char why[200];
        if (!product_code_make(&s, NULL, row[i].lanes, &code, why, sizeof why))
            test_fail(__FILE__, __LINE__, "row %d: %s", i, why);
        if (!code.matmul != row[i].generated)
            test_fail(__FILE__, __LINE__, "row %d: the rule takes %s", i,
                      code.matmul ? "oneDNN" : "generated code");
        EXPECT(code.matmul || code.own.few_rows || code.own.pairs.tiles == row[i].tiles);
        if (code.matmul) dnnl_matmul_free(code.matmul);
    }
}

/* Products of f32 of so much work that the rule's code for this CPU makes them, not oneDNN's: its
 * own by tile registers, where there are such. */
TEST(large_products_are_as_interpreted) {
    static const char large[] =
        "module @t mesh() level(local)\n"
        "func @t:model(%x: f32[210,150], %w: f32[150,170], %b: f32[170], "
        "%v: f32[210,170]) -> (f32[210,170], f32[150,170], "
        "f32[210,150]) {\n"
        "  %y = dot %x, %w, %b {mk,kn,n->mn} : f32[210,170]\n"
        "  %z = dot %x, %v {mk,mn->kn} : f32[150,170]\n"
        "  %t = dot %v, %w {mk,nk->mn} : f32[210,150]\n"
        "  return %y, %z, %t\n}\n";
    for (int threads = 1; threads <= 3; threads++) {
        PassOptions po = pass_options_default();
        CompileOptions co = {.threads = threads, .lower_anew = true};
        Program *p = program_make(mem(), module_of(large),
                                  "epilogue,arrange,fuse,memplan", &po, &co);
        expect_as(p, module_of(large)->first);
    }
}

TEST(nothing_is_chosen_unless_asked) {
    ProductChoices c = choices(0, NULL);
    Program *p = made(&c), *without = made(NULL);
    EXPECT_INT(c.n, 2);
    EXPECT_STR(module_print(mem(), p->m), module_print(mem(), without->m));
    EXPECT_STR(form_of(p, 0), "rule");
    expect_interpreted(p);
}

/* Each form that this machine has, of each product; others are the rule's, with a line. */
TEST(a_text_says_the_forms) {
    static const char *const forms[] = {"gemm", "brgemm", "brgemm_packed", "rule"};
    ProductChoices first = choices(0, NULL);
    made(&first);
    const char *printed = product_choices_print(mem(), &first);
    int had = 0;
    for (int i = 0; i < 2 * ARRAY_LEN(forms); i++) {
        const char *form = forms[i / 2];
        ProductChoices c = choices(0, with_form(printed, i % 2, form));
        Program *p = made(&c);
        bool there = !strcmp(form_of(p, i % 2), form);
        EXPECT(there || !strcmp(form_of(p, i % 2), "rule"));
        EXPECT_STR(form_of(p, 1 - i % 2), "rule");
        expect_interpreted(p);
        had += there && i / 2 < 3;
        ProductChoices again = choices(0, product_choices_print(mem(), &c));
        EXPECT_STR(module_print(mem(), made(&again)->m), module_print(mem(), p->m));
    }
    EXPECT(had >= 2);
}

/* The name of no form, and lines of nonsense, are none. */
TEST(a_text_of_another_machine_works) {
    ProductChoices first = choices(0, NULL);
    made(&first);
    const char *printed = product_choices_print(mem(), &first);
    const char *bad[] = {
        with_form(printed, 0, "x"),
        "gemm\ngemm 1\ngemm 1 2\nmachine\n\nmachine of old\ngemm -1 2 y\n"};
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        ProductChoices c = choices(0, bad[i]);
        Program *p = made(&c);
        EXPECT_STR(form_of(p, 0), "rule");
        EXPECT_STR(form_of(p, 1), "rule");
        expect_interpreted(p);
    }
}

/* Generated code takes any product of f32, also where the rule is oneDNN's. */
TEST(a_text_that_asks_for_generated_code) {
    ProductChoices first = choices(0, NULL);
    made(&first);
    const char *printed = product_choices_print(mem(), &first);
    ProductChoices c = choices(0, with_form(printed, 0, "own_192x2048"));
    Program *p = made(&c);
    EXPECT_STR(form_of(p, 0), "own_192x2048");
    expect_interpreted(p);
}

/* Does no form take many times as long as the rule's? In a process of its own, as oneDNN's gemm makes
 * its code when a process first runs it, which takes a hundred times as long as this product. */
static bool forms_are_alike(void) {
    pid_t child = fork();
    if (!child) {
        Target *target = target_open(NULL);
        ProductShape s = shape_of(DT_F32, 1024, target_has_tiles(target), "b");
        ProductTime time[PRODUCT_FORMS + 1];
        int n;
        rt_set_threads(1);
        bool ok = product_times(target, &s, clock_seconds() + 60, time, &n) && n > 3;
        for (int i = 1; ok && i < n; i++) ok = time[i].seconds < 25 * time[0].seconds;
        _exit(!ok);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* Other programs may disturb some of the tries. */
TEST(the_first_run_of_a_form_does_not_count) {
    bool ok = false;
    for (int i = 0; i < 8 && !ok; i++) ok = forms_are_alike();
    EXPECT(ok);
}

TEST(an_unknown_form_in_a_module_is_refused) {
    static const char wrong[] =
        "module @t mesh() level(local)\n"
        "func @t:model(%x: f32[4,8], %w: f32[8,16]) -> (f32[4,16]) {\n"
        "  %y = dot %x, %w {mk,kn->mn; form=\"other\"} : f32[4,16]\n"
        "  return %y\n}\n";
    PassOptions po = pass_options_default();
    CompileOptions co = {.threads = 1, .lower_anew = true};
    Module *m = module_parse(mem(), "wrong.ir", wrong, strlen(wrong));
    EXPECT_FAIL(program_make(mem(), m, "epilogue,arrange,fuse,memplan", &po, &co),
                EXIT_CONFIG, "wrong.ir:3:3");
}

/* What is measured is a form that is there, and is in the file for the next program. */
TEST_LIMIT(what_is_measured_is_kept, 120) {
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    ProductChoices c = choices(60, NULL), next = choices(60, NULL);
    rt_set_threads(1);
    Program *p = made(&c);
    EXPECT_INT(c.n, 2);
    for (int i = 0; i < c.n; i++)
        EXPECT(c.item[i].seconds > 0 && c.item[i].seconds <= c.item[i].rule_seconds);
    expect_interpreted(p);
    EXPECT_STR(module_print(mem(), made(&next)->m), module_print(mem(), p->m));
    EXPECT_STR(product_choices_print(mem(), &next), product_choices_print(mem(), &c));
    EXPECT(next.spent_seconds == 0);
    ProductChoices late = choices(1e-9, NULL); /* no time: the rule's, and nothing kept */
    setenv("STATOR_CACHE", in_temp("empty"), 1);
    made(&late);
    for (int i = 0; i < late.n; i++) EXPECT_STR(late.item[i].form, "rule");
    for (int i = 0; i < late.n; i++) EXPECT(late.item[i].seconds == 0);
}

/* ---- runs ---- */

static const char *file_of(const char *path) {
    return file_read(mem(), path, 1 << 20, NULL, EXIT_DATA);
}

static const char *hash_of(const char *run) {
    size_t n;
    const char *path = path_join(mem(), run, "plan.json");
    const char *bytes = file_read(mem(), path, 1 << 22, &n, EXIT_DATA);
    const Json *plan = json_parse(mem(), path, bytes, n, 1 << 22, EXIT_DATA);
    return json_get_string(plan, "plan_hash", "");
}

/* Every product has another form that is there. */
static const char *changed(const char *printed) {
    Text t = text_new(mem());
    for (const char *p = printed; *p;) {
        size_t n = strcspn(p, "\n"), form = strcspn(p, " ");
        if (p[0] == '#' || !strncmp(p, "machine ", 8)) form = 0;
        bool gemm = form == 4 && !strncmp(p, "gemm", 4);
        text_add(&t, "%s%.*s\n",
                 !form  ? ""
                 : gemm ? "brgemm"
                        : "gemm",
                 (int)(n - form), p + form);
        p += n + (p[n] == '\n');
    }
    return t.s;
}

/* Of one thread, so that small products are measured too. */
TEST_LABEL_OF(a_plan_is_that_of_the_run, RANKS);
TEST_LABEL_OF(a_plan_is_that_of_the_run, RELEASED);
TEST_LIMIT(a_plan_is_that_of_the_run, 120) {
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    const char *words = arena_printf(mem(),
                                     "%s --context.threads 1 "
                                     "--context.measure_products_seconds 60",
                                     runs_small_config(4, 0));
    RUN_EXPECT(0, arena_printf(mem(), "plan %s", words));
    SAID_EXPECT("note: measuring the forms of matrix products of ");
    SAID_EXPECT("\nproducts");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s", words, in_temp("run")));
    EXPECT(!strstr(said(), "measuring"));
    RUN_EXPECT(0, arena_printf(mem(), "plan %s", words));
    EXPECT(!strstr(said(), "measuring"));
    SAID_EXPECT(arena_printf(mem(), "\nplan %s", hash_of(in_temp("run"))));
}

TEST_LABEL_OF(a_resume_has_the_forms_of_its_run, RANKS);
TEST_LIMIT(a_resume_has_the_forms_of_its_run, 120) {
    const char *config = runs_small_config(4, 2), *run = in_temp("run");
    const char *file = path_join(mem(), run, "products.txt");
    RUN_EXPECT(0, arena_printf(mem(), "train %s --output_dir %s", config, run));
    const char *before = hash_of(run);
    EXPECT(strstr(file_of(file), "rule 0 0 "));
    write_text(file, changed(file_of(file)));
    const char *more =
        "--runner_config.max_steps 6 --context.measure_products_seconds 60";
    RUN_EXPECT(0, runs_words(config, run, more));
    SAID_EXPECT("resumed after step 4");
    EXPECT(!strstr(said(), "measuring"));
    EXPECT(strstr(file_of(file), "gemm 0 0 "));
    EXPECT(strcmp(hash_of(run), before) != 0);
    const char *after = hash_of(run);
    RUN_EXPECT(0,
               arena_printf(mem(), "train %s --output_dir %s --runner_config.max_steps 8",
                            config, run));
    EXPECT_STR(hash_of(run), after);
    /* from a checkpoint elsewhere, and anew */
    const char *other = in_temp("other");
    RUN_EXPECT(0, arena_printf(mem(),
                               "train %s --output_dir %s --resume %s/ckpt/step_00000008 "
                               "--runner_config.max_steps 10",
                               config, other, run));
    EXPECT_STR(hash_of(other), after);
    RUN_EXPECT(
        0, arena_printf(mem(), "train %s --output_dir %s --resume never", config, other));
    EXPECT_STR(hash_of(other), before);
}

/* Ranks of two stages have other products; one decides for all. */
TEST_LABEL_OF(ranks_have_the_choices_of_one, RANKS);
TEST_LABEL_OF(ranks_have_the_choices_of_one, RELEASED);
TEST_LIMIT(ranks_have_the_choices_of_one, 180) {
    const char *config = runs_small_config(4, 2);
    static const char *const way[] = {"--parallel_config.model_parallel 2",
                                      "--parallel_config.pipeline_stage 2"};
    setenv("STATOR_CACHE", in_temp("cache"), 1);
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        ranks_run(
            2, config, run,
            arena_printf(mem(), "%s --context.measure_products_seconds 60", way[i]));
        const char *kept = file_of(path_join(mem(), run, "products.txt"));
        const char *hash = hash_of(run);
        write_text(path_join(mem(), run, "products.txt"), changed(kept));
        ranks_run(2, config, run,
                  arena_printf(mem(), "%s --runner_config.max_steps 6", way[i]));
        EXPECT(strcmp(hash_of(run), hash) != 0);
    }
}
