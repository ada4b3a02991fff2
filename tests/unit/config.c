/* config.c - configurations from a text: defaults, values, every refusal. */
#include "../mem.h"
#include "configs.h"
#include "frontend/config/config_state.h"
#include "tests/pages.h"

TEST(defaults) {
    Config *cfg = parse("");
    EXPECT(cfg->model_num_layers == 12 && cfg->model_hidden_size == 768);
    EXPECT(cfg->model_ffn_hidden_size == 3072 && cfg->model_n_kv_heads == 12);
    EXPECT(cfg->model_hidden_act == ACT_GELU && cfg->model_tie_word_embeddings);
    EXPECT(cfg->model_eos_token == 50256 && cfg->model_max_position_embeddings == 1024);
    EXPECT(cfg->runner_config_max_steps == -1 && cfg->optimizer_beta2 == 0.95);
    EXPECT_NEAR(cfg->model_output_init_std, 0.02 / sqrt(24), 1e-15);
    EXPECT_STR(cfg->output_dir, "./output");
    EXPECT_STR(cfg->resume, "auto");
    EXPECT_INT(cfg->n_notes, 0);
    EXPECT_STR(config_where(cfg, "seed").file, "default");
    expect_round_trip(cfg);
}

TEST(llama_defaults) {
    Config *cfg = parse("model:\n  model_config:\n    type: LlamaConfig\n"
                        "    hidden_size: 512\n    num_heads: 8\n");
    EXPECT(cfg->model_normalization == NORM_RMS && !cfg->model_tie_word_embeddings);
    EXPECT(cfg->model_hidden_act == ACT_SWIGLU && !cfg->model_add_bias_linear);
    EXPECT_INT(cfg->model_position_embedding_type, POSITION_ROPE);
    EXPECT(cfg->model_ffn_hidden_size == 1344 && cfg->model_eos_token == -1);
    cfg = parse("model: {arch: {type: LlamaForCausalLM}, model_config: "
                "{tie_word_embeddings: yes, expand_ratio: 4}}");
    EXPECT(cfg->model_type == MODEL_LLAMA && cfg->model_normalization == NORM_RMS);
    EXPECT(cfg->model_tie_word_embeddings && cfg->model_ffn_hidden_size == 3072);
    expect_round_trip(cfg);
}

TEST(scalars_of_yaml_1_1) {
    Config *cfg =
        parse("seed: 0x10\noptimizer: {eps: 1e-5, beta1: .5, weight_decay: 1}\n"
              "runner_config: {max_steps: 1_000, epochs: 2e3, batch_size: '3'}\n"
              "runner_wrapper: {use_clip_grad: off}\n"
              "context: {max_device_memory: 1.5GB, save_graphs: on}\n"
              "load_checkpoint: ~\n");
    EXPECT(cfg->seed == 16 && cfg->optimizer_eps == 1e-5 && cfg->optimizer_beta1 == 0.5);
    EXPECT(cfg->runner_config_max_steps == 1000 && cfg->runner_config_epochs == 2000);
    EXPECT(cfg->runner_config_batch_size == 3 && !cfg->runner_wrapper_use_clip_grad);
    EXPECT(cfg->context_max_device_memory == 3LL << 29 && cfg->context_save_graphs);
    EXPECT(!config_given(cfg, "load_checkpoint"));
    EXPECT_STR(config_memory_limit(cfg), "1.5GB (1.61 GB in steps of 1000)");
    EXPECT_STR(cfg->dump_ir, "./graph");
    expect_round_trip(cfg);
}

TEST(sizes) {
    EXPECT_INT(FLAGS("--parallel.bucket_size", "0")->parallel_bucket_size, 0);
    EXPECT_INT(parse("context: {tile_size: 0}")->context_tile_size, 0);
    EXPECT_INT(parse("context: {tile_size: 0.0 KB}")->context_tile_size, 0);
    EXPECT_INT(parse("context: {tile_size: 3KiB}")->context_tile_size, 3072);
    EXPECT_INT(parse("context: {tile_size: 1 GiB}")->context_tile_size, 1 << 30);
    EXPECT_FAIL(parse("context: {tile_size: 1iB}"), EXIT_CONFIG, "must be a size");
    EXPECT_FAIL(parse("context: {tile_size: 1Gi}"), EXIT_CONFIG, "must be a size");
    EXPECT_FAIL(parse("context: {tile_size: 1}"), EXIT_CONFIG, "must be a size");
}

