/* import.c - stator import: a command line of Megatron-LM as a configuration. */
#include "tests/import.h"
#include "command.h"
#include "frontend/config/key.h"
#include "tests/pages.h"

TEST(defaults_of_megatron_are_written) {
    const Config *c = config_of("");
    EXPECT(c->model_type == MODEL_GPT2 && c->model_num_layers == 8);
    EXPECT_INT(c->model_ffn_hidden_size, 768);
    EXPECT_INT(c->model_vocab_size, 1024); /* 1000, padded to a multiple of 128 */
    EXPECT(c->model_dropout_prob == 0.1 && c->model_hidden_dropout_prob == 0.1);
    EXPECT(c->model_attention_probs_dropout_prob == 0.1 && c->model_tie_word_embeddings);
    EXPECT_INT(c->parallel_config_data_parallel, 8);
    EXPECT_INT(c->parallel_config_micro_batch_num, 2);
    EXPECT_INT(c->runner_config_batch_size, 2);
    EXPECT_INT(c->runner_config_max_steps, 100);
    EXPECT(c->optimizer_type == OPTIMIZER_ADAMW && c->optimizer_beta2 == 0.999);
    EXPECT(c->optimizer_weight_decay == 0.01 && c->runner_wrapper_max_grad_norm == 1);
    EXPECT(c->lr_schedule_type == LR_LINEAR && c->lr_schedule_total_steps == 100);
    EXPECT(c->seed == 1234 && !c->runner_wrapper_calculate_per_token_loss);
    EXPECT(!c->parallel_config_optimizer_shard);
    EXPECT_INT(c->checkpoint_save_checkpoint_steps, 0);
}

TEST(products_that_are_split_are_summed_in_their_type) {
    static const struct {
        const char *words;
        bool narrow;
    } of[] = {{"--tensor-model-parallel-size 2", false},
              {"--bf16", true},
              {"--bf16 --tensor-model-parallel-size 2", true},
              {"--fp16 --tensor-model-parallel-size 2 --fp32-residual-connection", true}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        test_at("%s", of[i].words);
        EXPECT(config_of(of[i].words)->model_allreduce_activations_in_fp32 !=
               of[i].narrow);
    }
}

TEST(a_llama_under_every_kind_of_parallelism) {
    const Config *c = config_of(
        "--swiglu --normalization RMSNorm --use-rotary-position-embeddings "
        "--no-position-embedding --disable-bias-linear "
        "--untie-embeddings-and-output-weights "
        "--group-query-attention --num-query-groups 2 --bf16 --attention-dropout 0 "
        "--hidden-dropout 0 --tensor-model-parallel-size 2 "
        "--pipeline-model-parallel-size 2 "
        "--sequence-parallel --use-distributed-optimizer "
        "--num-layers-per-virtual-pipeline-stage "
        "2 --recompute-granularity full --recompute-method block --recompute-num-layers "
        "1 "
        "--data-path 0.3 a_text 0.7 b_text --split 90,5,5 --save there --save-interval "
        "10 "
        "--load there --lr-warmup-fraction 0.055 --lr-decay-style cosine "
        "--lr-decay-iters 200 "
        "--use-tp-pp-dp-mapping --distributed-timeout-minutes 3 --ddp-bucket-size "
        "1000000");
    EXPECT(c->model_type == MODEL_LLAMA && c->model_hidden_act == ACT_SWIGLU);
    EXPECT_INT(c->model_ffn_hidden_size, 512); /* 8/3 x 192 */
    EXPECT(c->model_n_kv_heads == 2 && !c->model_add_qkv_bias &&
           !c->model_add_bias_linear);
    EXPECT(c->model_compute_dtype == FLOAT_BF16 && !c->model_tie_word_embeddings);
    EXPECT_INT(c->model_vocab_size, 1024); /* a multiple of 128 x 2 */
    EXPECT_INT(c->parallel_config_data_parallel, 2);
    EXPECT_INT(c->parallel_config_micro_batch_num, 8);
    EXPECT(c->parallel_config_sequence_parallel && !c->parallel_config_vocab_emb_dp);
    EXPECT_INT(c->parallel_config_pp_interleave_num, 2);
    EXPECT(c->parallel_config_optimizer_shard);
    EXPECT_INT(c->parallel_parallel_optimizer_config_optimizer_level, ZERO_1);
    EXPECT_STR(c->recompute_config_recompute.items[0], "1");
    EXPECT_STR(c->parallel_config_rank_order, "tp-cp-pp-dp");
    EXPECT_INT(c->parallel_bucket_size, 4000000);
    EXPECT_INT(c->train_dataset_data_loader_data_path.n, 4);
    EXPECT_STR(c->train_dataset_data_loader_data_path.items[3], "b_text");
    EXPECT_STR(c->output_dir, "there");
    EXPECT(!c->resume_or_finetune_checkpoint[0] && !strcmp(c->resume, "auto"));
    EXPECT_INT(c->checkpoint_keep_checkpoint_max, 1000000);
    EXPECT_INT(c->lr_schedule_warmup_steps, 11);
    EXPECT(c->runner_config_hang_seconds == 180);
}

