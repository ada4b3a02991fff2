/* key_value.c - how values of each type of the key table are read and written. */
#include "frontend/config/key.h"
#include <stdlib.h>

const char *key_kind_name(KeyKind kind) {
    static const char *const names[] = {
        [KIND_Bool] = "True or False",
        [KIND_Int] = "a whole number",
        [KIND_Float] = "a number",
        [KIND_Text] = "a text",
        [KIND_Memory] = "a size such as 30GB (1024 MB each), or 0",
        [KIND_IntList] = "a list of whole numbers",
        [KIND_IntTable] = "a list of lists of whole numbers",
        [KIND_TextList] = "a list of texts",
        [KIND_Enum] = "one of its values",
        [KIND_Tree] = "a section",
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

/* Takes the number that is good besides, "-1 0..10", off `range`; its bytes. */
static size_t take_besides(const char **range) {
    const char *blank = strchr(*range, ' ');
    size_t n = blank ? (size_t)(blank - *range) : 0;
    if (blank) *range = blank + 1;
    return n;
}

static char *number_range_text(Arena *a, const char *range) {
    const char *first = range;
    size_t besides = take_besides(&range);
    bool above = range[0] == '>';
    const char *low = range + above, *dots = strstr(low, "..");
    if (!dots) return "";
    bool least = dots > low, most = dots[2] != 0;
    const char *before = above ? "above " : !least ? "at most " : most ? "" : "at least ";
    const char *between = !least || !most ? "" : above ? ", up to " : " to ";
    return arena_printf(a, "%.*s%s%s%.*s%s%s", (int)besides, first, besides ? " or " : "",
                        before, (int)(dots - low), low, between, dots + 2);
}

char *key_range_text(Arena *a, const Key *key) {
    if (key->kind != KIND_Enum) return number_range_text(a, key->range);
    Text t = text_new(a);
    int n = 1;
    for (const char *p = key->range; *p; p++) n += *p == '|';
    for (int i = 0; i < n; i++)
        text_add(&t, "%s%s", choice_joint(i, n), enum_name(a, key->range, i));
    return t.s;
}

static _Noreturn void wrong_type(const Key *key, const char *name, const YamlNode *node) {
    const char *hint = key->kind == KIND_Int && node->text[0] == '0' && node->text[1]
                           ? "numbers do not begin with 0"
                           : NULL;
    if (node->kind != NODE_TEXT)
        fail_at(EXIT_CONFIG, node->at, hint, "%s must be %s, not a %s", name,
                key_kind_name(key->kind), node->kind == NODE_MAP ? "section" : "list");
    fail_at(EXIT_CONFIG, node->at, hint, "%s must be %s, not \"%.100s\"", name,
            key_kind_name(key->kind), node->text);
}

bool key_in_range(const Key *key, double v) {
    const char *range = key->range, *first = range;
    if (take_besides(&range) && v == strtod(first, NULL)) return true;
    bool above = range[0] == '>';
    const char *dots = strstr(range, "..");
    double least = strtod(range + above, NULL);
    return !dots || ((dots == range || (above ? v > least : v >= least)) &&
                     (!dots[2] || v <= strtod(dots + 2, NULL)));
}

static void check_range(const Key *key, const char *name, const YamlNode *node,
                        double v) {
    if (key_in_range(key, v)) return;
    Arena *a = arena_new();
    char range[96];
    snprintf(range, sizeof range, "%s", key_range_text(a, key));
    arena_free(a);
    fail_at(EXIT_CONFIG, node->at, NULL, "%s must be %s, not %.60s", name, range,
            node->text);
}

bool key_parse_bool(const char *s, bool *v) {
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

/* Steps of 1024 to the unit that `s` names, as KB or KiB; -1: to none. */
static int unit_steps(const char *s) {
    for (int i = 0; i < ARRAY_LEN(memory_units); i++) {
        const char *unit = memory_units[i];
        bool binary = unit[1] && s[0] == unit[0] && s[1] == 'i' && !strcmp(s + 2, "B");
        if (binary || !strcmp(s, unit)) return ARRAY_LEN(memory_units) - 1 - i;
    }
    return -1;
}

/* A number and a unit in steps of 1024: "30GB", "0.5GiB", "64 MB"; or 0. */
static bool parse_memory(const char *s, int64_t *v) {
    size_t n = strspn(s, "0123456789.");
    char number[64];
    double f;
    if (n == 0 || n >= sizeof number) return false;
    memcpy(number, s, n);
    number[n] = 0;
    if (!key_parse_float(number, &f)) return false;
    s += n + (s[n] == ' ');
    int steps = !*s && f == 0 ? 0 : unit_steps(s);
    if (steps < 0) return false;
    int64_t unit = (int64_t)1 << (10 * steps), whole;
    if (key_parse_int(number, &whole)) return !__builtin_mul_overflow(whole, unit, v);
    if (f * (double)unit >= 0x1p62) return false;
    *v = (int64_t)(f * (double)unit);
    return true;
}

/* NULL: that is no YAML. */
static YamlNode *parse_list(Arena *a, const char *text) {
    YamlNode *volatile list = NULL;
    Catch c;
    if (CATCH(c)) {
        list = yaml_parse(a, "list", text, strlen(text));
        catch_end(&c);
    }
    return list;
}

/* A list; or a text that is one, as other programs have it: "60,61", "[[4, 4], [4, 2]]",
 * or a single number. */
static const YamlNode *as_list(Arena *a, const Key *key, const char *name,
                               const YamlNode *node) {
    if (node->kind == NODE_LIST) return node;
    const char *text = node->text + strspn(node->text, " ");
    YamlNode *list = parse_list(a, text[0] == '[' ? text : arena_printf(a, "[%s]", text));
    if (!list || list->kind != NODE_LIST) wrong_type(key, name, node);
    yaml_place(list, node->at);
    return list;
}

static void store_ints(const Key *key, const char *name, const YamlNode *list,
                       int64_t *out) {
    for (int i = 0; i < list->n; i++) {
        const YamlNode *item = list->items[i];
        if (item->kind != NODE_TEXT || !key_parse_int(item->text, &out[i]))
            wrong_type(key, name, item);
        check_range(key, name, item, (double)out[i]);
    }
}

static IntList store_int_list(Arena *a, const Key *key, const char *name,
                              const YamlNode *node) {
    const YamlNode *list = as_list(a, key, name, node);
    int64_t *out = NEW_ARRAY(a, int64_t, (size_t)list->n);
    store_ints(key, name, list, out);
    return (IntList){out, list->n};
}

/* A list of numbers is a table of one row. */
static IntTable store_int_table(Arena *a, const Key *key, const char *name,
                                const YamlNode *node) {
    const YamlNode *list = as_list(a, key, name, node);
    if (!list->n) return (IntTable){0};
    bool flat = list->items[0]->kind != NODE_LIST;
    int rows = flat ? 1 : list->n, columns = flat ? list->n : list->items[0]->n;
    int64_t *out = NEW_ARRAY(a, int64_t, (size_t)rows * (size_t)columns);
    for (int r = 0; r < rows; r++) {
        const YamlNode *row = flat ? list : list->items[r];
        if (row->kind != NODE_LIST || !row->n) wrong_type(key, name, row);
        if (row->n != columns)
            fail_at(EXIT_CONFIG, row->at, "rows of equal length",
                    "%s: row %d has %d numbers, the first one has %d", name, r + 1,
                    row->n, columns);
        store_ints(key, name, row, out + r * columns);
    }
    return (IntTable){out, rows, columns};
}

/* Rows of numbers, one after the other; NULL: `list` is not only of such. */
static const YamlNode *flat_rows(Arena *a, const YamlNode *list) {
    YamlNode *flat = NEW(a, YamlNode);
    *flat = (YamlNode){.kind = NODE_LIST, .at = list->at};
    for (int r = 0; r < list->n; r++) {
        const YamlNode *row = list->items[r];
        int64_t number;
        if (row->kind != NODE_LIST) return NULL;
        for (int i = 0; i < row->n; i++) {
            bool whole = row->items[i]->kind == NODE_TEXT &&
                         key_parse_int(row->items[i]->text, &number);
            if (!whole) return NULL;
            PUSH(a, flat->items, flat->n, flat->cap, row->items[i]);
        }
    }
    return flat;
}

static TextList store_text_list(Arena *a, const Key *key, const char *name,
                                const YamlNode *node) {
    const YamlNode *rows = node->kind == NODE_LIST && node->n ? flat_rows(a, node) : NULL;
    if (rows) node = rows;
    const YamlNode *const single[] = {node};
    const YamlNode *const *items =
        node->kind == NODE_LIST ? (const YamlNode *const *)node->items : single;
    int n = node->kind == NODE_LIST ? node->n : 1;
    const char **out = NEW_ARRAY(a, const char *, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (node->kind == NODE_LIST && items[i]->kind == NODE_LIST)
            fail_at(EXIT_CONFIG, items[i]->at, "one list: [a, b, c]",
                    "%s is a list without lists in it", name);
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
    const char *foreign = key_foreign(node->text), *near = foreign;
    if (!near || enum_find(key->range, near) < 0)
        near = nearest_name(node->text, words, n);
    snprintf(hint, sizeof hint, "did you mean %s?", near ? near : "");
    if (!near && foreign && strchr(foreign, ' ')) /* a sentence */
        snprintf(hint, sizeof hint, "%s", near = foreign);
    snprintf(range, sizeof range, "%s", key_range_text(a, key));
    bool hinted = near != NULL;
    arena_free(a);
    fail_at(EXIT_CONFIG, node->at, hinted ? hint : NULL, "%s must be %s, not \"%.100s\"",
            name, range, node->text);
}

/* Of the kinds that are one word; any text is good for the others. */
static bool parse_word(KeyKind kind, const char *text, void *field) {
    switch (kind) {
    case KIND_Bool:
        return key_parse_bool(text, field);
    case KIND_Int:
        return key_parse_int(text, field);
    case KIND_Float:
        return key_parse_float(text, field);
    case KIND_Memory:
        return parse_memory(text, field);
    default:
        return true;
    }
}

static bool is_list(const Key *key) {
    return key->kind == KIND_IntList || key->kind == KIND_IntTable ||
           key->kind == KIND_TextList;
}

/* A switch of levels: the number of one, of which 0 is off. */
static bool store_level(const Key *key, const char *name, const YamlNode *node,
                        bool *field) {
    int64_t level;
    if (!key->range[0] || !key_parse_int(node->text, &level)) return false;
    check_range(key, name, node, (double)level);
    *field = level != 0;
    return true;
}

void key_store(Arena *a, const Key *key, const char *name, const YamlNode *node,
               Config *cfg) {
    void *field = (char *)cfg + key->offset;
    if (key->kind == KIND_Tree) return;
    bool one = node->kind == NODE_TEXT;
    if (one && key->kind == KIND_Bool && store_level(key, name, node, field)) return;
    if (node->kind == NODE_MAP || (!one && !is_list(key)) ||
        (one && !parse_word(key->kind, node->text, field)))
        wrong_type(key, name, node);
    if (key->kind == KIND_Int) check_range(key, name, node, (double)*(int64_t *)field);
    if (key->kind == KIND_Float) check_range(key, name, node, *(double *)field);
    if (key->kind == KIND_Text) *(KeyText *)field = node->text;
    if (key->kind == KIND_IntList) *(IntList *)field = store_int_list(a, key, name, node);
    if (key->kind == KIND_IntTable)
        *(IntTable *)field = store_int_table(a, key, name, node);
    if (key->kind == KIND_TextList)
        *(TextList *)field = store_text_list(a, key, name, node);
    if (key->kind != KIND_Enum) return;
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

static void add_ints(Text *t, const int64_t *items, int n) {
    text_add(t, "[");
    text_add_ints(t, ", ", items, n);
    text_add(t, "]");
}

static char *ints_text(Arena *a, const IntList *l) {
    Text t = text_new(a);
    add_ints(&t, l->items, l->n);
    return t.s;
}

static char *table_text(Arena *a, const IntTable *l) {
    Text t = text_new(a);
    if (l->rows > 1) text_add(&t, "[");
    for (int r = 0; r < l->rows; r++) {
        if (r) text_add(&t, ", ");
        add_ints(&t, l->items + r * l->columns, l->columns);
    }
    text_add(&t, l->rows > 1 ? "]" : l->rows ? "" : "[]");
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
    case KIND_Bool:
        return *(const bool *)field ? "True" : "False";
    case KIND_Int:
        return arena_printf(a, "%lld", (long long)*(const int64_t *)field);
    case KIND_Float:
        return float_text(a, *(const double *)field);
    case KIND_Memory:
        return memory_text(a, *(const int64_t *)field);
    case KIND_Tree:
        return "{}";
    case KIND_Text:
        add_text(&t, *(const KeyText *)field, yaml);
        return t.s;
    case KIND_Enum:
        memcpy(&value, field, sizeof value);
        return enum_name(a, key->range, value);
    case KIND_IntList:
        return ints_text(a, field);
    case KIND_IntTable:
        return table_text(a, field);
    case KIND_TextList:
        return texts_text(a, field, yaml);
    }
    return t.s;
}

int64_t key_number(const Key *key, const Config *cfg) {
    const void *field = (const char *)cfg + key->offset;
    int value = 0;
    if (key->kind == KIND_Bool) return *(const bool *)field;
    if (key->kind == KIND_Int) return *(const int64_t *)field;
    if (key->kind == KIND_Enum) memcpy(&value, field, sizeof value);
    return value;
}
