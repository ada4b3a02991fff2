/* json.c - the JSON parser and its getters; see json.h. The writer is json_write.c. */
#include "base/json.h"
#include "base/utf8.h"
#include <math.h>
#include <stdlib.h>

enum { MAX_DEPTH = 64, MAX_VALUES = 4 << 20, MAX_NUMBER = 1024, QUOTE_LIMIT = 1 << 20 };

typedef struct JsonSource {
    const char *name, *bytes;
    uint32_t n;
    int code;
    Arena *mem;
} JsonSource;

typedef struct Parser {
    const JsonSource *source;
    Arena *mem;
    const char *s;
    uint32_t n, at;
    int values, depth;
    Json
        *open[MAX_DEPTH]; /* arrays and objects around the place, and their last member */
    Json *last[MAX_DEPTH];
} Parser;

/* Messages. */

static Place place_of(const JsonSource *f, uint32_t at) {
    Place p = {f->name, NULL, 1, 1};
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

static _Noreturn void bad(const Parser *p, uint32_t at, const char *hint,
                          const char *what) {
    fail_at(p->source->code, place_of(p->source, at), hint, "%s", what);
}

Place json_place(const Json *v) {
    return place_of(v->source, v->begin);
}

_Noreturn void json_fail(const Json *v, const char *hint, const char *fmt, ...) {
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    fail_at(v->source->code, json_place(v), hint, "%s", message);
}

/* Strings. */

static int hex4(const Parser *p, uint32_t at) {
    int value = 0;
    if (p->n - at < 4) return -1;
    for (uint32_t i = at; i < at + 4; i++) {
        int c = (unsigned char)p->s[i], digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            digit = (c | 32) - 'a' + 10;
        else
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* \uXXXX with p->at behind the 'u'; a pair of surrogates makes one character. */
static int unicode_escape(Parser *p, char *out) {
    uint32_t start = p->at - 2;
    int c = hex4(p, p->at);
    if (c < 0) bad(p, start, NULL, "\\u needs four hexadecimal digits");
    p->at += 4;
    if (c >= 0xDC00 && c <= 0xDFFF)
        bad(p, start, NULL, "low surrogate without a high one");
    if (c >= 0xD800 && c <= 0xDBFF) {
        bool pair = p->n - p->at >= 6 && p->s[p->at] == '\\' && p->s[p->at + 1] == 'u';
        int low = pair ? hex4(p, p->at + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            bad(p, start, NULL, "high surrogate without a low one");
        p->at += 6;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return utf8_put((uint32_t)c, out);
}

static int escape(Parser *p, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (p->n - p->at < 2) bad(p, p->at, NULL, "the text ends inside a string");
    char c = p->s[p->at + 1];
    p->at += 2;
    if (c == 'u') return unicode_escape(p, out);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found)
        bad(p, p->at - 2, "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX",
            "unknown escape in a string");
    *out = to[found - from];
    return 1;
}

/* Length of the source of the string at p->at without its quotes, for the allocation;
 * what it decodes to is never longer. */
static uint32_t string_span(const Parser *p) {
    uint32_t i = p->at + 1;
    while (i < p->n && p->s[i] != '"') i += p->s[i] == '\\' ? 2 : 1;
    if (i >= p->n) bad(p, p->at, NULL, "string without a closing quote");
    return i - p->at - 1;
}

static const char *parse_string(Parser *p, uint32_t *length) {
    char *out = arena_alloc(p->mem, (size_t)string_span(p) + 1);
    uint32_t n = 0;
    p->at++;
    while (p->s[p->at] != '"') {
        unsigned char c = (unsigned char)p->s[p->at];
        if (c == '\\') {
            n += (uint32_t)escape(p, out + n);
            continue;
        }
        if (c < 0x20)
            bad(p, p->at, "write it as an escape, \\n or \\u0001",
                "control character in a string");
        int size = c < 0x80 ? 1 : utf8_check(p->s + p->at, p->n - p->at);
        if (!size) bad(p, p->at, "save the file as UTF-8", "the text is not UTF-8");
        memcpy(out + n, p->s + p->at, (size_t)size);
        n += (uint32_t)size;
        p->at += (uint32_t)size;
    }
    p->at++;
    *length = n;
    return out;
}

/* Numbers and words. */

static uint32_t digits(const Parser *p, uint32_t at) {
    while (at < p->n && p->s[at] >= '0' && p->s[at] <= '9') at++;
    return at;
}

/* End of the number at p->at by the grammar of RFC 8259, section 6. */
static uint32_t number_end(const Parser *p, bool *whole) {
    uint32_t start = p->at + (p->s[p->at] == '-'), at = digits(p, start);
    *whole = true;
    if (at == start) bad(p, p->at, NULL, "digit expected");
    if (p->s[start] == '0' && at > start + 1)
        bad(p, p->at, "drop the leading zeros", "number with a leading zero");
    if (at < p->n && p->s[at] == '.') {
        uint32_t from = at + 1;
        at = digits(p, from);
        if (at == from) bad(p, at, NULL, "digit expected behind the point");
        *whole = false;
    }
    if (at < p->n && (p->s[at] | 32) == 'e') {
        uint32_t from = at + 1;
        if (from < p->n && (p->s[from] == '+' || p->s[from] == '-')) from++;
        at = digits(p, from);
        if (at == from) bad(p, at, NULL, "digit expected in the exponent");
        *whole = false;
    }
    return at;
}

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
    uint32_t end = number_end(p, &whole), n = end - p->at;
    if (n > MAX_NUMBER) bad(p, p->at, NULL, "number of more than 1024 characters");
    memcpy(text, p->s + p->at, n);
    text[n] = 0;
    if (!whole || !exact_integer(text, n, v)) {
        v->kind = JSON_DOUBLE;
        v->d = strtod(text, NULL);
        if (!isfinite(v->d)) bad(p, p->at, NULL, "number too large for a double");
    }
    p->at = end;
}

static bool parse_word(Parser *p, const char *word) {
    size_t n = strlen(word);
    if (p->n - p->at < n || memcmp(p->s + p->at, word, n)) return false;
    p->at += (uint32_t)n;
    return true;
}

/* Structure. */

static void skip_space(Parser *p) {
    while (p->at < p->n) {
        char c = p->s[p->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
        p->at++;
    }
}

static int compare_keys(const char *a, uint32_t an, const char *b, uint32_t bn) {
    if (an != bn) return an < bn ? -1 : 1;
    return memcmp(a, b, an);
}

static int compare_members(const void *a, const void *b) {
    const Json *x = *(const Json *const *)a, *y = *(const Json *const *)b;
    int order = compare_keys(x->key, x->key_length, y->key, y->key_length);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorting, not hashing: no input can make it slow. */
static void close_object(Parser *p, Json *v) {
    v->by_key = NEW_ARRAY(p->mem, const Json *, (size_t)v->n);
    int n = 0;
    for (const Json *e = v->first; e; e = e->next) v->by_key[n++] = e;
    if (n > 1) qsort(v->by_key, (size_t)n, sizeof *v->by_key, compare_members);
    for (int i = 1; i < n; i++) {
        const Json *a = v->by_key[i - 1], *b = v->by_key[i];
        if (compare_keys(a->key, a->key_length, b->key, b->key_length) == 0)
            json_fail(b, "keep one of the two", "key '%.200s' is there twice", b->key);
    }
}

/* Adds a new value to the innermost open array or object. */
static Json *add_value(Parser *p, const char *key, uint32_t key_length) {
    if (p->values++ >= MAX_VALUES) bad(p, p->at, NULL, "more than 4194304 values");
    Json *v = NEW(p->mem, Json);
    v->source = p->source;
    v->begin = p->at;
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
    if (p->at == p->n) bad(p, p->at, NULL, "the text ends where a value is expected");
    char c = p->s[p->at];
    if (c == '{' || c == '[') {
        if (p->depth == MAX_DEPTH) bad(p, p->at, NULL, "nested deeper than 64");
        v->kind = c == '{' ? JSON_OBJECT : JSON_ARRAY;
        p->at++;
        p->last[p->depth] = NULL;
        p->open[p->depth++] = v;
        return v;
    }
    if (c == '"') {
        v->kind = JSON_STRING;
        v->s = parse_string(p, &v->length);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        parse_number(p, v);
    } else if (parse_word(p, "true")) {
        v->kind = JSON_BOOL;
        v->b = true;
    } else if (parse_word(p, "false")) {
        v->kind = JSON_BOOL;
    } else if (!parse_word(p, "null")) {
        bad(p, p->at, "a value is {...}, [...], \"text\", a number, true, false or null",
            "value expected");
    }
    v->end = p->at;
    return v;
}

/* `"key" :` in front of a member. */
static const char *parse_key(Parser *p, uint32_t *length) {
    if (p->at == p->n || p->s[p->at] != '"')
        bad(p, p->at, "keys stand in double quotes, and no comma behind the last member",
            "key expected");
    const char *key = parse_string(p, length);
    skip_space(p);
    if (p->at == p->n || p->s[p->at] != ':') bad(p, p->at, NULL, "':' expected");
    p->at++;
    skip_space(p);
    return key;
}

static void parse_member(Parser *p, bool first) {
    Json *parent = p->open[p->depth - 1];
    bool object = parent->kind == JSON_OBJECT;
    char close = object ? '}' : ']';
    if (p->at < p->n && p->s[p->at] == close) {
        p->at++;
        parent->end = p->at;
        if (object) close_object(p, parent);
        p->depth--;
        return;
    }
    if (!first) {
        if (p->at == p->n) bad(p, parent->begin, NULL, "never closed");
        if (p->s[p->at] != ',')
            bad(p, p->at, NULL, object ? "',' or '}' expected" : "',' or ']' expected");
        p->at++;
        skip_space(p);
    }
    uint32_t key_length = 0;
    const char *key = object ? parse_key(p, &key_length) : NULL;
    parse_value(p, key, key_length);
}

const Json *json_parse(Arena *mem, const char *name, const char *bytes, size_t n,
                       uint64_t max_bytes, int code) {
    if (n > max_bytes || n >= (uint64_t)1 << 31)
        fail(code, "%s: JSON of %zu bytes; at most %llu are read", name, n,
             (unsigned long long)MIN(max_bytes, ((uint64_t)1 << 31) - 1));
    JsonSource *source = NEW(mem, JsonSource);
    *source = (JsonSource){arena_strdup(mem, name), bytes, (uint32_t)n, code, mem};
    Parser p = {.source = source, .mem = mem, .s = bytes, .n = (uint32_t)n};
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors begin a file with it */
    if (n >= 3 && !memcmp(bytes, mark, 3)) p.at = 3;
    skip_space(&p);
    const Json *root = parse_value(&p, NULL, 0);
    skip_space(&p);
    while (p.depth) {
        parse_member(&p, p.last[p.depth - 1] == NULL);
        skip_space(&p);
    }
    if (p.at != p.n) bad(&p, p.at, NULL, "something follows the end of the value");
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
    if (v->kind != JSON_OBJECT) return NULL;
    size_t length = strlen(key);
    int low = 0, high = v->n;
    while (low < high) {
        int mid = low + (high - low) / 2;
        const Json *e = v->by_key[mid];
        int order = length > UINT32_MAX
                        ? -1
                        : compare_keys(e->key, e->key_length, key, (uint32_t)length);
        if (order == 0) return e;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
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
