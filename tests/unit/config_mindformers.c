/* config_mindformers.c - configurations as newer MindFormers has them: every key is known, and
 * those that change a model, its data or its strategy do so. */
#include "configs.h"
#include "frontend/model/model.h"
#include "frontend/model/strategy.h"
#include "ranks.h"

TEST_LABEL(QUICK);

static const char new_style[] =
    "use_legacy: False\n"
    "load_ckpt_format: safetensors\n"
    "run_mode: train\n"
    "train_dataset: &train_dataset\n"
    "  data_loader:\n"
    "    type: BlendedMegatronDatasetDataLoader\n"
    "    datasets_type: GPTDataset\n"
    "    sizes: [96, 8, 0]\n"
    "    config:\n"
    "      seed: 42\n"
    "      split: '9, 1, 0'\n"
    "      seq_length: 64\n"
    "      eod_mask_loss: True\n"
    "      reset_position_ids: False\n"
    "      create_attention_mask: True\n"
    "      reset_attention_mask: False\n"
    "      create_compressed_eod_mask: False\n"
    "      eod_pad_length: 128\n"
    "      eod: 3\n"
    "      pad: 7\n"
    "      data_path: ['1', one, '2', two]\n"
    "  input_columns: [input_ids, labels, loss_mask, position_ids]\n"
    "  construct_args_key: [input_ids, labels]\n"
    "  seed: 7\n"
    "train_dataset_task: {type: CausalLanguageModelDataset, dataset_config: "
    "*train_dataset}\n"
    "model:\n"
    "  model_config:\n"
    "    model_type: llama\n"
    "    architectures: [LlamaForCausalLM]\n"
    "    hidden_size: 96\n"
    "    num_hidden_layers: 5\n"
    "    num_attention_heads: 8\n"
    "    num_key_value_heads: 2\n"
    "    head_dim: 16\n"
    "    rope_theta: 1000000.0\n"
    "    rotary_emb_base: 1000000\n"
    "    extend_method: \"None\"\n"
    "    scaling_factor: 1.0\n"
    "    multiple_of: 32\n"
    "    ffn_dim_multiplier: 1.3\n"
    "    qkv_has_bias: True\n"
    "    untie_embeddings_and_output_weights: True\n"
    "    params_dtype: float32\n"
    "    layernorm_compute_dtype: float32\n"
    "    rotary_dtype: float16\n"
    "    hidden_dropout: 0.0\n"
    "    offset: 0\n"
    "    qkv_concat: True\n"
    "    ignore_token_id: -100\n"
    "recompute_config: {recompute: [[2, 1], [1, 1]], select_recompute: False}\n"
    "optimizer: {type: AdamW, betas: [0.9, 0.999], eps: 1.e-6}\n"
    "lr_schedule: {type: CosineWithWarmUpLR, learning_rate: 1.e-6, lr_end: 1.e-6}\n"
    "parallel_config: {data_parallel: &dp 2, pipeline_stage: 2, micro_batch_num: 4}\n"
    "parallel:\n"
    "  dataset_strategy: [[*dp, 1], [*dp, 1]]\n"
    "  strategy_ckpt_config: {save_file: ./ckpt_strategy.ckpt}\n"
    "context:\n"
    "  jit_config: {jit_level: O0}\n"
    "  ascend_config: {precision_mode: must_keep_origin_dtype}\n"
    "  memory_optimize_level: O1\n"
    "runner_config: {gradient_accumulation_steps: 8, batch_size: 1}\n"
    "eval_step_interval: -1\n"
    "processor: {tokenizer: {vocab_file: None, merges_file: None}}\n"
    "callbacks:\n"
    "  - {type: CheckpointMonitor, checkpoint_format: safetensors, remove_redundancy: "
    "True}\n";

