/* overlap.c - collectives beside other work: the program means the same to the bit, and
 * memory in use by messages in flight is nobody else's. Modules of tests/ir made into
 * steps of a mesh, every collective as early and as late as can be. */
#include "../test.h"
#include "ir/ir.h"
#include "ir/sample.h"
#include "passes/passes.h"

static const char to_local[] =
    "simplify,seed,zero,autodiff,simplify,train,simplify,shard,reshard,collect,simplify,"
    "localize,simplify";
static const char to_fused[] =
    ",keep,sink,simplify,bucket,expand,simplify,epilogue,arrange,fuse";

static const struct {
    const char *file, *mesh;
    int zero, micro_batches;
    Annotation seed[3];
} programs[] = {
    {"mlp", "dp=2, tp=2", 3, 1, {{"x", "dp,-", "-s"}, {"w1", "-,tp", "-s"}}},
    {"tiny_gpt", "dp=2", 1, 1, {{"tokens", "dp,-", "-s"}, {"labels", "dp,-", "-s"}}},
    {"tiny_gpt", "dp=2", 0, 3, {{"tokens", "dp,-", "-s"}, {"labels", "dp,-", "-s"}}},
    {"tiny_gpt", "dp=2", 1, 2, {{"tokens", "dp,-", "-s"}, {"labels", "dp,-", "-s"}}},
    {"tiny_gpt", "dp=2", 1, 4, {{"tokens", "dp,-", "-s"}, {"labels", "dp,-", "-s"}}},
    {"tiny_gpt", "dp=2", 2, 2, {{"tokens", "dp,-", "-s"}, {"labels", "dp,-", "-s"}}},
    {"tiny_gpt", "dp=2", 3, 1, {{"tokens", "dp,-", "-s"}, {"labels", "dp,-", "-s"}}},
    {"tiny_gpt", "tp=2", 0, 1, {{"wqkv", "-,-,tp,-", "-s"}, {"wi", "-,tp", "-s"}}},
    {"dropout", "dp=2, cp=2", 0, 2, {{"x", "dp,cp,-", "-s"}}},
};

static int64_t workspace_of(const Op *op, void *ctx) {
    (void)ctx;
    return optab[op->kind].flags & F_COMM ? 256 : 0;
}

/* Through `passes`, with overlap wherever there is any work. */
static Module *made(Arena *mem, int i, const char *passes) {
    size_t n;
    char *path = arena_printf(mem, "%s/ir/%s.ir", tests_dir(), programs[i].file);
    char *text = file_read(mem, path, 1 << 20, &n, EXIT_CONFIG),
         *at = strstr(text, "mesh()");
    EXPECT(at);
    *at = 0;
    text =
        arena_printf(mem, "%smesh(%s)%s", text, programs[i].mesh, at + strlen("mesh()"));
    Module *m = module_parse(mem, path, text, strlen(text));
    PassOptions o = pass_options_default();
    o.zero_level = programs[i].zero;
    o.zero_axes = programs[i].zero ? "dp" : "";
    o.micro_batches = programs[i].micro_batches;
    o.annotation = programs[i].seed;
    while (o.nannotations < 3 && programs[i].seed[o.nannotations].pattern)
        o.nannotations++;
    o.overlap = 2;
    o.workspace_bytes = workspace_of;
    passes_run(m, arena_printf(mem, "%s%s", to_local, passes), &o);
    return m;
}

static Func *entry(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (func_is_entry(f)) return f;
    }
    test_fail(__FILE__, __LINE__, "no entry");
}

static Tensor ***results(Arena *mem, const Module *m) {
    Func *f = entry(m);
    Tensor ***ret = sample_results(mem, f);
    interp_run(mem, f, sample_arguments(mem, f), ret);
    return ret;
}

static int late_ops(const Module *m) {
    int n = 0;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first; op; op = op->next) n += op_arrival(op) != NULL;
    }
    return n;
}

/* Results of both modules on all ranks, which have the same entry. */
static void expect_same(Arena *mem, int i, const Module *want, const Module *got,
                        const char *what) {
    const Func *f = entry(want);
    Tensor ***x = results(mem, want), ***y = results(mem, got);
    for (int k = 0; k < mesh_ranks(&want->mesh) * f->nret; k++) {
        int nth = k % f->nret, rank = k / f->nret;
        size_t bytes = (size_t)type_bytes(&f->ret[nth]->ty);
        if (!memcmp(x[rank][nth]->data, y[rank][nth]->data, bytes)) continue;
        test_fail(__FILE__, __LINE__,
                  "%s on mesh(%s), zero %d, %d micro-batches, %s: result "
                  "%d of rank %d",
                  programs[i].file, programs[i].mesh, programs[i].zero,
                  programs[i].micro_batches, what, nth, rank);
    }
}

static int collectives_in_functions(const Module *m) {
    int n = 0;
    for (Func *f = m->first; f; f = f->next) {
        for (Op *op = f->first; op; op = op->next) {
            n += !func_is_entry(f) && (optab[op->kind].flags & F_COMM);
        }
    }
    return n;
}

TEST_LIMIT(sinking_keeps_bits, 120) {
    int moved = 0;
    for (int i = 0; i < ARRAY_LEN(programs); i++) {
        Arena *mem = arena_new();
        Module *plain = made(mem, i, ""), *sunk = made(mem, i, ",sink,simplify");
        moved += collectives_in_functions(sunk) - collectives_in_functions(plain);
        expect_same(mem, i, plain, sunk, "sunk");
        arena_free(mem);
    }
    EXPECT(moved > 50);
}

