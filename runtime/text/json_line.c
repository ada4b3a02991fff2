/* json_line.c - see json_line.h. One pass over the line; open objects and arrays are
 * bits, so depth costs no stack. */
#include "runtime/text/json_line.h"
#include "base/json_scan.h"

enum { MAX_DEPTH = 512 };

typedef struct Line {
    JsonLine *out;
    JsonScan in;
    uint64_t is_object[MAX_DEPTH / 64];
    int depth;
} Line;

static bool bad(Line *l, size_t at, const char *what) {
    l->out->wrong = what;
    l->out->wrong_at = at;
    return false;
}

/* Strings. */

/* The string at l->in.at, decoded to out (which has room: text never grows by decoding) or,
 * with NULL, nowhere. A key or value that nobody wants counts no surrogates. */
static bool read_string(Line *l, char *out, size_t *n) {
    char nowhere[4];
    size_t start = l->in.at++, written = 0;
    for (;;) {
        size_t end = json_scan_plain(&l->in);
        if (out) memcpy(out + written, l->in.s + l->in.at, end - l->in.at);
        written += end - l->in.at;
        l->in.at = end;
        if (end == l->in.n) return bad(l, start, "string without a closing quote");
        if (l->in.s[end] == '"') break;
        if (l->in.s[end] != '\\') return bad(l, end, "control character in a string");
        JsonLone lone = JSON_LONE_NONE;
        int size = json_scan_escape(&l->in, out ? out + written : nowhere, &lone);
        if (!size) return bad(l, end, "no such escape in a string");
        written += (size_t)size;
        if (out) l->out->surrogates += lone != JSON_LONE_NONE;
    }
    l->in.at++;
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

static bool read_number(Line *l) {
    bool whole;
    return json_scan_word(&l->in, "-Infinity") || json_scan_number(&l->in, &whole) ||
           bad(l, l->in.wrong_at, l->in.wrong);
}

static bool read_scalar(Line *l) {
    char c = l->in.s[l->in.at];
    if (c == '"') return read_string(l, NULL, NULL);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(l);
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity"};
    for (int i = 0; i < ARRAY_LEN(words); i++)
        if (json_scan_word(&l->in, words[i])) return true;
    return bad(l, l->in.at, "value expected");
}

static bool open_bracket(Line *l) {
    if (l->depth == MAX_DEPTH) return bad(l, l->in.at, "nested deeper than 512");
    uint64_t bit = (uint64_t)1 << (l->depth % 64), *bits = &l->is_object[l->depth / 64];
    *bits = l->in.s[l->in.at] == '{' ? *bits | bit : *bits & ~bit;
    l->depth++;
    l->in.at++;
    return true;
}

static bool skip_key(Line *l) {
    if (!json_scan_is(&l->in, '"')) return bad(l, l->in.at, "key expected");
    if (!read_string(l, NULL, NULL)) return false;
    json_scan_space(&l->in);
    if (!json_scan_is(&l->in, ':')) return bad(l, l->in.at, "':' expected");
    l->in.at++;
    json_scan_space(&l->in);
    return true;
}

/* Before the next element: closes, or steps over the comma (and the key). */
static bool next_element(Line *l, bool first, bool *closed) {
    int top = l->depth - 1;
    bool object = l->is_object[top / 64] >> (top % 64) & 1;
    json_scan_space(&l->in);
    if (l->in.at == l->in.n)
        return bad(l, l->in.at, "the line ends inside an object or array");
    *closed = l->in.s[l->in.at] == (object ? '}' : ']');
    if (*closed) {
        l->in.at++;
        l->depth--;
        return true;
    }
    if (!first) {
        if (l->in.s[l->in.at] != ',')
            return bad(l, l->in.at,
                       object ? "',' or '}' expected" : "',' or ']' expected");
        l->in.at++;
        json_scan_space(&l->in);
        /* Only now: [1,] is wrong, [] is not. */
        if (l->in.at < l->in.n && (l->in.s[l->in.at] == '}' || l->in.s[l->in.at] == ']'))
            return bad(l, l->in.at, "nothing follows the comma");
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
        if (l->in.at == l->in.n)
            return bad(l, l->in.at, "the line ends where a value is expected");
        char c = l->in.s[l->in.at];
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
        if (!json_scan_is(&l->in, '"')) {
            l->out->wrong_key = k;
            return bad(l, l->in.at, "its array must hold strings alone");
        }
        if (!read_piece(l)) return false;
    }
}

static bool read_wanted(Line *l, int k) {
    JsonLine *j = l->out;
    if (l->in.at == l->in.n)
        return bad(l, l->in.at, "the line ends where a value is expected");
    size_t first = pieces_of(j);
    char c = l->in.s[l->in.at];
    if (c != '"' && c != '[') {
        j->wrong_key = k;
        return bad(l, l->in.at, "its value is no string");
    }
    if (c == '"' ? !read_piece(l) : !read_strings(l, k)) return false;
    j->key[k].there = true;
    j->key[k].first = first;
    j->key[k].n = pieces_of(j) - first;
    return true;
}

/* The key at l->in.at and the ':' after it; *k which of keys it is, or -1. */
static bool read_key(Line *l, const char *const *keys, int nkeys, int *k) {
    JsonLine *j = l->out;
    size_t start = l->in.at, n;
    uint64_t surrogates = j->surrogates;
    if (!json_scan_is(&l->in, '"')) return bad(l, l->in.at, "key expected");
    char *name = j->text.p + j->text.n;
    if (!read_string(l, name, &n)) return false;
    j->surrogates = surrogates;
    *k = -1;
    for (int i = 0; i < nkeys; i++)
        if (strlen(keys[i]) == n && !memcmp(name, keys[i], n)) *k = i;
    l->in.at = start;
    return skip_key(l);
}

static bool read_members(Line *l, const char *const *keys, int nkeys) {
    if (!json_scan_is(&l->in, '{')) return bad(l, l->in.at, "an object {...} expected");
    l->in.at++;
    json_scan_space(&l->in);
    for (bool first = true; !json_scan_is(&l->in, '}'); first = false) {
        int k;
        if (!first) {
            if (l->in.at == l->in.n)
                return bad(l, l->in.at, "the line ends inside its object");
            if (l->in.s[l->in.at] != ',') return bad(l, l->in.at, "',' or '}' expected");
            l->in.at++;
            json_scan_space(&l->in);
        }
        if (!read_key(l, keys, nkeys, &k)) return false;
        if (k < 0 ? !skip_value(l) : !read_wanted(l, k)) return false;
        json_scan_space(&l->in);
    }
    l->in.at++;
    json_scan_space(&l->in);
    return l->in.at == l->in.n || bad(l, l->in.at, "something follows the object");
}

bool json_line_read(JsonLine *j, const char *line, size_t n, const char *const *keys,
                    int nkeys) {
    check(nkeys >= 0 && nkeys <= JSON_LINE_KEYS);
    Line l = {.out = j, .in = {.s = line, .n = n}};
    j->text.n = j->pieces.n = 0;
    j->wrong = NULL;
    j->wrong_key = -1;
    for (int k = 0; k < nkeys; k++) j->key[k].there = false;
    buffer_room(&j->text, n);
    json_scan_space(&l.in);
    if (!read_members(&l, keys, nkeys)) return false;
    for (int k = 0; k < nkeys; k++) {
        if (j->key[k].there) continue;
        j->wrong_key = k;
        return bad(&l, 0, "the line does not have it");
    }
    return true;
}
