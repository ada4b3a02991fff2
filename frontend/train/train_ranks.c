/* train_ranks.c - the ranks of a run: the mesh over them, whether they agree, and the
 * part of a batch that each is fed. */
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/train/train.h"
#include "runtime/comm/agree.h"
#include "runtime/comm/comm.h"

/* ---- the mesh ---- */

void ranks_choose(Train *t) {
    if (comm_size() > 1) strategy_replicate(t->job.cfg, comm_size(), "processes run");
    t->job.strategy = strategy_of_config(t->job.cfg);
    int64_t ranks = strategy_ranks(&t->job.strategy);
    if (ranks == comm_size()) return;
    config_refuse(
        t->job.cfg, strategy_degree_given(t->job.cfg), NULL,
        arena_printf(t->mem, "stator launch -n %lld train ..., or another strategy",
                     (long long)ranks),
        "data_parallel x model_parallel x context_parallel x pipeline_stage is %lld x "
        "%lld "
        "x %lld x %lld = %lld ranks, but %d process%s",
        (long long)t->job.strategy.data, (long long)t->job.strategy.tensor,
        (long long)t->job.strategy.context, (long long)t->job.strategy.stages,
        (long long)ranks, comm_size(), comm_size() == 1 ? " runs" : "es run");
}

/* Who runs asynchronous collectives on this rank. */
static void choose_progress(const Train *t) {
    static const CommProgress ways[] = {
        [OVERLAP_OFF] = COMM_AT_ONCE, [OVERLAP_THREAD] = COMM_THREAD};
    Overlap how = t->job.strategy.overlap;
    CommProgress want = how == OVERLAP_AUTO ? comm_progress_that_pays() : ways[how];
    CommProgress got = comm_progress(want);
    if (got == want || comm_size() == 1 || how == OVERLAP_AUTO) return;
    config_refuse(t->job.cfg, "parallel.overlap", NULL, "auto",
                  "this MPI library does not let another thread than the main one send");
}

void ranks_apply(Train *t, Module *m, PassOptions *o) {
    strategy_apply(&t->job.strategy, job_spec(&t->job), m, o);
    strategy_lay_mesh(&m->mesh, t->job.strategy.stages);
    choose_progress(t);
}

/* ---- agreement ---- */

static const char same_files[] = "start all with the same files and flags";

static char *config_lines(const Train *t) {
    Text text = text_new(t->mem);
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (key->kind == KIND_Tree) continue;
        text_add(&text, "%s = %s\n", key->path,
                 config_value(t->job.cfg, t->mem, key->path));
    }
    return text.s;
}

/* Of the whole program: the id that compiled code is kept by leaves out what does not concern it,
 * such as how data are read. */
void ranks_agree_build(const Train *t) {
    char sources[HASH_HEX_BYTES];
    if (comm_size() == 1) return;
    hash_hex(embedded_corpus, embedded_corpus_bytes, sources);
    agree_on(t->mem, "build",
             arena_printf(t->mem, "%s of sources %s", program_build_id(), sources),
             "start the same program on all hosts");
}

typedef struct Look {
    const Train *t;
    const Data *d;
    int64_t steps;
    const char *found; /* text */
} Look;

static void look_at_machine(void *look) {
    Look *l = look;
    Text text = text_new(l->t->mem);
    machine_print(config_machine(l->t->job.cfg), "", &text);
    l->found = text.s;
}

/* Passes choose collectives by the machine, which each rank reads from a file. */
void ranks_agree_config(const Train *t) {
    const char *machine = t->job.cfg->context_machine;
    Look l = {.t = t};
    agree_on(t->mem, "configuration", config_lines(t), same_files);
    if (comm_size() == 1 || !machine[0]) return;
    agree_look(look_at_machine, &l);
    agree_on_file(t->mem, "context.machine", l.found, machine);
}

void ranks_agree_module_file(const Train *t) {
    const UserModule *u = &t->job.module;
    if (!u->path || comm_size() == 1) return;
    agree_on_file(t->mem, "model.file",
                  module_print(t->mem, model_parse(t->mem, u->path, u->text, u->bytes)),
                  u->path);
}

