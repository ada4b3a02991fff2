/* Models and weights: the four golden cases through the interpreter (loss, logits, every
 * gradient, generation with caches), Hugging Face folders in and out, all variants. */
#include "../../frontend/model.h"
#include "../../frontend/weights.h"
#include "../../ir/json.h"
#include "../../ir/sample.h"
#include "../../passes/passes.h"
#include "../../runtime/rt.h"
#include "../../runtime/safetensors.h"
#include "../test.h"

static const char *const golden[] = {"gpt2_tiny", "gpt2_untied", "llama_tiny",
                                     "llama_tied_mqa"};

/* ---- a module with its arguments ---- */

typedef struct Run {
    Arena *mem;
    Module *m;
    Func *f;
    Tensor ***arg, ***ret;
} Run;

static Run run_new(Arena *mem, Module *m, const char *entry) {
    Run r = {.mem = mem, .m = m, .f = module_find(m, entry)};
    EXPECT(r.f);
    r.arg = sample_arguments(mem, r.f);
    r.ret = sample_results(mem, r.f);
    return r;
}

static Tensor *arg_named(const Run *r, const char *name) {
    for (int i = 0; i < r->f->narg; i++) {
        if (!strcmp(r->f->arg[i]->name, name)) return r->arg[0][i];
    }
    test_fail(__FILE__, __LINE__, "no argument %s", name);
}

static float *weight_at(void *context, int arg) {
    return ((Run *)context)->arg[0][arg]->data;
}

static bool is_param(const Func *f, int i) {
    return !strcmp(arg_str(f, i, "role", ""), "param");
}

static void init_params(Run *r, uint64_t seed) {
    for (int i = 0; i < r->f->narg; i++) {
        if (is_param(r->f, i)) weights_init(r->f, i, r->arg[0][i]->data, seed);
    }
}

static void run(Run *r) {
    interp_run(r->mem, r->f, r->arg, r->ret);
}

/* ---- golden cases ---- */

typedef struct Case {
    Arena *mem;
    const char *dir;
    ModelSpec spec;
    Safetensors *expected;
    int64_t batch, seq;
} Case;

static Case case_open(Arena *mem, const char *name) {
    Case c = {.mem = mem};
    c.dir = arena_printf(mem, "%s/golden/%s", tests_dir(), name);
    c.spec = model_spec_of_hf(mem, c.dir);
    c.expected =
        safetensors_open(mem, path_join(mem, c.dir, "expected.safetensors"), EXIT_DATA);
    const SafeTensor *t = safetensors_need(c.expected, "tokens");
    c.batch = t->dim[1];
    c.seq = t->dim[2] - 1;
    return c;
}

/* Token j of sequence b of the first step; j up to seq, inclusive. */
static int32_t case_token(const Case *c, int64_t b, int64_t j) {
    const SafeTensor *t = safetensors_need(c->expected, "tokens");
    int64_t v;
    memcpy(&v, (const char *)t->data + 8 * (b * (c->seq + 1) + j), 8);
    return (int32_t)v;
}

static float *case_floats(const Case *c, const char *name, int64_t *n) {
    const SafeTensor *t = safetensors_need(c->expected, name);
    *n = safetensors_count(t);
    float *p = NEW_ARRAY(c->mem, float, (size_t)*n);
    safetensors_read(c->expected, t, DT_F32, p, (size_t)*n * 4);
    return p;
}

static void set_batch(const Case *c, Run *r) {
    Tensor *tokens = arg_named(r, "tokens"), *labels = arg_named(r, "labels");
    for (int64_t b = 0; b < c->batch; b++) {
        for (int64_t j = 0; j < c->seq; j++) {
            tensor_set(tokens, b * c->seq + j, case_token(c, b, j));
            tensor_set(labels, b * c->seq + j, case_token(c, b, j + 1));
        }
    }
}

static double first_loss(const Case *c) {
    const Json *root = json_read(c->mem, path_join(c->mem, c->dir, "trajectory.json"),
                                 1 << 20, EXIT_DATA);
    return json_f64(json_need(json_need(root, "steps")->first, "loss"));
}

