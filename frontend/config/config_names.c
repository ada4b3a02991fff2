/* config_names.c - keys that say one thing under several names. */
#include "frontend/config/config_state.h"

enum { MOST_NAMES = 3 };

#define STAGES "parallel_config.pipeline_stage"
#define STEPS  "runner_config.gradient_accumulation_steps"
#define SHARD  "parallel_config.optimizer_shard"
#define LEVEL  "parallel.parallel_optimizer_config.optimizer_level"

/* The first of a row is the one that the others act as. */
static const char *const names[][MOST_NAMES] = {
    {STAGES, "parallel.pipeline_stages"},
    {"parallel_config.micro_batch_num", "parallel.grad_accumulation_step", STEPS},
    {SHARD, "parallel.enable_parallel_optimizer"},
    {"runner_config.batch_size", "train_dataset.batch_size"},
    {"runner_config.log_interval", "callbacks.MFLossMonitor.per_print_times"},
    {"lr_schedule.learning_rate", "optimizer.learning_rate"},
    {"lr_schedule.warmup_steps", "lr_schedule.warmup_ratio"}};

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

/* A flag that is given, and that a pipeline does not leave without effect. */
static bool counts(const Config *cfg, const char *path) {
    return config_by_flag(cfg, path) && (strcmp(path, STEPS) != 0 || !has_stages(cfg));
}

static void take_back(Config *cfg, int k) {
    cfg->state->settings[k].value = NULL;
    key_store_text(cfg->state->mem, &key_table[k], key_table[k].def, cfg);
}

/* A file, a search and the command line: each has its way over those before it. */
static int authority(const Config *cfg, const char *path) {
    SourcePos at = config_where(cfg, path);
    if (!config_of_flag(at)) return 0;
    return strcmp(at.file, config_search_file) ? 2 : 1;
}

/* A level asks for shards: over a file that wants none, where it is a flag. */
static void displace_refused_shards(Config *cfg) {
    const char *const *name = names[row_of(SHARD)];
    if (!config_given(cfg, LEVEL) ||
        cfg->parallel_parallel_optimizer_config_optimizer_level == ZERO_AUTO)
        return;
    for (int k = 0; k < MOST_NAMES && name[k]; k++)
        if (config_given(cfg, name[k]) && !config_wants_shards(cfg) &&
            authority(cfg, name[k]) < authority(cfg, LEVEL))
            take_back(cfg, key_find(name[k]));
}

void config_displace(Config *cfg) {
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        bool flag = false;
        for (int k = 0; k < MOST_NAMES && names[i][k]; k++)
            flag |= counts(cfg, names[i][k]);
        for (int k = 0; flag && k < MOST_NAMES && names[i][k]; k++)
            if (config_given(cfg, names[i][k]) && !config_by_flag(cfg, names[i][k]))
                take_back(cfg, key_find(names[i][k]));
    }
    displace_refused_shards(cfg);
}
