/* train_ranks.c - the ranks of a run: the mesh over them, whether they agree, and the
 * part of a batch that each is fed. */
#include "../runtime/agree.h"
#include "../runtime/comm.h"
#include "commands.h"
#include "config_state.h"
#include "train.h"
#include <stdlib.h>

/* ---- the mesh ---- */

void ranks_choose(Train *t) {
    if (comm_size() > 1) strategy_replicate(t->cfg, comm_size(), "processes run");
    t->strategy = strategy_of_config(t->cfg);
    int64_t ranks = strategy_ranks(&t->strategy);
    if (ranks == comm_size()) return;
    config_refuse(
        t->cfg, "parallel_config.data_parallel", "parallel_config.model_parallel",
        arena_printf(t->mem, "stator launch -n %lld train ..., or another strategy",
                     (long long)ranks),
        "data_parallel x model_parallel x context_parallel is %lld x %lld x %lld = "
        "%lld ranks, but %d process%s",
        (long long)t->strategy.data, (long long)t->strategy.tensor,
        (long long)t->strategy.context, (long long)ranks, comm_size(),
        comm_size() == 1 ? " runs" : "es run");
}

/* Who runs collectives beside the work of this rank. */
static void choose_progress(const Train *t) {
    static const CommProgress ways[] = {[OVERLAP_OFF] = COMM_AT_ONCE,
                                        [OVERLAP_POLLS] = COMM_POLLS,
                                        [OVERLAP_THREAD] = COMM_THREAD};
    Overlap how = t->strategy.overlap;
    CommProgress want = how == OVERLAP_AUTO ? comm_progress_that_pays() : ways[how];
    CommProgress got = comm_progress(want);
    if (got == want || comm_size() == 1 || how == OVERLAP_AUTO) return;
    config_refuse(t->cfg, "parallel.overlap", NULL, "polls",
                  "this MPI library does not let another thread than the main one send");
}

void ranks_apply(Train *t, Module *m, PassOptions *o) {
    strategy_apply(&t->strategy, t->has_spec ? &t->spec : NULL, m, o);
    int size[MAX_AXES];
    for (int a = 0; a < m->mesh.naxes; a++) size[a] = m->mesh.axis[a].size;
    if (m->mesh.naxes && comm_size() > 1) comm_mesh(m->mesh.naxes, size);
    choose_progress(t);
}

/* ---- agreement ---- */

static const char same_files[] = "start all with the same files and flags";

static char *config_lines(const Train *t) {
    Text text = text_new(t->mem);
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (key->kind == KIND_TREE) continue;
        const char *value = config_value(t->cfg, t->mem, key->path);
        text_add(&text, "%s = ", key->path);
        text_add_bytes(&text, value, strlen(value));
        text_add(&text, "\n");
    }
    return text.s;
}

void ranks_agree_build(const Train *t) {
    const char *collectives = getenv("STATOR_COMM");
    agree_on(t->mem, "build", program_build_id(), "start the same program on all hosts");
    agree_on(t->mem, "environment",
             arena_printf(t->mem, "STATOR_COMM=%s", collectives ? collectives : ""),
             "give all ranks the same variables");
}

void ranks_agree_config(const Train *t) {
    agree_on(t->mem, "configuration", config_lines(t), same_files);
}

typedef struct Look {
    const Train *t;
    const Data *d;
    int64_t steps;
    const char *found; /* text */
} Look;

static void look_at_model_file(void *context) {
    Look *l = context;
    l->found = module_print(l->t->mem, model_read(l->t->mem, l->t->cfg->model_file));
}

void ranks_agree_model_file(const Train *t) {
    Look l = {.t = t};
    const char *path = t->cfg->model_file;
    if (!path[0] || comm_size() == 1) return;
    agree_look(look_at_model_file, &l);
    agree_on_file(t->mem, "model.file", l.found, path);
}

void ranks_agree_module(const Train *t, const Module *m) {
    if (comm_size() == 1) return;
    agree_on(t->mem, "model", module_print(t->mem, m), same_files);
}

/* ---- data ---- */

/* The batches of a run are compared as far as they have so many tokens together, which
 * takes a fraction of a second; of more of them some, spread over the run. */
