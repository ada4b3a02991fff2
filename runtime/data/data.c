/* data.c - order of samples and making of batches; see data.h. */
#include "runtime/data/data.h"
#include "runtime/core/map_guard.h"
#include "runtime/data/data_reader.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Tokens of one batch: far above any use, far below any overflow. */
#define BATCH_TOKENS_MAX ((uint64_t)1 << 40)

static const DataReader *const readers[] = {&data_text, &data_indexed, &data_tensors,
                                            &data_gpt,  &data_webtext, &data_columns};

static const DataReader *reader_named(const char *type) {
    const char *names[ARRAY_LEN(readers)];
    for (int i = 0; i < ARRAY_LEN(readers); i++) names[i] = readers[i]->type;
    int i = name_index(type, names, ARRAY_LEN(readers));
    if (i >= 0) return readers[i];
    const char *near = nearest_name(type, names, ARRAY_LEN(readers));
    fail(EXIT_CONFIG,
         "data of type '%s' is not known%s%s%s; there are TextFile (text), "
         "MegatronIndexed and GPTDataset (.bin/.idx), WebtextDataset (loose JSON), "
         "TensorBatches (safetensors) and Tensors (safetensors or .npy)",
         type, near ? ": did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static void check_batch(const DataSpec *s, const DataReader *r) {
    int64_t least = r->shapes_from_file ? 0 : 1;
    if (s->batch < least || s->seq < least)
        fail(EXIT_CONFIG,
             "batch size %lld and sequence length %lld: data of type %s needs both to be "
             "%lld or more",
             (long long)s->batch, (long long)s->seq, s->type, (long long)least);
    uint64_t batch = (uint64_t)s->batch, seq = (uint64_t)s->seq, tokens;
    if (!mul_size(batch, seq, &tokens) || MAX(tokens, MAX(batch, seq)) > BATCH_TOKENS_MAX)
        fail(EXIT_CONFIG, "a batch of %lld sequences of %lld tokens is too large",
             (long long)s->batch, (long long)s->seq);
}

static void spec_check(const DataSpec *s, const DataReader *r) {
    bool needs_more = r == &data_gpt || r == &data_webtext;
    if (needs_more && (!s->gpt || s->gpt->samples < -1 || s->gpt->epochs < 1))
        die("data of type %s without its DataGptSpec", s->type);
    if ((r->row != NULL) != (s->ncolumns > 0))
        die("data of type %s with %d columns", s->type, s->ncolumns);
    if (!(s->path && s->path[0]) && !(r == &data_gpt && s->gpt->n_paths))
        fail(EXIT_CONFIG, "data of type %s needs a path", s->type);
    check_batch(s, r);
    if (s->vocab < 0 || s->vocab > (int64_t)INT32_MAX + 1)
        fail(EXIT_CONFIG, "a vocabulary of %lld: it must be 1 .. 2^31, or 0 for unknown",
             (long long)s->vocab);
}

/* Of a stream of tokens. */
static void count_windows(Data *d, bool with_rest) {
    int64_t labels = MAX(d->tokens - 1, 0);
    d->samples = labels / d->seq;
    if (!with_rest) return;
    d->rest = labels % d->seq;
    d->samples += d->rest > 0;
}

static _Noreturn void refuse_empty(const Data *d, bool with_rest) {
    if (with_rest)
        fail(EXIT_DATA, "%s holds %lld token%s; 2 at least are needed, one and the next",
             d->path, (long long)d->tokens, d->tokens == 1 ? "" : "s");
    bool split = d->gpt && d->gpt->split && d->gpt->split[0];
    fail(EXIT_DATA,
         "%s%s%s holds %lld tokens; a sequence of %lld needs %lld: give a shorter "
         "seq_length or more data",
         d->path, split ? ", split " : "", split ? data_split_name[d->gpt->which] : "",
         (long long)d->tokens, (long long)d->seq, (long long)d->seq + 1);
}

Data *data_open(Arena *mem, const DataSpec *spec) {
    const DataReader *r = reader_named(spec->type ? spec->type : "");
    spec_check(spec, r);
    Data *d = NEW(mem, Data);
    *d = (Data){.batch = spec->batch,
                .seq = spec->seq,
                .steps_available = -1,
                .vocab = spec->vocab,
                .seed = spec->seed,
                .shuffle = spec->shuffle,
                .path = arena_strdup(mem, spec->path ? spec->path : ""),
                .column = spec->column,
                .ncolumns = spec->ncolumns,
                .reader = r};
    if (spec->gpt) {
        d->gpt = NEW(mem, DataGptSpec);
        *d->gpt = *spec->gpt;
    }
    Catch c;
    if (CATCH(c)) {
        r->open(mem, d);
        if (!d->samples) count_windows(d, spec->rest);
        if (d->samples < 1) refuse_empty(d, spec->rest);
        catch_end(&c);
    } else {
        r->close(d);
        catch_again(&c);
    }
    return d;
}

void data_close(Data *d) {
    if (d) d->reader->close(d);
}

/* Finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit moves every output
 * bit. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int64_t data_permute(uint64_t seed, int64_t epoch, int64_t i, int64_t n) {
    check(i >= 0 && i < n && n <= (int64_t)1 << 62);
    enum { ROUNDS = 8 };
    int half = 1;
    while ((uint64_t)1 << 2 * half < (uint64_t)n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, key[ROUNDS];
    uint64_t base = mix(seed + 0x9e3779b97f4a7c15u) ^ mix((uint64_t)epoch);
    for (int r = 0; r < ROUNDS; r++)
        key[r] = mix(base + (uint64_t)(r + 1) * 0x9e3779b97f4a7c15u);
    uint64_t x = (uint64_t)i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t old = right;
            right = left ^ (mix(right + key[r]) & mask);
            left = old;
        }
        x = left << half | right;
    } while (x >= (uint64_t)n); /* at most 4 in 1 on average: the network covers < 4n */
    return (int64_t)x;
}

