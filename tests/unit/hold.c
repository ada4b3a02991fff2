/* hold.c - parameters that a program without gradients holds in a narrow type, or twice: its
 * results keep their bits. */
#include "../test.h"
#include "ir/ir.h"
#include "ir/sample.h"
#include "passes/passes.h"

/* A table of tokens whose rows are looked up and which is the head's matrix, and a matrix that only
 * a product reads. `%s`: more readers and results. */
static const char text[] = "module @tied mesh() level(global)\n"
                           "func @m:model(%%ids: i32[3] {role=\"tokens\"},\n"
                           "    %%t: f32[9,6] {role=\"param\"},\n"
                           "    %%w: f32[6,6] {role=\"param\"}) -> (f32[3,9]%s) {\n"
                           "  %%x = embed %%t, %%ids : f32[3,6]\n"
                           "  %%h = dot %%x, %%w {bc,cd->bd} : f32[3,6]\n"
                           "  %%y = dot %%h, %%t {bd,vd->bv} : f32[3,9]\n"
                           "%s"
                           "  return %%y%s\n"
                           "}\n";

typedef struct Case {
    const char *type, *reader, *result;
} Case;

static Func *made(Arena *mem, const Case *c, bool hold) {
    char *s = arena_printf(mem, text, c->type, c->reader, c->result);
    Module *m = module_parse(mem, "test.ir", s, strlen(s));
    PassOptions o = pass_options_default();
    o.narrow = DT_BF16;
    o.hold = hold;
    passes_run(m, "narrow,hoist,hold,simplify", &o);
    return m->first;
}

static int arg_named(const Func *f, const char *name) {
    for (int i = 0; i < f->narg; i++)
        if (!strcmp(f->arg[i]->name, name)) return i;
    return -1;
}

/* Arguments of f: those of the same name of `from`, rounded where f has them so. */
static Tensor ***arguments(Arena *mem, const Func *f, const Func *from, Tensor **whole) {
    Tensor ***arg = sample_arguments(mem, f);
    for (int i = 0; i < f->narg; i++) {
        const char *of = arg_str(f, i, "rounds", f->arg[i]->name);
        const Tensor *as = whole[arg_named(from, of)];
        for (int64_t k = 0; k < type_count(&as->ty); k++)
            tensor_set(arg[0][i], k, tensor_get(as, k));
    }
    return arg;
}

static Func *expect_same(Arena *mem, const Case *c) {
    Func *wide = made(mem, c, false), *held = made(mem, c, true);
    Tensor ***arg = sample_arguments(mem, wide), ***want = sample_results(mem, wide);
    for (int i = 0; i < 3; i++) tensor_set(arg[0][0], i, 3 * i + 1);
    Tensor ***same = arguments(mem, held, wide, arg[0]),
           ***got = sample_results(mem, held);
    interp_run(mem, wide, arg, want);
    interp_run(mem, held, same, got);
    for (int i = 0; i < wide->nret; i++)
        EXPECT(!memcmp(got[0][i]->data, want[0][i]->data,
                       (size_t)type_bytes(&want[0][i]->ty)));
    EXPECT(held->arg[arg_named(held, "w")]->ty.dt == DT_BF16);
    return held;
}

TEST(a_table_that_is_the_head_is_there_twice) {
    Arena *mem = arena_new();
    Func *f = expect_same(mem, &(Case){"", "", ""});
    int wide = arg_named(f, "t"), narrow = wide + 1;
    EXPECT_INT(f->narg, 4);
    EXPECT(f->arg[wide]->ty.dt == DT_F32 && f->arg[narrow]->ty.dt == DT_BF16);
    EXPECT_STR(arg_str(f, narrow, "rounds", ""), "t");
    EXPECT(arg_role(f, narrow) == ARG_param);
    for (const Op *op = f->first; op; op = op->next)
        EXPECT(!op_has(op, F_CAST) || op->in[0] != f->arg[wide]);
    arena_free(mem);
}

TEST(a_table_that_others_read_is_there_once) {
    static const Case cases[] = {
        {", f32[9,6]", "  %e = exp %t : f32[9,6]\n", ", %e"},
        {", f32[9,6]", "", ", %t"},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Arena *mem = arena_new();
        Func *f = expect_same(mem, &cases[i]);
        EXPECT_INT(f->narg, 3);
        EXPECT(f->arg[arg_named(f, "t")]->ty.dt == DT_F32);
        arena_free(mem);
    }
}
