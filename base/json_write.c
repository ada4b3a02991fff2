/* json_write.c - the JSON writer; see json.h. */
#include "base/json.h"
#include "base/utf8.h"
#include <math.h>
#include <stdlib.h>

/* How the byte c must be escaped, or NULL when it can stand for itself. */
static const char *escape_of(unsigned char c, char buffer[8]) {
    if (c == '"') return "\\\"";
    if (c == '\\') return "\\\\";
    if (c == '\n') return "\\n";
    if (c == '\t') return "\\t";
    if (c == '\r') return "\\r";
    if (c >= 0x20 && c != 0x7f) return NULL;
    snprintf(buffer, 8, "\\u%04x", c);
    return buffer;
}

void json_write_bytes(Text *t, const char *s, size_t n) {
    char buffer[8];
    text_add_bytes(t, "\"", 1);
    for (size_t i = 0, plain = 0; i <= n;) {
        int size = 1;
        const char *instead = NULL;
        if (i < n) {
            unsigned char c = (unsigned char)s[i];
            if (c >= 0x80) size = utf8_check(s + i, n - i);
            instead = size == 0 ? "\xEF\xBF\xBD" : c < 0x80 ? escape_of(c, buffer) : NULL;
        }
        if (instead || i == n) {
            text_add_bytes(t, s + plain, i - plain);
            if (instead) text_add_bytes(t, instead, strlen(instead));
            plain = i + 1;
        }
        i += (size_t)MAX(size, 1);
    }
    text_add_bytes(t, "\"", 1);
}

void json_write_string(Text *t, const char *s) {
    json_write_bytes(t, s, strlen(s));
}

void json_write_double(Text *t, double d) {
    char buffer[40];
    if (!isfinite(d)) {
        text_add_bytes(t, "null", 4);
        return;
    }
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(buffer, sizeof buffer, "%.*g", precision, d);
        if (strtod(buffer, NULL) == d) break;
    }
    text_add_bytes(t, buffer, strlen(buffer));
}

void json_add_text(Text *t, const char *before, const char *key, const char *v) {
    text_add(t, "%s\"%s\": ", before, key);
    json_write_string(t, v);
}

void json_add_double(Text *t, const char *before, const char *key, double v) {
    text_add(t, "%s\"%s\": ", before, key);
    json_write_double(t, v);
}

void json_add_bool(Text *t, const char *before, const char *key, bool v) {
    text_add(t, "%s\"%s\": %s", before, key, v ? "true" : "false");
}
