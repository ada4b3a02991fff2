/* config_load.c - files and base files to settings, in the order of precedence. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MAX_INCLUDES = 16, MAX_FILES = 64 };

/* What one file and its base files say. */
typedef struct Layer {
    Setting items[N_KEYS];
    bool seen[N_KEYS];       /* the key's top-level section is in it */
    bool replaces_callbacks; /* callbacks is a list: lists replace what was there */
} Layer;

typedef struct Loader {
    Arena *mem;
    ConfigState *state;
    const FileText *chain[MAX_INCLUDES]; /* files being read, outermost first */
    int depth, files;
    int whole;     /* files that are read to their end */
    bool includes; /* base_config is allowed */
} Loader;

static _Noreturn void unknown_section(Arena *a, const char *path, SourcePos at) {
    const char *near = key_nearest_section(a, path);
    fail_at(EXIT_CONFIG, at,
            near ? arena_printf(a, "did you mean %s?", near)
                 : "stator help lists the sections, as does docs/keys.md",
            "unknown section %.200s", path);
}

_Noreturn void config_unknown_key(Arena *a, const char *path, SourcePos at) {
    const char *near = key_nearest(path);
    bool is_key = near && key_find(near) >= 0;
    const char *hint = is_key ? arena_printf(a, "did you mean %s?", near)
                       : near ? near
                              : "stator help lists all keys, as does docs/keys.md";
    fail_at(EXIT_CONFIG, at, hint, "unknown key %.200s", path);
}

/* One key under two names in one file: only with equal values. */
static void check_twice(const Setting *old, const char *name, const YamlNode *value) {
    if (!old->set || !old->value) return;
    if (old->value->kind == NODE_TEXT && value->kind == NODE_TEXT &&
        key_same_value(old->value->text, value->text))
        return;
    fail_at(EXIT_CONFIG, value->at, "keep one of the two",
            "%s disagrees with %s in line %d: both set the same", name, old->name,
            old->value->at.line);
}

static void layer_set(Layer *l, int k, const char *name, const YamlNode *value) {
    check_twice(&l->items[k], name, value);
    l->items[k] = (Setting){yaml_is_null(value) ? NULL : value, name, true, 0};
    l->seen[k] = true;
}

static void read_section(Loader *ld, Layer *l, const YamlNode *map, const char *prefix,
                         const char *skip);

/* One entry of a map, or of the list of callbacks. */
typedef struct Entry {
    Loader *ld;
    Layer *l;
    const YamlNode *key, *value;
    const char *prefix;
    bool *had; /* of the callbacks */
} Entry;

/* Keys and other names of keys that lie within a section which is else taken as a whole. */
static void read_within(const Entry *e, const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < N_KEYS + n_key_aliases; i++) {
        const char *name = i < N_KEYS ? key_table[i].path : key_aliases[i - N_KEYS].path;
        if (strncmp(name, path, n) != 0 || name[n] != '.') continue;
        const YamlNode *at = e->value;
        for (const char *p = name + n; at && *p; p += 1 + strcspn(p + 1, ".")) {
            const char *part = arena_strndup(e->ld->mem, p + 1, strcspn(p + 1, "."));
            at = at->kind == NODE_MAP ? yaml_get(at, part) : NULL;
        }
        bool none = at && at->kind == NODE_TEXT && !strcmp(at->text, "None");
        if (at && !none) layer_set(e->l, key_find(name), name, at);
    }
}

/* Is there more in a section that is taken as a whole than keys that act? */
static bool holds_more(Arena *mem, const YamlNode *value, const char *path) {
    if (value->kind != NODE_MAP) return !yaml_is_null(value);
    for (int i = 0; i < value->n; i++) {
        const char *name = value->keys[i]->text;
        const char *inner = arena_printf(mem, "%s.%s", path, name);
        if (!strchr(name, '.') && key_find(inner) >= 0) continue;
        if (!key_is_section(inner) || holds_more(mem, value->items[i], inner))
            return true;
    }
    return false;
}

