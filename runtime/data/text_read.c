/* text_read.c - see text_read.h. */
#include "runtime/data/text_read.h"
#include "base/utf8.h"
#include <errno.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 64 << 10, MAX_INPUTS = 1 << 20 };

typedef struct Input {
    const char *path;
    bool plain;
} Input;

struct TextReader {
    Arena *mem;
    TextDocument document;
    Input *file;
    int nfile, cap;
    uint64_t total, done; /* done: files before the open one; atomic */
    uint64_t done_now;    /* atomic: done, and what was read of the open one */
    int at;               /* number of the open file, or of the next one */
    TextStream *stream;
    TextStop stop;
    char *chunk; /* bytes [chunk_at, have) are still to be read */
    size_t chunk_at, have;
    int64_t line; /* of what is read next, from 1 */
    bool any;     /* a line of this file was not blank */
};

/* Files and formats. */

static bool ends(const char *s, size_t n, const char *suffix) {
    size_t m = strlen(suffix);
    return n > m && !memcmp(s + n - m, suffix, m);
}

static bool is_plain(const char *path, TextFormat format) {
    static const char *const json[] = {".jsonl", ".json", ".ndjson"};
    static const char *const plain[] = {".txt", ".text", ".md"};
    if (format != TEXT_BY_NAME) return format == TEXT_PLAIN;
    size_t n = text_stream_stem(path);
    for (int i = 0; i < ARRAY_LEN(json); i++)
        if (ends(path, n, json[i])) return false;
    for (int i = 0; i < ARRAY_LEN(plain); i++)
        if (ends(path, n, plain[i])) return true;
    fail(EXIT_CONFIG,
         "%s: the name does not tell what it is (.jsonl, .json and .ndjson are loose "
         "JSON, .txt, .text and .md plain text, with or without .gz or .zst at the end): "
         "add --input-format json or --input-format text",
         path);
}

