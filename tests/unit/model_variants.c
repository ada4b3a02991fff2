/* Models of configurations: every variant builds and runs; initial weights. */
#include "model_case.h"
#include "runtime/core/rt.h"

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
    EXPECT_INT(total, model_parameters(s));
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
        "    post_layernorm_residual: True\n",
        "    type: LlamaConfig\n    post_layernorm_residual: True\n"
        "    use_sandwich_norm: True\n    hidden_dropout_prob: 0.1\n",
        "    hidden_act: relu\n",
        "    dropout_prob: 0.2\n    hidden_dropout_prob: 0.3\n"
        "    attention_probs_dropout_prob: 0.4\n",
        "    hidden_act: swiglu\n    ffn_hidden_size: 12\n",
        "    position_embedding_type: rope\n    normalization: RMSNorm\n",
        "    position_embedding_type: none\n    add_bias_linear: False\n"
        "    add_qkv_bias: True\n    tie_word_embeddings: False\n",
        "    n_kv_heads: 1\n",
        "    sliding_window: 2\n",
        "    type: LlamaConfig\n    n_kv_heads: 1\n    fa_config:\n"
        "      pre_tokens: 2\n",
        "    type: LlamaConfig\n    n_kv_heads: 1\n    ffn_hidden_size: 12\n"
        "    use_sandwich_norm: True\n    hidden_dropout_prob: 0.1\n",
        "    type: LlamaConfig\n    hidden_act: relu\n    normalization: LayerNorm\n"
        "    position_embedding_type: learned_absolute\n    add_bias_linear: True\n",
        "    type: LlamaConfig\n    add_qkv_bias: True\n    out_proj_has_bias: True\n",
    };
    for (int i = 0; i < ARRAY_LEN(variants); i++) {
        Arena *mem = arena_new();
        ModelSpec s = spec_of_yaml(mem, variants[i]);
        json_keeps(mem, &s);
        EXPECT_NEAR(variant_loss(mem, &s), log(17), 0.05);
        arena_free(mem);
    }
}

/* Of queries, keys and values, of the product behind them, and of the MLP. */
TEST(each_bias_has_a_key) {
    static const struct {
        const char *keys;
        bool qkv, out, mlp;
    } made[] = {
        {"", true, true, true},
        {"    add_bias_linear: False\n", false, false, false},
        {"    add_bias_linear: False\n    add_qkv_bias: True\n", true, false, false},
        {"    add_bias_linear: False\n    out_proj_has_bias: True\n", false, true, false},
        {"    type: GPTNeoXConfig\n    rotary_percent: 1.0\n    add_bias_linear: False\n",
         false, false, false},
        {"    type: LlamaConfig\n", false, false, false},
        {"    type: LlamaConfig\n    add_dense_bias: True\n", false, true, false},
        {"    type: LlamaConfig\n    add_bias_linear: True\n", true, true, true},
    };
    Arena *mem = arena_new();
    for (int i = 0; i < ARRAY_LEN(made); i++) {
        ModelSpec s = spec_of_yaml(mem, made[i].keys);
        EXPECT(s.qkv_bias == made[i].qkv && s.out_bias == made[i].out);
        EXPECT(s.mlp_bias == made[i].mlp);
    }
    EXPECT_FAIL((void)spec_of_yaml(mem, "    out_proj_has_bias: False\n"), EXIT_CONFIG,
                "out_proj_has_bias False is given together with add_bias_linear True");
    arena_free(mem);
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
    EXPECT_FAIL(weights_save_hf(temp_dir(), &s, r.f, weight_at, &r, DT_F32), EXIT_CONFIG,
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
    EXPECT_INT(model_parameters(&s), 124439808);
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
