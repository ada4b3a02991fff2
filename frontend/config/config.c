/* config.c - from settings to a Config: defaults, categories, notes, positions. */
#include "frontend/config/config_state.h"

/* False for what a section is given as to turn it off. */
static bool tree_asks(const YamlNode *value) {
    static const char *const off[] = {"False", "false", "no", "off", "0", "None", ""};
    if (value->kind != NODE_TEXT) return value->n > 0;
    return !is_one_of(value->text, off, ARRAY_LEN(off));
}

/* Says or refuses what the category of a given key demands. */
static void apply_category(Config *cfg, const Config *defaults, int k) {
    const Key *key = &key_table[k];
    const Setting *s = &cfg->state->settings[k];
    Arena *a = cfg->state->mem;
    if (!s->value || key->cat == CAT_WORKS || key->cat == CAT_MAPPED) return;
    if (key->kind == KIND_Tree && key->cat == CAT_NOT_YET) {
        if (!tree_asks(s->value)) return;
        fail_at(EXIT_CONFIG, s->value->at, NULL, "%s is not there yet: %s; leave it out",
                s->name, key->why);
    }
    if (key->cat == CAT_NO_EFFECT) {
        config_add_needless(cfg, k, key->why);
        return;
    }
    const char *value = key_text(a, key, cfg, false);
    const char *neutral = key_text(a, key, defaults, false);
    if (!strcmp(value, neutral)) return;
    if (key->cat == CAT_FIXED) {
        config_note(cfg, key->path, "%s is %s, not %.100s: %s", s->name, neutral, value,
                    key->why);
        key_store_text(a, key, key->def, cfg);
    } else {
        fail_at(EXIT_CONFIG, s->value->at, NULL, "%s %.100s is %s: %s; set it to %s",
                s->name, value, key->cat == CAT_NOT_YET ? "not there yet" : "refused",
                key->why, neutral[0] ? neutral : "\"\"");
    }
}

/* Of a key that acts as another one, where it acts: other lines say where it does not. */
static void note_mapped(Config *cfg, const Config *defaults, int k) {
    const Key *key = &key_table[k];
    const Setting *s = &cfg->state->settings[k];
    Arena *a = cfg->state->mem;
    if (key->cat != CAT_MAPPED || !s->value || cfg->state->broken[k]) return;
    const char *first =
        config_first_name(key->path); /* if it counts another line says so */
    if (config_given(cfg, first) &&
        strcmp(config_value(cfg, a, first), config_value(cfg, a, key->path)) != 0)
        return;
    if (strcmp(key_text(a, key, cfg, false), key_text(a, key, defaults, false)) &&
        !config_idle(cfg, key->path))
        config_note(cfg, key->path, "%s: %s", s->name, key->why);
}

const char *const hf_types[HF_TYPES] = {
    [HF_GPT2] = "gpt2",   [HF_LLAMA] = "llama", [HF_MISTRAL] = "mistral",
    [HF_QWEN2] = "qwen2", [HF_QWEN3] = "qwen3", [HF_NEOX] = "gpt_neox"};
const char *const hf_classes[HF_TYPES] = {
    [HF_GPT2] = "GPT2LMHeadModel",       [HF_LLAMA] = "LlamaForCausalLM",
    [HF_MISTRAL] = "MistralForCausalLM", [HF_QWEN2] = "Qwen2ForCausalLM",
    [HF_QWEN3] = "Qwen3ForCausalLM",     [HF_NEOX] = "GPTNeoXForCausalLM"};

/* What a model of such a type has. */
static const struct {
    ModelType model;
    bool qkv_bias, qk_norm;
    int64_t head_dim; /* 0: as wide as the heads share out */
} known_models[HF_TYPES] = {
    [HF_GPT2] = {MODEL_GPT2, true, false, 0},
    [HF_LLAMA] = {MODEL_LLAMA, false, false, 0},
    [HF_MISTRAL] = {MODEL_LLAMA, false, false, 0},
    [HF_QWEN2] = {MODEL_LLAMA, true, false, 0},
    [HF_QWEN3] = {MODEL_LLAMA, false, true, 128},
    [HF_NEOX] = {MODEL_NEOX, true, false, 0},
};

/* The configuration, and its row of known_models, -1: the words are not given. */
typedef struct Known {
    Config *cfg;
    int row;
} Known;

static void find_known_model(void *context) {
    static const char *const path[] = {"model.model_config.model_type",
                                       "model.model_config.architectures"};
    Known *k = context;
    const char *type = k->cfg->model_model_type;
    TextList classes = k->cfg->model_architectures;
    const char *word[] = {type[0] ? type : NULL, classes.n ? classes.items[0] : NULL};
    for (int i = 0; i < ARRAY_LEN(word); i++) {
        if (!word[i]) continue;
        int row = name_index(word[i], i ? hf_classes : hf_types, HF_TYPES);
        if (row < 0)
            config_refuse(k->cfg, path[i], NULL,
                          "gpt2, llama, mistral, qwen2, qwen3 and gpt_neox are",
                          "models of kind %.100s are not there yet", word[i]);
        if (k->row >= 0 && k->row != row)
            config_refuse(k->cfg, path[1], path[0], "keep one of the two",
                          "model_type is %.100s, and architectures has %.100s", type,
                          word[i]);
        k->row = row;
    }
}

