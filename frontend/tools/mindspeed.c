/* mindspeed.c - a YAML file of MindSpeed-Core-MS as flags of Megatron-LM, by the table mindspeed.def;
 * see megatron.h. */
#include "frontend/tools/mindspeed.h"
#include "frontend/config/key.h"
#include "frontend/config/yaml.h"
#include "frontend/tools/megatron_parts.h"

typedef enum RowKind { FLAG, UNLESS, KEY, IDLE, VALUES, OWNS } RowKind;

#define MODEL_CONFIG "model_config."
#define LLM_CONFIG   MODEL_CONFIG "llm."
#define LLM          LLM_CONFIG "blocks."

/* A value of the file, under its path. */
typedef struct Leaf {
    const char *path;
    const YamlNode *node;
} Leaf;

struct MindSpeed {
    Megatron *m;
    Leaf *leaf;
    int n, cap;
    bool *said;            /* by row of the table */
    bool has_llm;          /* the form with model_config.llm */
    bool resumes;          /* resume_training: True */
    char *max_positions;   /* position.max_size; NULL: it is not there */
    const Leaf *gradients; /* precision.grad_accumulation_dtype; NULL: it is not there */
};

/* ---- values ---- */

/* Lists as [[1,2],[3,4]]. */
static void add_text(Text *t, const YamlNode *node) {
    if (node->kind == NODE_TEXT) {
        text_add(t, "%s", node->text);
        return;
    }
    text_add(t, "[");
    for (int i = 0; i < node->n; i++) {
        if (i) text_add(t, ",");
        add_text(t, node->items[i]);
    }
    text_add(t, "]");
}

static char *text_of(Arena *mem, const YamlNode *node) {
    Text t = text_new(mem);
    add_text(&t, node);
    return t.s;
}

static bool truth_of(const Leaf *leaf) {
    bool yes;
    if (leaf->node->kind != NODE_TEXT || !key_parse_bool(leaf->node->text, &yes))
        fail_at(EXIT_CONFIG, leaf->node->at, NULL, "%s must be True or False",
                leaf->path);
    return yes;
}

/* What is wrong with a flag is told at the value that it comes from. */
static void give(const MindSpeed *s, const Leaf *leaf, int id, int n, char **word) {
    Catch c;
    if (CATCH(c)) {
        megatron_give(s->m, id, n, word);
        catch_end(&c);
        return;
    }
    catch_fail_at(&c, leaf->node->at);
}

static void give_word(const MindSpeed *s, const Leaf *leaf, MegatronId id, char *word) {
    char **kept = NEW(s->m->mem, char *);
    *kept = word;
    give(s, leaf, (int)id, 1, kept);
}

static int flag_of(const char *name) {
    int id = megatron_find(name, strlen(name));
    check(id >= 0);
    return id;
}

static void give_value(const MindSpeed *s, const Leaf *leaf, int id) {
    const MegatronFlag *f = &megatron_flag[id];
    const YamlNode *node = leaf->node;
    Arena *mem = s->m->mem;
    if (!f->words) {
        if (truth_of(leaf)) give(s, leaf, id, 0, NULL);
    } else if (f->words == MEGATRON_MANY && node->kind == NODE_LIST) {
        char **word = NEW_ARRAY(mem, char *, (size_t)node->n + 1);
        for (int i = 0; i < node->n; i++) word[i] = text_of(mem, node->items[i]);
        give(s, leaf, id, node->n, word);
    } else {
        give_word(s, leaf, (MegatronId)id, text_of(mem, node));
    }
}

/* ---- values with functions of their own ---- */

static void take_betas(MindSpeed *s, const Leaf *leaf) {
    const YamlNode *list = leaf->node;
    if (list->kind != NODE_LIST || list->n != 2)
        fail_at(EXIT_CONFIG, list->at, NULL, "%s must be a list of two numbers",
                leaf->path);
    give_word(s, leaf, MEGATRON_adam_beta1, text_of(s->m->mem, list->items[0]));
    give_word(s, leaf, MEGATRON_adam_beta2, text_of(s->m->mem, list->items[1]));
}

