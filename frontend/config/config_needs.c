/* config_needs.c - keys that act only together with others: the NEEDS rows of keys.def. */
#include "frontend/config/config_state.h"
#include "frontend/config/data_open.h"

/* ---- what the rows ask ---- */

static bool scales_dynamically(const Config *c) {
    return c->runner_wrapper_loss_scale == 0 &&
           c->runner_wrapper_scale_sense_type == SCALE_DYNAMIC;
}

/* Has a stage several ranks, which send more than the messages of a pipeline? */
static bool shares_stage(const Config *c) {
    return c->parallel_config_data_parallel * c->parallel_config_model_parallel *
               c->parallel_config_context_parallel >
           1;
}

static bool several(const Config *c) {
    return shares_stage(c) || c->parallel_config_pipeline_stage > 1;
}

static bool several_degrees(const Config *c) {
    return (c->parallel_config_data_parallel > 1) +
               (c->parallel_config_model_parallel > 1) +
               (c->parallel_config_context_parallel > 1) +
               (c->parallel_config_pipeline_stage > 1) >
           1;
}

static bool staged(const Config *c) {
    return c->parallel_config_pipeline_stage > 1;
}

static bool recomputes(const Config *c) {
    return config_switch(&c->recompute_config_recompute) ||
           config_switch(&c->recompute_config_select_recompute);
}

static bool recomputes_all(const Config *c) {
    return config_switch(&c->recompute_config_recompute) > 0;
}

static bool shares_layers(const Config *c) {
    return c->parallel_config_model_parallel * c->parallel_config_context_parallel > 1;
}

/* Reads a layer what its ranks have in parts? */
static bool gathers_in_layers(const Config *c) {
    bool tokens =
        c->parallel_config_sequence_parallel && c->parallel_config_model_parallel > 1;
    return tokens || (c->parallel_config_context_parallel > 1 &&
                      c->parallel_config_context_parallel_algo != CP_RING);
}

/* Ranks that would hold the same optimizer states. */
static bool copies(const Config *c) {
    return c->parallel_config_data_parallel * c->parallel_config_context_parallel > 1;
}

bool config_wants_shards(const Config *c) {
    if (config_given(c, "parallel_config.optimizer_shard"))
        return c->parallel_config_optimizer_shard;
    if (config_given(c, "parallel.enable_parallel_optimizer"))
        return c->parallel_enable_parallel_optimizer;
    return c->parallel_parallel_optimizer_config_optimizer_level != ZERO_AUTO;
}

static bool shards(const Config *c) {
    return copies(c) && config_wants_shards(c);
}

static bool gathers_ahead(const Config *c) {
    ZeroLevel level = c->parallel_parallel_optimizer_config_optimizer_level;
    return shards(c) && level != ZERO_3 && c->parallel_overlap != OVERLAP_OFF;
}

static bool buckets_given(const Config *c) {
    return config_given(c, "parallel.bucket_size") ||
           c->parallel_comm_fusion_allreduce_mode == FUSION_SIZE ||
           c->parallel_comm_fusion_allgather_mode == FUSION_SIZE ||
           c->parallel_comm_fusion_reducescatter_mode == FUSION_SIZE;
}

bool config_decays(const Config *c) {
    return c->lr_schedule_type != LR_CONSTANT &&
           c->lr_schedule_type != LR_CONSTANT_WITH_WARMUP;
}

static bool has_moments(const Config *c) {
    return c->optimizer_type != OPTIMIZER_SGD && c->optimizer_type != OPTIMIZER_MOMENTUM;
}

/* The samples' order is made from a seed. */
static bool has_order(const Config *c) {
    LoaderType type = c->train_dataset_data_loader_type;
    return type == LOADER_GPT_DATASET ||
           (type != LOADER_TENSOR_BATCHES && c->train_dataset_data_loader_shuffle);
}

/* Is a tokenizer named, or may the folder of the weights or of the model have one? */
static bool may_have_tokenizer(const Config *c) {
    return c->train_dataset_data_loader_tokenizer_file[0] ||
           c->train_dataset_data_loader_vocab_file[0] || c->init_from[0] ||
           c->resume_or_finetune_checkpoint[0] || c->pretrained_model_dir[0];
}

