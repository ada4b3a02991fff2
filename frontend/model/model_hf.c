/* model_hf.c - see model_hf.h. */
#include "frontend/model/model_hf.h"
#include <math.h>

#define BIG ((int64_t)1 << 20)

/* model_type of Hugging Face's files. */
typedef enum HfType { HF_GPT2, HF_LLAMA, HF_MISTRAL, HF_QWEN2, HF_NEOX } HfType;
static const char *const hf_types[] = {"gpt2", "llama", "mistral", "qwen2", "gpt_neox"};
static const char *const rope_types[ROPE_TYPES] = {[ROPE_DEFAULT] = "default",
                                                   [ROPE_LINEAR] = "linear",
                                                   [ROPE_DYNAMIC] = "dynamic",
                                                   [ROPE_LLAMA3] = "llama3",
                                                   [ROPE_YARN] = "yarn"};

int model_hf_name(const Json *v, const char *const *names, int n) {
    const char *s = json_string(v);
    for (int i = 0; i < n; i++) {
        if (!strcmp(s, names[i])) return i;
    }
    json_fail(v, nearest_name(s, names, n), "unknown %s '%s'", v->key, s);
}

void model_hf_read_eos(const Json *list, int64_t vocab, ModelSpec *s) {
    json_want(list, JSON_ARRAY);
    if (list->n > MODEL_MAX_EOS)
        json_fail(list, NULL, "more than %d tokens that end a text", MODEL_MAX_EOS);
    for (const Json *e = list->first; e; e = e->next) {
        int64_t id = json_i64(e, 0, INT32_MAX);
        if (id < vocab) s->eos[s->n_eos++] = id;
    }
}

void model_hf_write_eos(Text *t, const ModelSpec *s) {
    text_add(t, "[");
    for (int i = 0; i < s->n_eos; i++)
        text_add(t, "%s%lld", i ? ", " : "", (long long)s->eos[i]);
    text_add(t, "]");
}

/* Names of the functions in Hugging Face's table of activations (ACT2FN); the first of
 * each is what we write. */
static const struct {
    const char *name;
    MlpAct act;
} hf_acts[] = {
    {"gelu_new", MLP_GELU},
    {"gelu_pytorch_tanh", MLP_GELU},
    {"gelu_fast", MLP_GELU},
    {"gelu", MLP_GELU_ERF},
    {"quick_gelu", MLP_FAST_GELU},
    {"relu", MLP_RELU},
    {"silu", MLP_SILU},
    {"swish", MLP_SILU},
};

static MlpAct read_act(const Json *root, const char *key, MlpAct otherwise) {
    const char *names[ARRAY_LEN(hf_acts)];
    const Json *v = json_get(root, key);
    if (!v || v->kind == JSON_NULL) return otherwise;
    for (int i = 0; i < ARRAY_LEN(hf_acts); i++) names[i] = hf_acts[i].name;
    return hf_acts[model_hf_name(v, names, ARRAY_LEN(hf_acts))].act;
}

static const char *hf_act(MlpAct act) {
    int i = 0;
    while (hf_acts[i].act != act) i++;
    return hf_acts[i].name;
}

/* Keys that change the arithmetic in ways that are not built; only this value is taken.
 */
static void want_bool(const Json *root, const char *key, bool only) {
    const Json *v = json_get(root, key);
    if (v && v->kind != JSON_NULL && json_bool(v) != only)
        json_fail(v, NULL, "%s %s is not supported", key, only ? "false" : "true");
}

static void want_absent(const Json *root, const char *key) {
    const Json *v = json_get(root, key);
    if (v && v->kind != JSON_NULL) json_fail(v, NULL, "%s is not supported", key);
}

/* ---- rotary positions ---- */

/* llama3 and yarn: the positions before stretching. */
static int64_t original_positions(const Json *root, const Json *v, const ModelSpec *s) {
    static const char key[] = "original_max_position_embeddings";
    const Json *own = json_get(v, key);
    bool given = own && own->kind != JSON_NULL;
    return json_get_i64(given ? v : root, key, 1, BIG, s->max_positions);
}