TEST(what_is_written_is_read_again) {
    char *text = text_of("--fp16 --hysteresis 4 --data-path \"it's\" --window-size 31,0");
    Config *c = config_parse(mem(), "made.yaml", text, strlen(text));
    Text again = text_new(mem());
    config_print_given(c, &again);
    EXPECT_STR(again.s, text);
    EXPECT(c->model_sliding_window == 32 && c->runner_wrapper_hysteresis == 4);
}

/* Megatron-LM goes on from --load alone. */
TEST(where_a_run_begins) {
    static const struct {
        const char *words, *resume, *weights;
    } of[] = {{"", "never", ""},
              {"--save a --save-interval 5", "never", ""},
              {"--save a --save-interval 5 --load a", "auto", ""},
              {"--save a --save-interval 5 --load b", "b", ""},
              {"--save a/b --save-interval 5 --load a/b/", "auto", ""},
              {"--save ./a//b --save-interval 5 --load a/./b", "auto", ""},
              {"--save /a --save-interval 5 --load a", "a", ""},
              {"--save a --save-interval 5 --load ../a", "../a", ""},
              {"--save a/b --save-interval 5 --load ab", "ab", ""},
              {"--save a/ --save-interval 5 --load ./a --finetune", "never", "./a"},
              {"--load b", "b", ""},
              {"--load= --save=", "never", ""}, /* "$CKPT" of a script, not set */
              {"--load b --finetune", "never", "b"},
              {"--load b --no-load-optim", "never", "b"},
              {"--save a --save-interval 5 --load a --finetune", "never", "a"},
              {"--save a --save-interval 5 --load a --no-load-optim", "never", "a"},
              {"--save a --save-interval 5 --load b --finetune", "never", "b"},
              {"--save a --save-interval 5 --finetune", "never", ""}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        const Config *c = config_of(of[i].words);
        EXPECT_STR(c->resume, of[i].resume);
        EXPECT_STR(c->init_from, of[i].weights);
    }
}

TEST(layers_with_embedding_and_head_counted) {
    const Config *c = config_of("--pipeline-model-parallel-size 2 --num-layers 6 "
                                "--account-for-embedding-in-pipeline-split "
                                "--account-for-loss-in-pipeline-split "
                                "--num-virtual-stages-per-pipeline-rank 2");
    static const int64_t want[] = {1, 2, 2, 1};
    EXPECT_INT(c->parallel_config_num_layer_list.rows, 2);
    for (int i = 0; i < 4; i++)
        EXPECT_INT(c->parallel_config_num_layer_list.items[i], want[i]);
}

/* Texts of --pipeline-model-parallel-layout for two stages, and layers of each chunk. */
TEST(layers_of_a_layout) {
    static const struct {
        const char *text;
        int chunks;
        int64_t layers[6];
    } good[] = {{"Ett|ttttL", 2, {2, 4}},
                {"Et*2|t*4,L", 2, {2, 4}},
                {"Et|tt|tt|tL", 4, {1, 2, 2, 1}},
                {"Et|(tt|)*2tL", 4, {1, 2, 2, 1}},
                {"E(t|)*5tL", 6, {1, 1, 1, 1, 1, 1}},
                {"E((t|)*2)*2t|tL", 6, {1, 1, 1, 1, 1, 1}},
                {"E(t|tt|)*1(t|)*0t*3L", 3, {1, 2, 3}},
                {"E|(tt|)*2|L", 5, {0, 2, 2, 0, 0}}};
    for (int i = 0; i < ARRAY_LEN(good); i++) {
        int chunks;
        int64_t *layers = megatron_layout(mem(), good[i].text, &chunks);
        EXPECT_INT(chunks, good[i].chunks);
        for (int k = 0; k < chunks; k++) EXPECT_INT(layers[k], good[i].layers[k]);
    }
    const Config *c = config_of("--pipeline-model-parallel-size 2 --num-layers 6 "
                                "--pipeline-model-parallel-layout Et|(tt|)*2tL");
    EXPECT_INT(c->parallel_config_pp_interleave_num, 2);
    EXPECT_INT(c->parallel_config_num_layer_list.rows, 2);
    for (int i = 0; i < 4; i++)
        EXPECT_INT(c->parallel_config_num_layer_list.items[i], good[2].layers[i]);
}