TEST(wrong_values) {
    EXPECT_FAIL(parse("runner_config:\n  batch_size: many\n"), EXIT_CONFIG,
                "t.yaml:2:15: error: runner_config.batch_size must be a whole number, "
                "not \"many\"\n      batch_size: many\n                  ^");
    EXPECT_FAIL(parse("runner_config: {batch_size: 0}"), EXIT_CONFIG,
                "runner_config.batch_size must be 1 to 1048576, not 0");
    EXPECT_FAIL(parse("runner_config: {epochs: 1.5}"), EXIT_CONFIG, "a whole number");
    EXPECT_FAIL(parse("seed: 017"), EXIT_CONFIG, "numbers do not begin with 0");
    EXPECT_FAIL(parse("seed: 99999999999999999999"), EXIT_CONFIG, "a whole number");
    EXPECT_FAIL(parse("seed: -1"), EXIT_CONFIG, "seed must be at least 0, not -1");
    EXPECT_FAIL(parse("optimizer: {eps: nan}"), EXIT_CONFIG, "must be a number");
    EXPECT_FAIL(parse("optimizer: {eps: 1e999}"), EXIT_CONFIG, "must be a number");
    EXPECT_FAIL(parse("optimizer: {eps: [1]}"), EXIT_CONFIG, "not a list");
    EXPECT_FAIL(parse("optimizer: {eps: {a: 1}}"), EXIT_CONFIG, "not a section");
    EXPECT_FAIL(parse("optimizer: 3"), EXIT_CONFIG, "optimizer is a section of keys");
    EXPECT_FAIL(parse("optimizer: {type: AdamV}"), EXIT_CONFIG, "did you mean AdamW?");
    EXPECT_FAIL(parse("parallel: {overlap: polls}"), EXIT_CONFIG,
                "parallel.overlap must be auto, off or thread, not \"polls\"\n"
                "    parallel: {overlap: polls}\n"
                "                        ^\n"
                "    hint: did you mean auto?");
    EXPECT_FAIL(parse("runner_config:\n  max_steps: &many 1.5e9\n  epochs: *many\n"
                      "  eval_iters: 2\n"),
                EXIT_CONFIG,
                "t.yaml:2:14: error: runner_config.epochs must be 1 to 1000000000, "
                "not 1.5e9\n"
                "      max_steps: &many 1.5e9\n"
                "                 ^\n"
                "    used by the alias in line 3");
    EXPECT_FAIL(parse("context: {max_device_memory: 30}"), EXIT_CONFIG, "such as 30GB");
    EXPECT_FAIL(parse("context: {max_device_memory: 9999999999TB}"), EXIT_CONFIG, "30GB");
    EXPECT_FAIL(parse("runner_wrapper: {use_clip_grad: 1}"), EXIT_CONFIG,
                "True or False");
    EXPECT_FAIL(parse("[1, 2]"), EXIT_CONFIG, "a configuration is a map");
    EXPECT_FAIL(parse("base_config: x.yaml"), EXIT_CONFIG, "base_config is not allowed");
}

TEST(unknown_keys) {
    EXPECT_FAIL(parse("seed: 1\nrunner_config:\n  epoch: 3\n"), EXIT_CONFIG,
                "t.yaml:3:3: error: unknown key runner_config.epoch\n      epoch: 3\n"
                "      ^\n    hint: did you mean runner_config.epochs?");
    EXPECT_FAIL(parse("paralel_config: {data_parallel: 2}"), EXIT_CONFIG,
                "unknown section paralel_config");
    EXPECT_FAIL(parse("micro_batch_num: 2"), EXIT_CONFIG,
                "did you mean parallel_config.micro_batch_num?");
    EXPECT_FAIL(parse("runner_config.epochs: 2"), EXIT_CONFIG, "a key with a dot");
    EXPECT_FAIL(FLAGS("--runner_config.epoch", "3"), EXIT_CONFIG,
                "command line:1:1: error: unknown key runner_config.epoch");
}

static void expect_hint(const char *flag, const char *hint) {
    EXPECT_FAIL(FLAGS((char *)(uintptr_t)flag, "1"), EXIT_CONFIG, hint);
}

TEST(unknown_sections) {
    EXPECT_FAIL(parse("runer_config: {max_steps: 3}"), EXIT_CONFIG,
                "error: unknown section runer_config");
    EXPECT_FAIL(parse("runer_config: {max_steps: 3}"), EXIT_CONFIG,
                "did you mean runner_config?");
    EXPECT_FAIL(parse("model: {modle_config: {n: 3}}"), EXIT_CONFIG,
                "did you mean model.model_config?");
    EXPECT_FAIL(parse("nothing_like_it_at_all: {n: 3}"), EXIT_CONFIG,
                "stator help lists the sections");
}

/* Words of other programs, near misses without a section, and never a key that does
 * nothing. */
