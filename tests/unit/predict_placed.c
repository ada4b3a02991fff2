/* Tests of prediction under strategies, with all ranks simulated by the interpreter: the
 * logits of a prompt and of tokens after it are those of one rank on every rank, and the
 * caches are split as the heads are and never sent. */
#include "../test.h"
#include "frontend/model/weights.h"
#include "frontend/tools/generate.h"

static const char to_local[] =
    "simplify,seed,zero,narrow,remake,cut,hoist,simplify,shard,reshard,collect,simplify,"
    "localize,simplify,pipeline,meet,simplify";

enum { PROMPT = 5, ROWS = 8, CACHE = 16, STEPS = 4 };

typedef struct Ranks { /* of one program */
    Arena *mem;
    Module *m;
    int stages, ranks; /* ranks of a stage */
    Tensor ****arg, ****ret;
} Ranks;

typedef struct Whole {
    Func *f;
    Tensor **arg;
} Whole;

static float *whole_at(void *context, int arg) {
    return ((Whole *)context)->arg[arg]->data;
}

/* The parameters of a model as its folder has them. */
static Whole load_whole(Arena *mem, const ModelSpec *spec, const char *dir) {
    ModelShape one = {.batch = 1, .seq = 1, .cache_len = 1};
    Whole w = {.f = model_entry(model_build(mem, spec, one, MODEL_PREDICT))};
    w.arg = NEW_ARRAY(mem, Tensor *, (size_t)w.f->narg);
    for (int i = 0; i < w.f->narg; i++) w.arg[i] = tensor_new(mem, &w.f->arg[i]->ty);
    weights_load_hf(dir, w.f, whole_at, &w);
    return w;
}

static const void *whole_named(const Whole *w, const char *name) {
    for (int i = 0; i < w->f->narg; i++)
        if (!strcmp(w->f->arg[i]->name, name)) return w->arg[i]->data;
    test_fail(__FILE__, __LINE__, "there is no %s", name);
}

static void open_stage(Ranks *r, const Whole *w, int stage) {
    Func *f = module_stage(r->m, stage);
    r->arg[stage] = NEW_ARRAY(r->mem, Tensor **, (size_t)r->ranks);
    r->ret[stage] = NEW_ARRAY(r->mem, Tensor **, (size_t)r->ranks);
    for (int k = 0; k < r->ranks; k++) {
        r->arg[stage][k] = NEW_ARRAY(r->mem, Tensor *, (size_t)f->narg + 1);
        r->ret[stage][k] = NEW_ARRAY(r->mem, Tensor *, (size_t)f->nret + 1);
        for (int i = 0; i < f->narg; i++) {
            Tensor *t = r->arg[stage][k][i] = tensor_new(r->mem, &f->arg[i]->ty);
            if (arg_role(f, i) != ARG_param) continue;
            Layout l = layout_of(r->mem, f, i);
            const char *name = arg_str(f, i, "tensor", f->arg[i]->name);
            /* rows that pad the vocabulary stay zero */
            Tensor *padded = tensor_new(r->mem, &l.whole);
            int64_t rows = (int64_t)arg_float(f, i, "rows", (double)l.whole.dim[0]);
            memcpy(padded->data, whole_named(w, name),
                   (size_t)(type_bytes(&l.whole) / l.whole.dim[0] * rows));
            layout_scatter(&l, stage * r->ranks + k, padded->data, t->data);
        }
    }
}

static Ranks open_ranks(Arena *mem, const ModelSpec *spec, const Whole *w,
                        const Strategy *s, int64_t rows) {
    Ranks r = {.mem = mem};
    PassOptions o = pass_options_default();
    r.m = generator_module(mem, spec, s, 1, rows, CACHE, &o);
    passes_run(r.m, to_local, &o);
    r.stages = MAX(r.m->stages, 1);
    r.ranks = mesh_ranks(&r.m->mesh);
    r.arg = NEW_ARRAY(mem, Tensor ***, (size_t)r.stages);
    r.ret = NEW_ARRAY(mem, Tensor ***, (size_t)r.stages);
    for (int k = 0; k < r.stages; k++) open_stage(&r, w, k);
    return r;
}