TEST(new_style_configurations_are_read) {
    Config *c = parse(new_style);
    EXPECT(c->model_type == MODEL_LLAMA && c->model_normalization == NORM_RMS);
    EXPECT(c->model_num_layers == 5 && c->model_num_heads == 8 &&
           c->model_n_kv_heads == 2);
    EXPECT(c->model_head_dim == 16 && c->model_rotary_base == 1e6);
    /* (1.3 + 0.01) * 4 * 96 is 503, two thirds of it 335, rounded up to 352 */
    EXPECT_INT(c->model_ffn_hidden_size, 352);
    EXPECT(c->model_add_qkv_bias && !c->model_add_bias_linear);
    EXPECT(!c->model_tie_word_embeddings && c->model_rotary_dtype == FLOAT_32);
    EXPECT(c->optimizer_beta1 == 0.9 && c->optimizer_beta2 == 0.999);
    EXPECT_INT(c->train_dataset_data_loader_type, LOADER_GPT_DATASET);
    EXPECT_INT(c->train_dataset_data_loader_num_samples.items[0], 96);
    EXPECT_INT(c->train_dataset_data_loader_seed, 42);
    EXPECT(c->train_dataset_data_loader_eod == 3 && c->model_seq_length == 64);
    EXPECT(c->train_dataset_data_loader_eod_mask_loss);
    EXPECT_INT(c->train_dataset_data_loader_pad_token, 7);
    EXPECT(!c->train_dataset_data_loader_reset_attention_mask);
    EXPECT_INT(c->train_dataset_data_loader_data_path.n, 4);
    EXPECT_INT(c->parallel_config_micro_batch_num, 4); /* there is a pipeline */
    EXPECT_INT(c->recompute_config_recompute.n, 4);
    EXPECT_STR(c->recompute_config_recompute.items[1], "1");
    EXPECT(c->runner_config_eval_interval == 0 && c->lr_schedule_lr_end == 1e-6);
    EXPECT(!c->train_dataset_data_loader_vocab_file[0]);
    EXPECT_INT(c->context_jit_level, JIT_AUTO);
    expect_round_trip(c);
}

TEST(widths_of_the_mlp_as_llama_2_has_them) {
    static const struct {
        const char *words;
        int64_t width;
    } of[] = {
        {"hidden_size: 4096, num_heads: 32, multiple_of: 256", 11008},
        {"hidden_size: 5120, num_heads: 40, multiple_of: 256", 13824},
        {"hidden_size: 8192, num_heads: 64, multiple_of: 256, ffn_dim_multiplier: 1.3",
         28672},
        {"hidden_size: 8192, num_heads: 64, ffn_dim_multiplier: 1.3", 28672},
        {"hidden_size: 4096, num_heads: 32, multiple_of: 256, ffn_hidden_size: 5", 5},
        {"hidden_size: 4096, num_heads: 32", 10880}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        Arena *a = arena_new();
        Config *c = parse(arena_printf(
            a, "model: {model_config: {type: LlamaConfig, %s}}", of[i].words));
        EXPECT_INT(c->model_ffn_hidden_size, of[i].width);
    }
}

TEST(positions_are_stretched) {
#define LLAMA(words)                                                                     \
    parse("model: {model_config: {type: LlamaConfig, rotary_base: 100, " words "}}")
    ModelSpec s = model_spec_of_config(LLAMA("extend_method: NTK, scaling_factor: 4"));
    EXPECT(s.rope_base == 400 && s.rope.type == ROPE_DEFAULT);
    s = model_spec_of_config(LLAMA("extend_method: PI, scaling_factor: 4"));
    EXPECT(s.rope_base == 100 && s.rope.type == ROPE_LINEAR && s.rope.factor == 4);
    s = model_spec_of_config(LLAMA("extend_method: LLAMA3, scaling_factor: {factor: 8,\n"
                                   "low_freq_factor: 2, high_freq_factor: 16,\n"
                                   "original_max_position_embeddings: 512}"));
    EXPECT(s.rope.type == ROPE_LLAMA3 && s.rope.factor == 8 && s.rope.low == 2);
    EXPECT(s.rope.high == 16 && s.rope.original == 512);
    s = model_spec_of_config(LLAMA("scaling_factor: 4"));
    EXPECT(s.rope_base == 100 && s.rope.type == ROPE_DEFAULT);
    static const char *const methods[] = {"PI", "linear", "NTK", "LLAMA3",
                                          "LLAMA3, scaling_factor: {low_freq_factor: 2}"};
    for (int i = 0; i < ARRAY_LEN(methods); i++) {
        const char *text = arena_printf(
            mem(), "model: {model_config: {type: LlamaConfig,\nextend_method: %s}}\n",
            methods[i]);
        const char *folder = arena_printf(mem(), "%sinit_from: hf\n", text);
        EXPECT_FAIL(parse(text), EXIT_CONFIG, "t.yaml:2:16: error: extend_method ");
        EXPECT_FAIL(parse(text), EXIT_CONFIG, "model.model_config.scaling_factor too");
        if (i == 2)
            EXPECT_FAIL(parse(folder), EXIT_CONFIG, "scaling_factor too");
        else
            parse(folder);
    }
    LLAMA("extend_method: PI, scaling_factor: 1");
    LLAMA("extend_method: None");
    EXPECT_FAIL(LLAMA("extend_method: YARN"), EXIT_CONFIG, "extend_method must be ");
#undef LLAMA
}