static double yarn_attention(const Json *v, double factor) {
    double mscale = json_get_f64(v, "mscale", 0),
           all = json_get_f64(v, "mscale_all_dim", 0);
    double usual = mscale != 0 && all != 0
                       ? rope_yarn_scale(factor, mscale) / rope_yarn_scale(factor, all)
                       : rope_yarn_scale(factor, 1);
    return json_get_f64(v, "attention_factor", usual);
}

static void read_ramp(const Json *root, const Json *v, ModelSpec *s) {
    RopeScaling *r = &s->rope;
    r->original = original_positions(root, v, s);
    if (r->type == ROPE_LLAMA3) {
        r->low = json_f64(json_need(v, "low_freq_factor"));
        r->high = json_f64(json_need(v, "high_freq_factor"));
        return;
    }
    r->low = json_get_f64(v, "beta_slow", 1);
    r->high = json_get_f64(v, "beta_fast", 32);
    r->attention = yarn_attention(v, r->factor);
    r->exact = !json_get_bool(v, "truncate", true);
}

static void read_scaling(const Json *root, const Json *v, ModelSpec *s) {
    const Json *type = json_get(v, "rope_type");
    if (!type) type = json_get(v, "type");
    if (!type) return;
    RopeScaling *r = &s->rope;
    *r = (RopeScaling){.type = (RopeType)model_hf_name(type, rope_types, ROPE_TYPES)};
    if (r->type == ROPE_DEFAULT) return;
    const Json *factor = json_get(v, "factor");
    if (r->type == ROPE_YARN && (!factor || factor->kind == JSON_NULL))
        r->factor = (double)s->max_positions / (double)original_positions(root, v, s);
    else
        r->factor = json_f64(json_need(v, "factor"));
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN) read_ramp(root, v, s);
}

/* rope_scaling, or rope_parameters of newer files, which also hold the base and the share
 * of a head. */
static void read_rope(const Json *root, ModelSpec *s) {
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    s->rope_base = json_get_f64(root, "rope_theta", s->rope_base);
    s->rotary_percent = json_get_f64(root, "partial_rotary_factor", s->rotary_percent);
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        const Json *v = json_get(root, keys[i]);
        if (!v || v->kind == JSON_NULL) continue;
        json_want(v, JSON_OBJECT);
        s->rope_base = json_get_f64(v, "rope_theta", s->rope_base);
        s->rotary_percent = json_get_f64(v, "partial_rotary_factor", s->rotary_percent);
        read_scaling(root, v, s);
        if (s->family != MODEL_NEOX && s->rotary_percent != 1)
            json_fail(
                v, NULL,
                "rotary positions on a part of a head are not supported in a Llama");
    }
    const Json *part = json_get(root, "partial_rotary_factor");
    if (s->family != MODEL_NEOX && s->rotary_percent != 1)
        json_fail(part, NULL,
                  "rotary positions on a part of a head are not supported in a Llama");
}

/* ---- a model ---- */

static int64_t need_size(const Json *root, const char *key, int64_t high) {
    return json_i64(json_need(root, key), 1, high);
}

/* A token outside of the vocabulary can never occur: none. */
static int64_t read_token(const Json *root, const char *key, int64_t vocab) {
    int64_t id = json_get_i64(root, key, -1, INT32_MAX, -1);
    return id < vocab ? id : -1;
}

static void read_tokens(const Json *root, ModelSpec *s) {
    s->bos_token = read_token(root, "bos_token_id", s->vocab);
    s->pad_token = read_token(root, "pad_token_id", s->vocab);
    const Json *eos = json_get(root, "eos_token_id");
    if (eos && eos->kind == JSON_ARRAY) {
        model_hf_read_eos(eos, s->vocab, s);
        return;
    }
    int64_t id = read_token(root, "eos_token_id", s->vocab);
    if (id >= 0) s->eos[s->n_eos++] = id;
}

static void head_width(const Json *root, const char *heads_key, ModelSpec *s) {
    if (s->hidden % s->heads)
        json_fail(json_get(root, heads_key), NULL,
                  "%lld heads do not divide the width %lld", (long long)s->heads,
                  (long long)s->hidden);
    s->head_dim = s->hidden / s->heads;
}

