/* data_reader.h - what the readers that implement data.h share; private to
 * runtime/data/. */
#ifndef STATOR_DATA_READER_H
#define STATOR_DATA_READER_H
#include "runtime/data/data.h"
#include "runtime/data/indexed.h"

/* One type of source. `open` sets tokens, state and, where the file decides, batch, seq,
 * samples and steps_available; samples 0 means windows of seq + 1 tokens over the whole
 * token stream, each beginning with the last token of the one before. `read` gives tokens
 * [from, from + n) of a sample. `close` also follows an `open` that failed. `mask`, where
 * there is one, fills what is not NULL of a row of seq tokens besides tokens and labels
 * (positions, attends_from and loss_mask come as 0 .. seq - 1, 0 and 1) and makes the
 * labels that do not count -1 unless keep_labels. A source of columns has `row` instead
 * of `read`: it fills row `row` of every column. */
typedef struct DataReader {
    const char *type;
    bool shapes_from_file;
    void (*open)(Arena *mem, Data *d);
    void (*read)(const Data *d, int64_t sample, int64_t from, int64_t n, int32_t *out);
    void (*close)(Data *d);
    void (*mask)(const Data *d, int64_t sample, const DataBatch *row);
    void (*row)(const Data *d, int64_t sample, int64_t row, void *const *column);
} DataReader;
extern const DataReader data_text, data_indexed, data_tensors, data_gpt, data_webtext,
    data_columns;

/* Which of n items (bytes, documents) in file order the split of d->gpt has: *first up to
 * *end. All of them without a split. */
void data_part(const Data *d, int64_t n, int64_t *first, int64_t *end);
/* Those of n samples that it has become the samples of d; returns the first. Fails with EXIT_DATA
 * where it has none; `what` is what a sample is called. */
int64_t data_take_split(Data *d, int64_t n, const char *what);

/* Tokens [at, at + n) of the .bin, which has them; checks them against d's vocabulary, but for
 * `pad` (-1: none), which may be above it. */
void indexed_file_read(const Data *d, const IndexedFile *x, int64_t at, int64_t n,
                       int64_t pad, int32_t *out);

/* Tokens are below this: the vocabulary, or 2^31 when it is not known. */
static inline int64_t data_token_limit(const Data *d) {
    return d->vocab > 0 ? d->vocab : (int64_t)INT32_MAX + 1;
}

/* The failure for a token outside the vocabulary: "FILE: where in it: token N". */
_Noreturn void data_fail_token(const Data *d, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
