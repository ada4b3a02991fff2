/* key.c - the key table as data, and how values of each type are read and written. */
#include "frontend/config/key.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* Enumerations: the values of each by the name of its type. */
#define ENUM(type, values, ...) static const char values_##type[] = values;
#include "frontend/config/keys.def"

#define WORKS          CAT_WORKS, ""
#define MAPPED(why)    CAT_MAPPED, why
#define FIXED(why)     CAT_FIXED, why
#define NO_EFFECT(why) CAT_NO_EFFECT, why
#define REFUSED(why)   CAT_REFUSED, why
#define NOT_YET(what)  CAT_NOT_YET, what

enum {
    KIND_Bool = KIND_BOOL,
    KIND_Int = KIND_INT,
    KIND_Float = KIND_FLOAT,
    KIND_Text = KIND_TEXT,
    KIND_Memory = KIND_MEMORY,
    KIND_IntList = KIND_INT_LIST,
    KIND_TextList = KIND_TEXT_LIST
};

const Key key_table[N_KEYS] = {
#define KEY(path, field, type, def, range, cat_why, doc)                                 \
    {path, (KeyKind)KIND_##type, offsetof(Config, field), def, range, cat_why, doc},
#define KEY_ENUM(path, field, type, def, cat_why, doc)                                   \
    {path, KIND_ENUM, offsetof(Config, field), def, values_##type, cat_why, doc},
#define KEY_TREE(path, cat_why, doc) {path, KIND_TREE, 0, "", "", cat_why, doc},
#include "frontend/config/keys.def"
};

const KeyAlias key_aliases[] = {
#define ALIAS(path, target, doc) {path, target},
#include "frontend/config/keys.def"
};
const int n_key_aliases = ARRAY_LEN(key_aliases);

const KeyDefault key_defaults[] = {
#define DEFAULT(model, path, def) {model, path, def},
#include "frontend/config/keys.def"
};
const int n_key_defaults = ARRAY_LEN(key_defaults);

int key_find(const char *path) {
    for (int i = 0; i < n_key_aliases; i++) {
        if (!strcmp(key_aliases[i].path, path)) {
            path = key_aliases[i].target;
            break;
        }
    }
    for (int i = 0; i < N_KEYS; i++) {
        if (!strcmp(key_table[i].path, path)) return i;
    }
    return -1;
}

bool key_is_section(const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < N_KEYS + n_key_aliases; i++) {
        const char *p = i < N_KEYS ? key_table[i].path : key_aliases[i - N_KEYS].path;
        if (!strncmp(p, path, n) && p[n] == '.') return true;
    }
    return false;
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
    return near ? near : nearest_last(last_part(path), names, n);
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

const char *key_kind_name(KeyKind kind) {
    static const char *const names[] = {
        [KIND_BOOL] = "True or False",
        [KIND_INT] = "a whole number",
        [KIND_FLOAT] = "a number",
        [KIND_TEXT] = "a text",
        [KIND_MEMORY] = "a size such as 30GB",
        [KIND_INT_LIST] = "a list of whole numbers",
        [KIND_TEXT_LIST] = "a list of texts",
        [KIND_ENUM] = "one of its values",
        [KIND_TREE] = "a section",
    };
    return names[kind];
}

/* Walks "a a_too|b": the next spelling into word[]; *index is its value's number. */
static const char *next_word(const char *p, char word[64], int *index) {
    if (*p == '|') ++*index;
    if (*p == '|' || *p == ' ') p++;
    size_t n = strcspn(p, "| ");
    check(n > 0 && n < 64);
    memcpy(word, p, n);
    word[n] = 0;
    return p + n;
}

/* Number of the value that `s` spells, or -1. */
static int enum_find(const char *values, const char *s) {
    char word[64];
    int index = 0;
    for (const char *p = values; *p;) {
        p = next_word(p, word, &index);
        if (!strcmp(word, s)) return index;
    }
    return -1;
}

/* First spelling of value number `wanted`. */
static char *enum_name(Arena *a, const char *values, int wanted) {
    char word[64];
    int index = 0;
    for (const char *p = values; *p;) {
        p = next_word(p, word, &index);
        if (index == wanted) return arena_strdup(a, word);
    }
    die("value %d of %s", wanted, values);
}

char *key_range_text(Arena *a, const Key *key) {
    if (key->kind != KIND_ENUM) {
        const char *dots = strstr(key->range, "..");
        if (!dots) return "";
        if (dots == key->range) return arena_printf(a, "at most %s", dots + 2);
        char *low = arena_strndup(a, key->range, (size_t)(dots - key->range));
        return dots[2] ? arena_printf(a, "%s to %s", low, dots + 2)
                       : arena_printf(a, "at least %s", low);
    }
    Text t = text_new(a);
    int last = 0;
    for (const char *p = key->range; *p; p++) last += *p == '|';
    for (int i = 0; i <= last; i++)
        text_add(&t, "%s%s",
                 i == 0      ? ""
                 : i == last ? " or "
                             : ", ",
                 enum_name(a, key->range, i));
    return t.s;
}

static _Noreturn void wrong_type(const Key *key, const char *name, const YamlNode *node) {
    const char *hint = key->kind == KIND_INT && node->text[0] == '0' && node->text[1]
                           ? "numbers do not begin with 0"
                           : NULL;
    if (node->kind != NODE_TEXT)
        fail_at(EXIT_CONFIG, node->at, hint, "%s must be %s, not a %s", name,
                key_kind_name(key->kind), node->kind == NODE_MAP ? "section" : "list");
    fail_at(EXIT_CONFIG, node->at, hint, "%s must be %s, not \"%.100s\"", name,
            key_kind_name(key->kind), node->text);
}

static void check_range(const Key *key, const char *name, const YamlNode *node,
                        double v) {
    const char *dots = strstr(key->range, "..");
    if (!dots) return;
    bool low = dots == key->range || v >= strtod(key->range, NULL);
    bool high = !dots[2] || v <= strtod(dots + 2, NULL);
    if (low && high) return;
    Arena *a = arena_new();
    char range[96];
    snprintf(range, sizeof range, "%s", key_range_text(a, key));
    arena_free(a);
    fail_at(EXIT_CONFIG, node->at, NULL, "%s must be %s, not %.60s", name, range,
            node->text);
}

/* A number on its way from the text to `out`. */
typedef struct Digits {
    const char *s;
    char *out;
    size_t n;
} Digits;

enum { NUMBER_CHARS = 64, NUMBER_MOST = 60 };

static void take_char(Digits *d) {
    d->out[d->n++] = *d->s++;
}

static void take_sign(Digits *d) {
    if (*d->s == '+' || *d->s == '-') take_char(d);
}

static bool at_digit(const Digits *d) {
    return *d->s >= '0' && *d->s <= '9' && d->n < NUMBER_MOST;
}

/* Takes digits; how many. */
static int take_digits(Digits *d) {
    int taken = 0;
    for (; at_digit(d); taken++) take_char(d);
    return taken;
}

/* [+-] digits [. digits] [e [+-] digits], '_' between digits left out as in YAML 1.1,
 * into out[]. False for anything else; *whole: there were only digits. */
static bool number_syntax(const char *s, char out[NUMBER_CHARS], bool *whole) {
    Digits d = {.s = s, .out = out};
    *whole = true;
    take_sign(&d);
    int digits = take_digits(&d);
    for (; *d.s == '_' && digits && d.n < NUMBER_MOST; digits += take_digits(&d)) d.s++;
    if (*d.s == '.') {
        *whole = false;
        take_char(&d);
        digits += take_digits(&d);
    }
    if ((*d.s == 'e' || *d.s == 'E') && digits && d.n < NUMBER_MOST - 10) {
        *whole = false;
        take_char(&d);
        take_sign(&d);
        if (!take_digits(&d)) return false;
    }
    out[d.n] = 0;
    return !*d.s && digits > 0;
}

static bool parse_float(const char *s, double *v) {
    char text[64];
    bool whole;
    if (!number_syntax(s, text, &whole)) return false;
    *v = strtod(text, NULL);
    return isfinite(*v);
}

/* Whole numbers: 12, 1_000, 0x1f, and 1e4 or 12.0 when nothing is lost. A leading 0 is
 * refused: YAML 1.1 reads 017 as octal, people do not. */
static bool parse_int(const char *s, int64_t *v) {
    char text[64];
    bool whole;
    errno = 0;
    if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        if (!s[2] || strlen(s) > 18 || s[2 + strspn(s + 2, "0123456789abcdefABCDEF")])
            return false;
        *v = strtoll(s, NULL, 16);
        return errno == 0;
    }
    if (!number_syntax(s, text, &whole)) return false;
    const char *d = text + (text[0] == '+' || text[0] == '-');
    if (d[0] == '0' && d[1] >= '0' && d[1] <= '9') return false;
    if (whole) {
        *v = strtoll(text, NULL, 10);
        return errno == 0;
    }
    double f = strtod(text, NULL);
    if (!(fabs(f) <= 0x1p53) || f != floor(f)) return false;
    *v = (int64_t)f;
    return true;
}

static bool parse_bool(const char *s, bool *v) {
    static const char *const words[] = {"True", "true", "TRUE", "yes",   "Yes",   "YES",
                                        "on",   "On",   "ON",   "False", "false", "FALSE",
                                        "no",   "No",   "NO",   "off",   "Off",   "OFF"};
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(words[i], s)) continue;
        *v = i < 9;
        return true;
    }
    return false;
}

