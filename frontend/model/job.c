/* job.c - see job.h. */
#include "frontend/model/job.h"
#include "frontend/config/config_state.h"
#include "passes/model/made_again.h"
#include "passes/pipe/layers.h"
#include "runtime/store/safetensors.h"

#define BATCH  "runner_config.batch_size"
#define LENGTH "model.model_config.seq_length"
#define PARTS  "micro_batch_interleave_num"
#define LOADER "train_dataset.data_loader."

const ModelSpec *job_spec(const Job *j) {
    return j->has_spec ? &j->spec : NULL;
}

const char *job_title(Arena *mem, const Job *j) {
    const ModelSpec *s = &j->spec;
    if (!j->has_spec) return j->module.path;
    return arena_printf(mem, "%s: %lld layers of %lld, %lld heads, vocabulary %lld",
                        model_family_title(s->family), (long long)s->layers,
                        (long long)s->hidden, (long long)s->heads, (long long)s->vocab);
}

const char *job_unit(const Job *j) {
    return j->ncolumns ? "sample" : "token";
}

/* ---- a user's module ---- */

static Func *user_entry(const Job *j) {
    return model_entry(
        model_parse(j->mem, j->module.path, j->module.text, j->module.bytes));
}

/* A source of tokens fills i32[batch,seq] of the roles tokens and labels. */
static void check_token_arguments(const Job *j, const Func *f) {
    int found = 0;
    for (int i = 0; i < f->narg; i++) {
        const Type *ty = &f->arg[i]->ty;
        if (arg_role(f, i) == ARG_data)
            config_refuse(j->cfg, LOADER "type", "model.file",
                          "train_dataset.data_loader.type Tensors: tensors by the names "
                          "of the arguments",
                          "data of type %s cannot fill argument %%%s of role data",
                          data_loader_name(j->cfg), f->arg[i]->name);
        if (!job_is_sample(f, i)) continue;
        found++;
        if (ty->dt != DT_I32 || ty->rank != 2)
            fail(EXIT_CONFIG, "%s: argument %%%s of role %s must be i32[batch, seq]",
                 j->module.path, f->arg[i]->name, arg_str(f, i, "role", ""));
    }
    if (found != 2)
        fail(EXIT_CONFIG,
             "%s: @%s does not take tokens and labels, both i32[batch, seq], which text "
             "gives; or take tensors by name, train_dataset.data_loader.type Tensors",
             j->module.path, f->name);
}

/* -1: no column is of an argument of that role. */
static int column_of_role(const Job *j, const Func *f, ArgRole role) {
    int i = func_arg_role(f, role);
    for (int k = 0; k < j->ncolumns && i >= 0; k++)
        if (!strcmp(j->column[k].name, f->arg[i]->name)) return k;
    return -1;
}

static void user_shape(Job *j) {
    const Func *f = user_entry(j);
    bool tensors = j->cfg->train_dataset_data_loader_type == LOADER_TENSORS;
    if (tensors)
        j->column = job_columns(j->mem, f, &j->ncolumns);
    else
        check_token_arguments(j, f);
    j->labels = column_of_role(j, f, ARG_labels);
    if (tensors && j->labels < 0 && func_arg_role(f, ARG_counted) >= 0)
        fail(EXIT_CONFIG,
             "%s: @%s has an argument of role counted and reads no labels, which it "
             "counts",
             j->module.path, f->name);
    for (int i = 0; i < f->narg; i++) {
        if (!job_is_sample(f, i)) continue;
        j->batch = f->arg[i]->ty.dim[0];
        j->seq = tensors ? 1 : f->arg[i]->ty.dim[1];
    }
    bool given =
        config_given(j->cfg, BATCH) || config_given(j->cfg, "train_dataset.batch_size");
    int64_t asked = j->cfg->runner_config_batch_size * j->strategy.data;
    if (given && asked != j->batch)
        config_refuse(j->cfg, BATCH, "train_dataset.batch_size", "leave it out",
                      "batch_size %lld on %lld replicas is %lld, but %s takes %lld",
                      (long long)j->cfg->runner_config_batch_size,
                      (long long)j->strategy.data, (long long)asked, j->module.path,
                      (long long)j->batch);
}

