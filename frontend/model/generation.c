/* generation.c - see generation.h. */
#include "frontend/model/generation.h"
#include "frontend/config/key.h"
#include "frontend/model/model_hf.h"
#include <math.h>

#define MODEL "model.model_config."

enum { TOP_K_OF_TRANSFORMERS = 50 }; /* of a file that samples and does not name it */

#define GENERATION_FILE                                                                  \
    "generation_config.json" /* older folders have it all in config.json */

static const char *const name[] = {"do_sample", "temperature", "top_k", "top_p",
                                   "repetition_penalty"};
static const char *const path[] = {MODEL "do_sample", MODEL "temperature", MODEL "top_k",
                                   MODEL "top_p", MODEL "repetition_penalty"};
_Static_assert(ARRAY_LEN(name) == CHOICES && ARRAY_LEN(path) == CHOICES, "all choices");

static const Key *key_of(TokenChoice c) {
    return &key_table[key_find(path[c])];
}

/* ---- choices as JSON ---- */

/* In the range of the key of that name? A file of another program may have other numbers: they
 * go along, and are refused where texts are made with them. */
static bool in_range(TokenChoice c, double x) {
    return key_in_range(key_of(c), x) && (c != CHOICE_TOP_K || x == floor(x));
}

TokenChoices generation_read_choices(const Json *object) {
    TokenChoices c = {0};
    for (int i = 0; i < CHOICES; i++) {
        const Json *v = json_get(object, name[i]);
        if (!v || v->kind == JSON_NULL) continue;
        c.given[i] = true;
        c.value[i] = i == CHOICE_DO_SAMPLE ? json_bool(v) : json_f64(v);
    }
    return c;
}

static void add_value(Text *t, TokenChoice c, double x, const char *yes, const char *no) {
    if (c == CHOICE_DO_SAMPLE)
        text_add(t, "%s", x != 0 ? yes : no);
    else if (c == CHOICE_TOP_K && in_range(c, x))
        text_add(t, "%lld", (long long)x);
    else
        json_write_double(t, x);
}

void generation_write_choices(Text *t, const TokenChoices *c, const char *before) {
    for (int i = 0; i < CHOICES; i++) {
        if (!c->given[i]) continue;
        text_add(t, "%s\"%s\": ", before, name[i]);
        add_value(t, i, c->value[i], "true", "false");
    }
}

static bool any(const TokenChoices *c) {
    for (int i = 0; i < CHOICES; i++)
        if (c->given[i]) return true;
    return false;
}

/* ---- the file ---- */

static const Json *open_file(Arena *mem, const char *dir, const char *name_of_file) {
    const char *file = path_join(mem, dir, name_of_file);
    if (!file_exists(file)) return NULL;
    const Json *root = json_read(mem, file, CONFIG_JSON_MAX_BYTES, EXIT_CONFIG);
    json_want(root, JSON_OBJECT);
    return root;
}

/* As in transformers the file goes before config.json where texts are made; but one that names no
 * token leaves those of config.json, where transformers would not end a text at all. */
static void read_ends(const Json *root, ModelSpec *s) {
    int64_t ends[MODEL_MAX_EOS];
    int n = model_hf_read_eos(json_get(root, "eos_token_id"), s->vocab, ends);
    if (!n) return;
    bool same = n == s->n_eos && !memcmp(ends, s->eos, (size_t)n * sizeof *ends);
    s->n_ends = same ? 0 : n;
    memcpy(s->ends, ends, (size_t)s->n_ends * sizeof *ends);
}

/* What the file leaves to transformers. */
static void fill_choices(TokenChoices *c) {
    if (!any(c)) return;
    c->given[CHOICE_DO_SAMPLE] = true;
    if (c->value[CHOICE_DO_SAMPLE] == 0 || c->given[CHOICE_TOP_K]) return;
    c->given[CHOICE_TOP_K] = true;
    c->value[CHOICE_TOP_K] = TOP_K_OF_TRANSFORMERS;
}

