/* yaml.c - libyaml's events to a tree; see yaml.h. */
#include "frontend/config/yaml.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <yaml.h>

enum { MAX_ANCHORS = 1000, MAX_KEY_BYTES = 128 };

typedef struct Anchor {
    const char *name;
    YamlNode *node;
    bool open; /* its end is not read yet */
} Anchor;

typedef struct Frame {
    YamlNode *node, *key;
    int anchor; /* index of its anchor, or -1 */
} Frame;

typedef struct Builder {
    Arena *mem;
    const char *file, *text;
    Frame stack[YAML_MAX_DEPTH];
    int depth;
    Anchor anchors[MAX_ANCHORS];
    int n_anchors;
    int64_t nodes;
    int documents;
    YamlNode *root;
    SourcePos at; /* of the failure; message is set with it */
    const char *message, *hint;
} Builder;

static SourcePos pos_of(const Builder *b, yaml_mark_t mark) {
    return (SourcePos){b->file, b->text, (int)mark.line + 1, (int)mark.column + 1};
}

/* Failures are kept until libyaml's memory is given back. */
static void refuse(Builder *b, SourcePos at, const char *hint, const char *message) {
    if (b->message) return;
    b->at = at;
    b->hint = hint;
    b->message = message;
}

static YamlNode *node_new(Builder *b, NodeKind kind, SourcePos at) {
    YamlNode *node = NEW(b->mem, YamlNode);
    node->kind = kind;
    node->at = at;
    node->size = 1;
    node->height = kind == NODE_TEXT ? 0 : 1;
    node->text = "";
    return node;
}

static void count_nodes(Builder *b, int64_t n, SourcePos at) {
    b->nodes += n;
    if (b->nodes > YAML_MAX_NODES)
        refuse(b, at, "a configuration has some hundred values",
               "more than 100000 values, aliases counted in full");
}

/* Makes `node`, complete or not, a child of the innermost open list or map. */
static void attach(Builder *b, YamlNode *node, SourcePos at) {
    if (!b->depth) {
        b->root = node;
        return;
    }
    Frame *f = &b->stack[b->depth - 1];
    YamlNode *up = f->node;
    if (up->kind == NODE_MAP && !f->key) {
        if (node->kind != NODE_TEXT) {
            refuse(b, at, NULL, "a key must be a word, not a list or map");
        } else if (strlen(node->text) > MAX_KEY_BYTES) {
            refuse(b, at, NULL, "a key of more than 128 bytes");
        } else if (!node->quoted && !strcmp(node->text, "<<")) {
            refuse(b, at, "write the keys out, or use base_config",
                   "merge keys (<<) are not supported");
        }
        f->key = node;
        return;
    }
    if (up->kind == NODE_MAP) {
        int n = up->n;
        PUSH(b->mem, up->keys, n, up->keys_cap, f->key);
        f->key = NULL;
    }
    PUSH(b->mem, up->items, up->n, up->cap, node);
}

static int anchor_add(Builder *b, const yaml_char_t *name, YamlNode *node, bool open) {
    if (!name) return -1;
    if (b->n_anchors == MAX_ANCHORS) {
        refuse(b, node->at, NULL, "more than 1000 anchors");
        return -1;
    }
    b->anchors[b->n_anchors] =
        (Anchor){arena_strdup(b->mem, (const char *)name), node, open};
    return b->n_anchors++;
}

static bool tag_is_core(const char *tag, const char *const *names) {
    static const char prefix[] = "tag:yaml.org,2002:";
    if (!begins_with(tag, prefix)) return false;
    for (; *names; names++) {
        if (!strcmp(tag + sizeof prefix - 1, *names)) return true;
    }
    return false;
}

static void check_tag(Builder *b, const yaml_char_t *tag, const char *const *names,
                      SourcePos at) {
    if (tag && !tag_is_core((const char *)tag, names))
        refuse(b, at, "leave the tag out", "this tag is not supported");
}

static void on_scalar(Builder *b, const yaml_event_t *e, SourcePos at) {
    static const char *const tags[] = {"str", "int", "float", "bool", "null", NULL};
    const char *value = (const char *)e->data.scalar.value;
    const char *tag = (const char *)e->data.scalar.tag;
    check_tag(b, e->data.scalar.tag, tags, at);
    if (memchr(value, 0, e->data.scalar.length))
        refuse(b, at, NULL, "a zero byte inside a value");
    YamlNode *node = node_new(b, NODE_TEXT, at);
    node->text = arena_strndup(b->mem, value, e->data.scalar.length);
    node->quoted =
        e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE || (tag && strstr(tag, ":str"));
    count_nodes(b, 1, at);
    anchor_add(b, e->data.scalar.anchor, node, false);
    attach(b, node, at);
}

