/* config_names.c - keys that say one thing under several names. */
#include "frontend/config/config_state.h"

enum { MOST_NAMES = 3 };

#define STAGES "parallel_config.pipeline_stage"
#define STEPS  "runner_config.gradient_accumulation_steps"
#define SHARD  "parallel_config.optimizer_shard"
#define LEVEL  "parallel.parallel_optimizer_config.optimizer_level"
#define EPOCHS "runner_config.epochs"

/* The first of a row is the one that the others act as. */
static const char *const names[][MOST_NAMES] = {
    {STAGES, "parallel.pipeline_stages"},
    {"parallel_config.micro_batch_num", "parallel.grad_accumulation_step", STEPS},
    {SHARD, "parallel.enable_parallel_optimizer"},
    {"runner_config.batch_size", "train_dataset.batch_size"},
    {"runner_config.log_interval", "callbacks.MFLossMonitor.per_print_times"},
    {"lr_schedule.learning_rate", "optimizer.learning_rate"},
    {"lr_schedule.warmup_steps", "lr_schedule.warmup_ratio"}};

#define MODEL   "model.model_config."
#define LOADER  "train_dataset.data_loader."
#define WRAPPER "runner_wrapper."
#define PC      "parallel_config."
#define LIST    PC "num_layer_list"
#define FIRST   PC "num_layers_in_first_pipeline_stage"
#define LAST    PC "num_layers_in_last_pipeline_stage"

/* Keys that say one thing in different words: `over` goes over `under` where it is higher and counts,
 * and with `both` the other way round too. */
static const struct {
    const char *over, *under;
    bool both;
} other_words[] = {
    {"optimizer.betas", "optimizer.beta1"},
    {"optimizer.betas", "optimizer.beta2"},
    {"train_dataset.seed", LOADER "seed"},
    {WRAPPER "scale_sense.type", WRAPPER "loss_scale"},
    {WRAPPER "scale_sense.loss_scale_value", WRAPPER "loss_scale"},
    {MODEL "max_decode_length", MODEL "max_new_tokens"},
    {MODEL "min_length", MODEL "min_new_tokens"},
    {MODEL "model_type", MODEL "type"},
    {MODEL "model_type", "model.arch.type"},
    {MODEL "model_type", MODEL "architectures", true},
    {MODEL "architectures", MODEL "type"},
    {MODEL "architectures", "model.arch.type"},
    {MODEL "type", "model.arch.type", true},
    {MODEL "expand_ratio", MODEL "ffn_hidden_size"},
    {MODEL "expand_ratio", MODEL "multiple_of"},
    {MODEL "expand_ratio", MODEL "ffn_dim_multiplier"},
    {EPOCHS, "runner_config.max_steps"},
    {MODEL "tie_word_embeddings", MODEL "untie_embeddings_and_output_weights", true},
    {MODEL "fp32_residual_connection", MODEL "residual_dtype", true},
    {MODEL "sliding_window", MODEL "fa_config.pre_tokens", true},
    {LIST, FIRST, true},
    {LIST, LAST, true},
    {LIST, PC "offset", true},
    {FIRST, PC "offset", true},
    {LAST, PC "offset", true},
    {LOADER "tokenizer_file", LOADER "vocab_file", true},
    {LOADER "tokenizer_file", LOADER "merge_file", true},
};

static int row_of(const char *path) {
    for (int i = 0; i < ARRAY_LEN(names); i++)
        for (int k = 0; k < MOST_NAMES && names[i][k]; k++)
            if (!strcmp(names[i][k], path)) return i;
    return -1;
}

const char *config_first_name(const char *path) {
    int row = row_of(path);
    return row < 0 ? path : names[row][0];
}

bool config_by_flag(const Config *cfg, const char *path) {
    return config_given(cfg, path) && config_of_flag(config_where(cfg, path));
}

static bool has_stages(const Config *cfg) {
    return (config_given(cfg, STAGES) ? cfg->parallel_config_pipeline_stage
                                      : cfg->parallel_pipeline_stages) > 1;
}

static bool has_samples(const Config *cfg) {
    return cfg->train_dataset_data_loader_num_samples.n > 0 &&
           cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
}

/* It is given and says something, and nothing else leaves it without effect. */
static bool counts(const Config *cfg, const char *path) {
    if (!config_given(cfg, path)) return false;
    if (!strcmp(path, STEPS)) return !has_stages(cfg);
    if (!strcmp(path, EPOCHS)) return !has_samples(cfg);
    const char *value = config_value(cfg, cfg->state->mem, path);
    return *value && strcmp(value, "[]") != 0;
}

static void take_back(Config *cfg, int k) {
    cfg->state->settings[k].value = NULL;
    key_store_text(cfg->state->mem, &key_table[k], key_table[k].def, cfg);
}

/* A level asks for shards: over what wants none and has less to say. */
static void displace_refused_shards(Config *cfg) {
    const char *const *name = names[row_of(SHARD)];
    if (!config_given(cfg, LEVEL) ||
        cfg->parallel_parallel_optimizer_config_optimizer_level == ZERO_AUTO)
        return;
    for (int k = 0; k < MOST_NAMES && name[k]; k++)
        if (config_given(cfg, name[k]) && !config_wants_shards(cfg) &&
            config_height(cfg, name[k]) < config_height(cfg, LEVEL))
            take_back(cfg, key_find(name[k]));
}

/* What a search chooses has no such way over a file. */
static void displace_under(Config *cfg, const char *over, const char *under) {
    if (!counts(cfg, over) || !config_given(cfg, under)) return;
    bool searched = !strcmp(config_where(cfg, over).file, config_search_file);
    if (!searched && config_height(cfg, over) > config_height(cfg, under))
        take_back(cfg, key_find(under));
}

void config_displace(Config *cfg) {
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        int top = 0;
        for (int k = 0; k < MOST_NAMES && names[i][k]; k++)
            if (counts(cfg, names[i][k])) top = MAX(top, config_height(cfg, names[i][k]));
        for (int k = 0; k < MOST_NAMES && names[i][k]; k++)
            if (config_given(cfg, names[i][k]) && config_height(cfg, names[i][k]) < top)
                take_back(cfg, key_find(names[i][k]));
    }
    displace_refused_shards(cfg);
    for (int i = 0; i < ARRAY_LEN(other_words); i++)
        displace_under(cfg, other_words[i].over, other_words[i].under);
    for (int i = 0; i < ARRAY_LEN(other_words); i++)
        if (other_words[i].both)
            displace_under(cfg, other_words[i].under, other_words[i].over);
}
