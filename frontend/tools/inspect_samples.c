/* inspect_samples.c - stator inspect CONFIG.yaml --split S --samples 0,17: the samples of
 * a configuration's data as training sees them. Sample i is the i-th sequence that a run
 * from its beginning meets, whatever its batch size and number of ranks. */
#include "frontend/config/config_state.h"
#include "frontend/config/data_open.h"
#include "frontend/model/job.h"
#include "frontend/tools/inspect.h"
#include "frontend/train/results.h"
#include <errno.h>
#include <stdlib.h>

typedef struct Inspection {
    const Options *o;
    DataSplit split;
    int64_t *sample;
    int n, cap;
    bool json;
} Inspection;

static void parse_samples(Arena *mem, Inspection *x, const char *word) {
    for (const char *p = word;;) {
        char *end;
        errno = 0;
        long long v = *p >= '0' && *p <= '9' ? strtoll(p, &end, 10) : -1;
        if (v < 0 || errno || (*end && *end != ',') || x->n == 1 << 20)
            fail(EXIT_CONFIG, "--samples %.60s: give numbers from 0, such as 0,17,100",
                 word);
        PUSH(mem, x->sample, x->n, x->cap, v);
        if (!*end) return;
        p = end + 1;
    }
}

static Inspection inspection_of(Arena *mem, const Options *o) {
    Inspection x = {.o = o,
                    .split = (DataSplit)option_choice(o, "--split", 0),
                    .json = option_given(o, "--json")};
    const char *samples = option_text(o, "--samples");
    if (samples) parse_samples(mem, &x, samples);
    if (option_given(o, "--vocab_size"))
        fail(EXIT_CONFIG,
             "--vocab_size is for files of tokens; %s has its own, "
             "model.model_config.vocab_size",
             o->word[0]);
    return x;
}

/* Tensors are those that the arguments of the model.file name. Of tokens a model that is no
 * one of keys alone says the length of a sample and the token that ends a text; batches that
 * are ready have all of it themselves. */
static bool asks_model(const Config *cfg) {
    LoaderType type = cfg->train_dataset_data_loader_type;
    if (type == LOADER_TENSORS) return true;
    return type != LOADER_TENSOR_BATCHES &&
           (cfg->init_from[0] || cfg->pretrained_model_dir[0] || cfg->model_file[0]);
}

/* Weights that are not there are taken for those of the keys, as in a plan. */
static Data *open_of_model(Arena *mem, const Inspection *x, Config *cfg) {
    Job *j = job_to_plan(mem, cfg);
    DataShape shape = job_data_shape(j, 1, cfg->runner_config_max_steps);
    return data_open_split(mem, cfg, x->split, &shape);
}

/* One row of data at a time: the order does not depend on the batch size. */
static Data *open_data(Arena *mem, const Inspection *x) {
    Config *cfg = config_load(mem, x->o->word[0], x->o->nflags, x->o->flag);
    if (!data_path_given(cfg, x->split)[0])
        config_refuse(cfg, "train_dataset.data_loader.dataset_dir", NULL,
                      "train_dataset.data_loader.data_path, or dataset_dir",
                      "the configuration names no data");
    if (asks_model(cfg)) return open_of_model(mem, x, cfg);
    bool from_file = cfg->train_dataset_data_loader_type == LOADER_TENSOR_BATCHES;
    bool vocab_given = config_given(cfg, "model.model_config.vocab_size");
    DataShape shape = {.rows = from_file ? 0 : 1,
                       .seq = from_file ? 0 : cfg->model_seq_length,
                       .vocab = vocab_given ? cfg->model_vocab_size : 0,
                       .steps = cfg->runner_config_max_steps};
    uint64_t rows;
    if (!mul_size((uint64_t)cfg->runner_config_batch_size,
                  (uint64_t)cfg->parallel_config_micro_batch_num, &rows) ||
        !mul_size(rows, (uint64_t)cfg->parallel_config_data_parallel,
                  (uint64_t *)&shape.step_rows) ||
        shape.step_rows > INT32_MAX)
        config_refuse(cfg, "parallel_config.micro_batch_num", NULL, NULL,
                      "too many sequences in a step");
    return data_open_split(mem, cfg, x->split, &shape);
}