/* Defaults that one kind of model has otherwise; the kind may come from arch.type, or from
 * the words of Hugging Face. */
static void apply_model_defaults(Config *cfg) {
    Known known = {cfg, -1};
    bool typed = config_given(cfg, "model.model_config.type");
    bool classed = config_given(cfg, "model.arch.type");
    if (classed && !typed) cfg->model_type = (ModelType)cfg->model_arch_type;
    if (!classed && !typed) config_try(cfg->state, find_known_model, &known);
    if (known.row >= 0) cfg->model_type = known_models[known.row].model;
    for (int i = 0; i < n_key_defaults; i++) {
        const KeyDefault *d = &key_defaults[i];
        if (d->model == cfg->model_type && !config_given(cfg, d->path))
            key_store_text(cfg->state->mem, &key_table[key_find(d->path)], d->def, cfg);
    }
    if (known.row < 0) return;
    if (!config_given(cfg, "model.model_config.add_qkv_bias"))
        cfg->model_add_qkv_bias = known_models[known.row].qkv_bias;
    if (!config_given(cfg, "model.model_config.qk_layernorm"))
        cfg->model_qk_layernorm = known_models[known.row].qk_norm;
    if (!config_given(cfg, "model.model_config.head_dim"))
        cfg->model_head_dim = known_models[known.row].head_dim;
}

/* One key on its way into a Config. */
typedef struct Building {
    Config *cfg, *defaults;
    int k;
} Building;

static void store_value(void *context) {
    const Building *b = context;
    const Setting *s = &b->cfg->state->settings[b->k];
    key_store(b->cfg->state->mem, &key_table[b->k], s->name, s->value, b->cfg);
}

static void say_category(void *context) {
    const Building *b = context;
    apply_category(b->cfg, b->defaults, b->k);
}

/* A value that fails leaves the default, and the key broken. */
static void try_key(Building *b, void (*f)(void *)) {
    ConfigState *s = b->cfg->state;
    const Key *key = &key_table[b->k];
    if (s->broken[b->k] || config_try(s, f, b)) return;
    s->broken[b->k] = true;
    if (key->kind != KIND_Tree) key_store_text(s->mem, key, key->def, b->cfg);
}

static Config *build(ConfigState *state) {
    Building b = {.cfg = NEW(state->mem, Config), .defaults = NEW(state->mem, Config)};
    b.cfg->state = state;
    for (b.k = 0; b.k < N_KEYS; b.k++) {
        const Key *key = &key_table[b.k];
        if (key->kind == KIND_Tree) continue;
        key_store_text(state->mem, key, key->def, b.defaults);
        key_store_text(state->mem, key, key->def, b.cfg);
        if (state->settings[b.k].value) try_key(&b, store_value);
    }
    config_displace(b.cfg);
    apply_model_defaults(b.cfg);
    for (b.k = 0; b.k < N_KEYS; b.k++) try_key(&b, say_category);
    config_note_needless(b.cfg);
    config_derive(b.cfg);
    for (b.k = 0; b.k < N_KEYS; b.k++) note_mapped(b.cfg, b.defaults, b.k);
    config_check(b.cfg);
    config_fail_all(state);
    return b.cfg;
}

ConfigFiles *config_files(Arena *mem, const char *path) {
    ConfigFiles *f = NEW(mem, ConfigFiles);
    *f = (ConfigFiles){.mem = mem, .path = path};
    return f;
}

const char *config_files_path(const ConfigFiles *f) {
    return f->path;
}

static ConfigState *new_state(Arena *a, ConfigFiles *f) {
    ConfigState *state = NEW(a, ConfigState);
    *state = (ConfigState){.mem = a, .files = f};
    return state;
}

Config *config_load_of(Arena *a, ConfigFiles *f, int nflags, char **flags) {
    ConfigState *state = new_state(a, f);
    if (f->path) config_read_file(state, f->path);
    config_read_flags(state, nflags, flags);
    return build(state);
}

Config *config_load(Arena *a, const char *path, int nflags, char **flags) {
    return config_load_of(a, config_files(a, path), nflags, flags);
}

Config *config_parse(Arena *a, const char *name, const char *text, size_t n) {
    ConfigState *state = new_state(a, config_files(a, NULL));
    config_read_text(state, name, text, n);
    return build(state);
}

static void set_flags(Config *cfg, int n, char **flag) {
    ConfigState *state = NEW(cfg->state->mem, ConfigState);
    *state = *cfg->state;
    config_read_flags(state, n, flag);
    *cfg = *build(state);
}

void config_set_flag(Config *cfg, const char *path, const char *value) {
    char *flag = arena_printf(cfg->state->mem, "--%s=%s", path, value);
    set_flags(cfg, 1, &flag);
}

void config_set_from(Config *cfg, const char *path, const char *value, SourcePos at) {
    Arena *mem = cfg->state->mem;
    char *flag[] = {config_flag_from(mem, at), arena_printf(mem, "--%s=%s", path, value)};
    set_flags(cfg, ARRAY_LEN(flag), flag);
}