TEST(models_by_the_words_of_hugging_face) {
    Config *c = parse("model: {model_config: {model_type: qwen2}}");
    EXPECT(c->model_type == MODEL_LLAMA && c->model_add_qkv_bias);
    c = parse("model: {model_config: {architectures: MistralForCausalLM}}");
    EXPECT(c->model_type == MODEL_LLAMA && !c->model_add_qkv_bias);
    c = parse("model: {model_config: {type: GPT2Config, model_type: qwen2}}");
    EXPECT(c->model_type == MODEL_GPT2 && c->model_add_bias_linear);
    EXPECT_FAIL(parse("model: {model_config: {model_type: bert}}"), EXIT_CONFIG,
                "models of kind bert are not there yet");
    EXPECT_FAIL(parse("model: {model_config: {model_type: llama,\n"
                      "architectures: [GPT2LMHeadModel]}}"),
                EXIT_CONFIG,
                "model_type is llama, and architectures has GPT2LMHeadModel");
    c = parse("model: {model_config: {model_type: qwen3}}");
    EXPECT(c->model_type == MODEL_LLAMA && c->model_qk_layernorm &&
           !c->model_add_qkv_bias);
    EXPECT_INT(c->model_head_dim, 128);
    EXPECT_FAIL(parse("model: {model_config: {type: QwenConfig}}"), EXIT_CONFIG,
                "write LlamaConfig, with add_qkv_bias: True");
}

TEST(lists_and_steps_in_two_forms) {
    Config *c = parse("runner_config: {gradient_accumulation_steps: 8}\n"
                      "parallel_config: {micro_batch_num: 2}");
    EXPECT_INT(c->parallel_config_micro_batch_num, 8); /* as MindFormers without stages */
    EXPECT(has_note(c, "parallel_config.micro_batch_num is not used"));
    /* a flag, such as those of a search, takes the place of the other key in a file */
    const char *steps =
        write_file("s.yaml", "runner_config: {gradient_accumulation_steps: 8}");
    char *micro = "--parallel_config.micro_batch_num=4";
    EXPECT_INT(config_load(mem(), steps, 1, &micro)->parallel_config_micro_batch_num, 4);
    c = load(steps);
    config_set_flag(c, "parallel_config.micro_batch_num", "2");
    EXPECT_INT(c->parallel_config_micro_batch_num, 2);
    EXPECT_NEAR(parse("optimizer: {betas: [], beta2: 0.8}")->optimizer_beta2, 0.8, 0);
    EXPECT_FAIL(parse("optimizer: {betas: [0.9]}"), EXIT_CONFIG,
                "has 1 numbers, not two");
    EXPECT_FAIL(parse("optimizer: {betas: [0.9, x]}"), EXIT_CONFIG, "must be a number");
    EXPECT_FAIL(parse("optimizer: {betas: [0.9, 1.5]}"), EXIT_CONFIG, "must be 0 to");
    EXPECT_FAIL(parse("optimizer: {betas: [0.9, 0.95], beta1: 0.8}"), EXIT_CONFIG,
                "keep one of the two");
    EXPECT_FAIL(parse("model: {model_config: {tie_word_embeddings: True,\n"
                      "untie_embeddings_and_output_weights: True}}"),
                EXIT_CONFIG, "keep one of the two");
    EXPECT_FAIL(parse("model: {model_config: {residual_dtype: float32,\n"
                      "fp32_residual_connection: False, compute_dtype: bfloat16}}"),
                EXIT_CONFIG, "contradict each other");
    c = parse("train_dataset: {seed: 5, data_loader: {dataset_dir: x}}");
    EXPECT_INT(c->train_dataset_data_loader_seed, 5);
    c = parse("train_dataset: {data_loader: {type: BlendedMegatronDatasetDataLoader}}");
    EXPECT_INT(c->train_dataset_data_loader_seed, 1234);
    expect_round_trip(c); /* though printed under another type */
    c = parse("train_dataset: {data_loader: {type: BlendedMegatronDatasetDataLoader,\n"
              "config: {create_compressed_eod_mask: True}}}");
    EXPECT(c->train_dataset_data_loader_reset_attention_mask);
}

