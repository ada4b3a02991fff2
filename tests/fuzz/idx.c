/* idx.c - the .idx reader on arbitrary bytes. The first 4 bytes are the size of the .bin;
 * the rest is the .idx, with or without a good header before it. */
#include "runtime/data/indexed.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n);

/* Reads every table entry that an accepted index promises. */
static void walk(const IndexedTable *t, uint64_t bin_bytes) {
    uint64_t end = 0;
    for (int64_t i = 0; i < t->sequences; i++) {
        int64_t length = indexed_length(t, i), pointer = i64_at(t->pointers, i);
        check(length >= 0 && (uint64_t)pointer == end);
        end += (uint64_t)length * (uint64_t)t->token_bytes;
    }
    check(end == bin_bytes);
    for (int64_t i = 0, before = 0; i <= t->documents; i++) {
        int64_t at = i64_at(t->doc_index, i);
        check(at >= before && at <= t->sequences);
        before = at;
    }
}

static void parse(const void *bytes, size_t n, uint64_t bin_bytes) {
    Catch c;
    if (!CATCH(c)) {
        check(c.code == EXIT_DATA);
        return;
    }
    IndexedTable t = indexed_parse("fuzz.idx", bytes, n, bin_bytes);
    walk(&t, bin_bytes);
    catch_end(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n) {
    uint32_t bin_bytes;
    if (n < sizeof bin_bytes) return 0;
    memcpy(&bin_bytes, input, sizeof bin_bytes);
    input += sizeof bin_bytes;
    n -= sizeof bin_bytes;
    parse(input, n, bin_bytes);
    static const char head[] = "MMIDIDX\0\0\1\0\0\0\0\0\0"; /* magic, version 1 */
    unsigned char *whole = malloc(sizeof head + n);
    if (!whole) return 0;
    memcpy(whole, head, sizeof head);
    memcpy(whole + sizeof head, input, n);
    parse(whole, sizeof head + n, bin_bytes);
    free(whole);
    return 0;
}
