/* key.h - rows of the key table (keys.def) and values of their types. Inside frontend. */
#ifndef STATOR_KEY_H
#define STATOR_KEY_H
#include "frontend/config/config.h"
#include "frontend/config/yaml.h"

typedef enum KeyKind {
    KIND_Bool,
    KIND_Int,
    KIND_Float,
    KIND_Text,
    KIND_Memory,
    KIND_IntList,
    KIND_IntTable,
    KIND_TextList,
    KIND_Enum,
    KIND_Tree
} KeyKind;

typedef enum KeyCategory {
    CAT_WORKS,
    CAT_MAPPED,
    CAT_FIXED,
    CAT_NO_EFFECT,
    CAT_REFUSED,
    CAT_NOT_YET
} KeyCategory;

typedef struct Key {
    const char *path;
    KeyKind kind;
    size_t offset; /* of the field in Config; unused for KIND_Tree */
    const char *def;
    const char *range; /* "LOW..HIGH", or the values of an enumeration */
    KeyCategory cat;
    const char *why; /* reason of a category other than CAT_WORKS */
    const char *doc;
} Key;

typedef struct KeyAlias {
    const char *path, *target;
} KeyAlias;

typedef struct KeyDefault {
    ModelType model;
    const char *path, *def;
} KeyDefault;

#define KEY(...)      +1
#define KEY_ENUM(...) +1
#define KEY_TREE(...) +1
enum {
    N_KEYS = 0
#include "frontend/config/keys.def"
};

extern const Key key_table[N_KEYS];
extern const KeyAlias key_aliases[];
extern const int n_key_aliases;
extern const KeyDefault key_defaults[];
extern const int n_key_defaults;

/* Row of a path or alias, or -1. */
int key_find(const char *path);
/* The path that a word of a command line means: other programs write --max-steps. The word with '_'
 * for '-', but for a word that is a path. */
const char *key_of_word(Arena *a, const char *word);
/* False of a row of keys_elsewhere.def: the key changes nothing, whatever is given. */
bool key_acts(const Key *key);
/* All rows, ordered so that those of a section are together, and so are those of a
 * section in it: in the order of the table, sections by their first row. */
void key_order(int order[N_KEYS]);
/* True if there are rows below `path`, or other names of rows. */
bool key_is_section(const char *path);
/* True if there are rows below it. */
bool key_has_keys(const char *path);
/* What a word of another program is here: a path, a value, or a sentence; or NULL. */
const char *key_foreign(const char *word);
/* The known path or alias that `path` probably means, which is one that does something; or
 * what key_foreign says; or NULL. */
const char *key_nearest(const char *path);

/* The section whose path is like `path`; NULL: none is. */
const char *key_nearest_section(Arena *a, const char *path);

/* Writes the value of `node` into the field of `cfg`. `name` is the path as the user
 * wrote it. Fails with EXIT_CONFIG at the node for a wrong type or range. */
void key_store(Arena *a, const Key *key, const char *name, const YamlNode *node,
               Config *cfg);
/* The same from text of the table (a default). */
void key_store_text(Arena *a, const Key *key, const char *text, Config *cfg);
/* The value in `cfg` as text; with `yaml` such that key_store reads it back. */
char *key_text(Arena *a, const Key *key, const Config *cfg, bool yaml);
/* The value as a number, that of an enumeration or a switch too; 0 of what is no one number. */
int64_t key_number(const Key *key, const Config *cfg);
/* True, yes, on and their opposites, in YAML 1.1's three ways to write them; False: none of them. */
bool key_parse_bool(const char *s, bool *v);
/* A number, with '_' between digits as in YAML 1.1. False: `s` is none, or not finite. */
bool key_parse_float(const char *s, double *v);
/* Whole numbers: 12, 1_000, 0x1f, and 1e4 or 12.0 when nothing is lost. A leading 0 is
 * refused: YAML 1.1 reads 017 as octal, people do not. */
bool key_parse_int(const char *s, int64_t *v);
/* Are both one text, or one number written in two ways? */
bool key_same_value(const char *a, const char *b);
/* Name of a type for people: "a whole number". */
const char *key_kind_name(KeyKind kind);
/* Values of an enumeration or a range, for people: "at least 1", "a, b or c". */
char *key_range_text(Arena *a, const Key *key);
/* Is it one of the numbers of a key? */
bool key_in_range(const Key *key, double v);

#endif