static void set_role(const Ranks *r, ArgRole role, const int32_t *v, int64_t n) {
    for (int s = 0; s < r->stages; s++) {
        int i = func_arg_role(module_stage(r->m, s), role);
        for (int k = 0; k < r->ranks && i >= 0; k++)
            for (int64_t e = 0; e < n; e++) tensor_set(r->arg[s][k][i], e, v[e]);
    }
}

/* Runs n tokens from position `at` on; the caches are kept. */
static void run_ranks(Ranks *r, const int32_t *token, int32_t at, int32_t n) {
    int32_t last = n - 1, position[ROWS];
    for (int i = 0; i < ROWS; i++) position[i] = at + MIN(i, last);
    set_role(r, ARG_tokens, token, n);
    set_role(r, ARG_taken, &n, 1);
    set_role(r, ARG_offset, &at, 1);
    set_role(r, ARG_last, &last, 1);
    for (int s = 0; s < r->stages; s++) {
        int i = func_arg_role(module_stage(r->m, s), ARG_positions);
        if (i >= 0) set_role(r, ARG_positions, position, r->arg[s][0][i]->ty.dim[1]);
    }
    const char *stuck = interp_run_stages(r->mem, r->m, r->arg, r->ret);
    if (stuck) test_fail(__FILE__, __LINE__, "%s", stuck);
    for (int s = 0; s < r->stages; s++)
        for (int k = 0; k < r->ranks; k++) {
            const Func *f = module_stage(r->m, s);
            for (int i = 0; i < f->nret; i++)
                if (f->alias[i] >= 0)
                    memcpy(r->arg[s][k][f->alias[i]]->data, r->ret[s][k][i]->data,
                           (size_t)type_bytes(&f->ret[i]->ty));
        }
}

static void hand_caches(const Ranks *from, const Ranks *to) {
    for (int s = 0; s < to->stages; s++) {
        const Func *f = module_stage(from->m, s), *g = module_stage(to->m, s);
        for (int i = 0, j = 0; i < f->narg; i++) {
            if (arg_role(f, i) != ARG_cache) continue;
            while (strcmp(g->arg[j]->name, f->arg[i]->name)) EXPECT(++j < g->narg);
            for (int k = 0; k < to->ranks; k++)
                memcpy(to->arg[s][k][j]->data, from->arg[s][k][i]->data,
                       (size_t)type_bytes(&f->arg[i]->ty));
        }
    }
}

/* Logits after the prompt and after each of STEPS tokens, on the ranks of a strategy, of
 * which all have the same: logits[1 + STEPS][vocab]. Returns the largest cache of a rank. */
static int64_t predict_logits(const char *name, int64_t window, Strategy s,
                              double *logits) {
    Arena *mem = arena_new();
    const char *dir = arena_printf(mem, "%s/golden/%s", tests_dir(), name);
    ModelSpec spec = model_spec_of_hf(mem, dir);
    spec.window = window;
    int32_t token[PROMPT + STEPS];
    for (int i = 0; i < PROMPT + STEPS; i++)
        token[i] = (int32_t)((i * 37 + 11) % spec.vocab);
    s.own_data = true;
    s.zero_axes = "dp.cp";
    s.context = MAX(s.context, 1);
    s.ring = MAX(s.ring, 1);
    Whole w = load_whole(mem, &spec, dir);
    Ranks prompt = open_ranks(mem, &spec, &w, &s, ROWS);
    Ranks one = open_ranks(mem, &spec, &w, &s, 1), *r = &prompt;
    int64_t most = 0;
    for (int step = 0; step <= STEPS; step++, r = &one) {
        int at = step ? PROMPT + step - 1 : 0;
        run_ranks(r, token + at, at, step ? 1 : PROMPT);
        for (int st = 0; st < r->stages; st++)
            for (int k = 0; k < r->ranks; k++)
                for (int64_t v = 0; v < spec.vocab; v++) {
                    double *first = &logits[step * spec.vocab + v];
                    double x = tensor_get(r->ret[st][k][0], v);
                    if (!st && !k) *first = x;
                    EXPECT(x == *first);
                }
        if (!step) hand_caches(&prompt, &one);
    }
    for (int st = 0; st < one.stages; st++) {
        const Func *f = module_stage(one.m, st);
        for (int i = 0; i < f->narg; i++)
            if (arg_role(f, i) == ARG_cache) most = MAX(most, type_count(&f->arg[i]->ty));
    }
    arena_free(mem);
    return most;
}

enum { MOST_VOCAB = 96 };

