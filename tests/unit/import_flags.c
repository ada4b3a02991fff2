/* import_flags.c - stator import: every flag of Megatron-LM that is a row of the table. */
#include "frontend/config/key.h"
#include "tests/import.h"

/* Words with which a flag of kind OWN changes what becomes of `base`, with others before it where
 * it needs these. */
static const struct {
    MegatronId id;
    const char *with, *words;
} acting[] = {
#define ACT(name, with, words)                                                           \
    { MEGATRON_##name, with, words }
    ACT(num_layers, "", "4"),
    ACT(hidden_size, "", "384"),
    ACT(num_attention_heads, "", "3"),
    ACT(ffn_hidden_size, "", "100"),
    ACT(group_query_attention, "--num-query-groups 2", ""),
    ACT(num_query_groups, "--group-query-attention", "2"),
    ACT(seq_length, "", "32"),
    ACT(max_position_embeddings, "", "128"),
    ACT(position_embedding_type, "", "none"),
    ACT(use_rotary_position_embeddings, "", ""),
    ACT(no_position_embedding, "", ""),
    ACT(use_rope_scaling, "--position-embedding-type rope", ""),
    ACT(rope_scaling_type, "--position-embedding-type rope", "llama3"),
    ACT(rope_scaling_factor, "--position-embedding-type rope --use-rope-scaling", "32"),
    ACT(rotary_seq_len_interpolation_factor, "--position-embedding-type rope", "2"),
    ACT(swiglu, "", ""),
    ACT(disable_bias_linear, "", ""),
    ACT(add_qkv_bias, "--disable-bias-linear", ""),
    ACT(untie_embeddings_and_output_weights, "", ""),
    ACT(attention_dropout, "", "0.2"),
    ACT(hidden_dropout, "", "0.2"),
    ACT(window_size, "", "15,0"),
    ACT(sliding_window, "", "15"),
    ACT(padded_vocab_size, "", "1001"),
    ACT(vocab_size, "", "3000"),
    ACT(make_vocab_size_divisible_by, "", "10"),
    ACT(tokenizer_type, "--vocab-size 1024", "NullTokenizer"),
    ACT(micro_batch_size, "", "4"),
    ACT(global_batch_size, "", "64"),
    ACT(train_iters, "", "50"),
    ACT(train_samples, "--train-iters 0", "640"),
    ACT(seed, "", "7"),
    ACT(calculate_per_token_loss, "", ""),
    ACT(eval_interval, "", "7"),
    ACT(eval_iters, "", "7"),
    ACT(log_interval, "", "7"),
    ACT(optimizer, "", "sgd"),
    ACT(lr, "", "2e-3"),
    ACT(min_lr, "", "1e-4"),
    ACT(lr_decay_style, "", "cosine"),
    ACT(lr_decay_iters, "", "70"),
    ACT(lr_decay_samples, "", "640"),
    ACT(lr_warmup_fraction, "", "0.1"),
    ACT(lr_warmup_iters, "", "10"),
    ACT(lr_warmup_samples, "", "320"),
    ACT(lr_wsd_decay_style, "--lr-decay-style WSD --lr-wsd-decay-iters 10", "linear"),
    ACT(lr_wsd_decay_iters, "--lr-decay-style WSD --lr-wsd-decay-iters 20", "10"),
    ACT(lr_wsd_decay_samples, "--lr-decay-style WSD --lr-wsd-decay-samples 640", "320"),
    ACT(weight_decay, "", "0.1"),
    ACT(clip_grad, "", "0"),
    ACT(adam_beta1, "", "0.8"),
    ACT(adam_beta2, "", "0.95"),
    ACT(adam_eps, "", "1e-5"),
    ACT(sgd_momentum, "--optimizer sgd", "0.5"),
    ACT(bf16, "", ""),
    ACT(fp16, "", ""),
    ACT(loss_scale, "--fp16", "1024"),
    ACT(initial_loss_scale, "--fp16", "1024"),
    ACT(min_loss_scale, "--fp16", "2"),
    ACT(loss_scale_window, "--fp16", "100"),
    ACT(hysteresis, "--fp16", "3"),
    ACT(tensor_model_parallel_size, "", "2"),
    ACT(pipeline_model_parallel_size, "", "2"),
    ACT(context_parallel_size, "", "2"),
    ACT(cp_comm_type, "--context-parallel-size 2", "a2a"),
    ACT(hierarchical_context_parallel_sizes,
        "--context-parallel-size 8 --cp-comm-type a2a+p2p "
        "--hierarchical-context-parallel-sizes 4 2",
        "2 4"),
    ACT(context_parallel_algo, "--context-parallel-size 2", "ulysses_cp_algo"),
    ACT(ulysses_degree_in_cp,
        "--context-parallel-size 4 --cp-comm-type a2a+p2p "
        "--hierarchical-context-parallel-sizes 4 1",
        "2"),
    ACT(sequence_parallel, "--tensor-model-parallel-size 2", ""),
    ACT(num_layers_per_virtual_pipeline_stage, "--pipeline-model-parallel-size 2", "2"),
    ACT(num_virtual_stages_per_pipeline_rank, "--pipeline-model-parallel-size 2", "2"),
    ACT(decoder_first_pipeline_num_layers, "--pipeline-model-parallel-size 2", "3"),
    ACT(decoder_last_pipeline_num_layers, "--pipeline-model-parallel-size 2", "3"),
    ACT(account_for_embedding_in_pipeline_split,
        "--pipeline-model-parallel-size 2 --num-layers 7", ""),
    ACT(account_for_loss_in_pipeline_split,
        "--pipeline-model-parallel-size 2 --num-layers 7", ""),
    ACT(pipeline_model_parallel_layout, "--pipeline-model-parallel-size 2",
        "Ettt|tttttL"),
    ACT(num_layer_list, "--pipeline-model-parallel-size 2", "[3,5]"),
    ACT(use_tp_pp_dp_mapping, "", ""),
    ACT(use_distributed_optimizer, "", ""),
    ACT(num_distributed_optimizer_instances, "--use-distributed-optimizer", "2"),
    ACT(use_megatron_fsdp, "--data-parallel-sharding-strategy optim_grads", ""),
    ACT(data_parallel_sharding_strategy, "--use-megatron-fsdp", "optim_grads_params"),
    ACT(use_torch_fsdp2, "", ""),
    ACT(torch_fsdp2_no_reshard_after_forward, "--use-torch-fsdp2", ""),
    ACT(ddp_bucket_size, "", "100000"),
    ACT(distributed_timeout_minutes, "", "3"),
    ACT(recompute_activations, "", ""),
    ACT(recompute_granularity, "", "selective"),
    ACT(recompute_method,
        "--recompute-granularity full --recompute-num-layers 1 "
        "--recompute-method block",
        "uniform"),
    ACT(recompute_num_layers,
        "--recompute-granularity full --recompute-method block "
        "--recompute-num-layers 1",
        "2"),
    ACT(checkpoint_activations, "", ""),
    ACT(checkpoint_num_layers, "--checkpoint-activations", "2"),
    ACT(activations_checkpoint_method, "", "block"),
    ACT(activations_checkpoint_num_layers, "--activations-checkpoint-method block", "2"),
    ACT(data_path, "", "a_text"),
    ACT(split, "--data-path a_text", "90,5,5"),
    ACT(train_data_path, "", "a_text"),
    ACT(valid_data_path, "--train-data-path a_text", "b_text"),
    ACT(data_cache_path, "--data-path a_text", "there"),
    ACT(save, "--save-interval 5", "there"),
    ACT(save_interval, "--save there --persistent-save-interval 7", "5"),
    ACT(persistent_save_interval, "--save there --persistent-save-interval 4", "5"),
    ACT(load, "", "there"),
    ACT(finetune, "--load there", ""),
    ACT(no_load_optim, "--load there", ""),
    ACT(accumulate_allreduce_grads_in_fp32, "--fp16", ""),
    ACT(grad_reduce_in_bf16, "--bf16", ""),
    ACT(profile, "", ""),
    ACT(profile_step_start, "--profile", "3"),
    ACT(profile_step_end, "--profile", "30"),
};

/* These act on files, on messages or on notes, and have tests of their own. */
static const MegatronId elsewhere[] = {
    MEGATRON_vocab_file,          MEGATRON_merge_file,
    MEGATRON_tokenizer_model,     MEGATRON_tokenizer_name_or_path,
    MEGATRON_no_bias_gelu_fusion, MEGATRON_spec};

static bool has_own_test(int id) {
    for (int i = 0; i < ARRAY_LEN(elsewhere); i++)
        if (elsewhere[i] == (MegatronId)id) return true;
    return false;
}

TEST(every_flag_acts) {
    bool seen[MEGATRON_FLAGS] = {false};
    for (int i = 0; i < ARRAY_LEN(acting); i++) {
        const char *name = megatron_name(mem(), (int)acting[i].id);
        char *before = text_of(acting[i].with);
        char *after = text_of(
            arena_printf(mem(), "%s %s %s", acting[i].with, name, acting[i].words));
        if (!strcmp(before, after))
            test_fail(__FILE__, __LINE__, "%s changes nothing", name);
        seen[acting[i].id] = true;
    }
    for (int i = 0; i < MEGATRON_FLAGS; i++)
        if (megatron_flag[i].kind == MEGATRON_OWN && !seen[i] && !has_own_test(i))
            test_fail(__FILE__, __LINE__, "%s is not tried", megatron_name(mem(), i));
}

TEST(rows_of_the_table) {
    for (int i = 0; i < MEGATRON_FLAGS; i++) {
        const MegatronFlag *f = &megatron_flag[i];
        const char *name = megatron_name(mem(), i);
        bool valued = f->kind == MEGATRON_ONLY || (f->kind == MEGATRON_TO && !f->words);
        EXPECT(f->what[0]);
        if (!f->value[0] != !valued)
            test_fail(__FILE__, __LINE__, "%s: the value '%s' does not go with its kind",
                      name, f->value);
        if (f->kind == MEGATRON_TO && key_find(f->what) < 0)
            test_fail(__FILE__, __LINE__, "%s: no key is called %s", name, f->what);
        for (int k = 0; k < i; k++) EXPECT(strcmp(f->name, megatron_flag[k].name));
    }
}

TEST(refused_flags) {
    REFUSED("--num-experts 8",
            "--num-experts asks for what is not there: mixtures of experts");
    REFUSED("--expert-model-parallel-size 2", "only 1 is");
    REFUSED("--softmax-type learnable", "only vanilla is");
    REFUSED("--overlap-grad-reduc", "did you mean --overlap-grad-reduce?");
    REFUSED("--hidden_sise 3", "did you mean --hidden-size?");
    REFUSED("--log-interval --bf16", "--log-interval has no value");
    REFUSED("--lr", "\"${ARRAY[@]}\" expands to all words");
    REFUSED("--bf16 yes", "--bf16 takes no word, and has 1 behind it");
    REFUSED("--lr 1 2", "--lr takes one word, and has 2 behind it");
    REFUSED("--lr 1e-3 \\ --bf16", "only a backslash");
    REFUSED("--moe-router-topk 8", "not there: mixtures of experts");
    REFUSED("--save there", "--save needs --save-interval");
    REFUSED("--fp16 --bf16", "keep one");
    REFUSED("--optimizer muon", "adam and sgd are");
    REFUSED("--lr-decay-style steps", "inverse-square-root or WSD");
    REFUSED("--position-embedding-type relative", "position_embedding_type");
    REFUSED("--position-embedding-type rope --rope-scaling-type yarn", "llama3 is");
    REFUSED("--lr-decay-style WSD", "--lr-wsd-decay-iters is not there");
    REFUSED("--lr-warmup-init 0.1", "only 0 is");
    REFUSED("--lr-warmup-iters 3 --lr-warmup-fraction 0.1", "keep one");
    REFUSED("--train-samples 640", "--train-iters and --train-samples");
    REFUSED("--window-size 5,1", "write the keys before a query and 0");
    REFUSED("--recompute-granularity full", "needs --recompute-method block or uniform");
    REFUSED("--cp-comm-type p2p a2a --context-parallel-size 2",
            "other types of other layers");
    REFUSED("--cp-comm-type allgather --context-parallel-size 2",
            "p2p, a2a and a2a+p2p are");
    REFUSED("--hidden-size x", "--hidden-size x: write a whole number");
    REFUSED("--hidden-size -3", "--hidden-size -3: write a whole number");
    REFUSED("--adam-beta2 nan --lr-warmup-fraction nan", "write a number");
    REFUSED("--lr-decay-style inverse-square-root", "over the root of the global batch");
    REFUSED("--lr-decay-style WSD --lr-warmup-iters 60 --lr-wsd-decay-iters 41",
            "a warm-up of 60 steps and a WSD decay of 41 overlap in 100");
    REFUSED("--mid-level-dataset-surplus 0.5", "only 0.005 is");
    REFUSED("--window-size 5,0 --sliding-window 5", "keep one");
    REFUSED("--recompute-modules core_attn mlp",
            "--recompute-modules mlp asks for what is not there");
    REFUSED("--recompute-modules moe core_attn mlp", "--recompute-modules moe mlp asks");
}

/* Flags of MindSpeed-LLM that change the model. */
TEST(models_that_are_not_there) {
    static const char *const of[] = {"geglu",
                                     "add-rmsnorm-offset",
                                     "input-embeds-norm",
                                     "gelu-tanh",
                                     "post-norm",
                                     "query-pre-attn-scalar 256",
                                     "output-logit-softcapping 30.0",
                                     "attn-logit-softcapping 50.0",
                                     "interleave-sliding-window 4096",
                                     "embed-layernorm",
                                     "use-glm-rope",
                                     "scale-emb 12",
                                     "scale-depth 1.4",
                                     "dim-model-base 256",
                                     "add-output-layer-bias",
                                     "no-post-layer-norm",
                                     "square-alibi-mask",
                                     "cla-share-factor 2",
                                     "multi-head-latent-attention",
                                     "o2-gradient",
                                     "main-grads-dtype bf16",
                                     "no-shuffle",
                                     "is-instruction-dataset",
                                     "stage sft"};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        test_at("%s", of[i]);
        REFUSED(arena_printf(mem(), "--%s", of[i]), "asks for what is not there: ");
    }
}