enum { COMPARED_TOKENS = 4 << 20, COMPARED_MOST = 4096, COMPARED_LEAST = 2 };

/* Files may have the same size and other contents. */
static void add_batches(Arena *mem, const Data *d, int64_t steps, Text *out) {
    size_t n = (size_t)(d->batch * d->seq);
    char hex[33];
    DataBatch b = {.tokens = NEW_ARRAY(mem, int32_t, n),
                   .labels = NEW_ARRAY(mem, int32_t, n),
                   .positions = NEW_ARRAY(mem, int32_t, n),
                   .attends_from = NEW_ARRAY(mem, int32_t, n)};
    int64_t last = MAX(steps, 1) - 1, most = COMPARED_TOKENS / (d->batch * d->seq);
    most = MIN(MIN(MAX(most, COMPARED_LEAST), COMPARED_MOST), last + 1);
    for (int64_t k = 0; k < most; k++) {
        double share = (double)k / (double)MAX(most - 1, 1);
        int64_t step = most == last + 1 ? k : (int64_t)((double)last * share);
        data_batch_full(d, step, &b);
        hash_hex(b.tokens, n * sizeof *b.tokens, hex);
        text_add(out, "%s: batch %lld is %s\n", d->path, (long long)step, hex);
    }
}

/* Texts become tokens by these files. */
static void add_tokenizer(const Train *t, Arena *mem, Text *out) {
    const DataGptSpec *gpt = t->data->gpt;
    bool used = t->cfg->train_dataset_data_loader_type == LOADER_WEBTEXT;
    const char *const path[] = {used ? gpt->vocab_file : NULL,
                                used ? gpt->merge_file : NULL,
                                used ? gpt->tokenizer_file : NULL};
    for (int i = 0; i < ARRAY_LEN(path); i++) {
        char hex[33];
        size_t n;
        if (!path[i] || !path[i][0]) continue;
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
    bool has_batch = d->steps_available > 0 || (d->steps_available < 0 && d->samples > 0);
    add_tokenizer(l->t, scratch, &out);
    text_add(&out, "%s: %lld tokens, %lld samples, %lld steps\n", d->path,
             (long long)d->tokens, (long long)d->samples, (long long)d->steps_available);
    if (has_batch) add_batches(scratch, d, l->steps, &out);
    arena_free(scratch);
    l->found = out.s;
}

void ranks_agree_data(const Train *t, const Data *d, int64_t steps) {
    Look l = {.t = t, .d = d, .steps = steps};
    if (comm_size() == 1) return;
    agree_look(look_at_data, &l);
    agree_on_file(t->mem, "data", l.found, d->path);
}

/* ---- batches ---- */

Feed *feed_make(const Train *t, const Program *p) {
    static const char *const roles[FEEDS] = {"tokens", "labels", "positions",
                                             "attends_from"};
    Feed *f = NEW(t->mem, Feed);
    f->zigzag = t->strategy.ring > 1 ? t->strategy.ring : 0;
    f->seq = t->seq;
    for (int k = 0; k < FEEDS; k++) {
        int i = program_arg_role(p, roles[k]);
        f->slot[k] = i < 0 ? NULL : p->arg[i];
        if (i >= 0) f->layout[k] = layout_of(t->mem, p->entry, i);
    }
    return f;
}

/* Elements [first, first + n) of rows of `seq` tokens, in zigzag order. */
static void copy_tokens(const Feed *f, int32_t *to, const int32_t *from, int64_t first,
                        int64_t n) {
    if (!f->zigzag) {
        memcpy(to, from + first, (size_t)n * sizeof *to);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t row = (first + k) / f->seq, at = (first + k) % f->seq;
        to[k] = from[row * f->seq + zigzag_position(at, f->seq, f->zigzag)];
    }
}

void feed_batch(const Feed *f, const DataBatch *b, int64_t first_row) {
    const int32_t *from[FEEDS] = {b->tokens, b->labels, b->positions, b->attends_from};
    for (int k = 0; k < FEEDS; k++) {
        if (!f->slot[k]) continue;
        check(from[k]);
        LayoutWalk w = layout_walk(&f->layout[k], comm_rank());
        while (layout_next(&w))
            copy_tokens(f, f->slot[k] + w.local, from[k] + first_row * f->seq, w.global,
                        w.count);
    }
}
