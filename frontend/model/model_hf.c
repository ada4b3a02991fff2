/* model_hf.c - a ModelSpec from Hugging Face's keys. */
#include "frontend/model/model_hf_words.h"
#include <math.h>

#define BIG ((int64_t)1 << 20)

int model_hf_read_eos(const Json *v, int64_t vocab, int64_t eos[MODEL_MAX_EOS]) {
    int n = 0;
    if (!v || v->kind == JSON_NULL) return 0;
    if (v->kind != JSON_ARRAY) {
        eos[0] = json_i64(v, -1, INT32_MAX);
        return eos[0] >= 0 && eos[0] < vocab;
    }
    if (v->n > MODEL_MAX_EOS)
        json_fail(v, NULL, "more than %d tokens that end a text", MODEL_MAX_EOS);
    for (const Json *e = v->first; e; e = e->next) {
        int64_t id = json_i64(e, 0, INT32_MAX);
        if (id < vocab) eos[n++] = id;
    }
    return n;
}

/* Keys that change the arithmetic in ways that are not built; only this value is taken.
 */
static void want_bool(const Json *root, const char *key, bool only) {
    const Json *v = json_get(root, key);
    if (v && v->kind != JSON_NULL && json_bool(v) != only)
        json_fail(v, NULL, "%s %s is not supported", key, only ? "false" : "true");
}

/* Two keys for one number, of which transformers takes the second: where they differ, who reads the
 * file may mean the first. */
static void want_same(const Json *root, const char *key, const char *counts,
                      double value) {
    const Json *v = json_get(root, key);
    if (!v || v->kind == JSON_NULL) return;
    double told = json_f64(v);
    if (told < value || told > value)
        json_fail(v, "leave one of the two out", "%s %g does not count: %s is %g", key,
                  told, counts, value);
}

static void want_absent(const Json *root, const char *key) {
    const Json *v = json_get(root, key);
    if (v && v->kind != JSON_NULL) json_fail(v, NULL, "%s is not supported", key);
}

static MlpAct read_act(const Json *root, const char *key, MlpAct otherwise) {
    const Json *v = json_get(root, key);
    return v && v->kind != JSON_NULL ? hf_act_of(v) : otherwise;
}

/* ---- rotary positions ---- */

/* llama3 and yarn: the positions before stretching. Of two places the inner one counts for
 * transformers 4, the outer one for 5. */
static int64_t original_positions(const Json *root, const Json *v, const ModelSpec *s) {
    static const char key[] = "original_max_position_embeddings";
    const Json *own = json_get(v, key);
    bool given = own && own->kind != JSON_NULL;
    int64_t n = json_get_i64(given ? v : root, key, 1, BIG, s->max_positions);
    want_same(root, key, "that of the stretching", (double)n);
    return n;
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
    const Json *truncate = json_get(v, "truncate"); /* null is no */
    r->exact = truncate && (truncate->kind == JSON_NULL || !json_bool(truncate));
}

static void read_scaling(const Json *root, const Json *v, ModelSpec *s) {
    const Json *type = json_get(v, "rope_type");
    if (!type) type = json_get(v, "type");
    for (const Json *of = v->first; of && !type; of = of->next)
        if (of->kind == JSON_OBJECT)
            json_fail(of, NULL, "rotary positions of kinds of layers are not supported");
    if (!type) return;
    RopeScaling *r = &s->rope;
    *r = (RopeScaling){.type = (RopeType)model_hf_name(type, hf_rope_types, ROPE_TYPES)};
    if (r->type == ROPE_DEFAULT) return;
    const Json *factor = json_get(v, "factor");
    if (r->type == ROPE_YARN && (!factor || factor->kind == JSON_NULL))
        r->factor = (double)s->max_positions / (double)original_positions(root, v, s);
    else
        r->factor = json_f64(json_need(v, "factor"));
    if (r->type == ROPE_LLAMA3 || r->type == ROPE_YARN) read_ramp(root, v, s);
}

static void want_whole_heads(const Json *at, const ModelSpec *s) {
    if (s->family != MODEL_NEOX && s->rotary_percent != 1)
        json_fail(at, NULL,
                  "rotary positions on a part of a head are not supported in a Llama");
}

/* NULL: it is not there, or says nothing. */
static const Json *rope_object(const Json *root, const char *key) {
    const Json *v = json_get(root, key);
    if (!v || v->kind == JSON_NULL) return NULL;
    json_want(v, JSON_OBJECT);
    return v->n ? v : NULL;
}

/* A number of rope_parameters, which does not count beside rope_scaling. */
static void want_told(const Json *parameters, const char *key, double counts) {
    double told = json_get_f64(parameters, key, counts);
    if (told != counts)
        json_fail(json_get(parameters, key), "write it into rope_scaling too",
                  "%s %g does not count beside rope_scaling, which has another", key,
                  told);
}

