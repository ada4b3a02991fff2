/* config_check.c - combinations of values that make no sense. */
#include "frontend/config/config_state.h"
#include "frontend/config/data_open.h"
#include "runtime/text/tokenizer.h"

#define MODEL  "model.model_config."
#define LOADER "train_dataset.data_loader."

/* One of several keys that a check looks at in the same way. */
typedef struct OneKey {
    const Config *cfg;
    int nth;
    void (*look)(const Config *cfg, int nth);
} OneKey;

static void run_one(void *context) {
    const OneKey *k = context;
    k->look(k->cfg, k->nth);
}

/* So that the mistake of one of n keys does not hide that of the next. */
static void check_each(const Config *cfg, int n, void (*look)(const Config *, int)) {
    for (int i = 0; i < n; i++) config_try(cfg->state, run_one, &(OneKey){cfg, i, look});
}

/* A whole section beside it is one mistake. */
static void check_model_source(const Config *cfg) {
    if (config_given(cfg, "model.arch.type") &&
        (int)cfg->model_arch_type != (int)cfg->model_type)
        config_check_agree(cfg, "model.arch.type", MODEL "type");
    if (!cfg->model_file[0]) return;
    for (int k = 0; k < N_KEYS; k++) {
        const char *path = key_table[k].path;
        bool describes = begins_with(path, MODEL) || !strcmp(path, "model.arch.type");
        if (describes && config_given(cfg, path))
            config_refuse(cfg, path, NULL, "keep model.file or model.model_config",
                          "%s is given together with model.file, which is a whole model",
                          path);
    }
}

static void check_heads(const Config *c) {
    long long h = c->model_hidden_size, heads = c->model_num_heads;
    long long width = c->model_head_dim;
    long long turned = (long long)((double)width * c->model_rotary_percent);
    if (!config_has_source(c) && !config_given(c, MODEL "head_dim") && h % heads)
        config_refuse(c, MODEL "num_heads", MODEL "hidden_size",
                      "hidden_size must be a multiple of num_heads",
                      "%lld heads do not divide hidden_size %lld", heads, h);
    if (c->model_position_embedding_type == POSITION_ROPE && !config_has_source(c) &&
        (turned % 2 || !turned))
        config_refuse(c,
                      config_given(c, MODEL "rotary_percent") ? MODEL "rotary_percent"
                      : config_given(c, MODEL "head_dim")     ? MODEL "head_dim"
                                                              : MODEL "num_heads",
                      MODEL "hidden_size",
                      "rotary positions turn pairs of numbers; position_embedding_type "
                      "none has none",
                      "of a head's %lld numbers rotary positions turn %lld", width,
                      turned);
}

static void check_kv_heads(const Config *c) {
    long long heads = c->model_num_heads, kv = c->model_n_kv_heads;
    if (!config_has_source(c) && heads % kv)
        config_refuse(c, MODEL "n_kv_heads", MODEL "num_heads",
                      "num_heads must be a multiple of n_kv_heads",
                      "%lld heads of keys and values do not divide %lld heads", kv,
                      heads);
}

static void check_behind_norms(const Config *c) {
    if (c->model_post_layernorm_residual && c->model_use_parallel_residual)
        config_refuse(
            c, MODEL "post_layernorm_residual", MODEL "use_parallel_residual",
            "write False for one of the two",
            "parallel residuals add attention and MLP to one value, but behind norms "
            "each has its own");
}

static void check_window(const Config *c) {
    if (config_given(c, MODEL "sliding_window") &&
        config_given(c, MODEL "fa_config.pre_tokens") &&
        c->model_sliding_window - 1 != c->model_fa_pre_tokens)
        config_refuse(c, MODEL "fa_config.pre_tokens", MODEL "sliding_window",
                      "keep one of the two; sliding_window counts the query's own key",
                      "pre_tokens %lld is a window of %lld, but sliding_window is %lld",
                      (long long)c->model_fa_pre_tokens,
                      (long long)c->model_fa_pre_tokens + 1,
                      (long long)c->model_sliding_window);
}

/* A folder says how its positions are stretched; of NTK it has the base alone. */
static void check_stretch(const Config *c) {
    const char *factor = MODEL "scaling_factor.factor";
    bool brings = config_has_source(c) && c->model_extend_method != EXTEND_NTK;
    if (c->model_extend_method != EXTEND_NONE && !config_given(c, factor) && !brings)
        config_refuse(c, MODEL "extend_method", NULL,
                      "write model.model_config.scaling_factor too, such as 2",
                      "extend_method %s stretches by scaling_factor, which is not given",
                      config_value(c, c->state->mem, MODEL "extend_method"));
}

