/* json.c - the JSON parser and its getters; see json.h. The writer is json_write.c. */
#include "base/json.h"
#include "base/json_scan.h"
#include "base/utf8.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_DEPTH = 64, MAX_VALUES = 4 << 20, MAX_NUMBER = 1024, QUOTE_LIMIT = 1 << 20 };

typedef struct JsonSource {
    const char *name, *bytes;
    uint32_t n;
    int before; /* lines of the file before these bytes */
    int code;
    Arena *mem;
} JsonSource;

typedef struct Parser {
    const JsonSource *source;
    Arena *mem;
    JsonScan in;
    int values, depth;
    Json *open
        [MAX_DEPTH]; /* arrays and objects around the position, and their last member */
    Json *last[MAX_DEPTH];
} Parser;

/* Messages. */

static SourcePos pos_of(const JsonSource *f, uint32_t at) {
    SourcePos p = {f->name, NULL, 1 + f->before, 1, f->before};
    uint32_t line_start = 0;
    for (uint32_t i = 0; i < at && i < f->n; i++) {
        if (f->bytes[i] != '\n') continue;
        p.line++;
        line_start = i + 1;
    }
    p.col = (int)(at - line_start) + 1;
    /* A copy, because the source need not be zero-terminated. */
    if (f->n <= QUOTE_LIMIT) p.text = arena_strndup(f->mem, f->bytes, f->n);
    return p;
}

static _Noreturn void bad(const Parser *p, size_t at, const char *hint,
                          const char *what) {
    fail_at(p->source->code, pos_of(p->source, (uint32_t)at), hint, "%s", what);
}

static _Noreturn void scan_failed(const Parser *p) {
    bad(p, p->in.wrong_at, p->in.hint, p->in.wrong);
}

SourcePos json_pos(const Json *v) {
    return pos_of(v->source, v->begin);
}

_Noreturn void json_fail(const Json *v, const char *hint, const char *fmt, ...) {
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_at(v->source->code, json_pos(v), hint, "%s", message);
}

/* Strings. */

static int escape(Parser *p, char *out) {
    size_t start = p->in.at;
    JsonLone lone = JSON_LONE_NONE;
    int size = json_scan_escape(&p->in, out, &lone);
    if (!size) scan_failed(p);
    if (lone)
        bad(p, start, NULL,
            lone == JSON_LONE_LOW ? "low surrogate without a high one"
                                  : "high surrogate without a low one");
    return size;
}

/* Length of the source of the string at p->in.at without its quotes, for the allocation;
 * what it decodes to is never longer. */
static uint32_t string_span(const Parser *p) {
    size_t i = p->in.at + 1;
    while (i < p->in.n && p->in.s[i] != '"') i += p->in.s[i] == '\\' ? 2 : 1;
    if (i >= p->in.n) bad(p, p->in.at, NULL, "string without a closing quote");
    return (uint32_t)(i - p->in.at - 1);
}

static const char *parse_string(Parser *p, uint32_t *length) {
    char *out = arena_alloc(p->mem, (size_t)string_span(p) + 1);
    uint32_t n = 0;
    p->in.at++;
    while (p->in.s[p->in.at] != '"') {
        unsigned char c = (unsigned char)p->in.s[p->in.at];
        if (c == '\\') {
            n += (uint32_t)escape(p, out + n);
            continue;
        }
        if (c < 0x20)
            bad(p, p->in.at, "write it as an escape, \\n or \\u0001",
                "control character in a string");
        int size = c < 0x80 ? 1 : utf8_check(p->in.s + p->in.at, p->in.n - p->in.at);
        if (!size) bad(p, p->in.at, "save the file as UTF-8", "the text is not UTF-8");
        memcpy(out + n, p->in.s + p->in.at, (size_t)size);
        n += (uint32_t)size;
        p->in.at += (size_t)size;
    }
    p->in.at++;
    *length = n;
    return out;
}

/* Numbers and words. */

/* The integer text[n] exactly, as int64 or else uint64; false when it fits neither. */
static bool exact_integer(const char *text, uint32_t n, Json *v) {
    bool minus = text[0] == '-';
    uint64_t u = 0;
    for (uint32_t i = minus; i < n; i++)
        if (!mul_size(u, 10, &u) || !add_size(u, (uint64_t)(text[i] - '0'), &u))
            return false;
    if (minus) {
        if (u == 0 || u > (uint64_t)1 << 63) return false;
        v->kind = JSON_INT;
        v->i = -(int64_t)(u - 1) - 1;
    } else if (u <= INT64_MAX) {
        v->kind = JSON_INT;
        v->i = (int64_t)u;
    } else {
        v->kind = JSON_UINT;
        v->u = u;
    }
    return true;
}

