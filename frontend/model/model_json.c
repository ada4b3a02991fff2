/* model_json.c - a ModelSpec from and to config.json: Hugging Face's keys (model_hf.c),
 * and our own object "stator" in it that loses nothing. */
#include "base/json.h"
#include "frontend/model/generation.h"
#include "frontend/model/model.h"
#include "frontend/model/model_hf.h"

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

static const char *const family_names[] = {"gpt2", "llama", "gpt_neox"};
static const char *const rope_names[] = {"default", "linear", "dynamic", "llama3",
                                         "yarn"};
static const char *const norm_names[] = {"layernorm", "rmsnorm"};
static const char *const position_names[] = {"learned", "rope", "none"};
static const char *const act_names[] = {"gelu", "gelu_erf", "fast_gelu", "relu", "silu"};
_Static_assert(ARRAY_LEN(act_names) == MLP_ACTS, "a name for each function");
_Static_assert(ARRAY_LEN(rope_names) == ROPE_TYPES, "a name for each type");

#define PLAIN(kind, field)                                                               \
    { #field, kind, offsetof(ModelSpec, field), NULL, 0, false }
#define LATER(kind, field)                                                               \
    { #field, kind, offsetof(ModelSpec, field), NULL, 0, true }
#define NAMES(field, names)                                                              \
    { #field, FIELD_ENUM, offsetof(ModelSpec, field), names, ARRAY_LEN(names), false }
#define LATER_NAMES(field, names)                                                        \
    { #field, FIELD_ENUM, offsetof(ModelSpec, field), names, ARRAY_LEN(names), true }
static const Field fields[] = {
    NAMES(family, family_names),
    PLAIN(FIELD_INT, vocab),
    PLAIN(FIELD_INT, hidden),
    PLAIN(FIELD_INT, layers),
    PLAIN(FIELD_INT, heads),
    PLAIN(FIELD_INT, kv_heads),
    PLAIN(FIELD_INT, head_dim),
    PLAIN(FIELD_INT, ffn),
    PLAIN(FIELD_INT, max_positions),
    NAMES(norm, norm_names),
    PLAIN(FIELD_FLOAT, norm_eps),
    NAMES(act, act_names),
    PLAIN(FIELD_BOOL, gated),
    NAMES(positions, position_names),
    PLAIN(FIELD_FLOAT, rope_base),
    PLAIN(FIELD_BOOL, qkv_bias),
    PLAIN(FIELD_BOOL, out_bias),
    PLAIN(FIELD_BOOL, mlp_bias),
    PLAIN(FIELD_BOOL, tied),
    PLAIN(FIELD_BOOL, sandwich),
    PLAIN(FIELD_FLOAT, attn_post),
    PLAIN(FIELD_FLOAT, mlp_post),
    PLAIN(FIELD_FLOAT, embd_dropout),
    PLAIN(FIELD_FLOAT, attn_dropout),
    PLAIN(FIELD_FLOAT, resid_dropout),
    PLAIN(FIELD_FLOAT, embedding_std),
    PLAIN(FIELD_FLOAT, position_std),
    PLAIN(FIELD_FLOAT, block_std),
    PLAIN(FIELD_FLOAT, output_std),
    PLAIN(FIELD_INT, bos_token),
    PLAIN(FIELD_INT, pad_token),
    LATER(FIELD_INT, window),
    LATER_NAMES(rope.type, rope_names),
    LATER(FIELD_FLOAT, rope.factor),
    LATER(FIELD_INT, rope.original),
    LATER(FIELD_FLOAT, rope.low),
    LATER(FIELD_FLOAT, rope.high),
    LATER(FIELD_FLOAT, rope.attention),
    LATER(FIELD_BOOL, rope.exact),
    LATER(FIELD_FLOAT, rotary_percent),
    LATER(FIELD_BOOL, parallel_residual),
    LATER(FIELD_BOOL, qk_norm),
    LATER(FIELD_BOOL, normed_residual),
};
_Static_assert(sizeof(NormType) == sizeof(int) && sizeof(MlpAct) == sizeof(int) &&
                   sizeof(PositionType) == sizeof(int) &&
                   sizeof(ModelType) == sizeof(int) && sizeof(RopeType) == sizeof(int),
               "enumerations are read and written as int");

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
        int i = model_hf_name(v, f->names, f->nnames);
        memcpy(at, &i, sizeof i);
    }
}

static int read_list(const Json *v, int64_t vocab, int64_t eos[MODEL_MAX_EOS]) {
    if (v) json_want(v, JSON_ARRAY);
    return model_hf_read_eos(v, vocab, eos);
}

static ModelSpec read_own(const Json *own) {
    ModelSpec s = {.rotary_percent = 1};
    json_want(own, JSON_OBJECT);
    for (int i = 0; i < ARRAY_LEN(fields); i++) read_field(own, &fields[i], &s);
    s.n_eos = read_list(json_need(own, "eos"), s.vocab, s.eos);
    s.n_ends = read_list(json_get(own, "ends"), s.vocab, s.ends);
    const Json *choices = json_get(own, "choices");
    if (choices) json_want(choices, JSON_OBJECT);
    if (choices) s.choices = generation_read_choices(choices);
    for (const Json *e = own->first; e; e = e->next) {
        bool known = !strcmp(e->key, "eos") || !strcmp(e->key, "ends") || e == choices;
        for (int i = 0; i < ARRAY_LEN(fields); i++)
            known |= !strcmp(e->key, fields[i].name);
        if (!known) json_fail(e, NULL, "unknown key '%s' in \"stator\"", e->key);
    }
    return s;
}

static void write_choices(Text *t, const TokenChoices *c) {
    Text members = text_new(t->mem);
    generation_write_choices(&members, c, ", ");
    if (members.n) text_add(t, "    \"choices\": {%s},\n", members.s + 2);
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
    if (s->n_ends) {
        text_add(t, "    \"ends\": ");
        model_hf_write_eos(t, s->ends, s->n_ends);
        text_add(t, ",\n");
    }
    write_choices(t, &s->choices);
    text_add(t, "    \"eos\": ");
    model_hf_write_eos(t, s->eos, s->n_eos);
    text_add(t, "\n  }");
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
    s = model_hf_read(root);
    model_spec_check(&s);
    return s;
}

ModelSpec model_spec_of_json(Arena *mem, const char *name, const char *text, size_t n) {
    return read_root(json_parse(mem, name, text, n, CONFIG_JSON_MAX_BYTES, EXIT_CONFIG));
}

ModelSpec model_spec_of_hf(Arena *mem, const char *dir) {
    bool folder = !ends_with(dir, ".json");
    const char *path = folder ? path_join(mem, dir, "config.json") : dir;
    ModelSpec s = read_root(json_read(mem, path, CONFIG_JSON_MAX_BYTES, EXIT_CONFIG));
    if (folder) generation_read(mem, dir, &s);
    return s;
}

static char *spec_json(Arena *mem, const ModelSpec *s, bool hf, DType weights) {
    Text t = text_new(mem);
    bool plain = !model_spec_not_hf(s);
    check(plain || !hf);
    text_add(&t, "{\n");
    if (!plain) {
        text_add(&t, "  \"model_type\": \"stator\",\n");
    } else {
        model_hf_write(&t, s, weights);
        if (!hf) text_add(&t, ",\n");
    }
    if (!hf) write_own(&t, s);
    text_add(&t, "\n}\n");
    return t.s;
}

char *model_spec_json(Arena *mem, const ModelSpec *s, bool hf) {
    return spec_json(mem, s, hf, DT_F32);
}

char *model_spec_json_hf(Arena *mem, const ModelSpec *s, DType weights) {
    return spec_json(mem, s, true, weights);
}
