/* key.c - the key table as data. */
#include "frontend/config/key.h"

/* Enumerations: the values of each by the name of its type. */
#define ENUM(type, values, ...) static const char values_##type[] = values;
#include "frontend/config/keys.def"

#define WORKS          CAT_WORKS, ""
#define MAPPED(why)    CAT_MAPPED, why
#define FIXED(why)     CAT_FIXED, why
#define NO_EFFECT(why) CAT_NO_EFFECT, why
#define REFUSED(why)   CAT_REFUSED, why
#define NOT_YET(what)  CAT_NOT_YET, what

const Key key_table[N_KEYS] = {
#define KEY(path, field, type, def, range, cat_why, doc)                                 \
    {path, KIND_##type, offsetof(Config, field), def, range, cat_why, doc},
#define KEY_ENUM(path, field, type, def, cat_why, doc)                                   \
    {path, KIND_Enum, offsetof(Config, field), def, values_##type, cat_why, doc},
#define KEY_TREE(path, cat_why, doc) {path, KIND_Tree, 0, "", "", cat_why, doc},
#include "frontend/config/keys.def"
};

const KeyAlias key_aliases[] = {
#define ALIAS(path, target) {path, target},
#include "frontend/config/keys.def"
};
const int n_key_aliases = ARRAY_LEN(key_aliases);

const KeyDefault key_defaults[] = {
#define DEFAULT(model, path, def) {model, path, def},
#include "frontend/config/keys.def"
};
const int n_key_defaults = ARRAY_LEN(key_defaults);

/* Keys and, from N_KEYS on, aliases, by their paths: a search reads keys some ten thousand
 * times. */
enum { SLOTS = 4096, ALIASES = ARRAY_LEN(key_aliases) };
_Static_assert(2 * (N_KEYS + ALIASES) <= SLOTS, "room for keys and aliases");
static int16_t slots[SLOTS]; /* 1 + the number; 0: free */

static const char *path_of(int i) {
    return i < N_KEYS ? key_table[i].path : key_aliases[i - N_KEYS].path;
}

/* Where the path is, or would be. */
static int16_t *slot_of(const char *path) {
    uint64_t h = hash64(path, strlen(path));
    while (slots[h % SLOTS] && strcmp(path_of(slots[h % SLOTS] - 1), path)) h++;
    return &slots[h % SLOTS];
}

/* Of several of one path the first counts, and an alias before a key. */
static void fill_slots(void) {
    for (int k = 0; k < N_KEYS + ALIASES; k++) {
        int i = (k + N_KEYS) % (N_KEYS + ALIASES);
        int16_t *slot = slot_of(path_of(i));
        if (!*slot) *slot = (int16_t)(i + 1);
    }
}

int key_find(const char *path) {
    static bool filled;
    if (!filled) fill_slots();
    filled = true;
    int i = *slot_of(path) - 1;
    return i < N_KEYS ? i : *slot_of(key_aliases[i - N_KEYS].target) - 1;
}

const char *key_of_word(Arena *a, const char *word) {
    if (key_find(word) >= 0) return word;
    char *path = arena_strdup(a, word);
    for (char *p = path; *p; p++)
        if (*p == '-') *p = '_';
    return path;
}

bool key_has_keys(const char *path) {
    size_t n = strlen(path);
    for (int k = 0; k < N_KEYS; k++)
        if (!strncmp(key_table[k].path, path, n) && key_table[k].path[n] == '.')
            return true;
    return false;
}

bool key_is_section(const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < n_key_aliases; i++) {
        const char *p = key_aliases[i].path;
        if (!strncmp(p, path, n) && p[n] == '.') return true;
    }
    return key_has_keys(path);
}

static const char *last_part(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

const char *key_foreign(const char *word) {
    static const char *const rows[][2] = {
#define FOREIGN(name, meant) {name, meant},
#include "frontend/config/keys.def"
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++)
        if (!strcmp(rows[i][0], word)) return rows[i][1];
    return NULL;
}

/* A sentence about a flag of Megatron-LM; NULL: it is none. */
static const char *flag_of_megatron(const char *word) {
    static const char *const names[] = {
#define FLAG(name, ...) #name,
#include "frontend/config/megatron.def"
    };
    return is_one_of(word, names, ARRAY_LEN(names))
               ? "stator import makes a configuration of a command of Megatron-LM"
               : NULL;
}

bool key_acts(const Key *key) {
    return key->cat != CAT_NO_EFFECT && key->cat != CAT_REFUSED &&
           key->cat != CAT_NOT_YET;
}

static bool acts(const char *path) {
    return key_acts(&key_table[key_find(path)]);
}

/* Is no row above `k` in the section of its path's first `bytes`? */
static bool is_first_of(int k, size_t bytes) {
    for (int i = 0; i < k; i++)
        if (!strncmp(key_table[i].path, key_table[k].path, bytes)) return false;
    return true;
}

/* Adds the rows whose paths begin with `section`, of so many bytes; returns their number. */
static int add_section(const char *section, size_t bytes, int *order) {
    int n = 0;
    for (int k = 0; k < N_KEYS; k++) {
        const char *path = key_table[k].path;
        if (strncmp(path, section, bytes)) continue;
        const char *dot = strchr(path + bytes, '.');
        size_t inner = dot ? (size_t)(dot - path) + 1 : 0;
        if (!dot)
            order[n++] = k;
        else if (is_first_of(k, inner))
            n += add_section(path, inner, order + n);
    }
    return n;
}

void key_order(int order[N_KEYS]) {
    check(add_section("", 0, order) == N_KEYS);
}

/* The name whose last part is like `word`, which has no section. */
static const char *nearest_last(const char *word, const char *const *names, int n) {
    const char *last[N_KEYS + ARRAY_LEN(key_aliases)];
    for (int i = 0; i < n; i++) last[i] = last_part(names[i]);
    const char *near = nearest_name(word, last, n);
    for (int i = 0; i < n && near; i++)
        if (last[i] == near) return names[i];
    return NULL;
}

const char *key_nearest(const char *path) {
    const char *names[N_KEYS + ARRAY_LEN(key_aliases)];
    const char *foreign = key_foreign(last_part(path));
    int n = 0;
    if (foreign) return foreign;
    for (int i = 0; i < N_KEYS; i++)
        if (acts(key_table[i].path)) names[n++] = key_table[i].path;
    for (int i = 0; i < n_key_aliases; i++)
        if (acts(key_aliases[i].path)) names[n++] = key_aliases[i].path;
    for (int i = 0; i < n; i++) { /* the right word in the wrong section */
        if (strcmp(path, names[i]) && !strcmp(last_part(path), last_part(names[i])) &&
            strcmp(last_part(path), "type"))
            return names[i];
    }
    const char *near = nearest_name(path, names, n);
    if (!near) near = nearest_last(last_part(path), names, n);
    return near ? near : flag_of_megatron(last_part(path));
}

const char *key_nearest_section(Arena *a, const char *path) {
    const char *names[N_KEYS];
    int n = 0;
    for (int i = 0; i < N_KEYS; i++) {
        for (const char *dot = strchr(key_table[i].path, '.'); dot;
             dot = strchr(dot + 1, '.')) {
            size_t length = (size_t)(dot - key_table[i].path);
            char *name = arena_strndup(a, key_table[i].path, length);
            if (n < N_KEYS && !(n && !strcmp(names[n - 1], name))) names[n++] = name;
        }
    }
    return nearest_name(path, names, n);
}
