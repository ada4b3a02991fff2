/* train_model.c - which model a run trains, and its module. */
#include "key.h"
#include "train.h"

#define MODEL "model.model_config."

/* Keys that say how a model is used, not what it is, stand beside any model. */
static bool describes_model(const char *path) {
    static const char *const uses[] = {MODEL "seq_length",
                                       MODEL "repetition_penalty",
                                       MODEL "max_decode_length",
                                       MODEL "top_k",
                                       MODEL "top_p",
                                       MODEL "temperature",
                                       MODEL "do_sample",
                                       MODEL "use_past",
                                       MODEL "use_flash_attention",
                                       MODEL "batch_size",
                                       MODEL "checkpoint_name_or_path"};
    for (int i = 0; i < ARRAY_LEN(uses); i++)
        if (!strcmp(path, uses[i])) return false;
    return !strncmp(path, MODEL, strlen(MODEL)) || !strcmp(path, "model.arch.type");
}

static bool model_given(const Config *cfg) {
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (describes_model(key->path) && config_given(cfg, key->path)) return true;
    }
    return false;
}

static bool seq_given(const Config *cfg) {
    return config_given(cfg, MODEL "seq_length") ||
           config_given(cfg, "train_dataset.seq_length");
}

void train_model_choose(Train *t) {
    Config *cfg = t->cfg;
    t->has_source = cfg->init_from[0] != 0;
    if (t->has_source) t->source = source_open_shared(t->mem, cfg->init_from);
    if (cfg->model_file[0]) return;
    t->has_spec = true;
    bool given = model_given(cfg);
    if (!given && !t->has_source)
        fail(EXIT_CONFIG, "the configuration has no model: give a section "
                          "model.model_config, a model.file, or --init_from a folder "
                          "with a config.json");
    t->spec = given ? model_spec_of_config(cfg) : t->source.spec;
    t->seq = given || seq_given(cfg) ? cfg->model_seq_length : t->spec.max_positions;
}

Module *train_model_build(Train *t, ModelUse use, int64_t batch) {
    if (!t->has_spec) {
        strategy_check(t->cfg, &t->strategy, NULL,
                       (ModelShape){.batch = batch, .seq = t->seq});
        return model_read(t->mem, t->cfg->model_file);
    }
    const DataGptSpec *gpt = t->data->gpt;
    ModelShape shape = {.batch = batch,
                        .seq = t->seq,
                        .own_positions = gpt && gpt->reset_position_ids,
                        .documents = gpt && gpt->reset_attention_mask,
                        .vocab_rows = strategy_vocab(&t->strategy, &t->spec),
                        .zigzag = t->strategy.ring > 1 ? t->strategy.ring : 0,
                        .masked = gpt != NULL};
    strategy_check(t->cfg, &t->strategy, &t->spec, shape);
    return model_build(t->mem, &t->spec, shape, use);
}

Module *train_model_whole(Train *t) {
    if (!t->has_spec) return model_read(t->mem, t->cfg->model_file);
    ModelShape shape = {.batch = 1, .seq = t->seq};
    return model_build(t->mem, &t->spec, shape, MODEL_TRAIN);
}

/* Index of the argument of a role that a training batch fills; fails when it is not
 * there or not i32[B,T]. */
static int batch_arg(const Train *t, const Func *f, const char *role) {
    for (int i = 0; i < f->narg; i++) {
        if (strcmp(arg_str(f, i, "role", ""), role)) continue;
        const Type *ty = &f->arg[i]->ty;
        if (ty->dt != DT_I32 || ty->rank != 2)
            fail(EXIT_CONFIG, "%s: argument %%%s of role %s must be i32[batch, seq]",
                 t->cfg->model_file, f->arg[i]->name, role);
        return i;
    }
    fail(EXIT_CONFIG,
         "%s: @%s has no argument of role %s; a model that is trained on text takes "
         "tokens and labels, both i32[batch, seq]",
         t->cfg->model_file, f->name, role);
}

void train_model_shape(Train *t, int64_t *batch, int64_t *seq) {
    const Func *f = model_entry(model_read(t->mem, t->cfg->model_file));
    const Type *tokens = &f->arg[batch_arg(t, f, "tokens")]->ty;
    const Type *labels = &f->arg[batch_arg(t, f, "labels")]->ty;
    if (!type_same_shape(tokens, labels))
        fail(EXIT_CONFIG, "%s: tokens and labels of @%s differ in shape",
             t->cfg->model_file, f->name);
    for (int i = 0; i < f->narg; i++) {
        const char *role = arg_str(f, i, "role", "");
        bool fed = !strcmp(role, "tokens") || !strcmp(role, "labels") ||
                   !strcmp(role, "rng") || !strcmp(role, "param");
        if (!fed)
            fail(EXIT_CONFIG,
                 "%s: nothing in a training step fills argument %%%s of "
                 "role %s; there are tokens, labels, rng and param",
                 t->cfg->model_file, f->arg[i]->name, role[0] ? role : "data");
    }
    *batch = tokens->dim[0];
    *seq = tokens->dim[1];
}

int64_t train_model_vocab(Train *t) {
    if (t->has_spec) return t->spec.vocab;
    const Func *f = model_entry(model_read(t->mem, t->cfg->model_file));
    const Value *tokens = f->arg[batch_arg(t, f, "tokens")];
    const Value *labels = f->arg[batch_arg(t, f, "labels")];
    int64_t vocab = 0, classes = INT64_MAX;
    for (const Op *op = f->first; op; op = op->next) {
        if (op->nin < 2) continue;
        const Type *ty = &op->in[0]->ty;
        if (op->kind == OP_embed && op->in[1] == tokens)
            vocab = vocab ? MIN(vocab, ty->dim[0]) : ty->dim[0];
        if (op->kind == OP_xent && op->in[1] == labels)
            classes = MIN(classes, ty->dim[ty->rank - 1]);
    }
    if (!vocab)
        fail(EXIT_CONFIG,
             "%s: %%%s must go into an embed op of @%s itself, so that the "
             "size of the vocabulary is known",
             t->cfg->model_file, tokens->name, f->name);
    return MIN(vocab, classes);
}
