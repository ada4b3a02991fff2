/* config_names.c - keys that say one thing under several names, in files and as flags. */
#include "configs.h"
#include "frontend/config/config_state.h"
#include "frontend/model/strategy.h"

TEST_LABEL(QUICK);

#define MICRO "parallel_config.micro_batch_num"
#define STEPS "runner_config.gradient_accumulation_steps"

/* The key has the value with that flag over that file. */
static void expect_with(const char *yaml, const char *flag, const char *key,
                        const char *value) {
    Arena *a = arena_new();
    char *word = arena_strdup(a, flag);
    Config *cfg = config_load(a, write_file("n.yaml", yaml), 1, &word);
    test_at("%s over %s", flag, yaml);
    EXPECT_STR(config_value(cfg, a, key), value);
    expect_round_trip(cfg);
    arena_free(a);
}

TEST(flags_go_over_what_a_file_says_under_another_name) {
    static const char *const of[][4] = {
        {"parallel: {grad_accumulation_step: 2}", "--" MICRO "=4", MICRO, "4"},
        {"parallel: {grad_accumulation_step: 2}", "--" STEPS "=4", MICRO, "4"},
        {"parallel_config: {micro_batch_num: 2}", "--" STEPS "=4", MICRO, "4"},
        {"parallel_config: {micro_batch_num: 2}", "--parallel.grad_accumulation_step=4",
         MICRO, "4"},
        {"runner_config: {gradient_accumulation_steps: 2}",
         "--parallel.grad_accumulation_step=8", MICRO, "8"},
        {"parallel_config: {pipeline_stage: 2}", "--parallel.pipeline_stages=1",
         "parallel_config.pipeline_stage", "1"},
        {"parallel: {pipeline_stages: 2}", "--parallel_config.pipeline_stage=1",
         "parallel_config.pipeline_stage", "1"},
        {"runner_config: {batch_size: 2}", "--train_dataset.batch_size=3",
         "runner_config.batch_size", "3"},
        {"train_dataset: {batch_size: 2}", "--runner_config.batch_size=3",
         "runner_config.batch_size", "3"},
        {"lr_schedule: {learning_rate: 0.002}", "--optimizer.learning_rate=0.5",
         "lr_schedule.learning_rate", "0.5"},
        {"runner_config: {log_interval: 5}",
         "--callbacks.MFLossMonitor.per_print_times=3", "runner_config.log_interval",
         "3"}};
    for (int i = 0; i < ARRAY_LEN(of); i++)
        expect_with(of[i][0], of[i][1], of[i][2], of[i][3]);
    const char *shard = write_file("z.yaml", "parallel_config: {optimizer_shard: True}");
    char *off = "--parallel.enable_parallel_optimizer=False";
    Config *cfg = config_load(arena_new(), shard, 1, &off);
    EXPECT(!config_given(cfg, "parallel_config.optimizer_shard"));
}

