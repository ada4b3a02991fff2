/* eval_data.c - all samples of an evaluation through its program; a short last batch is
 * filled up with rows that are not taken. */
#include "frontend/train/eval.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/fault.h"
#include <math.h>

/* ---- the samples of a source of data ---- */

/* Row `row` of a batch. */
static DataBatch row_of(const Data *d, const DataBatch *b, int64_t row, void **column) {
    int64_t at = row * d->seq;
    DataBatch r = {0};
    if (b->tokens) r.tokens = b->tokens + at;
    if (b->labels) r.labels = b->labels + at;
    if (b->positions) r.positions = b->positions + at;
    if (b->attends_from) r.attends_from = b->attends_from + at;
    for (int k = 0; k < d->ncolumns; k++)
        column[k] = (int32_t *)b->column[k] + row * d->column[k].count;
    if (d->ncolumns) r.column = column;
    return r;
}

static void fill_sample(const void *of, int64_t k, int64_t row, const DataBatch *to) {
    const Data *d = of;
    void *column[MAX_COLUMNS];
    DataBatch r = row_of(d, to, row, column);
    data_rows(d, k / d->batch, k % d->batch, 1, &r);
}

void eval_data_open(Eval *e) {
    Train *t = &e->t;
    const Config *cfg = t->job.cfg;
    bool batches = cfg->train_dataset_data_loader_type == LOADER_TENSOR_BATCHES;
    if (!data_path_given(cfg, e->split)[0])
        fail(EXIT_CONFIG, "there are no data: give --data PATH, or a run whose "
                          "configuration names them");
    DataShape shape =
        job_data_shape(&t->job, batches ? 0 : 1, -1); /* theirs, whatever the run's */
    shape.once = true;
    shape.all = e->all;
    t->data = data_open_split(t->mem, cfg, e->split, &shape);
    if (t->data->ncolumns > MAX_COLUMNS)
        fail(EXIT_CONFIG, "a sample of %d tensors; at most %d are evaluated",
             t->data->ncolumns, MAX_COLUMNS);
    int64_t all = t->data->samples;
    e->source = (EvalSource){.of = t->data,
                             .n = e->most ? MIN(e->most, all) : all,
                             .all = all,
                             .name = t->data->path,
                             .fill = fill_sample};
}

/* ---- batches ---- */

static void copy_row(void *rows, int64_t from, int64_t to, size_t each) {
    if (rows)
        memcpy((char *)rows + (size_t)to * each, (char *)rows + (size_t)from * each,
               each);
}

/* Rows [n, batch) are the first ones again, which are as good as any: they are not taken. */
static void fill_up(const Job *j, const DataBatch *b, int64_t n) {
    for (int64_t row = n; row < j->batch; row++) {
        size_t seq = (size_t)j->seq * sizeof(int32_t);
        for (int k = 0; k < j->ncolumns; k++)
            copy_row(b->column[k], row - n, row,
                     (size_t)j->column[k].count * sizeof(int32_t));
        if (j->ncolumns) continue;
        copy_row(b->tokens, row - n, row, seq);
        copy_row(b->labels, row - n, row, seq);
        copy_row(b->attends_from, row - n, row, seq);
        copy_row(b->positions, row - n, row, seq);
    }
}

typedef struct Batch {
    Eval *e;
    DataBatch rows;
    int64_t first, n; /* samples in it */
} Batch;

static int64_t bytes_of_row(const Eval *e, const DataBatch *b, int64_t row) {
    int64_t seq = e->t.job.seq, bytes = 0;
    for (int64_t i = row * seq; e->bytes && i < (row + 1) * seq; i++)
        if (b->labels[i] >= 0 && b->labels[i] < e->vocab) bytes += e->bytes[b->labels[i]];
    return bytes;
}

/* Is a module's own loss the mean that is told, over all rows of the batch? Without an argument of
 * role counted it may be one over the labels that do not count, too. */
