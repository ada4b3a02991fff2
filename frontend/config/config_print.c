/* config_print.c - the configuration as YAML, the key table as help and as a page. */
#include "frontend/config/config_state.h"

/* Length of the section part of a path with its dot; 0 for a key outside of sections. */
static size_t section_bytes(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? (size_t)(dot - path) + 1 : 0;
}

/* Headers of the sections of `path` that `before` is not in; returns the indentation. */
static int open_sections(Text *out, const char *before, const char *path) {
    size_t common = 0, n = section_bytes(path), old = section_bytes(before);
    for (size_t i = 0; i < MIN(n, old) && path[i] == before[i]; i++) {
        if (path[i] == '.') common = i + 1;
    }
    int level = 0;
    for (size_t start = 0; start < n; level++) {
        size_t bytes = strcspn(path + start, ".");
        if (start >= common)
            text_add(out, "%*s%.*s:\n", level * 2, "", (int)bytes, path + start);
        start += bytes + 1;
    }
    return level * 2;
}

static void print_keys(const Config *cfg, bool given_alone, Text *out) {
    const char *before = "";
    int order[N_KEYS];
    key_order(order);
    for (int i = 0; i < N_KEYS; i++) {
        int k = order[i];
        const Key *key = &key_table[k];
        bool is_given = cfg->state->settings[k].value != NULL;
        bool idle = key->kind == KIND_TREE || key->cat != CAT_WORKS;
        if (!is_given && (given_alone || idle)) continue;
        if (key->kind == KIND_TREE && key_has_keys(key->path))
            continue; /* their section is there */
        int indent = open_sections(out, before, key->path);
        const char *value = key_text(cfg->state->mem, key, cfg, true);
        text_add(out, "%*s%s%s: ", indent, "", is_given ? "" : "# ",
                 key->path + section_bytes(key->path));
        text_add_bytes(out, value, strlen(value));
        text_add(out, "\n");
        before = key->path;
    }
}

void config_print(const Config *cfg, Text *out) {
    print_keys(cfg, false, out);
}

void config_print_given(const Config *cfg, Text *out) {
    print_keys(cfg, true, out);
}

static void set_given(Config *cfg, const char *path, const char *value) {
    int k = key_find(path);
    Setting *s = &cfg->state->settings[k];
    s->value = yaml_scalar(cfg->state->mem, value, (SourcePos){0});
    key_store_text(cfg->state->mem, &key_table[k], value, cfg);
}

void config_print_run(const Config *cfg, const char *from, Text *out) {
    Config *run = NEW(cfg->state->mem, Config);
    *run = *cfg;
    run->state = NEW(cfg->state->mem, ConfigState);
    *run->state = *cfg->state;
    if (strcmp(cfg->resume, "auto") != 0) set_given(run, "resume", "auto");
    if (from) set_given(run, "resume_or_finetune_checkpoint", from);
    config_print(run, out);
}

/* Name of the top-level section; "run" for keys outside of sections. */
static void section_name(const char *path, char name[64]) {
    size_t n = strcspn(path, ".");
    if (!path[n]) path = "run", n = 3;
    check(n < 64);
    memcpy(name, path, n);
    name[n] = 0;
}

static const char *category_text(Arena *a, const Key *key) {
    switch (key->cat) {
    case CAT_WORKS:
        return "works";
    case CAT_MAPPED:
        return arena_printf(a, "mapped: %s", key->why);
    case CAT_FIXED:
        return arena_printf(a, "always %s: %s", key->def, key->why);
    case CAT_NO_EFFECT:
        return arena_printf(a, "no effect: %s", key->why);
    case CAT_REFUSED:
        return arena_printf(a, "only %s: %s", key->def, key->why);
    case CAT_NOT_YET:
        return arena_printf(a, "not there yet: %s", key->why);
    }
    die("category %d", (int)key->cat);
}