/* |a - b| / |b| */
static double distance(const float *a, const float *b, int64_t n) {
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(diff / norm);
}

static void expect_near(const char *what, const float *a, const float *b, int64_t n) {
    double d = distance(a, b, n);
    if (!(d <= 1e-5)) test_fail(__FILE__, __LINE__, "%s is %.3g off", what, d);
}

static Run case_run(Case *c, ModelUse use, const char *passes, const char *entry) {
    Module *m = model_build(c->mem, &c->spec, (ModelShape){c->batch, c->seq, 0}, use);
    PassOptions o = pass_options_default();
    if (*passes) passes_run(m, passes, &o);
    Run r = run_new(c->mem, m, entry);
    weights_load_hf(c->dir, r.f, weight_at, &r);
    set_batch(c, &r);
    return r;
}

static void forward_agrees(const char *name) {
    Arena *mem = arena_new();
    Case c = case_open(mem, name);
    Run r = case_run(&c, MODEL_TRAIN_LOGITS, "", "model");
    run(&r);
    double loss = first_loss(&c);
    EXPECT(fabs(tensor_get(r.ret[0][0], 0) - loss) <= 1e-6 * loss);
    int64_t n;
    float *logits = case_floats(&c, "logits", &n);
    EXPECT(n == type_count(&r.ret[0][1]->ty));
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
    EXPECT(n == t->count);
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
    EXPECT(tensors == weights->n);
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
    tensor_set(arg_named(r, "offset"), 0, (double)at);
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
        generation_agrees(golden[i], predict_passes);
}

/* The caches are written where they are: nothing of their size is copied in a step. */
TEST(caches_stay_in_place) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "llama_tiny");
    Run r = predictor(&c, 1, predict_passes);
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

/* ---- Hugging Face folders ---- */

static void same_tensors(Arena *mem, const char *dir_a, const char *dir_b) {
    Safetensors *a = safetensors_open(mem, dir_a, EXIT_DATA);
    Safetensors *b = safetensors_open(mem, dir_b, EXIT_DATA);
    EXPECT(a->n == b->n);
    for (int i = 0; i < a->n; i++) {
        const SafeTensor *t = &a->t[i], *u = safetensors_need(b, t->name);
        EXPECT(t->dtype == u->dtype && t->rank == u->rank && t->bytes == u->bytes);
        EXPECT(!memcmp(t->dim, u->dim, sizeof t->dim));
        EXPECT(!memcmp(t->data, u->data, (size_t)t->bytes));
    }
    safetensors_close(a);
    safetensors_close(b);
}

TEST(hugging_face_round_trip) {
    for (int i = 0; i < ARRAY_LEN(golden); i++) {
        Arena *mem = arena_new();
        Case c = case_open(mem, golden[i]);
        Run r = case_run(&c, MODEL_TRAIN, "", "model");
        const char *dir = path_join(mem, temp_dir(), golden[i]);
        weights_save_hf(dir, &c.spec, r.f, weight_at, &r);
        same_tensors(mem, c.dir, dir);
        ModelSpec again = model_spec_of_hf(mem, dir);
        EXPECT_STR(model_spec_json(mem, &again, false),
                   model_spec_json(mem, &c.spec, false));
        const Json *g = json_read(mem, path_join(mem, dir, "generation_config.json"),
                                  4096, EXIT_DATA);
        EXPECT(json_get_bool(g, "_from_model_config", false));
        EXPECT(!json_get(g, "eos_token_id"));
        safetensors_close(c.expected);
        arena_free(mem);
    }
}

TEST(save_reports_what_cannot_be_written) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "gpt2_tiny");
    Run r = case_run(&c, MODEL_TRAIN, "", "model");
    const char *file = path_join(mem, temp_dir(), "file");
    EXPECT(!file_write_atomic(file, "x", 1));
    EXPECT_FAIL(weights_save_hf(file, &c.spec, r.f, weight_at, &r), EXIT_CHECKPOINT,
                "cannot make");
    safetensors_close(c.expected);
    arena_free(mem);
}