/* config.json of transformers.GPT2Config. */
static ModelSpec read_gpt2(const Json *root) {
    ModelSpec s = {.family = MODEL_GPT2,
                   .norm = NORM_LAYER,
                   .positions = POSITION_LEARNED,
                   .rope_base = 10000,
                   .rotary_percent = 1};
    s.vocab = need_size(root, "vocab_size", 1 << 24);
    s.hidden = need_size(root, "n_embd", 1 << 17);
    s.layers = need_size(root, "n_layer", 4096);
    s.heads = s.kv_heads = need_size(root, "n_head", 4096);
    s.max_positions = need_size(root, "n_positions", BIG);
    head_width(root, "n_head", &s);
    s.ffn = json_get_i64(root, "n_inner", 1, BIG, 4 * s.hidden);
    s.norm_eps = json_get_f64(root, "layer_norm_epsilon", 1e-5);
    s.act = read_act(root, "activation_function", MLP_GELU);
    s.qkv_bias = s.out_bias = s.mlp_bias = true;
    s.tied = json_get_bool(root, "tie_word_embeddings", true);
    s.embd_dropout = json_get_f64(root, "embd_pdrop", 0.1);
    s.attn_dropout = json_get_f64(root, "attn_pdrop", 0.1);
    s.resid_dropout = json_get_f64(root, "resid_pdrop", 0.1);
    s.block_std = json_get_f64(root, "initializer_range", 0.02);
    s.output_std = s.block_std / sqrt(2.0 * (double)s.layers);
    want_bool(root, "scale_attn_weights", true);
    want_bool(root, "scale_attn_by_inverse_layer_idx", false);
    want_bool(root, "add_cross_attention", false);
    return s;
}

/* sliding_window; null, or use_sliding_window false, is none. */
static int64_t read_window(const Json *root, int64_t otherwise) {
    const Json *v = json_get(root, "sliding_window");
    if (!json_get_bool(root, "use_sliding_window", true)) return 0;
    if (!v) return otherwise;
    return v->kind == JSON_NULL ? 0 : json_i64(v, 1, INT32_MAX);
}

/* Qwen2's window is one of some layers only. */
static void want_no_window(const Json *root) {
    want_bool(root, "use_sliding_window", false);
    const Json *layers = json_get(root, "layer_types");
    if (!layers || layers->kind == JSON_NULL) return;
    json_want(layers, JSON_ARRAY);
    for (const Json *e = layers->first; e; e = e->next)
        if (strcmp(json_string(e), "full_attention"))
            json_fail(e, NULL, "layers of type %s are not supported in a Qwen2",
                      json_string(e));
}

/* config.json of transformers.LlamaConfig; of MistralConfig, which has no biases, a
 * window and defaults of its own; of Qwen2Config, with biases on q, k and v. */
static ModelSpec read_llama(const Json *root, HfType type) {
    bool mistral = type == HF_MISTRAL;
    ModelSpec s = {.family = MODEL_LLAMA,
                   .norm = NORM_RMS,
                   .positions = POSITION_ROPE,
                   .rope_base = 10000,
                   .rotary_percent = 1};
    s.vocab = need_size(root, "vocab_size", 1 << 24);
    s.hidden = need_size(root, "hidden_size", 1 << 17);
    s.layers = need_size(root, "num_hidden_layers", 4096);
    s.heads = need_size(root, "num_attention_heads", 4096);
    s.kv_heads =
        json_get_i64(root, "num_key_value_heads", 1, 4096, mistral ? 8 : s.heads);
    s.max_positions = need_size(root, "max_position_embeddings", BIG);
    s.ffn = need_size(root, "intermediate_size", BIG);
    s.head_dim = json_get_i64(root, "head_dim", 1, 1024, 0);
    if (!s.head_dim) head_width(root, "num_attention_heads", &s);
    s.norm_eps = json_get_f64(root, "rms_norm_eps", 1e-6);
    s.act = read_act(root, "hidden_act", MLP_SILU);
    s.gated = true;
    s.qkv_bias = s.out_bias = json_get_bool(root, "attention_bias", false);
    s.mlp_bias = json_get_bool(root, "mlp_bias", false);
    s.tied = json_get_bool(root, "tie_word_embeddings", false);
    s.attn_dropout = json_get_f64(root, "attention_dropout", 0);
    s.block_std = s.output_std = json_get_f64(root, "initializer_range", 0.02);
    if (mistral) {
        want_bool(root, "attention_bias", false);
        want_bool(root, "mlp_bias", false);
        s.window = read_window(root, 4096);
    }
    if (type == HF_QWEN2) {
        want_no_window(root);
        s.qkv_bias = true;
        s.out_bias = s.mlp_bias = false;
    }
    read_rope(root, &s);
    return s;
}