/* ---- how large ---- */

/* TensorBatches have their own batch and length, which a plan may not find. */
static void file_shape(Job *j, bool batch_given, bool seq_given_too) {
    Config *cfg = j->cfg;
    const char *path = data_path_given(cfg, SPLIT_TRAIN);
    if (!path[0] || !file_exists(path)) {
        config_note(cfg, BATCH,
                    "a file of TensorBatches has its own batch; %s is not there, so "
                    "%lld sequences are taken",
                    path[0] ? path : "it", (long long)j->batch);
        return;
    }
    Safetensors *file = safetensors_open(j->mem, path, EXIT_DATA);
    const SafeTensor *t = safetensors_need(file, "tokens");
    if (t->rank == 3 && !batch_given) {
        if (t->dim[1] % j->micro)
            config_refuse(cfg, "parallel_config.micro_batch_num", NULL,
                          "micro_batch_num must divide the batches of the file",
                          "%s has batches of %lld sequences; %lld micro-batches do not "
                          "divide them",
                          path, (long long)t->dim[1], (long long)j->micro);
        j->batch = t->dim[1] / j->micro;
    }
    if (t->rank == 3 && !seq_given_too && t->dim[2] > 1) {
        int64_t length = t->dim[2] - 1;
        if (config_given(cfg, LENGTH) && length != j->seq)
            config_note(cfg, LENGTH,
                        "sequences have %lld tokens, as those of %s: seq_length %lld is "
                        "not used",
                        (long long)length, path, (long long)j->seq);
        j->seq = length;
    }
    safetensors_close(file);
    bool table = j->spec.positions == POSITION_LEARNED;
    if (table && j->seq > j->spec.max_positions)
        fail(EXIT_DATA, "%s has sequences of %lld tokens; the model has %lld positions",
             path, (long long)j->seq, (long long)j->spec.max_positions);
}

static void spec_shape(Job *j) {
    Config *cfg = j->cfg;
    bool given =
        config_given(cfg, BATCH) || config_given(cfg, "train_dataset.batch_size");
    LoaderType type = cfg->train_dataset_data_loader_type;
    if (type == LOADER_TENSORS)
        config_refuse(cfg, LOADER "type", NULL,
                      "TextFile, GPTDataset or another source "
                      "of tokens",
                      "data of type Tensors are for a model.file, whose arguments it "
                      "fills by name");
    if (cfg->runner_config_batch_size > INT32_MAX / j->strategy.data)
        config_refuse(cfg, BATCH, NULL, NULL, "%lld sequences on each of %lld replicas",
                      (long long)cfg->runner_config_batch_size,
                      (long long)j->strategy.data);
    j->batch = cfg->runner_config_batch_size * j->strategy.data;
    if (type == LOADER_TENSOR_BATCHES)
        file_shape(j, given, config_given(cfg, "train_dataset.seq_length"));
}

bool job_masks_labels(const Config *cfg) {
    LoaderType type = cfg->train_dataset_data_loader_type;
    return type == LOADER_GPT_DATASET || type == LOADER_WEBTEXT;
}

/* What the model takes besides tokens and labels. */
static void choose_inputs(Job *j) {
    const Config *cfg = j->cfg;
    LoaderType type = cfg->train_dataset_data_loader_type;
    bool packed = type == LOADER_GPT_DATASET;
    j->shape = (ModelShape){.batch = j->batch, .seq = j->seq};
    if (!j->has_spec) return;
    j->shape.own_positions = packed && cfg->train_dataset_data_loader_reset_position_ids;
    j->shape.documents = packed && cfg->train_dataset_data_loader_reset_attention_mask;
    j->shape.masked = job_masks_labels(cfg);
    j->shape.vocab_rows = strategy_vocab(&j->strategy, &j->spec);
    j->shape.zigzag = j->strategy.ring > 1 ? j->strategy.ring : 0;
}