/* A copy of a case's weights, for tests that change it. */
typedef struct Copy {
    Arena *mem;
    Case c;
    Run r;
    Safetensors *file;
    SafeTensor *t;
    int n;
    const char *dir;
} Copy;

static Copy copy_open(const char *name) {
    Arena *mem = arena_new();
    Copy k = {.mem = mem, .c = case_open(mem, name)};
    k.r = case_run(&k.c, MODEL_TRAIN, "", "model");
    for (int i = 0; i < k.r.f->narg; i++) {
        if (is_param(k.r.f, i))
            memset(k.r.arg[0][i]->data, 0, (size_t)type_bytes(&k.r.arg[0][i]->ty));
    }
    k.file = safetensors_open(mem, k.c.dir, EXIT_DATA);
    k.n = k.file->n;
    k.t = NEW_ARRAY(mem, SafeTensor, (size_t)k.n + 4);
    memcpy(k.t, k.file->t, (size_t)k.n * sizeof *k.t);
    k.dir = path_join(mem, temp_dir(), "copy");
    EXPECT(!dir_make(k.dir));
    return k;
}

static SafeTensor *copy_find(Copy *k, const char *name) {
    for (int i = 0; i < k->n; i++) {
        if (!strcmp(k->t[i].name, name)) return &k->t[i];
    }
    test_fail(__FILE__, __LINE__, "no tensor %s", name);
}

static void copy_load(Copy *k) {
    const char *path = path_join(k->mem, k->dir, "model.safetensors");
    EXPECT(!safetensors_write(path, k->t, k->n, NULL, NULL));
    weights_load_hf(k->dir, k->r.f, weight_at, &k->r);
}

static void copy_close(Copy *k) {
    safetensors_close(k->file);
    safetensors_close(k->c.expected);
    arena_free(k->mem);
}

static bool untouched(Copy *k) {
    Tensor *t = arg_named(&k->r, "wte.weight");
    for (int64_t i = 0; i < type_count(&t->ty); i++) {
        if (tensor_get(t, i) != 0) return false;
    }
    return true;
}

TEST(load_refuses_what_does_not_fit) {
    Copy k = copy_open("gpt2_tiny");
    SafeTensor *t = copy_find(&k, "h.2.ln_1.weight"), was = *t;
    t->name = "h.2.ln_9.weight";
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "missing: h.2.ln_1.weight [32]");
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "extra: h.2.ln_9.weight [32]");
    *t = was;
    t = copy_find(&k, "h.0.attn.c_attn.weight");
    was = *t;
    t->dim[0] = 96, t->dim[1] = 32;
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT,
                "shape: h.0.attn.c_attn.weight is [96,32], the model has [32,96]");
    *t = was;
    t = copy_find(&k, "ln_f.bias");
    was = *t;
    t->dtype = DT_I32;
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "type: ln_f.bias is I32");
    *t = was;
    EXPECT(untouched(&k));
    copy_load(&k);
    EXPECT(!untouched(&k));
    copy_close(&k);
}

TEST(load_passes_over_prefix_and_buffers) {
    Copy k = copy_open("gpt2_tiny");
    float mask[4] = {0};
    for (int i = 0; i < k.n; i++)
        k.t[i].name = arena_printf(k.mem, "transformer.%s", k.t[i].name);
    k.t[k.n++] = (SafeTensor){
        "transformer.h.0.attn.bias", DT_F32, 4, {1, 1, 2, 2}, mask, 0, NULL, 0};
    k.t[k.n++] = (SafeTensor){"h.3.attn.masked_bias", DT_F32, 0, {0}, mask, 0, NULL, 0};
    copy_load(&k);
    Tensor *wte = arg_named(&k.r, "wte.weight");
    EXPECT(!memcmp(wte->data, safetensors_need(k.file, "wte.weight")->data,
                   (size_t)type_bytes(&wte->ty)));
    k.t[k.n - 1].name = "h.x.attn.masked_bias";
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT, "extra: h.x.attn.masked_bias []");
    copy_close(&k);
}