TEST(scripts_that_train_something_else) {
    EXPECT_FAIL((void)read_words("torchrun dir/pretrain_bert.py --num-layers 2", 1),
                EXIT_CONFIG, "pretrain_bert.py trains something else");
    EXPECT_FAIL((void)read_words("torchrun --nproc_per_node 2 --module X --lr 1", 0),
                EXIT_CONFIG, "no script was found: no word ends in .py, and 'torchrun'");
    EXPECT_FAIL((void)read_words("torchrun --nproc-per-node=gpu pretrain_gpt.py", 0),
                EXIT_CONFIG, "--nproc-per-node gpu: write the ranks");
}

TEST(parts_with_data_of_their_own) {
    const Config *c =
        config_of("--train-data-path 1 a_text 3 b_text --valid-data-path c_text");
    EXPECT(c->train_dataset_data_loader_type == LOADER_GPT_DATASET);
    EXPECT_STR(c->train_dataset_data_loader_data_path.items[3], "b_text");
    EXPECT_INT(c->train_dataset_data_loader_split.n, 0); /* all is train */
    EXPECT_STR(c->eval_dataset_data_loader_data_path.items[0], "c_text");
    c = config_of("--train-data-path a_text");
    EXPECT_STR(c->train_dataset_data_loader_split.items[1], "0"); /* no validation */
    REFUSED("--train-data-path a_text --data-path b_text", "leave these out");
    REFUSED("--train-data-path a_text --split 90,5,5", "leave these out");
    REFUSED("--valid-data-path a_text", "--train-data-path");
}

static void layout_fails(const char *text, const char *why) {
    int chunks;
    EXPECT_FAIL(megatron_layout(mem(), text, &chunks), EXIT_CONFIG, why);
}

TEST(layouts_that_are_refused) {
    static const char *const of[][2] = {
        {"Etttt|tttt", "L stands last, once"},
        {"tttt|ttttL", "E stands first, once"},
        {"Et|EttL", "E stands first, once"},
        {",", "E stands first, once"},
        {"Et*4|t*4,m,L", "m, layers for more tokens, are not there"},
        {"Et*4|t*4,xL", "write E, t and L"},
        {"E*|tL", "behind a '*' is how often"},
        {"E(tt|L", "a '(' without a ')'"},
        {"Ett)|L", "a ')' without a '('"},
        {"((((((((((((((((((t", "too many '('"},
        {"*3", "a '*' stands behind a letter or a ')'"},
        {"E(t)*2*2|tL", "a '*' stands behind a letter or a ')'"},
        {"Et*999999|tL", "up to 99999"},
        {"E((t*9999)*9999)*9999|tL", "too many layers"}};
    for (int i = 0; i < ARRAY_LEN(of); i++) layout_fails(of[i][0], of[i][1]);
    const char *two = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout";
    REFUSED(arena_printf(mem(), "%s Et*3|t*4L", two), "has 7 layers, --num-layers is 8");
    REFUSED(arena_printf(mem(), "%s Et*3|t*4|tL", two),
            "has 3 stages, --pipeline-model-parallel-size is 2");
    REFUSED("--pipeline-model-parallel-layout Et*3|t*5L",
            "has 2 stages, --pipeline-model-parallel-size is 1");
    REFUSED(arena_printf(mem(), "%s Et*3|t*5L --num-layer-list 3,5", two),
            "so does --num-layer-list: leave one out");
    EXPECT_STR(text_of("--pipeline-model-parallel-layout Et*8L"), text_of(""));
}

