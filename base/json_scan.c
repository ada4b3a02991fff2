/* json_scan.c - see json_scan.h. */
#include "base/json_scan.h"
#include "base/utf8.h"

static int hex4(const JsonScan *j, size_t at) {
    int value = 0;
    if (at > j->n || j->n - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        int c = (unsigned char)j->s[i];
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

/* \uXXXX; a pair of surrogates is one character. */
static int unicode_escape(JsonScan *j, char *out, JsonLone *lone) {
    int c = hex4(j, j->at + 2);
    if (c < 0)
        return json_scan_wrong(j, j->at, "\\u needs four hexadecimal digits", NULL);
    j->at += 6;
    if (c >= 0xD800 && c <= 0xDBFF) {
        bool pair = j->n - j->at >= 6 && j->s[j->at] == '\\' && j->s[j->at + 1] == 'u';
        int low = pair ? hex4(j, j->at + 2) : -1;
        if (low >= 0xDC00 && low <= 0xDFFF) {
            j->at += 6;
            return utf8_put(
                0x10000 + ((uint32_t)(c - 0xD800) << 10) + (uint32_t)(low - 0xDC00), out);
        }
    }
    if (c >= 0xD800 && c <= 0xDFFF) {
        *lone = c < 0xDC00 ? JSON_LONE_HIGH : JSON_LONE_LOW;
        c = 0xFFFD;
    }
    return utf8_put((uint32_t)c, out);
}

int json_scan_escape(JsonScan *j, char *out, JsonLone *lone) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (j->n - j->at < 2)
        return json_scan_wrong(j, j->at, "the text ends inside a string", NULL);
    char c = j->s[j->at + 1];
    if (c == 'u') return unicode_escape(j, out, lone);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found)
        return json_scan_wrong(j, j->at, "unknown escape in a string",
                               "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    j->at += 2;
    *out = to[found - from];
    return 1;
}

static size_t digits(const JsonScan *j, size_t at) {
    while (at < j->n && j->s[at] >= '0' && j->s[at] <= '9') at++;
    return at;
}

bool json_scan_number(JsonScan *j, bool *whole) {
    size_t start = j->at + json_scan_is(j, '-'), at = digits(j, start);
    *whole = true;
    if (at == start) return json_scan_wrong(j, j->at, "digit expected", NULL);
    if (j->s[start] == '0' && at > start + 1)
        return json_scan_wrong(j, j->at, "number with a leading zero",
                               "drop the leading zeros");
    if (at < j->n && j->s[at] == '.') {
        size_t from = at + 1;
        at = digits(j, from);
        if (at == from)
            return json_scan_wrong(j, at, "digit expected after the point", NULL);
        *whole = false;
    }
    if (at < j->n && (j->s[at] | 32) == 'e') {
        size_t from = at + 1;
        if (from < j->n && (j->s[from] == '+' || j->s[from] == '-')) from++;
        at = digits(j, from);
        if (at == from)
            return json_scan_wrong(j, at, "digit expected in the exponent", NULL);
        *whole = false;
    }
    j->at = at;
    return true;
}
