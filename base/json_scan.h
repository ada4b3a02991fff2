/* json_scan.h - the tokens of JSON, for both of its readers: the tree of json.h, and
 * runtime/text/json_line.h, which reads millions of lines without a tree and is as
 * lenient as Python. Each keeps track of nesting itself. */
#ifndef STATOR_JSON_SCAN_H
#define STATOR_JSON_SCAN_H
#include "base/base.h"

typedef struct JsonScan {
    const char *s;
    size_t n, at;
    /* Of the last function that failed: where, what is wrong, and what to write (or
     * NULL). */
    size_t wrong_at;
    const char *wrong, *hint;
} JsonScan;

static inline bool json_scan_wrong(JsonScan *j, size_t at, const char *what,
                                   const char *hint) {
    j->wrong_at = at;
    j->wrong = what;
    j->hint = hint;
    return false;
}

/* Is this character the next one? */
static inline bool json_scan_is(const JsonScan *j, char c) {
    return j->at < j->n && j->s[j->at] == c;
}

static inline void json_scan_space(JsonScan *j) {
    while (j->at < j->n) {
        char c = j->s[j->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
        j->at++;
    }
}

/* Steps over `word` if it comes next. */
static inline bool json_scan_word(JsonScan *j, const char *word) {
    size_t n = strlen(word);
    if (j->n - j->at < n || memcmp(j->s + j->at, word, n)) return false;
    j->at += n;
    return true;
}

/* The end of the characters of a string that need no decoding: a quote, a backslash, a
 * control character or the end of the text. */
static inline size_t json_scan_plain(const JsonScan *j) {
    size_t at = j->at;
    while (at < j->n) {
        unsigned char c = (unsigned char)j->s[at];
        if (c == '"' || c == '\\' || c < 0x20) break;
        at++;
    }
    return at;
}

/* Steps over the escape that comes next and writes what it means to out, up to 4 bytes;
 * returns how many; 0: it is not valid. A lone surrogate becomes U+FFFD and its kind is
 * in *lone, which is not changed otherwise. */
typedef enum JsonLone { JSON_LONE_NONE, JSON_LONE_HIGH, JSON_LONE_LOW } JsonLone;
int json_scan_escape(JsonScan *j, char *out, JsonLone *lone);

/* Steps over the number that comes next, by RFC 8259, section 6. *whole: it has neither
 * point nor exponent. */
bool json_scan_number(JsonScan *j, bool *whole);

#endif
