/* model_json.c - a ModelSpec from and to config.json: both families of Hugging Face, and
 * our own object "stator" in it that loses nothing. */
#include "base/json.h"
#include "frontend/model/model.h"
#include <math.h>

#define CONFIG_JSON_MAX_BYTES (4u << 20)
#define BIG                   ((int64_t)1 << 20)

/* ---- our own object in config.json: every field by name ---- */

typedef enum FieldKind { FIELD_INT, FIELD_FLOAT, FIELD_BOOL, FIELD_ENUM } FieldKind;
typedef struct Field {
    const char *name;
    FieldKind kind;
    size_t at;
    const char *const *names; /* FIELD_ENUM */
    int nnames;
    bool may_miss; /* older files do not have it: then it is 0 */
} Field;

/* model_type of Hugging Face's files. */
static const char *const hf_types[] = {"gpt2", "llama", "mistral"};
enum { HF_GPT2, HF_LLAMA, HF_MISTRAL };
static const char *const family_names[] = {"gpt2", "llama"};
static const char *const norm_names[] = {"layernorm", "rmsnorm"};
static const char *const position_names[] = {"learned", "rope", "none"};
static const char *const act_names[] = {"gelu", "gelu_erf", "fast_gelu", "relu", "silu"};
_Static_assert(ARRAY_LEN(act_names) == MLP_ACTS, "a name for each function");