/* config.json of transformers.GPTNeoXConfig, under its older names too. */
static ModelSpec read_neox(const Json *root) {
    ModelSpec s = {.family = MODEL_NEOX, .norm = NORM_LAYER, .positions = POSITION_ROPE};
    s.vocab = need_size(root, "vocab_size", 1 << 24);
    s.hidden = need_size(root, "hidden_size", 1 << 17);
    s.layers = need_size(root, "num_hidden_layers", 4096);
    s.heads = s.kv_heads = need_size(root, "num_attention_heads", 4096);
    s.max_positions = need_size(root, "max_position_embeddings", BIG);
    s.ffn = need_size(root, "intermediate_size", BIG);
    head_width(root, "num_attention_heads", &s);
    s.norm_eps = json_get_f64(root, "layer_norm_eps", 1e-5);
    s.act = read_act(root, "hidden_act", MLP_GELU_ERF);
    s.qkv_bias = s.out_bias = json_get_bool(root, "attention_bias", true);
    s.mlp_bias = true;
    s.parallel_residual = json_get_bool(root, "use_parallel_residual", true);
    s.tied = json_get_bool(root, "tie_word_embeddings", false);
    s.attn_dropout = json_get_f64(root, "attention_dropout", 0);
    s.embd_dropout = s.resid_dropout = json_get_f64(root, "hidden_dropout", 0);
    s.block_std = s.output_std = json_get_f64(root, "initializer_range", 0.02);
    s.rope_base = json_get_f64(root, "rotary_emb_base", 10000);
    s.rotary_percent = json_get_f64(root, "rotary_pct", 0.25);
    read_rope(root, &s);
    return s;
}

ModelSpec model_hf_read(const Json *root) {
    const Json *name = json_need(root, "model_type");
    HfType type = (HfType)model_hf_name(name, hf_types, ARRAY_LEN(hf_types));
    want_absent(root, "quantization_config");
    if (type != HF_MISTRAL && type != HF_QWEN2 && read_window(root, 0))
        want_absent(root, "sliding_window");
    ModelSpec s = type == HF_GPT2   ? read_gpt2(root)
                  : type == HF_NEOX ? read_neox(root)
                                    : read_llama(root, type);
    s.embedding_std = s.position_std = s.block_std;
    s.attn_post = s.mlp_post = 1;
    read_tokens(root, &s);
    return s;
}

/* ---- to config.json ---- */

/* A Llama with biases on queries, keys and values alone. */
static bool is_qwen2(const ModelSpec *s) {
    return s->qkv_bias && !s->out_bias && !s->mlp_bias;
}

static const char *not_llama(const ModelSpec *s) {
    if (s->norm != NORM_RMS) return "LayerNorm in a Llama";
    if (s->positions != POSITION_ROPE) return "a Llama without rotary positions";
    if (!s->gated) return "a Llama without gated MLP";
    if (s->window && (s->qkv_bias || s->out_bias || s->mlp_bias))
        return "a Llama with a sliding window and biases";
    if (s->parallel_residual) return "a Llama with parallel residuals";
    if (s->rotary_percent != 1) return "a Llama that turns a part of a head";
    if (s->qkv_bias == s->out_bias || is_qwen2(s)) return NULL;
    return "a Llama with biases on q, k, v and the MLP, or on attention's output alone";
}