void generation_read(Arena *mem, const char *dir, ModelSpec *s) {
    const Json *root = open_file(mem, dir, GENERATION_FILE);
    int64_t bos = root ? json_get_i64(root, "bos_token_id", -1, INT32_MAX, -1) : -1;
    if (root) read_ends(root, s);
    if (bos >= 0 && bos < s->vocab) s->bos_token = bos;
    int64_t pad = root ? json_get_i64(root, "pad_token_id", -1, INT32_MAX, -1) : -1;
    if (s->pad_token < 0 && pad >= 0 && pad < s->vocab) s->pad_token = pad;
    if (!root) root = open_file(mem, dir, "config.json");
    if (root) s->choices = generation_read_choices(root);
    fill_choices(&s->choices);
}

/* What is as in the model's configuration says so: transformers 4 takes other values from
 * there then. */
char *generation_json(Arena *mem, const ModelSpec *s) {
    Text t = text_new(mem);
    int n;
    const int64_t *eos = model_ends(s, &n);
    bool own = s->n_ends || any(&s->choices);
    text_add(&t, "{\n  \"_from_model_config\": %s", own ? "false" : "true");
    if (s->bos_token >= 0)
        text_add(&t, ",\n  \"bos_token_id\": %lld", (long long)s->bos_token);
    if (n == 1) text_add(&t, ",\n  \"eos_token_id\": %lld", (long long)eos[0]);
    for (int i = 0; n > 1 && i < n; i++)
        text_add(&t, "%s%lld%s", i ? ", " : ",\n  \"eos_token_id\": [", (long long)eos[i],
                 i == n - 1 ? "]" : "");
    if (s->pad_token >= 0)
        text_add(&t, ",\n  \"pad_token_id\": %lld", (long long)s->pad_token);
    generation_write_choices(&t, &s->choices, ",\n  ");
    text_add(&t, "\n}\n");
    return t.s;
}

/* ---- what is left out ---- */

/* Is this what transformers does without the key? */
static bool changes_nothing(const Json *v) {
    static const char *const one[] = {"num_beams",      "num_beam_groups",
                                      "typical_p",      "num_return_sequences",
                                      "length_penalty", "encoder_repetition_penalty"};
    if (v->kind == JSON_NULL) return true;
    if (v->kind == JSON_BOOL) return !json_bool(v);
    if (v->kind == JSON_ARRAY || v->kind == JSON_OBJECT) return !v->first;
    if (v->kind == JSON_STRING) return false;
    return json_f64(v) == (is_one_of(v->key, one, ARRAY_LEN(one)) ? 1 : 0);
}

/* Does a config.json of before generation_config.json have it for generation? */
static bool is_of_old_folders(const char *key) {
    static const char *const old[] = {"min_length",
                                      "num_beams",
                                      "num_beam_groups",
                                      "no_repeat_ngram_size",
                                      "encoder_no_repeat_ngram_size",
                                      "length_penalty",
                                      "diversity_penalty",
                                      "early_stopping",
                                      "typical_p",
                                      "bad_words_ids",
                                      "suppress_tokens",
                                      "begin_suppress_tokens",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "exponential_decay_length_penalty"};
    return is_one_of(key, old, ARRAY_LEN(old));
}

const char *generation_file(Arena *mem, const char *dir) {
    return folder_has(mem, dir, GENERATION_FILE) ? GENERATION_FILE : "config.json";
}

static bool has_place(const char *key) {
    static const char *const known[] = {"eos_token_id",         "bos_token_id",
                                        "pad_token_id",         "_from_model_config",
                                        "transformers_version", "use_cache"};
    return is_one_of(key, name, CHOICES) || is_one_of(key, known, ARRAY_LEN(known));
}

const char *generation_left_out(Arena *mem, const char *dir, int n,
                                const GenerationFlag *flag) {
    const char *file = generation_file(mem, dir);
    bool old = strcmp(file, GENERATION_FILE) != 0;
    const Json *root = open_file(mem, dir, file);
    Text t = text_new(mem);
    for (const Json *v = root ? root->first : NULL; v; v = v->next) {
        const GenerationFlag *of = NULL;
        if (old && !is_of_old_folders(v->key)) continue;
        for (int i = 0; i < n; i++)
            if (!strcmp(v->key, flag[i].key)) of = &flag[i];
        if (has_place(v->key) || changes_nothing(v) || (of && of->given)) continue;
        text_add(&t, "%s%s", t.n ? ", " : "", v->key);
        if (of) text_add(&t, " (%s)", of->flag);
    }
    return t.n ? t.s : NULL;
}