TEST(hints) {
    static const char *const pairs[][2] = {
        {"--n_layer", "did you mean model.model_config.num_layers?"},
        {"--lr", "did you mean lr_schedule.learning_rate?"},
        {"--learning_rate", "did you mean lr_schedule.learning_rate?"},
        {"--block_size", "did you mean model.model_config.seq_length?"},
        {"--max_iters", "did you mean runner_config.max_steps?"},
        {"--tensor-model-parallel-size", "did you mean parallel_config.model_parallel?"},
        {"--micro-batch-size", "did you mean runner_config.batch_size?"},
        {"--global-batch-size", "times parallel_config.micro_batch_num is the batch"},
        {"--pipeline-model-parallel-size", "parallel_config.pipeline_stage"},
        {"--hidden-size", "did you mean model.model_config.hidden_size?"},
        {"--num-layers", "did you mean model.model_config.num_layers?"},
        {"--max_stepz", "did you mean runner_config.max_steps?"},
        {"--tempreature", "did you mean model.model_config.temperature?"},
        {"--dryrun", "stator plan says what a run would take"},
    };
    for (int i = 0; i < ARRAY_LEN(pairs); i++) expect_hint(pairs[i][0], pairs[i][1]);
    EXPECT_FAIL(parse("lr_schedule: {type: CosineAnnealingLR}"), EXIT_CONFIG,
                "did you mean cosine?");
    EXPECT_INT(FLAGS("--runner-config.max-steps", "7")->runner_config_max_steps, 7);
    EXPECT_INT(FLAGS("--train-iters=7")->runner_config_max_steps, 7);
    EXPECT_FAIL(FLAGS("--seed="), EXIT_CONFIG, "--seed has an empty value");
    EXPECT_FAIL(FLAGS("--init_from", ""), EXIT_CONFIG, "--init_from has an empty value");
    for (int k = 0; k < N_KEYS; k++) {
        Arena *a = arena_new();
        const char *near = key_nearest(arena_printf(a, "%sz", key_table[k].path));
        int found = near ? key_find(near) : -1;
        if (found < 0) continue;
        KeyCategory cat = key_table[found].cat;
        EXPECT(cat != CAT_NO_EFFECT && cat != CAT_REFUSED && cat != CAT_NOT_YET);
    }
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

/* In the order of the file, flags last; nothing about what follows from a broken value. */
TEST(all_errors_at_once) {
    char *path =
        write_file("wrong.yaml", "seed: many\n"
                                 "optimiser: {beta1: 0.5}\n"
                                 "lr_schedule: {warmup_steps: 20, total_steps: 10}\n"
                                 "model:\n"
                                 "  model_config:\n"
                                 "    hidden_size: wide\n"
                                 "    num_heads: 7\n"
                                 "    n_layer: 2\n"
                                 "callbacks:\n"
                                 "  - {type: Unknown}\n"
                                 "moe_config: {expert_num: 8}\n");
    char *words[] = {"--epochs", "x", "--max_stepz", "3", "--batch_size", "4"};
    static const char *const parts[] = {
        ":1:7: error: seed must be a whole number",
        ":2:1: error: unknown section optimiser",
        ":3:29: error: warmup_steps 20 is above total_steps 10",
        ":6:18: error: model.model_config.hidden_size must be a whole number",
        ":8:5: error: unknown key model.model_config.n_layer",
        ":10:12: error: unknown callback Unknown",
        ":11:26: error: moe_config.expert_num 8 is not there yet",
        "command line:1:10: error: epochs must be a whole number",
        "command line:2:1: error: unknown key max_stepz"};
    Catch c;
    if (CATCH(c)) {
        config_load(arena_new(), path, ARRAY_LEN(words), words);
        catch_end(&c);
    }
    EXPECT_INT(c.code, EXIT_CONFIG);
    const char *at = c.message;
    for (int i = 0; i < ARRAY_LEN(parts); i++) {
        const char *next = strstr(at, parts[i]);
        if (!next)
            test_fail(__FILE__, __LINE__, "no '%s' in order in\n%s", parts[i], c.message);
        at = next;
    }
    if (count(c.message, "error: ") != ARRAY_LEN(parts))
        test_fail(__FILE__, __LINE__, "more than that:\n%s", c.message);
}

TEST(length_of_the_loader) {
    Catch c;
    EXPECT_FAIL(parse("model: {model_config: {seq_length: 128}}\n"
                      "train_dataset:\n  data_loader:\n    seq_length: 64\n"),
                EXIT_CONFIG,
                "t.yaml:4:17: error: train_dataset.data_loader.seq_length 64 is not the "
                "model's seq_length 128");
    if (CATCH(c)) {
        parse("model: {model_config: {seq_length: 128}}\n"
              "train_dataset: {data_loader: {seq_length: 64}}\n");
        catch_end(&c);
    }
    EXPECT(!strstr(c.message, "train_dataset.seq_length"));
}

TEST(values_as_mindformers_names_them) {
    static const char *const types[][2] = {
        {"CosineWithWarmUpLR", "cosine"},
        {"CosineWithRestartsAndWarmUpLR", "cosine_with_restarts"},
        {"ConstantWarmUpLR", "constant_with_warmup"},
        {"LinearWithWarmUpLR", "linear"},
        {"PolynomialWithWarmUpLR", "polynomial"}};
    for (int i = 0; i < ARRAY_LEN(types); i++) {
        Arena *a = arena_new();
        Config *cfg = parse(arena_printf(a, "lr_schedule: {type: %s}", types[i][0]));
        EXPECT_STR(config_value(cfg, a, "lr_schedule.type"), types[i][1]);
        expect_round_trip(cfg);
    }
    EXPECT_INT(parse("optimizer: {type: FP32StateAdamWeightDecay}")->optimizer_type,
               OPTIMIZER_ADAM_WEIGHT_DECAY);
}

TEST(keys_that_are_not_used) {
    Config *cfg = parse("lr_schedule: {learning_rate: 1e-3}\n"
                        "optimizer: {learning_rate: 1e-2}\n"
                        "runner_config: {batch_size: 2, log_interval: 5}\n"
                        "train_dataset: {batch_size: 4}\n"
                        "callbacks:\n  - {type: MFLossMonitor, per_print_times: 3}\n");
    EXPECT(has_note(cfg, "t.yaml:2: optimizer.learning_rate is not used: "
                         "lr_schedule.learning_rate 0.001 takes precedence"));
    EXPECT(has_note(cfg, "t.yaml:4: train_dataset.batch_size is not used"));
    EXPECT(has_note(cfg, "callbacks.MFLossMonitor.per_print_times is not used: "
                         "runner_config.log_interval 5 takes precedence"));
}

TEST(an_eps_of_0) {
    EXPECT(has_note(parse("optimizer: {eps: 0}"), "t.yaml:1: optimizer.eps is 0: "));
    EXPECT(!has_note(parse("optimizer: {eps: 0, type: SGD}"), "eps is 0"));
}

TEST(a_flag_takes_the_place_of_a_key_of_a_file_without_a_note) {
    const char *path = write_file(
        "c.yaml", "callbacks:\n  - {type: MFLossMonitor, per_print_times: 3}\n");
    char *flags[] = {"--runner_config.log_interval=5",
                     "--callbacks.MFLossMonitor.per_print_times=7"};
    Config *cfg = config_load(arena_new(), path, 1, flags);
    EXPECT_INT(cfg->runner_config_log_interval, 5);
    EXPECT(!has_note(cfg, "not used"));
    EXPECT(has_note(config_load(arena_new(), path, 2, flags),
                    "callbacks.MFLossMonitor.per_print_times is not used: "
                    "runner_config.log_interval 5 takes precedence"));
}

/* A configuration that was printed is what it was beside any flag: what is derived is not in it. */
TEST(what_is_printed_derives_the_same_beside_other_flags) {
    static const struct {
        const char *text;
        char *flag;
    } cases[] = {
        {"lr_schedule: {total_steps: -1}\nrunner_config: {max_steps: 4}\n",
         "--runner_config.max_steps=8"},
        {"lr_schedule: {total_steps: -1}\n", "--lr_schedule.warmup_ratio=0.5"},
        {"parallel_config: {micro_batch_num: 4}\n"
         "runner_config: {gradient_accumulation_steps: 2}\n",
         "--parallel_config.pipeline_stage=2"},
        {"runner_config: {batch_size: 2}\ntrain_dataset: {batch_size: 4}\n",
         "--runner_config.batch_size=3"},
        {"train_dataset: {seq_length: 0}\nmodel: {model_config: {seq_length: 128}}\n",
         "--model.model_config.seq_length=64"},
        {"model: {model_config: {n_kv_heads: 0, num_heads: 4, hidden_size: 64}}\n",
         "--model.model_config.num_heads=8"},
        {"optimizer: {betas: [0.9, 0.95]}\n", "--optimizer.beta2=0.99"},
        {"runner_config: {log_interval: 5}\n"
         "callbacks:\n  - {type: MFLossMonitor, per_print_times: 3}\n",
         "--callbacks.MFLossMonitor.per_print_times=7"},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        Arena *a = arena_new();
        Text printed = text_new(a);
        char *flag[] = {cases[i].flag};
        const char *path = write_file("asked.yaml", cases[i].text);
        config_print(load(path), &printed);
        expect_same(config_load(a, path, 1, flag),
                    config_load(a, write_file("printed.yaml", printed.s), 1, flag));
        arena_free(a);
    }
}

TEST(warm_up_above_the_learning_rate) {
    EXPECT(
        has_note(parse("lr_schedule:\n  learning_rate: 1e-3\n  warmup_lr_init: 5e-4\n"
                       "  warmup_steps: 10\n"),
                 "t.yaml:3: the learning rate goes up to 0.0014 at the end of warm-up, "
                 "above learning_rate 0.001"));
    EXPECT_INT(parse("lr_schedule: {learning_rate: 1e-3, warmup_lr_init: 1e-4, "
                     "warmup_steps: 10}")
                   ->n_notes,
               0);
}

TEST(two_names_for_one_key) {
    Config *cfg = parse("model: {model_config: {embedding_size: 96, hidden_size: 96}}");
    EXPECT_INT(cfg->model_hidden_size, 96);
    EXPECT_FAIL(parse("model:\n  model_config:\n    embedding_size: 96\n"
                      "    hidden_size: 48\n"),
                EXIT_CONFIG,
                "model.model_config.hidden_size disagrees with "
                "model.model_config.embedding_size in line 3");
    EXPECT_FAIL(parse("parallel: {enable_parallel_optimizer: True}\n"
                      "parallel_config: {optimizer_shard: False}\n"),
                EXIT_CONFIG, "keep one of the two");
    EXPECT_FAIL(parse("parallel: {grad_accumulation_step: 2}\n"
                      "parallel_config: {micro_batch_num: 4}\n"),
                EXIT_CONFIG, "keep one of the two");
}

TEST(categories) {
    Config *cfg = parse("context:\n  device_target: Ascend\n  mode: 1\n"
                        "  max_call_depth: 10000\n"
                        "recompute_config: {recompute: False, select_recompute: False,\n"
                        "  parallel_optimizer_comm_recompute: True}\n"
                        "model: {model_config: {param_init_type: bfloat16}}\n"
                        "parallel_config: {data_parallel: 1, micro_batch_num: 4}\n"
                        "trainer: {type: x, anything: [1, {a: b}]}\n");
    EXPECT(cfg->context_device_target == DEVICE_CPU && cfg->context_mode == 0);
    EXPECT_INT(cfg->model_param_init_type, FLOAT_32);
    EXPECT_INT(cfg->parallel_config_micro_batch_num, 4);
    EXPECT(
        has_note(cfg, "t.yaml:2: context.device_target is CPU, not Ascend: runs on CPU"));
    EXPECT(has_note(cfg, "t.yaml:3: context.mode is 0, not 1"));
    EXPECT(has_note(cfg, "context.max_call_depth has no effect"));
    EXPECT(has_note(cfg, "recompute_config.parallel_optimizer_comm_recompute has no "
                         "effect: backward gathers"));
    EXPECT(has_note(cfg, "param_init_type is float32, not bfloat16"));
    EXPECT(has_note(cfg, "trainer has no effect"));
    EXPECT_INT(cfg->n_notes, 6);
    expect_round_trip(cfg);
    EXPECT_FAIL(parse("parallel_config:\n  expert_parallel: 4\n"), EXIT_CONFIG,
                "t.yaml:2:20: error: parallel_config.expert_parallel 4 is not there yet: "
                "mixtures of experts; set it to 1");
    EXPECT_FAIL(parse("train_dataset: {data_loader: {eod_mask_loss: True}}"), EXIT_CONFIG,
                "is for data of type GPTDataset, not of type TextFile");
    EXPECT_FAIL(parse("moe_config: {expert_num: 8}"), EXIT_CONFIG, "set it to 1");
}

TEST(wrong_combinations) {
    EXPECT_FAIL(parse("model:\n  model_config:\n    use_parallel_residual: True\n"
                      "    post_layernorm_residual: True\n"),
                EXIT_CONFIG, "write False for one of the two");
    EXPECT_FAIL(parse("lr_schedule:\n  learning_rate: 1e-4\n  lr_end: 2e-4\n"),
                EXIT_CONFIG,
                "t.yaml:3:11: error: learning_rate 0.0001 is below lr_end 0.0002");
    EXPECT(parse("lr_schedule: {type: constant, learning_rate: 1e-4, lr_end: 2e-4}") !=
           NULL);
    EXPECT_FAIL(parse("lr_schedule:\n  warmup_steps: 20\n  total_steps: 10\n"),
                EXIT_CONFIG,
                "t.yaml:2:17: error: warmup_steps 20 is above total_steps 10");
    EXPECT_FAIL(parse("lr_schedule: {warmup_steps: 20}\ntrain_steps: 10\n"), EXIT_CONFIG,
                "warmup_steps 20 is above total_steps 10");
    EXPECT_FAIL(parse("lr_schedule: {warmup_steps: 20}\ntrain_steps: 10\n"), EXIT_CONFIG,
                "total_steps is max_steps where it is not given");
    EXPECT_FAIL(parse("lr_schedule: {total_steps: 0}"), EXIT_CONFIG,
                "t.yaml:1:28: error: a learning rate that changes needs steps");
    EXPECT_FAIL(parse("lr_schedule: {warmup_steps: 20, warmup_ratio: 0.1}"), EXIT_CONFIG,
                "together with warmup_steps");
    EXPECT_FAIL(parse("lr_schedule: {type: WSD}"), EXIT_CONFIG, "needs wsd_decay_steps");
    EXPECT_FAIL(parse("lr_schedule: {type: WSD, wsd_decay_steps: 8, warmup_steps: 3, "
                      "total_steps: 10}"),
                EXIT_CONFIG, "are above total_steps 10");
    EXPECT(has_note(parse("optimizer: {weight_decay: 1, weight_decay_incr_style: linear, "
                          "start_weight_decay: 0, end_weight_decay: 1}"),
                    "optimizer.weight_decay"));
    EXPECT(parse("lr_schedule: {type: cosine_with_restarts}")->lr_schedule_num_cycles ==
           1);
    EXPECT(parse("lr_schedule: {type: cosine}")->lr_schedule_num_cycles == 0.5);
    EXPECT_FAIL(parse("optimizer:\n  end_weight_decay: 0.2\n"), EXIT_CONFIG,
                "t.yaml:2:21: error: the weight decay has an end of its own, but is "
                "constant");
    EXPECT_FAIL(parse("optimizer: {weight_decay_incr_style: cosine, "
                      "start_weight_decay: 0}"),
                EXIT_CONFIG, "needs a start and an end");
    EXPECT_FAIL(parse("model:\n  model_config:\n    num_heads: 7\n"), EXIT_CONFIG,
                "t.yaml:3:16: error: 7 heads do not divide hidden_size 768");
    EXPECT_FAIL(parse("model: {model_config: {n_kv_heads: 5}}"), EXIT_CONFIG,
                "5 heads of keys and values do not divide 12 heads");
    EXPECT_FAIL(parse("model: {model_config: {type: LlamaConfig, hidden_size: 36}}"),
                EXIT_CONFIG, "of a head's 3 numbers rotary positions turn 3");
    parse("model: {model_config: {type: LlamaConfig, head_dim: 9, rotary_percent: 0.5}}");
    EXPECT_FAIL(parse("model: {model_config: {type: LlamaConfig, head_dim: 8,\n"
                      "  rotary_percent: 0.4}}"),
                EXIT_CONFIG, "of a head's 8 numbers rotary positions turn 3");
    EXPECT_FAIL(parse("model:\n  file: a.ir\n  model_config:\n    num_layers: 2\n"),
                EXIT_CONFIG,
                "t.yaml:4:17: error: model.model_config.num_layers is given "
                "together with model.file");
    EXPECT_FAIL(parse("model: {model_config: {eos_token: 50257}}"), EXIT_CONFIG,
                "is not below vocab_size 50257");
    EXPECT_FAIL(parse("model: {model_config: {max_position_embeddings: 8}}"), EXIT_CONFIG,
                "is below seq_length 1024");
    EXPECT_INT(
        parse("init_from: some\nmodel: {model_config: {max_position_embeddings: 8}}")
            ->model_max_position_embeddings,
        8);
    EXPECT_FAIL(parse("model: {model_config: {type: GPT2Config}, "
                      "arch: {type: LlamaForCausalLM}}"),
                EXIT_CONFIG, "keep one of the two");
    EXPECT_FAIL(parse("train_dataset: {seq_length: 64}\n"
                      "model: {model_config: {seq_length: 128}}"),
                EXIT_CONFIG, "is not the model's seq_length 128");
    EXPECT_FAIL(parse("train_dataset: {data_loader: {dataset_dir: a/b.mindrecord}}"),
                EXIT_CONFIG, "stator preprocess");
    EXPECT_FAIL(parse("train_dataset: {data_loader: {dataset_dir: a/b.mindrecord0}}"),
                EXIT_CONFIG, "MindRecord files cannot be read");
    EXPECT_FAIL(parse("run_mode: export"), EXIT_CONFIG,
                "run_mode must be train, finetune, predict or eval, not \"export\"");
    EXPECT_FAIL(parse("run_mode: export"), EXIT_CONFIG,
                "hint: stator convert --to hf writes weights for other programs");
    EXPECT_FAIL(parse("parallel: {parallel_mode: 3}"), EXIT_CONFIG, "parallel_mode 3");
    EXPECT_FAIL(
        parse("batch_size: 1048576\nmodel: {model_config: {seq_length: 1048576}}"),
        EXIT_CONFIG, "in one micro-batch");
}

/* A tokenizer may be that of a folder, so every loader has a type. */
TEST(unknown_types_of_tokenizers) {
    static const char *const loaders[] = {"TextFile",   "TensorBatches",
                                          "GPTDataset", "WebtextDataset",
                                          "Tensors",    "MegatronIndexed"};
    for (int i = 0; i < ARRAY_LEN(loaders); i++) {
        const char *text = arena_printf(mem(),
                                        "train_dataset:\n  data_loader:\n"
                                        "    type: %s\n    tokenizer_type: %%s\n",
                                        loaders[i]);
        EXPECT_FAIL(parse(arena_printf(mem(), text, "foo")), EXIT_CONFIG,
                    "t.yaml:4:21: error: unknown tokenizer type 'foo'");
        EXPECT_FAIL(parse(arena_printf(mem(), text, "BytesTokenizer")), EXIT_CONFIG,
                    "did you mean ByteTokenizer?");
        parse(arena_printf(mem(), text, "GPT2BPETokenizer"));
    }
}

/* Of the key that was written, where it was written. */
TEST(masks_of_documents_by_either_name) {
    static const char *const keys[] = {"config: {create_compressed_eod_mask: True}",
                                       "reset_attention_mask: True",
                                       "config: {reset_attention_mask: True}"};
    for (int i = 0; i < ARRAY_LEN(keys); i++) {
        const char *name =
            i ? "reset_attention_mask" : "config.create_compressed_eod_mask";
        EXPECT_FAIL(parse(arena_printf(mem(),
                                       "train_dataset:\n  data_loader:\n"
                                       "    type: TextFile\n    %s\n",
                                       keys[i])),
                    EXIT_CONFIG,
                    arena_printf(mem(), "data_loader.%s is for data of type GPT", name));
        EXPECT_FAIL(parse(arena_printf(mem(),
                                       "train_dataset:\n  data_loader:\n"
                                       "    type: TextFile\n    %s\n",
                                       keys[i])),
                    EXIT_CONFIG, "t.yaml:4:");
    }
}

static Config *with_idle_notes(const char *text) {
    Config *cfg = parse(text);
    config_note_idle(cfg);
    return cfg;
}

TEST(how_long_a_run_is_by_epochs) {
#define LOADER_OF(type)                                                                  \
    "runner_config: {epochs: 3}\n"                                                       \
    "train_dataset: {data_loader: {type: " type ", num_samples: [50]}}\n"
    Config *cfg = with_idle_notes(LOADER_OF("TextFile"));
    EXPECT(!has_note(cfg, "epochs has no effect"));
    EXPECT(has_note(cfg, "num_samples has no effect: it is for type GPTDataset"));
    cfg = with_idle_notes(LOADER_OF("GPTDataset"));
    EXPECT(has_note(cfg, "epochs has no effect: num_samples says how long"));
#undef LOADER_OF
}

TEST(sums_of_one_rank_have_no_type) {
#define SUMS                                                                             \
    "model: {model_config: {allreduce_activations_in_fp32: False, compute_dtype: "
    static const char note[] = "allreduce_activations_in_fp32 has no effect: ";
    const char *one = arena_printf(mem(), "%smodel_parallel is 1", note);
    const char *wide = arena_printf(mem(), "%scompute_dtype is float32", note);
    EXPECT(has_note(with_idle_notes(SUMS "bfloat16}}"), one));
    EXPECT(has_note(with_idle_notes(SUMS "float32}}"), wide));
    EXPECT(!has_note(
        with_idle_notes(SUMS "bfloat16}}\nparallel_config: {model_parallel: 2}"), note));
#undef SUMS
}

/* Degrees of dp, tp, cp and stages, under which these keys act. */
TEST(keys_of_messages_and_orders) {
    static const struct {
        int degree[4];
        bool joins, orders;
    } kinds[] = {{{1, 1, 1, 1}, false, false}, {{1, 1, 1, 2}, false, false},
                 {{4, 1, 1, 1}, true, false},  {{1, 2, 1, 1}, true, false},
                 {{1, 1, 2, 1}, true, false},  {{2, 1, 1, 2}, true, true},
                 {{2, 2, 1, 1}, true, true},   {{1, 2, 2, 2}, true, true}};
    static const char *const keys[] = {
        "bucket_size: 1MB", "comm_fusion: {allgather: {mode: size, config: 2}}"};
    for (int i = 0; i < 2 * ARRAY_LEN(kinds); i++) {
        const int *d = kinds[i / 2].degree;
        const Config *cfg = with_idle_notes(
            arena_printf(mem(),
                         "parallel: {%s}\nparallel_config: {rank_order: tp-cp-pp-dp, "
                         "data_parallel: %d, model_parallel: %d, context_parallel: %d, "
                         "pipeline_stage: %d}",
                         keys[i % 2], d[0], d[1], d[2], d[3]));
        const char *key = i % 2 ? "allgather.config has no effect: there is one rank"
                                : "bucket_size has no effect: there is one rank";
        EXPECT(has_note(cfg, key) == !kinds[i / 2].joins);
        EXPECT(has_note(cfg, "rank_order has no effect") == !kinds[i / 2].orders);
    }
}

/* MindFormers' loader has 1234 where it is given none; train_dataset's counts there as a flag alone. */
TEST(the_seed_of_a_loader) {
#define BLENDED(words)                                                                   \
    "train_dataset: {" words "data_loader: {type: BlendedMegatronDatasetDataLoader}}\n"
    Config *cfg = with_idle_notes(BLENDED("seed: 5, "));
    EXPECT_INT(cfg->train_dataset_data_loader_seed, 1234);
    EXPECT(has_note(cfg, "train_dataset.seed has no effect"));
    expect_round_trip(cfg);
    cfg = with_idle_notes(BLENDED(""));
    EXPECT_INT(cfg->train_dataset_data_loader_seed, 1234);
    expect_round_trip(cfg);
#undef BLENDED
}

TEST(checkpoint_keys) {
    EXPECT_STR(parse("load_checkpoint: ck")->resume, "ck");
    EXPECT_STR(parse("load_checkpoint: ck\nrun_mode: finetune")->init_from, "ck");
    EXPECT_STR(parse("load_checkpoint: ck\nresume_training: False")->init_from, "ck");
    EXPECT_STR(parse("load_checkpoint: ck\nresume_training: False")->resume, "auto");
    EXPECT_FAIL(parse("load_checkpoint: ck\nresume: never"), EXIT_CONFIG, "keep one");
    EXPECT_FAIL(parse("load_checkpoint: ck\nresume: other"), EXIT_CONFIG, "keep one");
}

/* As in MindFormers it says whether a run goes on, whatever run_mode is. */
TEST(resume_training_in_each_mode) {
    static const char *const modes[] = {"train", "finetune"};
    for (int i = 0; i < ARRAY_LEN(modes); i++) {
        const char *mode = arena_printf(mem(), "run_mode: %s\n", modes[i]);
        Config *on = parse(arena_printf(mem(), "%sload_checkpoint: ck\n%s", mode,
                                        "resume_training: True"));
        Config *weights = parse(arena_printf(mem(), "%sload_checkpoint: ck\n%s", mode,
                                             "resume_training: False"));
        EXPECT_STR(on->resume, "ck");
        EXPECT(!on->init_from[0]);
        expect_round_trip(on);
        EXPECT_STR(weights->resume, "auto");
        EXPECT_STR(weights->init_from, "ck");
        EXPECT_FAIL(
            parse(arena_printf(mem(), "%sresume_training: True\nresume: never", mode)),
            EXIT_CONFIG, "keep one of the two");
    }
    Config *source = parse("run_mode: finetune\npretrained_model_dir: hf\n"
                           "resume_training: True");
    EXPECT_STR(source->init_from, "hf");
    EXPECT_STR(source->resume, "auto");
    EXPECT(!config_resumes(parse("run_mode: predict\nresume_training: True")));
}

/* As a script says that queues a run again, whatever the file begins from. */
TEST(resume_auto_beside_a_checkpoint_to_begin_from) {
    Config *cfg = parse("load_checkpoint: ck\nresume: auto");
    EXPECT_STR(cfg->resume, "auto");
    EXPECT_STR(config_resume_else(cfg), "ck");
    expect_round_trip(cfg);
    cfg = parse("load_checkpoint: ck\nresume: auto\nresume_training: True");
    EXPECT_STR(config_resume_else(cfg), "ck");
    cfg = parse("load_checkpoint: ck\nresume: auto\nrun_mode: finetune");
    EXPECT_STR(config_resume_else(cfg), "");
    EXPECT_STR(cfg->init_from, "ck");
    EXPECT_STR(config_resume_else(parse("resume: auto")), "");
}

TEST(callbacks) {
    Config *cfg = parse("callbacks:\n  - type: MFLossMonitor\n    per_print_times: 10\n"
                        "  - type: SummaryMonitor\n    keep_default_action: True\n"
                        "  - type: CheckpointMointor\n    directory: ck\n"
                        "    save_checkpoint_steps: 50\n    keep_checkpoint_max: 2\n"
                        "    integrated_save: False\n  - type: ObsMonitor\n");
    EXPECT_INT(cfg->runner_config_log_interval, 10);
    EXPECT_INT(cfg->checkpoint_save_checkpoint_steps, 50);
    EXPECT_INT(cfg->checkpoint_keep_checkpoint_max, 2);
    EXPECT_STR(cfg->checkpoint_directory, "ck");
    EXPECT(has_note(cfg, "t.yaml:11: callbacks.ObsMonitor has no effect"));
    expect_round_trip(cfg);
    EXPECT_FAIL(parse("callbacks:\n  - type: Unknown\n"), EXIT_CONFIG,
                "t.yaml:2:11: error: unknown callback Unknown");
    EXPECT_FAIL(parse("callbacks:\n  - prefix: x\n"), EXIT_CONFIG, "a map with a type");
    EXPECT_FAIL(parse("callbacks:\n  - {type: ObsMonitor}\n  - {type: ObsMonitor}\n"),
                EXIT_CONFIG, "a second ObsMonitor");
    EXPECT_FAIL(parse("callbacks:\n  - {type: MFLossMonitor, prefix: x}\n"), EXIT_CONFIG,
                "unknown key callbacks.MFLossMonitor.prefix");
}

TEST(aliases_of_shipped_configs) {
    Config *cfg =
        parse("train_dataset: &train_dataset\n  data_loader:\n"
              "    type: MindDataset\n    dataset_dir: \"\"\n    shuffle: True\n"
              "  input_columns: [\"input_ids\"]\n  batch_size: 3\n"
              "train_dataset_task:\n  type: CausalLanguageModelDataset\n"
              "  dataset_config: *train_dataset\n");
    EXPECT_INT(cfg->train_dataset_data_loader_type, LOADER_MEGATRON_INDEXED);
    EXPECT(has_note(cfg, "type MindDataset is read as MegatronIndexed"));
    EXPECT_INT(cfg->runner_config_batch_size, 3);
    expect_round_trip(cfg);
}

/* Keys that are looked at in one way: none hides another. */
TEST(each_of_several_keys_is_told) {
    static const char all[] = "train_dataset: {data_loader: {type: MindDataset, "
                              "reset_position_ids: True, reset_attention_mask: True, "
                              "eod_mask_loss: True}}";
    static const char both[] = "model: {model_config: {add_qkv_bias: False, "
                               "out_proj_has_bias: False, add_bias_linear: True}}";
    EXPECT_FAIL(parse(all), EXIT_CONFIG, "reset_position_ids is for data of type GPT");
    EXPECT_FAIL(parse(all), EXIT_CONFIG, "reset_attention_mask is for data of type GPT");
    EXPECT_FAIL(parse(all), EXIT_CONFIG, "eod_mask_loss is for data of type GPT");
    EXPECT_FAIL(parse(both), EXIT_CONFIG, "add_qkv_bias False is given together");
    EXPECT_FAIL(parse(both), EXIT_CONFIG, "out_proj_has_bias False is given together");
}

/* The key fills a text up where nothing else does; nothing ends with it. */
TEST(the_end_of_a_webtext) {
#define WEBTEXT(keys) "train_dataset: {data_loader: {type: WebtextDataset" keys "}}"
    static const char note[] = "t.yaml:1: train_dataset.data_loader.eod fills up a text";
    static const char idle[] = "eod has no effect: nothing asks where a document ends";
    EXPECT(has_note(with_idle_notes(WEBTEXT(", eod: 3")), note));
    EXPECT(!has_note(with_idle_notes(WEBTEXT(", eod: 3, pad_token: 3")), note));
    EXPECT(has_note(with_idle_notes(WEBTEXT(", eod: 3, pad_token: 3")), idle));
    EXPECT(!has_note(with_idle_notes(WEBTEXT("")), note));
    EXPECT(!has_note(
        with_idle_notes("train_dataset: {data_loader: {type: GPTDataset, eod: 3, "
                        "reset_position_ids: True}}"),
        note));
#undef WEBTEXT
}

TEST(help_and_page) {
    char *text = NULL, *page = NULL;
    size_t n, page_bytes;
    FILE *f = open_memstream(&text, &n);
    EXPECT(config_help(f, NULL) && config_help(f, "lr_schedule") &&
           config_help(f, "run"));
    EXPECT(!config_help(f, "nothing") && !config_help(f, "lr") && !config_help(f, ""));
    fclose(f);
    EXPECT_PART(text, "  parallel_config\n");
    EXPECT_PART(text, "--lr_schedule.warmup_steps  (a whole number, 0 to");
    EXPECT_PART(text, "--run_mode  (train, finetune, predict");
    f = open_memstream(&page, &page_bytes);
    page_of_keys(f);
    fclose(f);
    EXPECT_PART(page, "\n## Defaults of a LlamaConfig\n");
    EXPECT_PART(page, "\n## Defaults of a GPTNeoXConfig\n\n| key | default |\n|---|---|\n"
                      "| `model.model_config.position_embedding_type` | rope |\n"
                      "| `model.model_config.rotary_percent` | 0.25 |\n");
    Arena *a = arena_new();
    size_t committed;
    const char *path = path_join(a, tests_dir(), "../docs/keys.md");
    const char *have = file_read(a, path, 1 << 20, &committed, EXIT_DATA);
    if (test_bless())
        EXPECT_INT(file_write_atomic(path, page, page_bytes), 0);
    else if (committed != page_bytes || memcmp(have, page, page_bytes))
        test_fail(__FILE__, __LINE__,
                  "docs/keys.md is not what keys.def says; STATOR_BLESS=1 writes it");
}

TEST(shipped_configurations) {
    static const char *const names[] = {"gpt2-tiny", "gpt2_124m", "llama-tiny"};
    static const int hidden[] = {128, 768, 128};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        Arena *a = arena_new();
        Config *cfg =
            load(arena_printf(a, "%s/../configs/%s.yaml", tests_dir(), names[i]));
        EXPECT_INT(cfg->n_notes, 0);
        EXPECT(cfg->model_hidden_size == hidden[i] && cfg->seed == 1);
        EXPECT(cfg->optimizer_weight_decay == 0.1 && cfg->optimizer_eps == 1e-8);
        EXPECT_INT(cfg->checkpoint_keep_checkpoint_max, 3);
        expect_round_trip(cfg);
    }
}