TEST(flags_and_files_go_over_what_is_said_in_other_words) {
    static const char *const of[][4] = {
        {"optimizer: {beta1: 0.5, beta2: 0.5}", "--optimizer.betas=[0.9,0.98]",
         "optimizer.beta2", "0.98"},
        {"optimizer: {betas: [0.5, 0.6]}", "--optimizer.beta1=0.9", "optimizer.beta1",
         "0.9"},
        {"optimizer: {betas: [0.5, 0.6]}", "--optimizer.beta1=0.9", "optimizer.beta2",
         "0.6"},
        {"model: {model_config: {tie_word_embeddings: True}}",
         "--model.model_config.untie_embeddings_and_output_weights=True",
         "model.model_config.tie_word_embeddings", "False"},
        {"model: {model_config: {type: GPT2Config}}",
         "--model.arch.type=LlamaForCausalLM", "model.model_config.type", "LlamaConfig"},
        {"model: {model_config: {fp32_residual_connection: True}}",
         "--model.model_config.residual_dtype=bfloat16",
         "model.model_config.fp32_residual_connection", "False"},
        {"model: {model_config: {sliding_window: 4}}",
         "--model.model_config.fa_config.pre_tokens=6",
         "model.model_config.sliding_window", "7"},
        {"parallel_config: {pipeline_stage: 2, num_layer_list: [3, 1]}",
         "--parallel_config.offset=[1,-1]", "parallel_config.num_layer_list", "[]"},
        {"model: {model_config: {hidden_size: 96, ffn_hidden_size: 300}}",
         "--model.model_config.expand_ratio=2", "model.model_config.ffn_hidden_size",
         "192"},
        {"model: {model_config: {type: LlamaConfig, hidden_size: 96, multiple_of: 32}}",
         "--model.model_config.expand_ratio=2", "model.model_config.ffn_hidden_size",
         "192"},
        {"model: {model_config: {hidden_size: 96, ffn_hidden_size: 300}}",
         "--model.model_config.multiple_of=32", "model.model_config.ffn_hidden_size",
         "300"},
        {"model: {model_config: {type: LlamaConfig, hidden_size: 96, ffn_hidden_size: "
         "300}}",
         "--model.model_config.multiple_of=0", "model.model_config.ffn_hidden_size",
         "300"},
        {"runner_config: {max_steps: 7}", "--epochs=2", "runner_config.max_steps", "-1"},
        {"runner_config: {max_steps: 7}\n"
         "train_dataset: {data_loader: {num_samples: [9]}}",
         "--epochs=2", "runner_config.max_steps", "-1"},
        {"runner_config: {max_steps: 7}\n"
         "train_dataset: {data_loader: {type: GPTDataset, num_samples: [9]}}",
         "--epochs=2", "runner_config.max_steps", "7"},
        {"train_dataset: {data_loader: {seed: 3}}", "--train_dataset.seed=5",
         "train_dataset.data_loader.seed", "5"},
        {"train_dataset: {data_loader: {type: BlendedMegatronDatasetDataLoader}}",
         "--train_dataset.seed=5", "train_dataset.data_loader.seed", "5"},
        {"train_dataset: {seed: 3}", "--train_dataset.data_loader.seed=5",
         "train_dataset.data_loader.seed", "5"},
        {"model: {model_config: {type: GPT2Config}}",
         "--model.model_config.model_type=llama", "model.model_config.type",
         "LlamaConfig"},
        {"model: {arch: {type: GPT2LMHeadModel}}",
         "--model.model_config.architectures=[Qwen2ForCausalLM]",
         "model.model_config.add_qkv_bias", "True"},
        {"model: {model_config: {model_type: gpt2}}",
         "--model.model_config.architectures=[LlamaForCausalLM]",
         "model.model_config.type", "LlamaConfig"},
        {"model: {model_config: {max_new_tokens: 3}}",
         "--model.model_config.max_decode_length=9", "model.model_config.max_new_tokens",
         "0"},
        {"model: {model_config: {min_new_tokens: 3}}",
         "--model.model_config.min_length=9", "model.model_config.min_new_tokens", "0"},
        {"loss_scale: 8", "--runner_wrapper.scale_sense.loss_scale_value=4",
         "runner_wrapper.loss_scale", "0"},
        {"loss_scale: 8", "--runner_wrapper.scale_sense.type=FixedLossScaleUpdateCell",
         "runner_wrapper.loss_scale", "0"},
        {"model: {model_config: {type: LlamaConfig}}",
         "--model.model_config.architectures=[]", "model.model_config.type",
         "LlamaConfig"},
        {"train_dataset: {seed: 5, data_loader: {type: "
         "BlendedMegatronDatasetDataLoader}}",
         "--epochs=1", "train_dataset.data_loader.seed", "1234"},
        {"parallel: {bucket_size: 2MB}", "--parallel.comm_fusion.allgather.config=16",
         "parallel.bucket_size", "2MB"},
        {"parallel: {parallel_optimizer_config: {optimizer_level: level3}}",
         "--parallel.parallel_optimizer_config.gradient_accumulation_shard=True",
         "parallel.parallel_optimizer_config.optimizer_level", "level3"},
        {"lr_schedule: {warmup_ratio: 0.5}", "--lr_schedule.warmup_steps=3",
         "lr_schedule.warmup_steps", "3"}};
    for (int i = 0; i < ARRAY_LEN(of); i++)
        expect_with(of[i][0], of[i][1], of[i][2], of[i][3]);
    write_file("base.yaml", "lr_schedule: {warmup_ratio: 0.5}");
    const char *over = write_file("over.yaml", "base_config: [base.yaml]\n"
                                               "lr_schedule: {warmup_steps: 3}");
    Config *cfg = config_load(arena_new(), over, 0, NULL);
    EXPECT_INT(cfg->lr_schedule_warmup_steps, 3);
    EXPECT(cfg->lr_schedule_warmup_ratio == 0);
    write_file("base.yaml", "runner_config: {batch_size: 2, log_interval: 5}");
    over = write_file("over.yaml", "base_config: [base.yaml]\n"
                                   "train_dataset: {batch_size: 3}");
    cfg = config_load(arena_new(), over, 0, NULL);
    EXPECT_INT(cfg->runner_config_batch_size, 3);
    EXPECT(!has_note(cfg, "is not used"));
    EXPECT(has_note(cfg, "train_dataset.batch_size: acts as runner_config.batch_size"));
    cfg = parse("runner_config: {batch_size: 2}\ntrain_dataset: {batch_size: 3}");
    EXPECT_INT(cfg->runner_config_batch_size, 2);
    EXPECT(has_note(cfg, "train_dataset.batch_size is not used"));
    EXPECT(!has_note(cfg, "acts as"));
    EXPECT_FAIL(parse("lr_schedule: {warmup_steps: 3, warmup_ratio: 0.5}"), EXIT_CONFIG,
                "warmup_ratio is given together with warmup_steps");
}

