/* window.c - attention with a sliding window: the reference kernel against the formula
 * worked out here, the same numbers whatever the ranks, its flops, and what configurations
 * and files of Hugging Face say of it. */
#include "../plans.h"
#include "../simulated.h"
#include "frontend/model/model.h"
#include "op_programs.h"

/* ---- the reference kernel ---- */

enum { T = 9, HEADS = 4, GROUPS = 2, DIM = 3 };

/* Row i of head h of one sequence: softmax over the keys max(0, i - n + 1)..i. */
static void formula(Tensor *const *in, int64_t n, int64_t i, int64_t h, double *o) {
    double p[T], sum = 0, scale = 0.4;
    int64_t group = h / (HEADS / GROUPS);
    for (int c = 0; c < DIM; c++) o[c] = 0;
    for (int64_t j = MAX(0, i - n + 1); j <= i; j++) {
        double s = 0;
        for (int c = 0; c < DIM; c++)
            s += tensor_get(in[0], (i * HEADS + h) * DIM + c) *
                 tensor_get(in[1], (j * GROUPS + group) * DIM + c);
        sum += p[j] = exp(scale * s);
    }
    for (int64_t j = MAX(0, i - n + 1); j <= i; j++)
        for (int c = 0; c < DIM; c++)
            o[c] += p[j] / sum * tensor_get(in[2], (j * GROUPS + group) * DIM + c);
}

TEST(a_query_sees_the_last_n_keys) {
    static const char body[] =
        ATTN_OUT_AT("%zero", "scale=0.4; causal=1; window=1", "1,9,4,3", "1,9,4");
    for (int64_t n = 1; n <= T + 1; n++) {
        Arena *mem = arena_new();
        Sample s = {"attention", NULL, ATTN_AT("%zero", "1,9,4,3", "1,9,2,3"),
                    replaced(mem, body, "window=1",
                             arena_printf(mem, "window=%lld", (long long)n))};
        Func *f = entry(plain_module(mem, &s, "f64"));
        return_results(f);
        Tensor ***in = make_arguments(mem, f), *got = run(mem, f, in)[0][0];
        for (int64_t i = 0; i < T; i++)
            for (int64_t h = 0; h < HEADS; h++) {
                double o[DIM];
                formula(in[0], n, i, h, o);
                for (int c = 0; c < DIM; c++)
                    EXPECT_NEAR(tensor_get(got, (i * HEADS + h) * DIM + c), o[c], 1e-12);
            }
        arena_free(mem);
    }
}

/* ---- ranks ---- */

static const char to_local[] =
    "simplify,seed,zero,narrow,autodiff,simplify,train,hoist,simplify,shard,"
    "reshard,collect,simplify,localize,simplify,keep,sink,simplify";

typedef struct Ranks {
    const char *name;
    int data, tensor, context, ring;
} Ranks;

static SimCurve curve(const char *model, const Ranks *l, SimChange change) {
    enum { STEPS = 2 };
    Arena *mem = arena_new();
    bool hybrid = l->ring > 1 && l->ring < l->context;
    Strategy strategy = {.data = l->data,
                         .context = l->context,
                         .tensor = l->tensor,
                         .ring = l->ring,
                         .zero_axes = hybrid ? "dp.cp.up" : "dp.cp",
                         .bucket_bytes = 1 << 20,
                         .overlap = OVERLAP_OFF};
    Simulated s = sim_open(mem, model, strategy, 1, change, to_local);
    SimCurve c = sim_train(&s, STEPS);
    arena_free(mem);
    return c;
}

/* Rings, heads exchanged, both, and queries in parts: windows inside of a rank's chunk of
 * keys, over several, and with documents and dropout. */