static void read_entry(void *context) {
    const Entry *e = context;
    const YamlNode *value = e->value;
    const char *key = e->key->text, *prefix = e->prefix;
    if (strchr(key, '.'))
        fail_at(EXIT_CONFIG, e->key->at,
                "in a file sections are nested; a.b.c is for the command line",
                "a key with a dot: %.128s", key);
    if (!strcmp(prefix, "callbacks") && !strcmp(key, "CheckpointMointor"))
        key = "CheckpointMonitor";
    const char *path = prefix[0] ? arena_printf(e->ld->mem, "%s.%s", prefix, key) : key;
    bool holds_keys = value->kind == NODE_MAP || yaml_is_null(value);
    int k = key_find(path);
    bool tree = k >= 0 && key_table[k].kind == KIND_Tree;
    /* scale_sense is a number, or a section */
    if (holds_keys && !tree && key_is_section(path)) k = -1;
    if (k >= 0) {
        if (!tree || !key_has_keys(path) || holds_more(e->ld->mem, value, path))
            layer_set(e->l, k, path, value);
        if (tree) read_within(e, path);
    } else if (!key_is_section(path) && value->kind == NODE_MAP && !key_foreign(key)) {
        unknown_section(e->ld->mem, path, e->key->at);
    } else if (!key_is_section(path)) {
        config_unknown_key(e->ld->mem, path, e->key->at);
    } else if (value->kind == NODE_MAP) {
        read_section(e->ld, e->l, value, path, NULL);
    } else if (!yaml_is_null(value)) {
        fail_at(EXIT_CONFIG, value->at, NULL, "%s is a section of keys, not a %s", path,
                value->kind == NODE_LIST ? "list" : "value");
    }
}

/* Reads the map at `prefix`. Goes down only where the key table has sections, so its
 * depth is that of the table, whatever the input. `skip` is a key to leave out. */
static void read_section(Loader *ld, Layer *l, const YamlNode *map, const char *prefix,
                         const char *skip) {
    for (int i = 0; i < map->n; i++) {
        Entry e = {ld, l, map->keys[i], map->items[i], prefix, NULL};
        if (skip && !strcmp(e.key->text, skip)) continue;
        config_try(ld->state, read_entry, &e);
    }
}

static const char *const callback_names[] = {"CheckpointMonitor", "MFLossMonitor",
                                             "SummaryMonitor", "ObsMonitor"};

static void read_callback(void *context) {
    const Entry *e = context;
    const YamlNode *item = e->value;
    const YamlNode *type = item->kind == NODE_MAP ? yaml_get(item, "type") : NULL;
    if (!type || type->kind != NODE_TEXT)
        fail_at(EXIT_CONFIG, item->at, "- type: CheckpointMonitor",
                "each of the callbacks is a map with a type");
    bool misspelled = !strcmp(type->text, "CheckpointMointor");
    const char *name = misspelled ? callback_names[0] : type->text;
    int j = 0;
    while (j < ARRAY_LEN(callback_names) && strcmp(name, callback_names[j])) j++;
    if (j == ARRAY_LEN(callback_names))
        fail_at(EXIT_CONFIG, type->at,
                "CheckpointMonitor, MFLossMonitor, SummaryMonitor or ObsMonitor",
                "unknown callback %.100s", name);
    if (e->had[j])
        fail_at(EXIT_CONFIG, type->at, "keep one of the two", "a second %s", name);
    e->had[j] = true;
    const char *path = arena_printf(e->ld->mem, "callbacks.%s", name);
    int k = key_find(path);
    if (k >= 0) {
        layer_set(e->l, k, path, item);
    } else {
        read_section(e->ld, e->l, item, path, "type");
    }
}

/* MindFormers' form: a list of maps, each with a type and that type's keys. */
static void read_callbacks(Loader *ld, Layer *l, const YamlNode *list) {
    bool had[ARRAY_LEN(callback_names)] = {false};
    l->replaces_callbacks = true;
    for (int i = 0; i < list->n; i++) {
        Entry e = {ld, l, NULL, list->items[i], "callbacks", had};
        config_try(ld->state, read_callback, &e);
    }
}

/* Marks the keys of every top-level section that is in the file. */
static void mark_sections(Layer *l, const YamlNode *root) {
    for (int i = 0; i < root->n; i++) {
        const char *name = root->keys[i]->text;
        size_t n = strlen(name);
        for (int k = 0; k < N_KEYS; k++) {
            const char *path = key_table[k].path;
            if (!strncmp(path, name, n) && (path[n] == '.' || !path[n]))
                l->seen[k] = true;
        }
    }
}

