/* Models: the four golden cases through the interpreter (loss, logits, every gradient,
 * generation with caches). */
#include "model_case.h"

/* ---- loss and gradients ---- */

static void forward_agrees(const char *name) {
    Arena *mem = arena_new();
    Case c = case_open(mem, name);
    Run r = case_run(&c, MODEL_TRAIN_LOGITS, "", "model");
    run(&r);
    double loss = first_loss(&c);
    EXPECT(fabs(tensor_get(r.ret[0][0], 0) - loss) <= 1e-6 * loss);
    int64_t n;
    float *logits = case_floats(&c, "logits", &n);
    EXPECT_INT(n, type_count(&r.ret[0][1]->ty));
    expect_near("logits", r.ret[0][1]->data, logits, n);
    safetensors_close(c.expected);
    arena_free(mem);
}

TEST_LIMIT(golden_forward, 300) {
    for (int i = 0; i < ARRAY_LEN(golden); i++) forward_agrees(golden[i]);
}

static void gradient_agrees(Case *c, const HfTensor *t, const float *got) {
    int64_t n;
    float *want = case_floats(c, arena_printf(c->mem, "grad.%s", t->name), &n);
    EXPECT_INT(n, t->count);
    size_t len = strlen(t->name);
    if (len > 11 && !strcmp(t->name + len - 11, "c_attn.bias")) {
        expect_near(t->name, got, want, n / 3);
        expect_near(t->name, got + n / 3 * 2, want + n / 3 * 2, n / 3);
        for (int64_t i = n / 3; i < n / 3 * 2; i++) EXPECT(fabsf(got[i]) < 1e-6f);
        return;
    }
    expect_near(t->name, got, want, n);
}

static void gradients_agree(const char *name) {
    Arena *mem = arena_new();
    Case c = case_open(mem, name);
    Run r = case_run(&c, MODEL_TRAIN_LOGITS, "simplify,autodiff,simplify", "model.grad");
    tensor_set(r.arg[0][r.f->narg - 1], 0, 1);
    run(&r);
    HfMap map = hf_map(mem, r.f);
    int first = 2, tensors = 0;
    for (int i = 0; i < r.f->narg; i++) {
        if (!is_param(r.f, i)) continue;
        for (int k = 0; k < map.n; k++) {
            if (map.t[k].arg != i) continue;
            gradient_agrees(&c, &map.t[k],
                            (float *)r.ret[0][first]->data + map.t[k].first);
            tensors++;
        }
        first++;
    }
    EXPECT(first == r.f->nret && tensors == map.n);
    Safetensors *weights = safetensors_open(mem, c.dir, EXIT_DATA);
    EXPECT_INT(tensors, weights->n);
    safetensors_close(weights);
    safetensors_close(c.expected);
    arena_free(mem);
}

TEST_LIMIT(golden_gradients_gpt2_tiny, 300) {
    gradients_agree("gpt2_tiny");
}
TEST_LIMIT(golden_gradients_gpt2_untied, 300) {
    gradients_agree("gpt2_untied");
}
TEST_LIMIT(golden_gradients_llama_tiny, 300) {
    gradients_agree("llama_tiny");
}
TEST_LIMIT(golden_gradients_llama_tied_mqa, 300) {
    gradients_agree("llama_tied_mqa");
}

/* Losses and norms of gradients in double precision by PyTorch, of Hugging Face's models with layers of
 * n = norm(x); x = n + attention(n); n = norm(x); x = n + MLP(n). */
TEST_LIMIT(residuals_behind_norms, 300) {
    static const double loss[] = {4.64865362, 4.14204635, 4.71832034, 6.90890027},
                        norm[] = {0.97610349, 1.29942664, 0.69113739, 2.53322099};
    for (int i = 0; i < ARRAY_LEN(golden); i++) {
        Arena *mem = arena_new();
        Case c = case_open(mem, golden[i]);
        c.spec.normed_residual = true;
        EXPECT(model_spec_not_hf(&c.spec));
        Run r = case_run(&c, MODEL_TRAIN, train_passes, "step");
        run(&r);
        EXPECT_NEAR(tensor_get(r.ret[0][0], 0), loss[i], 2e-6);
        EXPECT_NEAR(tensor_get(r.ret[0][1], 0), norm[i], 1e-5 * norm[i]);
        c.spec.parallel_residual = true;
        EXPECT_FAIL(case_run(&c, MODEL_TRAIN, "", "model"), EXIT_CONFIG, "not both");
        arena_free(mem);
    }
}