static const char *not_neox(const ModelSpec *s) {
    if (s->norm != NORM_LAYER) return "RMSNorm in a GPT-NeoX";
    if (s->positions != POSITION_ROPE) return "a GPT-NeoX without rotary positions";
    if (s->gated) return "a GPT-NeoX with gated MLP";
    if (s->window) return "a GPT-NeoX with a sliding window";
    if (!s->mlp_bias || s->qkv_bias != s->out_bias)
        return "a GPT-NeoX without biases in the MLP, or on a part of attention";
    if (s->kv_heads != s->heads) return "a GPT-NeoX with fewer heads of keys and values";
    if (s->heads * s->head_dim != s->hidden)
        return "a GPT-NeoX whose heads together are not as wide as the model";
    return s->embd_dropout != s->resid_dropout
               ? "a GPT-NeoX with one dropout after the embedding and another elsewhere"
               : NULL;
}

static const char *not_gpt2(const ModelSpec *s) {
    if (s->norm != NORM_LAYER) return "RMSNorm in a GPT-2";
    if (s->positions != POSITION_LEARNED) return "a GPT-2 without learned positions";
    if (s->gated) return "a GPT-2 with gated MLP";
    if (s->window) return "a GPT-2 with a sliding window";
    if (s->parallel_residual) return "a GPT-2 with parallel residuals";
    if (!s->qkv_bias || !s->out_bias || !s->mlp_bias) return "a GPT-2 without biases";
    if (s->kv_heads != s->heads) return "a GPT-2 with fewer heads of keys and values";
    if (s->heads * s->head_dim != s->hidden)
        return "a GPT-2 whose heads together are not as wide as the model";
    return NULL;
}

const char *model_spec_not_hf(const ModelSpec *s) {
    if (s->sandwich) return "norms after attention and MLP (use_sandwich_norm)";
    static const char *(*const not_one[])(const ModelSpec *) = {
        [MODEL_GPT2] = not_gpt2, [MODEL_LLAMA] = not_llama, [MODEL_NEOX] = not_neox};
    return not_one[s->family](s);
}

static void put_int(Text *t, const char *key, int64_t v) {
    text_add(t, "  \"%s\": %lld,\n", key, (long long)v);
}

static void put_float(Text *t, const char *key, double v) {
    text_add(t, "  \"%s\": ", key);
    json_write_double(t, v);
    text_add(t, ",\n");
}

static void put_bool(Text *t, const char *key, bool v) {
    text_add(t, "  \"%s\": %s,\n", key, v ? "true" : "false");
}

static void put_token(Text *t, const char *key, int64_t v) {
    if (v >= 0)
        put_int(t, key, v);
    else
        text_add(t, "  \"%s\": null,\n", key);
}

static void put_eos(Text *t, const ModelSpec *s) {
    if (s->n_eos < 2) {
        put_token(t, "eos_token_id", s->n_eos ? s->eos[0] : -1);
        return;
    }
    text_add(t, "  \"eos_token_id\": ");
    model_hf_write_eos(t, s);
    text_add(t, ",\n");
}

static void write_type(Text *t, HfType type) {
    static const char *const classes[] = {[HF_GPT2] = "GPT2LMHeadModel",
                                          [HF_LLAMA] = "LlamaForCausalLM",
                                          [HF_MISTRAL] = "MistralForCausalLM",
                                          [HF_QWEN2] = "Qwen2ForCausalLM",
                                          [HF_NEOX] = "GPTNeoXForCausalLM"};
    text_add(t, "  \"model_type\": \"%s\",\n  \"architectures\": [\"%s\"],\n",
             hf_types[type], classes[type]);
}

static void write_rope(Text *t, const ModelSpec *s) {
    const RopeScaling *r = &s->rope;
    if (r->type == ROPE_DEFAULT) return;
    text_add(t, "  \"rope_scaling\": {\n");
    text_add(t, "  \"rope_type\": \"%s\",\n", rope_types[r->type]);
    bool yarn = r->type == ROPE_YARN, ramps = yarn || r->type == ROPE_LLAMA3;
    if (ramps) put_int(t, "original_max_position_embeddings", r->original);
    if (ramps) put_float(t, yarn ? "beta_slow" : "low_freq_factor", r->low);
    if (ramps) put_float(t, yarn ? "beta_fast" : "high_freq_factor", r->high);
    if (yarn) put_float(t, "attention_factor", r->attention);
    if (yarn) put_bool(t, "truncate", !r->exact);
    text_add(t, "  \"factor\": ");
    json_write_double(t, r->factor);
    text_add(t, "\n  },\n");
}

