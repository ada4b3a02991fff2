/* configs.h - for tests of configurations: from a text, from flags, and printed again. */
#ifndef STATOR_TESTS_CONFIGS_H
#define STATOR_TESTS_CONFIGS_H
#include "../test.h"
#include "frontend/config/config.h"
#include "frontend/config/key.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

static Config *parse(const char *text) {
    return config_parse(arena_new(), "t.yaml", text, strlen(text));
}

static Config *flags(int n, char **words) {
    return config_load(arena_new(), NULL, n, words);
}
#define FLAGS(...) flags(ARRAY_LEN(((char *[]){__VA_ARGS__})), (char *[]){__VA_ARGS__})

static char *write_file(const char *name, const char *text) {
    Arena *a = arena_new();
    char *path = path_join(a, temp_dir(), name);
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
    return path;
}

static Config *load(const char *path) {
    return config_load(arena_new(), path, 0, NULL);
}

static bool has_note(const Config *cfg, const char *part) {
    for (int i = 0; i < cfg->n_notes; i++) {
        if (strstr(cfg->notes[i], part)) return true;
    }
    return false;
}

/* The values and the given keys of two configurations are the same. */
static void expect_same(const Config *x, const Config *y) {
    Arena *a = arena_new();
    for (int k = 0; k < N_KEYS; k++) {
        const char *path = key_table[k].path;
        if (strcmp(config_value(x, a, path), config_value(y, a, path)))
            test_fail(__FILE__, __LINE__, "%s: %s, then %s", path,
                      config_value(x, a, path), config_value(y, a, path));
        if (key_table[k].kind == KIND_Tree && key_has_keys(path))
            continue; /* of it these are printed */
        if (config_given(x, path) != config_given(y, path))
            test_fail(__FILE__, __LINE__, "%s: given differs", path);
    }
}

static void expect_round_trip(const Config *cfg) {
    Arena *a = arena_new();
    Text t = text_new(a), again = text_new(a);
    config_print(cfg, &t);
    Config *back = config_parse(a, "printed", t.s, t.n);
    expect_same(cfg, back);
    config_print(back, &again);
    EXPECT_STR(again.s, t.s);
}

#endif