TEST(load_takes_a_tied_head_only_if_equal) {
    Copy k = copy_open("gpt2_tiny");
    SafeTensor *head = &k.t[k.n];
    *head = *copy_find(&k, "wte.weight");
    head->name = "lm_head.weight";
    k.n++;
    copy_load(&k);
    char *other = NEW_ARRAY(k.mem, char, (size_t)head->bytes);
    memcpy(other, head->data, (size_t)head->bytes);
    other[5] ^= 1;
    head->data = other;
    EXPECT_FAIL(copy_load(&k), EXIT_CHECKPOINT,
                "extra: lm_head.weight [96,32] (the model's");
    copy_close(&k);
}

TEST(load_widens_bf16) {
    Copy k = copy_open("gpt2_tiny");
    SafeTensor *t = copy_find(&k, "ln_f.weight");
    uint16_t half[32];
    for (int i = 0; i < 32; i++) half[i] = (uint16_t)(0x3f80 + i); /* 1 + i/128 */
    t->dtype = DT_BF16;
    t->data = half;
    copy_load(&k);
    Tensor *got = arg_named(&k.r, "ln_f.weight");
    for (int i = 0; i < 32; i++) EXPECT(tensor_get(got, i) == 1 + i / 128.0);
    copy_close(&k);
}

TEST(hugging_face_names_and_shapes) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "llama_tied_mqa");
    Module *m = model_build(mem, &c.spec, (ModelShape){1, 2, 0}, MODEL_TRAIN);
    HfMap map = hf_map(mem, model_entry(m));
    Safetensors *file = safetensors_open(mem, c.dir, EXIT_DATA);
    EXPECT(map.n == file->n);
    for (int i = 0; i < map.n; i++) {
        const SafeTensor *t = safetensors_need(file, map.t[i].name);
        EXPECT(t->rank == map.t[i].rank && safetensors_count(t) == map.t[i].count);
        for (int d = 0; d < t->rank; d++) EXPECT(t->dim[d] == map.t[i].dim[d]);
        EXPECT(map.t[i].first == MAX(map.t[i].layer, 0) * map.t[i].count);
    }
    safetensors_close(file);
    safetensors_close(c.expected);
    arena_free(mem);
}

/* ---- config.json ---- */

static ModelSpec spec_of(Arena *mem, const char *text) {
    return model_spec_of_json(mem, "config.json", text, strlen(text));
}

#define GPT2                                                                             \
    "{\"model_type\":\"gpt2\",\"vocab_size\":50,\"n_positions\":16,\"n_layer\":2,"
#define LLAMA                                                                            \
    "{\"model_type\":\"llama\",\"vocab_size\":50,\"max_position_embeddings\":16,"        \
    "\"num_hidden_layers\":2,\"hidden_size\":24,\"intermediate_size\":40,"               \
    "\"num_attention_heads\":4"

TEST(config_json_of_gpt2) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of(mem, GPT2 "\"n_embd\":24,\"n_head\":3,\"n_inner\":null,"
                                    "\"activation_function\":\"quick_gelu\","
                                    "\"eos_token_id\":49,\"pad_token_id\":50}");
    EXPECT(s.family == MODEL_GPT2 && s.hidden == 24 && s.head_dim == 8 && s.ffn == 96);
    EXPECT(s.act == MLP_FAST_GELU && s.tied && s.embd_dropout == 0.1);
    EXPECT(s.n_eos == 1 && s.eos[0] == 49 && s.pad_token == -1 && s.bos_token == -1);
    EXPECT_NEAR(s.output_std, 0.01, 1e-12);
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_embd\":25,\"n_head\":3}"), EXIT_CONFIG,
                "3 heads do not divide the width 25");
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_head\":3}"), EXIT_CONFIG, "n_embd");
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_embd\":24,\"n_head\":3,"
                                  "\"scale_attn_by_inverse_layer_idx\":true}"),
                EXIT_CONFIG, "scale_attn_by_inverse_layer_idx true is not supported");
    EXPECT_FAIL(spec_of(mem, GPT2 "\"n_embd\":24,\"n_head\":3,"
                                  "\"activation_function\":\"gelu_old\"}"),
                EXIT_CONFIG, "unknown activation_function 'gelu_old'");
    EXPECT_FAIL(spec_of(mem, "{\"model_type\":\"gpt3\"}"), EXIT_CONFIG,
                "unknown model_type 'gpt3'");
    arena_free(mem);
}

