/* base.c - arenas, text and failures; see base.h. */
#define _GNU_SOURCE
#define XXH_INLINE_ALL
#include "base/base.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <xxhash.h>

typedef struct Block {
    struct Block *next;
    size_t used, size;
    _Alignas(64) char bytes[];
} Block;

struct Arena {
    Block *top;
    Catch *of;   /* of a scratch arena; NULL: none */
    Arena *next; /* of the same */
};

static _Thread_local Catch *catch_top;

enum { BLOCK_BYTES = 64 << 10, ALIGN = 16 };

Arena *arena_new(void) {
    Arena *a = calloc(1, sizeof(Arena));
    if (!a) fail(EXIT_MEMORY, "out of memory");
    return a;
}

Arena *arena_scratch(void) {
    Arena *a = arena_new();
    a->of = catch_top;
    if (!a->of) return a;
    a->next = a->of->scratch;
    a->of->scratch = a;
    return a;
}

static inline void *take(Arena *a, size_t bytes) {
    if (bytes > PTRDIFF_MAX / 2) die("allocation of %zu bytes", bytes);
    bytes = (size_t)round_up((int64_t)bytes, ALIGN);
    Block *b = a->top;
    if (!b || b->size - b->used < bytes) {
        size_t size = MAX(bytes, (size_t)BLOCK_BYTES);
        b = aligned_alloc(BUFFER_ALIGN_BYTES,
                          (size_t)align_up((int64_t)(sizeof(Block) + size)));
        if (!b) fail(EXIT_MEMORY, "out of memory: %zu bytes wanted", bytes);
        b->used = 0;
        b->size = size;
        b->next = a->top;
        a->top = b;
    }
    void *p = b->bytes + b->used;
    b->used += bytes;
    return p;
}

void *arena_room(Arena *a, size_t bytes) {
    return take(a, bytes);
}

void *arena_alloc(Arena *a, size_t bytes) {
    return memset(take(a, bytes), 0, bytes);
}