static void take_micro_batches(MindSpeed *s, const Leaf *leaf) {
    const char *text = text_of(s->m->mem, leaf->node);
    int64_t *n = &s->m->micro_batches;
    if (!key_parse_int(text, n) || *n < 1 || *n > INT32_MAX)
        fail_at(EXIT_CONFIG, leaf->node->at, NULL, "%s must be a whole number, 1 or more",
                leaf->path);
}

static void take_positions(MindSpeed *s, const Leaf *leaf) {
    s->max_positions = text_of(s->m->mem, leaf->node);
}

static void take_resume(MindSpeed *s, const Leaf *leaf) {
    s->resumes = truth_of(leaf);
}

static void take_gradients(MindSpeed *s, const Leaf *leaf) {
    s->gradients = leaf;
}

/* When all of the file is known: the type of products too. */
static void give_gradients(MindSpeed *s) {
    const Leaf *leaf = s->gradients;
    if (!leaf) return;
    const char *text = text_of(s->m->mem, leaf->node);
    const char *narrow = GIVEN(s->m, bf16)   ? "bfloat16"
                         : GIVEN(s->m, fp16) ? "float16"
                                             : "";
    if (!strcmp(text, "float32")) {
        give(s, leaf, MEGATRON_accumulate_allreduce_grads_in_fp32, 0, NULL);
    } else if (strcmp(text, narrow) != 0) {
        fail_at(EXIT_CONFIG, leaf->node->at, NULL,
                "%s %.60s is not there: gradients are float32%s%s", leaf->path, text,
                narrow[0] ? " or, as compute_dtype, " : "", narrow);
    } else if (GIVEN(s->m, bf16)) {
        give(s, leaf, MEGATRON_grad_reduce_in_bf16, 0, NULL);
    }
}

/* ---- rows ---- */

typedef struct Row {
    const char *path;
    RowKind kind;
    const char *to; /* see mindspeed.def; of VALUES a flag, of OWNS what becomes of it */
    const char *value, *word;
    void (*take)(MindSpeed *, const Leaf *);
} Row;

static const Row rows[] = {
#define ROW(path, kind, to)            {path, kind, to, NULL, NULL, NULL},
#define VALUE(path, value, flag, word) {path, VALUES, flag, value, word, NULL},
#define OWN(path, take, what)          {path, OWNS, what, NULL, NULL, take},
#include "frontend/config/mindspeed.def"
};

static int row_of(const char *path) {
    for (int i = 0; i < ARRAY_LEN(rows); i++)
        if (!strcmp(rows[i].path, path)) return i;
    return -1;
}

/* The rows of a path with values: those that have this one act. */
static void take_values(MindSpeed *s, const Leaf *leaf, int first) {
    const char *text = text_of(s->m->mem, leaf->node);
    Text all = text_new(s->m->mem);
    bool found = false;
    for (int i = first; i < ARRAY_LEN(rows) && !strcmp(rows[i].path, leaf->path); i++) {
        const Row *r = &rows[i];
        if (i == first || strcmp(rows[i - 1].value, r->value) != 0)
            text_add(&all, "%s%s", all.n ? ", " : "", r->value);
        if (strcmp(r->value, text) != 0) continue;
        found = true;
        if (!r->to[0]) continue;
        if (r->word[0])
            give_word(s, leaf, (MegatronId)flag_of(r->to),
                      arena_strdup(s->m->mem, r->word));
        else
            give(s, leaf, flag_of(r->to), 0, NULL);
    }
    if (!found)
        fail_at(EXIT_CONFIG, leaf->node->at, NULL, "%s %.60s is not there; %s are",
                leaf->path, text, all.s);
}

