/* data_reader.c - what all readers need; see data_reader.h. */
#include "runtime/data/data_reader.h"
#include "runtime/data/gpt_index.h"

const char *const data_split_name[SPLIT_COUNT] = {"train", "valid", "test"};

_Noreturn void data_fail_token(const Data *d, const char *fmt, ...) {
    long long limit = data_token_limit(d);
    char token[4608];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(token, sizeof token, fmt, ap);
    va_end(ap);
    fail(EXIT_DATA,
         "%s is outside the vocabulary of %lld (0 .. %lld); give the vocab_size that the "
         "data was made with",
         token, limit, limit - 1);
}

void data_part(const Data *d, int64_t n, int64_t *first, int64_t *end) {
    int64_t bound[4];
    bool all = !d->gpt || !d->gpt->split || !d->gpt->split[0];
    gpt_split(all ? "1" : d->gpt->split, n, bound);
    int which = d->gpt ? (int)d->gpt->which : SPLIT_TRAIN;
    *first = bound[which];
    *end = bound[which + 1];
}

int64_t data_take_split(Data *d, int64_t n, const char *what) {
    int64_t first, end;
    bool split = d->gpt && d->gpt->split && d->gpt->split[0];
    data_part(d, n, &first, &end);
    d->samples = end - first;
    if (d->samples < 1)
        fail(EXIT_DATA, "%s: split \"%s\" leaves no %s for %s; it has %lld in all",
             d->path, split ? d->gpt->split : "1", what,
             data_split_name[d->gpt ? d->gpt->which : SPLIT_TRAIN], (long long)n);
    return first;
}
