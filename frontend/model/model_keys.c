/* model_keys.c - a ModelSpec from the keys of a configuration, and keys with a model that is
 * loaded; see model.h, model_keys.h. */
#include "frontend/model/model_keys.h"
#include "frontend/config/config_state.h"
#include <math.h>

#define MODEL "model.model_config."

/* A field that a key and a ModelSpec have alike. */
typedef struct KeyField {
    const char *path;
    size_t in_config, in_spec, bytes;
    bool open; /* the weights do not decide it */
} KeyField;

#define FIELD(key, member, field, open)                                                  \
    {                                                                                    \
        MODEL key, offsetof(Config, member), offsetof(ModelSpec, field),                 \
            sizeof(((ModelSpec *)0)->field), open                                        \
    }

static const KeyField fields[] = {
    FIELD("type", model_type, family, false),
    FIELD("vocab_size", model_vocab_size, vocab, false),
    FIELD("hidden_size", model_hidden_size, hidden, false),
    FIELD("num_layers", model_num_layers, layers, false),
    FIELD("num_heads", model_num_heads, heads, false),
    FIELD("head_dim", model_head_dim, head_dim, false),
    FIELD("n_kv_heads", model_n_kv_heads, kv_heads, false),
    FIELD("ffn_hidden_size", model_ffn_hidden_size, ffn, false),
    FIELD("max_position_embeddings", model_max_position_embeddings, max_positions, false),
    FIELD("normalization", model_normalization, norm, false),
    FIELD("norm_epsilon", model_norm_epsilon, norm_eps, false),
    FIELD("position_embedding_type", model_position_embedding_type, positions, false),
    FIELD("rotary_base", model_rotary_base, rope_base, false),
    FIELD("rotary_percent", model_rotary_percent, rotary_percent, false),
    FIELD("use_parallel_residual", model_use_parallel_residual, parallel_residual, false),
    FIELD("post_layernorm_residual", model_post_layernorm_residual, normed_residual,
          false),
    FIELD("tie_word_embeddings", model_tie_word_embeddings, tied, false),
    FIELD("add_bias_linear", model_add_bias_linear, mlp_bias, false),
    FIELD("add_qkv_bias", model_add_qkv_bias, qkv_bias, false),
    FIELD("out_proj_has_bias", model_out_proj_has_bias, out_bias, false),
    FIELD("qk_layernorm", model_qk_layernorm, qk_norm, false),
    FIELD("use_sandwich_norm", model_use_sandwich_norm, sandwich, false),
    FIELD("dropout_prob", model_dropout_prob, embd_dropout, true),
    FIELD("hidden_dropout_prob", model_hidden_dropout_prob, resid_dropout, true),
    FIELD("attention_probs_dropout_prob", model_attention_probs_dropout_prob,
          attn_dropout, true),
    FIELD("sliding_window", model_sliding_window, window, true),
    FIELD("bos_token", model_bos_token, bos_token, true),
    FIELD("pad_token", model_pad_token, pad_token, true),
};

/* The key of a function; the first one of a key is what it means. */
static const Activation act_of[] = {[MLP_GELU] = ACT_GELU,
                                    [MLP_GELU_ERF] = ACT_GELU,
                                    [MLP_FAST_GELU] = ACT_FAST_GELU,
                                    [MLP_RELU] = ACT_RELU,
                                    [MLP_SILU] = ACT_SWIGLU};

/* ---- from a configuration ---- */

static void check_config(const Config *c) {
    if (c->model_file[0])
        fail(EXIT_CONFIG,
             "model.file %s is a module of its own, not a model.model_config",
             c->model_file);
    if (!config_given(c, MODEL "head_dim") && c->model_hidden_size % c->model_num_heads)
        fail(EXIT_CONFIG,
             "model.model_config.num_heads %lld does not divide hidden_size %lld",
             (long long)c->model_num_heads, (long long)c->model_hidden_size);
}

/* How extend_method stretches rotary positions; NTK changes their base alone. */
static RopeScaling rope_of_config(const Config *c) {
    RopeScaling r = {.factor = c->model_scaling_factor};
    switch (c->model_extend_method) {
    case EXTEND_PI:
        r.type = ROPE_LINEAR;
        break;
    case EXTEND_LLAMA3:
        r.type = ROPE_LLAMA3;
        r.original = c->model_scaling_original_positions;
        r.low = c->model_scaling_low_freq_factor;
        r.high = c->model_scaling_high_freq_factor;
        break;
    case EXTEND_NONE:
    case EXTEND_NTK:
        return (RopeScaling){.type = ROPE_DEFAULT};
    }
    return r;
}

static double rope_base_of_config(const Config *c) {
    bool ntk = c->model_extend_method == EXTEND_NTK;
    return c->model_rotary_base * (ntk ? c->model_scaling_factor : 1);
}