/* Of samples that are no whole steps; a warm-up begins at a rate of 0. */
TEST(schedules_in_samples) {
    Megatron *m = read_words(arena_printf(mem(),
                                          "%s--lr-warmup-samples 33 "
                                          "--lr-decay-samples 1000",
                                          base),
                             0);
    const Config *c = config_load(mem(), NULL, m->nkeys, m->key);
    EXPECT_INT(c->lr_schedule_warmup_steps, 2);
    EXPECT_INT(c->lr_schedule_total_steps, 31);
    EXPECT_INT(m->nnotes, 3);
    EXPECT_PART(m->note[1], "decay: 31.25 steps in Megatron-LM, 31 here");
    EXPECT_PART(m->note[2], "warm-up: 1.03125 steps in Megatron-LM, 2 here");
    c = config_of("--lr-warmup-samples 320");
    EXPECT_INT(c->lr_schedule_warmup_steps, 10);
    EXPECT_INT(config_of("--lr-warmup-fraction 0.001")->lr_schedule_warmup_steps, 1);
    c = config_of("--lr-decay-style constant --lr-decay-iters 200 --lr-warmup-iters 150");
    EXPECT_INT(c->lr_schedule_warmup_steps, 150);
    EXPECT_INT(c->lr_schedule_total_steps, 200);
    c = config_of("--lr-decay-style inverse-square-root --lr-warmup-iters 1");
    EXPECT(c->lr_schedule_type == LR_INVERSE_SQRT);
}

TEST(a_loss_scale_of_0_is_dynamic) {
    static const char dynamic[] = "--fp16 --initial-loss-scale 65536 --hysteresis 4";
    EXPECT_STR(text_of(arena_printf(mem(), "%s --loss-scale 0", dynamic)),
               text_of(dynamic));
    EXPECT_INT(config_of(dynamic)->runner_wrapper_hysteresis, 4);
}

TEST(lr_warmup_init_of_0_is_what_is_there) {
    EXPECT_STR(text_of("--lr-warmup-init 0.0"), text_of(""));
}

TEST(ranks_and_batches_that_do_not_go_together) {
    REFUSED("--tensor-model-parallel-size 3", "3 x 1 x 1 = 3 for a replica");
    REFUSED("--global-batch-size 24",
            "no multiple of --micro-batch-size 2 times 8 replicas");
    REFUSED("--micro-batch-size 0", "--micro-batch-size 0: write 1 or more");
    REFUSED("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "do not divide 8 layers");
    REFUSED("--use-distributed-optimizer --num-distributed-optimizer-instances 3",
            "3 does not divide 8 replicas");
    REFUSED("--tensor-model-parallel-size 1000000 --pipeline-model-parallel-size 1000000 "
            "--context-parallel-size 1000000",
            "does not divide them");
    EXPECT_FAIL(read_words("pretrain_gpt.py --micro-batch-size 1", 0), EXIT_CONFIG,
                "write -n RANKS before the command");
    EXPECT_FAIL(read_words("pretrain_gpt.py --num-layers 2", 8), EXIT_CONFIG,
                "--micro-batch-size is not there, which Megatron-LM needs");
    EXPECT_FAIL(read_words("--num-layers 2 stray.txt", 8), EXIT_CONFIG, "takes one word");
    EXPECT_FAIL(read_words("stray", 8), EXIT_CONFIG, "'stray' is no flag of Megatron-LM");
    EXPECT_FAIL(read_words("torchrun --nproc_per_node gpu pretrain_gpt.py", 0),
                EXIT_CONFIG, "--nproc_per_node gpu: write the ranks as -n RANKS");
}

TEST(launchers) {
    static const struct {
        const char *words;
        int64_t ranks;
    } of[] = {{"torchrun --nproc-per-node=8 --nnodes 4 a.py", 32},
              {"python -m torch.distributed.launch --nproc_per_node 8 a.py", 8},
              {"msrun --worker_num 16 --local_worker_num=8 a.py", 16},
              {"mpirun -np 6 python a.py", 6},
              {"srun -N 2 --ntasks-per-node=4 python -u a.py", 8},
              {"srun -N2 --ntasks-per-node=4 a.py", 8},
              {"srun -n 8 --ntasks-per-node=4 a.py", 8},
              {"srun -n8 a.py", 8},
              {"srun --ntasks=6 --ntasks-per-node=4 -N2 --cpus-per-task=2 a.py", 6},
              {"srun --ntasks-per-node=4 a.py", 0},
              {"srun -N2 a.py", 0},
              {"srun -N2 torchrun --nproc_per_node=4 a.py", 8},
              {"srun -n 2 --ntasks-per-node=1 torchrun --nproc_per_node=4 a.py", 8},
              {"srun -N 4 torchrun --nnodes 2 --nproc_per_node=4 a.py", 8},
              {"nice -n 10 torchrun --nproc_per_node 8 a.py", 8},
              {"srun -n 4 numactl -N 1 python a.py", 4},
              {"jsrun -n 2 -a 4 a.py", 0},
              {"conda run -n 4 python a.py", 0},
              {"srun -n 8 conda run -n myenv python a.py", 8},
              {"srun -J nice -n 8 a.py", 8},
              {"srun -n8 nice -n 10 python a.py", 8},
              {"srun -n 8 -l nice -n 10 python a.py", 8},
              {"mpirun -N 4 --host a,b a.py", 0},
              {"sudo -n torchrun --nproc_per_node 2 a.py", 2},
              {"torchrun --nproc_per_node gpu a.py", 0},
              {"python a.py", 0},
              {"", 0}};
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        char *word[16];
        int n = words_of(of[i].words, word, ARRAY_LEN(word));
        EXPECT_INT(megatron_read(mem(), n, word)->ranks, of[i].ranks);
    }
}