TEST(config_json_of_llama) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of(mem, LLAMA ",\"head_dim\":8,\"eos_token_id\":[3,4,60]}");
    EXPECT(s.family == MODEL_LLAMA && s.kv_heads == 4 && s.head_dim == 8 && s.gated);
    EXPECT(s.n_eos == 2 && s.eos[1] == 4 && !s.tied && s.norm_eps == 1e-6);
    s = spec_of(mem, LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\","
                           "\"rope_theta\":5e5}}");
    EXPECT(s.rope_base == 5e5 && s.head_dim == 6);
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}"),
                EXIT_CONFIG, "rotary positions of type llama3 are not supported");
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"quantization_config\":{}}"), EXIT_CONFIG,
                "quantization_config is not supported");
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"num_key_value_heads\":3}"), EXIT_CONFIG,
                "3 heads of keys and values do not divide 4 heads");
    EXPECT_FAIL(spec_of(mem, LLAMA ",\"head_dim\":7}"), EXIT_CONFIG,
                "rotary positions turn pairs");
    arena_free(mem);
}

/* ---- configurations, and every variant of a model ---- */

static ModelSpec spec_of_yaml(Arena *mem, const char *keys) {
    char *text = arena_printf(mem,
                              "model:\n  model_config:\n    vocab_size: 17\n"
                              "    seq_length: 6\n    hidden_size: 8\n"
                              "    num_layers: 2\n    num_heads: 2\n%s",
                              keys);
    return model_spec_of_config(config_parse(mem, "test.yaml", text, strlen(text)));
}

TEST(spec_of_configuration) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of_yaml(mem, "    initializer_range: 0.04\n"
                                    "    embedding_init_std: 0.5\n"
                                    "    hidden_dropout_prob: 0.25\n"
                                    "    eos_token: 16\n");
    EXPECT(s.family == MODEL_GPT2 && s.head_dim == 4 && s.ffn == 32 && s.tied);
    EXPECT(s.block_std == 0.04 && s.embedding_std == 0.5 && s.position_std == 0.5);
    EXPECT_NEAR(s.output_std, 0.02, 1e-12);
    EXPECT(s.resid_dropout == 0.25 && s.embd_dropout == 0 && s.attn_dropout == 0);
    EXPECT(s.n_eos == 1 && s.eos[0] == 16 && s.qkv_bias && s.mlp_bias);
    s = spec_of_yaml(mem, "    type: LlamaConfig\n    n_kv_heads: 1\n"
                          "    ffn_hidden_size: 12\n    norm_epsilon: 1e-6\n");
    EXPECT(s.family == MODEL_LLAMA && s.kv_heads == 1 && s.gated && s.act == MLP_SILU);
    EXPECT(s.norm == NORM_RMS && s.positions == POSITION_ROPE && !s.tied && !s.out_bias);
    arena_free(mem);
}

/* Nothing is lost through the text, and what Hugging Face cannot say is not in its keys.
 */
static void json_keeps(Arena *mem, const ModelSpec *s) {
    char *text = model_spec_json(mem, s, false);
    ModelSpec again = spec_of(mem, text);
    EXPECT_STR(model_spec_json(mem, &again, false), text);
    const Json *root = json_parse(mem, "t", text, strlen(text), 1 << 20, EXIT_CONFIG);
    bool plain = !model_spec_not_hf(s);
    EXPECT(strcmp(json_string(json_need(root, "model_type")), "stator") == 0 || plain);
    EXPECT(!json_get(root, "hidden_size") || plain);
}

/* Builds, verifies, survives its own text, runs, has gradients, and the planned training
 * program has the same loss as the model. */