ModelSpec model_spec_of_config(const Config *c) {
    check_config(c);
    ModelSpec s = {.rope = rope_of_config(c),
                   .attn_post = c->model_attn_post_norm_scale,
                   .mlp_post = c->model_ffn_post_norm_scale,
                   .embedding_std = c->model_embedding_init_std,
                   .position_std = c->model_embedding_init_std,
                   .block_std = c->model_initializer_range,
                   .output_std = c->model_output_init_std};
    for (int i = 0; i < ARRAY_LEN(fields); i++)
        memcpy((char *)&s + fields[i].in_spec, (const char *)c + fields[i].in_config,
               fields[i].bytes);
    s.layers -= c->parallel_config_noop_layers.n;
    s.rope_base = rope_base_of_config(c);
    while (act_of[s.act] != c->model_hidden_act) s.act++;
    s.gated = s.act == MLP_SILU;
    if (c->model_eos_token >= 0) s.eos[s.n_eos++] = c->model_eos_token;
    model_spec_check(&s);
    return s;
}

/* ---- keys with a model that is loaded ---- */

/* Keys that say how a model is used, not what it is, may be given with any model. */
static bool describes_model(const char *path) {
    static const char *const uses[] = {MODEL "seq_length",
                                       MODEL "repetition_penalty",
                                       MODEL "max_decode_length",
                                       MODEL "max_new_tokens",
                                       MODEL "min_length",
                                       MODEL "min_new_tokens",
                                       MODEL "top_k",
                                       MODEL "top_p",
                                       MODEL "temperature",
                                       MODEL "do_sample",
                                       MODEL "use_past",
                                       MODEL "use_flash_attention",
                                       MODEL "batch_size",
                                       MODEL "checkpoint_name_or_path"};
    if (!begins_with(path, MODEL)) return !strcmp(path, "model.arch.type");
    return !is_one_of(path, uses, ARRAY_LEN(uses));
}

bool model_keys_given(const Config *cfg) {
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (describes_model(key->path) && config_given(cfg, key->path)) return true;
    }
    return false;
}

/* No key says erf-gelu, or a gate with another function. */
static bool same_act(const ModelSpec *s, Activation act) {
    return act_of[s->act] == act && s->act != MLP_GELU_ERF &&
           s->gated == (act == ACT_SWIGLU);
}

static _Noreturn void contradicts(const Config *cfg, const char *path, const char *from,
                                  const char *has) {
    Arena *a = cfg->state->mem;
    config_refuse(cfg, path, NULL,
                  "leave it out; or train a new model of model.model_config alone",
                  "%s is %s, but the weights of %s have %s", path,
                  config_value(cfg, a, path), from, has);
}

/* What the loaded model has, as the key would say it. */
static const char *loaded_value(const Config *cfg, const KeyField *f,
                                const ModelSpec *s) {
    Arena *a = cfg->state->mem;
    Config *other = NEW(a, Config);
    *other = *cfg;
    memcpy((char *)other + f->in_config, (const char *)s + f->in_spec, f->bytes);
    return config_value(other, a, f->path);
}

/* The number of the key where it gives this base: a quotient is rounded. */
static double rotary_base_as_key(const Config *cfg, const ModelSpec *s) {
    if (s->rope_base == rope_base_of_config(cfg)) return cfg->model_rotary_base;
    bool ntk = cfg->model_extend_method == EXTEND_NTK;
    return s->rope_base / (ntk ? cfg->model_scaling_factor : 1);
}

/* As keys say it: num_layers counts those of noop_layers too, and NTK multiplies
 * rotary_base. */
static ModelSpec as_keys(const Config *cfg, const ModelSpec *s) {
    ModelSpec k = *s;
    k.layers += cfg->parallel_config_noop_layers.n;
    k.rope_base = rotary_base_as_key(cfg, s);
    return k;
}

static void check_layers_left(const Config *cfg, const ModelSpec *s, const char *from) {
    long long all = cfg->model_num_layers, noop = cfg->parallel_config_noop_layers.n;
    if (!noop || !config_given(cfg, MODEL "num_layers") || all - noop == s->layers)
        return;
    config_refuse(cfg, "parallel_config.noop_layers", MODEL "num_layers",
                  "num_layers counts the layers of the weights and those of noop_layers",
                  "num_layers %lld with %lld of noop_layers is %lld layers, but the "
                  "weights of %s have %lld",
                  all, noop, all - noop, from, (long long)s->layers);
}

static bool is_open(const KeyField *f, const ModelSpec *s) {
    bool table = s->positions == POSITION_LEARNED;
    return f->open || (!table && !strcmp(f->path, MODEL "max_position_embeddings"));
}

