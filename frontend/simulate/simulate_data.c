/* simulate_data.c - the batches of a simulation: of the configuration's data, with tokens
 * brought into the vocabulary of the smaller model, or random ones with everything that such
 * data can have: documents, positions of their own, labels that do not count. */
#include "base/rng.h"
#include "frontend/config/data_open.h"
#include "frontend/simulate/simulate.h"
#include "frontend/train/train.h"

/* Streams of random numbers. */
enum { OF_TOKENS = 0x746f6b, OF_LABELS, OF_DOCUMENTS, OF_COLUMNS };
enum { ONE_LABEL_OF = 4, ONE_DOCUMENT_OF = 8 }; /* does not count; tokens on average */

/* ---- where they are from ---- */

/* Batches that are ready have a size of their own. */
static bool fits(const SimulateJob *s) {
    return s->job.cfg->train_dataset_data_loader_type != LOADER_TENSOR_BATCHES ||
           !s->shrunk;
}

static const char *why_random(Arena *mem, const SimulateJob *s, bool random) {
    const char *path = data_path_given(s->job.cfg, SPLIT_TRAIN);
    if (random) return "random, as --random says";
    if (!path[0]) return "random: the configuration names none";
    if (data_missing(mem, s->job.cfg, SPLIT_TRAIN))
        return arena_printf(mem, "random: %s is not there", path);
    return fits(s) ? NULL
                   : arena_printf(
                         mem, "random: the batches of %s have a size of their own", path);
}

SimulateData simulate_data_open(Arena *mem, const SimulateJob *s, int64_t steps,
                                bool random) {
    const Job *j = &s->job;
    SimulateData d = {.job = j,
                      .vocab = job_data_shape(j, 1, 1).vocab,
                      .batch = job_batch_new(mem, j, j->batch * j->micro)};
    const char *why = why_random(mem, s, random);
    d.what = why ? why : data_path_given(j->cfg, SPLIT_TRAIN);
    if (why) return d;
    DataShape shape = job_data_shape(j, j->batch * j->micro, steps);
    shape.vocab = s->data_vocab; /* they are brought below that of the model */
    d.source = data_open_split(mem, j->cfg, SPLIT_TRAIN, &shape);
    int64_t have = d.source->steps_available;
    if (have >= 0 && have < steps)
        fail(EXIT_DATA,
             "%s has %lld batches of %lld samples, fewer than --steps %lld: take fewer, "
             "or "
             "--random",
             d.what, (long long)have, (long long)d.source->batch, (long long)steps);
    return d;
}

/* ---- random ones ---- */

static int64_t draw(const Job *j, int stream, int64_t at, int64_t below) {
    return (int64_t)(rng_uniform((uint64_t)j->cfg->seed, (uint64_t)stream, (uint64_t)at) *
                     (double)below);
}

static void draw_column(const SimulateData *d, int64_t step, int k) {
    const Job *j = d->job;
    const DataColumn *c = &j->column[k];
    int64_t n = j->batch * j->micro * c->count;
    int64_t high = c->high ? c->high : INT32_MAX, low = MAX(c->low, 0);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = step * n + i;
        double u =
            rng_uniform((uint64_t)j->cfg->seed, (uint64_t)(OF_COLUMNS + k), (uint64_t)at);
        if (c->is_float)
            ((float *)d->batch.column[k])[i] = (float)(2 * u - 1);
        else
            ((int32_t *)d->batch.column[k])[i] =
                (int32_t)MIN(low + (int64_t)(u * (double)(high - low)), INT32_MAX);
    }
}

/* A row of tokens, each label the next token; documents begin where a number says so. */
static void draw_row(const SimulateData *d, int64_t step, int64_t row) {
    const Job *j = d->job;
    const DataBatch *b = &d->batch;
    int64_t first = 0, stream = (step * j->batch * j->micro + row) * (j->seq + 1);
    for (int64_t k = 0; k < j->seq; k++) {
        int64_t at = row * j->seq + k;
        bool begins = draw(j, OF_DOCUMENTS, stream + k, ONE_DOCUMENT_OF) == 0;
        bool counts = draw(j, OF_LABELS, stream + k, ONE_LABEL_OF) > 0;
        if (begins) first = k;
        b->tokens[at] = (int32_t)draw(j, OF_TOKENS, stream + k, d->vocab);
        b->labels[at] = (int32_t)draw(j, OF_TOKENS, stream + k + 1, d->vocab);
        if (j->shape.masked && !counts) b->labels[at] = -1;
        b->positions[at] = (int32_t)(j->shape.own_positions ? k - first : k);
        b->attends_from[at] = (int32_t)(j->shape.documents ? first : 0);
    }
}

static void draw_batch(const SimulateData *d, int64_t step) {
    const Job *j = d->job;
    for (int k = 0; k < j->ncolumns; k++) draw_column(d, step, k);
    for (int64_t r = 0; r < j->batch * j->micro && !j->ncolumns; r++)
        draw_row(d, step, r);
}

/* ---- a batch ---- */

static void bring_inside(const SimulateData *d) {
    const Job *j = d->job;
    int64_t n = j->ncolumns ? 0 : j->batch * j->micro * j->seq;
    for (int64_t i = 0; i < n && d->vocab; i++) {
        d->batch.tokens[i] %= (int32_t)d->vocab;
        if (d->batch.labels[i] >= 0) d->batch.labels[i] %= (int32_t)d->vocab;
    }
}

void simulate_data_next(SimulateData *d, int64_t step) {
    const Job *j = d->job;
    bool labelled = !j->ncolumns || j->labels >= 0;
    if (d->source)
        data_batch(d->source, step, &d->batch);
    else
        draw_batch(d, step);
    bring_inside(d);
    d->counted = labelled ? counted_labels(j, &d->batch, 0, j->batch * j->micro) : 0;
}
