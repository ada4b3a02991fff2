/* model_spec.c - what makes a ModelSpec sound. */
#include "frontend/model/model.h"

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