static void same_for_ranks(const char *model, int64_t window, bool more) {
    static const Ranks layouts[] = {{"ring of 2", 1, 1, 2, 2},
                                    {"ring of 4", 1, 1, 4, 4},
                                    {"heads of 2", 1, 1, 2, 1},
                                    {"both", 1, 1, 4, 2},
                                    {"ring and tensors", 2, 2, 2, 2}};
    static const Ranks alone = {"alone", 1, 1, 1, 1};
    SimChange change = {
        .window = window, .documents = more, .attn_dropout = more ? 0.2 : 0};
    SimCurve want = curve(model, &alone, change);
    for (int i = 0; i < ARRAY_LEN(layouts); i++) {
        SimCurve got = curve(model, &layouts[i], change);
        test_at("%s, window %lld, %s", model, (long long)window, layouts[i].name);
        for (int k = 0; k < got.steps; k++) {
            EXPECT_NEAR(got.loss[k], want.loss[k], 1e-5);
            EXPECT_NEAR(got.norm[k], want.norm[k], 1e-4);
        }
    }
}

TEST_LABEL_OF(the_same_for_any_ranks, RELEASED);
TEST_LIMIT(the_same_for_any_ranks, 120) {
    same_for_ranks("gpt2_tiny", 3, false);
    same_for_ranks("llama_tiny", 5, true);
    if (!test_long()) return;
    for (int64_t window = 1; window < 40; window = 2 * window + 1) {
        same_for_ranks("gpt2_tiny", window, true);
        same_for_ranks("llama_tiny", window, false);
    }
}

TEST_LABEL_OF(a_window_changes_the_loss_until_it_holds_all, RELEASED);
TEST(a_window_changes_the_loss_until_it_holds_all) {
    static const Ranks alone = {"alone", 1, 1, 1, 1};
    SimCurve all = curve("llama_tiny", &alone, (SimChange){0});
    SimCurve some = curve("llama_tiny", &alone, (SimChange){.window = 4});
    SimCurve wide = curve("llama_tiny", &alone, (SimChange){.window = 1000});
    EXPECT(fabs(some.loss[0] - all.loss[0]) > 1e-4);
    EXPECT(wide.loss[0] == all.loss[0] && wide.loss[1] == all.loss[1]);
}

/* ---- work ---- */

/* w keys for all queries but the first w, which see half of that; the same for any ranks. */
TEST_LABEL_OF(flops_are_those_of_the_window, RELEASED);
TEST(flops_are_those_of_the_window) {
    static const char *const keys[] = {"", "cp 2", "cp 4 algo megatron_cp_algo",
                                       "tp 2 emb_dp False"};
    Arena *mem = arena_new();
    for (int k = 0; k < ARRAY_LEN(keys); k++)
        for (int64_t w = 1; w <= 2 * PLAN_T; w *= 8) {
            char *more = arena_printf(mem, "%s model.model_config.sliding_window %lld",
                                      keys[k], (long long)w);
            Plan p = plan_of(mem, plan_gpt2, more);
            double tokens =
                (double)p.job->batch * (double)p.job->micro * (double)p.job->seq;
            double seen = (double)MIN(w, PLAN_T);
            seen -= seen * seen / 2 / PLAN_T;
            EXPECT_NEAR(p.attention_flops * p.ranks, 12 * PLAN_L * seen * PLAN_C * tokens,
                        1e-12);
        }
    arena_free(mem);
}

/* ---- configurations ---- */

static int64_t window_of_keys(const char *keys) {
    Arena *mem = arena_new();
    ModelSpec s = model_spec_of_config(plan_config(mem, plan_llama, keys));
    arena_free(mem);
    return s.window;
}

