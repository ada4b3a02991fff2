/* config_derive.c - values that follow from other values. What is printed are given keys as they are
 * written, so reading that back derives the same, beside other flags too. */
#include "frontend/config/config_state.h"
#include <math.h>

#define MODEL  "model.model_config."
#define LOADER "train_dataset.data_loader."

/* LlamaFeedForward of MindFormers (models/llama/llama_layer.py), which follows Llama 2. */
static int64_t ffn_multiple(const Config *c) {
    int64_t wide = 4 * c->model_hidden_size, of = c->model_multiple_of;
    if (c->model_ffn_dim_multiplier > 0)
        wide = (int64_t)((c->model_ffn_dim_multiplier + 0.01) * (double)wide);
    if (!of) of = 256;
    return (2 * wide / 3 + of - 1) / of * of;
}

static int64_t ffn_size(const Config *c) {
    int64_t gated = c->model_hidden_size * 8 / 3 / 64 * 64;
    bool multiple = c->model_multiple_of || c->model_ffn_dim_multiplier > 0;
    if (c->model_hidden_act == ACT_SWIGLU && multiple) return ffn_multiple(c);
    if (c->model_hidden_act == ACT_SWIGLU && !config_given(c, MODEL "expand_ratio"))
        return MAX(gated, 64);
    return llround((double)c->model_hidden_size * c->model_expand_ratio);
}

/* pre_tokens is another way to say it. More than a sequence has is no window. */
static int64_t sliding_window(const Config *c) {
    int64_t before = c->model_fa_pre_tokens;
    if (config_given(c, MODEL "sliding_window") ||
        !config_given(c, MODEL "fa_config.pre_tokens"))
        return c->model_sliding_window;
    int64_t positions =
        config_has_source(c) ? INT32_MAX : c->model_max_position_embeddings;
    return before < positions ? before + 1 : 0;
}

/* Keys of the same thing in other forms. */
static void derive_forms(Config *c) {
    static const char *const tied[] = {MODEL "tie_word_embeddings",
                                       MODEL "untie_embeddings_and_output_weights"};
    bool untied = c->model_untie_embeddings_and_output_weights;
    if (config_given(c, tied[1]) && !config_given(c, tied[0]))
        c->model_tie_word_embeddings = !untied;
    if (config_given(c, MODEL "residual_dtype") &&
        !config_given(c, MODEL "fp32_residual_connection"))
        c->model_fp32_residual_connection = c->model_residual_dtype == FLOAT_32;
    if (!c->model_head_dim) c->model_head_dim = c->model_hidden_size / c->model_num_heads;
}

static void derive_shape(void *context) {
    Config *c = context;
    /* those of noop_layers do not exist */
    int64_t layers = c->model_num_layers - c->parallel_config_noop_layers.n;
    derive_forms(c);
    if (!c->train_dataset_seq_length)
        c->train_dataset_seq_length = c->train_dataset_data_loader_seq_length;
    if (!config_given(c, MODEL "seq_length") && c->train_dataset_seq_length)
        c->model_seq_length = c->train_dataset_seq_length;
    if (!c->train_dataset_seq_length) c->train_dataset_seq_length = c->model_seq_length;
    if (!c->model_max_position_embeddings)
        c->model_max_position_embeddings = c->model_seq_length;
    c->model_sliding_window = sliding_window(c);
    if (!c->model_n_kv_heads) c->model_n_kv_heads = c->model_num_heads;
    if (!c->model_ffn_hidden_size) c->model_ffn_hidden_size = ffn_size(c);
    if (!config_given(c, MODEL "eos_token") && c->model_eos_token >= c->model_vocab_size)
        c->model_eos_token = -1;
    /* Qwen2 has these biases alone */
    bool follows = c->model_add_bias_linear || c->model_type != MODEL_LLAMA;
    if (follows && !config_given(c, MODEL "add_qkv_bias"))
        c->model_add_qkv_bias = c->model_add_bias_linear;
    if (!config_given(c, MODEL "out_proj_has_bias"))
        c->model_out_proj_has_bias = c->model_add_bias_linear;
    if (!config_given(c, MODEL "hidden_dropout_prob"))
        c->model_hidden_dropout_prob = c->model_dropout_prob;
    if (!config_given(c, MODEL "embedding_init_std"))
        c->model_embedding_init_std = c->model_initializer_range;
    if (!config_given(c, MODEL "output_init_std"))
        c->model_output_init_std =
            c->model_initializer_range / sqrt(2.0 * (double)MAX(layers, 1));
}

