/* Steps that must not count: NaN and infinities put into data, losses, gradients and
 * single copies of a value leave the bits of every parameter and state alone, on every
 * rank, whatever the strategy and the optimizer; the next step is as if they had never
 * been. All ranks simulated in planned memory, and generated code on one rank. */
#include "../ir_file.h"
#include "../sharded.h"
#include "../simulated.h"
#include "codegen/codegen.h"

static const char *const optimizers[] = {"adamw", "adam", "momentum", "sgd"};

static PassOptions options(int zero, int64_t micro, bool beside, const char *optimizer) {
    PassOptions o = pass_options_default();
    o.zero_level = zero;
    o.zero_axes = "dp";
    o.overlap = beside ? 2 : 0;
    o.micro_batches = micro;
    o.optimizer = optimizer;
    o.decay_weights = true;
    o.momentum = 0.9;
    o.clip_norm = micro > 1 ? 0.1 : 0;
    return o;
}

/* ---- a perceptron on a mesh ---- */

typedef struct Poison {
    const char *arg, *what;
    double value;
    bool one_copy;      /* only the last rank that has the element */
    int64_t element;    /* of the whole tensor, of its first micro-batch */
    const char *zeroed; /* parameter whose row of that feature is 0, so that only the
                           gradient sees it; or NULL */
} Poison;

static const Poison poisons[] = {
    {"x", "NaN in a batch", NAN, false, 0, NULL},
    {"x", "inf in the last rows", INFINITY, false, 209 * 11 + 3, NULL},
    {"target", "-inf in the loss", -INFINITY, false, 7, NULL},
    {"target", "a loss above the largest float", 3e30, false, 100, NULL},
    {"x", "one gradient row above the largest float", 3e38, false, 5, "w1"},
    {"target", "NaN in the copy of one rank", NAN, true, 418, NULL},
    {"x", "inf in the copy of one rank", INFINITY, true, 209 * 11, NULL},
};

static Sharded open_mesh(Arena *mem, int dp, int tp, const PassOptions *o) {
    const char *path = arena_printf(mem, "%s/ir/mesh/mlp.ir", tests_dir());
    const int size[] = {dp, tp};
    Module *whole = sharded_read(mem, path, size), *part = sharded_read(mem, path, size);
    PassOptions plain = *o;
    plain.zero_level = plain.overlap = 0;
    sharded_make_whole(whole);
    passes_run(whole, sharded_whole, &plain);
    passes_run(part, train_passes, o);
    Sharded s = {.mem = mem,
                 .whole = sharded_step_of(whole),
                 .part = sharded_step_of(part),
                 .ranks = mesh_ranks(&part->mesh)};
    for (const Op *op = s.part->first; op; op = op->next)
        EXPECT(op->kind != OP_copy); /* old values are not kept beside the new ones */
    sharded_fill(&s);
    return s;
}

static int argument_named(const Func *f, const char *name) {
    for (int i = 0; i < f->narg; i++)
        if (!strcmp(f->arg[i]->name, name)) return i;
    test_fail(__FILE__, __LINE__, "@%s has no argument %s", f->name, name);
}

/* Sets one element of the whole tensor where a rank has it. */
static void set_element(const Sharded *s, const char *name, bool one_copy,
                        int64_t element, double v) {
    int i = argument_named(s->part, name), n = 0;
    Layout l = layout_of(s->mem, s->part, i);
    for (int r = s->ranks - 1; r >= 0 && !(one_copy && n); r--) {
        LayoutWalk w = layout_walk(&l, r);
        while (layout_next(&w)) {
            if (element < w.global || element >= w.global + w.count) continue;
            tensor_set(s->arg[r][i], w.local + element - w.global, v);
            n++;
        }
    }
    EXPECT(n > 0);
}

typedef struct Kept {
    void ***arg; /* [rank][i]: bytes */
} Kept;

static Kept keep(Arena *mem, const Func *f, int ranks, Tensor ***arg) {
    Kept k = {NEW_ARRAY(mem, void **, (size_t)ranks)};
    for (int r = 0; r < ranks; r++) {
        k.arg[r] = NEW_ARRAY(mem, void *, (size_t)f->narg);
        for (int i = 0; i < f->narg; i++) {
            size_t n = (size_t)type_bytes(&f->arg[i]->ty);
            k.arg[r][i] = arena_alloc(mem, n);
            memcpy(k.arg[r][i], arg[r][i]->data, n);
        }
    }
    return k;
}

static void give_back(const Kept *k, const Func *f, int ranks, Tensor ***arg) {
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < f->narg; i++)
            memcpy(arg[r][i]->data, k->arg[r][i], (size_t)type_bytes(&f->arg[i]->ty));
}

