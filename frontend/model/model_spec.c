/* model_spec.c - a ModelSpec from a configuration, and what makes one sound. */
#include "frontend/model/model.h"

/* ---- checks ---- */

static void check_size(const char *name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
        fail(EXIT_CONFIG, "the model's %s is %lld; it must be in %lld..%lld", name,
             (long long)value, (long long)low, (long long)high);
}

static void check_number(const char *name, double value, double low, double high) {
    if (!(value >= low && value <= high))
        fail(EXIT_CONFIG, "the model's %s is %g; it must be in %g..%g", name, value, low,
             high);
}

static void check_numbers(const ModelSpec *s) {
    check_number("norm epsilon", s->norm_eps, 1e-30, 1);
    check_number("rotary base", s->rope_base, 1, 1e12);
    check_number("first scale of the norm after attention", s->attn_post, 0, 1);
    check_number("first scale of the norm after the MLP", s->mlp_post, 0, 1);
    check_number("embedding dropout", s->embd_dropout, 0, 0.999);
    check_number("attention dropout", s->attn_dropout, 0, 0.999);
    check_number("residual dropout", s->resid_dropout, 0, 0.999);
    check_number("deviation of embeddings", s->embedding_std, 0, 10);
    check_number("deviation of positions", s->position_std, 0, 10);
    check_number("deviation of matrices", s->block_std, 0, 10);
    check_number("deviation of output projections", s->output_std, 0, 10);
}

int64_t model_rotary_pairs(const ModelSpec *s) {
    return (int64_t)((double)s->head_dim * s->rotary_percent) / 2;
}

const int64_t *model_ends(const ModelSpec *s, int *n) {
    *n = s->n_ends ? s->n_ends : s->n_eos;
    return s->n_ends ? s->ends : s->eos;
}

bool model_ends_text(const ModelSpec *s, int64_t token) {
    int n;
    const int64_t *end = model_ends(s, &n);
    for (int i = 0; i < n; i++)
        if (end[i] == token) return true;
    return false;
}

const char *model_family_title(ModelType family) {
    static const char *const title[] = {"GPT-2", "Llama", "GPT-NeoX"};
    return title[family];
}

static void check_scaling(const ModelSpec *s) {
    const RopeScaling *r = &s->rope;
    bool ramps = r->type == ROPE_LLAMA3 || r->type == ROPE_YARN;
    if (r->type == ROPE_DEFAULT) return;
    check_number("factor of rotary positions", r->factor, 1, 1e6);
    if (!ramps) return;
    check_size("number of positions before stretching", r->original, 1, 1 << 20);
    check_number("first number of the ramp of rotary positions", r->low, 1e-3, 1e6);
    check_number("last number of the ramp of rotary positions", r->high, 1e-3, 1e6);
    if (r->low >= r->high)
        fail(EXIT_CONFIG,
             "the ramp of rotary positions goes from %g to %g; it must go up", r->low,
             r->high);
    if (r->type != ROPE_YARN) return;
    check_number("rotary base", s->rope_base, 1.001, 1e12);
    check_number("attention factor of rotary positions", r->attention, 1e-3, 1e3);
}

static void check_rope(const ModelSpec *s) {
    if (s->positions != POSITION_ROPE) return;
    check_number("share of a head that rope turns", s->rotary_percent, 0, 1);
    int64_t n = (int64_t)((double)s->head_dim * s->rotary_percent);
    if (n < 2 || n % 2)
        fail(EXIT_CONFIG,
             "rotary positions turn pairs of numbers, but of a head's %lld they turn "
             "%lld: "
             "its width times rotary_percent (rotary_pct, partial_rotary_factor) must be "
             "even, and not 0",
             (long long)s->head_dim, (long long)n);
    check_scaling(s);
}