/* The whole training program, planned memory and all, has the loss of the model. */
TEST_LIMIT(golden_step_loss, 300) {
    for (int i = 1; i < ARRAY_LEN(golden); i += 2) {
        Arena *mem = arena_new();
        Case c = case_open(mem, golden[i]);
        Run r = case_run(&c, MODEL_TRAIN, train_passes, "step");
        run(&r);
        EXPECT_NEAR(tensor_get(r.ret[0][0], 0), first_loss(&c), 2e-6);
        safetensors_close(c.expected);
        arena_free(mem);
    }
}

/* ---- generation ---- */

static Run predictor(Case *c, int64_t seq, const char *passes) {
    ModelShape shape = {1, seq, c->seq};
    PassOptions o = pass_options_default();
    Module *m = model_build(c->mem, &c->spec, shape, MODEL_PREDICT);
    if (*passes) passes_run(m, passes, &o);
    Run r = run_new(c->mem, m, "model");
    weights_load_hf(c->dir, r.f, weight_at, &r);
    return r;
}

/* Runs tokens[at..at+n) of sequence 0 and compares the logits of the last one. */
static void predict_agrees(Case *c, Run *r, int64_t at, int64_t n, const float *logits) {
    Tensor *tokens = arg_named(r, "tokens");
    for (int64_t i = 0; i < type_count(&tokens->ty); i++)
        tensor_set(tokens, i, i < n ? case_token(c, 0, at + i) : 0);
    for (int64_t i = 0; i < tokens->ty.dim[1]; i++)
        tensor_set(arg_named(r, "positions"), i, (double)(at + MIN(i, n - 1)));
    tensor_set(arg_named(r, "offset"), 0, (double)at);
    tensor_set(arg_named(r, "taken"), 0, (double)n);
    tensor_set(arg_named(r, "last"), 0, (double)(n - 1));
    run(r);
    int64_t v = c->spec.vocab;
    expect_near("predicted logits", r->ret[0][0]->data, logits + (at + n - 1) * v, v);
}

static void give_caches(Run *from, Run *to) {
    static const char *const names[] = {"kcache", "vcache"};
    for (int i = 0; i < 2; i++) {
        Tensor *t = arg_named(to, names[i]);
        memcpy(t->data, from->ret[0][1 + i]->data, (size_t)type_bytes(&t->ty));
    }
}

static void generation_agrees(const char *name, const char *passes) {
    Arena *mem = arena_new();
    Case c = case_open(mem, name);
    int64_t n;
    float *logits = case_floats(&c, "logits", &n);
    Run prompt = predictor(&c, 8, passes), one = predictor(&c, 1, passes);
    predict_agrees(&c, &prompt, 0, 5, logits);
    Run *before = &prompt;
    for (int64_t at = 5; at < 11; at++, before = &one) {
        Tensor *k = arg_named(&one, "kcache");
        if (before->ret[0][1]->data != k->data) give_caches(before, &one);
        predict_agrees(&c, &one, at, 1, logits);
    }
    safetensors_close(c.expected);
    arena_free(mem);
}

TEST_LIMIT(golden_generation, 300) {
    for (int i = 0; i < ARRAY_LEN(golden); i++) generation_agrees(golden[i], "");
}

TEST_LIMIT(golden_generation_planned, 300) {
    for (int i = 0; i < ARRAY_LEN(golden); i++)
        generation_agrees(golden[i], forward_passes);
}

/* ---- several sequences, of lengths of their own ---- */

enum { SEVERAL = 3 };