static void check_loss(const Batch *b, const Evaluator *v) {
    enum { PARTS = 10000 }; /* rounding is less than one of them */
    const Job *j = &b->e->t.job;
    const char *fault;
    int64_t labels = j->ncolumns ? j->column[j->labels].count : j->seq;
    int64_t n = counted_labels(j, &b->rows, 0, j->batch);
    double own = (double)evaluator_loss(v), sum = 0;
    for (int64_t i = 0; i < j->batch; i++) sum += (double)evaluator_sample_loss(v)[i];
    double mean = sum / (double)MAX(n, 1), all = sum / (double)(j->batch * labels);
    double near = fmin(fabs(own - mean), fabs(own - all));
    if (!n || !isfinite(sum) || fault_kept(&fault)) return;
    if (near <= fabs(mean) / PARTS + 1e-6) return;
    fail(EXIT_CONFIG,
         "%s: the loss is not the mean of the cross entropy (op xent) of the labels, "
         "which would be told: in the batch of sample %lld the loss is %.6g, that mean "
         "%.6g; train it with a valid part (train_dataset.data_loader.split), whose mean "
         "loss is told",
         j->module.path, (long long)b->first, own, mean);
}

static void take_rows(void *context, const Evaluator *v, int64_t row, double weight) {
    const Batch *b = context;
    EvalSums *s = &b->e->sums;
    const float *loss = evaluator_sample_loss(v), *right = evaluator_sample_correct(v);
    (void)weight;
    check(row == 0);
    for (int64_t i = 0; i < b->n; i++) {
        double sum = (double)loss[i];
        int64_t tokens = counted_labels(&b->e->t.job, &b->rows, i, 1);
        s->samples++;
        s->tokens += tokens;
        s->bytes += bytes_of_row(b->e, &b->rows, i);
        s->loss += sum;
        s->correct += (double)right[i];
        s->loss2 += sum * sum;
        s->loss_tokens += sum * (double)tokens;
        s->tokens2 += (double)tokens * (double)tokens;
        if (b->e->source.take)
            b->e->source.take(b->e->source.of, b->first + i, sum, (double)right[i]);
    }
    if (!b->e->t.job.has_spec) check_loss(b, v);
}

/* A line every ten seconds; the first one where it takes minutes names what takes fewer. */
static void say_progress(const Eval *e, double start, double *said) {
    enum { LONG = 100 }; /* seconds */
    const EvalSums *s = &e->sums;
    double now = clock_seconds();
    if (comm_rank() != 0 || now - *said < 10) return;
    int64_t rest = e->source.n - s->samples;
    double left = (now - start) * (double)rest / (double)s->samples;
    bool first = *said == start && !e->most && !e->endings;
    *said = now;
    fprintf(stderr, "%lld of %lld samples, loss %.4f, about %.0f %s left%s\n",
            (long long)s->samples, (long long)e->source.n,
            s->loss / (double)MAX(s->tokens, 1), left < LONG ? left : left / 60,
            left < LONG ? "s" : "min",
            first && left >= LONG ? " (--samples N takes the first N only)" : "");
}

static void end_if_failed(void) {
    const char *message;
    int code = fault_kept(&message);
    if (code) fail_again(code, message);
}

void eval_run(Eval *e) {
    Train *t = &e->t;
    Batch b = {.e = e, .rows = job_batch_new(t->mem, &t->job, t->job.batch)};
    double start = clock_seconds(), said = start;
    for (b.first = 0; b.first < e->source.n; b.first += t->job.batch) {
        b.n = MIN(t->job.batch, e->source.n - b.first);
        watch_task("sample", b.first, true);
        for (int64_t i = 0; i < b.n; i++)
            e->source.fill(e->source.of, b.first + i, i, &b.rows);
        fill_up(&t->job, &b.rows, b.n);
        evaluator_run(t, &e->evaluator, &b.rows, true, t->job.batch, take_rows, &b);
        end_if_failed();
        say_progress(e, start, &said);
    }
    e->seconds = clock_seconds() - start;
}