/* A pair may have its tokenizer beside it. */
static bool indexed(const Config *c) {
    return c->train_dataset_data_loader_type == LOADER_GPT_DATASET ||
           c->train_dataset_data_loader_type == LOADER_MEGATRON_INDEXED;
}

static bool uses_eod(const Config *c) {
    bool pads = c->train_dataset_data_loader_pad_token >= 0 || c->model_pad_token >= 0;
    if (c->train_dataset_data_loader_type == LOADER_WEBTEXT) return !pads;
    return data_asks_for_ends(c);
}

static bool type_given(const Config *c) {
    return config_given(c, "model.model_config.type") ||
           config_given(c, "model.arch.type");
}

/* A folder may have a model of rotary positions. */
static bool turns(const Config *c) {
    return c->model_position_embedding_type == POSITION_ROPE || config_has_source(c);
}

/* A written 0 is none. */
static bool gives_ffn(const Config *c) {
    const char *text = config_written(c, "model.model_config.ffn_hidden_size");
    return text && strcmp(text, "0") != 0;
}

/* Does the width of the MLP follow from other keys? */
static bool sizes_mlp(const Config *c) {
    return c->model_hidden_act == ACT_SWIGLU && !config_has_source(c) && !gives_ffn(c);
}

/* ---- the rows ---- */

const char *config_idle(const Config *c, const char *path) {
#define NEEDS(key, condition, why)                                                       \
    if (!strcmp(path, key) && !(condition)) return why;
#include "frontend/config/keys.def"
    return NULL;
}

/* ---- what MindFormers has otherwise ---- */

static bool gives_below(const Config *c, const char *section) {
    for (int k = 0; k < N_KEYS; k++)
        if (c->state->settings[k].value && begins_with(key_table[k].path, section))
            return true;
    return false;
}

static bool describes_gpt2(const Config *c) {
    return c->model_type == MODEL_GPT2 && !config_has_source(c) && !c->model_file[0];
}

/* Has a file keys that all files of MindFormers have, and nothing else? */
static bool is_for_mindformers(const Config *c) {
    static const char *const own[] = {"trainer", "use_parallel", "train_dataset_task"};
    for (int k = 0; k < N_KEYS; k++)
        for (int i = 0; i < ARRAY_LEN(own); i++)
            if (c->state->settings[k].value && begins_with(key_table[k].path, own[i]) &&
                !config_of_flag(c->state->settings[k].value->at))
                return true;
    return false;
}

static void note_default(Config *cfg, const char *path, const char *there) {
    Arena *mem = cfg->state->mem;
    if (config_given(cfg, path) || config_idle(cfg, path)) return;
    config_note(cfg, path,
                "%s is not given: here it is %s, in MindFormers %s: write that "
                "for the same numbers",
                path, config_value(cfg, mem, path), there);
}

static void note_otherwise(Config *cfg) {
    static const char micro[] = "parallel_config.micro_batch_num";
    const Config *c = cfg;
    bool trains = c->run_mode == RUN_TRAIN || c->run_mode == RUN_FINETUNE;
    if (!trains || !is_for_mindformers(c)) return;
#define OTHERWISE(path, condition, there)                                                \
    if (condition) note_default(cfg, path, there);
#include "frontend/config/keys.def"
    long long n = c->parallel_config_micro_batch_num;
    if (n > 1 && !staged(c) && config_given(c, micro) &&
        !config_of_flag(config_where(c, micro)) &&
        !config_given(c, "runner_config.gradient_accumulation_steps"))
        config_note(cfg, micro,
                    "micro_batch_num %lld counts without stages too: a step has %lld "
                    "micro-batches; in MindFormers it has no effect where pipeline_stage "
                    "is 1: write micro_batch_num: 1 for that",
                    n, n);
}

/* A switch that is off asks for nothing. */
static bool asks(const Config *cfg, int k) {
    const Key *key = &key_table[k];
    if (!cfg->state->settings[k].value) return false;
    if (key->kind != KIND_Bool) return true;
    return strcmp(key_text(cfg->state->mem, key, cfg, false), key->def) != 0;
}

void config_note_idle(Config *cfg) {
    for (int k = 0; k < N_KEYS; k++) {
        const char *path = key_table[k].path;
        const char *why = asks(cfg, k) ? config_idle(cfg, path) : NULL;
        if (why) config_add_needless(cfg, k, why);
    }
    config_note_needless(cfg);
    note_otherwise(cfg);
}