static const char memory_units[][3] = {"TB", "GB", "MB", "KB", "B"};

/* A number and a unit of 1024 steps: "30GB", "0.5GB", "64 MB". */
static bool parse_memory(const char *s, int64_t *v) {
    size_t n = strspn(s, "0123456789.");
    char number[64];
    double f;
    if (n == 0 || n >= sizeof number) return false;
    memcpy(number, s, n);
    number[n] = 0;
    if (!parse_float(number, &f)) return false;
    s += n + (s[n] == ' ');
    for (int i = 0; i < ARRAY_LEN(memory_units); i++) {
        if (strcmp(s, memory_units[i])) continue;
        int64_t unit = (int64_t)1 << (10 * (ARRAY_LEN(memory_units) - 1 - i)), whole;
        if (parse_int(number, &whole)) return !__builtin_mul_overflow(whole, unit, v);
        if (f * (double)unit >= 0x1p62) return false;
        *v = (int64_t)(f * (double)unit);
        return true;
    }
    return false;
}

static IntList store_int_list(Arena *a, const Key *key, const char *name,
                              const YamlNode *node) {
    const YamlNode *const single[] = {node};
    const YamlNode *const *items =
        node->kind == NODE_LIST ? (const YamlNode *const *)node->items : single;
    int n = node->kind == NODE_LIST ? node->n : 1;
    int64_t *out = NEW_ARRAY(a, int64_t, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (items[i]->kind != NODE_TEXT || !parse_int(items[i]->text, &out[i]))
            wrong_type(key, name, items[i]);
        check_range(key, name, items[i], (double)out[i]);
    }
    return (IntList){out, n};
}