/* The node again, as the alias in `line` has it. */
static YamlNode *node_used(Builder *b, const YamlNode *node, int line) {
    YamlNode *again = NEW(b->mem, YamlNode);
    *again = *node;
    again->at.alias = line;
    again->keys = again->items = NULL;
    again->n = again->cap = again->keys_cap = 0;
    for (int i = 0; i < node->n; i++) {
        int n = i;
        if (node->kind == NODE_MAP)
            PUSH(b->mem, again->keys, n, again->keys_cap,
                 node_used(b, node->keys[i], line));
        PUSH(b->mem, again->items, again->n, again->cap,
             node_used(b, node->items[i], line));
    }
    return again;
}

static void on_alias(Builder *b, const yaml_event_t *e, SourcePos at) {
    const char *name = (const char *)e->data.alias.anchor;
    int i = b->n_anchors - 1;
    while (i >= 0 && strcmp(b->anchors[i].name, name)) i--;
    if (i < 0) {
        refuse(b, at, "an anchor comes before its aliases: &name", "unknown alias");
    } else if (b->anchors[i].open) {
        refuse(b, at, NULL, "this alias is inside of what it repeats");
    } else if (b->depth + b->anchors[i].node->height > YAML_MAX_DEPTH) {
        refuse(b, at, NULL, "more than 64 levels");
    } else {
        count_nodes(b, b->anchors[i].node->size, at);
        if (!b->message) attach(b, node_used(b, b->anchors[i].node, at.line), at);
    }
}

static void on_start(Builder *b, NodeKind kind, const yaml_char_t *anchor, SourcePos at) {
    if (b->depth == YAML_MAX_DEPTH) {
        refuse(b, at, NULL, "more than 64 levels");
        return;
    }
    YamlNode *node = node_new(b, kind, at);
    count_nodes(b, 1, at);
    int index = anchor_add(b, anchor, node, true);
    attach(b, node, at);
    b->stack[b->depth++] = (Frame){node, NULL, index};
}

static int compare_keys(const void *x, const void *y) {
    const YamlNode *a = *(YamlNode *const *)x, *b = *(YamlNode *const *)y;
    int order = strcmp(a->text, b->text);
    if (order) return order;
    return a->at.line != b->at.line
               ? (a->at.line > b->at.line) - (a->at.line < b->at.line)
               : (a->at.col > b->at.col) - (a->at.col < b->at.col);
}

static void check_keys_differ(Builder *b, const YamlNode *map) {
    if (map->n < 2) return;
    YamlNode **sorted = NEW_ARRAY(b->mem, YamlNode *, (size_t)map->n);
    memcpy(sorted, map->keys, (size_t)map->n * sizeof *sorted);
    qsort(sorted, (size_t)map->n, sizeof *sorted, compare_keys);
    for (int i = 1; i < map->n; i++) {
        if (strcmp(sorted[i - 1]->text, sorted[i]->text)) continue;
        refuse(b, sorted[i]->at, "keep one of the two",
               arena_printf(b->mem, "key '%s' is already in line %d", sorted[i]->text,
                            sorted[i - 1]->at.line));
        return;
    }
}

static void on_end(Builder *b) {
    Frame *f = &b->stack[--b->depth];
    YamlNode *node = f->node;
    for (int i = 0; i < node->n; i++) {
        node->size += node->items[i]->size + (node->kind == NODE_MAP);
        node->height = MAX(node->height, node->items[i]->height + 1);
    }
    if (f->anchor >= 0) b->anchors[f->anchor].open = false;
    if (node->kind == NODE_MAP) check_keys_differ(b, node);
}

static void on_event(Builder *b, const yaml_event_t *e) {
    static const char *const list_tags[] = {"seq", NULL}, *const map_tags[] = {"map",
                                                                               NULL};
    SourcePos at = pos_of(b, e->start_mark);
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (b->documents++)
            refuse(b, at, "put it into a file of its own",
                   "a second document (---) in one file");
        break;
    case YAML_SCALAR_EVENT:
        on_scalar(b, e, at);
        break;
    case YAML_ALIAS_EVENT:
        on_alias(b, e, at);
        break;
    case YAML_SEQUENCE_START_EVENT:
        check_tag(b, e->data.sequence_start.tag, list_tags, at);
        on_start(b, NODE_LIST, e->data.sequence_start.anchor, at);
        break;
    case YAML_MAPPING_START_EVENT:
        check_tag(b, e->data.mapping_start.tag, map_tags, at);
        on_start(b, NODE_MAP, e->data.mapping_start.anchor, at);
        break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        on_end(b);
        break;
    default:
        break;
    }
}