void ranks_agree_module(const Train *t, const Module *m, const PipeSchedule *schedule) {
    Text order = text_new(t->mem);
    if (comm_size() == 1) return;
    agree_on(t->mem, "model", module_print(t->mem, m), same_files);
    if (!schedule) return;
    schedule_print(schedule, &order);
    agree_on(t->mem, "schedule of the pipeline", order.s, same_files);
}

/* ---- data ---- */

/* The batches of a run are compared as far as they have so many tokens together, which
 * takes a fraction of a second; of more of them some, spread over the run. */
enum { COMPARED_TOKENS = 4 << 20, COMPARED_MOST = 4096, COMPARED_LEAST = 2 };
/* At every start, so it must not be felt. */
enum { PRINT_TOKENS = 256 << 10 };

static int64_t batch_numbers(const Data *d) {
    int64_t n = d->ncolumns ? 0 : d->batch * d->seq;
    for (int c = 0; c < d->ncolumns; c++) n += d->batch * d->column[c].count;
    return n;
}

static void add_hash(const Data *d, int64_t step, const char *name, const void *numbers,
                     int64_t sample, Text *out) {
    char hex[HASH_HEX_BYTES];
    if (!numbers) return;
    hash_hex(numbers, (size_t)(d->batch * sample) * sizeof(int32_t), hex);
    text_add(out, "%s: batch %lld is %s\n", name, (long long)step, hex);
}

static void add_numbers(const Data *d, int64_t step, const char *name, DataBatch *b,
                        Text *out) {
    data_batch(d, step, b);
    add_hash(d, step, name, b->tokens, d->seq, out);
    for (int c = 0; c < d->ncolumns; c++)
        add_hash(d, step, d->column[c].name, b->column[c], d->column[c].count, out);
}

static void add_batch(const Data *d, int64_t step, DataBatch *b, Text *out) {
    add_numbers(d, step, d->path, b, out);
}

/* One that training could not have either, for a token outside of the vocabulary, say, is what
 * is said of it. */
static void add_batch_or_why(const Data *d, int64_t step, DataBatch *b, Text *out) {
    Catch c;
    if (CATCH(c)) {
        add_batch(d, step, b, out);
        catch_end(&c);
        return;
    }
    text_add(out, "batch %lld: %s\n", (long long)step, catch_text(&c));
}

/* Files may have the same size and other contents. */
static void add_batches(Arena *mem, const Data *d, int64_t steps, int64_t tokens,
                        void (*add)(const Data *, int64_t, DataBatch *, Text *),
                        Text *out) {
    DataBatch b = data_batch_new(mem, d);
    int64_t last = MAX(steps, 1) - 1, most = tokens / batch_numbers(d);
    most = MIN(MIN(MAX(most, COMPARED_LEAST), COMPARED_MOST), last + 1);
    for (int64_t k = 0; k < most; k++) {
        double share = (double)k / (double)MAX(most - 1, 1);
        int64_t step = most == last + 1 ? k : (int64_t)((double)last * share);
        add(d, step, &b, out);
    }
}

/* Texts become tokens by these files. */
static void add_tokenizer(const Train *t, Arena *mem, Text *out) {
    const DataGptSpec *gpt = t->data->gpt;
    bool used = t->job.cfg->train_dataset_data_loader_type == LOADER_WEBTEXT;
    if (!used) return;
    TokenizerSpec spec = {gpt->tokenizer_type, gpt->vocab_file, gpt->merge_file,
                          gpt->tokenizer_file};
    const char *path[TOKENIZER_FILES];
    tokenizer_spec_files(mem, &spec, path);
    for (int i = 0; i < TOKENIZER_FILES; i++) {
        char hex[HASH_HEX_BYTES];
        size_t n;
        if (!path[i]) continue;
        const char *bytes = file_read(mem, path[i], 1u << 30, &n, EXIT_DATA);
        hash_hex(bytes, n, hex);
        text_add(out, "%s: %zu bytes, %s\n", path[i], n, hex);
    }
}