/* Every parameter and state has the bits of before. */
static void expect_kept(const Func *f, int ranks, Tensor ***ret, const Kept *k,
                        const char *what) {
    for (int r = 0; r < ranks; r++) {
        if (tensor_get(ret[r][2], 0) != 0)
            test_fail(__FILE__, __LINE__, "%s: rank %d finds the step good", what, r);
        for (int i = 3; i < f->nret; i++) {
            size_t n = (size_t)type_bytes(&f->ret[i]->ty);
            if (memcmp(ret[r][i]->data, k->arg[r][f->alias[i]], n))
                test_fail(__FILE__, __LINE__, "%s: %s has changed on rank %d", what,
                          f->arg[f->alias[i]]->name, r);
        }
    }
}

/* What a good step makes, in one row of bytes. */
static char *good_step(Sharded *s, Arena *mem, size_t *n) {
    Text t = text_new(mem);
    interp_run(mem, s->part, s->arg, s->ret);
    for (int r = 0; r < s->ranks; r++) {
        EXPECT(tensor_get(s->ret[r][2], 0) == 1);
        for (int i = 0; i < s->part->nret; i++)
            text_add_bytes(&t, s->ret[r][i]->data,
                           (size_t)type_bytes(&s->part->ret[i]->ty));
    }
    *n = t.n;
    return t.s;
}

static void put_in(const Sharded *s, const Poison *p) {
    set_element(s, p->arg, p->one_copy, p->element, p->value);
    for (int64_t k = 0; p->zeroed && k < 16; k++)
        set_element(s, p->zeroed, false, p->element % 11 * 16 + k, 0);
}

/* All poisons into one program; the program goes on as if they had not been. */
static int poison_all(int dp, int tp, const PassOptions *o) {
    Arena *mem = arena_new();
    Sharded s = open_mesh(mem, dp, tp, o);
    Kept start = keep(mem, s.part, s.ranks, s.arg);
    size_t n, m;
    char *want = good_step(&s, mem, &n);
    for (int i = 0; i < ARRAY_LEN(poisons); i++) {
        Arena *one = arena_new();
        give_back(&start, s.part, s.ranks, s.arg);
        put_in(&s, &poisons[i]);
        Kept before = keep(one, s.part, s.ranks, s.arg);
        interp_run(one, s.part, s.arg, s.ret);
        if (poisons[i].zeroed) EXPECT(isfinite(tensor_get(s.ret[0][0], 0)));
        expect_kept(s.part, s.ranks, s.ret, &before,
                    arena_printf(one, "dp=%d tp=%d zero=%d micro=%d overlap=%d %s: %s",
                                 dp, tp, o->zero_level, (int)o->micro_batches, o->overlap,
                                 o->optimizer, poisons[i].what));
        arena_free(one);
    }
    for (int i = 0; i < s.part->narg; i++) { /* data alone are given back */
        const char *role = arg_str(s.part, i, "role", "");
        for (int r = 0; r < s.ranks && strcmp(role, "state"); r++)
            memcpy(s.arg[r][i]->data, start.arg[r][i],
                   (size_t)type_bytes(&s.part->arg[i]->ty));
    }
    char *got = good_step(&s, mem, &m); /* the states are those the bad steps left */
    EXPECT(m == n && !memcmp(got, want, n));
    arena_free(mem);
    return ARRAY_LEN(poisons);
}

static void mesh_of(int dp, int tp) {
    int n = 0;
    for (int k = 0; k < 4 * 2 * 2 * 4; k++) {
        PassOptions o = options(k % 4, k / 4 % 2 ? 4 : 1, k / 8 % 2, optimizers[k / 16]);
        n += poison_all(dp, tp, &o);
    }
    printf("  %d bad steps, nothing changed\n", n);
}

TEST_LABEL_OF(five_copies, SLOW);
TEST_LABEL_OF(five_copies, RELEASED);
TEST_LIMIT(five_copies, 180) {
    mesh_of(5, 1);
}
TEST_LABEL_OF(two_copies_of_two_parts, SLOW);
TEST_LABEL_OF(two_copies_of_two_parts, RELEASED);
TEST_LIMIT(two_copies_of_two_parts, 180) {
    mesh_of(2, 2);
}
TEST_LABEL_OF(four_parts, RELEASED);
TEST_LABEL_OF(four_parts, SLOW);
TEST_LIMIT(four_parts, 180) {
    mesh_of(1, 4);
}

/* ---- one rank that differs from all others ---- */