/* ---- output ---- */

/* What begins a list, and what is before its number i, as JSON or as a line. */
static void add_name(Text *t, const char *name, bool json) {
    text_add(t, json ? ", \"%s\": [" : "  %-12s", name);
}

static const char *before(int64_t i, bool json) {
    return !json ? " " : i ? ", " : "";
}

static void add_ints(Text *t, const char *name, const int32_t *v, int64_t n, bool json) {
    add_name(t, name, json);
    for (int64_t i = 0; i < n; i++) text_add(t, "%s%d", before(i, json), (int)v[i]);
    text_add(t, json ? "]" : "\n");
}

static void add_mask(Text *t, const float *v, int64_t n, bool json) {
    add_name(t, "loss_mask", json);
    for (int64_t i = 0; i < n; i++)
        text_add(t, json ? "%s%.1f" : "%s%g", before(i, json), (double)v[i]);
    text_add(t, json ? "]" : "\n");
}

/* A line for each tensor, or the members of an object. */
static void add_columns(Text *t, const Data *d, const DataBatch *row, bool json) {
    for (int k = 0; k < d->ncolumns; k++) {
        const DataColumn *c = &d->column[k];
        text_add(t, json ? ", \"%s\": " : "  %-12s ", c->name);
        numbers_add_json(t, c->is_float, c->rank, c->dim, row->column[k]);
        if (!json) text_add(t, "\n");
    }
}

static void add_sample(Text *t, const Data *d, int64_t sample, const DataBatch *row,
                       bool json) {
    text_add(t, json ? "{\"sample\": %lld" : "sample %lld\n", (long long)sample);
    if (d->ncolumns) {
        add_columns(t, d, row, json);
    } else {
        add_ints(t, "tokens", row->tokens, d->seq, json);
        add_ints(t, "labels", row->labels, d->seq, json);
        add_ints(t, "position_ids", row->positions, d->seq, json);
        add_mask(t, row->loss_mask, d->seq, json);
        add_ints(t, "attends_from", row->attends_from, d->seq, json);
    }
    if (json) text_add(t, "}");
}

static DataBatch room_for_row(Arena *mem, const Data *d) {
    DataBatch row = data_batch_new(mem, d);
    row.loss_mask = NEW_ARRAY(mem, float, (size_t)d->seq);
    row.keep_labels = true;
    return row;
}

/* A source with an end has no samples beyond it; the others begin their next epoch. */
static void check_samples(const Inspection *x, const Data *d) {
    for (int i = 0; i < x->n; i++)
        if (d->steps_available >= 0 && x->sample[i] >= d->samples)
            fail(EXIT_CONFIG, "--samples %lld: %s has samples 0 .. %lld",
                 (long long)x->sample[i], data_split_name[x->split],
                 (long long)d->samples - 1);
}

static void print_samples(Arena *mem, const Inspection *x, const Data *d) {
    DataBatch row = room_for_row(mem, d);
    if (x->json)
        printf("{\"split\": \"%s\", \"samples\": %lld, \"sequence_length\": %lld, "
               "\"items\": [",
               data_split_name[x->split], (long long)d->samples, (long long)d->seq);
    else
        printf("%s: %lld samples of %lld %s\n", data_split_name[x->split],
               (long long)d->samples, (long long)(d->ncolumns ? d->ncolumns : d->seq),
               d->ncolumns ? "tensors" : "tokens");
    for (int i = 0; i < x->n; i++) {
        Arena *own = arena_new();
        Text t = text_new(own);
        data_rows(d, x->sample[i] / d->batch, x->sample[i] % d->batch, 1, &row);
        if (x->json && i) text_add(&t, ",");
        if (x->json) text_add(&t, "\n");
        add_sample(&t, d, x->sample[i], &row, x->json);
        fwrite(t.s, 1, t.n, stdout);
        arena_free(own);
    }
    if (x->json) puts("]}");
}

void inspect_samples(const Options *o) {
    Arena *mem = arena_new();
    Inspection x = inspection_of(mem, o);
    Data *d = open_data(mem, &x);
    check_samples(&x, d);
    print_samples(mem, &x, d);
    data_close(d);
    arena_free(mem);
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(EXIT_DATA, "cannot write the samples: %s", strerror(errno));
}