/* rope_scaling, or rope_parameters of newer files, which also hold the base and the share
 * of a head. Where both are there the former counts, as in transformers. */
static void read_rope(const Json *root, ModelSpec *s) {
    const Json *scaling = rope_object(root, "rope_scaling");
    const Json *parameters = rope_object(root, "rope_parameters");
    const Json *v = scaling ? scaling : parameters;
    bool neox = s->family == MODEL_NEOX; /* which has other names for the two */
    if (!neox) {
        s->rope_base = json_get_f64(root, "rope_theta", s->rope_base);
        s->rotary_percent =
            json_get_f64(root, "partial_rotary_factor", s->rotary_percent);
    }
    if (v) {
        s->rope_base = json_get_f64(v, "rope_theta", s->rope_base);
        s->rotary_percent = json_get_f64(v, "partial_rotary_factor", s->rotary_percent);
        read_scaling(root, v, s);
        want_whole_heads(v, s);
    }
    if (neox) {
        want_same(root, "rope_theta", "rotary_emb_base", s->rope_base);
        want_same(root, "partial_rotary_factor", "rotary_pct", s->rotary_percent);
    }
    if (scaling && parameters) {
        want_told(parameters, "rope_theta", s->rope_base);
        want_told(parameters, "partial_rotary_factor", s->rotary_percent);
    }
    want_whole_heads(json_get(root, "partial_rotary_factor"), s);
}

/* ---- a model ---- */

static int64_t need_size(const Json *root, const char *key, int64_t high) {
    const Json *v = json_get(root, key);
    char hint[200];
    snprintf(hint, sizeof hint, "write \"%s\": and %s", key,
             ends_with(key, "_positions") || ends_with(key, "_position_embeddings")
                 ? "the most tokens of a text that it was made for, such as 2048"
                 : "a whole number");
    if (!v) json_fail(root, hint, "'%s' is missing here", key);
    return json_i64(v, 1, high);
}

/* The sizes that every model has, the others under the names that its family gives them. */
static void read_sizes(const Json *root, const char *hidden, const char *layers,
                       const char *heads, ModelSpec *s) {
    s->vocab = need_size(root, "vocab_size", 1 << 24);
    s->hidden = need_size(root, hidden, 1 << 17);
    s->layers = need_size(root, layers, 4096);
    s->heads = s->kv_heads = need_size(root, heads, 4096);
}

/* A token outside of the vocabulary can never occur: none. */
static int64_t read_token(const Json *root, const char *key, int64_t vocab) {
    int64_t id = json_get_i64(root, key, -1, INT32_MAX, -1);
    return id < vocab ? id : -1;
}

static void read_tokens(const Json *root, ModelSpec *s) {
    s->bos_token = read_token(root, "bos_token_id", s->vocab);
    s->pad_token = read_token(root, "pad_token_id", s->vocab);
    s->n_eos = model_hf_read_eos(json_get(root, "eos_token_id"), s->vocab, s->eos);
}

static void head_width(const Json *root, const char *heads_key, ModelSpec *s) {
    if (s->hidden % s->heads)
        json_fail(json_get(root, heads_key), NULL,
                  "%lld heads do not divide the width %lld", (long long)s->heads,
                  (long long)s->hidden);
    s->head_dim = s->hidden / s->heads;
}

/* Other names that transformers has for GPT-2's sizes as well. */
static void want_one_size(const Json *root, const ModelSpec *s) {
    want_same(root, "hidden_size", "n_embd", (double)s->hidden);
    want_same(root, "num_hidden_layers", "n_layer", (double)s->layers);
    want_same(root, "num_attention_heads", "n_head", (double)s->heads);
    want_same(root, "max_position_embeddings", "n_positions", (double)s->max_positions);
}