/* "a whole number, at least 1" */
static const char *values_text(Arena *a, const Key *key) {
    const char *range = key_range_text(a, key);
    if (key->kind == KIND_ENUM) return range;
    return arena_printf(a, "%s%s%s", key_kind_name(key->kind), range[0] ? ", " : "",
                        range);
}

/* Keys, and when they have no effect. */
static const char *const needs[][2] = {
#define NEEDS(path, condition, why) {path, why},
#include "frontend/config/keys.def"
};

static void list_sections(FILE *out) {
    char name[64], before[64] = "";
    int order[N_KEYS];
    key_order(order);
    fputs("Sections of the configuration; any key is a flag: --section.key VALUE\n", out);
    for (int k = 0; k < N_KEYS; k++) {
        section_name(key_table[order[k]].path, name);
        if (strcmp(name, before) && (strcmp(name, "run") || k == 0))
            fprintf(out, "  %s\n", name);
        strcpy(before, name);
    }
}

/* The key is `path` or ends with it, from a dot on. */
static bool is_called(const char *key, const char *path) {
    size_t n = strlen(key), end = strlen(path);
    return n >= end && !strcmp(key + n - end, path) &&
           (n == end || key[n - end - 1] == '.');
}

/* By its own name or another one. */
static bool is_key(const Key *key, const char *name) {
    bool is = is_called(key->path, name);
    for (int i = 0; i < n_key_aliases && !is; i++)
        is = !strcmp(key_aliases[i].target, key->path) &&
             is_called(key_aliases[i].path, name);
    return is;
}

static void list_key(FILE *out, Arena *a, const Key *key) {
    fprintf(out, "--%s  (%s)\n    %s\n", key->path, values_text(a, key), key->doc);
    if (key->def[0]) fprintf(out, "    default %s\n", key->def);
    if (key->cat != CAT_WORKS) fprintf(out, "    %s\n", category_text(a, key));
}

/* What its section does not say of it. */
static void list_more(FILE *out, const Key *key) {
    for (int i = 0; i < n_key_aliases; i++)
        if (!strcmp(key_aliases[i].target, key->path))
            fprintf(out, "    also called %s\n", key_aliases[i].path);
    for (int i = 0; i < ARRAY_LEN(needs); i++)
        if (!strcmp(needs[i][0], key->path))
            fprintf(out, "    has no effect when %s\n", needs[i][1]);
}

bool config_help(FILE *out, const char *word) {
    char name[64];
    bool section = false, key = false;
    if (!word) {
        list_sections(out);
        return true;
    }
    Arena *a = arena_new();
    word += strncmp(word, "--", 2) ? 0 : 2;
    for (int k = 0; k < N_KEYS; k++) {
        const char *path = key_table[k].path;
        section_name(path, name);
        size_t n = strlen(word);
        if (strcmp(name, word) && (strncmp(path, word, n) || path[n] != '.')) continue;
        section = true;
        list_key(out, a, &key_table[k]);
    }
    for (int k = 0; k < N_KEYS && !section; k++) {
        if (!is_key(&key_table[k], word)) continue;
        list_key(out, a, &key_table[k]);
        list_more(out, &key_table[k]);
        key = true;
    }
    arena_free(a);
    return section || key;
}

/* A table cell: '|' would end it. */
static void write_cell(FILE *out, const char *s) {
    fputc(' ', out);
    for (; *s; s++) {
        if (*s == '|') fputc('\\', out);
        fputc(*s, out);
    }
    fputs(" |", out);
}

static void write_other_names(FILE *out) {
    fputs("\n## Other names\n\n| name | key |\n|---|---|\n", out);
    for (int i = 0; i < n_key_aliases; i++)
        fprintf(out, "| `%s` | `%s` |\n", key_aliases[i].path, key_aliases[i].target);
}

