/* config_print.c - the configuration as YAML, the key table as help. */
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

/* With given keys as they are written: what is derived from them is derived anew where the text is
 * read, beside other flags. */
static const Config *as_written(const Config *cfg) {
    Arena *mem = cfg->state->mem;
    Config *written = NEW(mem, Config);
    *written = *cfg;
    for (int k = 0; k < N_KEYS; k++) {
        const Setting *s = &cfg->state->settings[k];
        if (s->value) key_store(mem, &key_table[k], s->name, s->value, written);
    }
    return written;
}

static void print_keys(const Config *cfg, bool given_alone, Text *out) {
    const char *before = "";
    const Config *written = as_written(cfg);
    int order[N_KEYS];
    key_order(order);
    for (int i = 0; i < N_KEYS; i++) {
        int k = order[i];
        const Key *key = &key_table[k];
        bool is_given = cfg->state->settings[k].value != NULL;
        bool idle = key->kind == KIND_Tree || key->cat != CAT_WORKS;
        if (!is_given && (given_alone || idle)) continue;
        if (key->kind == KIND_Tree && key_has_keys(key->path))
            continue; /* their section is there */
        int indent = open_sections(out, before, key->path);
        text_add(out, "%*s%s%s: %s\n", indent, "", is_given ? "" : "# ",
                 key->path + section_bytes(key->path),
                 key_text(cfg->state->mem, key, written, true));
        before = key->path;
    }
}

void config_print(const Config *cfg, Text *out) {
    print_keys(cfg, false, out);
}

void config_print_given(const Config *cfg, Text *out) {
    print_keys(cfg, true, out);
}

void config_print_run(const Config *cfg, const char *from, Text *out) {
    Config *run = NEW(cfg->state->mem, Config);
    *run = *cfg;
    run->state = NEW(cfg->state->mem, ConfigState);
    *run->state = *cfg->state;
    if (strcmp(cfg->resume, "auto") != 0) config_set_given(run, "resume", "auto");
    if (from) config_set_given(run, "resume_or_finetune_checkpoint", from);
    config_print(run, out);
}

void config_section_name(const char *path, char name[64]) {
    size_t n = strcspn(path, ".");
    if (!path[n]) path = "run", n = 3;
    check(n < 64);
    memcpy(name, path, n);
    name[n] = 0;
}

const char *config_category_text(Arena *a, const Key *key) {
    static const char *const words[] = {
        [CAT_WORKS] = "works",   [CAT_MAPPED] = "mapped",
        [CAT_FIXED] = "always ", [CAT_NO_EFFECT] = "no effect",
        [CAT_REFUSED] = "only ", [CAT_NOT_YET] = "not there yet"};
    bool is_one = key->cat == CAT_FIXED || key->cat == CAT_REFUSED;
    return arena_printf(a, "%s%s%s%s", words[key->cat], is_one ? key->def : "",
                        key->cat == CAT_WORKS ? "" : ": ", key->why);
}

const char *config_values_text(Arena *a, const Key *key) {
    const char *range = key_range_text(a, key);
    if (key->kind == KIND_Enum) return range;
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
        config_section_name(key_table[order[k]].path, name);
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
    fprintf(out, "--%s  (%s)\n    %s\n", key->path, config_values_text(a, key), key->doc);
    if (key->def[0]) fprintf(out, "    default %s\n", key->def);
    if (key->cat != CAT_WORKS) fprintf(out, "    %s\n", config_category_text(a, key));
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
    word += begins_with(word, "--") ? 2 : 0;
    for (int k = 0; k < N_KEYS; k++) {
        const char *path = key_table[k].path;
        config_section_name(path, name);
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