static void parse_number(Parser *p, Json *v) {
    char text[MAX_NUMBER + 1];
    bool whole;
    size_t start = p->in.at;
    if (!json_scan_number(&p->in, &whole)) scan_failed(p);
    uint32_t n = (uint32_t)(p->in.at - start);
    if (n > MAX_NUMBER) bad(p, start, NULL, "number of more than 1024 characters");
    memcpy(text, p->in.s + start, n);
    text[n] = 0;
    if (!whole || !exact_integer(text, n, v)) {
        v->kind = JSON_DOUBLE;
        v->d = strtod(text, NULL);
        if (!isfinite(v->d)) bad(p, start, NULL, "number too large for a double");
    }
}

/* Structure. */

static int compare_keys(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    if (x->key_length != y->key_length) return x->key_length < y->key_length ? -1 : 1;
    return memcmp(x->key, y->key, x->key_length);
}

static int compare_members(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    int order = compare_keys(a, b);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorting, not hashing: no input can make it slow. */
static void close_object(Parser *p, Json *v) {
    v->by_key = NEW_ARRAY(p->mem, const Json *, (size_t)v->n);
    int n = 0;
    for (const Json *e = v->first; e; e = e->next) v->by_key[n++] = e;
    if (n > 1) qsort(v->by_key, (size_t)n, sizeof *v->by_key, compare_members);
    for (int i = 1; i < n; i++) {
        const Json *b = v->by_key[i];
        if (compare_keys(&v->by_key[i - 1], &b) == 0)
            json_fail(b, "keep one of the two", "key '%.200s' is there twice", b->key);
    }
}

/* Adds a new value to the innermost open array or object. */
static Json *add_value(Parser *p, const char *key, uint32_t key_length) {
    if (p->values++ >= MAX_VALUES) bad(p, p->in.at, NULL, "more than 4194304 values");
    Json *v = NEW(p->mem, Json);
    v->source = p->source;
    v->begin = (uint32_t)p->in.at;
    v->key = key;
    v->key_length = key_length;
    if (p->depth == 0) return v;
    Json *parent = p->open[p->depth - 1];
    if (p->last[p->depth - 1])
        p->last[p->depth - 1]->next = v;
    else
        parent->first = v;
    p->last[p->depth - 1] = v;
    parent->n++;
    return v;
}

/* One value; of an array or object only the opening bracket. */
static Json *parse_value(Parser *p, const char *key, uint32_t key_length) {
    Json *v = add_value(p, key, key_length);
    if (p->in.at == p->in.n)
        bad(p, p->in.at, NULL, "the text ends where a value is expected");
    char c = p->in.s[p->in.at];
    if (c == '{' || c == '[') {
        if (p->depth == MAX_DEPTH) bad(p, p->in.at, NULL, "nested deeper than 64");
        v->kind = c == '{' ? JSON_OBJECT : JSON_ARRAY;
        p->in.at++;
        p->last[p->depth] = NULL;
        p->open[p->depth++] = v;
        return v;
    }
    if (c == '"') {
        v->kind = JSON_STRING;
        v->s = parse_string(p, &v->length);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        parse_number(p, v);
    } else if (json_scan_word(&p->in, "true")) {
        v->kind = JSON_BOOL;
        v->b = true;
    } else if (json_scan_word(&p->in, "false")) {
        v->kind = JSON_BOOL;
    } else if (!json_scan_word(&p->in, "null")) {
        bad(p, p->in.at,
            "a value is {...}, [...], \"text\", a number, true, false or null",
            "value expected");
    }
    v->end = (uint32_t)p->in.at;
    return v;
}

/* `"key" :` in front of a member. */
static const char *parse_key(Parser *p, uint32_t *length) {
    if (!json_scan_is(&p->in, '"'))
        bad(p, p->in.at,
            "keys are in double quotes, and no comma follows the last member",
            "key expected");
    const char *key = parse_string(p, length);
    json_scan_space(&p->in);
    if (!json_scan_is(&p->in, ':')) bad(p, p->in.at, NULL, "':' expected");
    p->in.at++;
    json_scan_space(&p->in);
    return key;
}

static void parse_member(Parser *p, bool first) {
    Json *parent = p->open[p->depth - 1];
    bool object = parent->kind == JSON_OBJECT;
    char close = object ? '}' : ']';
    if (json_scan_is(&p->in, close)) {
        p->in.at++;
        parent->end = (uint32_t)p->in.at;
        if (object) close_object(p, parent);
        p->depth--;
        return;
    }
    if (!first) {
        if (p->in.at == p->in.n) bad(p, parent->begin, NULL, "never closed");
        if (p->in.s[p->in.at] != ',')
            bad(p, p->in.at, NULL,
                object ? "',' or '}' expected" : "',' or ']' expected");
        p->in.at++;
        json_scan_space(&p->in);
    }
    uint32_t key_length = 0;
    const char *key = object ? parse_key(p, &key_length) : NULL;
    parse_value(p, key, key_length);
}

const Json *json_parse(Arena *mem, const char *name, const char *bytes, size_t n,
                       uint64_t max_bytes, int code) {
    return json_parse_line(mem, name, 1, bytes, n, max_bytes, code);
}

const Json *json_parse_line(Arena *mem, const char *name, int line, const char *bytes,
                            size_t n, uint64_t max_bytes, int code) {
    if (n > max_bytes || n >= (uint64_t)1 << 31)
        fail(code, "%s: JSON of %zu bytes; at most %llu are read", name, n,
             (unsigned long long)MIN(max_bytes, ((uint64_t)1 << 31) - 1));
    JsonSource *source = NEW(mem, JsonSource);
    *source =
        (JsonSource){arena_strdup(mem, name), bytes, (uint32_t)n, line - 1, code, mem};
    Parser p = {.source = source, .mem = mem, .in = {.s = bytes, .n = n}};
    p.in.at = utf8_mark(bytes, n); /* some editors begin a file with it */
    json_scan_space(&p.in);
    const Json *root = parse_value(&p, NULL, 0);
    json_scan_space(&p.in);
    while (p.depth) {
        parse_member(&p, p.last[p.depth - 1] == NULL);
        json_scan_space(&p.in);
    }
    if (p.in.at != p.in.n)
        bad(&p, p.in.at, NULL, "something follows the end of the value");
    return root;
}

const Json *json_read(Arena *mem, const char *path, uint64_t max_bytes, int code) {
    size_t n;
    char *bytes = file_read(mem, path, max_bytes, &n, code);
    return json_parse(mem, path, bytes, n, max_bytes, code);
}

/* Getters. */

static const char *const kind_name[] = {"null",       "true or false", "an integer",
                                        "an integer", "a number",      "a string",
                                        "an array",   "an object"};

static _Noreturn void wrong_kind(const Json *v, const char *wanted) {
    if (v->key)
        json_fail(v, NULL, "'%.200s' is %s; it must be %s", v->key, kind_name[v->kind],
                  wanted);
    json_fail(v, NULL, "%s where %s is expected", kind_name[v->kind], wanted);
}

const Json *json_get(const Json *v, const char *key) {
    size_t length = strlen(key);
    if (!v || v->kind != JSON_OBJECT || length > UINT32_MAX) return NULL;
    Json want = {.key = key, .key_length = (uint32_t)length};
    const Json *at = &want, **found = bsearch(&at, v->by_key, (size_t)v->n,
                                              sizeof *v->by_key, compare_keys);
    return found ? *found : NULL;
}

const Json *json_need(const Json *v, const char *key) {
    json_want(v, JSON_OBJECT);
    const Json *e = json_get(v, key);
    if (!e) json_fail(v, NULL, "'%.200s' is missing here", key);
    return e;
}

int64_t json_i64(const Json *v, int64_t low, int64_t high) {
    int64_t value = v->i;
    if (v->kind == JSON_DOUBLE && fabs(v->d) < 0x1p53 && v->d == floor(v->d))
        value = (int64_t)v->d;
    else if (v->kind == JSON_DOUBLE || v->kind < JSON_INT || v->kind > JSON_DOUBLE)
        wrong_kind(v, "an integer");
    if (v->kind == JSON_UINT || value < low || value > high)
        json_fail(v, NULL, "'%.200s' must be between %lld and %lld",
                  v->key ? v->key : "it", (long long)low, (long long)high);
    return value;
}

double json_f64(const Json *v) {
    if (v->kind == JSON_DOUBLE) return v->d;
    if (v->kind == JSON_INT) return (double)v->i;
    if (v->kind == JSON_UINT) return (double)v->u;
    wrong_kind(v, "a number");
}

bool json_bool(const Json *v) {
    if (v->kind != JSON_BOOL) wrong_kind(v, "true or false");
    return v->b;
}

const char *json_string(const Json *v) {
    if (v->kind != JSON_STRING) wrong_kind(v, "a string");
    if (strlen(v->s) != v->length) json_fail(v, NULL, "string with a zero byte inside");
    return v->s;
}

void json_want(const Json *v, JsonKind kind) {
    if (v->kind != kind) wrong_kind(v, kind_name[kind]);
}

static const Json *optional(const Json *v, const char *key) {
    const Json *e = json_get(v, key);
    return e && e->kind != JSON_NULL ? e : NULL;
}

int64_t json_get_i64(const Json *v, const char *key, int64_t low, int64_t high,
                     int64_t otherwise) {
    const Json *e = optional(v, key);
    return e ? json_i64(e, low, high) : otherwise;
}

double json_get_f64(const Json *v, const char *key, double otherwise) {
    const Json *e = optional(v, key);
    return e ? json_f64(e) : otherwise;
}

bool json_get_bool(const Json *v, const char *key, bool otherwise) {
    const Json *e = optional(v, key);
    return e ? json_bool(e) : otherwise;
}

const char *json_get_string(const Json *v, const char *key, const char *otherwise) {
    const Json *e = optional(v, key);
    return e ? json_string(e) : otherwise;
}

char *json_raw(Arena *mem, const Json *v) {
    return arena_strndup(mem, v->source->bytes + v->begin, v->end - v->begin);
}
