/* json_line.c - see json_line.h. One pass over the line; objects and arrays that are open
 * are bits, so depth costs no stack. */
#include "runtime/text/json_line.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 512 };

typedef struct Line {
    JsonLine *out;
    const char *s;
    size_t n, at;
    uint64_t is_object[MAX_DEPTH / 64];
    int depth;
} Line;

static bool bad(Line *l, size_t at, const char *what) {
    l->out->wrong = what;
    l->out->wrong_at = at;
    return false;
}

static void skip_space(Line *l) {
    while (l->at < l->n) {
        char c = l->s[l->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
        l->at++;
    }
}

/* Strings. */

static int hex4(const Line *l, size_t at) {
    int value = 0;
    if (l->n - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        int c = (unsigned char)l->s[i];
        if (c >= '0' && c <= '9')
            c -= '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            c = (c | 32) - 'a' + 10;
        else
            return -1;
        value = value * 16 + c;
    }
    return value;
}

/* \uXXXX with l->at behind the 'u'. Up to 4 bytes to out; -1: no four digits. */
static int unicode_escape(Line *l, char *out) {
    int c = hex4(l, l->at);
    if (c < 0) return -1;
    l->at += 4;
    if (c >= 0xD800 && c <= 0xDBFF) {
        bool pair = l->n - l->at >= 6 && l->s[l->at] == '\\' && l->s[l->at + 1] == 'u';
        int low = pair ? hex4(l, l->at + 2) : -1;
        if (low >= 0xDC00 && low <= 0xDFFF) {
            l->at += 6;
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    if (c >= 0xD800 && c <= 0xDFFF) {
        l->out->surrogates++;
        c = 0xFFFD;
    }
    return utf8_put((uint32_t)c, out);
}

/* The escape at l->at to out; -1 when there is no such. */
static int escape(Line *l, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = l->n - l->at < 2 ? 0 : l->s[l->at + 1];
    const char *found = c ? strchr(from, c) : NULL;
    if (c != 'u' && !found) return -1;
    l->at += 2;
    if (c == 'u') return unicode_escape(l, out);
    *out = to[found - from];
    return 1;
}

/* Where the run of plain characters from `at` on ends. */
static size_t plain_end(const Line *l, size_t at) {
    while (at < l->n) {
        unsigned char c = (unsigned char)l->s[at];
        if (c == '"' || c == '\\' || c < 0x20) break;
        at++;
    }
    return at;
}

/* The string at l->at, decoded to out (which has room: text never grows by decoding) or,
 * with NULL, nowhere. A key or value that nobody wants counts no surrogates. */
static bool read_string(Line *l, char *out, size_t *n) {
    char nowhere[4];
    size_t start = l->at++, written = 0;
    uint64_t surrogates = l->out->surrogates;
    for (;;) {
        size_t end = plain_end(l, l->at);
        if (out) memcpy(out + written, l->s + l->at, end - l->at);
        written += end - l->at;
        l->at = end;
        if (end == l->n) return bad(l, start, "string without a closing quote");
        if (l->s[end] == '"') break;
        if (l->s[end] != '\\') return bad(l, end, "control character in a string");
        int size = escape(l, out ? out + written : nowhere);
        if (size < 0) return bad(l, end, "no such escape in a string");
        written += (size_t)size;
    }
    l->at++;
    if (!out) l->out->surrogates = surrogates;
    if (n) *n = written;
    return true;
}

/* A string as the next piece. */
static bool read_piece(Line *l) {
    JsonLine *j = l->out;
    JsonLineText t = {j->text.n, 0};
    if (!read_string(l, j->text.p + t.begin, &t.n)) return false;
    j->text.n += t.n;
    buffer_add(&j->pieces, &t, sizeof t);
    return true;
}

/* Values that nobody wants. */

static size_t digits(const Line *l, size_t at) {
    while (at < l->n && l->s[at] >= '0' && l->s[at] <= '9') at++;
    return at;
}

static bool word(Line *l, const char *what) {
    size_t n = strlen(what);
    if (l->n - l->at < n || memcmp(l->s + l->at, what, n)) return false;
    l->at += n;
    return true;
}

/* RFC 8259, section 6. */
static bool read_number(Line *l) {
    if (word(l, "-Infinity")) return true;
    size_t start = l->at + (l->s[l->at] == '-'), at = digits(l, start);
    if (at == start) return bad(l, l->at, "digit expected");
    if (l->s[start] == '0' && at > start + 1)
        return bad(l, l->at, "number with a leading zero");
    if (at < l->n && l->s[at] == '.') {
        size_t from = at + 1;
        at = digits(l, from);
        if (at == from) return bad(l, at, "digit expected behind the point");
    }
    if (at < l->n && (l->s[at] | 32) == 'e') {
        size_t from = at + 1;
        if (from < l->n && (l->s[from] == '+' || l->s[from] == '-')) from++;
        at = digits(l, from);
        if (at == from) return bad(l, at, "digit expected in the exponent");
    }
    l->at = at;
    return true;
}

static bool read_scalar(Line *l) {
    char c = l->s[l->at];
    if (c == '"') return read_string(l, NULL, NULL);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(l);
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity"};
    for (int i = 0; i < ARRAY_LEN(words); i++)
        if (word(l, words[i])) return true;
    return bad(l, l->at, "value expected");
}

static bool open_bracket(Line *l) {
    if (l->depth == MAX_DEPTH) return bad(l, l->at, "nested deeper than 512");
    uint64_t bit = (uint64_t)1 << (l->depth % 64), *bits = &l->is_object[l->depth / 64];
    *bits = l->s[l->at] == '{' ? *bits | bit : *bits & ~bit;
    l->depth++;
    l->at++;
    return true;
}

static bool skip_key(Line *l) {
    if (l->at == l->n || l->s[l->at] != '"') return bad(l, l->at, "key expected");
    if (!read_string(l, NULL, NULL)) return false;
    skip_space(l);
    if (l->at == l->n || l->s[l->at] != ':') return bad(l, l->at, "':' expected");
    l->at++;
    skip_space(l);
    return true;
}

/* Before the next element: closes, or steps over the comma (and the key). */
static bool next_element(Line *l, bool first, bool *closed) {
    int top = l->depth - 1;
    bool object = l->is_object[top / 64] >> (top % 64) & 1;
    skip_space(l);
    if (l->at == l->n) return bad(l, l->at, "the line ends inside an object or array");
    *closed = l->s[l->at] == (object ? '}' : ']');
    if (*closed) {
        l->at++;
        l->depth--;
        return true;
    }
    if (!first) {
        if (l->s[l->at] != ',')
            return bad(l, l->at, object ? "',' or '}' expected" : "',' or ']' expected");
        l->at++;
        skip_space(l);
        /* Only now: [1,] is wrong, [] is not. */
        if (l->at < l->n && (l->s[l->at] == '}' || l->s[l->at] == ']'))
            return bad(l, l->at, "nothing follows the comma");
    }
    return !object || skip_key(l);
}

static bool skip_value(Line *l) {
    int base = l->depth;
    bool first = false;
    do {
        bool closed = false;
        if (l->depth > base) {
            if (!next_element(l, first, &closed)) return false;
            first = false;
            if (closed) continue;
        }
        if (l->at == l->n) return bad(l, l->at, "the line ends where a value is due");
        char c = l->s[l->at];
        first = c == '{' || c == '[';
        if (first ? !open_bracket(l) : !read_scalar(l)) return false;
    } while (l->depth > base);
    return true;
}

/* Members that are wanted. */

static size_t pieces_of(const JsonLine *j) {
    return j->pieces.n / sizeof(JsonLineText);
}

static bool read_strings(Line *l, int k) {
    if (!open_bracket(l)) return false;
    for (bool first = true;; first = false) {
        bool closed;
        if (!next_element(l, first, &closed)) return false;
        if (closed) return true;
        if (l->at == l->n || l->s[l->at] != '"') {
            l->out->wrong_key = k;
            return bad(l, l->at, "its array must hold strings alone");
        }
        if (!read_piece(l)) return false;
    }
}

static bool read_wanted(Line *l, int k) {
    JsonLine *j = l->out;
    if (l->at == l->n) return bad(l, l->at, "the line ends where a value is due");
    size_t first = pieces_of(j);
    char c = l->s[l->at];
    if (c != '"' && c != '[') {
        j->wrong_key = k;
        return bad(l, l->at, "its value is no string");
    }
    if (c == '"' ? !read_piece(l) : !read_strings(l, k)) return false;
    j->key[k].there = true;
    j->key[k].first = first;
    j->key[k].n = pieces_of(j) - first;
    return true;
}

/* The key at l->at and the ':' behind it; *k which of keys it is, or -1. */
static bool read_key(Line *l, const char *const *keys, int nkeys, int *k) {
    JsonLine *j = l->out;
    size_t start = l->at, n;
    uint64_t surrogates = j->surrogates;
    if (l->at == l->n || l->s[l->at] != '"') return bad(l, l->at, "key expected");
    char *name = j->text.p + j->text.n;
    if (!read_string(l, name, &n)) return false;
    j->surrogates = surrogates;
    *k = -1;
    for (int i = 0; i < nkeys; i++)
        if (strlen(keys[i]) == n && !memcmp(name, keys[i], n)) *k = i;
    l->at = start;
    return skip_key(l);
}

static bool read_members(Line *l, const char *const *keys, int nkeys) {
    if (l->at == l->n || l->s[l->at] != '{')
        return bad(l, l->at, "an object {...} expected");
    l->at++;
    skip_space(l);
    for (bool first = true; l->at == l->n || l->s[l->at] != '}'; first = false) {
        int k;
        if (!first) {
            if (l->at == l->n) return bad(l, l->at, "the line ends inside its object");
            if (l->s[l->at] != ',') return bad(l, l->at, "',' or '}' expected");
            l->at++;
            skip_space(l);
        }
        if (!read_key(l, keys, nkeys, &k)) return false;
        if (k < 0 ? !skip_value(l) : !read_wanted(l, k)) return false;
        skip_space(l);
    }
    l->at++;
    skip_space(l);
    return l->at == l->n || bad(l, l->at, "something follows the object");
}

bool json_line_read(JsonLine *j, const char *line, size_t n, const char *const *keys,
                    int nkeys) {
    check(nkeys >= 0 && nkeys <= JSON_LINE_KEYS);
    Line l = {.out = j, .s = line, .n = n};
    j->text.n = j->pieces.n = 0;
    j->wrong = NULL;
    j->wrong_key = -1;
    for (int k = 0; k < nkeys; k++) j->key[k].there = false;
    buffer_room(&j->text, n);
    skip_space(&l);
    if (!read_members(&l, keys, nkeys)) return false;
    for (int k = 0; k < nkeys; k++) {
        if (j->key[k].there) continue;
        j->wrong_key = k;
        return bad(&l, 0, "the line does not have it");
    }
    return true;
}