/* `share`: parts of the caches that a rank has one of. Returns the elements of a whole one. */
static int64_t expect_same_of(const char *name, int64_t window, Strategy s,
                              int64_t share) {
    static double want[(1 + STEPS) * MOST_VOCAB], got[(1 + STEPS) * MOST_VOCAB];
    Strategy one = {.data = 1, .tensor = 1};
    int64_t whole = predict_logits(name, window, one, want);
    EXPECT_INT(whole / share, predict_logits(name, window, s, got));
    for (int i = 0; i < (1 + STEPS) * MOST_VOCAB; i++) EXPECT_NEAR(got[i], want[i], 1e-5);
    return whole;
}

static void expect_same(const char *name, Strategy s, int64_t share) {
    expect_same_of(name, 0, s, share);
}

TEST(tensor_parallel) {
    expect_same("gpt2_tiny", (Strategy){.data = 1, .tensor = 2}, 2);
    expect_same("gpt2_tiny", (Strategy){.data = 1, .tensor = 4, .vocab_parallel = true},
                4);
    expect_same("llama_tiny", (Strategy){.data = 1, .tensor = 2}, 2);
    expect_same("llama_tiny", (Strategy){.data = 2, .tensor = 2, .vocab_parallel = true},
                2);
}

/* One head of keys and values is whole on every rank; 61 tokens are padded to 62. */
TEST(one_key_head_and_a_padded_vocabulary) {
    expect_same("llama_tied_mqa",
                (Strategy){.data = 1, .tensor = 2, .vocab_parallel = true}, 1);
    expect_same("gpt2_untied", (Strategy){.data = 1, .tensor = 3, .vocab_parallel = true},
                3);
}

TEST(split_weights) {
    expect_same("gpt2_tiny", (Strategy){.data = 2, .tensor = 2, .zero_level = 3}, 2);
    expect_same("llama_tiny", (Strategy){.data = 4, .tensor = 1, .zero_level = 3}, 1);
}

TEST(stages) {
    expect_same("gpt2_tiny", (Strategy){.data = 1, .tensor = 1, .stages = 2}, 2);
    expect_same("llama_tiny",
                (Strategy){.data = 1, .tensor = 2, .stages = 2, .vocab_parallel = true},
                4);
    expect_same("gpt2_tiny",
                (Strategy){.data = 2, .tensor = 2, .stages = 4, .zero_level = 3}, 8);
}

/* Heads of caches are split, and tokens where there are enough; a ring has whole caches. ROWS is no
 * multiple of 3. */
TEST(context_parallel) {
    expect_same("gpt2_tiny", (Strategy){.data = 1, .tensor = 1, .context = 2}, 2);
    expect_same("gpt2_tiny", (Strategy){.data = 1, .tensor = 2, .context = 2}, 4);
    expect_same("gpt2_tiny",
                (Strategy){.data = 2, .tensor = 1, .context = 4, .zero_level = 3}, 4);
    expect_same("gpt2_untied",
                (Strategy){.data = 1, .tensor = 1, .context = 3, .stages = 2}, 6);
    expect_same("llama_tiny",
                (Strategy){.data = 1, .tensor = 1, .context = 2, .stages = 2}, 4);
    expect_same("llama_tied_mqa", (Strategy){.data = 1, .tensor = 1, .context = 2}, 1);
    expect_same("gpt2_tiny", (Strategy){.data = 1, .tensor = 1, .context = 2, .ring = 2},
                1);
    expect_same("gpt2_tiny", (Strategy){.data = 1, .tensor = 1, .context = 4, .ring = 2},
                2);
}

/* Caches are rings of a window's keys, which the prompt has more of. */
TEST(rings) {
    const Strategy s[] = {{.data = 1, .tensor = 2},
                          {.data = 1, .tensor = 2, .stages = 2},
                          {.data = 2, .tensor = 1, .zero_level = 3},
                          {.data = 1, .tensor = 1, .context = 2}};
    const int64_t share[] = {2, 4, 1, 2};
    _Static_assert(PROMPT > 3 && CACHE % 2 == 0, "a prompt longer than the window");
    for (int i = 0; i < ARRAY_LEN(s); i++)
        EXPECT_INT(expect_same_of("llama_tiny", 2, s[i], share[i]) * (CACHE / 2),
                   expect_same_of("llama_tiny", 0, s[i], share[i]));
}
