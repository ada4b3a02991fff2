/* model_hf_write.c - a ModelSpec to Hugging Face's keys, or why they cannot say it. */
#include "frontend/model/model_hf_words.h"

/* ---- what they cannot say ---- */

/* A Llama with biases on queries, keys and values alone. */
static bool is_qwen2(const ModelSpec *s) {
    return s->qkv_bias && !s->out_bias && !s->mlp_bias;
}

/* What the classes of transformers take but LlamaConfig. */
static bool heads_are_uneven(const ModelSpec *s) {
    return s->hidden % s->heads != 0;
}

/* A Llama with norms of queries and keys. */
static const char *not_qwen3(const ModelSpec *s) {
    if (s->window) return "a Llama with norms of queries and keys and a sliding window";
    return s->mlp_bias || s->qkv_bias != s->out_bias
               ? "a Llama with norms of queries and keys and biases in the MLP, or on a "
                 "part "
                 "of attention"
               : NULL;
}

static const char *not_llama(const ModelSpec *s) {
    if (s->norm != NORM_RMS) return "LayerNorm in a Llama";
    if (s->positions != POSITION_ROPE) return "a Llama without rotary positions";
    if (!s->gated) return "a Llama without gated MLP";
    if (s->window && (s->qkv_bias || s->out_bias || s->mlp_bias))
        return "a Llama with a sliding window and biases";
    if (s->parallel_residual) return "a Llama with parallel residuals";
    if (s->rotary_percent != 1) return "a Llama that turns a part of a head";
    if (s->qk_norm) return not_qwen3(s);
    if (heads_are_uneven(s) && (s->out_bias || s->mlp_bias))
        return "a Llama with biases and a hidden_size that is no multiple of num_heads";
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
    if (s->normed_residual) return "residuals behind norms (post_layernorm_residual)";
    if (s->qk_norm && s->family != MODEL_LLAMA)
        return "norms of queries and keys in a model that is no Llama";
    static const char *(*const not_one[])(const ModelSpec *) = {
        [MODEL_GPT2] = not_gpt2, [MODEL_LLAMA] = not_llama, [MODEL_NEOX] = not_neox};
    return not_one[s->family](s);
}

/* ---- the keys ---- */

void model_hf_write_eos(Text *t, const int64_t *eos, int n) {
    text_add(t, "[");
    text_add_ints(t, ", ", eos, n);
    text_add(t, "]");
}

static void put_int(Text *t, const char *key, int64_t v) {
    text_add(t, "  \"%s\": %lld,\n", key, (long long)v);
}

static void put_float(Text *t, const char *key, double v) {
    json_add_double(t, "  ", key, v);
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
    model_hf_write_eos(t, s->eos, s->n_eos);
    text_add(t, ",\n");
}

static void write_type(Text *t, HfType type) {
    text_add(t, "  \"model_type\": \"%s\",\n  \"architectures\": [\"%s\"],\n",
             hf_types[type], hf_classes[type]);
}

static void write_rope(Text *t, const ModelSpec *s) {
    const RopeScaling *r = &s->rope;
    if (r->type == ROPE_DEFAULT) return;
    text_add(t, "  \"rope_scaling\": {\n");
    text_add(t, "  \"rope_type\": \"%s\",\n", hf_rope_types[r->type]);
    bool yarn = r->type == ROPE_YARN, ramps = yarn || r->type == ROPE_LLAMA3;
    if (ramps) put_int(t, "original_max_position_embeddings", r->original);
    if (ramps) put_float(t, yarn ? "beta_slow" : "low_freq_factor", r->low);
    if (ramps) put_float(t, yarn ? "beta_fast" : "high_freq_factor", r->high);
    if (yarn) put_float(t, "attention_factor", r->attention);
    if (yarn) put_bool(t, "truncate", !r->exact);
    json_add_double(t, "  ", "factor", r->factor);
    text_add(t, "\n  },\n");
}

/* The keys that all but GPT-2 begin with. */
static void write_sizes(Text *t, const ModelSpec *s) {
    put_int(t, "vocab_size", s->vocab);
    put_int(t, "max_position_embeddings", s->max_positions);
    put_int(t, "hidden_size", s->hidden);
    put_int(t, "num_hidden_layers", s->layers);
    put_int(t, "num_attention_heads", s->heads);
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
    text_add(t, "  \"activation_function\": \"%s\",\n", hf_act_name(s->act));
    put_float(t, "layer_norm_epsilon", s->norm_eps);
    put_float(t, "embd_pdrop", s->embd_dropout);
    put_float(t, "attn_pdrop", s->attn_dropout);
    put_float(t, "resid_pdrop", s->resid_dropout);
}

/* A Llama with a window is a Mistral, and so is one of uneven heads. */
static HfType llama_type(const ModelSpec *s) {
    if (s->window) return HF_MISTRAL;
    if (s->qk_norm) return HF_QWEN3;
    if (is_qwen2(s)) return HF_QWEN2;
    return heads_are_uneven(s) ? HF_MISTRAL : HF_LLAMA;
}

static void write_llama(Text *t, const ModelSpec *s) {
    HfType type = llama_type(s);
    bool qwen = type == HF_QWEN2 || type == HF_QWEN3;
    if (type == HF_MISTRAL) put_token(t, "sliding_window", s->window ? s->window : -1);
    if (qwen) put_bool(t, "use_sliding_window", false);
    write_type(t, type);
    write_sizes(t, s);
    put_int(t, "num_key_value_heads", s->kv_heads);
    put_int(t, "head_dim", s->head_dim);
    put_int(t, "intermediate_size", s->ffn);
    text_add(t, "  \"hidden_act\": \"%s\",\n", hf_act_name(s->act));
    put_float(t, "rms_norm_eps", s->norm_eps);
    put_float(t, "rope_theta", s->rope_base);
    write_rope(t, s);
    if (type == HF_LLAMA || type == HF_QWEN3) put_bool(t, "attention_bias", s->qkv_bias);
    if (type == HF_LLAMA) put_bool(t, "mlp_bias", s->mlp_bias);
    put_float(t, "attention_dropout", s->attn_dropout);
}

static void write_neox(Text *t, const ModelSpec *s) {
    write_type(t, HF_NEOX);
    write_sizes(t, s);
    put_int(t, "intermediate_size", s->ffn);
    text_add(t, "  \"hidden_act\": \"%s\",\n", hf_act_name(s->act));
    put_float(t, "layer_norm_eps", s->norm_eps);
    put_float(t, "rotary_emb_base", s->rope_base);
    put_float(t, "rotary_pct", s->rotary_percent);
    write_rope(t, s);
    put_bool(t, "use_parallel_residual", s->parallel_residual);
    put_bool(t, "attention_bias", s->qkv_bias);
    put_float(t, "attention_dropout", s->attn_dropout);
    put_float(t, "hidden_dropout", s->resid_dropout);
}

const char *model_hf_type(const ModelSpec *s) {
    HfType type = s->family == MODEL_GPT2   ? HF_GPT2
                  : s->family == MODEL_NEOX ? HF_NEOX
                                            : llama_type(s);
    return hf_types[type];
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