static void check_tied(const Config *c) {
    const char *untie = MODEL "untie_embeddings_and_output_weights";
    if (config_given(c, untie) && config_given(c, MODEL "tie_word_embeddings") &&
        c->model_tie_word_embeddings == c->model_untie_embeddings_and_output_weights)
        config_refuse(
            c, untie, MODEL "tie_word_embeddings", "keep one of the two",
            "the head has weights of its own, and shares those of the embedding");
}

static void check_residual(const Config *c) {
    const char *type = MODEL "residual_dtype", *wide = MODEL "fp32_residual_connection";
    bool both = config_given(c, type) && config_given(c, wide);
    if (both &&
        c->model_fp32_residual_connection != (c->model_residual_dtype == FLOAT_32))
        config_refuse(
            c, type, wide, "keep one of the two",
            "residual_dtype and fp32_residual_connection contradict each other");
}

static void check_width(const Config *c) {
    if (c->model_ffn_hidden_size < 1)
        config_refuse(c, MODEL "expand_ratio", MODEL "hidden_size", NULL,
                      "expand_ratio %g leaves no MLP for hidden_size %lld",
                      c->model_expand_ratio, (long long)c->model_hidden_size);
}

/* With weights from elsewhere the sequences are theirs where nothing else is said. */
static void check_positions(const Config *c) {
    if (config_has_source(c) && !config_given(c, MODEL "seq_length")) return;
    if (c->model_max_position_embeddings < c->model_seq_length)
        config_refuse(c, MODEL "max_position_embeddings", MODEL "seq_length", NULL,
                      "max_position_embeddings %lld is below seq_length %lld",
                      (long long)c->model_max_position_embeddings,
                      (long long)c->model_seq_length);
}

static void check_token(const Config *c, const char *path, int64_t value) {
    if (!config_has_source(c) && value >= c->model_vocab_size)
        config_refuse(c, path, MODEL "vocab_size", NULL,
                      "%s %lld is not below vocab_size %lld", path, (long long)value,
                      (long long)c->model_vocab_size);
}

static void check_eos(const Config *c) {
    check_token(c, MODEL "eos_token", c->model_eos_token);
}

static void check_bos(const Config *c) {
    check_token(c, MODEL "bos_token", c->model_bos_token);
}

static void check_pad(const Config *c) {
    check_token(c, MODEL "pad_token", c->model_pad_token);
}

static void check_eod(const Config *c) {
    check_token(c, LOADER "eod", c->train_dataset_data_loader_eod);
}

/* Weights from elsewhere may have no biases, though nothing was said. */
static void check_one_bias(const Config *c, bool on, const char *path) {
    bool said = config_given(c, MODEL "add_bias_linear") || !config_has_source(c);
    if (c->model_add_bias_linear && said && !on)
        config_refuse(
            c, path, MODEL "add_bias_linear",
            "leave it out, or set add_bias_linear False for a model without biases",
            "%s False is given together with add_bias_linear True", path + strlen(MODEL));
}

static void check_qkv_bias(const Config *c) {
    check_one_bias(c, c->model_add_qkv_bias, MODEL "add_qkv_bias");
}

static void check_out_bias(const Config *c) {
    check_one_bias(c, c->model_out_proj_has_bias, MODEL "out_proj_has_bias");
}

static void check_length(const Config *c) {
    if (config_given(c, "train_dataset.seq_length") &&
        c->train_dataset_seq_length != c->model_seq_length)
        config_refuse(c, "train_dataset.seq_length", MODEL "seq_length", "leave it out",
                      "train_dataset.seq_length %lld is not the model's seq_length %lld",
                      (long long)c->train_dataset_seq_length,
                      (long long)c->model_seq_length);
}

static void check_loader_length(const Config *c) {
    if (c->train_dataset_data_loader_seq_length &&
        c->train_dataset_data_loader_seq_length != c->model_seq_length)
        config_refuse(c, LOADER "seq_length", MODEL "seq_length", "leave it out",
                      LOADER "seq_length %lld is not the model's seq_length %lld",
                      (long long)c->train_dataset_data_loader_seq_length,
                      (long long)c->model_seq_length);
}

static void check_batch(const Config *c) {
    if (c->runner_config_batch_size > INT32_MAX / c->model_seq_length)
        config_refuse(c, "runner_config.batch_size", "train_dataset.batch_size",
                      "make it smaller and parallel_config.micro_batch_num larger",
                      "%lld sequences of %lld tokens in one micro-batch",
                      (long long)c->runner_config_batch_size,
                      (long long)c->model_seq_length);
}

