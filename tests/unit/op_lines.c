/* op_lines.c - ops that passes make have the line of the text of what they are made from, so that
 * a failure at one of them says where to look. */
#include "../test.h"
#include "ir/placement.h"
#include "passes/passes.h"

static const char net[] = "module @net mesh() level(global)\n"
                          "\n"
                          "func @layer(%h: f32[4,6], %g: f32[6]) -> (f32[4,6]) {\n"
                          "  %n, %r = rmsnorm %h, %g {eps=1e-05} : f32[4,6], f32[4]\n"
                          "  %a = gelu %n : f32[4,6]\n"
                          "  return %a\n"
                          "}\n"
                          "\n"
                          "func @net:model(\n"
                          "    %x: f32[4,6] {role=\"data\"},\n"
                          "    %g: f32[3,6] {role=\"param\"},\n"
                          "    %w: f32[6,6] {role=\"param\"}) -> (f32[]) {\n"
                          "  %y = dot %x, %w {bi,io->bo} : f32[4,6]\n"
                          "  %h = call %y, %g {fn=@layer; times=3; carry=1; each=1} : "
                          "f32[4,6]\n"
                          "  %p = softmax %h : f32[4,6]\n"
                          "  %s = sum %p {bo->_} : f32[]\n"
                          "  return %s\n"
                          "}\n";

static Module *after(Arena *mem, const char *text, const char *passes) {
    PassOptions o = pass_options_default();
    Module *m = module_parse(mem, "net.ir", text, strlen(text));
    module_verify(m, "net.ir", text);
    passes_run(m, passes, &o);
    return m;
}

/* Ops of a kind in the module, all of them of this line. */
static int count_at(const Module *m, int kind, int line) {
    int n = 0;
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next) {
            if (op->kind != kind) continue;
            EXPECT_INT(op->line, line);
            n++;
        }
    return n;
}

TEST(gradients_have_the_line_of_their_op) {
    Arena *mem = arena_new();
    const Module *m = after(mem, net, "autodiff");
    EXPECT_INT(count_at(m, OP_rmsnorm_grad, 4), 1);
    EXPECT_INT(count_at(m, OP_gelu_grad, 5), 1);
    EXPECT_INT(count_at(m, OP_dot, 13), 3); /* of two models: one is the gradient's */
    EXPECT_INT(count_at(m, OP_softmax_grad, 15), 1);
    const Func *f = module_find(m, "net.grad");
    for (const Op *op = f->first; op; op = op->next) EXPECT(op->line >= 13);
    arena_free(mem);
}

/* Others, as a copy of an argument that is a result, need not be made from an op. */
static bool reads_an_op(const Op *op) {
    for (int i = 0; i < op->nin; i++)
        if (op->in[i]->def) return true;
    return false;
}

TEST(parts_and_kernels_have_the_line_of_their_op) {
    Arena *mem = arena_new();
    const Module *m =
        after(mem, net, "autodiff,place,expand,simplify,epilogue,arrange,fuse,memplan");
    int kernels = 0;
    for (const Func *f = m->first; f; f = f->next) {
        kernels += f->role == ROLE_KERNEL;
        for (const Op *op = f->first; op; op = op->next)
            if (reads_an_op(op) && !op->line)
                test_fail(__FILE__, __LINE__, "%s of @%s has no line",
                          optab[op->kind].name, f->name);
    }
    EXPECT(kernels > 1);
    EXPECT_INT(count_at(m, OP_rsqrt, 4), 1);
    arena_free(mem);
}

/* The line is that of the first; what they do is the same. */
TEST(equal_kernels_of_two_lines_are_one) {
    Arena *mem = arena_new();
    const Module *m = after(mem,
                            "module @twice mesh() level(global)\n"
                            "func @f:model(%x: f32[4,6], %w: f32[6,6]) -> (f32[4,6]) {\n"
                            "  %a = tanh %x : f32[4,6]\n"
                            "  %b = dot %a, %w {bi,io->bo} : f32[4,6]\n"
                            "  %c = tanh %b : f32[4,6]\n"
                            "  return %c\n"
                            "}\n",
                            "place,fuse");
    EXPECT_INT(count_at(m, OP_tanh, 3), 1);
    arena_free(mem);
}