/* The least of the copies, over every axis; which copy is bad does not matter. */
TEST(ranks_whose_copies_differ_agree) {
    static const char text[] =
        "module @t mesh(dp=2, tp=3) level(diffed)\n"
        "func @f:step(%x: f32[], %p: f32[5], %q: f32[5]) -> (f32[], f32[5]=%p) {\n"
        "  %a = finite %x : f32[]\n  %b = agree %a : f32[]\n"
        "  %r = select %b, %q, %p : f32[5]\n  return %b, %r\n}\n";
    Arena *mem = arena_new();
    PassOptions o = pass_options_default();
    Module *m = module_parse(mem, "agree", text, sizeof text - 1);
    passes_run(m, strstr(train_passes, "shard,"), &o);
    Func *f = sharded_step_of(m);
    for (int bad = -1; bad < 6; bad++) {
        Tensor ***arg = sample_arguments(mem, f), ***ret = sample_results(mem, f);
        for (int r = 0; r < 6; r++) tensor_set(arg[r][0], 0, r == bad ? NAN : 1);
        Kept before = keep(mem, f, 6, arg);
        interp_run(mem, f, arg, ret);
        for (int r = 0; r < 6; r++) {
            EXPECT(tensor_get(ret[r][0], 0) == (bad < 0));
            EXPECT(!memcmp(ret[r][1]->data, before.arg[r][bad < 0 ? 2 : 1], 20));
        }
    }
    arena_free(mem);
}

/* ---- a language model, in the middle of its run ---- */

static const Strategy strategies[] = {
    {.data = 1, .context = 1, .tensor = 1, .ring = 1, .zero_axes = "dp.cp"},
    {.data = 2,
     .context = 1,
     .tensor = 2,
     .ring = 1,
     .zero_axes = "dp.cp",
     .zero_level = 1,
     .bucket_bytes = 1 << 20,
     .overlap = OVERLAP_AUTO},
    {.data = 4,
     .context = 1,
     .tensor = 1,
     .ring = 1,
     .zero_axes = "dp.cp",
     .zero_level = 2,
     .bucket_bytes = 1 << 20},
    {.data = 2,
     .context = 2,
     .tensor = 1,
     .ring = 2,
     .zero_axes = "dp.cp",
     .zero_level = 3,
     .overlap = OVERLAP_AUTO},
    {.data = 1,
     .context = 1,
     .tensor = 4,
     .ring = 1,
     .sequence_parallel = true,
     .zero_axes = "dp.cp",
     .bucket_bytes = 1 << 20}};

/* A weight of the first layer becomes `v`, wherever a rank has it. */
static void set_weight(Simulated *s, double v) {
    int i = sim_find(s->entry, "h.ln_1.weight");
    Layout l = layout_of(s->mem, s->entry, i);
    for (int r = 0; r < s->ranks; r++) {
        LayoutWalk w = layout_walk(&l, r);
        while (layout_next(&w))
            if (w.global == 0) tensor_set(s->arg[r][i], w.local, v);
    }
}

static double get_weight(const Simulated *s) {
    int i = sim_find(s->entry, "h.ln_1.weight");
    Layout l = layout_of(s->mem, s->entry, i);
    for (int r = 0; r < s->ranks; r++) {
        LayoutWalk w = layout_walk(&l, r);
        while (layout_next(&w))
            if (w.global == 0) return tensor_get(s->arg[r][i], w.local);
    }
    return NAN;
}

static void bad_step(Simulated *s, double poison) {
    Arena *mem = arena_new();
    double was = get_weight(s);
    sim_feed(s, 0);
    sim_set(s, "lr", 0.1);
    set_weight(s, poison);
    Kept before = keep(mem, s->entry, s->ranks, s->arg);
    interp_run(mem, s->entry, s->arg, s->ret);
    expect_kept(s->entry, s->ranks, s->ret, &before, "gpt2_tiny");
    set_weight(s, was);
    arena_free(mem);
}

/* Between the steps of the golden run there are bad ones; its losses stay to the bit. */
static void golden_run(const Strategy *strategy, int64_t micro) {
    enum { STEPS = 4 };
    static const double bad[] = {NAN, INFINITY, -INFINITY, 3e38};
    Arena *mem = arena_new();
    double want[2 * STEPS];
    for (int poisoned = 0; poisoned < 2; poisoned++) {
        Simulated s =
            sim_open(mem, "gpt2_tiny", *strategy, micro, (SimChange){0}, train_passes);
        const Json *at = json_need(s.trajectory, "steps")->first;
        for (int k = 0; k < STEPS; k++, at = at->next) {
            double got[2];
            if (poisoned) bad_step(&s, bad[k]);
            sim_step(&s, k, json_f64(json_need(at, "lr")), &got[0], &got[1]);
            if (!poisoned) memcpy(want + 2 * k, got, sizeof got);
            EXPECT(got[0] == want[2 * k] && got[1] == want[2 * k + 1]);
        }
    }
    arena_free(mem);
}