static void look_at_data(void *context) {
    Look *l = context;
    const Data *d = l->d;
    Arena *scratch = arena_new();
    Text out = text_new(l->t->mem);
    int64_t there = d->steps_available;
    int64_t steps = there < 0 ? l->steps : MIN(l->steps, there);
    bool has_batch = there > 0 || (there < 0 && d->samples > 0);
    add_tokenizer(l->t, scratch, &out);
    text_add(&out, "%s: %lld tokens, %lld samples, %lld steps\n", d->path,
             (long long)d->tokens, (long long)d->samples, (long long)there);
    if (d->gpt) text_add(&out, "documents end with %lld\n", (long long)d->gpt->eod);
    if (has_batch) add_batches(scratch, d, steps, COMPARED_TOKENS, add_batch, &out);
    arena_free(scratch);
    l->found = out.s;
}

void data_fingerprint(const Data *d, char hex[HASH_HEX_BYTES]) {
    Arena *mem = arena_new();
    Text out = text_new(mem);
    int64_t epoch = d->steps_available >= 0 ? d->steps_available : d->samples / d->batch;
    hex[0] = 0;
    if (d->samples > 0 && d->steps_available)
        add_batches(mem, d, epoch, PRINT_TOKENS, add_batch_or_why, &out);
    if (out.n) hash_hex(out.s, out.n, hex);
    arena_free(mem);
}

/* Wherever the file is. */
static void add_batch_and_labels(const Data *d, int64_t step, DataBatch *b, Text *out) {
    Catch c;
    if (!CATCH(c)) {
        text_add(out, "batch %lld cannot be had\n", (long long)step);
        return;
    }
    add_numbers(d, step, "tokens", b, out);
    add_hash(d, step, "labels", b->labels, d->seq, out);
    catch_end(&c);
}

void data_fingerprint_first(const Data *d, int64_t batches, char hex[HASH_HEX_BYTES]) {
    Arena *mem = arena_new();
    Text out = text_new(mem);
    text_add(&out, "%lld batches of %lld\n", (long long)batches, (long long)d->batch);
    add_batches(mem, d, batches, PRINT_TOKENS, add_batch_and_labels, &out);
    hash_hex(out.s, out.n, hex);
    arena_free(mem);
}

void ranks_agree_data(const Train *t, const Data *d, int64_t steps) {
    Look l = {.t = t, .d = d, .steps = steps};
    if (comm_size() == 1) return;
    agree_look(look_at_data, &l);
    agree_on_file(t->mem, "data", l.found, d->path);
}

/* ---- batches ---- */

Feed *feed_make(const Train *t, const Program *p) {
    Feed *f = NEW(t->mem, Feed);
    f->zigzag = t->job.shape.zigzag;
    f->slot = NEW_ARRAY(t->mem, FeedSlot, (size_t)p->entry->narg);
    for (int i = 0; i < p->entry->narg; i++) {
        FeedSlot s = {.to = p->arg[i]};
        if (!feed_source(&t->job, p->entry, i, &s.from)) continue;
        s.layout = layout_of(t->mem, p->entry, i);
        f->slot[f->n++] = s;
    }
    return f;
}

void feed_batch(const Feed *f, const DataBatch *b, int64_t first_row) {
    for (int k = 0; k < f->n; k++) {
        const FeedSlot *s = &f->slot[k];
        const int32_t *from = feed_array(&s->from, b);
        check(from);
        from += first_row * s->from.sample;
        feed_part(&s->layout, comm_place(), f->zigzag, s->from.sample, from, s->to);
    }
}

/* Nothing is outside of a table at 0. */
void feed_zeros(const Feed *f) {
    for (int k = 0; k < f->n; k++) {
        LayoutWalk w = layout_walk(&f->slot[k].layout, comm_place());
        int32_t *to = f->slot[k].to;
        while (layout_next(&w)) memset(to + w.local, 0, (size_t)w.count * sizeof *to);
    }
}