/* ---- beside the keys ---- */

static bool is_of_model(const Config *cfg, const ModelSpec *s, TokenChoice c) {
    bool asked = config_given(cfg, path[c]);
    if (c == CHOICE_DO_SAMPLE)
        asked |= config_given(cfg, path[CHOICE_TEMPERATURE]) ||
                 config_given(cfg, path[CHOICE_TOP_K]) ||
                 config_given(cfg, path[CHOICE_TOP_P]);
    return s->choices.given[c] && !asked;
}

static double chosen(const Config *cfg, const ModelSpec *s, TokenChoice c) {
    const double of_key[] = {cfg->model_do_sample, cfg->model_temperature,
                             (double)cfg->model_top_k, cfg->model_top_p,
                             cfg->model_repetition_penalty};
    bool of_model = is_of_model(cfg, s, c) && in_range(c, s->choices.value[c]);
    return of_model ? s->choices.value[c] : of_key[c];
}

/* Does it decide anything where the best token may always be taken? */
static bool counts(TokenChoice c, bool greedy) {
    return c == CHOICE_PENALTY || !greedy;
}

static void refuse_odd(const Config *cfg, const ModelSpec *s, bool greedy) {
    for (int i = 0; i < CHOICES; i++) {
        double x = s->choices.value[i];
        if (!is_of_model(cfg, s, i) || !counts(i, greedy) || in_range(i, x)) continue;
        const char *range = key_range_text(arena_scratch(), key_of(i));
        fail(EXIT_CONFIG,
             "generation_config.json of the model says %s %g, which must be %s: write "
             "another, --%s",
             name[i], x, range, path[i]);
    }
}

Sampling generation_sampling(const Config *cfg, const ModelSpec *s, bool greedy) {
    greedy |= chosen(cfg, s, CHOICE_DO_SAMPLE) == 0;
    refuse_odd(cfg, s, greedy);
    return (Sampling){.greedy = greedy,
                      .temperature = chosen(cfg, s, CHOICE_TEMPERATURE),
                      .top_k = (int64_t)chosen(cfg, s, CHOICE_TOP_K),
                      .top_p = chosen(cfg, s, CHOICE_TOP_P),
                      .repetition_penalty = chosen(cfg, s, CHOICE_PENALTY),
                      .seed = (uint64_t)cfg->seed};
}

const char *generation_taken(Arena *mem, const Config *cfg, const ModelSpec *s,
                             bool greedy) {
    bool best = greedy || chosen(cfg, s, CHOICE_DO_SAMPLE) == 0;
    Text t = text_new(mem);
    for (int i = 0; i < CHOICES; i++) {
        bool told = counts(i, i == CHOICE_DO_SAMPLE ? greedy : best);
        if (!told || !is_of_model(cfg, s, i)) continue;
        text_add(&t, "%s%s ", t.n ? ", " : "", name[i]);
        add_value(&t, i, s->choices.value[i], "True", "False");
    }
    return t.n ? t.s : NULL;
}

bool generation_ends(const ModelSpec *s, const Tokenizer *t, int64_t token) {
    return model_ends_text(s, token) || (t && token == tokenizer_eod(t));
}

int *generation_end_tokens(Arena *mem, const ModelSpec *s, const Tokenizer *t, int *n) {
    int *end = NULL, cap = 0;
    *n = 0;
    for (int i = 0; i < (int)s->vocab; i++)
        if (generation_ends(s, t, i)) PUSH(mem, end, *n, cap, i);
    return end;
}

int64_t generation_least(const Config *cfg, int64_t prompt) {
    int64_t fresh = cfg->model_min_new_tokens;
    return fresh ? prompt + fresh : cfg->model_min_length;
}