static void add_file(TextReader *r, const char *path, TextFormat format,
                     bool *size_known) {
    struct stat st;
    if (stat(path, &st) != 0 || access(path, R_OK) != 0)
        fail(EXIT_DATA, "cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        fail(EXIT_DATA, "%s is a folder; give its files, as in '%s/*.jsonl'", path, path);
    if (r->nfile == MAX_INPUTS) fail(EXIT_DATA, "more than %d input files", MAX_INPUTS);
    if (S_ISREG(st.st_mode))
        r->total += (uint64_t)st.st_size;
    else
        *size_known = false;
    Input f = {arena_strdup(r->mem, path), is_plain(path, format)};
    PUSH(r->mem, r->file, r->nfile, r->cap, f);
}

/* The files that a pattern matches, sorted by name. A file whose own name looks like a
 * pattern is that file. */
static char **expand(TextReader *r, const char *pattern, size_t *n) {
    char **path = NULL;
    glob_t g;
    int code = glob(pattern, 0, NULL, &g);
    if (code == GLOB_NOMATCH)
        fail(EXIT_DATA, "no file is called %s%s", pattern,
             strpbrk(pattern, "*?[") ? ", and none matches it" : "");
    if (code) fail(EXIT_DATA, "%s: the folder cannot be read", pattern);
    *n = g.gl_pathc;
    path = NEW_ARRAY(r->mem, char *, g.gl_pathc);
    for (size_t i = 0; i < g.gl_pathc; i++) path[i] = arena_strdup(r->mem, g.gl_pathv[i]);
    globfree(&g);
    return path;
}

TextReader *text_read_open(Arena *mem, const TextSpec *spec) {
    TextReader *r = NEW(mem, TextReader);
    bool size_known = true;
    r->mem = mem;
    r->document = spec->document;
    r->chunk = arena_alloc(mem, CHUNK_BYTES);
    for (int i = 0; i < spec->ninputs; i++) {
        const char *pattern = spec->inputs[i];
        if (file_exists(pattern)) {
            add_file(r, pattern, spec->format, &size_known);
            continue;
        }
        size_t n;
        char **path = expand(r, pattern, &n);
        for (size_t k = 0; k < n; k++) add_file(r, path[k], spec->format, &size_known);
    }
    if (!size_known) r->total = 0;
    return r;
}

void text_read_stop_at(TextReader *r, TextStop stop) {
    r->stop = stop;
}

int text_read_files(const TextReader *r) {
    return r->nfile;
}

const char *text_read_path(const TextReader *r, int file) {
    check(file >= 0 && file < r->nfile);
    return r->file[file].path;
}

bool text_read_plain(const TextReader *r, int file) {
    check(file >= 0 && file < r->nfile);
    return r->file[file].plain;
}

uint64_t text_read_done(const TextReader *r) {
    return __atomic_load_n(&r->done_now, __ATOMIC_RELAXED);
}

uint64_t text_read_total(const TextReader *r) {
    return r->total;
}

void text_read_close(TextReader *r) {
    if (!r) return;
    text_stream_close(r->stream);
    r->stream = NULL;
}

/* Bytes and lines. */

/* More bytes in the chunk when it is used up. False at the end of the file. */
static bool fill(TextReader *r) {
    if (r->chunk_at < r->have) return true;
    r->chunk_at = 0;
    r->have = text_stream_read(r->stream, r->chunk, CHUNK_BYTES);
    __atomic_store_n(&r->done_now, r->done + text_stream_offset(r->stream),
                     __ATOMIC_RELAXED);
    return r->have > 0;
}

/* Appends bytes of the chunk up to and with `end` (or to the chunk's end) to the batch.
 * True when `end` was there. */
static bool take(TextReader *r, TextBatch *b, const char *end, bool keep) {
    const char *from = r->chunk + r->chunk_at;
    size_t n = (end ? (size_t)(end + 1 - from) : r->have - r->chunk_at);
    if (keep) buffer_add(&b->text, from, n);
    r->chunk_at += n;
    b->bytes += n;
    return end != NULL;
}

/* A byte order mark at its beginning is no text. */
static void skip_mark(const TextBatch *b, TextRecord *t) {
    size_t mark = utf8_mark(b->text.p + t->begin, t->n);
    t->begin += mark;
    t->n -= mark;
}

/* The next line, added to the batch's text without its '\n'. False at the end of the file.
 * One that is too long is passed over. */
static bool read_line(TextReader *r, TextBatch *b, TextRecord *line) {
    *line = (TextRecord){b->text.n, 0, r->line, r->at, r->file[r->at].plain, false};
    bool ended = false, some = false;
    while (!ended && fill(r)) {
        const char *from = r->chunk + r->chunk_at;
        const char *end = memchr(from, '\n', r->have - r->chunk_at);
        some = true;
        ended = take(r, b, end, !line->too_long);
        if (!line->too_long && b->text.n - line->begin - ended > TEXT_RECORD_MAX) {
            line->too_long = true;
            b->text.n = line->begin;
        }
    }
    if (!some) return false;
    if (!line->too_long) line->n = b->text.n - line->begin - ended;
    b->text.n = line->begin + line->n;
    if (r->line++ == 1) skip_mark(b, line);
    return true;
}

bool text_line_is_blank(const char *s, size_t n) {
    size_t blank = 0;
    while (blank < n && memchr(" \t\r\v\f", s[blank], 5)) blank++;
    return blank == n;
}

static bool is_blank(const TextBatch *b, const TextRecord *t) {
    return !t->too_long && text_line_is_blank(b->text.p + t->begin, t->n);
}

static void add_record(TextBatch *b, const TextRecord *t) {
    buffer_add(&b->records, t, sizeof *t);
}

/* Records of each kind; false at the end of the file. */

static bool read_json(TextReader *r, TextBatch *b) {
    TextRecord t;
    if (!read_line(r, b, &t)) return false;
    if (is_blank(b, &t)) {
        b->text.n = t.begin;
        return true;
    }
    const char *s = b->text.p + t.begin;
    size_t spaces = 0;
    while (spaces < t.n && (s[spaces] == ' ' || s[spaces] == '\t')) spaces++;
    if (!r->any && spaces < t.n && s[spaces] == '[')
        fail(EXIT_DATA,
             "%s:%lld: the file is one JSON array; loose JSON has an object on each "
             "line: jq -c '.[]' FILE makes it so",
             r->file[r->at].path, (long long)t.line);
    r->any = true;
    add_record(b, &t);
    return true;
}

static _Noreturn void too_large(const TextReader *r, int64_t line) {
    fail(EXIT_DATA, "%s:%lld: a document of more than %zu MiB begins here%s",
         r->file[r->at].path, (long long)line, TEXT_RECORD_MAX >> 20,
         r->document == TEXT_LINE
             ? ""
             : "; --text-documents blank-line or line makes smaller ones of a file");
}

static bool read_text_line(TextReader *r, TextBatch *b) {
    TextRecord t;
    if (!read_line(r, b, &t)) return false;
    if (t.too_long) too_large(r, t.line);
    if (t.n && b->text.p[t.begin + t.n - 1] == '\r') t.n--;
    if (is_blank(b, &t))
        b->text.n = t.begin;
    else
        add_record(b, &t);
    return true;
}

static bool read_paragraph(TextReader *r, TextBatch *b) {
    TextRecord all = {0}, t;
    bool more, some = false;
    while ((more = read_line(r, b, &t))) {
        if (t.too_long) too_large(r, some ? all.line : t.line);
        if (is_blank(b, &t)) {
            b->text.n = t.begin;
            if (some) break;
            continue;
        }
        if (!some) all = t;
        some = true;
        all.n = t.begin + t.n - all.begin;
        if (all.n > TEXT_RECORD_MAX) too_large(r, all.line);
        buffer_add(&b->text, "\n", 1); /* between it and the next line */
    }
    if (some) {
        if (b->text.p[all.begin + all.n - 1] == '\r') all.n--;
        add_record(b, &all);
    }
    return more;
}

static bool read_whole(TextReader *r, TextBatch *b) {
    TextRecord t = {b->text.n, 0, 1, r->at, true, false};
    while (fill(r)) {
        take(r, b, NULL, true);
        if (b->text.n - t.begin > TEXT_RECORD_MAX) too_large(r, 1);
    }
    t.n = b->text.n - t.begin;
    skip_mark(b, &t);
    if (t.n) add_record(b, &t);
    return false;
}

static bool read_some(TextReader *r, TextBatch *b) {
    if (!r->file[r->at].plain) return read_json(r, b);
    if (r->document == TEXT_FILE) return read_whole(r, b);
    return r->document == TEXT_LINE ? read_text_line(r, b) : read_paragraph(r, b);
}

bool text_read_batch(TextReader *r, TextBatch *b, size_t bytes) {
    buffer_clear(&b->text, 4 * bytes);
    buffer_clear(&b->records, 4 * bytes);
    b->bytes = 0;
    while (r->at < r->nfile && b->text.n + b->records.n < bytes) {
        if (!r->stream) {
            r->stream = text_stream_open(r->file[r->at].path, r->stop);
            r->chunk_at = r->have = 0;
            r->line = 1;
            r->any = false;
        }
        if (read_some(r, b)) continue;
        r->done += text_stream_offset(r->stream);
        text_stream_close(r->stream);
        r->stream = NULL;
        r->at++;
    }
    return b->records.n > 0;
}
