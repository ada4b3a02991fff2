/* gpt_cache.c - index caches of arbitrary bytes: the frame, and indices behind a good
 * frame. An index that is accepted never leads outside of the split. */
#include "runtime/data/gpt_index.h"
#include "runtime/data/prepared.h"
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n);

static const int32_t lengths[] = {3, 0, 9, 1, 5, 12};

static void walk(const GptIndexSpec *s, const GptIndex *x) {
    for (int64_t i = 0; i <= x->samples; i++) {
        int32_t place = x->sample[2 * i], offset = x->sample[2 * i + 1];
        check(place >= 0 && place < x->documents);
        int32_t document = x->document[place];
        check(document >= s->first && document < s->end);
        bool begins = !i && !place && !offset; /* also with an empty document */
        check(offset >= 0 && (offset < lengths[document] || begins));
        if (i < x->samples) check(x->shuffle[i] < x->samples);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n) {
    static const char key[HASH_HEX_BYTES] = "00000000000000000000000000000000";
    IndexedTable t = {.lengths = (const unsigned char *)lengths};
    GptIndexSpec s = {"fuzz", &t, 1, 5, 4, 3, 1, 1234};
    const char *why;
    GptIndex x;
    if (prepared_check(input, n, key, &why) < 0) check(why[0]);
    Arena *mem = arena_new();
    void *copy = arena_alloc(mem, n + 1);
    if (n) memcpy(copy, input, n);
    if (gpt_index_parse(copy, n, &s, &x)) walk(&s, &x);
    arena_free(mem);
    return 0;
}