void arena_free(Arena *a) {
    if (!a) return;
    if (a->of) {
        Arena **at = &a->of->scratch;
        while (*at != a) at = &(*at)->next;
        *at = a->next;
    }
    for (Block *b = a->top, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

size_t array_bytes(size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) die("%zu items of %zu bytes", n, size);
    return bytes;
}

void *array_grow(Arena *a, void *items, int n, int *cap, size_t size) {
    check(n >= 0 && n < (1 << 29));
    *cap = MAX(8, n * 2);
    void *grown = arena_alloc(a, array_bytes((size_t)*cap, size));
    if (n) memcpy(grown, items, (size_t)n * size);
    return grown;
}

char *arena_strndup(Arena *a, const char *s, size_t n) {
    char *copy = arena_room(a, n + 1);
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *arena_strdup(Arena *a, const char *s) {
    return arena_strndup(a, s, strlen(s));
}

char *arena_vprintf(Arena *a, const char *fmt, va_list ap) {
    char small[256];
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    check(n >= 0);
    char *s = arena_alloc(a, (size_t)n + 1);
    if ((size_t)n < sizeof small)
        memcpy(s, small, (size_t)n);
    else
        vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

char *arena_printf(Arena *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *s = arena_vprintf(a, fmt, ap);
    va_end(ap);
    return s;
}

char *arena_numbered(Arena *a, const char *prefix, int n) {
    char digits[12];
    size_t at = sizeof digits, length = strlen(prefix);
    check(n >= 0);
    do digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    char *s = arena_alloc(a, length + sizeof digits - at + 1);
    memcpy(s, prefix, length);
    memcpy(s + length, digits + at, sizeof digits - at);
    return s;
}

Text text_new(Arena *mem) {
    Text t = {.mem = mem, .s = arena_alloc(mem, 64), .cap = 64};
    return t;
}

void text_add_bytes(Text *t, const void *p, size_t n) {
    if (t->n + n + 1 > t->cap) {
        size_t cap = MAX(t->cap * 2, t->n + n + 1);
        char *grown = arena_alloc(t->mem, cap);
        memcpy(grown, t->s, t->n);
        t->s = grown;
        t->cap = cap;
    }
    memcpy(t->s + t->n, p, n);
    t->n += n;
    t->s[t->n] = 0;
}

void text_print(const Text *t) {
    if (fwrite(t->s, 1, t->n, stdout) != t->n || fflush(stdout))
        fail(EXIT_DATA, "cannot write to stdout: %s", strerror(errno));
}

void text_add_ints(Text *t, const char *between, const int64_t *v, int n) {
    for (int i = 0; i < n; i++) text_add(t, "%s%lld", i ? between : "", (long long)v[i]);
}

void text_add(Text *t, const char *fmt, ...) {
    char small[256];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    va_end(ap);
    check(n >= 0);
    if ((size_t)n < sizeof small) {
        text_add_bytes(t, small, (size_t)n);
    } else {
        text_add_bytes(t, arena_vprintf(t->mem, fmt, again), (size_t)n);
    }
    va_end(again);
}

void text_add_word(Text *t, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_./:=,@%+-";
    if (*word && !word[strspn(word, plain)]) {
        text_add(t, "%s", word);
        return;
    }
    text_add(t, "'");
    for (; *word; word++) text_add(t, "%.1s%s", word, *word == '\'' ? "\\''" : "");
    text_add(t, "'");
}

/* Failures. */

void (*exit_hook)(int code);
bool (*failure_hook)(int code, const char *message);
static _Thread_local SourcePos failing_at;
static _Thread_local const char *failing_about;

void catch_begin(Catch *c) {
    c->code = 0;
    c->message[0] = 0;
    c->scratch = NULL;
    c->outer = catch_top;
    catch_top = c;
}

void catch_end(Catch *c) {
    check(catch_top == c && !c->scratch);
    catch_top = c->outer;
}

const char *program_name = "stator";
static const char error_mark[] = ": error: ";

const char *catch_text(const Catch *c) {
    size_t name = strlen(program_name), mark = strlen(error_mark);
    bool prefixed = !strncmp(c->message, program_name, name) &&
                    !strncmp(c->message + name, error_mark, mark);
    return c->message + (prefixed ? name + mark : 0);
}

/* U+0080 .. U+009F are control characters too. */
static bool control_at(const unsigned char *p, LinesKept lines) {
    if (lines != LINES_NONE && *p == '\t') return false;
    if (lines != LINES_NONE && *p == '\n')
        return lines == LINES_INDENTED && (p[1] != ' ' || p[2] != ' ');
    return *p < 0x20 || *p == 0x7F || (p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0);
}

char *make_printable(char *text, LinesKept lines) {
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (control_at(p, lines)) *p = '?';
    return text;
}

void say_aside(const char *fmt, ...) {
    char line[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s\n", make_printable(line, LINES_INDENTED));
}

static _Noreturn void leave(int code, const char *said) {
    Catch *c = catch_top;
    char message[sizeof c->message];
    snprintf(message, sizeof message, "%s", said);
    make_printable(message, LINES_ALL);
    if (c) {
        catch_top = c->outer;
        c->code = code;
        c->at = failing_at;
        c->about = failing_about;
        failing_at = (SourcePos){0};
        failing_about = NULL;
        snprintf(c->message, sizeof c->message, "%s", message);
        while (c->scratch) arena_free(c->scratch);
        longjmp(c->jump, 1);
    }
    if (!failure_hook || !failure_hook(code, message)) fprintf(stderr, "%s\n", message);
    if (exit_hook) exit_hook(code);
    exit(code);
}

_Noreturn void fail_again(int code, const char *message) {
    leave(code, message);
}

_Noreturn void catch_again(const Catch *c) {
    failing_about = c->about;
    leave(c->code, c->message);
}

_Noreturn void catch_fail_at(const Catch *c, SourcePos at) {
    if (c->at.line || !at.line) fail_again(c->code, c->message);
    fail_at(c->code, at, NULL, "%s", catch_text(c));
}

static _Noreturn void fail_with(int code, const char *fmt, va_list ap) {
    char message[3072], whole[3200];
    vsnprintf(message, sizeof message, fmt, ap);
    snprintf(whole, sizeof whole, "%s%s%s", program_name, error_mark, message);
    leave(code, make_printable(whole, LINES_INDENTED));
}

_Noreturn void fail(int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail_with(code, fmt, ap);
}

_Noreturn void fail_about(const char *what, int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    failing_about = what;
    fail_with(code, fmt, ap);
}

/* The text of line `line`, without its end, cut to fit `out`. */
static void source_line(const char *text, int line, char *out, size_t size) {
    while (--line > 0 && text) {
        text = strchr(text, '\n');
        if (text) text++;
    }
    size_t n = text ? strcspn(text, "\r\n") : 0;
    n = MIN(n, size - 1);
    memcpy(out, text ? text : "", n);
    out[n] = 0;
}

_Noreturn void fail_at(int code, SourcePos at, const char *hint, const char *fmt, ...) {
    char message[2048], line[200], whole[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    const char *file = at.file ? at.file : "input";
    source_line(at.text, at.line - at.before, line, sizeof line);
    if (!at.col) at.col = 1 + (int)strspn(line, " \t");
    int n = at.line > 0
                ? snprintf(whole, sizeof whole, "%.500s:%d:%d: error: %s", file, at.line,
                           at.col, message)
                : snprintf(whole, sizeof whole, "%.500s: error: %s", file, message);
    if (at.text && at.line > 0) {
        int caret = MIN(MAX(at.col - 1, 0), (int)strlen(line));
        n += snprintf(whole + n, sizeof whole - (size_t)n, "\n    %s\n    %*s^", line,
                      caret, "");
    }
    if (at.alias)
        n += snprintf(whole + n, sizeof whole - (size_t)n,
                      "\n    used by the alias in line %d", at.alias);
    if (hint) snprintf(whole + n, sizeof whole - (size_t)n, "\n    hint: %.500s", hint);
    failing_at = at;
    leave(code, make_printable(whole, LINES_INDENTED));
}

_Noreturn void die_at(const char *file, int line, const char *fmt, ...) {
    char message[2048], whole[2560];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof whole,
             "stator: internal error at %.200s:%d: %s\nThis is a bug in stator; please "
             "report it with the command and the last dump (--dump_ir DIR).",
             file, line, message);
    if (!failure_hook || !failure_hook(EXIT_INTERNAL, whole))
        fprintf(stderr, "%s\n", whole);
    if (exit_hook) exit_hook(EXIT_INTERNAL);
    abort();
}

/* Edit distance, capped: enough to tell a typo from another word. */
static int edit_distance(const char *a, const char *b) {
    int na = (int)strlen(a), nb = (int)strlen(b), row[129];
    if (na > 128 || nb > 128) return 1000;
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int keep = row[j];
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            row[j] = MIN(replace, MIN(row[j], row[j - 1]) + 1);
            diagonal = keep;
        }
    }
    return row[nb];
}

int name_index(const char *s, const char *const *names, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(s, names[i])) return i;
    return -1;
}

bool is_one_of(const char *s, const char *const *names, int n) {
    return name_index(s, names, n) >= 0;
}

const char *nearest_name(const char *s, const char *const *names, int n) {
    const char *best = NULL;
    int best_distance = MAX(2, (int)strlen(s) / 3) + 1;
    for (int i = 0; i < n; i++) {
        int d = edit_distance(s, names[i]);
        if (d < best_distance) {
            best_distance = d;
            best = names[i];
        }
    }
    return best;
}

double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t hash64(const void *p, size_t n) {
    return XXH3_64bits(p, n);
}

void hash_hex(const void *p, size_t n, char out[HASH_HEX_BYTES]) {
    XXH128_hash_t h = XXH3_128bits(p, n);
    snprintf(out, HASH_HEX_BYTES, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
}

bool text_matches(const char *s, const char *p, const char *end) {
    const char *star = NULL, *back = NULL;
    while (*s) {
        if (p < end && *p == '*')
            star = p++, back = s;
        else if (p < end && *p == *s)
            p++, s++;
        else if (star)
            p = star + 1, s = ++back;
        else
            return false;
    }
    while (p < end && *p == '*') p++;
    return p == end;
}

const char *line_next(const char **at, const char *end, size_t *n) {
    const char *line = *at;
    if (line >= end) return NULL;
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    *n = (size_t)((stop ? stop : end) - line);
    *at = stop ? stop + 1 : end;
    return line;
}

bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

bool is_yaml_name(const char *path) {
    return ends_with(path, ".yaml") || ends_with(path, ".yml");
}

Human human(double v, const char *unit) {
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};
    Human h;
    int p = 0;
    while (v >= 999.5 && p + 1 < ARRAY_LEN(prefix)) v /= 1000, p++;
    int decimals = !p || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
    const char *space = p || *unit ? " " : "";
    snprintf(h.s, sizeof h.s, "%.*f%s%s%s", decimals, v, space, prefix[p], unit);
    return h;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_doubles(double *x, size_t n) {
    qsort(x, n, sizeof *x, by_value);
}
