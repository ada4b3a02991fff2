/* import_mindspeed.c - stator import of a YAML file of MindSpeed-Core-MS. */
#include "../mem.h"
#include "command.h"
#include "frontend/config/config.h"
#include "frontend/config/key.h"
#include "frontend/tools/megatron.h"

static Megatron *read_yaml(const char *text, const char *flags) {
    char *path = temp("pretrain_gpt.yaml"), *word[64] = {path};
    int n = 1;
    file_write(path, text, strlen(text), EXIT_DATA);
    for (char *p = arena_strdup(mem(), flags); (p = strtok(p, " ")); p = NULL)
        word[n++] = p;
    char **kept = NEW_ARRAY(mem(), char *, ARRAY_LEN(word));
    memcpy(kept, word, sizeof word);
    Megatron *m = megatron_read(mem(), n, kept);
    megatron_keys(m, 16);
    return m;
}

static const Config *config_of(const char *text, const char *flags) {
    Megatron *m = read_yaml(text, flags);
    return config_load(mem(), NULL, m->nkeys, m->key);
}

/* Both forms, of what the other one leaves out, on 16 ranks. */
static const char blocks[] =
    "accelerate_config:\n"
    "  parallelization:\n"
    "    tensor_parallel: 2\n"
    "    pipeline:\n"
    "      num_stages: 2\n"
    "      layer_list: \"[[2,2],[2,1]]\"\n"
    "      micro_batch_size: 3\n"
    "      noop_layers:\n"
    "      num_layers_per_vpp: 2\n"
    "      virtual_pipeline_model_parallel_size: 2\n"
    "    use_sequence_parallel: True\n"
    "    use_distributed_optimizer: True\n"
    "  precision:\n"
    "    param_init_dtype: float32\n"
    "    compute_dtype: bfloat16\n"
    "    residual-connection: float32\n"
    "train_config:\n"
    "  ms_training_config: {bucket_size: 1000000}\n"
    "  recompute_config: {recompute: [[1, 0], [1, 0]]}\n"
    "model_config:\n"
    "  llm:\n"
    "    tokenizer: {padded_size: 1000, use_fast: True}\n"
    "    embedding: {hidden_size: 64, init_std: 0.5}\n"
    "    position: {type: 'rope', max_size: 32, rope_base: 500.0}\n"
    "    blocks:\n"
    "      num_layers: 7\n"
    "      init_std: 0.00884\n"
    "      sandwich_norm: True\n"
    "      layernorm: {norm_type: 'FusedRMSNorm', epsilon: 1e-6}\n"
    "      attention:\n"
    "        attention_type: 'GQA'\n"
    "        head_num: 4\n"
    "        kv_group_size: 2\n"
    "        qkv_bias: False\n"
    "        projection_bias: True\n"
    "        dropout_rate: 0.25\n"
    "        post_norm_scale: 0.0447\n"
    "      ffn:\n"
    "        hidden_size: 160\n"
    "        activation: 'swiglu'\n"
    "        mlp_bias: False\n"
    "        post_norm_scale: 0.0825\n"
    "    head: {shared_embedding: False}\n";

static const char groups[] = "model_config:\n"
                             "  vocab_size: 1000\n"
                             "  hidden_size: 64\n"
                             "  num_layers: 4\n"
                             "  num_attention_heads: 4\n"
                             "  seq_length: 32\n"
                             "  hidden_act: gelu\n"
                             "  normalization: LayerNorm\n"
                             "  position_embedding_type: absolute\n"
                             "  attention_dropout_rate: 0.1\n"
                             "  use_flash_attention: True\n"
                             "  untie_embeddings_and_output_weights: False\n"
                             "  fa_config: {pre_tokens: 8, next_tokens: 0}\n"
                             "training_config:\n"
                             "  seed: 7\n"
                             "  training_iters: 10\n"
                             "  bf16: True\n"
                             "  load_checkpoint: there\n"
                             "  save_interval: 5\n"
                             "  keep_checkpoint_max: 3\n"
                             "dataset_config:\n"
                             "  batch_size: 2\n"
                             "  micro_batch_num: 3\n"
                             "  eos_token_id: 6\n"
                             "optimizer_config:\n"
                             "  optimizer_type: mint.AdamW\n"
                             "  betas: [0.8, 0.95]\n"
                             "  eps: 1.e-7\n"
                             "  learning_rate: 2e-4\n"
                             "parallel_config:\n"
                             "  tensor_model_parallel_size: 2\n"
                             "  pipeline_model_parallel_size: 2\n"
                             "  zero_level: z2\n"
                             "  recompute: [1, 2]\n";