static double variant_loss(Arena *mem, const ModelSpec *s) {
    Module *m = model_build(mem, s, (ModelShape){2, 6, 0}, MODEL_TRAIN);
    char *text = module_print(mem, m);
    Module *parsed = module_parse(mem, "m.ir", text, strlen(text));
    EXPECT_STR(module_print(mem, parsed), text);
    int64_t total = 0;
    Func *f = model_entry(m);
    for (int i = 0; i < f->narg; i++) {
        if (is_param(f, i)) total += type_count(&f->arg[i]->ty);
    }
    EXPECT(total == model_parameters(s, true));
    Run r = run_new(mem, m, "model");
    init_params(&r, 7);
    run(&r);
    double loss = tensor_get(r.ret[0][0], 0);
    PassOptions o = pass_options_default();
    passes_run(parsed, train_passes, &o);
    Run step = run_new(mem, parsed, "step");
    init_params(&step, 7);
    run(&step);
    EXPECT_NEAR(tensor_get(step.ret[0][0], 0), loss, 1e-5);
    EXPECT(tensor_get(step.ret[0][1], 0) > 0);
    return loss;
}

TEST_LIMIT(variants_build_and_run, 300) {
    static const char *const variants[] = {
        "    use_sandwich_norm: True\n    attn_post_norm_scale: 0.5\n",
        "    hidden_act: fast_gelu\n",
        "    hidden_act: relu\n",
        "    dropout_prob: 0.2\n    hidden_dropout_prob: 0.3\n"
        "    attention_probs_dropout_prob: 0.4\n",
        "    hidden_act: swiglu\n    ffn_hidden_size: 12\n",
        "    position_embedding_type: rope\n    normalization: RMSNorm\n",
        "    position_embedding_type: none\n    add_bias_linear: False\n"
        "    add_qkv_bias: True\n    tie_word_embeddings: False\n",
        "    n_kv_heads: 1\n",
        "    type: LlamaConfig\n    n_kv_heads: 1\n    ffn_hidden_size: 12\n"
        "    use_sandwich_norm: True\n    hidden_dropout_prob: 0.1\n",
        "    type: LlamaConfig\n    hidden_act: relu\n    normalization: LayerNorm\n"
        "    position_embedding_type: learned_absolute\n    add_bias_linear: True\n",
    };
    for (int i = 0; i < ARRAY_LEN(variants); i++) {
        Arena *mem = arena_new();
        ModelSpec s = spec_of_yaml(mem, variants[i]);
        json_keeps(mem, &s);
        EXPECT_NEAR(variant_loss(mem, &s), log(17), 0.05);
        arena_free(mem);
    }
}

TEST(erf_gelu_is_another_function) {
    Arena *mem = arena_new();
    double loss[2];
    for (int i = 0; i < 2; i++) {
        ModelSpec s = spec_of_yaml(mem, "    initializer_range: 1\n");
        s.act = i ? MLP_GELU_ERF : MLP_GELU;
        loss[i] = variant_loss(mem, &s);
    }
    EXPECT(loss[0] != loss[1] && fabs(loss[0] - loss[1]) < 1e-2 * loss[0]);
    arena_free(mem);
}

/* Every place of dropout draws its own numbers, from the key of the micro-batch. */
TEST(dropout_follows_the_key) {
    static const char *const keys[] = {"dropout_prob", "hidden_dropout_prob",
                                       "attention_probs_dropout_prob"};
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        Arena *mem = arena_new();
        double loss[3];
        ModelSpec s = spec_of_yaml(mem, arena_printf(mem,
                                                     "    %s: 0.5\n"
                                                     "    initializer_range: 0.5\n",
                                                     keys[i]));
        for (int k = 0; k < 3; k++) {
            ModelShape shape = {2, 6, 0};
            Run r = run_new(mem, model_build(mem, &s, shape, MODEL_TRAIN), "model");
            init_params(&r, 1);
            Tensor *rng = arg_named(&r, "rng");
            for (int w = 0; w < 3; w++) tensor_set(rng, w, w == 0 ? k / 2 : 0);
            run(&r);
            loss[k] = tensor_get(r.ret[0][0], 0);
        }
        EXPECT(loss[0] == loss[1] && loss[0] != loss[2]);
        arena_free(mem);
    }
}

