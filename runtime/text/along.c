/* along.c - see along.h. */
#include "runtime/text/along.h"
#include "runtime/text/tokenizer.h"
#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#define TEMPLATES "additional_chat_templates"
enum { MAX_TEMPLATES = 64 };

typedef struct Names {
    const char **of;
    int n, cap;
} Names;

static int name_order(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names of the files in `dir` that can be taken along. */
static Names names_in(Arena *mem, const char *dir) {
    static const char *const fixed[] = {"chat_template.jinja", "special_tokens_map.json",
                                        "added_tokens.json"};
    Names k = {0};
    for (int i = 0; i < ARRAY_LEN(fixed); i++)
        if (folder_has(mem, dir, fixed[i])) PUSH(mem, k.of, k.n, k.cap, fixed[i]);
    DIR *d = opendir(path_join(mem, dir, TEMPLATES));
    if (!d) return k;
    int before = k.n;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.' && ends_with(e->d_name, ".jinja"))
            PUSH(mem, k.of, k.n, k.cap, path_join(mem, TEMPLATES, e->d_name));
    closedir(d);
    if (k.n - before > 1)
        qsort(k.of + before, (size_t)(k.n - before), sizeof *k.of, name_order);
    return k;
}

const char *const *along_names(Arena *mem, const char *dir, int *n) {
    Names k = names_in(mem, dir);
    *n = k.n;
    return k.of;
}

FileAlong *along_read(Arena *mem, const char *dir, int *n) {
    Names k = names_in(mem, dir);
    FileAlong *f = NEW_ARRAY(mem, FileAlong, (size_t)k.n);
    if (k.n > MAX_TEMPLATES)
        fail(EXIT_DATA, "%s/" TEMPLATES " holds more than %d templates; remove some", dir,
             MAX_TEMPLATES);
    for (int i = 0; i < k.n; i++) {
        f[i].name = k.of[i];
        f[i].bytes = file_read(mem, path_join(mem, dir, k.of[i]),
                               TOKENIZER_MAX_ALONG_BYTES, &f[i].n, EXIT_DATA);
    }
    *n = k.n;
    return f;
}

void along_write(const FileAlong *f, int n, const char *dir) {
    Arena *mem = arena_new();
    for (int i = 0; i < n; i++) {
        const char *path = path_join(mem, dir, f[i].name);
        int error = strchr(f[i].name, '/') ? dir_make(path_join(mem, dir, TEMPLATES)) : 0;
        if (error) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(error));
        file_write(path, f[i].bytes, f[i].n, EXIT_DATA);
    }
    arena_free(mem);
}

void along_remove_others(const FileAlong *f, int n, const char *dir) {
    Arena *mem = arena_new();
    Names k = names_in(mem, dir);
    for (int i = 0; i < k.n; i++) {
        bool ours = false;
        for (int j = 0; j < n; j++) ours |= !strcmp(f[j].name, k.of[i]);
        if (!ours) unlink(path_join(mem, dir, k.of[i]));
    }
    rmdir(path_join(mem, dir, TEMPLATES)); /* stays where something is in it */
    arena_free(mem);
}