/* config.json of transformers.GPT2Config. */
static ModelSpec read_gpt2(const Json *root) {
    ModelSpec s = {.family = MODEL_GPT2,
                   .norm = NORM_LAYER,
                   .positions = POSITION_LEARNED,
                   .rope_base = 10000,
                   .rotary_percent = 1};
    read_sizes(root, "n_embd", "n_layer", "n_head", &s);
    s.max_positions = need_size(root, "n_positions", BIG);
    head_width(root, "n_head", &s);
    want_one_size(root, &s);
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

/* layer_types must be `type` for every layer, if it is there; returns whether it is. */
static bool want_layers(const Json *root, const char *type, const char *model) {
    const Json *layers = json_get(root, "layer_types");
    if (!layers || layers->kind == JSON_NULL) return false;
    json_want(layers, JSON_ARRAY);
    for (const Json *e = layers->first; e; e = e->next)
        if (strcmp(json_string(e), type))
            json_fail(e, NULL, "layers of type %s are not supported in %s",
                      json_string(e), model);
    return true;
}

/* The window of Qwen2 and Qwen3 is one of some layers only: those behind max_window_layers. */
static void want_no_window(const Json *root, const ModelSpec *s) {
    enum { WINDOW_LAYERS_OF_TRANSFORMERS = 28 };
    const Json *on = json_get(root, "use_sliding_window");
    const Json *window = json_get(root, "sliding_window");
    if (want_layers(root, "full_attention", "a Qwen")) return;
    bool none = window && window->kind == JSON_NULL;
    if (!on || on->kind == JSON_NULL || !json_bool(on) || none) return;
    if (json_get_i64(root, "max_window_layers", 0, INT32_MAX,
                     WINDOW_LAYERS_OF_TRANSFORMERS) < s->layers)
        json_fail(on, "false, for texts that are no longer than the window",
                  "a window in some layers of a Qwen is not supported");
}

/* The window of a Mistral, whose layers are alike: null is none, and so is a layer_types of full
 * attention alone. A key to turn it off it has not. */
static int64_t read_window(const Json *root) {
    const Json *v = json_get(root, "sliding_window"), *off = NULL;
    const Json *layers = json_get(root, "layer_types");
    const Json *first = layers && layers->kind == JSON_ARRAY ? layers->first : NULL;
    bool full = first && !strcmp(json_string(first), "full_attention");
    want_layers(root, full ? "full_attention" : "sliding_attention",
                "a Mistral that has others too");
    int64_t window = !v ? 4096 : v->kind == JSON_NULL ? 0 : json_i64(v, 1, INT32_MAX);
    off = json_get(root, "use_sliding_window");
    if (window && !full && off && off->kind != JSON_NULL && !json_bool(off))
        json_fail(off, "write sliding_window null, or leave this out",
                  "use_sliding_window false does not count in a Mistral");
    return full ? 0 : window;
}

/* config.json of transformers.LlamaConfig; of MistralConfig, which has no biases, a
 * window and defaults of its own; of Qwen2Config, with biases on q, k and v; of Qwen3Config,
 * with norms of queries and keys, and heads that are 128 wide whatever the model is. */
static ModelSpec read_llama(const Json *root, HfType type) {
    bool mistral = type == HF_MISTRAL;
    ModelSpec s = {.family = MODEL_LLAMA,
                   .norm = NORM_RMS,
                   .positions = POSITION_ROPE,
                   .rope_base = 10000,
                   .rotary_percent = 1};
    read_sizes(root, "hidden_size", "num_hidden_layers", "num_attention_heads", &s);
    s.kv_heads =
        json_get_i64(root, "num_key_value_heads", 1, 4096, mistral ? 8 : s.heads);
    s.max_positions = need_size(root, "max_position_embeddings", BIG);
    s.ffn = need_size(root, "intermediate_size", BIG);
    s.head_dim = json_get_i64(root, "head_dim", 1, 1024, type == HF_QWEN3 ? 128 : 0);
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
        s.window = read_window(root);
    }
    if (type == HF_QWEN2 || type == HF_QWEN3) want_no_window(root, &s);
    if (type == HF_QWEN2) {
        s.qkv_bias = true;
        s.out_bias = s.mlp_bias = false;
    }
    if (type == HF_QWEN3) {
        s.qk_norm = true;
        s.mlp_bias = false;
    }
    read_rope(root, &s);
    return s;
}

/* config.json of transformers.GPTNeoXConfig, under its older names too. */
static ModelSpec read_neox(const Json *root) {
    ModelSpec s = {.family = MODEL_NEOX, .norm = NORM_LAYER, .positions = POSITION_ROPE};
    read_sizes(root, "hidden_size", "num_hidden_layers", "num_attention_heads", &s);
    s.max_positions = need_size(root, "max_position_embeddings", BIG);
    s.ffn = need_size(root, "intermediate_size", BIG);
    head_width(root, "num_attention_heads", &s);
    want_same(root, "head_dim", "hidden_size / num_attention_heads", (double)s.head_dim);
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

/* null is false to transformers. */
static void want_causal(const Json *root) {
    const Json *v = json_get(root, "is_causal");
    if (v && (v->kind == JSON_NULL || !json_bool(v)))
        json_fail(v, NULL, "attention to tokens that follow is not supported");
}

ModelSpec model_hf_read(const Json *root) {
    const Json *name = json_need(root, "model_type");
    HfType type = hf_type_of(name);
    want_absent(root, "quantization_config");
    want_absent(root, "transformers_weights");
    want_causal(root);
    bool windows = type == HF_MISTRAL || type == HF_QWEN2 || type == HF_QWEN3;
    /* the other families have none: transformers leaves the key alone */
    if (!windows && json_get_bool(root, "use_sliding_window", true))
        want_absent(root, "sliding_window");
    ModelSpec s = type == HF_GPT2   ? read_gpt2(root)
                  : type == HF_NEOX ? read_neox(root)
                                    : read_llama(root, type);
    s.embedding_std = s.position_std = s.block_std;
    s.attn_post = s.mlp_post = 1;
    read_tokens(root, &s);
    return s;
}