static TextList store_text_list(Arena *a, const Key *key, const char *name,
                                const YamlNode *node) {
    const YamlNode *const single[] = {node};
    const YamlNode *const *items =
        node->kind == NODE_LIST ? (const YamlNode *const *)node->items : single;
    int n = node->kind == NODE_LIST ? node->n : 1;
    const char **out = NEW_ARRAY(a, const char *, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (items[i]->kind != NODE_TEXT) wrong_type(key, name, items[i]);
        out[i] = items[i]->text;
    }
    return (TextList){out, n};
}

static int store_enum(const Key *key, const char *name, const YamlNode *node) {
    int value = enum_find(key->range, node->text);
    if (value >= 0) return value;
    Arena *a = arena_new();
    const char *words[32];
    char word[64], hint[96], range[512];
    int n = 0, index = 0;
    for (const char *p = key->range; *p && n < 32;) {
        p = next_word(p, word, &index);
        words[n++] = arena_strdup(a, word);
    }
    const char *near = key_foreign(node->text);
    if (!near || enum_find(key->range, near) < 0)
        near = nearest_name(node->text, words, n);
    snprintf(hint, sizeof hint, "did you mean %s?", near ? near : "");
    snprintf(range, sizeof range, "%s", key_range_text(a, key));
    bool hinted = near != NULL;
    arena_free(a);
    fail_at(EXIT_CONFIG, node->at, hinted ? hint : NULL, "%s must be %s, not \"%.100s\"",
            name, range, node->text);
}

