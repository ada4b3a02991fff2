/* embed.c - a step of the build: writes C from the project's own files.
 *     embed corpus ROOT LIST OUT.c    the files of LIST (a path a line, relative to ROOT)
 *                                     one after the other, as the array embedded_corpus
 *     embed id ROOT LIST OUT.c NAME   a hash of their names and bytes, as the text NAME */
#define XXH_INLINE_ALL
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { LINE_BYTES = 76 };

static void stop(const char *what, const char *path) {
    fprintf(stderr, "embed: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static char *read_all(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) stop("cannot open", path);
    char *bytes = NULL;
    size_t cap = 0;
    *n = 0;
    do {
        cap = cap ? 2 * cap : 1 << 16;
        bytes = realloc(bytes, cap);
        if (!bytes) stop("no memory for", path);
        *n += fread(bytes + *n, 1, cap - *n, f);
    } while (*n == cap);
    if (ferror(f)) stop("cannot read", path);
    fclose(f);
    return bytes;
}

/* Three octal digits end by themselves, so no byte runs into the next one. */
static void write_string(FILE *out, const char *bytes, size_t n) {
    int column = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (column == 0) fputc('"', out), column++;
        if (c == '\n')
            column += fprintf(out, "\\n");
        else if (c == '"' || c == '\\')
            column += fprintf(out, "\\%c", c);
        else if (c < 32 || c >= 127 || c == '?')
            column += fprintf(out, "\\%03o", c);
        else
            column += fprintf(out, "%c", c);
        if (c == '\n' || column >= LINE_BYTES) fputs("\"\n", out), column = 0;
    }
    if (column) fputs("\"\n", out);
}

int main(int argc, char **argv) {
    int corpus = argc == 5 && !strcmp(argv[1], "corpus");
    if (!corpus && (argc != 6 || strcmp(argv[1], "id") != 0)) {
        fprintf(stderr, "usage: embed corpus ROOT LIST OUT.c\n"
                        "       embed id ROOT LIST OUT.c NAME\n");
        return 2;
    }
    size_t list_bytes, n;
    char *list = read_all(argv[3], &list_bytes), path[4096];
    list = realloc(list, list_bytes + 1);
    if (!list) stop("no memory for", argv[3]);
    list[list_bytes] = 0;
    FILE *out = fopen(argv[4], "wb");
    if (!out) stop("cannot write", argv[4]);
    XXH3_state_t *hash = XXH3_createState();
    XXH3_128bits_reset(hash);
    if (corpus) {
        fputs("#include <stddef.h>\nconst unsigned char embedded_corpus[] =\n", out);
    }
    for (char *name = strtok(list, "\n"); name; name = strtok(NULL, "\n")) {
        snprintf(path, sizeof path, "%s/%s", argv[2], name);
        char *bytes = read_all(path, &n);
        XXH3_128bits_update(hash, name, strlen(name) + 1);
        XXH3_128bits_update(hash, bytes, n);
        if (corpus) write_string(out, bytes, n);
        free(bytes);
    }
    XXH128_hash_t sum = XXH3_128bits_digest(hash);
    if (corpus) {
        fputs("\"\";\nconst size_t embedded_corpus_bytes = sizeof embedded_corpus - 1;\n",
              out);
    } else {
        fprintf(out, "const char %s[] = \"%016llx%016llx\";\n", argv[5],
                (unsigned long long)sum.high64, (unsigned long long)sum.low64);
    }
    if (ferror(out) || fclose(out) != 0) stop("cannot write", argv[4]);
    XXH3_freeState(hash);
    free(list);
    return 0;
}