/* What a step of a model looks like to the plan, the random weights to the losses. */
TEST_LIMIT(a_model_of_config_json_without_weights, 120) {
    const char *run[] = {in_temp("run0"), in_temp("run1")};
    write_text(in_temp("config.json"),
               "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 32,\n"
               "\"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
               "\"intermediate_size\": 48, \"max_position_embeddings\": 32,\n"
               "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false}\n");
    const char *text = "train_dataset: {data_loader: {dataset_dir: embedded}}\n"
                       "runner_config: {max_steps: 3, batch_size: 2}\n";
    const char *folder =
        arena_printf(mem(), "pretrained_model_dir: %s\n%s", temp_dir(), text);
    write_text(in_temp("folder.yaml"), folder);
    write_text(
        in_temp("keys.yaml"),
        arena_printf(mem(),
                     "model: {model_config: {type: LlamaConfig, vocab_size: 256,\n"
                     "hidden_size: 32, num_layers: 2, num_heads: 2, seq_length: 32,\n"
                     "ffn_hidden_size: 48}}\n%s",
                     text));
    RUN_EXPECT(0, runs_words(in_temp("folder.yaml"), run[0], ""));
    RUN_EXPECT(0, runs_words(in_temp("keys.yaml"), run[1], ""));
    runs_expect_same_losses(run[0], run[1], 3);
    RUN_EXPECT(0, runs_words(in_temp("folder.yaml"), in_temp("run6"), ""));
    SAID_EXPECT("has no weights: random ones of the seed are taken");
    RUN_EXPECT(0, runs_words(in_temp("folder.yaml"), in_temp("run6"),
                             "--runner_config.max_steps 4"));
    SAID_EXPECT("resumed after step 3");
    EXPECT(!strstr(said(), "random ones of the seed"));
    /* With weights in the folder these are where a run begins. */
    const char *again = in_temp("run2");
    EXPECT_INT(system(arena_printf(mem(), "%s/stator convert --to hf %s %s", BUILD_DIR,
                                   run[1], in_temp("hf"))),
               0);
    write_text(in_temp("weights.yaml"),
               arena_printf(mem(), "pretrained_model_dir: %s\n%s", in_temp("hf"), text));
    RUN_EXPECT(0, runs_words(in_temp("weights.yaml"), again, ""));
    SAID_EXPECT("weights.yaml:1: the weights are those of");
    EXPECT(!strstr(said(), "pretrained_model_dir has no effect"));
    RUN_EXPECT(EXIT_CONFIG, runs_words(in_temp("weights.yaml"), in_temp("run4"),
                                       "--model.model_config.model_type gpt2"));
    SAID_EXPECT("model.model_config.model_type is gpt2, but the weights of");
    const char *named = in_temp("run3");
    RUN_EXPECT(0, runs_words(in_temp("keys.yaml"), named,
                             arena_printf(mem(), "--init_from %s", in_temp("hf"))));
    runs_expect_same_losses(again, named, 3);
    write_text(in_temp("none.yaml"),
               arena_printf(mem(), "pretrained_model_dir: /nowhere\n%s", text));
    RUN_EXPECT(EXIT_CONFIG, runs_words(in_temp("none.yaml"), in_temp("run5"), ""));
    SAID_EXPECT("none.yaml:1:23: error: there is no folder /nowhere");
}

/* Plans are made before weights are there; training asks for them. */
TEST_LIMIT(a_plan_needs_no_weights, 120) {
    const char *config = in_temp("c.yaml");
    write_text(config, "run_mode: finetune\nload_checkpoint: /nowhere/weights\n"
                       "model: {model_config: {vocab_size: 256, hidden_size: 32,\n"
                       "num_layers: 2, num_heads: 2, seq_length: 32}}\n"
                       "train_dataset: {data_loader: {dataset_dir: embedded}}\n"
                       "runner_config: {max_steps: 1, batch_size: 2}\n");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s", config));
    SAID_EXPECT("c.yaml:2: there are no weights at /nowhere/weights");
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, in_temp("run"), ""));
    SAID_EXPECT("/nowhere/weights");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s --load_checkpoint null", config));
    RUN_EXPECT(EXIT_CONFIG, runs_words(config, in_temp("run"), "--load_checkpoint null"));
    SAID_EXPECT("run_mode finetune needs weights to start from");
}