static void write_gpt2(Text *t, const ModelSpec *s) {
    write_type(t, HF_GPT2);
    put_int(t, "vocab_size", s->vocab);
    put_int(t, "n_positions", s->max_positions);
    put_int(t, "n_ctx", s->max_positions);
    put_int(t, "n_embd", s->hidden);
    put_int(t, "n_layer", s->layers);
    put_int(t, "n_head", s->heads);
    put_int(t, "n_inner", s->ffn);
    text_add(t, "  \"activation_function\": \"%s\",\n", hf_act(s->act));
    put_float(t, "layer_norm_epsilon", s->norm_eps);
    put_float(t, "embd_pdrop", s->embd_dropout);
    put_float(t, "attn_pdrop", s->attn_dropout);
    put_float(t, "resid_pdrop", s->resid_dropout);
}

/* A Llama with a window is a Mistral. */
static void write_llama(Text *t, const ModelSpec *s) {
    HfType type = s->window ? HF_MISTRAL : is_qwen2(s) ? HF_QWEN2 : HF_LLAMA;
    if (type == HF_MISTRAL) put_int(t, "sliding_window", s->window);
    if (type == HF_QWEN2) put_bool(t, "use_sliding_window", false);
    write_type(t, type);
    put_int(t, "vocab_size", s->vocab);
    put_int(t, "max_position_embeddings", s->max_positions);
    put_int(t, "hidden_size", s->hidden);
    put_int(t, "num_hidden_layers", s->layers);
    put_int(t, "num_attention_heads", s->heads);
    put_int(t, "num_key_value_heads", s->kv_heads);
    put_int(t, "head_dim", s->head_dim);
    put_int(t, "intermediate_size", s->ffn);
    text_add(t, "  \"hidden_act\": \"%s\",\n", hf_act(s->act));
    put_float(t, "rms_norm_eps", s->norm_eps);
    put_float(t, "rope_theta", s->rope_base);
    write_rope(t, s);
    if (type == HF_LLAMA) put_bool(t, "attention_bias", s->qkv_bias);
    if (type == HF_LLAMA) put_bool(t, "mlp_bias", s->mlp_bias);
    put_float(t, "attention_dropout", s->attn_dropout);
}

static void write_neox(Text *t, const ModelSpec *s) {
    write_type(t, HF_NEOX);
    put_int(t, "vocab_size", s->vocab);
    put_int(t, "max_position_embeddings", s->max_positions);
    put_int(t, "hidden_size", s->hidden);
    put_int(t, "num_hidden_layers", s->layers);
    put_int(t, "num_attention_heads", s->heads);
    put_int(t, "intermediate_size", s->ffn);
    text_add(t, "  \"hidden_act\": \"%s\",\n", hf_act(s->act));
    put_float(t, "layer_norm_eps", s->norm_eps);
    put_float(t, "rotary_emb_base", s->rope_base);
    put_float(t, "rotary_pct", s->rotary_percent);
    write_rope(t, s);
    put_bool(t, "use_parallel_residual", s->parallel_residual);
    put_bool(t, "attention_bias", s->qkv_bias);
    put_float(t, "attention_dropout", s->attn_dropout);
    put_float(t, "hidden_dropout", s->resid_dropout);
}

void model_hf_write(Text *t, const ModelSpec *s, DType weights) {
    static const char *const type_names[DT_COUNT] = {
        [DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"};
    static void (*const write[])(Text *,
                                 const ModelSpec *) = {[MODEL_GPT2] = write_gpt2,
                                                       [MODEL_LLAMA] = write_llama,
                                                       [MODEL_NEOX] = write_neox};
    write[s->family](t, s);
    put_float(t, "initializer_range", s->block_std);
    put_token(t, "bos_token_id", s->bos_token);
    put_eos(t, s);
    put_token(t, "pad_token_id", s->pad_token);
    put_bool(t, "tie_word_embeddings", s->tied);
    text_add(t, "  \"torch_dtype\": \"%s\"", type_names[weights]);
}