/* What a file says goes over its bases in other words too, in whatever is built on it, and a later
 * base over an earlier one. */
TEST(files_on_files_keep_their_order) {
    static const char *const of[][4] = {
        {"lr_schedule: {learning_rate: 2e-3}", "optimizer: {learning_rate: 1e-4}",
         "lr_schedule.learning_rate", "0.0001"},
        {"runner_config: {batch_size: 16}", "train_dataset: {batch_size: 4}",
         "runner_config.batch_size", "4"},
        {"runner_config: {gradient_accumulation_steps: 4}",
         "parallel_config: {micro_batch_num: 2}", MICRO, "2"},
        {"lr_schedule: {warmup_ratio: 0.5}", "lr_schedule: {warmup_steps: 10}",
         "lr_schedule.warmup_steps", "10"},
        {"optimizer: {beta1: 0.8}", "optimizer: {betas: [0.7, 0.9]}", "optimizer.beta1",
         "0.7"},
        {"model: {model_config: {type: GPT2Config}}",
         "model: {arch: {type: LlamaForCausalLM}}", "model.model_config.type",
         "LlamaConfig"},
        {"model: {model_config: {tie_word_embeddings: True}}",
         "model: {model_config: {untie_embeddings_and_output_weights: True}}",
         "model.model_config.tie_word_embeddings", "False"},
        {"parallel_config: {data_parallel: 2, optimizer_shard: True}",
         "parallel: {enable_parallel_optimizer: False}",
         "parallel_config.optimizer_shard", "False"}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        Arena *a = arena_new();
        write_file("base.yaml", of[i][0]);
        write_file("own.yaml", of[i][1]);
        write_file("over.yaml", arena_printf(a, "base_config: base.yaml\n%s", of[i][1]));
        const char *all[] = {
            write_file("two.yaml", "base_config: over.yaml\n"),
            write_file("three.yaml", "base_config: [two.yaml]\nseed: 3\n"),
            write_file("both.yaml", "base_config: [base.yaml, own.yaml]\n")};
        for (int k = 0; k < ARRAY_LEN(all); k++) {
            Config *cfg = config_load(a, all[k], 0, NULL);
            test_at("%s, %d", of[i][1], k);
            EXPECT_STR(config_value(cfg, a, of[i][2]), of[i][3]);
        }
        arena_free(a);
    }
    write_file("base.yaml",
               "parallel_config: {data_parallel: 2, optimizer_shard: False}");
    write_file("over.yaml",
               "base_config: base.yaml\nparallel: {parallel_optimizer_config: "
               "{optimizer_level: level3}}\n");
    const char *top = write_file("two.yaml", "base_config: over.yaml\n");
    EXPECT(config_wants_shards(config_load(arena_new(), top, 0, NULL)));
}

