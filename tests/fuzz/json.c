/* Whatever parses is written, and reads back as the same text. */
#include "base/json.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

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
    if (v) {
        Text once = text_new(mem), twice = text_new(mem);
        json_write(&once, v);
        json_write(&twice, json_parse(mem, "again", once.s, once.n, 16 << 20, EXIT_DATA));
        check(once.n == twice.n && !memcmp(once.s, twice.s, once.n));
    }
    arena_free(mem);
    return 0;
}