/* Padding has gradients of 0, of which AdamW without eps, in f32, makes 0/0. */
static void check_padding(const Job *j) {
    const Config *cfg = j->cfg;
    if (j->evaluates || !j->has_spec || (float)cfg->optimizer_eps > 0 ||
        j->shape.vocab_rows <= j->spec.vocab || config_idle(cfg, "optimizer.eps"))
        return;
    config_refuse(
        cfg, "optimizer.eps", NULL, "a number above 0, such as 1e-8",
        "the strategy pads the vocabulary of %lld to %lld rows: with eps 0 the step of "
        "padding, whose gradients are 0, is 0/0",
        (long long)j->spec.vocab, (long long)j->shape.vocab_rows);
}

/* A part does not know how many labels of the others count. */
static void check_means(const Job *j) {
    if (j->parts > 1 && j->shape.masked && strategy_loss_groups(j->cfg, &j->strategy))
        config_refuse(j->cfg, PARTS, "runner_wrapper.calculate_per_token_loss",
                      "calculate_per_token_loss True, or micro_batch_interleave_num 1",
                      "with calculate_per_token_loss False and labels that do not count "
                      "the loss is a mean over a micro-batch as a whole");
}

/* Rows of the token table (and classes of the loss): no token may lead outside. */
static int64_t vocabulary(const Job *j) {
    if (j->has_spec) return j->spec.vocab;
    const Func *f = user_entry(j);
    int64_t vocab = 0, classes = INT64_MAX;
    for (int i = 0; i < f->narg && !j->ncolumns; i++) {
        if (!job_is_sample(f, i)) continue;
        DataColumn c = job_column(j->mem, f, i);
        if (arg_role(f, i) == ARG_labels)
            classes = c.high;
        else if (c.low == 0)
            vocab = c.high;
        else
            fail(EXIT_CONFIG,
                 "%s: %%%s of @%s must be the rows of a table (op embed), so that the "
                 "size of the vocabulary is known",
                 j->module.path, f->arg[i]->name, f->name);
    }
    return MIN(vocab, classes);
}

/* Parts of a micro-batch, where they can hide anything. */
static void choose_parts(Job *j) {
    const Config *cfg = j->cfg;
    const Strategy *s = &j->strategy;
    bool hides = s->tensor * s->context > 1 && s->overlap != OVERLAP_OFF;
    int64_t n = hides ? cfg->micro_batch_interleave_num : 1;
    j->parts = 1;
    if (n == 1) return;
    if (!j->has_spec)
        config_refuse(
            cfg, PARTS, "model.file",
            "micro_batch_interleave_num 1; parallel_config.micro_batch_num does "
            "several runs of the module one after the other",
            "the module of model.file has a batch of its own, which cannot be "
            "cut in parts");
    if (j->batch % (n * s->data))
        config_refuse(cfg, PARTS, BATCH, "a divisor of the sequences of a replica",
                      "a micro-batch has %lld sequences on each of %lld replicas, which "
                      "are not a multiple of %lld parts",
                      (long long)(j->batch / s->data), (long long)s->data, (long long)n);
    j->parts = n;
}

static bool attends_in_layers(const Func *model) {
    for (const Op *op = model->first; op; op = op->next)
        if (op_is_loop(op) && made_again_selects(op_func(op))) return true;
    return false;
}

/* What has no layers has none to make again, and what does not attend no attention. */
static void choose_again(Job *j) {
    static const char *const keys[] = {"recompute_config.recompute",
                                       "recompute_config.select_recompute"};
    const TextList *said[] = {&j->cfg->recompute_config_recompute,
                              &j->cfg->recompute_config_select_recompute};
    if (j->has_spec || !j->strategy.remake) return;
    const Func *model = user_entry(j);
    bool layers = layers_count(model) > 0;
    if (layers && strstr(j->strategy.remake, "selective") && !attends_in_layers(model))
        config_note(j->cfg, keys[1],
                    "%s has no effect: no layer of %s has attention, which it computes "
                    "again; names of values are made again too, such as [h]",
                    keys[1], j->module.path);
    for (int i = 0; i < ARRAY_LEN(keys) && !layers; i++)
        if (config_switch(said[i]))
            config_note(
                j->cfg, keys[i],
                "%s has no effect: %s has no layers, which are the runs of a call "
                "with `times` in its model function",
                keys[i], j->module.path);
    if (!layers) j->strategy.remake = NULL;
}