/* 256 bytes, a merge or none and the end of a text, of a tokenizer that is made here. */
TEST(vocabulary_of_files) {
    char *text = temp("text.txt"), *dir = temp("tok");
    write_text(text, "ab ab ab ab\n");
    run(cmd_tokenizer, "train", "--input", text, "--vocab-size", "258", "--output", dir,
        NULL);
    worked();
    const char *files = arena_printf(
        mem(), "--data-path a --vocab-file %s/vocab.json --merge-file %s/merges.txt", dir,
        dir);
    const Config *c =
        config_of(arena_printf(mem(), "%s --tokenizer-type GPT2BPETokenizer", files));
    EXPECT_INT(c->model_vocab_size, 384);
    EXPECT_STR(c->train_dataset_data_loader_vocab_file,
               arena_printf(mem(), "%s/vocab.json", dir));
    /* which are of no other type, as others are not of this one */
    c = config_of(files);
    EXPECT_INT(c->model_vocab_size, 1024);
    EXPECT_STR(c->train_dataset_data_loader_vocab_file, "");
    c = config_of(arena_printf(
        mem(), "--data-path a --tokenizer-type GPT2BPETokenizer --tokenizer-model %s",
        dir));
    EXPECT_INT(c->model_vocab_size, 1024);
    c = config_of(arena_printf(mem(),
                               "%s --tokenizer-type NullTokenizer --tokenizer-model %s "
                               "--eod-mask-loss",
                               files, dir));
    EXPECT_INT(c->model_vocab_size, 1024); /* 1001, padded */
    EXPECT_INT(c->train_dataset_data_loader_eod, 1000);
    EXPECT_STR(c->train_dataset_data_loader_vocab_file, "");
    c = config_of(arena_printf(mem(), "--data-path a --tokenizer-model %s", dir));
    EXPECT_INT(c->model_vocab_size, 384);
    EXPECT_STR(c->train_dataset_data_loader_tokenizer_file,
               arena_printf(mem(), "%s/tokenizer.json", dir));
    c = config_of(arena_printf(mem(), "--tokenizer-name-or-path %s", dir));
    EXPECT_INT(c->model_vocab_size, 384);
    EXPECT_FAIL(
        read_words("--micro-batch-size 1 --train-iters 1 --num-layers 1 --hidden-size 8 "
                   "--num-attention-heads 1 --seq-length 8 --lr 1",
                   1),
        EXIT_CONFIG, "how many tokens?");
}

/* Where something depends on it. */
TEST(ends_of_documents) {
    char *text = temp("text.txt"), *dir = temp("tok");
    write_text(text, "ab ab ab ab\n");
    run(cmd_tokenizer, "train", "--input", text, "--vocab-size", "258", "--output", dir,
        NULL);
    worked();
    static const char asks[] = "--data-path a --reset-position-ids";
    const struct {
        const char *words;
        int64_t eod;
    } rows[] = {{"--tokenizer-type NullTokenizer --vocab-size 50257", 50257},
                {"--tokenizer-type GPT2BPETokenizer --vocab-size 50257", 50256},
                {arena_printf(mem(), "--tokenizer-model %s", dir), 257},
                {"--tokenizer-type HuggingFaceTokenizer --vocab-size 400", -1}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        test_at("%s", rows[i].words);
        const Config *c = config_of(arena_printf(mem(), "%s %s", asks, rows[i].words));
        EXPECT_INT(c->train_dataset_data_loader_eod, rows[i].eod);
        c = config_of(arena_printf(mem(), "--data-path a %s", rows[i].words));
        EXPECT_INT(c->train_dataset_data_loader_eod, -1);
    }
}