/* The checkpoint keys come down to two: resume (go on) and init_from (weights only). */
static void derive_start(void *context) {
    Config *cfg = context;
    const char *load = cfg->resume_or_finetune_checkpoint;
    bool others = load[0] || config_given(cfg, "init_from");
    if (cfg->resume_training && !strcmp(cfg->resume, "never"))
        config_refuse(cfg, "resume_training", "resume", "keep one of the two",
                      "resume_training True goes on with a run, and resume never begins "
                      "anew");
    if (cfg->run_mode == RUN_FINETUNE && !others)
        cfg->init_from = cfg->pretrained_model_dir;
    if (!load[0]) return;
    if (config_resume_else(cfg)[0]) {
        if (!config_given(cfg, "resume")) cfg->resume = load;
        if (strcmp(cfg->resume, "auto") != 0)
            config_check_agree(cfg, "resume", "resume_or_finetune_checkpoint");
    } else {
        if (!config_given(cfg, "init_from")) cfg->init_from = load;
        config_check_agree(cfg, "init_from", "resume_or_finetune_checkpoint");
    }
}

/* Is `path` what counts? A line where another value of `other` is not used then. */
static bool precedes(Config *cfg, const char *path, const char *other) {
    Arena *mem = cfg->state->mem;
    const char *value = config_value(cfg, mem, path);
    if (!config_given(cfg, path)) return false;
    if (config_given(cfg, other) && strcmp(value, config_value(cfg, mem, other)) != 0)
        config_note(cfg, other, "%s is not used: %s %s takes precedence", other, path,
                    value);
    return true;
}

static void derive_batch(Config *cfg) {
    const char *micro = "parallel_config.micro_batch_num";
    if (!precedes(cfg, "runner_config.batch_size", "train_dataset.batch_size"))
        cfg->runner_config_batch_size = cfg->train_dataset_batch_size;
    if (!config_given(cfg, "parallel_config.pipeline_stage"))
        cfg->parallel_config_pipeline_stage = cfg->parallel_pipeline_stages;
    if (!config_given(cfg, micro)) {
        cfg->parallel_config_micro_batch_num = cfg->parallel_grad_accumulation_step;
        micro = "parallel.grad_accumulation_step";
    }
    if (cfg->parallel_config_pipeline_stage == 1 &&
        precedes(cfg, "runner_config.gradient_accumulation_steps", micro))
        cfg->parallel_config_micro_batch_num =
            cfg->runner_config_gradient_accumulation_steps;
}

static void note_meanings(Config *cfg) {
    const YamlNode *type =
        cfg->state->settings[key_find("train_dataset.data_loader.type")].value;
    if (type && !strcmp(type->text, "MindDataset"))
        config_note(
            cfg, "train_dataset.data_loader.type",
            "type MindDataset is read as MegatronIndexed, a .bin/.idx pair, which "
            "stator preprocess makes of text; MindRecord files cannot be read");
    if (cfg->train_dataset_data_loader_type == LOADER_WEBTEXT &&
        cfg->train_dataset_data_loader_eod >= 0 && !config_idle(cfg, LOADER "eod"))
        config_note(cfg, LOADER "eod",
                    LOADER
                    "eod fills up a text that is shorter than a sample: no text of "
                    "a WebtextDataset ends with it");
    if ((float)cfg->optimizer_eps == 0 && !config_idle(cfg, "optimizer.eps"))
        config_note(cfg, "optimizer.eps",
                    "optimizer.eps is 0: the step of a number whose gradients have all "
                    "been 0, as of a token that is not in the data, is 0/0");
    if (cfg->optimizer_weight_decay_incr_style != WD_CONSTANT &&
        config_given(cfg, "optimizer.weight_decay"))
        config_note(cfg, "optimizer.weight_decay",
                    "optimizer.weight_decay is not used: it goes from start_weight_decay "
                    "to end_weight_decay");
}

/* The last step of warm-up has all but one part of learning_rate, and warmup_lr_init. */
static void note_warmup(Config *cfg) {
    double lr = cfg->lr_schedule_learning_rate, init = cfg->lr_schedule_warmup_lr_init;
    double steps = (double)cfg->lr_schedule_warmup_steps;
    double most = steps > 0 ? init + lr * (steps - 1) / steps : 0;
    if (init > 0 && most > lr * (1 + 1e-9))
        config_note(cfg, "lr_schedule.warmup_lr_init",
                    "the learning rate goes up to %g at the end of warm-up, above "
                    "learning_rate %g: warmup_lr_init %g is added all through it",
                    most, lr, init);
}