/* What is wrong with arguments and results is said where their function begins. */
TEST(arguments_and_results_have_the_line_of_their_function) {
    static const struct {
        const char *text, *error;
    } wrong[] = {
        {"module @t mesh(a=2) level(global)\n\n"
         "func @f:model(\n    %x: f32[9:a]) -> (f32[9:a]) {\n  return %x\n}\n",
         "t.ir:3:1: error: @f: %x: dimension 0 is 9, which 2 ranks do not divide\n"
         "    func @f:model("},
        {"module @t mesh() level(global)\n"
         "func @f:model(%x: f32[2], %y: f32[3]) -> (f32[3]=%x) {\n  return %y\n}\n",
         "t.ir:2:1: error: @f: result 0 overwrites an argument of another type"},
        {"module @t mesh() stages(2) level(local)\n"
         "func @f:step() -> () stage(0) {\n  return\n}\n"
         "func @g:step() -> () stage(0) {\n  return\n}\n",
         "t.ir:5:1: error: @g: stage 0 has an entry already"}};
    for (volatile int i = 0; i < ARRAY_LEN(wrong); i++) {
        Arena *mem = arena_new();
        const char *text = wrong[i].text;
        EXPECT_FAIL(module_parse(mem, "t.ir", text, strlen(text)), EXIT_CONFIG,
                    wrong[i].error);
        arena_free(mem);
    }
}

/* However it is indented, an op begins at the first word of its line: where the verifier
 * refuses it, and where a pass does. */
TEST(ops_have_the_column_of_their_first_word) {
    static const char *const before[] = {"", "\t", "  ", "        "};
    static const char *const types[][2] = {{"4", "3"}, {"4:a", "4"}};
    for (volatile int i = 0; i < ARRAY_LEN(before) * ARRAY_LEN(types); i++) {
        Arena *mem = arena_new();
        const char *blanks = before[i / 2], *const *type = types[i % 2];
        char *text = arena_printf(mem,
                                  "module @t mesh(a=2) level(sharded)\n"
                                  "func @f:model(%%x: f32[%s]) -> (f32[%s]) {\n"
                                  "%s%%y = tanh %%x : f32[%s]\n  return %%y\n}\n",
                                  type[0], type[1], blanks, type[1]);
        EXPECT_FAIL(
            after(mem, text, "localize"), EXIT_CONFIG,
            arena_printf(mem, "net.ir:3:%d: error: @f: tanh: ", (int)strlen(blanks) + 1));
        arena_free(mem);
    }
}

TEST(what_is_next_to_an_op_is_made_for_it) {
    Arena *mem = arena_new();
    static const char text[] = "module @t mesh() level(global)\n"
                               "func @f:model(%x: f32[4]) -> (f32[4]) {\n"
                               "  %a = tanh %x : f32[4]\n"
                               "  %b = exp %a : f32[4]\n"
                               "  return %b\n"
                               "}\n";
    Module *m = module_parse(mem, "t.ir", text, strlen(text));
    Func *f = m->first;
    Builder start = build_at_start(f), before = build_before(f->last);
    Builder behind = build_behind(f->first), end = build_at_end(f);
    Value *x = f->arg[0], *a = f->first->out[0];
    EXPECT_INT(build1(&start, OP_copy, NULL, x, NULL)->def->line, 0);
    EXPECT_INT(build1(&before, OP_copy, NULL, x, NULL)->def->line, 4);
    EXPECT_INT(build1(&behind, OP_copy, NULL, x, NULL)->def->line, 3);
    EXPECT_INT(build1(&end, OP_copy, NULL, a, NULL)->def->line, 3);
    static const int want[] = {0, 3, 4, 3, 4, 3};
    int n = 0;
    for (const Op *op = f->first; op; op = op->next, n++) EXPECT_INT(op->line, want[n]);
    arena_free(mem);
}
