/* opt.c - the program stator-opt: what -r prints of a module is the same before and after
 * its tensors are split, flattened and made local, and its loops cut. */
#include "../test.h"
#include "ir/sample.h"

/* What the program prints for a module of tests/ir, given a mesh. */
static char *run_opt(Arena *mem, const char *name, const char *mesh,
                     const char *options) {
    size_t n;
    char *path = arena_printf(mem, "%s/ir/%s", tests_dir(), name);
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_DATA);
    char *at = strstr(text, " mesh("), *out = arena_alloc(mem, 1 << 16);
    EXPECT(at);
    text = arena_printf(mem, "%.*s mesh(%s)%s", (int)(at - text), text, mesh,
                        strchr(at, ')') + 1);
    path = path_join(mem, temp_dir(), "given.ir");
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    FILE *p =
        popen(arena_printf(mem, "%s/stator-opt -r %s %s", BUILD_DIR, options, path), "r");
    EXPECT(p);
    n = fread(out, 1, (1 << 16) - 1, p);
    EXPECT_INT(pclose(p), 0);
    out[n] = 0;
    return out;
}

/* Results are numbered alike, sums agree as far as f32 does. */
static void expect_same_digests(const char *a, const char *b) {
    int lines = 0;
    for (; *a && *b; a = strchr(a, '\n') + 1, b = strchr(b, '\n') + 1, lines++) {
        double sum[2], square[2];
        int which[2];
        static const char form[] = "@step result %d: sum %lf, sum of squares %lf";
        EXPECT_INT(sscanf(a, form, &which[0], &sum[0], &square[0]), 3);
        if (sscanf(b, form, &which[1], &sum[1], &square[1]) != 3)
            test_fail(__FILE__, __LINE__, "line %d is\n%s", lines + 1, b);
        EXPECT_INT(which[0], which[1]);
        EXPECT_NEAR(sum[1], sum[0], 1e-5);
        EXPECT_NEAR(square[1], square[0], 1e-5);
    }
    EXPECT(lines > 4 && !*a && !*b);
}

#define STEP  "-p simplify,seed,zero,remake,autodiff,simplify,train,simplify"
#define LOCAL STEP ",shard,reshard,collect,simplify,localize,simplify,keep,sink"

/* The step of a module on ranks: whole, flattened, and of one rank each. */
static void check_module(const char *name, const char *options) {
    Arena *mem = arena_new();
    char *whole = run_opt(mem, name, "dp=1, tp=1", STEP);
    static const char *const to[] = {STEP, LOCAL};
    for (int i = 0; i < ARRAY_LEN(to); i++) {
        char *all = arena_printf(mem, "%s %s", to[i], options);
        expect_same_digests(whole, run_opt(mem, name, "dp=2, tp=2", all));
    }
    arena_free(mem);
}

TEST(split_arguments) {
    check_module("mesh/towers.ir", "-s up=-,tp -s bias=tp -s down=tp,-");
}

/* Queries see keys from a position on that their argument has. */
TEST(arguments_of_documents) {
    check_module("mesh/documents.ir", "");
}

TEST(flattened_arguments) {
    check_module("mesh/mlp.ir", "-o zero=3 -o zero_axes=dp");
}

TEST(split_and_flattened_arguments) {
    check_module("mesh/towers.ir", "-s up=-,tp -s down=tp,- -o zero=1 -o zero_axes=dp");
}

/* Rows of stacks that others read too, of loops that are cut. */
TEST(cut_loops_of_shared_layers) {
    check_module("mesh/shared_layers.ir", "-s w=-,tp -o remake=2:full");
}

static double first_sum(Arena *mem, const char *name, const char *mesh,
                        const char *options) {
    const char *out = run_opt(mem, name, mesh, options);
    const char *at = strstr(out, "result 0: sum ");
    EXPECT(at);
    return strtod(at + strlen("result 0: sum "), NULL);
}

/* The first result stays what it is, whatever arguments it is made of. */
static void check_first(const char *name, const char *one, const char *before,
                        const char *mesh, const char *after) {
    Arena *mem = arena_new();
    double want = first_sum(mem, name, one, before);
    double got = first_sum(mem, name, mesh, after);
    printf("  %s %s: %.9g and %.9g\n", name, after, want, got);
    EXPECT(fabs(got - want) <= 1e-5 * fabs(want));
    arena_free(mem);
}

#define STAGES "-o stages=2 -o micro_batches=2 "
#define CUT    STAGES "-p simplify,cut,autodiff,simplify,train,simplify"

/* Some rows of a tensor, and arguments that are the same parameter. */
TEST(arguments_of_stages) {
    static const char *const names[] = {"residual_mlp.ir", "encoder_decoder.ir"};
    static const char whole[] = STAGES "-p simplify,autodiff,train";
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        check_first(names[i], "", whole, "", CUT);
        check_first(names[i], "", whole, "", CUT ",shard,reshard,collect,localize");
        check_first(names[i], "", whole, "", CUT ",place,simplify,pipeline");
    }
}

