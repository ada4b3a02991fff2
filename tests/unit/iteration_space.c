/* Tests of ir/iteration_space.c: a space that grows by an op is the one of all ops. */
#include "ir/iteration_space.h"
#include "../ir_file.h"
#include "passes/passes.h"

static Module *kernels_of(Arena *mem, const char *name) {
    Module *m = ir_file(mem, name);
    PassOptions o = pass_options_default();
    passes_run(m,
               "simplify,autodiff,simplify,train,simplify,place,expand,simplify,epilogue,"
               "arrange,fuse",
               &o);
    return m;
}

static void expect_same(const Space *grown, const Space *all, const Func *k) {
    EXPECT_INT(grown->nvalues, all->nvalues);
    EXPECT_INT(grown->nsums, all->nsums);
    for (int i = 0; i < all->nvalues; i++) {
        const SpaceValue *a = &all->value[i], *g = space_value(grown, a->v);
        test_at("@%s %%%s", k->name, a->v->name);
        EXPECT(g && g->mask == a->mask && g->dims == a->dims);
        EXPECT(g->phase == a->phase && g->made == a->made && g->at_end == a->at_end);
    }
}

/* Of a kernel all beginnings of which are kernels; returns how many ops were taken. */
static int grow(Arena *mem, const Func *k) {
    Op *op[256];
    const Dims *dims[256];
    int n = 0, taken = 0;
    Space s = {0};
    for (Op *at = k->first; at; at = at->next) {
        check(n < ARRAY_LEN(op));
        op[n] = at;
        dims[n++] = space_dims(mem, at);
        Space all;
        const char *why = space_analyze(mem, op, dims, n, &all);
        bool fits = n > 1 && s.value && space_extend(&s, at, dims[n - 1]);
        EXPECT(!fits || !why);
        if (fits) expect_same(&s, &all, k);
        taken += fits;
        if (!fits) s = why ? (Space){0} : all;
    }
    return taken;
}

TEST(growing_by_an_op_is_looking_at_all) {
    static const char *const name[] = {"tiny_gpt.ir", "llama_tiny.ir", "softcap.ir"};
    Arena *mem = arena_new();
    int taken = 0;
    for (int i = 0; i < ARRAY_LEN(name); i++)
        for (const Func *f = kernels_of(mem, name[i])->first; f; f = f->next)
            if (f->role == ROLE_KERNEL) taken += grow(mem, f);
    printf("  %d ops\n", taken);
    EXPECT(taken > 50);
    arena_free(mem);
}