static void derive_schedule(Config *cfg) {
    if (!precedes(cfg, "lr_schedule.learning_rate", "optimizer.learning_rate"))
        cfg->lr_schedule_learning_rate = cfg->optimizer_learning_rate;
    if (cfg->lr_schedule_type == LR_COSINE_WITH_RESTARTS &&
        !config_given(cfg, "lr_schedule.num_cycles"))
        cfg->lr_schedule_num_cycles = 1;
    if (cfg->lr_schedule_total_steps < 0 && cfg->runner_config_max_steps >= 0)
        cfg->lr_schedule_total_steps = cfg->runner_config_max_steps;
    if (!config_given(cfg, "lr_schedule.warmup_steps") &&
        cfg->lr_schedule_total_steps > 0)
        cfg->lr_schedule_warmup_steps =
            config_warmup_of(cfg, cfg->lr_schedule_total_steps);
    note_warmup(cfg);
}

/* One of the two is said over the list: of that the other is left, by its own name. */
static void split_betas(Config *cfg, const char *const *beta, const TextList *l) {
    ConfigState *state = cfg->state;
    Setting *list = &state->settings[key_find("optimizer.betas")];
    for (int i = 0; i < l->n; i++) {
        int k = key_find(beta[i]);
        Setting *one = &state->settings[k];
        if (one->value) continue;
        one->name = beta[i];
        one->value = yaml_scalar(state->mem, l->items[i], list->value->at);
        key_store(state->mem, &key_table[k], "optimizer.betas", one->value, cfg);
    }
    list->value = NULL;
    key_store_text(state->mem, &key_table[key_find("optimizer.betas")], "[]", cfg);
}

/* [beta1, beta2] */
static void derive_betas(void *context) {
    Config *cfg = context;
    static const char *const beta[] = {"optimizer.beta1", "optimizer.beta2"};
    const Setting *s = &cfg->state->settings[key_find("optimizer.betas")];
    TextList l = cfg->optimizer_betas;
    if (!config_given(cfg, "optimizer.betas") || !l.n) return;
    if (l.n != ARRAY_LEN(beta))
        config_refuse(cfg, "optimizer.betas", NULL, "[0.9, 0.95]",
                      "betas has %d numbers, not two", l.n);
    for (int i = 0; i < l.n; i++)
        if (config_given(cfg, beta[i]) &&
            config_height(cfg, beta[i]) > config_height(cfg, "optimizer.betas"))
            return split_betas(cfg, beta, &l);
    for (int i = 0; i < l.n; i++) {
        YamlNode *number = yaml_scalar(cfg->state->mem, l.items[i], s->value->at);
        if (config_given(cfg, beta[i]))
            config_refuse(cfg, "optimizer.betas", beta[i], "keep one of the two",
                          "%s is given together with optimizer.betas", beta[i]);
        key_store(cfg->state->mem, &key_table[key_find(beta[i])], "optimizer.betas",
                  number, cfg);
    }
}

/* The loader has a seed of its own in MindFormers. It counts as given, as printing has another
 * name for the type, from which it does not follow. */
static void derive_seed(Config *cfg) {
    Setting *seed = &cfg->state->settings[key_find(LOADER "seed")];
    const YamlNode *type = cfg->state->settings[key_find(LOADER "type")].value;
    if (seed->value) return;
    cfg->train_dataset_data_loader_seed = cfg->train_dataset_seed;
    if (config_by_flag(cfg, "train_dataset.seed") || !type ||
        strcmp(type->text, "BlendedMegatronDatasetDataLoader") != 0)
        return;
    cfg->train_dataset_data_loader_seed = 1234;
    *seed =
        (Setting){yaml_scalar(cfg->state->mem, "1234", type->at), LOADER "seed", true};
}

static void derive_data(Config *cfg) {
    derive_seed(cfg);
    if (cfg->train_dataset_data_loader_create_compressed_eod_mask)
        cfg->train_dataset_data_loader_reset_attention_mask = true;
    if (cfg->runner_config_eval_interval < 0) cfg->runner_config_eval_interval = 0;
}

static void derive_run(void *context) {
    Config *cfg = context;
    derive_batch(cfg);
    derive_data(cfg);
    if (!config_given(cfg, "runner_wrapper.hysteresis") &&
        config_given(cfg, "runner_wrapper.scale_sense.type"))
        cfg->runner_wrapper_hysteresis = 1;
    if (!precedes(cfg, "runner_config.log_interval",
                  "callbacks.MFLossMonitor.per_print_times"))
        cfg->runner_config_log_interval = cfg->callbacks_MFLossMonitor_per_print_times;
    if (!config_given(cfg, "dump_ir") && cfg->context_save_graphs)
        cfg->dump_ir = cfg->context_save_graphs_path;
    note_meanings(cfg);
    derive_schedule(cfg);
}

/* What one of them refuses leaves what the others derive. */
void config_derive(Config *cfg) {
    static void (*const parts[])(void *) = {derive_shape, derive_betas, derive_run,
                                            derive_start};
    for (int i = 0; i < ARRAY_LEN(parts); i++) config_try(cfg->state, parts[i], cfg);
}
