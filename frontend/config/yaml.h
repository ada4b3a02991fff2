/* yaml.h - YAML text to a tree of nodes that know their positions. */
#ifndef STATOR_YAML_H
#define STATOR_YAML_H
#include "base/base.h"

typedef enum NodeKind { NODE_TEXT, NODE_LIST, NODE_MAP } NodeKind;

/* A scalar, list or map. Of an alias: what its anchor has, at the places there, which name the
 * line of the alias. */
typedef struct YamlNode YamlNode;
struct YamlNode {
    NodeKind kind;
    bool quoted; /* scalar in quotes (or tagged !!str): never null or a number */
    SourcePos at;
    const char *text; /* scalar: the value, without zero bytes inside */
    YamlNode **keys;  /* map: scalars, all different */
    YamlNode **items; /* list and map */
    int n, cap, keys_cap;
    int height;   /* levels of lists and maps below and with this one */
    int64_t size; /* nodes below and with this one, every alias counted in full */
};

enum { YAML_MAX_BYTES = 1 << 20, YAML_MAX_DEPTH = 64, YAML_MAX_NODES = 100000 };

/* Parses one YAML 1.1 document of n bytes of UTF-8. An empty document is an empty map.
 * Fails with EXIT_CONFIG at the position of syntax errors, more than the limits above,
 * equal keys in a map, keys that are no scalars, cyclic aliases, merge keys (<<), tags
 * other than the core ones, and a second document. */
YamlNode *yaml_parse(Arena *a, const char *file_name, const char *text, size_t n);

/* A plain scalar made outside of any file (a flag's value). */
YamlNode *yaml_scalar(Arena *a, const char *value, SourcePos at);

/* What is read from a text of its own stands where that is. */
void yaml_place(YamlNode *node, SourcePos at);

/* null, ~ or nothing, not in quotes. */
bool yaml_is_null(const YamlNode *node);
const YamlNode *yaml_get(const YamlNode *map, const char *key); /* NULL: none */

/* Adds `s` as a double-quoted scalar that yaml_parse reads back to the same bytes; `s`
 * must be valid UTF-8 (yaml_utf8_valid). */
void yaml_quote(Text *out, const char *s);
bool yaml_utf8_valid(const char *s);

#endif