TEST(blocks_of_a_model) {
    const Config *c = config_of(blocks, "--train-iters 10 --lr-decay-style cosine");
    EXPECT(c->model_type == MODEL_LLAMA && c->model_hidden_act == ACT_SWIGLU);
    EXPECT(c->model_num_layers == 7 && c->model_hidden_size == 64);
    EXPECT(c->model_num_heads == 4 && c->model_n_kv_heads == 2);
    EXPECT(c->model_ffn_hidden_size == 160 && c->model_vocab_size == 1000);
    EXPECT(c->model_seq_length == 32 && c->model_max_position_embeddings == 32);
    EXPECT(c->model_rotary_base == 500 && c->model_norm_epsilon == 1e-6);
    EXPECT(c->model_normalization == NORM_RMS && c->model_use_sandwich_norm);
    EXPECT(c->model_attn_post_norm_scale == 0.0447);
    EXPECT(c->model_ffn_post_norm_scale == 0.0825);
    EXPECT(c->model_embedding_init_std == 0.5 && c->model_initializer_range == 0.00884);
    EXPECT(!c->model_add_bias_linear && !c->model_add_qkv_bias);
    EXPECT(c->model_out_proj_has_bias && !c->model_tie_word_embeddings);
    EXPECT(c->model_attention_probs_dropout_prob == 0.25 && c->model_dropout_prob == 0);
    EXPECT(c->model_compute_dtype == FLOAT_BF16 && c->model_fp32_residual_connection);
}

/* The groups with these types in place of bf16. */
static const Config *config_in(const char *types) {
    const char *bf16 = strstr(groups, "  bf16: True\n");
    return config_of(arena_printf(mem(), "%.*s%saccelerate_config: {precision: {%s}}\n",
                                  (int)(bf16 - groups), groups, strchr(bf16, '\n') + 1,
                                  types),
                     "");
}

/* Those of float16 have 16 bits unless it says otherwise, as in Megatron-LM. */
TEST(types_of_gradients) {
    static const struct {
        const char *types;
        bool wide;
    } of[] = {{"compute_dtype: bfloat16", true},
              {"compute_dtype: bfloat16, grad_accumulation_dtype: float32", true},
              {"grad_accumulation_dtype: bfloat16, compute_dtype: bfloat16", false},
              {"compute_dtype: float16", false},
              {"compute_dtype: float16, grad_accumulation_dtype: float16", false},
              {"compute_dtype: float16, grad_accumulation_dtype: float32", true},
              {"grad_accumulation_dtype: float32", true}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        test_at("%s", of[i].types);
        EXPECT(config_in(of[i].types)->model_accumulate_allreduce_grads_in_fp32 ==
               of[i].wide);
    }
    EXPECT_FAIL(
        (void)config_in("compute_dtype: bfloat16, grad_accumulation_dtype: float16"),
        EXIT_CONFIG, "gradients are float32 or, as compute_dtype, bfloat16");
    EXPECT_FAIL((void)config_in("grad_accumulation_dtype: bfloat16"), EXIT_CONFIG,
                "bfloat16 is not there: gradients are float32");
}

TEST(strategy_of_the_blocks) {
    static const int64_t want[] = {2, 2, 2, 1};
    const Config *c = config_of(blocks, "--train-iters 10 --lr-decay-style cosine");
    EXPECT(c->parallel_config_model_parallel == 2 &&
           c->parallel_config_pipeline_stage == 2);
    EXPECT(c->parallel_config_data_parallel == 4 && c->parallel_config_sequence_parallel);
    EXPECT_INT(c->parallel_config_pp_interleave_num, 2);
    EXPECT_INT(c->parallel_config_num_layer_list.rows, 2);
    for (int i = 0; i < 4; i++)
        EXPECT_INT(c->parallel_config_num_layer_list.items[i], want[i]);
    EXPECT(c->runner_config_batch_size == 3 && c->parallel_config_micro_batch_num == 1);
    EXPECT(c->parallel_config_optimizer_shard && c->parallel_bucket_size == 4000000);
    EXPECT_INT(c->recompute_config_recompute.n, 4);
    EXPECT_STR(c->recompute_config_recompute.items[2], "1");
    EXPECT(c->lr_schedule_type == LR_COSINE && c->runner_config_max_steps == 10);
}