TEST(keys_of_a_window) {
#define MODEL "model.model_config."
    EXPECT_INT(window_of_keys(""), 0);
    EXPECT_INT(window_of_keys(MODEL "sliding_window 7"), 7);
    EXPECT_INT(window_of_keys(MODEL "fa_config.pre_tokens 7"), 8);
    EXPECT_INT(window_of_keys(MODEL "fa_config.pre_tokens 255"), 256);
    EXPECT_INT(window_of_keys(MODEL "fa_config.pre_tockens 256"), 0);
    EXPECT_INT(window_of_keys(MODEL "fa_config.pre_tokens 2147483647"), 0);
    EXPECT_INT(window_of_keys(MODEL "fa_config.pre_tokens 7 " MODEL "sliding_window 8"),
               8);
    EXPECT_FAIL(window_of_keys(MODEL "fa_config.pre_tokens 8 " MODEL "sliding_window 8"),
                EXIT_CONFIG, "pre_tokens 8 is a window of 9, but sliding_window is 8");
    EXPECT_FAIL(window_of_keys(MODEL "fa_config.next_tokens 1"), EXIT_CONFIG,
                "predicts the next token");
}

static ModelSpec spec_of(Arena *mem, const char *type, const char *more) {
    char *text = arena_printf(
        mem,
        "{\"model_type\":\"%s\",\"vocab_size\":50,\"max_position_embeddings\":16,"
        "\"num_hidden_layers\":2,\"hidden_size\":32,\"intermediate_size\":40,"
        "\"num_attention_heads\":8%s}",
        type, more);
    return model_spec_of_json(mem, "config.json", text, strlen(text));
}

static int64_t window_of(const char *type, const char *more) {
    Arena *mem = arena_new();
    int64_t window = spec_of(mem, type, more).window;
    arena_free(mem);
    return window;
}

TEST(config_json_of_mistral) {
#define WINDOW ",\"sliding_window\":"
    EXPECT_INT(window_of("mistral", WINDOW "5"), 5);
    EXPECT_INT(window_of("mistral", WINDOW "null"), 0);
    EXPECT_INT(window_of("mistral", ""), 4096); /* as in MistralConfig */
    EXPECT_INT(window_of("llama", WINDOW "null"), 0);
    EXPECT_INT(window_of("llama", WINDOW "5,\"use_sliding_window\":false"), 0);
    EXPECT_FAIL(window_of("llama", WINDOW "5"), EXIT_CONFIG,
                "sliding_window is not supported");
    EXPECT_FAIL(window_of("mistral", WINDOW "0"), EXIT_CONFIG, "sliding_window");
    EXPECT_FAIL(window_of("mistral", ",\"attention_bias\":true"), EXIT_CONFIG,
                "attention_bias true is not supported");
}

TEST(a_llama_with_a_window_is_written_as_a_mistral) {
    Arena *mem = arena_new();
    for (int hf = 0; hf < 2; hf++) {
        ModelSpec s = spec_of(mem, "mistral", WINDOW "5,\"num_key_value_heads\":2");
        char *text = model_spec_json(mem, &s, hf);
        EXPECT(strstr(text, "\"model_type\": \"mistral\""));
        EXPECT(strstr(text, "\"MistralForCausalLM\""));
        EXPECT(strstr(text, "\"sliding_window\": 5"));
        EXPECT(!strstr(text, "attention_bias"));
        ModelSpec again = model_spec_of_json(mem, "config.json", text, strlen(text));
        EXPECT_INT(again.window, 5);
        EXPECT_INT(again.kv_heads, 2);
        EXPECT(again.family == MODEL_LLAMA);
        s.qkv_bias = s.out_bias = true;
        EXPECT_STR(model_spec_not_hf(&s), "a Llama with a sliding window and biases");
    }
    arena_free(mem);
}

/* Of files from before there were windows. */
TEST(our_own_object_may_lack_it) {
    Arena *mem = arena_new();
    ModelSpec s = spec_of(mem, "llama", "");
    char *text =
        replaced(mem, model_spec_json(mem, &s, false), "    \"window\": 0,\n", "");
    EXPECT(!strstr(text, "window"));
    EXPECT_INT(model_spec_of_json(mem, "config.json", text, strlen(text)).window, 0);
    arena_free(mem);
}
