/* json.h - JSON (RFC 8259): a strict parser into an arena tree, getters that fail with a
 * position and a reason, and a writer on Text. */
#ifndef STATOR_JSON_H
#define STATOR_JSON_H
#include "base/base.h"

typedef enum JsonKind {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,    /* written without '.', 'e' and fits int64: exact in `i` */
    JSON_UINT,   /* the same, above INT64_MAX: exact in `u` */
    JSON_DOUBLE, /* any other number, and -0 */
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} JsonKind;

typedef struct Json Json;
struct Json {
    JsonKind kind;
    int n;             /* number of elements or members */
    const char *key;   /* name as a member of an object, else NULL; zero-terminated */
    const Json *first; /* elements in source order: for (e = v->first; e; e = e->next) */
    const Json *next;
    union {
        bool b;
        int64_t i;
        uint64_t u;
        double d;
        const char *s;       /* zero-terminated; may hold zero bytes before `length` */
        const Json **by_key; /* objects: members sorted for json_get */
    };
    uint32_t length, key_length; /* bytes of the string, of the key */
    uint32_t begin, end;         /* source bytes of the value: [begin, end) */
    const struct JsonSource *source;
};

/* Parses one value out of bytes[n]; `name` is the file named in messages. The bytes must
 * stay in place as long as the tree is used. Fails with `code` for anything RFC 8259
 * forbids, and for: invalid UTF-8, lone surrogates, duplicate keys, numbers beyond
 * double, depth over 64, over 4M values, n > max_bytes or n >= 2 GiB. */
const Json *json_parse(Arena *mem, const char *name, const char *bytes, size_t n,
                       uint64_t max_bytes, int code);
/* The same for bytes that begin with line `line` of the file. */
const Json *json_parse_line(Arena *mem, const char *name, int line, const char *bytes,
                            size_t n, uint64_t max_bytes, int code);
/* The same for a file. */
const Json *json_read(Arena *mem, const char *path, uint64_t max_bytes, int code);

/* Member of an object, or NULL when there is none (or v is NULL or no object). O(log n). */
const Json *json_get(const Json *v, const char *key);
/* Member that must be there. */
const Json *json_need(const Json *v, const char *key);

/* Typed values; each fails naming the key, the kind found and the kind wanted.
 * json_i64 takes whole doubles below 2^53 too (1e4, 2.0); json_f64 takes integers.
 * json_string refuses strings with a zero byte inside. */
int64_t json_i64(const Json *v, int64_t low, int64_t high);
double json_f64(const Json *v);
bool json_bool(const Json *v);
const char *json_string(const Json *v);
void json_want(const Json *v, JsonKind kind); /* JSON_ARRAY or JSON_OBJECT, say */

/* The same for an optional member: `otherwise` when it is missing or null, or v is NULL or no
 * object. */
int64_t json_get_i64(const Json *v, const char *key, int64_t low, int64_t high,
                     int64_t otherwise);
double json_get_f64(const Json *v, const char *key, double otherwise);
bool json_get_bool(const Json *v, const char *key, bool otherwise);
const char *json_get_string(const Json *v, const char *key, const char *otherwise);

/* The position of v in its source, and a failure that points there. */
SourcePos json_pos(const Json *v);
_Noreturn void json_fail(const Json *v, const char *hint, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The source bytes of v, copied, zero-terminated. */
char *json_raw(Arena *mem, const Json *v);

/* Writer. Strings come quoted and escaped, bytes that are not UTF-8 become U+FFFD.
 * Doubles are the shortest of %.15g, %.16g, %.17g that reads back the same; NaN and
 * infinities become null. */
void json_write_string(Text *t, const char *s);
void json_write_bytes(Text *t, const char *s, size_t n);
void json_write_double(Text *t, double d);
/* A member of an object; `before` is what separates it from the one before. */
void json_add_text(Text *t, const char *before, const char *key, const char *v);
void json_add_double(Text *t, const char *before, const char *key, double v);
void json_add_bool(Text *t, const char *before, const char *key, bool v);

#endif