/* A table for each kind of model that has any. */
static void write_model_defaults(FILE *out, Arena *a) {
    const Key *type = &key_table[key_find("model.model_config.type")];
    Config *cfg = NEW(a, Config);
    for (int i = 0; i < n_key_defaults; i++) {
        const KeyDefault *d = &key_defaults[i];
        cfg->model_type = d->model;
        if (!i || d->model != d[-1].model)
            fprintf(out, "\n## Defaults of a %s\n\n| key | default |\n|---|---|\n",
                    key_text(a, type, cfg, false));
        fprintf(out, "| `%s` | %s |\n", d->path, d->def);
    }
}

static void write_needs(FILE *out) {
    fputs("\n## Keys that act only with others\n\n| key | has no effect when "
          "|\n|---|---|\n",
          out);
    for (int i = 0; i < ARRAY_LEN(needs); i++)
        fprintf(out, "| `%s` | %s |\n", needs[i][0], needs[i][1]);
}

static const char page_head[] =
    "# Configuration keys\n\n"
    "Every key of a configuration file, and every flag: `--section.key VALUE`.\n"
    "This page is made from `frontend/config/keys.def` and `keys_elsewhere.def`; change "
    "it "
    "there.\n\n"
    "A file may name others to start from: `base_config: [a.yaml, b.yaml]`, relative to\n"
    "itself. Of two base files the later one replaces whole sections of the earlier "
    "one;\n"
    "the file itself goes over them key by key; flags go over everything, also over "
    "what\n"
    "files say of the same thing under another name (`micro_batch_num`,\n"
    "`grad_accumulation_step`, `gradient_accumulation_steps`) or in other words\n"
    "(`optimizer.betas`, `beta1`), as the file does over its base files. Lists are\n"
    "replaced, not joined. Other relative paths (`data_path`, `dataset_dir`,\n"
    "`tokenizer_file`, `init_from`, `output_dir`, ...) count from the folder that the\n"
    "command is started in; `model.file`, `context.machine` and the `.csv` of a\n"
    "schedule are looked for beside the file that names them first.\n\n"
    "The last column says what happens to a key: it *works*; it is *mapped* to another\n"
    "key; or it *always* has one value. Keys of MindFormers that change nothing here "
    "have\n"
    "a table of their own after the sections. Many keys act only together with others: "
    "a\n"
    "further table says when not, and so does a line of a run or a plan in which such a "
    "key\n"
    "is given.\n";

static const char elsewhere_head[] =
    "\n## Keys that change nothing here\n\n"
    "They are known, so that a configuration written for MindFormers is read. A key has "
    "*no\n"
    "effect* (one line says so); or *only* its default is accepted; or what it asks for "
    "is\n"
    "*not there yet*, so that only its default is accepted.\n";

static void write_columns(FILE *out) {
    fputs("\n| key | value | default | meaning | state |\n|---|---|---|---|---|\n", out);
}

static void write_row(FILE *out, Arena *a, const Key *key) {
    fprintf(out, "| `%s` |", key->path);
    write_cell(out, values_text(a, key));
    write_cell(out, key->def);
    write_cell(out, key->doc);
    write_cell(out, category_text(a, key));
    fputc('\n', out);
}

void config_write_docs(FILE *out) {
    char name[64], before[64] = "";
    Arena *a = arena_new();
    fputs(page_head, out);
    for (int k = 0; k < N_KEYS; k++) {
        if (!key_acts(&key_table[k])) continue;
        section_name(key_table[k].path, name);
        if (strcmp(name, before)) {
            fprintf(out, "\n## %s\n", name);
            write_columns(out);
        }
        strcpy(before, name);
        write_row(out, a, &key_table[k]);
    }
    fputs(elsewhere_head, out);
    write_columns(out);
    for (int k = 0; k < N_KEYS; k++)
        if (!key_acts(&key_table[k])) write_row(out, a, &key_table[k]);
    write_needs(out);
    write_other_names(out);
    write_model_defaults(out, a);
    arena_free(a);
}
