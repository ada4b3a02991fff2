/* config_flags.c - flags to settings, which go over those of files. */
#include "frontend/config/config_state.h"
#include <stdlib.h>

/* A mistake in it is told where the flag is. */
static YamlNode *parse_list(Arena *a, const Key *key, const char *text, SourcePos at) {
    static const char before[] = "error: ";
    Catch c;
    if (CATCH(c)) {
        YamlNode *node = yaml_parse(a, at.file, text, strlen(text));
        catch_end(&c);
        return node;
    }
    const char *what = strstr(c.message, before);
    what = what ? what + sizeof before - 1 : c.message;
    fail_at(c.code, at, "a,b or [a, b]; an entry with signs of YAML in quotes: ['a: b']",
            "%s: %.*s", key->path, (int)strcspn(what, "\n"), what);
}

/* Value of a flag as a node; lists may be written a,b or [a, b]. */
static const YamlNode *flag_value(Arena *a, const Key *key, const char *value,
                                  SourcePos at) {
    YamlNode *scalar = yaml_scalar(a, value, at);
    bool list = key->kind == KIND_IntList || key->kind == KIND_TextList;
    if (!list || yaml_is_null(scalar)) return scalar;
    const char *text = value[0] == '[' ? value : arena_printf(a, "[%s]", value);
    YamlNode *node = parse_list(a, key, text, at);
    yaml_place(node, at);
    return node;
}

static void set_flag(ConfigState *s, const char *path, const char *value, SourcePos at) {
    static const char wrong[] = "callbacks.CheckpointMointor.";
    if (begins_with(path, wrong))
        path = arena_printf(s->mem, "callbacks.CheckpointMonitor.%s",
                            path + sizeof wrong - 1);
    int k = key_find(path = key_of_word(s->mem, path));
    if (k < 0 && key_is_section(path))
        fail_at(EXIT_CONFIG, at, arena_printf(s->mem, "--%s.KEY VALUE", path),
                "%s is a section of keys", path);
    if (k < 0) config_unknown_key(s->mem, path, at);
    if (!value && key_table[k].kind == KIND_Bool) value = "True";
    if (!value)
        fail_at(EXIT_CONFIG, at,
                "in a shell script: \"${ARRAY[@]}\" expands to all words, $ARRAY to one",
                "--%s has no value", path);
    if (!value[0])
        fail_at(EXIT_CONFIG, at, "--KEY=null takes the default",
                "--%s has an empty value", path);
    if (!yaml_utf8_valid(value)) fail_at(EXIT_CONFIG, at, NULL, "--%s: not UTF-8", path);
    if (at.text) at.col = (int)strlen(path) + 4;
    const YamlNode *node = flag_value(s->mem, &key_table[k], value, at);
    int height = !strcmp(at.file, config_search_file) ? HEIGHT_SEARCHED : HEIGHT_FLAG;
    if (!config_of_flag(at)) height = 1; /* of another program's file */
    s->settings[k] = (Setting){yaml_is_null(node) ? NULL : node, path, true, height};
}

enum { FROM = '\x01' }; /* begins the word of config_flag_from; no argument has it */

char *config_flag_from(Arena *a, SourcePos at) {
    return arena_printf(a, "%c%d:%d:%s", FROM, at.line, at.col, at.file);
}

static SourcePos flag_place(const char *word) {
    char *p;
    int line = (int)strtol(word + 1, &p, 10), col = (int)strtol(p + 1, &p, 10);
    return (SourcePos){.file = p + 1, .line = line, .col = col};
}

/* All flags as text, a line each, for messages to quote. */
static char *flag_lines(Arena *a, int nflags, char **flags) {
    Text t = text_new(a);
    for (int i = 0; i < nflags; i++) {
        bool first = begins_with(flags[i], "--");
        if (flags[i][0] == FROM && ++i) continue;
        if (t.n) text_add_bytes(&t, first ? "\n" : " ", 1);
        for (const char *p = flags[i]; *p; p++)
            text_add_bytes(&t, *p == '\n' || *p == '\r' ? " " : p, 1);
    }
    return t.s;
}

/* The words of a command line, gone through flag by flag. */
typedef struct Flags {
    ConfigState *state;
    char **word;
    int n, i; /* word i is read next */
    SourcePos at;
} Flags;

static void read_flag(void *context) {
    Flags *f = context;
    const char *word = f->word[f->i++];
    const char *next = f->i < f->n ? f->word[f->i] : NULL;
    if (!strcmp(word, "\\") || (next && !strcmp(next, "\\")))
        fail_at(EXIT_CONFIG, f->at, "remove the blank after the backslash in the script",
                "a word that is only a backslash");
    if (!begins_with(word, "--") || !word[2])
        fail_at(EXIT_CONFIG, f->at, "write --key VALUE or --key=VALUE",
                "%.200s is not a flag", word);
    Arena *mem = f->state->mem;
    const char *equals = strchr(word, '=');
    char *path = equals ? arena_strndup(mem, word + 2, (size_t)(equals - word - 2))
                        : arena_strdup(mem, word + 2);
    const char *value = equals ? equals + 1 : NULL;
    if (!equals && next && !begins_with(next, "--")) value = next, f->i++;
    set_flag(f->state, path, value, f->at);
}

void config_read_flags(ConfigState *s, int nflags, char **flags) {
    Flags f = {s,
               flags,
               nflags,
               0,
               {config_flags_file, flag_lines(s->mem, nflags, flags), 0, 1}};
    while (f.i < nflags) {
        const SourcePos typed = f.at;
        bool placed = flags[f.i][0] == FROM;
        if (placed)
            f.at = flag_place(flags[f.i++]);
        else
            f.at.line += !f.at.line || begins_with(flags[f.i], "--");
        config_try(s, read_flag, &f);
        if (placed) f.at = typed;
    }
}