TEST(groups_of_names) {
    const Config *c = config_of(groups, "");
    EXPECT(c->model_type == MODEL_GPT2 && c->model_vocab_size == 1000);
    EXPECT(c->model_position_embedding_type == POSITION_LEARNED && c->seed == 7);
    EXPECT(c->model_sliding_window == 9 && c->model_tie_word_embeddings);
    EXPECT(c->model_attention_probs_dropout_prob == 0.1);
    EXPECT(c->model_compute_dtype == FLOAT_BF16 && c->model_eos_token == 6);
    EXPECT_INT(c->runner_config_max_steps, 10);
    EXPECT_INT(c->runner_config_batch_size, 2);
    EXPECT_INT(c->parallel_config_micro_batch_num, 3); /* of each of 4 replicas */
    EXPECT(c->optimizer_type == OPTIMIZER_ADAMW && c->optimizer_beta1 == 0.8);
    EXPECT(c->optimizer_beta2 == 0.95 && c->optimizer_eps == 1e-7);
    EXPECT(c->lr_schedule_learning_rate == 2e-4);
    EXPECT_INT(c->parallel_parallel_optimizer_config_optimizer_level, ZERO_2);
    EXPECT_STR(c->recompute_config_recompute.items[1], "2");
    EXPECT_INT(c->checkpoint_keep_checkpoint_max, 3);
    EXPECT_INT(c->checkpoint_save_checkpoint_steps, 5);
}

/* Where the file says nothing, what MindSpeed-Core-MS has and not what Megatron-LM has. */
TEST(defaults_are_those_of_mindspeed) {
    const Config *c = config_of(groups, "");
    EXPECT(c->lr_schedule_type == LR_CONSTANT && c->optimizer_weight_decay == 0);
    EXPECT(c->model_dropout_prob == 0 && c->model_hidden_dropout_prob == 0);
    EXPECT(!c->model_add_bias_linear && !c->model_add_qkv_bias);
    EXPECT(c->model_out_proj_has_bias);
    EXPECT_STR(c->output_dir, "./output");
    EXPECT(c->run_mode == RUN_FINETUNE); /* resume_training is False */
    c = config_of(groups, "--num-attention-heads 64 --group-query-attention");
    EXPECT_INT(c->model_n_kv_heads, 32);
    c = config_of(arena_printf(mem(), "%s%s", groups,
                               "train_config: {ms_training_config: {resume_training: "
                               "True}}\n"),
                  "--weight-decay 0.1 --save there");
    EXPECT(c->run_mode != RUN_FINETUNE && c->optimizer_weight_decay == 0.1);
    EXPECT_STR(c->output_dir, "there");
    EXPECT_STR(c->resume, "auto");
}

/* The groups without load_checkpoint and what follows it up to the next group. */
static const Config *config_unloaded(const char *more) {
    const char *cut = strstr(groups, "  load_checkpoint: there\n");
    return config_of(arena_printf(mem(), "%.*s  save_interval: 5\n%s%s",
                                  (int)(cut - groups), groups, more,
                                  strstr(groups, "dataset_config:\n")),
                     "");
}

TEST(where_a_run_begins_and_what_it_keeps) {
    const Config *c = config_unloaded("");
    EXPECT_STR(c->resume, "never");
    EXPECT_INT(c->checkpoint_keep_checkpoint_max, 5); /* as there */
    c = config_unloaded("  resume_training: True\n");
    EXPECT(!strcmp(c->resume, "auto") && c->run_mode == RUN_TRAIN);
    EXPECT_STR(config_of(groups, "")->init_from, "there");
    EXPECT_STR(config_of(groups, "")->resume, "never");
}

TEST(flags_behind_the_file_count_more) {
    const Config *c = config_of(groups, "--num-layers 8 --global-batch-size 16");
    EXPECT(c->model_num_layers == 8 && c->parallel_config_micro_batch_num == 2);
}

#define REFUSED(text, part)                                                              \
    EXPECT_FAIL((void)config_of(arena_printf(mem(), "%s%s", groups, text), ""),          \
                EXIT_CONFIG, part)