static void check_rates(const Config *c) {
    double lr = c->lr_schedule_learning_rate, end = c->lr_schedule_lr_end;
    if (config_decays(c) && lr < end)
        config_refuse(c, "lr_schedule.lr_end", "lr_schedule.learning_rate",
                      "the learning rate goes down from learning_rate to lr_end",
                      "learning_rate %g is below lr_end %g", lr, end);
}

static void check_first_rate(const Config *c) {
    if (c->lr_schedule_warmup_lr_init > c->lr_schedule_learning_rate)
        config_refuse(c, "lr_schedule.warmup_lr_init", "lr_schedule.learning_rate", NULL,
                      "warmup_lr_init %g is above learning_rate %g",
                      c->lr_schedule_warmup_lr_init, c->lr_schedule_learning_rate);
}

static void check_ratio(const Config *c) {
    if (config_given(c, "lr_schedule.warmup_steps") && c->lr_schedule_warmup_ratio > 0)
        config_refuse(c, "lr_schedule.warmup_ratio", "lr_schedule.warmup_steps",
                      "keep one of the two",
                      "warmup_ratio is given together with warmup_steps");
}

/* A run of no steps is refused as such, by train. */
static void check_warmup(const Config *c) {
    long long warmup = c->lr_schedule_warmup_steps, total = c->lr_schedule_total_steps;
    LrType type = c->lr_schedule_type;
    bool constant = type == LR_CONSTANT || type == LR_CONSTANT_WITH_WARMUP;
    if (c->runner_config_max_steps == 0) return;
    if (total >= 0 && warmup > total)
        config_refuse(
            c, "lr_schedule.warmup_steps", "lr_schedule.total_steps",
            config_given(c, "lr_schedule.total_steps")
                ? NULL
                : "fewer warmup_steps, or warmup_ratio; total_steps is max_steps "
                  "where it is not given",
            "warmup_steps %lld is above total_steps %lld", warmup, total);
    if (total == 0 && !constant)
        config_refuse(c, "lr_schedule.total_steps", NULL, "1 or more, or leave it out",
                      "a learning rate that changes needs steps to do it in");
}

static void check_loss_scale(const Config *c) {
    double first = c->runner_wrapper_scale_sense_loss_scale_value;
    if (config_idle(c, "runner_wrapper.min_loss_scale") ||
        first >= c->runner_wrapper_min_loss_scale)
        return;
    config_refuse(c, "runner_wrapper.scale_sense.loss_scale_value",
                  "runner_wrapper.min_loss_scale", NULL,
                  "loss_scale_value %g is below min_loss_scale %g", first,
                  c->runner_wrapper_min_loss_scale);
}

static void check_profile(const Config *c) {
    long long start = c->profile_start_step, stop = c->profile_stop_step;
    if (c->profile && stop < start)
        config_refuse(c, "profile_stop_step", "profile_start_step",
                      "profile_stop_step is the last step that is recorded",
                      "profile_stop_step %lld%s is before profile_start_step %lld", stop,
                      config_given(c, "profile_stop_step") ? "" : ", its default,",
                      start);
}

static void check_wsd(const Config *c) {
    long long warmup = c->lr_schedule_warmup_steps, total = c->lr_schedule_total_steps;
    long long decay = c->lr_schedule_wsd_decay_steps;
    if (c->lr_schedule_type != LR_WSD) return;
    if (decay < 1)
        config_refuse(c, "lr_schedule.wsd_decay_steps", "lr_schedule.type", NULL,
                      "lr_schedule WSD needs wsd_decay_steps");
    if (total >= 0 && warmup <= total && decay > total - warmup)
        config_refuse(c, "lr_schedule.wsd_decay_steps", "lr_schedule.total_steps", NULL,
                      "warmup_steps %lld and wsd_decay_steps %lld are above total_steps "
                      "%lld",
                      warmup, decay, total);
}

static void check_decay(const Config *c) {
    bool start = c->optimizer_start_weight_decay >= 0;
    bool end = c->optimizer_end_weight_decay >= 0;
    if (c->optimizer_weight_decay_incr_style == WD_CONSTANT && (start || end))
        config_refuse(
            c, start ? "optimizer.start_weight_decay" : "optimizer.end_weight_decay",
            "optimizer.weight_decay_incr_style",
            "weight_decay_incr_style linear or cosine, or weight_decay alone",
            "the weight decay has %s of its own, but is constant",
            start ? "a start" : "an end");
    if (c->optimizer_weight_decay_incr_style != WD_CONSTANT && !(start && end))
        config_refuse(c, "optimizer.weight_decay_incr_style", NULL,
                      "give start_weight_decay and end_weight_decay, or constant",
                      "a weight decay that changes needs a start and an end");
}