/* Each function calls the next twice and adds something to what either gives. */
TEST_LIMIT(copies_do_not_multiply, 20) {
    enum { DEPTH = 60 };
    Arena *mem = arena_new();
    Text t = text_new(mem);
    text_add(&t, "module @t mesh() level(local)\n"
                 "func @f0(%%x: f32[4]) -> (f32[4]) {\n  return %%x\n}\n");
    for (int k = 1; k < DEPTH; k++) {
        text_add(&t,
                 "func @f%d(%%x: f32[4]) -> (f32[4]) {\n"
                 "  %%a = call %%x {fn=@f%d} : f32[4]\n  %%s = add %%x, %%a : f32[4]\n"
                 "  %%b = call %%s {fn=@f%d} : f32[4]\n  %%t = add %%x, %%b : f32[4]\n"
                 "  return %%t\n}\n",
                 k, k - 1, k - 1);
    }
    text_add(&t,
             "func @main:step(%%x: f32[4]) -> (f32[4]) {\n"
             "  %%y = call %%x {fn=@f%d} : f32[4]\n  return %%y\n}\n",
             DEPTH - 1);
    Module *m = module_parse(mem, "deep.ir", t.s, t.n);
    PassOptions o = pass_options_default();
    passes_run(m, "sink", &o);
    int functions = 0;
    for (Func *f = m->first; f; f = f->next) functions++;
    EXPECT(functions > DEPTH && functions <= DEPTH + 1 + 256);
    arena_free(mem);
}

/* The program without, with, and with memory planned. */
TEST_LIMIT(same_bits, 120) {
    for (int i = 0; i < ARRAY_LEN(programs); i++) {
        Arena *mem = arena_new();
        Module *plain = made(mem, i, to_fused);
        Module *late = made(mem, i, arena_printf(mem, "%s,overlap", to_fused));
        Module *planned = made(mem, i, arena_printf(mem, "%s,overlap,memplan", to_fused));
        EXPECT(late_ops(plain) == 0 && late_ops(late) > 0);
        EXPECT_INT(late_ops(planned), late_ops(late));
        expect_same(mem, i, plain, late, "late");
        expect_same(mem, i, plain, planned, "planned");
        arena_free(mem);
    }
}

/* ---- in flight ---- */

static bool in_frame(const Value *v) {
    return v->def && v->loc.kind == LOC_FRAME;
}

/* Puts what op makes where it meets memory of a collective in flight. */
static int spoil(Arena *mem, const Module *m, Func *f, Op *late, Op *op) {
    int spoilt = 0;
    for (int k = 0; k <= late->nin + late->nout; k++) {
        const Value *v = k < late->nin                ? late->in[k]
                         : k < late->nin + late->nout ? late->out[k - late->nin]
                                                      : NULL;
        int64_t at = v ? v->loc.at : op_int(late, "ws", 0);
        if (v && !in_frame(v)) continue;
        for (int i = 0; i < op->nout; i++) {
            Value *made_here = op->out[i];
            int64_t old = made_here->loc.at, bytes = type_bytes(&made_here->ty);
            bool view = optab[op->kind].flags & F_VIEW;
            if (!in_frame(made_here) || view || at + bytes > f->frame_bytes) continue;
            made_here->loc.at = at;
            if (!memplan_check(mem, m)) {
                test_fail(__FILE__, __LINE__, "@%s: %%%s on memory of %s in flight",
                          f->name, made_here->name, optab[late->kind].name);
            }
            made_here->loc.at = old;
            spoilt++;
        }
    }
    return spoilt;
}

TEST_LABEL_OF(memory_in_flight, RELEASED);
TEST_LIMIT(memory_in_flight, 120) {
    int spoilt = 0;
    for (int i = 0; i < ARRAY_LEN(programs); i++) {
        Arena *mem = arena_new();
        Module *m = made(mem, i, arena_printf(mem, "%s,overlap,memplan", to_fused));
        for (Func *f = m->first; f; f = f->next) {
            func_number(f);
            for (Op *late = f->first; late; late = late->next) {
                Op *end = op_arrival(late);
                for (Op *op = late->next; end && op != end; op = op->next) {
                    spoilt += spoil(mem, m, f, late, op);
                }
            }
        }
        EXPECT(memplan_check(mem, m) == NULL);
        arena_free(mem);
    }
    EXPECT(spoilt > 100);
}

/* A use before the arrival, an operand or a result that the arrival does not keep, and an
 * arrival that is not there. */
TEST(checker_wants_arrivals) {
    Arena *mem = arena_new();
    static const char text[] = "module @t mesh(a=2) level(fused)\n"
                               "func @f:step(%x: f32[64]) -> (f32[64], f32[64]) {\n"
                               "  %b = copy %x : f32[64]\n"
                               "  %s = all_reduce %b {axis=\"a\"; late=1} : f32[64]\n"
                               "  %c = copy %x : f32[64]\n"
                               "  %t = arrive %s, %b : f32[64]\n"
                               "  return %c, %t\n}\n";
    Module *m = module_parse(mem, "t", text, sizeof text - 1);
    PassOptions o = pass_options_default();
    passes_run(m, "memplan", &o);
    Op *copy = m->first->first, *late = copy->next, *between = late->next,
       *end = between->next;
    EXPECT(memplan_check(mem, m) == NULL);
    Value *x = between->in[0];
    between->in[0] = late->out[0];
    EXPECT_PART(memplan_check(mem, m), "%s is used in flight");
    between->in[0] = x;
    end->nin = 1;
    EXPECT_PART(memplan_check(mem, m), "%b is not kept until it arrives");
    end->nin = 2;
    end->in[0] = copy->out[0];
    EXPECT_PART(memplan_check(mem, m), "all_reduce never arrives");
    arena_free(mem);
}