/* Of the kinds that are one word; any text is good for the others. */
static bool parse_word(KeyKind kind, const char *text, void *field) {
    switch (kind) {
    case KIND_BOOL:
        return parse_bool(text, field);
    case KIND_INT:
        return parse_int(text, field);
    case KIND_FLOAT:
        return parse_float(text, field);
    case KIND_MEMORY:
        return parse_memory(text, field);
    default:
        return true;
    }
}

static bool is_list(const Key *key) {
    return key->kind == KIND_INT_LIST || key->kind == KIND_TEXT_LIST;
}

void key_store(Arena *a, const Key *key, const char *name, const YamlNode *node,
               Config *cfg) {
    void *field = (char *)cfg + key->offset;
    if (key->kind == KIND_TREE) return;
    bool one = node->kind == NODE_TEXT;
    if (node->kind == NODE_MAP || (!one && !is_list(key)) ||
        (one && !parse_word(key->kind, node->text, field)))
        wrong_type(key, name, node);
    if (key->kind == KIND_INT) check_range(key, name, node, (double)*(int64_t *)field);
    if (key->kind == KIND_FLOAT) check_range(key, name, node, *(double *)field);
    if (key->kind == KIND_TEXT) *(KeyText *)field = node->text;
    if (key->kind == KIND_INT_LIST)
        *(IntList *)field = store_int_list(a, key, name, node);
    if (key->kind == KIND_TEXT_LIST)
        *(TextList *)field = store_text_list(a, key, name, node);
    if (key->kind != KIND_ENUM) return;
    int value = store_enum(key, name, node);
    memcpy(field, &value, sizeof value); /* an enum type is an int in size */
}

_Static_assert(sizeof(Activation) == sizeof(int), "key_store writes enums as int");

void key_store_text(Arena *a, const Key *key, const char *text, Config *cfg) {
    SourcePos at = {.file = "default"};
    YamlNode *node = is_list(key) ? yaml_parse(a, "default", text, strlen(text))
                                  : yaml_scalar(a, text, at);
    key_store(a, key, key->path, node, cfg);
}

/* Shortest decimal that reads back as v. */
static char *float_text(Arena *a, double v) {
    char s[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v) break;
    }
    return arena_strdup(a, s);
}

static char *memory_text(Arena *a, int64_t v) {
    int unit = ARRAY_LEN(memory_units) - 1;
    for (; unit > 0 && v && v % 1024 == 0; unit--) v /= 1024;
    return arena_printf(a, "%lld%s", (long long)v, memory_units[unit]);
}

static void add_text(Text *t, const char *s, bool yaml) {
    if (yaml) {
        yaml_quote(t, s);
    } else {
        text_add_bytes(t, s, strlen(s));
    }
}

static char *ints_text(Arena *a, const IntList *l) {
    Text t = text_new(a);
    for (int i = 0; i < l->n; i++)
        text_add(&t, "%s%lld", i ? ", " : "[", (long long)l->items[i]);
    text_add(&t, l->n ? "]" : "[]");
    return t.s;
}

static char *texts_text(Arena *a, const TextList *l, bool yaml) {
    Text t = text_new(a);
    for (int i = 0; i < l->n; i++) {
        text_add(&t, i ? ", " : "[");
        add_text(&t, l->items[i], yaml);
    }
    text_add(&t, l->n ? "]" : "[]");
    return t.s;
}

char *key_text(Arena *a, const Key *key, const Config *cfg, bool yaml) {
    const void *field = (const char *)cfg + key->offset;
    Text t = text_new(a);
    int value;
    switch (key->kind) {
    case KIND_BOOL:
        return *(const bool *)field ? "True" : "False";
    case KIND_INT:
        return arena_printf(a, "%lld", (long long)*(const int64_t *)field);
    case KIND_FLOAT:
        return float_text(a, *(const double *)field);
    case KIND_MEMORY:
        return memory_text(a, *(const int64_t *)field);
    case KIND_TREE:
        return "{}";
    case KIND_TEXT:
        add_text(&t, *(const KeyText *)field, yaml);
        return t.s;
    case KIND_ENUM:
        memcpy(&value, field, sizeof value);
        return enum_name(a, key->range, value);
    case KIND_INT_LIST:
        return ints_text(a, field);
    case KIND_TEXT_LIST:
        return texts_text(a, field, yaml);
    }
    return t.s;
}