/* A query sees those before it, and itself. */
TEST(windows) {
    EXPECT_INT(config_of("--sliding-window 15")->model_sliding_window, 16);
    EXPECT_INT(config_of("--window-size 15,0")->model_sliding_window, 16);
    EXPECT_STR(text_of("--sliding-window 15"), text_of("--window-size 15,0"));
}

TEST(flags_that_change_nothing) {
    EXPECT_STR(
        text_of(
            "--handler-name GeneralPretrainHandler --workers 4 --enable-hf2mg-convert "
            "--model-type-hf qwen3 --tokenizer-padding-side left --cp-window-size 2 "
            "--sparse-mode 4 --use-persistent-ckpt-worker "
            "--dist-ckpt-optim-fully-reshardable --tokenizer-library huggingface "
            "--log-device-memory-used --enable-gloo-process-groups "
            "--high-priority-stream-groups dp tp --DDP-impl local --data-impl mmap "
            "--no-query-key-layer-scaling --fp8-margin 0 "
            "--recompute-modules core_attn --main-grads-dtype fp32"),
        text_of(""));
}

/* Words of older versions, and blocks of more layers than a chunk has. */
TEST(layers_that_are_made_again) {
    static const struct {
        const char *words, *layers;
        bool uniform;
    } of[] = {
        {"--checkpoint-activations", "1", true},
        {"--checkpoint-activations --checkpoint-num-layers 2", "2", true},
        {"--activations-checkpoint-method block --activations-checkpoint-num-layers 3",
         "3", false},
        {"--activations-checkpoint-method uniform", "1", true},
        {"--recompute-granularity full --recompute-method block --recompute-num-layers "
         "80",
         "8", false},
        {"--recompute-granularity full --recompute-method block --recompute-num-layers "
         "80 "
         "--pipeline-model-parallel-size 2",
         "4", false},
        {"--recompute-granularity full --recompute-method block --recompute-num-layers 3 "
         "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2",
         "2", false},
        {"--recompute-granularity full --recompute-method block --recompute-num-layers 1 "
         "--pipeline-model-parallel-size 2",
         "1", false},
        {"--recompute-granularity full --recompute-method uniform --recompute-num-layers "
         "8 "
         "--pipeline-model-parallel-size 2",
         "8", true}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        test_at("%s", of[i].words);
        const Config *c = config_of(of[i].words);
        EXPECT_STR(c->recompute_config_recompute.items[0], of[i].layers);
        EXPECT((c->recompute_config_recompute_method == RECOMPUTE_UNIFORM) ==
               of[i].uniform);
    }
}