/* The other keys of the kind of model, where its type is not given. */
static void check_kind(const Config *cfg, const ModelSpec *s, const char *from) {
    static const char *const keys[] = {MODEL "model_type", MODEL "architectures"};
    bool typed = config_given(cfg, MODEL "type") || config_given(cfg, "model.arch.type");
    for (int i = 0; i < ARRAY_LEN(keys) && !typed; i++)
        if (config_given(cfg, keys[i]) && cfg->model_type != s->family)
            contradicts(cfg, keys[i], from, "another architecture");
}

/* Positions may be stretched as they are. */
static void check_stretch(const Config *cfg, const ModelSpec *s, const char *from) {
    const RopeScaling asked = rope_of_config(cfg), *has = &s->rope;
    bool other_base = cfg->model_extend_method == EXTEND_NTK &&
                      rope_base_of_config(cfg) != s->rope_base;
    bool same = !other_base && asked.type == has->type && asked.factor == has->factor &&
                asked.original == has->original && asked.low == has->low &&
                asked.high == has->high;
    if (config_given(cfg, MODEL "extend_method") && !same)
        contradicts(cfg, MODEL "extend_method", from, "rotary positions of another kind");
}

static void override_tokens(const Config *cfg, ModelSpec *s, const char *from) {
    static const char *const token[] = {MODEL "eos_token", MODEL "bos_token",
                                        MODEL "pad_token"};
    const int64_t value[] = {cfg->model_eos_token, cfg->model_bos_token,
                             cfg->model_pad_token};
    for (int i = 0; i < ARRAY_LEN(token); i++)
        if (config_given(cfg, token[i]) && value[i] >= s->vocab)
            contradicts(cfg, token[i], from,
                        arena_printf(cfg->state->mem, "a vocabulary of %lld",
                                     (long long)s->vocab));
    if (!config_given(cfg, token[0])) return;
    s->n_eos = value[0] >= 0;
    s->eos[0] = value[0];
    s->n_ends = 0;
}

/* By the key itself, or by one that it is derived from. */
static bool field_given(const Config *cfg, const char *path) {
    static const char *const from[][2] = {
        {MODEL "hidden_dropout_prob", MODEL "dropout_prob"},
        {MODEL "tie_word_embeddings", MODEL "untie_embeddings_and_output_weights"},
        {MODEL "sliding_window", MODEL "fa_config.pre_tokens"}};
    for (int i = 0; i < ARRAY_LEN(from); i++)
        if (!strcmp(path, from[i][0]) && config_given(cfg, from[i][1])) return true;
    return config_given(cfg, path);
}

void model_keys_override(const Config *cfg, ModelSpec *s, const char *from) {
    const ModelSpec has = as_keys(cfg, s);
    check_layers_left(cfg, s, from);
    for (int i = 0; i < ARRAY_LEN(fields); i++) {
        const KeyField *f = &fields[i];
        const void *asked = (const char *)cfg + f->in_config;
        if (!field_given(cfg, f->path)) continue;
        if (is_open(f, s))
            memcpy((char *)s + f->in_spec, asked, f->bytes);
        else if (memcmp((const char *)&has + f->in_spec, asked, f->bytes))
            contradicts(cfg, f->path, from, loaded_value(cfg, f, &has));
    }
    if (config_given(cfg, MODEL "hidden_act") && !same_act(s, cfg->model_hidden_act))
        contradicts(cfg, MODEL "hidden_act", from, "another one");
    if (config_given(cfg, MODEL "expand_ratio") &&
        !config_given(cfg, MODEL "ffn_hidden_size") &&
        llround((double)s->hidden * cfg->model_expand_ratio) != s->ffn)
        contradicts(cfg, MODEL "expand_ratio", from,
                    arena_printf(cfg->state->mem, "an MLP of %lld", (long long)s->ffn));
    if (config_given(cfg, "model.arch.type") &&
        (int)cfg->model_arch_type != (int)s->family)
        contradicts(cfg, "model.arch.type", from, "another architecture");
    check_kind(cfg, s, from);
    check_stretch(cfg, s, from);
    override_tokens(cfg, s, from);
}

void model_keys_fill(Config *cfg, const ModelSpec *s) {
    const ModelSpec has = as_keys(cfg, s);
    for (int i = 0; i < ARRAY_LEN(fields); i++)
        memcpy((char *)cfg + fields[i].in_config, (const char *)&has + fields[i].in_spec,
               fields[i].bytes);
    cfg->model_hidden_act = act_of[s->act];
    cfg->model_eos_token = s->n_eos ? s->eos[0] : -1;
    cfg->model_expand_ratio = (double)s->ffn / (double)s->hidden;
}
