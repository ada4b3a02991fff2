/* ir_hostile.c - modules that are no good, or large in an unusual way: refused at their place, or
 * done, and never read out of bounds or waited for. */
#include "ir/ir.h"
#include "passes/passes.h"
#include "ranks.h"
#include "runtime/store/safetensors.h"

TEST_LABEL(QUICK);

static Module *parse(const char *text) {
    return module_parse(mem(), "t.ir", text, strlen(text));
}

#define FUNC(args, ret, body)                                                            \
    "module @m mesh() level(global)\n\nfunc @f:model(" args ") -> (" ret ") {\n" body    \
    "}\n"

TEST(rules_of_as_many_terms_as_there_may_be) {
    EXPECT_FAIL(
        parse(FUNC("%a: f32[2]", "f32[]",
                   "  %y = dot %a, %a {a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,z!->} : f32[]\n"
                   "  return %y\n")),
        EXIT_CONFIG, "a rule has too many terms");
}

/* Its row has a result for each operand. */
TEST(more_operands_than_results) {
    Text t = text_new(mem());
    text_add(&t,
             "module @m mesh(dp=2) level(local)\n\nfunc @f(%%x: f32[2]) -> (f32[2]) {\n"
             "  %%y = all_reduce %%x");
    for (int i = 0; i < 4000; i++) text_add(&t, ", %%x");
    text_add(&t, " {axis=\"dp\"} : f32[2]\n  return %%y\n}\n");
    EXPECT_FAIL(parse(t.s), EXIT_CONFIG, "t.ir:4:");
}

TEST(kernels_run_once) {
    EXPECT_FAIL(
        parse("module @m mesh() level(global)\n\n"
              "func @k:kernel(%x: f32[2]) -> (f32[2]) {\n"
              "  %y = relu %x : f32[2]\n  return %y\n}\n\n"
              "func @f:model(%x: f32[2]) -> (f32[2]) {\n"
              "  %y = call %x {fn=@k; times=3; carry=1} : f32[2]\n  return %y\n}\n"),
        EXIT_CONFIG, "a kernel runs once: @k takes no times");
}

/* Nobody looks at each pair of a table that is only checked. */
TEST(tables_of_any_size_are_checked_at_once) {
    parse(FUNC("%at: i32[]", "f32[1,70368744177664,2]",
               "  %t = rope_table %at {base=10000} : f32[1,70368744177664,2]\n"
               "  return %t\n"));
}

/* Each function calls the one before it twice: nobody may go through 2^depth of them. */
static Module *calls_of_calls(int depth) {
    Text t = text_new(mem());
    text_add(
        &t, "module @m mesh(dp=2) level(global)\n\nfunc @f0(%%x: f32[8,4]) -> (f32[8,4]) "
            "{\n  %%y = gelu %%x : f32[8,4]\n  return %%y\n}\n");
    for (int i = 1; i < depth; i++)
        text_add(&t,
                 "func @f%d(%%x: f32[8,4]) -> (f32[8,4]) {\n"
                 "  %%a = call %%x {fn=@f%d} : f32[8,4]\n"
                 "  %%y = call %%a {fn=@f%d} : f32[8,4]\n  return %%y\n}\n",
                 i, i - 1, i - 1);
    text_add(&t,
             "func @f:model(%%x: f32[8:dp,4] {role=tokens}, %%w: f32[4] {role=param}) -> "
             "(f32[]) {\n  %%h = add %%x, %%w {mn,n->mn} : f32[8,4]\n"
             "  %%a = call %%h {fn=@f%d} : f32[8,4]\n"
             "  %%l = sum %%a {ab->} : f32[]\n  return %%l\n}\n",
             depth - 1);
    return parse(t.s);
}

TEST(calls_of_calls_are_seeded_at_once) {
    PassOptions o = pass_options_default();
    passes_run(calls_of_calls(60), "seed", &o);
}