/* What only GPTDataset makes of the ends of documents changes the numbers: never left out
 * in silence. */
static void check_document(const Config *c, int nth) {
    const char *mask = c->train_dataset_data_loader_create_compressed_eod_mask
                           ? LOADER "config.create_compressed_eod_mask"
                           : LOADER "reset_attention_mask";
    const char *key[] = {LOADER "reset_position_ids", mask, LOADER "eod_mask_loss"};
    const bool asked[] = {c->train_dataset_data_loader_reset_position_ids,
                          c->train_dataset_data_loader_reset_attention_mask,
                          c->train_dataset_data_loader_eod_mask_loss};
    if (!asked[nth]) return;
    if (c->train_dataset_data_loader_type != LOADER_GPT_DATASET)
        config_refuse(c, key[nth], LOADER "type",
                      "type GPTDataset, which takes a "
                      ".bin/.idx pair",
                      "%s is for data of type GPTDataset, not of type %s", key[nth],
                      config_value(c, c->state->mem, LOADER "type"));
    if (c->model_file[0] && nth < 2)
        config_refuse(c, key[nth], "model.file", "leave it out",
                      "%s is for a model.model_config: a model.file has no argument "
                      "for it",
                      key[nth]);
}

static void check_documents(const Config *c) {
    check_each(c, 3, check_document);
}

static void check_mindrecord(const Config *cfg) {
    const char *data = cfg->train_dataset_data_loader_dataset_dir;
    if (strstr(data, ".mindrecord"))
        config_refuse(cfg, LOADER "dataset_dir", NULL,
                      "make a .bin/.idx pair from the text: stator preprocess",
                      "MindRecord files cannot be read");
}

static void check_parallel_mode(const Config *cfg) {
    if (cfg->parallel_parallel_mode == 3)
        config_refuse(
            cfg, "parallel.parallel_mode", NULL, "0, 1 or 2",
            "parallel_mode 3: nobody writes messages by hand, a strategy places "
            "them");
}

static void check_resume(const Config *cfg) {
    if (!cfg->resume[0])
        config_refuse(cfg, "resume", NULL, "auto, never or a folder", "resume is empty");
}

static void check_split(const Config *cfg) {
    data_split_text(cfg->state->mem, cfg);
}

static void check_tokenizer(const Config *cfg) {
    const char *type = cfg->train_dataset_data_loader_tokenizer_type;
    Catch c;
    if (!type[0]) return;
    if (!CATCH(c)) catch_fail_at(&c, config_where(cfg, LOADER "tokenizer_type"));
    tokenizer_check_type(type);
    catch_end(&c);
}

static void check_shards(const Config *cfg) {
    config_check_agree(cfg, "parallel.enable_parallel_optimizer",
                       "parallel_config.optimizer_shard");
}

static void check_micro(const Config *cfg) {
    config_check_agree(cfg, "parallel.grad_accumulation_step",
                       "parallel_config.micro_batch_num");
}

static void check_stages(const Config *cfg) {
    config_check_agree(cfg, "parallel.pipeline_stages", "parallel_config.pipeline_stage");
}

/* Each says one thing, so that one mistake hides no other. */
static void (*const checks[])(const Config *) = {
    check_model_source,  check_heads,    check_kv_heads,  check_window,
    check_width,         check_tied,     check_residual,  check_positions,
    check_eos,           check_bos,      check_pad,       check_eod,
    check_qkv_bias,      check_out_bias, check_stages,    check_length,
    check_loader_length, check_batch,    check_rates,     check_first_rate,
    check_ratio,         check_warmup,   check_wsd,       check_profile,
    check_loss_scale,    check_decay,    check_documents, check_mindrecord,
    check_parallel_mode, check_resume,   check_shards,    check_micro,
    check_behind_norms,  check_split,    check_tokenizer, check_stretch};

typedef struct Check {
    const Config *cfg;
    int i;
} Check;

static void run_check(void *context) {
    const Check *c = context;
    checks[c->i](c->cfg);
}

void config_check(Config *cfg) {
    for (int i = 0; i < ARRAY_LEN(checks); i++) {
        Check c = {cfg, i};
        config_try(cfg->state, run_check, &c);
    }
}