static Run several(Case *c, int64_t seq, const char *passes) {
    ModelShape shape = {SEVERAL, seq, c->spec.window ? c->spec.window : c->seq};
    shape.ring = c->spec.window > 0;
    PassOptions o = pass_options_default();
    Module *m = model_build(c->mem, &c->spec, shape, MODEL_PREDICT);
    if (*passes) passes_run(m, passes, &o);
    Run r = run_new(c->mem, m, "model");
    weights_load_hf(c->dir, r.f, weight_at, &r);
    return r;
}

/* Tokens at[b]..at[b] + n[b] of each, padded; the logits of the last one of each. */
static void several_agree(Case *c, Run *r, const int *at, const int *n,
                          const float *logits) {
    Tensor *tokens = arg_named(r, "tokens");
    int64_t rows = tokens->ty.dim[1], v = c->spec.vocab;
    for (int b = 0; b < SEVERAL; b++) {
        for (int64_t i = 0; i < rows; i++) {
            int64_t k = b * rows + i;
            tensor_set(tokens, k, i < n[b] ? case_token(c, 0, at[b] + i) : 0);
            tensor_set(arg_named(r, "positions"), k,
                       (double)at[b] + (double)MIN(i, n[b] - 1));
        }
        tensor_set(arg_named(r, "offset"), b, at[b]);
        tensor_set(arg_named(r, "taken"), b, n[b]);
        tensor_set(arg_named(r, "last"), b, (double)(b * rows + n[b] - 1));
    }
    run(r);
    for (int b = 0; b < SEVERAL; b++)
        expect_near("predicted logits", (float *)r->ret[0][0]->data + b * v,
                    logits + (at[b] + n[b] - 1) * v, v);
}

static void generation_of_several(const char *name, const char *passes) {
    Arena *mem = arena_new();
    Case c = case_open(mem, name);
    int64_t count;
    float *logits = case_floats(&c, "logits", &count);
    Run prompt = several(&c, 8, passes), one = several(&c, 1, passes), *before = &prompt;
    int at[SEVERAL] = {0}, n[SEVERAL] = {5, 1, 8};
    several_agree(&c, &prompt, at, n, logits);
    for (int step = 0; step < 3; step++, before = &one) {
        if (before->ret[0][1]->data != arg_named(&one, "kcache")->data)
            give_caches(before, &one);
        for (int b = 0; b < SEVERAL; b++) at[b] += n[b], n[b] = 1;
        several_agree(&c, &one, at, n, logits);
    }
    safetensors_close(c.expected);
    arena_free(mem);
}

TEST_LIMIT(golden_generation_of_several, 300) {
    for (int i = 0; i < ARRAY_LEN(golden); i++) {
        generation_of_several(golden[i], "");
        generation_of_several(golden[i], forward_passes);
    }
}

/* The logits of each row of case tokens where a query sees `window` keys. */
static float *window_logits(Case *c, int64_t window) {
    c->spec.window = window;
    Run r = case_run(c, MODEL_TRAIN_LOGITS, "", "model");
    run(&r);
    return r.ret[0][1]->data;
}

/* Caches of a window's keys: prompts that are shorter and longer, and tokens after them, all the
 * way round. Planned as well. */
static void rings(int64_t window, const char *passes) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "llama_tiny");
    float *logits = window_logits(&c, window);
    Run prompt = several(&c, 8, passes), one = several(&c, 1, passes), *before = &prompt;
    int at[SEVERAL] = {0}, n[SEVERAL] = {5, 1, 8};
    several_agree(&c, &prompt, at, n, logits);
    for (int step = 0; step < 7; step++, before = &one) {
        if (before->ret[0][1]->data != arg_named(&one, "kcache")->data)
            give_caches(before, &one);
        for (int b = 0; b < SEVERAL; b++) at[b] += n[b], n[b] = 1;
        several_agree(&c, &one, at, n, logits);
    }
    safetensors_close(c.expected);
    arena_free(mem);
}

