/* data_reader.c - what all readers need; see data_reader.h. */
#include "runtime/data/data_reader.h"
#include "runtime/data/gpt_index.h"

const char *const data_split_name[SPLIT_COUNT] = {"train", "valid", "test"};

_Noreturn void data_fail_token(const Data *d, const char *file, const char *where,
                               const char *token) {
    fail(EXIT_DATA,
         "%s: %s: token %s is outside the vocabulary of %lld (0 .. %lld); "
         "give the vocab_size that the data was made with",
         file, where, token, (long long)data_token_limit(d),
         (long long)data_token_limit(d) - 1);
}

void data_part(const Data *d, int64_t n, int64_t *first, int64_t *end) {
    int64_t bound[4];
    bool all = !d->gpt || !d->gpt->split || !d->gpt->split[0];
    gpt_split(all ? "1" : d->gpt->split, n, bound);
    int which = d->gpt ? (int)d->gpt->which : SPLIT_TRAIN;
    *first = bound[which];
    *end = bound[which + 1];
}