TEST(gelu_without_a_fused_bias_is_told) {
    Megatron *m = read_words(arena_printf(mem(), "%s--no-bias-gelu-fusion", base), 0);
    EXPECT(m->nnotes == 2 && strstr(m->note[0], "the form with tanh"));
}

TEST(the_command) {
    char *file = temp("made.yaml");
    run(cmd_import, "-n", "2", "-o", file, "pretrain_gpt.py", "--num-layers=2",
        "--hidden-size", "64", "--num-attention-heads", "2", "--seq-length", "32",
        "--micro-batch-size", "1", "--train-iters", "2", "--lr", "1e-3",
        "--padded-vocab-size", "256", "--use-flash-attn", NULL);
    worked();
    EXPECT_STR(printed, "");
    char *text = file_read(mem(), file, 1 << 16, NULL, EXIT_DATA);
    EXPECT_PART(text, "# What pretrain_gpt.py of Megatron-LM was given");
    EXPECT_PART(text,
                "# --use-flash-attn has no effect: attention never holds all scores\n");
    EXPECT_PART(text, "  data_parallel: 2\n");
    run(cmd_plan, file, NULL);
    worked();
    EXPECT_PART(printed, "ranks     2");
    run(cmd_import, NULL);
    refused(EXIT_CONFIG, "which command?");
    run(cmd_import, "-o", "/nowhere/made.yaml", "pretrain_gpt.py", NULL);
    refused(EXIT_DATA, "/nowhere");
    run(cmd_import, "-n", "1", "a\nb.py", "--x", NULL);
    refused(EXIT_CONFIG, "--x is no flag of Megatron-LM");
}

/* Of keys that nobody wrote the flag is named, and a strategy that does not fit the model is refused
 * as plan refuses it. */
TEST(flags_that_do_not_go_with_the_model) {
    static const char *const of[][2] = {
        {"--position-embedding-type alibi",
         "stator: error: --position-embedding-type alibi: "
         "model.model_config.position_embedding_type"},
        {"--norm-epsilon x --rotary-base y", "stator: error: --rotary-base y: "},
        {"--norm-epsilon x --rotary-base y", "\nstator: error: --norm-epsilon x: "},
        {"--tensor-model-parallel-size 4 --group-query-attention --num-query-groups 2",
         "stator: error: --tensor-model-parallel-size 4: model_parallel cuts the heads "
         "of "
         "keys and values: 2 is not a multiple of 4\n    hint: a divisor of n_kv_heads"},
        {"--tensor-model-parallel-size 4 --num-attention-heads 6",
         "stator: error: --tensor-model-parallel-size 4: model_parallel cuts the "
         "attention heads: 6 is not a multiple of 4"},
        {"--context-parallel-size 3", "stator: error: --context-parallel-size 3: "}};
    static const char small[] =
        "import -n 12 pretrain_gpt.py --num-layers 4 --hidden-size 96 "
        "--num-attention-heads 12 --seq-length 64 --max-position-embeddings 64 "
        "--micro-batch-size 1 --train-iters 2 --lr 1e-3 --padded-vocab-size 256";
    for (int i = 0; i < ARRAY_LEN(of); i++) {
        char *word[64];
        test_at("%s", of[i][0]);
        int n = words_of(arena_printf(mem(), "%s %s", small, of[i][0]), word,
                         ARRAY_LEN(word));
        EXPECT_FAIL(cmd_import(n, word), EXIT_CONFIG, of[i][1]);
    }
}

TEST(the_page) {
    char *page;
    size_t bytes, committed;
    FILE *f = open_memstream(&page, &bytes);
    page_of_megatron(f);
    fclose(f);
    const char *path = path_join(mem(), tests_dir(), "../docs/megatron.md");
    if (test_bless()) EXPECT_INT(file_write_atomic(path, page, bytes), 0);
    const char *have = file_read(mem(), path, 1 << 20, &committed, EXIT_DATA);
    if (committed != bytes || memcmp(have, page, bytes))
        test_fail(__FILE__, __LINE__,
                  "docs/megatron.md is not what megatron.def and mindspeed.def say; "
                  "STATOR_BLESS=1 writes it");
}