/* What has no effect takes nobody's place. */
TEST(with_stages_micro_batches_are_those_of_the_file) {
    static const char staged[] =
        "parallel_config: {pipeline_stage: 2, micro_batch_num: 8}";
    expect_with(staged, "--" STEPS "=4", MICRO, "8");
    expect_with("parallel: {pipeline_stages: 2, grad_accumulation_step: 8}",
                "--" STEPS "=4", MICRO, "8");
    char *one[] = {"--" STEPS "=4", "--parallel_config.pipeline_stage=1"};
    Config *cfg = config_load(arena_new(), write_file("s.yaml", staged), 2, one);
    EXPECT_INT(cfg->parallel_config_micro_batch_num, 4);
}

TEST(names_that_disagree_in_one_place_are_told) {
    Config *cfg = parse("runner_config: {gradient_accumulation_steps: 2}\n"
                        "parallel: {grad_accumulation_step: 8}");
    EXPECT_INT(cfg->parallel_config_micro_batch_num, 2);
    EXPECT(has_note(cfg, "parallel.grad_accumulation_step is not used: " STEPS " 2"));
    cfg = FLAGS("--" STEPS, "2", "--" MICRO, "8");
    EXPECT_INT(cfg->parallel_config_micro_batch_num, 2);
    EXPECT(has_note(cfg, MICRO " is not used: " STEPS " 2 takes precedence"));
    EXPECT_FAIL(
        FLAGS("--parallel.pipeline_stages", "2", "--parallel_config.pipeline_stage", "4"),
        EXIT_CONFIG, "parallel.pipeline_stages is 2, but");
}

#define SHARD  "parallel_config.optimizer_shard"
#define ENABLE "parallel.enable_parallel_optimizer"
#define LEVEL  "parallel.parallel_optimizer_config.optimizer_level"

static void expect_zero(const char *yaml, int nflags, char **flag, int level, bool said) {
    Config *cfg = config_load(arena_new(), write_file("z.yaml", yaml), nflags, flag);
    test_at("%s, %d flags", yaml, nflags);
    EXPECT_INT(strategy_zero_level(cfg), level);
    config_note_idle(cfg);
    EXPECT_INT(has_note(cfg, "optimizer_level has no effect: optimizer_shard is False"),
               said);
    expect_round_trip(cfg);
}

#define REPLICAS "parallel_config: {data_parallel: 2"
#define LEVEL_1  "parallel: {parallel_optimizer_config: {optimizer_level: level1}"

TEST(a_level_of_zero_asks_for_shards_unless_these_are_refused) {
    char *off[] = {"--" SHARD "=False"}, *off_too[] = {"--" ENABLE "=False"};
    char *level[] = {"--" LEVEL "=level2"}, *any[] = {"--" LEVEL "=auto"};
    char *both[] = {level[0], off[0]};
    expect_zero(REPLICAS "}\n" LEVEL_1 "}", 0, NULL, 1, false);
    expect_zero(REPLICAS ", optimizer_shard: True}\n" LEVEL_1 "}", 0, NULL, 1, false);
    expect_zero(REPLICAS ", optimizer_shard: False}\n" LEVEL_1 "}", 0, NULL, 0, true);
    expect_zero(REPLICAS "}\n" LEVEL_1 ", enable_parallel_optimizer: False}", 0, NULL, 0,
                true);
    expect_zero(REPLICAS ", optimizer_shard: True}\n" LEVEL_1 "}", 1, off, 0, true);
    expect_zero(REPLICAS ", optimizer_shard: True}\n" LEVEL_1 "}", 1, off_too, 0, true);
    expect_zero(REPLICAS ", optimizer_shard: False}", 1, level, 2, false);
    expect_zero(REPLICAS "}\nparallel: {enable_parallel_optimizer: False}", 1, level, 2,
                false);
    expect_zero(REPLICAS ", optimizer_shard: False}", 1, any, 0, false);
    expect_zero(REPLICAS "}", 2, both, 0, true);
}