/* What has no effect in training contradicts nothing afterwards. */
TEST_LIMIT(a_ratio_that_another_key_replaces, 120) {
    const char *config = in_temp("c.yaml"), *run = in_temp("run");
    const char *eval = arena_printf(mem(), "eval %s --data %s", run, in_temp("t.txt"));
    write_text(in_temp("t.txt"),
               "one and one is two, and two and two is four, and so on");
    write_text(config, "model: {model_config: {vocab_size: 256, hidden_size: 32,\n"
                       "num_layers: 1, num_heads: 2, seq_length: 32, expand_ratio: 4,\n"
                       "ffn_hidden_size: 96}}\n"
                       "train_dataset: {data_loader: {dataset_dir: embedded}}\n"
                       "runner_config: {max_steps: 1, batch_size: 2}\n");
    RUN_EXPECT(0, runs_words(config, run, ""));
    RUN_EXPECT(0, eval);
    const char *again = arena_printf(mem(),
                                     "--load_checkpoint %s "
                                     "--resume_training False",
                                     run);
    RUN_EXPECT(0, runs_words(config, in_temp("again"), again));
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "%s --model.model_config.ffn_hidden_size 64", eval));
    SAID_EXPECT("ffn_hidden_size is 64, but the weights of");
    /* What is wrong in the configuration of a run is told where it stands there. */
    write_text(path_join(mem(), run, "config.yaml"),
               "model:\n  model_config:\n    expand_ratio: 5\n");
    RUN_EXPECT(EXIT_CONFIG, eval);
    SAID_EXPECT("run/config.yaml:3:19: error: model.model_config.expand_ratio is 5");
}

static Config *parallel_config(const char *keys, const char *vocab) {
    Config *c = parse(arena_printf(mem(),
                                   "parallel_config: {pipeline_stage: 2, %s}\n"
                                   "model: {model_config: {vocab_size: %s}}",
                                   keys, vocab));
    strategy_of_config(c);
    return c;
}

TEST(whole_vocabularies_beside_stages_are_told) {
    const char *said = "MindFormers splits them";
    EXPECT(
        has_note(parallel_config("model_parallel: 2, vocab_emb_dp: True", "64"), said));
    /* MindFormers leaves whole what does not divide. */
    EXPECT(
        !has_note(parallel_config("model_parallel: 2, vocab_emb_dp: True", "65"), said));
    EXPECT(
        !has_note(parallel_config("model_parallel: 2, vocab_emb_dp: False", "64"), said));
    EXPECT(!has_note(parallel_config("model_parallel: 2", "64"), said));
    EXPECT(!has_note(parallel_config("vocab_emb_dp: True", "64"), said));
}

TEST(algorithms_of_context_parallelism_by_other_words) {
    static const struct {
        const char *word;
        ContextAlgo algo;
    } of[] = {{"ulysses_cp", CP_ULYSSES},
              {"colossalai_cp", CP_RING},
              {"hybrid_cp", CP_HYBRID},
              {"hybird_cp", CP_HYBRID}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        Config *c = parse(arena_printf(
            mem(), "parallel_config: {context_parallel_algo: %s}", of[i].word));
        EXPECT_INT(c->parallel_config_context_parallel_algo, of[i].algo);
        expect_round_trip(c);
    }
}

static const char documented[] =
    "remove_redundancy: False\n"
    "context: {save_graphs: 2}\n"
    "tensorboard: {tensorboard_dir: x, log_loss_scale_to_tensorboard: True}\n"
    "runner_wrapper: {scale_sense: {type: DynamicLossScaleUpdateCell,\n"
    "  use_clip_grad: False}}\n"
    "train_dataset: {column_order: [input_ids], transforms: None}\n"
    "recompute_config: {parallel_optimizer_comm_recompute: [[1, 2]]}\n"
    "parallel: {parallel_optimizer_config: {optimizer_weight_shard_size: -1}}\n"
    "moe_config: {expert_num: 1, shared_expert_num: 0, enable_sdrop: True,\n"
    "  first_k_dense_replace: 1, comp_comm_parallel: False}\n"
    "model: {model_config: {max_length: 64, max_new_tokens: 8, min_length: 0,\n"
    "  min_new_tokens: 0, return_dict_in_generate: False, output_scores: False,\n"
    "  output_logits: False}}\n"
    "callbacks:\n"
    "  - {type: MFLossMonitor, learning_rate: 1.e-4, micro_batch_num: 2,\n"
    "     micro_batch_interleave_num: 1, origin_epochs: 2, dataset_size: 10,\n"
    "     initial_epoch: 0, initial_step: 0, global_batch_size: 8,\n"
    "     gradient_accumulation_steps: 1, check_for_nan_in_loss_and_grad: False}\n";

