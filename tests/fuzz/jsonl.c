/* jsonl.c - loose JSON on arbitrary bytes: lines through the line reader, which must take
 * whatever the strict parser takes, with the same texts; and the same bytes through the
 * reader of files, as JSON and as plain text. */
#define _GNU_SOURCE
#include "base/json.h"
#include "runtime/data/text_read.h"
#include "runtime/text/json_line.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n);

static const char *const keys[] = {"text", "t"};

static const Json *strict(Arena *mem, const char *s, size_t n) {
    Catch c;
    if (!CATCH(c)) return NULL;
    const Json *v = json_parse(mem, "fuzz", s, n, 1 << 20, EXIT_DATA);
    catch_end(&c);
    return v;
}

/* Can the line reader be asked for key k of this object? */
static bool has_text(const Json *v, const char *key) {
    const Json *e = v ? json_get(v, key) : NULL;
    return e && e->kind == JSON_STRING;
}

static void one_line(const char *s, size_t n) {
    Arena *mem = arena_new();
    JsonLine j = {0};
    const Json *v = strict(mem, s, n);
    bool good = json_line_read(&j, s, n, keys, 2);
    if (v && v->kind == JSON_OBJECT && has_text(v, "text") && has_text(v, "t")) {
        check(good);
        for (int k = 0; k < 2; k++) {
            const Json *want = json_get(v, keys[k]);
            size_t got;
            const char *piece = json_line_piece(&j, k, 0, &got);
            check(j.key[k].n == 1 && got == want->length);
            check(!memcmp(piece, want->s, got));
        }
    }
    if (good)
        check(j.key[0].there && j.key[1].there && j.text.n <= n);
    else
        check(j.wrong && j.wrong_at <= n);
    if (v && v->kind == JSON_OBJECT) check(json_line_read(&j, s, n, NULL, 0));
    buffer_free(&j.text);
    buffer_free(&j.pieces);
    arena_free(mem);
}

/* Every record lies inside its batch; together they are no more than the input. */
static void read_file(const char *path, size_t n, TextFormat format, TextDocument doc) {
    Arena *mem = arena_new();
    TextBatch b = {0};
    TextSpec spec = {&path, 1, format, doc};
    TextReader *volatile r = NULL;
    Catch c;
    if (CATCH(c)) {
        r = text_read_open(mem, &spec);
        size_t all = 0, count;
        while (text_read_batch(r, &b, 64)) {
            const TextRecord *t = text_records(&b, &count);
            for (size_t i = 0; i < count; i++) {
                check(t[i].begin <= b.text.n && t[i].n <= b.text.n - t[i].begin);
                check(t[i].line >= 1 && t[i].plain == (format == TEXT_PLAIN));
                all += t[i].n;
            }
        }
        check(all <= n);
        catch_end(&c);
    } else {
        check(c.code == EXIT_DATA);
    }
    text_read_close(r);
    buffer_free(&b.text);
    buffer_free(&b.records);
    arena_free(mem);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n) {
    const char *s = (const char *)input;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t length = end ? (size_t)(end - s) - at : n - at;
        char *line = malloc(length ? length : 1); /* its own, so that ASan sees its end */
        check(line);
        memcpy(line, s + at, length);
        one_line(line, length);
        free(line);
        at += length + 1;
    }
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0) return 0;
    if (write(fd, input, n) == (ssize_t)n) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        read_file(path, n, n % 4 ? TEXT_PLAIN : TEXT_JSON, (TextDocument)(n % 4 % 3));
    }
    close(fd);
    return 0;
}