TEST_LIMIT(generation_with_rings, 120) {
    const int64_t windows[] = {1, 3, 6};
    for (int i = 0; i < ARRAY_LEN(windows); i++) {
        rings(windows[i], "");
        rings(windows[i], forward_passes);
    }
}

/* Products of narrow numbers round what they read of a cache, so one of these gives the same bits;
 * and nobody makes an f32 copy of it. */
static void narrow_logits(Case *c, DType narrow, DType caches, float *out) {
    const bool narrow_caches = caches == narrow;
    Run r[2];
    for (int i = 0; i < 2; i++) {
        ModelShape shape = {1, i ? 1 : 8, c->seq, .caches = caches};
        PassOptions o = pass_options_default();
        o.narrow = narrow;
        Module *m = model_build(c->mem, &c->spec, shape, MODEL_PREDICT);
        passes_run(m, "simplify,narrow,hoist,simplify,place", &o);
        r[i] = run_new(c->mem, m, "model");
        weights_load_hf(c->dir, r[i].f, weight_at, &r[i]);
        for (Func *f = m->first; f; f = f->next)
            for (Op *op = f->first; op; op = op->next)
                for (int k = 0; k < op->nout && narrow_caches && op_has(op, F_CAST); k++)
                    EXPECT(op->out[k]->ty.rank != 4 || op->out[k]->ty.dim[1] != c->seq);
        for (int64_t k = 0; k < shape.seq; k++)
            tensor_set(arg_named(&r[i], "tokens"), k, case_token(c, 0, i ? 8 : k));
        tensor_set(arg_named(&r[i], "offset"), 0, i ? 8 : 0);
        tensor_set(arg_named(&r[i], "last"), 0, i ? 0 : 7);
        if (i) give_caches(&r[0], &r[1]);
        run(&r[i]);
    }
    memcpy(out, r[1].ret[0][0]->data, (size_t)c->spec.vocab * sizeof *out);
}

TEST(narrow_caches) {
    for (int i = 0; i < 2 * ARRAY_LEN(golden); i++) {
        const DType type = i % 2 ? DT_F16 : DT_BF16;
        Arena *mem = arena_new();
        Case c = case_open(mem, golden[i / 2]);
        size_t v = (size_t)c.spec.vocab;
        float *wide = NEW_ARRAY(mem, float, v), *narrow = NEW_ARRAY(mem, float, v);
        narrow_logits(&c, type, DT_F32, wide);
        narrow_logits(&c, type, type, narrow);
        EXPECT(!memcmp(wide, narrow, v * sizeof *wide));
        safetensors_close(c.expected);
        arena_free(mem);
    }
}

/* The caches are written where they are: nothing of their size is copied in a step. */
TEST(caches_stay_in_place) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "llama_tiny");
    Run r = predictor(&c, 1, forward_passes);
    for (Func *f = r.m->first; f; f = f->next) {
        for (Op *op = f->first; op; op = op->next) EXPECT(op->kind != OP_copy);
    }
    EXPECT(r.f->alias[1] >= 0 && r.f->alias[2] >= 0);
    safetensors_close(c.expected);
    arena_free(mem);
}

TEST(uses_share_parameters) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "gpt2_tiny");
    Func *a = model_entry(model_build(mem, &c.spec, (ModelShape){2, 4, 0}, MODEL_TRAIN));
    Func *b =
        model_entry(model_build(mem, &c.spec, (ModelShape){1, 8, 32}, MODEL_PREDICT));
    int i = 0, j = 0, n = 0;
    for (;; i++, j++, n++) {
        while (i < a->narg && !is_param(a, i)) i++;
        while (j < b->narg && !is_param(b, j)) j++;
        if (i == a->narg || j == b->narg) break;
        EXPECT_STR(a->arg[i]->name, b->arg[j]->name);
        EXPECT(type_equal(&a->arg[i]->ty, &b->arg[j]->ty));
    }
    EXPECT(i == a->narg && j == b->narg && n == 16);
    safetensors_close(c.expected);
    arena_free(mem);
}