TEST(layers_of_a_python_module) {
    static const char name[] = "--spec mindspeed_llm.tasks.models.spec.qwen3_spec";
    EXPECT_STR(text_of(arena_printf(mem(), "%s layer_spec --qk-layernorm", name)),
               text_of("--qk-layernorm"));
    REFUSED(arena_printf(mem(), "%s layer_spec", name), "with --qk-layernorm alone");
    REFUSED(arena_printf(mem(), "%s --qk-layernorm", name), "write a model.file");
    REFUSED("--spec megatron.core.models.mamba.mamba_layer_specs stack --qk-layernorm",
            "not there: layers by a Python module");
}

/* A line for each, in their order. */
TEST(all_mistakes_of_flags_are_told) {
    REFUSED("--overlap-grad-reduc --hidden_sise 3 4 --lr 1 2 --geglu",
            "did you mean --overlap-grad-reduce? Or leave it out, if it changes nothing "
            "that is computed (docs/megatron.md lists those that are known)\n"
            "stator: error: --hidden_sise is no flag");
    REFUSED("--xxa --lr 1 2 --geglu",
            "\nstator: error: --lr takes one word, and has 2 behind it\n"
            "stator: error: --geglu asks for");
    Text many = text_new(mem());
    for (int i = 0; i < 23; i++) text_add(&many, " --unknown-%d", i);
    REFUSED(many.s, "--unknown-19 is no flag");
    REFUSED(many.s, "\nand 3 more errors");
}