TEST(sandwich_norm_starts_at_its_scale) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of_yaml(mem, "    use_sandwich_norm: True\n"
                                    "    attn_post_norm_scale: 0.25\n"
                                    "    ffn_post_norm_scale: 0\n");
    Run r =
        run_new(mem, model_build(mem, &s, (ModelShape){1, 6, 0}, MODEL_TRAIN), "model");
    init_params(&r, 3);
    for (int i = 0; i < 16; i++) {
        EXPECT(tensor_get(arg_named(&r, "h.attn.post_norm.weight"), i) == 0.25);
        EXPECT(tensor_get(arg_named(&r, "h.mlp.post_norm.weight"), i) == 0);
        EXPECT(tensor_get(arg_named(&r, "h.ln_2.weight"), i) == 1);
    }
    EXPECT(model_spec_not_hf(&s));
    EXPECT_FAIL(weights_save_hf(temp_dir(), &s, r.f, weight_at, &r), EXIT_CONFIG,
                "use_sandwich_norm");
    arena_free(mem);
}

TEST(shapes_that_do_not_fit) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of_yaml(mem, "");
    EXPECT_FAIL(model_build(mem, &s, (ModelShape){1, 7, 0}, MODEL_TRAIN), EXIT_CONFIG,
                "a sequence of 7 tokens: the model has 6 positions");
    EXPECT_FAIL(model_build(mem, &s, (ModelShape){1, 4, 3}, MODEL_PREDICT), EXIT_CONFIG,
                "a cache of 3 rows for 4 tokens");
    EXPECT_FAIL(model_build(mem, &s, (ModelShape){2, 4, 6}, MODEL_PREDICT), EXIT_CONFIG,
                "one sequence at a time");
    EXPECT_FAIL(model_build(mem, &s, (ModelShape){INT64_MAX, 2, 0}, MODEL_TRAIN),
                EXIT_CONFIG, "make the batch smaller");
    s.ffn = 0;
    EXPECT_FAIL(model_build(mem, &s, (ModelShape){1, 4, 0}, MODEL_TRAIN), EXIT_CONFIG,
                "width of the MLP is 0");
    arena_free(mem);
}

/* 124M: the published GPT-2, whose size is known. */
TEST(parameter_count) {
    Arena *mem = arena_new();
    ModelSpec s =
        spec_of(mem, "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":768,"
                     "\"n_positions\":1024,\"n_layer\":12,\"n_head\":12}");
    EXPECT(model_parameters(&s, true) == 124439808);
    EXPECT(model_parameters(&s, false) == 124439808 - 1024 * 768);
    arena_free(mem);
}

/* ---- initial values ---- */

TEST(initial_values) {
    Arena *mem = arena_new();
    Case c = case_open(mem, "gpt2_tiny");
    Module *m = model_build(mem, &c.spec, (ModelShape){1, 8, 0}, MODEL_TRAIN);
    Run a = run_new(mem, m, "model"), b = run_new(mem, m, "model");
    init_params(&a, 1);
    init_params(&b, 1);
    Tensor *w = arg_named(&a, "h.mlp.c_fc.weight");
    int64_t n = type_count(&w->ty);
    EXPECT(!memcmp(w->data, arg_named(&b, "h.mlp.c_fc.weight")->data, (size_t)n * 4));
    double sum = 0, squares = 0, neighbours = 0;
    int64_t within = 0; /* one standard deviation */
    for (int64_t i = 0; i < n; i++) {
        double z = tensor_get(w, i) / 0.02;
        sum += z;
        squares += z * z;
        neighbours += i ? z * tensor_get(w, i - 1) / 0.02 : 0;
        within += fabs(z) < 1;
    }
    double noise = 1 / sqrt((double)n);
    EXPECT(n == 4 * 32 * 128 && fabs(sum / (double)n) < 4 * noise);
    EXPECT(fabs(squares / (double)n - 1) < 4 * sqrt(2) * noise);
    EXPECT(fabs(neighbours / (double)n) < 4 * noise);
    EXPECT(fabs((double)within / (double)n - 0.682689) < 2 * noise);
    EXPECT(tensor_get(arg_named(&a, "h.mlp.c_fc.bias"), 5) == 0);
    EXPECT(tensor_get(arg_named(&a, "ln_f.weight"), 31) == 1);
    EXPECT(tensor_get(arg_named(&a, "wte.weight"), 0) != tensor_get(w, 0));
    rt_set_threads(3);
    init_params(&b, 1);
    EXPECT(!memcmp(w->data, arg_named(&b, "h.mlp.c_fc.weight")->data, (size_t)n * 4));
    init_params(&b, 2);
    EXPECT(memcmp(w->data, arg_named(&b, "h.mlp.c_fc.weight")->data, (size_t)n * 4));
    safetensors_close(c.expected);
    arena_free(mem);
}