/* Lines and columns count characters. */
static bool is_tab(const Builder *b, SourcePos at) {
    const char *p = b->text;
    for (int line = 1; line < at.line && *p; p++) line += *p == '\n';
    for (int col = 1; col < at.col && *p; p++) col += (p[1] & 0xc0) != 0x80;
    return *p == '\t';
}

/* libyaml's own errors; those of its reader know an offset but no line. */
static void parser_error(Builder *b, const yaml_parser_t *p) {
    SourcePos at = pos_of(b, p->problem_mark);
    if (p->error == YAML_READER_ERROR) {
        at.line = at.col = 1;
        for (size_t i = 0; i < p->problem_offset && b->text[i]; i++) {
            at.col = b->text[i] == '\n' ? 1 : at.col + 1;
            at.line += b->text[i] == '\n';
        }
    }
    const char *problem = p->problem ? p->problem : "cannot be read";
    refuse(b, at, is_tab(b, at) ? "YAML is indented with spaces, not with tabs" : NULL,
           p->context ? arena_printf(b->mem, "%s: %s", p->context, problem)
                      : arena_strdup(b->mem, problem));
}

YamlNode *yaml_parse(Arena *a, const char *file_name, const char *text, size_t n) {
    if (n > YAML_MAX_BYTES)
        fail(EXIT_CONFIG, "%s has more than %d bytes", file_name, YAML_MAX_BYTES);
    size_t mark = utf8_mark(text, n); /* libyaml counts it as a column */
    text += mark;
    n -= mark;
    Builder *b = NEW(a, Builder);
    b->mem = a;
    b->file = arena_strdup(a, file_name);
    b->text = arena_strndup(a, text, n);
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) fail(EXIT_MEMORY, "out of memory");
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    bool done = false, out_of_memory = false;
    while (!done && !b->message) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            out_of_memory = parser.error == YAML_MEMORY_ERROR;
            parser_error(b, &parser);
            break;
        }
        done = event.type == YAML_STREAM_END_EVENT;
        on_event(b, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (out_of_memory) fail(EXIT_MEMORY, "out of memory reading %s", file_name);
    if (b->message) fail_at(EXIT_CONFIG, b->at, b->hint, "%s", b->message);
    if (b->root && !(b->root->kind == NODE_TEXT && yaml_is_null(b->root))) return b->root;
    return node_new(b, NODE_MAP, (SourcePos){b->file, b->text, 1, 1});
}

YamlNode *yaml_scalar(Arena *a, const char *value, SourcePos at) {
    YamlNode *node = NEW(a, YamlNode);
    *node = (YamlNode){.kind = NODE_TEXT, .at = at, .size = 1};
    node->text = arena_strdup(a, value);
    return node;
}

const YamlNode *yaml_get(const YamlNode *map, const char *key) {
    for (int i = 0; i < map->n; i++)
        if (!strcmp(map->keys[i]->text, key)) return map->items[i];
    return NULL;
}

void yaml_place(YamlNode *node, SourcePos at) {
    node->at = at;
    for (int i = 0; i < node->n; i++) yaml_place(node->items[i], at);
}

bool yaml_is_null(const YamlNode *node) {
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    if (node->kind != NODE_TEXT || node->quoted) return false;
    return is_one_of(node->text, nulls, ARRAY_LEN(nulls));
}

bool yaml_utf8_valid(const char *s) {
    const char *end = s + strlen(s);
    int size;
    for (; s < end; s += size)
        if (!(size = utf8_check(s, (size_t)(end - s)))) return false;
    return true;
}

void yaml_quote(Text *out, const char *s) {
    const char *end = s + strlen(s);
    size_t size;
    text_add_bytes(out, "\"", 1);
    for (; s < end; s += size) {
        size = (size_t)utf8_check(s, (size_t)(end - s));
        check(size);
        uint32_t c = utf8_get(s, size);
        bool plain =
            (c >= 0x20 && c < 0x7f) || (c >= 0xa0 && c != 0x2028 && c != 0x2029 &&
                                        c != 0xfeff && c != 0xfffe && c != 0xffff);
        if (c == '"' || c == '\\')
            text_add(out, "\\%c", (int)c);
        else if (plain)
            text_add_bytes(out, s, size);
        else
            text_add(out, "\\u%04x", c);
    }
    text_add_bytes(out, "\"", 1);
}
