/* Whatever parses: its texts and numbers are written, and read back the same. */
#include "base/json.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const Json *read_back(Arena *mem, const Text *t) {
    return json_parse(mem, "again", t->s, t->n, 16 << 20, EXIT_DATA);
}

static void check_scalar(Arena *mem, const Json *v) {
    Text t = text_new(mem);
    if (v->kind == JSON_STRING) {
        json_write_bytes(&t, v->s, v->length);
        const Json *back = read_back(mem, &t);
        check(back->length == v->length && !memcmp(back->s, v->s, v->length));
    } else if (v->kind == JSON_DOUBLE) {
        json_write_double(&t, v->d);
        check(json_f64(read_back(mem, &t)) == v->d);
    }
}

/* The parser allows a depth of 64. */
static void check_tree(Arena *mem, const Json *v) {
    if (v->key) check(strlen(v->key) <= v->key_length);
    check_scalar(mem, v);
    if (v->kind < JSON_ARRAY) return;
    int n = 0;
    for (const Json *e = v->first; e; e = e->next, n++) check_tree(mem, e);
    check(n == v->n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena *mem = arena_new();
    Catch c;
    const Json *volatile v = NULL;
    if (CATCH(c)) {
        v = json_parse(mem, "fuzz", (const char *)data, n, 1 << 20, EXIT_DATA);
        catch_end(&c);
    } else {
        check(c.code == EXIT_DATA && c.message[0]);
    }
    if (v) check_tree(mem, v);
    arena_free(mem);
    return 0;
}