TEST_LABEL_OF(golden_run_with_bad_steps, SLOW);
TEST_LABEL_OF(golden_run_with_bad_steps, RELEASED);
TEST_LIMIT(golden_run_with_bad_steps, 180) {
    for (int i = 0; i < ARRAY_LEN(strategies); i++) golden_run(&strategies[i], 1 + i % 2);
}

/* ---- generated code ---- */

static void fill(Program *p, Tensor **arg) {
    for (int i = 0; i < p->entry->narg; i++)
        memcpy(p->arg[i], arg[i]->data, (size_t)type_bytes(&p->entry->arg[i]->ty));
}

static void expect_program_kept(const Program *p, Tensor **arg, const char *what) {
    const Func *f = p->entry;
    if (*(float *)p->ret[2] != 0) test_fail(__FILE__, __LINE__, "%s: found good", what);
    for (int i = 3; i < f->nret; i++) {
        int a = f->alias[i];
        EXPECT(a >= 0 && p->ret[i] == p->arg[a]); /* in place, without a copy */
        if (memcmp(p->arg[a], arg[a]->data, (size_t)type_bytes(&f->arg[a]->ty)))
            test_fail(__FILE__, __LINE__, "%s: %s has changed", what, f->arg[a]->name);
    }
}

/* Element 0 and the last one of float arguments of that role, to the first ones of these. */
static int poison_program(Program *p, Tensor **arg, const char *poisoned, int bad_numbers,
                          const char *what) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    int n = 0;
    for (int i = 0; i < p->entry->narg; i++) {
        const char *role = arg_str(p->entry, i, "role", "data");
        if (strcmp(role, poisoned) || arg[i]->ty.dt != DT_F32) continue;
        for (int k = 0; k < 2 * bad_numbers; k++, n++) {
            float *at = (float *)arg[i]->data + (k % 2 ? type_count(&arg[i]->ty) - 1 : 0);
            float was = *at;
            *at = bad[k / 2];
            fill(p, arg);
            program_run(p);
            expect_program_kept(
                p, arg,
                arena_printf(arena_new(), "%s: %s", what, p->entry->arg[i]->name));
            *at = was;
        }
    }
    return n;
}

/* A NaN with a payload and the smallest numbers are handed through as they are. */
static void odd_bits(Tensor **arg, const Func *f) {
    static const uint32_t bits[] = {0x7fa00001, 0xffc12345, 0x00000001, 0x80000000};
    for (int i = 0; i < f->narg; i++)
        if (arg_role(f, i) == ARG_state)
            for (int64_t k = 0, n = type_count(&arg[i]->ty); k < MIN(n, 4); k++)
                memcpy((float *)arg[i]->data + k, &bits[k], 4);
}

static void compiled(const char *name, int64_t micro, const char *optimizer,
                     const char *cpu) {
    Arena *mem = arena_new();
    PassOptions o = options(0, micro, false, optimizer);
    CompileOptions co = {.cpu = cpu, .threads = 2, .lower_anew = true};
    Program *p = program_make(mem, ir_file(mem, name), train_passes, &o, &co);
    program_allocate(p, NULL, 0);
    Tensor **arg = sample_arguments(mem, p->entry)[0];
    fill(p, arg);
    program_run(p);
    EXPECT(*(float *)p->ret[2] == 1);
    odd_bits(arg, p->entry);
    const char *what = arena_printf(mem, "%s %s", name, optimizer);
    EXPECT(poison_program(p, arg, "data", 4, what) >= 8);
    /* relu makes a number of what is far below 0, and keeps a NaN */
    bool relu = !strcmp(name, "classify.ir");
    EXPECT_INT(poison_program(p, arg, "param", relu ? 1 : 4, what), relu ? 8 : 24);
    program_free(p);
    arena_free(mem);
}

TEST_LABEL_OF(generated_code, SLOW);
TEST_LIMIT(generated_code, 120) {
    static const char *const cpus[] = {"native", "x86-64-v3"};
    for (int k = 0; k < 16; k++)
        compiled(k & 1 ? "classify.ir" : "mlp.ir", k & 2 ? 4 : 1, optimizers[k >> 2],
                 cpus[k >> 1 & 1]);
}