TEST(flattened_arguments_of_stages) {
    static const char name[] = "mesh/shared_layers.ir", mesh[] = "dp=2, tp=2";
    static const char cut[] =
        STAGES "-o zero=1 -o zero_axes=dp -p simplify,seed,zero,cut,"
               "autodiff,simplify,train,simplify";
    Arena *mem = arena_new();
    const char *local = arena_printf(mem, "%s,shard,reshard,collect,localize", cut);
    check_first(name, "dp=1, tp=1", STAGES "-p simplify,autodiff,train", mesh, cut);
    check_first(name, "dp=1, tp=1", STAGES "-p simplify,autodiff,train", mesh, local);
    arena_free(mem);
}

TEST(arguments_in_another_order) {
    check_first("mlp.ir", "", "-p simplify", "", "-o turn=1 -p simplify,turn");
    check_first("mlp.ir", "", "-p simplify", "", "-o turn=1 -p simplify,turn,place");
}

TEST(arguments_that_are_rounded) {
    check_first("tiny_gpt.ir", "", "-o narrow=bf16 -p narrow,hoist", "",
                "-o narrow=bf16 -o hold=1 -p narrow,hoist,hold");
}

/* A result that ranks have differently has a line for each. */
TEST(results_of_ranks) {
    Arena *mem = arena_new();
    static const char text[] =
        "module @m mesh(a=2) level(local)\n"
        "func @f:model() -> (i32[], i32[]) {\n"
        "  %n = coord {axis=\"a\"; by=3} : i32[]\n"
        "  %s = all_reduce %n {axis=\"a\"} : i32[]\n  return %n, %s\n}\n";
    char *path = path_join(mem, temp_dir(), "ranks.ir"), out[512];
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    FILE *p = popen(arena_printf(mem, "%s/stator-opt -r %s", BUILD_DIR, path), "r");
    EXPECT(p);
    out[fread(out, 1, sizeof out - 1, p)] = 0;
    EXPECT_INT(pclose(p), 0);
    EXPECT_STR(out, "@f rank 0 result 0: sum 0, sum of squares 0\n"
                    "@f rank 1 result 0: sum 3, sum of squares 9\n"
                    "@f result 1: sum 3, sum of squares 9\n");
    arena_free(mem);
}

TEST(lists_of_passes_add_up) {
    Arena *mem = arena_new();
    expect_same_digests(run_opt(mem, "mlp.ir", "", "-p simplify,autodiff -p train"),
                        run_opt(mem, "mlp.ir", "", "-p simplify,autodiff,train"));
    arena_free(mem);
}

TEST(nothing_to_run_is_said) {
    Arena *mem = arena_new();
    static const char text[] = "module @m mesh() level(global)\n"
                               "func @f(%x: f32[2]) -> (f32[2]) {\n  return %x\n}\n";
    char *path = path_join(mem, temp_dir(), "none.ir"), out[512];
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    FILE *p = popen(arena_printf(mem, "%s/stator-opt -r %s 2>&1", BUILD_DIR, path), "r");
    EXPECT(p);
    out[fread(out, 1, sizeof out - 1, p)] = 0;
    EXPECT_INT(WEXITSTATUS(pclose(p)), EXIT_CONFIG);
    EXPECT_PART(
        out, "stator-opt: error: module @m has no function of role model or step to run");
    arena_free(mem);
}

TEST(passes_that_cannot_run_are_refused) {
    Arena *mem = arena_new();
    static const char *const of[][2] = {
        {STAGES "-p simplify,autodiff,train,place,simplify,pipeline,pipeline",
         "has stages already: pass pipeline runs once"},
        {"-o remake=True -o remake_axes=zz -p simplify,autodiff",
         "inputs of layers in parts over 'zz': not axes of the mesh"}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        char out[2048];
        FILE *p = popen(arena_printf(mem, "%s/stator-opt %s %s/ir/residual_mlp.ir 2>&1",
                                     BUILD_DIR, of[i][0], tests_dir()),
                        "r");
        EXPECT(p);
        out[fread(out, 1, sizeof out - 1, p)] = 0;
        EXPECT_INT(WEXITSTATUS(pclose(p)), EXIT_CONFIG);
        EXPECT_PART(out, of[i][1]);
    }
    arena_free(mem);
}

static void parts_of(const char *type) {
    Arena *mem = arena_new();
    char *text = arena_printf(
        mem,
        "module @m mesh(tp=2) level(global)\nfunc @f:model(%%w: f32[%s] "
        "{role=\"param\"; global=\"f32[3,5,4:tp]\"; lead=1}) -> () {\n  return\n}\n",
        type);
    sample_parts(mem, module_parse(mem, "given", text, strlen(text))->first);
    arena_free(mem);
}

/* Sizes that do not fit what is flattened are refused, not written beside. */
TEST(flattened_boxes_of_another_type) {
    static const char *const wrong[] = {"", "3", "3,2,9", "3,1,10", "2,2,10", "3,2,10,1"};
    static const char part[] = "argument %w: its flattened boxes have another type";
    parts_of("3,2,10");
    parts_of("3,2,12");
    for (volatile int i = 0; i < ARRAY_LEN(wrong); i++)
        EXPECT_FAIL(parts_of(wrong[i]), EXIT_CONFIG, part);
}
