/* preprocess.h - for tests of the command preprocess: runs it in this process, and reads
 * the pairs of files it writes. */
#ifndef STATOR_TESTS_PREPROCESS_H
#define STATOR_TESTS_PREPROCESS_H
#include "../test.h"
#include "frontend/config/commands.h"
#include "runtime/data/indexed.h"
#include <fcntl.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

enum { MAX_WORDS = 32 };
static int code; /* what the command returned or failed with */
static char said[1 << 15];

static char *temp(const char *name) {
    return path_join(arena_new(), temp_dir(), name);
}

static int run_words(char **words) {
    char *argv[MAX_WORDS] = {"preprocess"};
    int argc = 1;
    while (words[argc - 1]) {
        EXPECT(argc < MAX_WORDS);
        argv[argc] = words[argc - 1];
        argc++;
    }
    return cmd_preprocess(argc, argv);
}

/* Runs it with stdout and stderr going to `said`. */
static void run_list(char **words) {
    Catch c;
    fflush(NULL);
    int log = open(temp("log"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    int out = dup(1), err = dup(2);
    EXPECT(log >= 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2);
    if (CATCH(c)) {
        code = run_words(words);
        catch_end(&c);
    } else {
        code = c.code;
        fputs(c.message, stderr);
    }
    fflush(NULL);
    ssize_t n = pread(log, said, sizeof said - 1, 0);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    close(log);
    EXPECT(n >= 0);
    said[n] = 0;
}
#define RUN(...) run_list((char *[]){__VA_ARGS__, NULL})
#define BYTES    "--tokenizer-type", "ByteTokenizer"

static void worked(void) {
    if (code) test_fail(__FILE__, __LINE__, "code %d:\n%s", code, said);
}

static void says(const char *part) {
    if (!strstr(said, part))
        test_fail(__FILE__, __LINE__, "said:\n%s\nwanted: %s", said, part);
}

static void refused(int want, const char *part) {
    if (code != want) test_fail(__FILE__, __LINE__, "code %d:\n%s", code, said);
    says(part);
}

static void put(const char *path, const void *bytes, size_t n) {
    EXPECT_INT(file_write_atomic(path, bytes, n), 0);
}

static char *put_text(const char *name, const char *text) {
    char *path = temp(name);
    put(path, text, strlen(text));
    return path;
}

static char *get(const char *path, size_t *n) {
    return file_read(arena_new(), path, 1 << 30, n, EXIT_DATA);
}

static void same_file(const char *a, const char *b) {
    size_t n, m;
    char *x = get(a, &n), *y = get(b, &m);
    if (n != m || memcmp(x, y, n))
        test_fail(__FILE__, __LINE__, "%s (%zu bytes) and %s (%zu) differ", a, n, b, m);
}

static char *cat(const char *a, const char *b) {
    return arena_printf(arena_new(), "%s%s", a, b);
}

static void same_pair(const char *a, const char *b) {
    same_file(cat(a, ".bin"), cat(b, ".bin"));
    same_file(cat(a, ".idx"), cat(b, ".idx"));
}

/* Of P_text_document nothing must be there, under no name. */
static void nothing_left(const char *prefix) {
    static const char *const ends[] = {".bin", ".idx", ".bin.tmp", ".idx.tmp"};
    for (int i = 0; i < ARRAY_LEN(ends); i++) {
        char *path = cat(cat(prefix, "_text_document"), ends[i]);
        if (file_exists(path)) test_fail(__FILE__, __LINE__, "%s is there", path);
    }
}

/* The documents of a pair as text: tokens as characters (u16), '|' behind a sequence,
 * a line end behind a document. */
static char *shown(const char *prefix) {
    Arena *mem = arena_new();
    size_t n, m;
    char *idx = get(cat(prefix, ".idx"), &n), *bin = get(cat(prefix, ".bin"), &m);
    IndexedTable t = indexed_parse(prefix, idx, n, m);
    Text out = text_new(mem);
    EXPECT_INT(t.token_bytes, 2);
    for (int64_t d = 0, s = 0, at = 0; d < t.documents; d++) {
        int64_t end = i64_at(t.doc_index, d + 1);
        for (; s < end; s++) {
            int64_t length = indexed_length(&t, s);
            for (int i = 0; i < length; i++, at += 2) text_add(&out, "%c", bin[at]);
            text_add(&out, "|");
        }
        text_add(&out, "\n");
    }
    return out.s;
}

/* Some MB of documents of very different sizes, some empty. */
static char *made_lines(size_t *n) {
    Text t = text_new(arena_new());
    uint32_t state = 7;
    for (int i = 0; i < 4000; i++) {
        state = state * 1664525 + 1013904223;
        int words = i % 97 == 0 ? 0 : i % 501 == 0 ? 40000 : (int)(state >> 24);
        text_add(&t, "{\"id\": %d, \"text\": \"", i);
        for (int w = 0; w < words; w++) {
            state = state * 1664525 + 1013904223;
            text_add(&t, "%s%x", w ? " " : "", state >> (12 + state % 16));
        }
        text_add(&t, "\"}\n");
    }
    *n = t.n;
    return t.s;
}

#endif