#define PLAIN(kind, field)                                                               \
    { #field, kind, offsetof(ModelSpec, field), NULL, 0, false }
#define LATER(kind, field)                                                               \
    { #field, kind, offsetof(ModelSpec, field), NULL, 0, true }
#define NAMES(field, names)                                                              \
    { #field, FIELD_ENUM, offsetof(ModelSpec, field), names, ARRAY_LEN(names), false }
static const Field fields[] = {
    NAMES(family, family_names),       PLAIN(FIELD_INT, vocab),
    PLAIN(FIELD_INT, hidden),          PLAIN(FIELD_INT, layers),
    PLAIN(FIELD_INT, heads),           PLAIN(FIELD_INT, kv_heads),
    PLAIN(FIELD_INT, head_dim),        PLAIN(FIELD_INT, ffn),
    PLAIN(FIELD_INT, max_positions),   NAMES(norm, norm_names),
    PLAIN(FIELD_FLOAT, norm_eps),      NAMES(act, act_names),
    PLAIN(FIELD_BOOL, gated),          NAMES(positions, position_names),
    PLAIN(FIELD_FLOAT, rope_base),     PLAIN(FIELD_BOOL, qkv_bias),
    PLAIN(FIELD_BOOL, out_bias),       PLAIN(FIELD_BOOL, mlp_bias),
    PLAIN(FIELD_BOOL, tied),           PLAIN(FIELD_BOOL, sandwich),
    PLAIN(FIELD_FLOAT, attn_post),     PLAIN(FIELD_FLOAT, mlp_post),
    PLAIN(FIELD_FLOAT, embd_dropout),  PLAIN(FIELD_FLOAT, attn_dropout),
    PLAIN(FIELD_FLOAT, resid_dropout), PLAIN(FIELD_FLOAT, embedding_std),
    PLAIN(FIELD_FLOAT, position_std),  PLAIN(FIELD_FLOAT, block_std),
    PLAIN(FIELD_FLOAT, output_std),    PLAIN(FIELD_INT, bos_token),
    PLAIN(FIELD_INT, pad_token),       LATER(FIELD_INT, window),
};
_Static_assert(sizeof(NormType) == sizeof(int) && sizeof(MlpAct) == sizeof(int) &&
                   sizeof(PositionType) == sizeof(int) &&
                   sizeof(ModelType) == sizeof(int),
               "enumerations are read and written as int");

static int name_index(const Json *v, const char *const *names, int n) {
    const char *s = json_string(v);
    for (int i = 0; i < n; i++) {
        if (!strcmp(s, names[i])) return i;
    }
    json_fail(v, nearest_name(s, names, n), "unknown %s '%s'", v->key, s);
}

static void read_field(const Json *own, const Field *f, ModelSpec *s) {
    const Json *v = f->may_miss ? json_get(own, f->name) : json_need(own, f->name);
    char *at = (char *)s + f->at;
    if (!v) return;
    if (f->kind == FIELD_INT) {
        int64_t i = json_i64(v, -1, INT32_MAX);
        memcpy(at, &i, sizeof i);
    } else if (f->kind == FIELD_FLOAT) {
        double d = json_f64(v);
        memcpy(at, &d, sizeof d);
    } else if (f->kind == FIELD_BOOL) {
        bool b = json_bool(v);
        memcpy(at, &b, sizeof b);
    } else {
        int i = name_index(v, f->names, f->nnames);
        memcpy(at, &i, sizeof i);
    }
}

static void read_eos_list(const Json *list, int64_t vocab, ModelSpec *s) {
    json_want(list, JSON_ARRAY);
    if (list->n > MODEL_MAX_EOS)
        json_fail(list, NULL, "more than %d tokens that end a text", MODEL_MAX_EOS);
    for (const Json *e = list->first; e; e = e->next) {
        int64_t id = json_i64(e, 0, INT32_MAX);
        if (id < vocab) s->eos[s->n_eos++] = id;
    }
}

static ModelSpec read_own(const Json *own) {
    ModelSpec s = {0};
    json_want(own, JSON_OBJECT);
    for (int i = 0; i < ARRAY_LEN(fields); i++) read_field(own, &fields[i], &s);
    read_eos_list(json_need(own, "eos"), s.vocab, &s);
    for (const Json *e = own->first; e; e = e->next) {
        bool known = !strcmp(e->key, "eos");
        for (int i = 0; i < ARRAY_LEN(fields); i++)
            known |= !strcmp(e->key, fields[i].name);
        if (!known) json_fail(e, NULL, "unknown key '%s' in \"stator\"", e->key);
    }
    return s;
}

static void write_eos_list(Text *t, const ModelSpec *s) {
    text_add(t, "[");
    for (int i = 0; i < s->n_eos; i++)
        text_add(t, "%s%lld", i ? ", " : "", (long long)s->eos[i]);
    text_add(t, "]");
}

static void write_own(Text *t, const ModelSpec *s) {
    text_add(t, "  \"stator\": {\n");
    for (int k = 0; k < ARRAY_LEN(fields); k++) {
        const Field *f = &fields[k];
        const char *at = (const char *)s + f->at;
        int64_t i;
        double d;
        bool b;
        int e;
        text_add(t, "    \"%s\": ", f->name);
        if (f->kind == FIELD_INT)
            memcpy(&i, at, sizeof i), text_add(t, "%lld", (long long)i);
        if (f->kind == FIELD_FLOAT) memcpy(&d, at, sizeof d), json_write_double(t, d);
        if (f->kind == FIELD_BOOL)
            memcpy(&b, at, sizeof b), text_add(t, "%s", b ? "true" : "false");
        if (f->kind == FIELD_ENUM)
            memcpy(&e, at, sizeof e), text_add(t, "\"%s\"", f->names[e]);
        text_add(t, ",\n");
    }
    text_add(t, "    \"eos\": ");
    write_eos_list(t, s);
    text_add(t, "\n  }");
}

/* ---- Hugging Face's keys ---- */

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
    return hf_acts[name_index(v, names, ARRAY_LEN(hf_acts))].act;
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

/* rope_scaling, or rope_parameters of newer files, which also hold the base. */
static void read_rope(const Json *root, ModelSpec *s) {
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    s->rope_base = json_get_f64(root, "rope_theta", 10000);
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        const Json *v = json_get(root, keys[i]);
        if (!v || v->kind == JSON_NULL) continue;
        json_want(v, JSON_OBJECT);
        const char *type = json_get_string(v, "rope_type", NULL);
        if (!type) type = json_get_string(v, "type", "default");
        if (strcmp(type, "default"))
            json_fail(v, NULL, "rotary positions of type %s are not supported", type);
        s->rope_base = json_get_f64(v, "rope_theta", s->rope_base);
    }
    const Json *part = json_get(root, "partial_rotary_factor");
    if (part && part->kind != JSON_NULL && json_f64(part) != 1)
        json_fail(part, NULL, "rotary positions on a part of a head are not supported");
}

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
        read_eos_list(eos, s->vocab, s);
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
    ModelSpec s = {
        .family = MODEL_GPT2, .norm = NORM_LAYER, .positions = POSITION_LEARNED};
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

/* config.json of transformers.LlamaConfig, or of MistralConfig, which has no biases, a
 * window and defaults of its own. */
static ModelSpec read_llama(const Json *root, bool mistral) {
    ModelSpec s = {.family = MODEL_LLAMA, .norm = NORM_RMS, .positions = POSITION_ROPE};
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
    read_rope(root, &s);
    return s;
}

static ModelSpec read_root(const Json *root) {
    json_want(root, JSON_OBJECT);
    const Json *own = json_get(root, "stator");
    ModelSpec s;
    if (own) {
        s = read_own(own);
        model_spec_check(&s);
        return s;
    }
    const Json *type = json_need(root, "model_type");
    want_absent(root, "quantization_config");
    int hf = name_index(type, hf_types, ARRAY_LEN(hf_types));
    if (hf != HF_MISTRAL && read_window(root, 0)) want_absent(root, "sliding_window");
    s = hf == HF_GPT2 ? read_gpt2(root) : read_llama(root, hf == HF_MISTRAL);
    if (s.positions != POSITION_ROPE) s.rope_base = 10000;
    s.embedding_std = s.position_std = s.block_std;
    s.attn_post = s.mlp_post = 1;
    read_tokens(root, &s);
    model_spec_check(&s);
    return s;
}

ModelSpec model_spec_of_json(Arena *mem, const char *name, const char *text, size_t n) {
    return read_root(json_parse(mem, name, text, n, CONFIG_JSON_MAX_BYTES, EXIT_CONFIG));
}

ModelSpec model_spec_of_hf(Arena *mem, const char *dir) {
    const char *path = ends_with(dir, ".json") ? dir : path_join(mem, dir, "config.json");
    return read_root(json_read(mem, path, CONFIG_JSON_MAX_BYTES, EXIT_CONFIG));
}

/* ---- to config.json ---- */

static const char *not_llama(const ModelSpec *s) {
    if (s->norm != NORM_RMS) return "LayerNorm in a Llama";
    if (s->positions != POSITION_ROPE) return "a Llama without rotary positions";
    if (!s->gated) return "a Llama without gated MLP";
    if (s->window && (s->qkv_bias || s->out_bias || s->mlp_bias))
        return "a Llama with a sliding window and biases";
    return s->qkv_bias != s->out_bias ? "a Llama with biases on q, k, v alone" : NULL;
}

static const char *not_gpt2(const ModelSpec *s) {
    if (s->norm != NORM_LAYER) return "RMSNorm in a GPT-2";
    if (s->positions != POSITION_LEARNED) return "a GPT-2 without learned positions";
    if (s->gated) return "a GPT-2 with gated MLP";
    if (s->window) return "a GPT-2 with a sliding window";
    if (!s->qkv_bias || !s->out_bias || !s->mlp_bias) return "a GPT-2 without biases";
    if (s->kv_heads != s->heads) return "a GPT-2 with fewer heads of keys and values";
    if (s->heads * s->head_dim != s->hidden)
        return "a GPT-2 whose heads together are not as wide as the model";
    return NULL;
}

const char *model_spec_not_hf(const ModelSpec *s) {
    if (s->sandwich) return "norms after attention and MLP (use_sandwich_norm)";
    return s->family == MODEL_LLAMA ? not_llama(s) : not_gpt2(s);
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
    write_eos_list(t, s);
    text_add(t, ",\n");
}

static void write_gpt2(Text *t, const ModelSpec *s) {
    text_add(
        t, "  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n");
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
    text_add(t, "  \"model_type\": \"%s\",\n  \"architectures\": [\"%sForCausalLM\"],\n",
             hf_types[s->window ? HF_MISTRAL : HF_LLAMA],
             s->window ? "Mistral" : "Llama");
    if (s->window) put_int(t, "sliding_window", s->window);
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
    if (!s->window) put_bool(t, "attention_bias", s->qkv_bias);
    if (!s->window) put_bool(t, "mlp_bias", s->mlp_bias);
    put_float(t, "attention_dropout", s->attn_dropout);
}

char *model_spec_json(Arena *mem, const ModelSpec *s, bool hf) {
    Text t = text_new(mem);
    bool plain = !model_spec_not_hf(s);
    check(plain || !hf);
    text_add(&t, "{\n");
    if (!plain) {
        text_add(&t, "  \"model_type\": \"stator\",\n");
    } else {
        if (s->family == MODEL_LLAMA)
            write_llama(&t, s);
        else
            write_gpt2(&t, s);
        put_float(&t, "initializer_range", s->block_std);
        put_token(&t, "bos_token_id", s->bos_token);
        put_eos(&t, s);
        put_token(&t, "pad_token_id", s->pad_token);
        put_bool(&t, "tie_word_embeddings", s->tied);
        text_add(&t, "  \"torch_dtype\": \"float32\"%s", hf ? "" : ",\n");
    }
    if (!hf) write_own(&t, s);
    text_add(&t, "\n}\n");
    return t.s;
}