TEST(calls_of_calls_that_keep_too_much_are_refused) {
    PassOptions o = pass_options_default();
    passes_run(calls_of_calls(12), "seed,autodiff", &o);
    EXPECT_FAIL(passes_run(calls_of_calls(22), "seed,autodiff", &o), EXIT_CONFIG,
                "values are kept for backward, at most 65536");
}

/* Passes write placements as attributes, of any length. */
TEST(long_names_of_axes) {
    enum { AXES = 6, LETTERS = 190 };
    Text t = text_new(mem()), axes = text_new(mem()), mesh = text_new(mem());
    for (int i = 0; i < AXES; i++) {
        char name[LETTERS + 1];
        memset(name, 'a' + i, LETTERS);
        name[LETTERS] = 0;
        text_add(&mesh, "%s%s=2", i ? ", " : "", name);
        text_add(&axes, "%s%s", i ? "." : "", name);
    }
    text_add(
        &t,
        "module @m mesh(%s) level(global)\n\n"
        "func @f:model(%%x: f32[4,256:%s] {role=data}, %%w: f32[256] {role=param}) -> "
        "(f32[]) {\n  %%z = mul %%x, %%w {ab,b->ab} : f32[4,256]\n"
        "  %%y = max %%z {ab->a} : f32[4]\n"
        "  %%l = sum %%y {a->_} : f32[]\n  return %%l\n}\n",
        mesh.s, axes.s);
    PassOptions o = pass_options_default();
    Module *m = parse(t.s);
    passes_run(m, "shard,reshard,collect,simplify,localize", &o);
    const char *printed = module_print(mem(), m);
    EXPECT(strstr(printed, axes.s) && parse(printed));
}

/* A step of micro-batches carries a gradient of each parameter. */
TEST_LIMIT(many_parameters_in_micro_batches, 120) {
    enum { LAYERS = 90, SAMPLES = 8, WIDTH = 4 };
    static float x[SAMPLES * WIDTH];
    for (int i = 0; i < ARRAY_LEN(x); i++) x[i] = (float)(i % 7) - 3;
    SafeTensor t = {
        .name = "x", .dtype = DT_F32, .rank = 2, .dim = {SAMPLES, WIDTH}, .data = x};
    const char *data = in_temp("x.safetensors"), *run = in_temp("run");
    EXPECT(!safetensors_write(data, &t, 1, NULL, NULL));
    Text m = text_new(mem());
    text_add(&m, "module @m mesh() level(global)\n\nfunc @net:model(\n"
                 "    %%x: f32[2,4] {role=\"data\"}");
    for (int i = 0; i < LAYERS; i++)
        text_add(&m, ",\n    %%b%d: f32[4] {role=\"param\"; init=\"ones\"}", i);
    text_add(&m, ") -> (f32[]) {\n  %%h0 = mul %%x, %%b0 {bi,i->bi} : f32[2,4]\n");
    for (int i = 1; i < LAYERS; i++)
        text_add(&m, "  %%h%d = mul %%h%d, %%b%d {bi,i->bi} : f32[2,4]\n", i, i - 1, i);
    text_add(&m,
             "  %%q = mul %%h%d, %%h%d : f32[2,4]\n  %%s = sum %%q {...->_} : f32[]\n"
             "  return %%s\n}\n",
             LAYERS - 1, LAYERS - 1);
    write_text(in_temp("m.ir"), m.s);
    const char *config = in_temp("c.yaml");
    write_text(
        config,
        arena_printf(mem(),
                     "model: {file: m.ir}\nrunner_config: {max_steps: 2}\n"
                     "parallel_config: {micro_batch_num: 2}\n"
                     "train_dataset: {data_loader: {type: Tensors, dataset_dir: %s}}\n",
                     data));
    ranks_run(1, config, run, "");
    int n;
    runs_metrics(run, &n);
    EXPECT_INT(n, 2);
}