static void take_row(MindSpeed *s, const Leaf *leaf, int i) {
    const Row *r = &rows[i];
    Megatron *m = s->m;
    s->said[i] = true;
    switch (r->kind) {
    case FLAG:
        give_value(s, leaf, flag_of(r->to));
        break;
    case UNLESS:
        if (!truth_of(leaf)) give(s, leaf, flag_of(r->to), 0, NULL);
        break;
    case KEY:
        megatron_add(m, r->to, "%s", text_of(m->mem, leaf->node));
        break;
    case IDLE:
        PUSH(m->mem, m->idle, m->nidle, m->cap_idle,
             arena_printf(m->mem, "%s has no effect: %s", leaf->path, r->to));
        break;
    case OWNS:
        r->take(s, leaf);
        break;
    case VALUES:
        take_values(s, leaf, i);
        break;
    }
}

/* ---- the file ---- */

static const char *const groups[] = {
    "model_config",    "training_config", "dataset_config",   "optimizer_config",
    "parallel_config", "train_config",    "accelerate_config"};

static _Noreturn void unknown_name(const MindSpeed *s, const Leaf *leaf) {
    const char *names[ARRAY_LEN(rows)];
    for (int i = 0; i < ARRAY_LEN(rows); i++) names[i] = rows[i].path;
    const char *near = nearest_name(leaf->path, names, ARRAY_LEN(rows));
    fail_at(EXIT_CONFIG, leaf->node->at,
            near ? arena_printf(s->m->mem, "did you mean %s?", near) : NULL,
            "%s is no name of MindSpeed-Core-MS that is known here; leave it out if it "
            "changes nothing that is computed (docs/megatron.md lists those that are "
            "known)",
            leaf->path);
}

static void take_leaf(MindSpeed *s, const Leaf *leaf) {
    const char *dot = strchr(leaf->path, '.');
    int row = row_of(leaf->path), id = -1;
    if (yaml_is_null(leaf->node)) return;
    if (row >= 0) {
        take_row(s, leaf, row);
        return;
    }
    if (dot && !strchr(dot + 1, '.')) id = megatron_find(dot + 1, strlen(dot + 1));
    if (id < 0) unknown_name(s, leaf);
    give_value(s, leaf, id);
}

/* Groups of Megatron-LM's own files: of --yaml-cfg, and of its tests. */
static const char *const megatron_groups[] = {"language_model", "model_parallel",
                                              "MODEL_ARGS", "ENV_VARS", "TEST_TYPE"};

static bool is_of_megatron(const YamlNode *root, const char *name) {
    for (int i = 0; i < ARRAY_LEN(megatron_groups); i++)
        if (yaml_get(root, megatron_groups[i])) return true;
    return key_find(name) < 0 && !key_is_section(name) &&
           megatron_find(name, strlen(name)) >= 0;
}

static void check_group(const MindSpeed *s, const YamlNode *root, const char *name,
                        SourcePos at) {
    const char *near = nearest_name(name, groups, ARRAY_LEN(groups));
    if (is_one_of(name, groups, ARRAY_LEN(groups))) return;
    if (is_of_megatron(root, name))
        fail_at(EXIT_CONFIG, at,
                "give them as flags: stator import -o gpt.yaml pretrain_gpt.py "
                "--num-layers 24 --hidden-size 1024",
                "%.100s: arguments of Megatron-LM in YAML, as of its --yaml-cfg, are not "
                "read",
                name);
    fail_at(EXIT_CONFIG, at,
            near ? arena_printf(s->m->mem, "did you mean %s?", near)
                 : "a configuration of MindFormers is read as it is: stator plan FILE",
            "%.100s is no group of a file of MindSpeed-Core-MS", name);
}

/* A name that is longer is none; many below it would each have it in their path. */
enum { LONGEST_PATH = 200 };

static const char *path_below(const MindSpeed *s, const Leaf *map, const YamlNode *key) {
    if (strlen(map->path) + strlen(key->text) > LONGEST_PATH)
        fail_at(EXIT_CONFIG, key->at, NULL, "a name that is too long");
    return arena_printf(s->m->mem, "%s%s%s", map->path, map->path[0] ? "." : "",
                        key->text);
}

