/* json_write.c - the JSON writer; see json.h. */
#include "base/json.h"
#include "base/utf8.h"
#include <inttypes.h>
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

static void write_scalar(Text *t, const Json *v) {
    switch (v->kind) {
    case JSON_NULL:
        text_add(t, "null");
        break;
    case JSON_BOOL:
        text_add(t, v->b ? "true" : "false");
        break;
    case JSON_INT:
        text_add(t, "%" PRId64, v->i);
        break;
    case JSON_UINT:
        text_add(t, "%" PRIu64, v->u);
        break;
    case JSON_DOUBLE:
        json_write_double(t, v->d);
        break;
    case JSON_STRING:
        json_write_bytes(t, v->s, v->length);
        break;
    default:
        die("no scalar: kind %d", v->kind);
    }
}

void json_write(Text *t, const Json *v) {
    const Json *open[65]; /* containers around v; the parser allows 64 */
    int depth = 0;
    for (;;) {
        if (v->key && depth) {
            json_write_bytes(t, v->key, v->key_length);
            text_add_bytes(t, ":", 1);
        }
        bool container = v->kind >= JSON_ARRAY;
        if (container) {
            text_add_bytes(t, v->kind == JSON_OBJECT ? "{" : "[", 1);
            check(depth < ARRAY_LEN(open));
            open[depth++] = v;
            if (v->first) {
                v = v->first;
                continue;
            }
        } else {
            write_scalar(t, v);
        }
        /* Close what ends here; then go on with the next sibling. */
        if (container) {
            text_add_bytes(t, v->kind == JSON_OBJECT ? "}" : "]", 1);
            depth--;
        }
        while (depth && !v->next) {
            v = open[--depth];
            text_add_bytes(t, v->kind == JSON_OBJECT ? "}" : "]", 1);
        }
        if (!depth) return;
        text_add_bytes(t, ",", 1);
        v = v->next;
    }
}