/* Decay acts on what is a matrix in Hugging Face's shapes, and on nothing else. */
TEST(decay_on_matrices_only) {
    for (int i = 0; i < ARRAY_LEN(golden); i++) {
        Arena *mem = arena_new();
        Case c = case_open(mem, golden[i]);
        Func *f =
            model_entry(model_build(mem, &c.spec, (ModelShape){1, 2, 0}, MODEL_TRAIN));
        HfMap map = hf_map(mem, f);
        for (int k = 0; k < map.n; k++)
            EXPECT((arg_float(f, map.t[k].arg, "decay", 0) == 1) == (map.t[k].rank == 2));
        safetensors_close(c.expected);
        arena_free(mem);
    }
}

/* ---- model.file ---- */

static const char *module_file(Arena *mem, const char *text) {
    const char *path = path_join(mem, temp_dir(), "m.ir");
    EXPECT(!file_write_atomic(path, text, strlen(text)));
    return path;
}

#define HEADER "module @m mesh() level(global)\n"
#define DATA   "%x: f32[2,3] {role=\"data\"}"

TEST(module_from_text) {
    Arena *mem = arena_new();
    Module *m = model_read(mem, path_join(mem, tests_dir(), "ir/tiny_gpt.ir"));
    EXPECT_STR(model_entry(m)->name, "gpt");
    HfMap map = hf_map(mem, model_entry(m));
    EXPECT_STR(map.t[0].name, "wte");
    EXPECT(map.n == 16 && map.t[4].layer == -1 && map.t[4].rank == 5);
    static const struct {
        const char *text, *part;
    } bad[] = {
        {HEADER "func @f(" DATA ") -> (f32[]) {\n  %s = sum %x {bt->_} : f32[]\n"
                "  return %s\n}\n",
         "0 functions of role model"},
        {HEADER
         "func @f:model(%w: f32[2,3] {role=\"param\"; init=\"ones\"}) -> (f32[]) {\n"
         "  %s = sum %w {bt->_} : f32[]\n  return %s\n}\n",
         "no argument of role tokens"},
        {HEADER "func @f:model(" DATA ") -> (f32[]) {\n  %s = sum %x {bt->_} : f32[]\n"
                "  return %s\n}\n",
         "no argument of role param"},
        {HEADER "func @f:model(" DATA ", %w: f32[2,3] {role=\"param\"}) -> (f32[]) {\n"
                "  %s = sum %w {bt->_} : f32[]\n  return %s\n}\n",
         "parameter %w of @f has no init"},
        {HEADER "func @f:model(" DATA
                ", %w: f32[2,3] {role=\"param\"; init=\"ones\"}) -> "
                "(f32[2,3]) {\n  %s = add %x, %w : f32[2,3]\n  return %s\n}\n",
         "must be the loss, f32[]"},
        {HEADER
         "func @f:model(%t: i32[2,3] {role=\"tokens\"}, %w: f32[4] {role=\"param\"; "
         "init=\"ones\"}) -> (f32[]) {\n  %s = sum %w {v->_} : f32[]\n  return %s\n}\n",
         "no argument of role labels"},
        {HEADER "func @f:model(%t: f32[] {role=\"lr\"}) -> (f32[]) {\n  return %t\n}\n",
         "argument %t of @f has role lr"},
    };
    for (int i = 0; i < ARRAY_LEN(bad); i++)
        EXPECT_FAIL(model_read(mem, module_file(mem, bad[i].text)), EXIT_CONFIG,
                    bad[i].part);
    EXPECT_FAIL(model_read(mem, "no_such.ir"), EXIT_CONFIG, "no_such.ir");
    arena_free(mem);
}