/* All values of the file; a map that is found waits its turn. */
static void find_leaves(MindSpeed *s, const YamlNode *root) {
    Leaf *maps = NULL;
    int n = 0, cap = 0;
    PUSH(s->m->mem, maps, n, cap, ((Leaf){"", root}));
    for (int i = 0; i < n; i++) {
        const Leaf map = maps[i];
        for (int k = 0; k < map.node->n; k++) {
            const YamlNode *key = map.node->keys[k];
            Leaf at = {path_below(s, &map, key), map.node->items[k]};
            if (!map.path[0]) check_group(s, root, at.path, key->at);
            if (at.node->kind == NODE_MAP)
                PUSH(s->m->mem, maps, n, cap, at);
            else
                PUSH(s->m->mem, s->leaf, s->n, s->cap, at);
        }
    }
}

/* ---- what it leaves out ---- */

static bool is_said(const MindSpeed *s, const char *path) {
    return s->said[row_of(path)];
}

static void give_default(const MindSpeed *s, MegatronId id, const char *word) {
    char **kept = NEW(s->m->mem, char *);
    *kept = arena_strdup(s->m->mem, word);
    if (!s->m->flag[id].given) megatron_give(s->m, (int)id, word[0] ? 1 : 0, kept);
}

/* None but the one behind attention, and that in the form of the groups alone. */
static void default_biases(const MindSpeed *s) {
    bool linear = is_said(s, MODEL_CONFIG "add_bias_linear") ||
                  is_said(s, MODEL_CONFIG "mlp_has_bias") ||
                  is_said(s, LLM "ffn.mlp_bias");
    if (!linear) give_default(s, MEGATRON_disable_bias_linear, "");
    if (!s->has_llm && !is_said(s, MODEL_CONFIG "out_proj_has_bias"))
        give_default(s, MEGATRON_add_dense_bias, "");
}

/* Of mindspeed_ms/core/config.py, where they are others than Megatron-LM's. */
void mindspeed_defaults(MindSpeed *s) {
    static const struct {
        MegatronId id;
        const char *word;
    } others[] = {{MEGATRON_lr, "1e-3"},
                  {MEGATRON_lr_decay_style, "constant"},
                  {MEGATRON_weight_decay, "0.0"},
                  {MEGATRON_attention_dropout, "0.0"},
                  {MEGATRON_hidden_dropout, "0.0"},
                  {MEGATRON_num_query_groups, "32"}};
    Megatron *m = s->m;
    for (int i = 0; i < ARRAY_LEN(others); i++)
        give_default(s, others[i].id, others[i].word);
    default_biases(s);
    give_gradients(s);
    if (s->max_positions) {
        if (!GIVEN(m, seq_length))
            megatron_note(m, "position.max_size: sequences have as many tokens, as "
                             "nothing says how many they have");
        give_default(s, MEGATRON_max_position_embeddings, s->max_positions);
        give_default(s, MEGATRON_seq_length, s->max_positions);
    }
    if (GIVEN(m, load) && !s->resumes) give_default(s, MEGATRON_finetune, "");
    if (GIVEN(m, save_interval)) give_default(s, MEGATRON_save, "./output");
    if (s->resumes && GIVEN(m, save)) give_default(s, MEGATRON_load, WORD(m, save, ""));
}

MindSpeed *mindspeed_read(Megatron *m, const char *path) {
    MindSpeed *s = NEW(m->mem, MindSpeed);
    size_t n;
    char *text = file_read(m->mem, path, YAML_MAX_BYTES, &n, EXIT_CONFIG);
    const YamlNode *root = yaml_parse(m->mem, path, text, n);
    if (root->kind != NODE_MAP)
        fail_at(EXIT_CONFIG, root->at, NULL,
                "a file of MindSpeed-Core-MS has groups: "
                "model_config, parallel_config and others");
    s->m = m;
    s->said = NEW_ARRAY(m->mem, bool, ARRAY_LEN(rows));
    find_leaves(s, root);
    for (int i = 0; i < s->n; i++) {
        s->has_llm |= begins_with(s->leaf[i].path, LLM_CONFIG);
        take_leaf(s, &s->leaf[i]);
    }
    return s;
}