TEST(keys_of_the_documentation_are_known) {
    Config *c = parse(documented);
    EXPECT(c->context_save_graphs && !c->runner_wrapper_use_clip_grad);
    EXPECT(c->model_max_decode_length == 64 && c->model_max_new_tokens == 8);
    EXPECT(has_note(c, "callbacks.MFLossMonitor.origin_epochs, "));
    EXPECT(has_note(c, "moe_config.enable_sdrop, "));
    EXPECT(!has_note(c, "optimizer_weight_shard_size") && !has_note(c, "transforms"));
    EXPECT(!has_note(c, "min_length") && !has_note(c, "output_scores"));
    expect_round_trip(c);
    EXPECT(!parse("context: {save_graphs: 0}")->context_save_graphs);
    EXPECT_FAIL(parse("context: {save_graphs: 4}"), EXIT_CONFIG, "0 to 3, not 4");
    EXPECT_FAIL(parse("profile: 1"), EXIT_CONFIG, "must be True or False");
    EXPECT_FAIL(parse("context: {jit_level: O1}"), EXIT_CONFIG, "did you mean auto?");
    EXPECT_FAIL(parse("parallel: {parallel_optimizer_config:\n"
                      "  {optimizer_weight_shard_size: -2}}"),
                EXIT_CONFIG, "must be -1 to 1048576");
    EXPECT_FAIL(parse("train_dataset: {transforms: [{type: Resize}]}"), EXIT_CONFIG,
                "is not there yet");
    EXPECT_FAIL(parse("callbacks:\n  - {type: MFLossMonitor,\n"
                      "     check_for_nan_in_loss_and_grad: True}"),
                EXIT_CONFIG, "runner_config.max_skipped_steps 1");
}

/* What training would refuse is refused where it stands. */
TEST(rates_that_cannot_be) {
    Config *c = parse("lr_schedule: {learning_rate: 1.e-6, lr_end: 1.e-6}");
    EXPECT(c->lr_schedule_lr_end == 1e-6);
    EXPECT_FAIL(parse("lr_schedule: {learning_rate: 1.e-6, lr_end: 1.e-5}"), EXIT_CONFIG,
                "t.yaml:1:45: error: learning_rate 1e-06 is below lr_end 1e-05");
    EXPECT_FAIL(
        parse("lr_schedule: {learning_rate: 0}"), EXIT_CONFIG,
        "t.yaml:1:30: error: lr_schedule.learning_rate must be above 0, up to 1000, "
        "not 0");
    EXPECT_FAIL(parse("lr_schedule: {num_cycles: 0}"), EXIT_CONFIG,
                "num_cycles must be above 0");
    EXPECT_FAIL(parse("lr_schedule: {type: polynomial, power: 0}"), EXIT_CONFIG,
                "power must be above 0");
}

/* -1 says that there is none, and no other number below 0 does. */
TEST(weight_decays_that_cannot_be) {
    Config *c = parse("optimizer: {start_weight_decay: -1, end_weight_decay: -1.0}");
    EXPECT(c->optimizer_start_weight_decay == -1 && c->optimizer_end_weight_decay == -1);
    EXPECT_FAIL(
        parse("optimizer: {start_weight_decay: -0.5}"), EXIT_CONFIG,
        "t.yaml:1:33: error: optimizer.start_weight_decay must be -1 or 0 to 1000, "
        "not -0.5");
    EXPECT_FAIL(parse("optimizer: {end_weight_decay: -2}"), EXIT_CONFIG,
                "end_weight_decay must be -1 or 0 to 1000");
    EXPECT_FAIL(parse("optimizer: {end_weight_decay: 1001}"), EXIT_CONFIG,
                "end_weight_decay must be -1 or 0 to 1000");
}

