/* Any bytes: a table whose ranks are all seated on good hosts, or a message. */
#include "frontend/launch/rank_table.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    Arena *mem = arena_new();
    Catch c;
    const RankTable *volatile t = NULL;
    if (CATCH(c)) {
        t = rank_table_parse(mem, "fuzz", (const char *)data, n);
        catch_end(&c);
    } else {
        check(c.code == EXIT_CONFIG && c.message[0]);
    }
    for (int r = 0; t && r < t->ranks; r++) check(host_name_good(t->host[r]));
    check(!t || t->ranks >= 1);
    arena_free(mem);
    return 0;
}