void job_choose_shape(Job *j) {
    uint64_t whole;
    j->micro = j->cfg->parallel_config_micro_batch_num;
    if (j->has_spec)
        spec_shape(j);
    else
        user_shape(j);
    if (!mul_size((uint64_t)j->batch, (uint64_t)j->micro, &whole) || whole > INT32_MAX)
        config_refuse(j->cfg, "parallel_config.micro_batch_num", NULL, NULL,
                      "%lld micro-batches of %lld sequences", (long long)j->micro,
                      (long long)j->batch);
    choose_parts(j);
    choose_again(j);
    choose_inputs(j);
    check_means(j);
    check_padding(j);
    job_choose_tokens(j, vocabulary);
}

Job *job_to_plan(Arena *mem, Config *cfg) {
    Job *j = NEW(mem, Job);
    *j =
        (Job){.mem = mem, .plans = true, .cfg = cfg, .strategy = strategy_of_config(cfg)};
    job_choose_model(j);
    job_choose_shape(j);
    return j;
}

DataShape job_data_shape(const Job *j, int64_t rows, int64_t steps) {
    return (DataShape){.rows = rows,
                       .seq = j->seq,
                       .vocab = vocabulary(j),
                       .step_rows = j->batch * j->micro,
                       .steps = steps,
                       .column = j->column,
                       .ncolumns = j->ncolumns};
}

DataBatch job_batch_new(Arena *mem, const Job *j, int64_t samples) {
    Data like = {
        .batch = samples, .seq = j->seq, .column = j->column, .ncolumns = j->ncolumns};
    return data_batch_new(mem, &like);
}

bool job_full_batches(const Job *j) {
    return j->shape.own_positions || j->shape.documents;
}

int64_t job_ahead_bytes(const Job *j) {
    Data shape = {.seq = j->seq, .column = j->column, .ncolumns = j->ncolumns};
    uint64_t bytes = INT64_MAX;
    if (!__builtin_mul_overflow(j->batch, j->micro, &shape.batch))
        bytes = prefetch_bytes(&shape, job_full_batches(j),
                               j->cfg->train_dataset_prefetch_size);
    return (int64_t)MIN(bytes, INT64_MAX / 2);
}

void job_check(const Job *j) {
    ModelShape shape = j->shape;
    shape.batch = j->batch / j->parts;
    strategy_check(j->cfg, &j->strategy, job_spec(j), shape);
}

/* ---- the module ---- */

Module *job_build(const Job *j, ModelUse use, int64_t batch) {
    ModelShape shape = j->shape;
    shape.batch = batch;
    /* the whole batch of a step in one run has as many groups as its micro-batches */
    if (shape.masked)
        shape.loss_groups =
            strategy_loss_groups(j->cfg, &j->strategy) * (batch / j->batch);
    strategy_check(j->cfg, &j->strategy, job_spec(j), shape);
    if (j->has_spec) return model_build(j->mem, &j->spec, shape, use);
    return model_parse(j->mem, j->module.path, j->module.text, j->module.bytes);
}

Module *job_build_step(const Job *j, PassOptions *o) {
    o->micro_batches = j->micro;
    o->interleave = j->parts;
    return job_build(j, MODEL_TRAIN, j->batch / j->parts);
}

Module *job_module(const Job *j, PassOptions *o) {
    Module *m = job_build_step(j, o);
    strategy_apply(&j->strategy, job_spec(j), m, o);
    return m;
}

static double tokens_of_run(const Job *j) {
    return (double)(j->batch / j->parts) * (double)j->seq;
}

void job_count_flops(Job *j, Module *model) {
    j->flops_per_token = model_flops(model) / tokens_of_run(j);
}

void job_count_remade(Job *j) {
    if (!j->strategy.remake) return;
    PassOptions o = pass_options_default();
    Module *m = job_module(j, &o);
    passes_run(m, "simplify,seed,remake,autodiff,simplify", &o);
    j->remade_per_token = model_flops(m) / tokens_of_run(j) - j->flops_per_token;
}

Module *job_build_whole(const Job *j) {
    ModelShape shape = {.batch = 1, .seq = j->seq};
    if (j->has_spec) return model_build(j->mem, &j->spec, shape, MODEL_TRAIN);
    return model_parse(j->mem, j->module.path, j->module.text, j->module.bytes);
}