static void load_file(Loader *ld, const char *path, const SourcePos *from, Layer *out);

/* A file's bases one after the other: a section of a later one replaces the whole
 * section of an earlier one. */
static void load_bases(Loader *ld, const YamlNode *node, Layer *out) {
    const YamlNode *const single[] = {node};
    bool list = node->kind == NODE_LIST;
    int n = list ? node->n : 1;
    if (!ld->includes)
        fail_at(EXIT_CONFIG, node->at, NULL, "base_config is not allowed here");
    for (int i = 0; i < n; i++) {
        const YamlNode *name = list ? node->items[i] : single[0];
        if (name->kind != NODE_TEXT || !name->text[0])
            fail_at(EXIT_CONFIG, name->at, NULL,
                    "base_config must be a path or a list "
                    "of paths");
        const char *file = ld->chain[ld->depth - 1]->path;
        const char *dir = strchr(file, '/') ? path_folder(ld->mem, file) : "";
        Layer *base = NEW(ld->mem, Layer);
        load_file(ld, path_join(ld->mem, dir, name->text), &name->at, base);
        for (int k = 0; k < N_KEYS; k++) {
            if (!base->seen[k]) continue;
            out->items[k] = base->items[k];
            out->seen[k] = true;
        }
    }
}

/* Without the entries that are read in another way: bases, and callbacks as a list. */
static YamlNode *plain_sections(Loader *ld, const YamlNode *root, bool list) {
    YamlNode *rest = NEW(ld->mem, YamlNode);
    rest->kind = NODE_MAP;
    for (int i = 0; i < root->n; i++) {
        const char *key = root->keys[i]->text;
        if (!strcmp(key, "base_config") || (list && !strcmp(key, "callbacks"))) continue;
        int n = rest->n;
        PUSH(ld->mem, rest->keys, n, rest->keys_cap, root->keys[i]);
        PUSH(ld->mem, rest->items, rest->n, rest->cap, root->items[i]);
    }
    return rest;
}

/* The bases, then the file itself over them key by key. */
static void load_tree(Loader *ld, const YamlNode *root, Layer *out) {
    if (root->kind != NODE_MAP)
        fail_at(EXIT_CONFIG, root->at, "section:\n        key: value",
                "a configuration is a map of sections");
    const YamlNode *bases = yaml_get(root, "base_config");
    const YamlNode *callbacks = yaml_get(root, "callbacks");
    bool list = callbacks && callbacks->kind == NODE_LIST;
    if (bases && !yaml_is_null(bases)) load_bases(ld, bases, out);
    Layer *own = NEW(ld->mem, Layer);
    read_section(ld, own, plain_sections(ld, root, list), "", NULL);
    if (list) read_callbacks(ld, own, callbacks);
    mark_sections(own, root);
    ld->whole++;
    for (int k = 0; k < N_KEYS; k++) {
        own->items[k].height = ld->whole;
        bool cleared =
            own->replaces_callbacks && begins_with(key_table[k].path, "callbacks.");
        if (own->items[k].set || cleared) out->items[k] = own->items[k];
        out->seen[k] |= own->seen[k];
    }
}

static _Noreturn void include_error(const char *path, const SourcePos *from,
                                    const char *what) {
    if (from) fail_at(EXIT_CONFIG, *from, NULL, "%.500s: %s", path, what);
    fail(EXIT_CONFIG, "%.500s: %s", path, what);
}

/* A run's folder has a configuration in it, one of Hugging Face's a model. */
static const char *folder_is_no_file(Arena *mem, const char *path) {
    const char *own = path_join(mem, path, RUN_CONFIG);
    if (file_exists(own))
        return arena_printf(mem, "a folder; its configuration is %s", own);
    if (folder_has(mem, path, "config.json"))
        return "a folder of a model: --init_from takes it, beside a configuration";
    return "a folder, not a file";
}