static void expect_of_megatron(const char *text) {
    REFUSED(text, "give them as flags: stator import");
}

TEST(what_is_not_known_is_told_at_its_place) {
    REFUSED("train_config: {training_itres: 3}\n",
            "train_config.training_itres is no name of MindSpeed-Core-MS");
    REFUSED("accelerate_config: {precision: {compute_dtyp: bfloat16}}\n",
            "did you mean accelerate_config.precision.compute_dtype?");
    REFUSED("accelerate_config: {precision: {compute_dtype: int8}}\n",
            "int8 is not there; bfloat16, float16, float32 are");
    REFUSED("accelerate_config: {parallelization: {use_sequence_parallel: maybe}}\n",
            "must be True or False");
    REFUSED("acelerate_config: {}\n", "did you mean accelerate_config?");
    REFUSED("runner_config: {epochs: 1}\n",
            "a configuration of MindFormers is read as it is: stator plan FILE");
    static const char *const of_megatron[] = {
        "language_model: {num_layers: 24}\n", "seed: 1\nmodel_parallel: {}\n",
        "ENV_VARS: {A: 1}\nMODEL_ARGS: {--num-layers: 12}\n", "num_layers: 24\n"};
    for (int i = 0; i < ARRAY_LEN(of_megatron); i++) expect_of_megatron(of_megatron[i]);
    REFUSED("seed: 1\n", "a configuration of MindFormers is read as it is");
    REFUSED("train_config: {num_experts: 8}\n", "mixtures of experts");
    REFUSED("train_config: {seed: [1, 2]}\n", "seed");
    EXPECT_FAIL((void)config_of("- 1\n", ""), EXIT_CONFIG, "has groups");
    char *name = arena_alloc(mem(), 121);
    memset(name, 'x', 120);
    EXPECT_FAIL(
        (void)config_of(
            arena_printf(mem(), "model_config: {%s: {%s: {a: 1}}}\n", name, name), ""),
        EXIT_CONFIG, "a name that is too long");
    EXPECT_FAIL((void)config_of("optimizer_config: {betas: 0.9}\n", ""), EXIT_CONFIG,
                "pretrain_gpt.yaml:1:27: error: optimizer_config.betas must be a list");
    EXPECT_FAIL((void)config_of("dataset_config: {micro_batch_num: 0}\n", ""),
                EXIT_CONFIG, "must be a whole number, 1 or more");
    EXPECT_FAIL((void)config_of("model_config: {num_layers: 2}\n", ""), EXIT_CONFIG,
                "--micro-batch-size is not there");
}

/* The keys and flags of the table are there. */
TEST(rows_name_what_there_is) {
    static const char *const key[] = {
#define FLAG                NULL
#define UNLESS              NULL
#define IDLE                NULL
#define KEY                 ""
#define ROW(path, kind, to) kind ? to : NULL,
#define VALUE(...)
#define OWN(...)
#include "frontend/config/mindspeed.def"
    };
    int n = 0;
    for (int i = 0; i < ARRAY_LEN(key); i++) {
        if (!key[i]) continue;
        n++;
        if (key_find(key[i]) < 0) test_fail(__FILE__, __LINE__, "no key %s", key[i]);
    }
    EXPECT(n > 5);
}

TEST(the_command) {
    char *file = temp("made.yaml"), *yaml = temp("mindspeed.yaml");
    file_write(yaml, blocks, sizeof blocks - 1, EXIT_DATA);
    run(cmd_import, "-n", "16", "-o", file, yaml, "--train-iters", "10",
        "--global-batch-size", "24", NULL);
    worked();
    char *text = file_read(mem(), file, 1 << 16, NULL, EXIT_DATA);
    EXPECT_PART(text, "mindspeed.yaml of MindSpeed-Core-MS says, as stator import");
    EXPECT_PART(text, "# model_config.llm.tokenizer.use_fast has no effect: ");
    run(cmd_plan, file, NULL);
    worked();
    EXPECT_PART(printed, "ranks     16 = pp 2 x dp 4 x tp 2");
    run(cmd_import, "-n", "16", "/nowhere/mindspeed.yaml", NULL);
    refused(EXIT_CONFIG, "cannot open /nowhere/mindspeed.yaml");
}