void model_spec_check(const ModelSpec *s) {
    check_size("vocabulary", s->vocab, 2, 1 << 24);
    check_size("width", s->hidden, 1, 1 << 17);
    check_size("number of layers", s->layers, 1, 4096);
    check_size("number of heads", s->heads, 1, 4096);
    check_size("number of key heads", s->kv_heads, 1, 4096);
    check_size("width of a head", s->head_dim, 1, 1024);
    check_size("width of the MLP", s->ffn, 1, 1 << 20);
    check_size("number of positions", s->max_positions, 1, 1 << 20);
    check_size("sliding window", s->window, 0, INT32_MAX);
    if (s->heads % s->kv_heads)
        fail(EXIT_CONFIG,
             "%lld heads of keys and values do not divide %lld heads; the "
             "number of heads must be a multiple",
             (long long)s->kv_heads, (long long)s->heads);
    if (s->parallel_residual && s->normed_residual)
        fail(EXIT_CONFIG, "residuals are either parallel or behind norms, not both");
    check_rope(s);
    check(s->family <= MODEL_NEOX && s->rope.type < ROPE_TYPES && s->norm <= NORM_RMS &&
          s->act < MLP_ACTS);
    check(s->positions <= POSITION_NONE && s->n_eos >= 0 && s->n_eos <= MODEL_MAX_EOS);
    check(s->n_ends >= 0 && s->n_ends <= MODEL_MAX_EOS);
    check_numbers(s);
}

/* ---- from a configuration ---- */

static void act_of_config(ModelSpec *s, Activation act) {
    switch (act) {
    case ACT_GELU:
        s->act = MLP_GELU;
        break;
    case ACT_FAST_GELU:
        s->act = MLP_FAST_GELU;
        break;
    case ACT_RELU:
        s->act = MLP_RELU;
        break;
    case ACT_SWIGLU:
        s->act = MLP_SILU, s->gated = true;
        break;
    }
}

static void check_config(const Config *c) {
    if (c->model_file[0])
        fail(EXIT_CONFIG,
             "model.file %s is a module of its own, not a model.model_config",
             c->model_file);
    if (!config_given(c, "model.model_config.head_dim") &&
        c->model_hidden_size % c->model_num_heads)
        fail(EXIT_CONFIG,
             "model.model_config.num_heads %lld does not divide hidden_size %lld",
             (long long)c->model_num_heads, (long long)c->model_hidden_size);
}

RopeScaling model_rope_of_config(const Config *c) {
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

double model_rope_base_of_config(const Config *c) {
    bool ntk = c->model_extend_method == EXTEND_NTK;
    return c->model_rotary_base * (ntk ? c->model_scaling_factor : 1);
}

ModelSpec model_spec_of_config(const Config *c) {
    check_config(c);
    ModelSpec s = {.family = c->model_type,
                   .vocab = c->model_vocab_size,
                   .hidden = c->model_hidden_size,
                   .layers = c->model_num_layers - c->parallel_config_noop_layers.n,
                   .heads = c->model_num_heads,
                   .kv_heads = c->model_n_kv_heads,
                   .head_dim = c->model_head_dim,
                   .ffn = c->model_ffn_hidden_size,
                   .max_positions = c->model_max_position_embeddings,
                   .window = c->model_sliding_window,
                   .norm = c->model_normalization,
                   .norm_eps = c->model_norm_epsilon,
                   .positions = c->model_position_embedding_type,
                   .rope_base = model_rope_base_of_config(c),
                   .rope = model_rope_of_config(c),
                   .rotary_percent = c->model_rotary_percent,
                   .parallel_residual = c->model_use_parallel_residual,
                   .normed_residual = c->model_post_layernorm_residual,
                   .qkv_bias = c->model_add_qkv_bias,
                   .qk_norm = c->model_qk_layernorm,
                   .out_bias = c->model_out_proj_has_bias,
                   .mlp_bias = c->model_add_bias_linear,
                   .tied = c->model_tie_word_embeddings,
                   .sandwich = c->model_use_sandwich_norm,
                   .attn_post = c->model_attn_post_norm_scale,
                   .mlp_post = c->model_ffn_post_norm_scale,
                   .embd_dropout = c->model_dropout_prob,
                   .attn_dropout = c->model_attention_probs_dropout_prob,
                   .resid_dropout = c->model_hidden_dropout_prob,
                   .embedding_std = c->model_embedding_init_std,
                   .position_std = c->model_embedding_init_std,
                   .block_std = c->model_initializer_range,
                   .output_std = c->model_output_init_std,
                   .bos_token = c->model_bos_token,
                   .pad_token = c->model_pad_token};
    act_of_config(&s, c->model_hidden_act);
    if (c->model_eos_token >= 0) s.eos[s.n_eos++] = c->model_eos_token;
    model_spec_check(&s);
    return s;
}