/* A key that acts as another one says so only where it does. */
TEST(one_line_for_a_key_that_acts_as_another) {
    Config *c = parse("runner_config: {gradient_accumulation_steps: 8}\n"
                      "parallel: {pipeline_stages: 2}\n"
                      "model: {model_config: {model_type: llama, type: GPT2Config}}");
    EXPECT(has_note(c, "pipeline_stages: acts as parallel_config.pipeline_stage"));
    EXPECT(!has_note(c, "gradient_accumulation_steps") && !has_note(c, "model_type"));
    strategy_of_config(c);
    EXPECT(has_note(c, "gradient_accumulation_steps has no effect: with a pipeline"));
    EXPECT(has_note(c, "model_type has no effect: type says what the model is"));
    c = parse("runner_config: {gradient_accumulation_steps: 8}");
    EXPECT(has_note(c, "acts as parallel_config.micro_batch_num"));
}

TEST(switches_of_mindspore) {
    Config *c = parse("context: {runtime_num_threads: 1}\n"
                      "parallel: {auto_pipeline: False}");
    EXPECT(has_note(c, "runtime_num_threads has no effect: context.threads says"));
    EXPECT(!has_note(c, "auto_pipeline"));
    EXPECT_FAIL(parse("parallel: {auto_pipeline: True}"), EXIT_CONFIG,
                "auto_pipeline True is refused: stator search finds the number of "
                "stages");
    EXPECT_STR(
        FLAGS("--train_dataset_dir", "a.txt")->train_dataset_data_loader_dataset_dir,
        "a.txt");
    EXPECT_FAIL(FLAGS("--gradient_accumulation_steps", "2"), EXIT_CONFIG,
                "did you mean parallel_config.micro_batch_num?");
}

/* The notes of one configuration about what MindFormers has otherwise. */
static bool notes(const char *text, const char *part) {
    Config *c = parse(text);
    strategy_of_config(c);
    return has_note(c, part);
}

TEST(defaults_that_mindformers_has_otherwise_are_told) {
    static const char *const of[][4] = {
        {"trainer: {type: A}", "optimizer.weight_decay", "0.1", "0.0"},
        {"use_parallel: True", "optimizer.beta2", "0.95", "0.999"},
        {"trainer: {type: A}", "runner_wrapper.use_clip_grad", "True", "False"},
        {"trainer: {type: A}\noptimizer: {type: FusedAdamWeightDecay}", "optimizer.eps",
         "1e-08", "1.e-6"},
        {"trainer: {type: A}\nlr_schedule: {type: polynomial}", "lr_schedule.lr_end", "0",
         "1.e-7"},
        {"trainer: {type: A}\nmodel: {model_config: {type: GPT2Config}}",
         "model.model_config.dropout_prob", "0", "0.1"}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        test_at("%s", of[i][1]);
        EXPECT(notes(of[i][0], arena_printf(mem(),
                                            "%s is not given: here it is %s, in "
                                            "MindFormers %s",
                                            of[i][1], of[i][2], of[i][3])));
    }
    static const char *const none[][2] = {
        {"run_mode: train", "in MindFormers"},
        {"trainer: {type: A}\nrun_mode: predict", "in MindFormers"},
        {"trainer: {type: A}\noptimizer: {weight_decay: 0.1}", "weight_decay"},
        {"trainer: {type: A}\noptimizer: {betas: [0.9, 0.95]}", "beta2 is"},
        {"trainer: {type: A}\noptimizer: {type: SGD}", "beta2"},
        {"trainer: {type: A}\nrunner_wrapper: {scale_sense: 1}", "use_clip_grad"},
        {"trainer: {type: A}\nmodel: {model_config: {type: LlamaConfig}}", "dropout"}};
    for (int i = 0; i < ARRAY_LEN(none); i++) {
        test_at("%s", none[i][0]);
        EXPECT(!notes(none[i][0], none[i][1]));
    }
}

TEST(micro_batches_without_stages_are_told) {
    const char *said = "micro_batch_num 8 counts without stages too";
    const char *file = "trainer: {type: A}\nparallel_config: {micro_batch_num: 8%s}%s";
    EXPECT(notes(arena_printf(mem(), file, "", ""), said));
    EXPECT(!notes(arena_printf(mem(), file, ", pipeline_stage: 2", ""), said));
    EXPECT(!notes(arena_printf(mem(), file, "",
                               "\nrunner_config: {gradient_accumulation_steps: 2}"),
                  said));
    EXPECT(!notes("parallel_config: {micro_batch_num: 8}", said));
    EXPECT(!notes("trainer: {type: A}\nparallel_config: {micro_batch_num: 1}",
                  "without stages"));
}
