/* json_line.h - one line of loose JSON: checks the object and takes the texts of some of
 * its members out, without building a tree. As lenient as Python's json.loads, for which
 * such files are made: of a key that is there twice the last counts, NaN and Infinity
 * are numbers. Lone surrogates become U+FFFD; bytes that are not UTF-8 are left as they are,
 * the tokenizer replaces and counts them. */
#ifndef STATOR_JSON_LINE_H
#define STATOR_JSON_LINE_H
#include "runtime/core/buffer.h"

enum { JSON_LINE_KEYS = 16 };

typedef struct JsonLineText {
    size_t begin, n; /* in JsonLine.text */
} JsonLineText;

typedef struct JsonLine {
    Buffer text, pieces; /* pieces: JsonLineText[] */
    struct {
        size_t first, n; /* its pieces: one of a string, any number of an array */
        bool there;
    } key[JSON_LINE_KEYS];
    uint64_t surrogates; /* lone ones replaced, added up over lines */
    const char *wrong;   /* what is wrong with the line, and at which byte of it */
    size_t wrong_at;
    int wrong_key; /* which key is missing or no string; -1: something else */
} JsonLine;

/* Reads line[n], which must be one object; each of keys[nkeys] (<= JSON_LINE_KEYS) must
 * be a member of it, a string or an array of strings. False with wrong and wrong_at set.
 * No recursion; nesting up to 512. The buffers are the caller's to free. */
bool json_line_read(JsonLine *j, const char *line, size_t n, const char *const *keys,
                    int nkeys);
/* Piece i of key k. */
static inline const char *json_line_piece(const JsonLine *j, int k, size_t i, size_t *n) {
    const JsonLineText *t = (const JsonLineText *)(const void *)j->pieces.p;
    t += j->key[k].first + i;
    *n = t->n;
    return j->text.p + t->begin;
}

#endif