/* What another kind of file is, and who takes it, by the end of its name; NULL: of none. */
static const char *other_kind(const char *path) {
    static const char weights[] = "weights, not a configuration: stator predict and "
                                  "--init_from take the folder that they are in";
    static const char tokenizer[] = "a tokenizer, not a configuration: --tokenizer_file "
                                    "takes a tokenizer.json, beside one";
    static const char *const kinds[][2] = {
        {".safetensors", weights},
        {".safetensors.index.json", weights},
        {".bin.index.json", weights},
        {".bin", "weights or tokens, not a configuration: stator predict and --init_from "
                 "take the folder of weights, --dataset_dir tokens, beside one"},
        {".idx", "tokens, not a configuration: --dataset_dir takes them, beside one"},
        {".npy", "data, not a configuration: --dataset_dir takes the folder, beside one"},
        {".jsonl", "lines of JSON, not a configuration: --dataset_dir takes data, beside "
                   "one"},
        {".ir", "a module, not a configuration: model.file of one names it"},
        {"tokenizer.json", tokenizer},
        {"vocab.json", tokenizer},
        {"merges.txt", tokenizer}};
    for (int i = 0; i < ARRAY_LEN(kinds); i++)
        if (ends_with(path, kinds[i][0])) return kinds[i][1];
    return NULL;
}

/* Hugging Face's config.json, all of whose keys would be told to be unknown. */
static bool is_model_folder_file(const YamlNode *root) {
    return root->kind == NODE_MAP && yaml_get(root, "model_type") &&
           !yaml_get(root, "model");
}

static void read_text(FileText *t, Arena *mem, const SourcePos *from) {
    const char *path = t->path;
    char real[PATH_MAX];
    struct stat st;
    if (stat(path, &st) != 0) include_error(path, from, "there is no such file");
    if (S_ISDIR(st.st_mode)) include_error(path, from, folder_is_no_file(mem, path));
    if (!S_ISREG(st.st_mode))
        include_error(path, from,
                      "a pipe or a device: a configuration is read more than once, so "
                      "write it to a file");
    if (other_kind(path)) include_error(path, from, other_kind(path));
    if (!realpath(path, real)) include_error(path, from, strerror(errno));
    t->real = arena_strdup(mem, real);
    t->text = file_read(mem, path, YAML_MAX_BYTES, &t->bytes, EXIT_CONFIG);
    if (memchr(t->text, 0, t->bytes))
        include_error(path, from,
                      "bytes that are no text, or text in UTF-16: a configuration is "
                      "YAML in UTF-8");
}

static const FileText *text_of(ConfigFiles *f, const char *path, const SourcePos *from) {
    FileText *t = f->text;
    while (t && strcmp(t->path, path) != 0) t = t->next;
    if (t) return t;
    t = NEW(f->mem, FileText);
    *t = (FileText){.path = arena_strdup(f->mem, path), .next = f->text};
    read_text(t, f->mem, from);
    return f->text = t;
}

/* `from` is where base_config names the file, NULL for the first one. */
static void load_file(Loader *ld, const char *path, const SourcePos *from, Layer *out) {
    const FileText *t = text_of(ld->state->files, path, from);
    for (int i = 0; i < ld->depth; i++)
        if (!strcmp(ld->chain[i]->real, t->real))
            include_error(path, from, "base_config comes back to a file being read");
    if (ld->depth == MAX_INCLUDES)
        include_error(path, from, "more than 16 levels of files");
    if (ld->files++ == MAX_FILES) include_error(path, from, "more than 64 files");
    const YamlNode *root = yaml_parse(ld->mem, path, t->text, t->bytes);
    if (is_model_folder_file(root))
        include_error(
            path, from,
            "the config.json of a model, not a configuration: --init_from takes "
            "its folder, beside one");
    ld->chain[ld->depth++] = t;
    load_tree(ld, root, out);
    ld->depth--;
}

void config_read_file(ConfigState *s, const char *path) {
    Loader ld = {.mem = s->mem, .state = s, .includes = true};
    Layer *layer = NEW(s->mem, Layer);
    s->file = path;
    load_file(&ld, path, NULL, layer);
    memcpy(s->settings, layer->items, sizeof s->settings);
}

void config_read_text(ConfigState *s, const char *name, const char *text, size_t n) {
    Loader ld = {.mem = s->mem, .state = s};
    Layer *layer = NEW(s->mem, Layer);
    load_tree(&ld, yaml_parse(s->mem, name, text, n), layer);
    memcpy(s->settings, layer->items, sizeof s->settings);
}