/* Sample number `at` of the endless stream. */
static int64_t sample_at(const Data *d, int64_t at) {
    int64_t epoch = at / d->samples, i = at % d->samples;
    return d->shuffle ? data_permute(d->seed, epoch, i, d->samples) : i;
}

/* The end of the stream: `rest` labels, and what is before them. */
static void read_rest(const Data *d, int64_t sample, const DataBatch *row) {
    int64_t n = d->rest;
    d->reader->read(d, sample, 0, n + 1, row->tokens);
    for (int64_t i = 0; row->labels && i < d->seq; i++)
        row->labels[i] = i < n ? row->tokens[i + 1] : -1;
    for (int64_t i = n + 1; i < d->seq; i++) row->tokens[i] = 0;
}

static void fill_row(const Data *d, int64_t sample, const DataBatch *row) {
    size_t seq = (size_t)d->seq;
    bool rest = d->rest && sample == d->samples - 1;
    if (rest)
        read_rest(d, sample, row);
    else
        d->reader->read(d, sample, 0, d->seq, row->tokens);
    if (row->labels && !rest) {
        memcpy(row->labels, row->tokens + 1, (seq - 1) * sizeof(int32_t));
        d->reader->read(d, sample, d->seq, 1, row->labels + seq - 1);
    }
    for (size_t i = 0; row->positions && i < seq; i++) row->positions[i] = (int32_t)i;
    for (size_t i = 0; row->loss_mask && i < seq; i++)
        row->loss_mask[i] = !rest || i < (size_t)d->rest;
    if (row->attends_from) memset(row->attends_from, 0, seq * sizeof(int32_t));
    if (d->reader->mask) d->reader->mask(d, sample, row);
}

static void fill_rows(const Data *d, int64_t first, int64_t rows, const DataBatch *out) {
    for (int64_t r = 0; r < rows; r++) {
        if (d->ncolumns) {
            d->reader->row(d, sample_at(d, first + r), r, out->column);
            continue;
        }
        size_t at = (size_t)r * (size_t)d->seq;
        DataBatch row = {.tokens = out->tokens + at, .keep_labels = out->keep_labels};
        if (out->labels) row.labels = out->labels + at;
        if (out->positions) row.positions = out->positions + at;
        if (out->attends_from) row.attends_from = out->attends_from + at;
        if (out->loss_mask) row.loss_mask = out->loss_mask + at;
        fill_row(d, sample_at(d, first + r), &row);
    }
}

typedef struct Rows {
    const Data *d;
    int64_t first, n;
    const DataBatch *out;
} Rows;

static void read_rows(void *context) {
    const Rows *r = context;
    fill_rows(r->d, r->first, r->n, r->out);
}

void data_rows(const Data *d, int64_t step, int64_t first_row, int64_t rows,
               const DataBatch *out) {
    check(step >= 0 && first_row >= 0 && rows >= 0 && rows <= d->batch - first_row);
    if (d->steps_available >= 0 && step >= d->steps_available)
        fail(EXIT_DATA,
             "%s holds %lld batches; batch %lld was asked for: train at most %lld steps "
             "on it",
             d->path, (long long)d->steps_available, (long long)step + 1,
             (long long)d->steps_available);
    int64_t first;
    if (__builtin_mul_overflow(step, d->batch, &first) ||
        __builtin_add_overflow(first, d->moved, &first) || first > INT64_MAX - d->batch)
        die("step %lld of batch %lld", (long long)step, (long long)d->batch);
    check(first >= 0);
    Rows work = {d, first + first_row, rows, out};
    map_guard(read_rows, &work);
}

void data_go_on(Data *d, int64_t step, int64_t sample) {
    check(step >= 0 && sample >= 0 && !d->reader->shapes_from_file);
    d->moved = sample - step * d->batch;
    if (d->steps_available >= 0)
        d->steps_available = MAX(d->samples - d->moved, 0) / d->batch;
}

void data_batch(const Data *d, int64_t step, const DataBatch *out) {
    data_rows(d, step, 0, d->batch, out);
}

DataBatch data_batch_new(Arena *mem, const Data *d) {
    size_t n = (size_t)(d->batch * d->seq);
    DataBatch b = {0};
    if (!d->ncolumns) {
        b.tokens = NEW_ARRAY(mem, int32_t, n);
        b.labels = NEW_ARRAY(mem, int32_t, n);
        b.positions = NEW_ARRAY(mem, int32_t, n);
        b.attends_from = NEW_ARRAY(mem, int32_t, n);
        return b;
    }
    b.column = NEW_ARRAY(mem, void *, (size_t)d->ncolumns);
    for (int k = 0; k < d->ncolumns; k++)
        b.column[k] = NEW_ARRAY(mem, int32_t, n * (size_t)d->column[k].count);
    return b;
}
