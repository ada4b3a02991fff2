/* The plan of a configuration is the plan of its run: `stator plan` and `stator train`
 * make one program, whatever the model, the source of the data and the strategy, and
 * compare the same bytes with context.max_device_memory. */
#include "made_npy.h"
#include "ranks.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

static const char *hash_of(const Json *plan) {
    return json_string(json_need(plan, "plan_hash"));
}

/* What is computed again for a token; -1: nothing is said. */
static double remade_of(const Json *plan) {
    const Json *remade = json_get(plan, "remade_flops_per_token");
    return remade ? json_f64(remade) : -1;
}

static int64_t bytes_in(const Json *plan, const char *object, const char *name) {
    return json_i64(json_need(json_need(plan, object), name), 1, INT64_MAX);
}

static const char *limit_words(int64_t bytes) {
    return arena_printf(mem(), "--context.max_device_memory %lldB", (long long)bytes);
}

/* Planned under a limit that is far away, which shows what is compared with it. */
static const Json *plan_under_limit(int ranks, const char *words, int64_t *compared) {
    RUN_EXPECT(0, arena_printf(mem(), "plan %s --json -n %d --threads 1 %s", words, ranks,
                               limit_words((int64_t)1 << 50)));
    const char *text = strchr(said(), '{');
    EXPECT(text != NULL);
    const Json *plan = json_parse(mem(), "plan", text, strlen(text), 1 << 24, EXIT_DATA);
    int64_t total = bytes_in(plan, "memory_bytes", "total");
    const Json *pipe = json_get(plan, "pipeline");
    const Json *stages = pipe ? json_need(pipe, "stage") : NULL;
    for (const Json *s = stages ? stages->first : NULL; s; s = s->next) {
        int64_t of_stage = json_i64(json_need(s, "memory_bytes"), 1, INT64_MAX);
        if (of_stage > total) total = of_stage;
    }
    *compared = total + bytes_in(plan, "beside_bytes", "process") +
                bytes_in(plan, "beside_bytes", "batches_ahead");
    return plan;
}

static const char one_step[] = "--train_steps 1 --threads 1 --eval_iters 0 "
                               "--callbacks.CheckpointMonitor.save_checkpoint_steps 0";

/* The command's words are the same but for what a run alone needs. The run has not a byte
 * more than the plan asks for. */
static void same_plan(const char *what, int ranks, const char *words) {
    const char *run = in_temp("run");
    int64_t compared;
    const Json *plan = plan_under_limit(ranks, words, &compared);
    const char *planned = hash_of(plan);
    ranks_run(ranks, words, run,
              arena_printf(mem(), "%s %s", one_step, limit_words(compared)));
    const char *path = path_join(mem(), run, "plan.json");
    const Json *of_run = json_read(mem(), path, 1 << 24, EXIT_DATA);
    const char *made = hash_of(of_run);
    if (strcmp(planned, made))
        test_fail(__FILE__, __LINE__, "%s: planned %s, the run is %s\n%s", what, planned,
                  made, words);
    EXPECT(remade_of(plan) == remade_of(of_run));
    remove_all(run);
}

static const char *shipped(const char *name) {
    return arena_printf(mem(), "%s/../%s", tests_dir(), name);
}

/* A byte less than planned is refused by both. */
static void both_refuse(int ranks, const char *words) {
    int64_t compared;
    plan_under_limit(ranks, words, &compared);
    const char *less = limit_words(compared - 1);
    RUN_EXPECT(EXIT_MEMORY,
               arena_printf(mem(), "plan %s -n %d --threads 1 %s", words, ranks, less));
    SAID_EXPECT("MB besides, more than context.max_device_memory");
    ranks_end(ranks_start(ranks, words, in_temp("run"),
                          arena_printf(mem(), "%s %s", one_step, less)),
              EXIT_MEMORY, less);
    SAID_EXPECT("MB besides, more than context.max_device_memory");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n %d --threads 1 %s", words, ranks,
                               limit_words(compared)));
}

TEST_LIMIT(a_byte_less_than_planned, 120) {
    const char *config = shipped("configs/gpt2-tiny.yaml");
    both_refuse(1, config);
    both_refuse(2, config);
}

/* ---- what is shipped ---- */

TEST_LIMIT(small_configurations, 120) {
    static const char *const names[] = {"configs/gpt2-tiny.yaml",
                                        "configs/llama-tiny.yaml"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        same_plan(names[i], 1, shipped(names[i]));
        same_plan(names[i], 2,
                  arena_printf(mem(),
                               "%s --parallel_config.model_parallel 2 "
                               "--parallel_config.sequence_parallel True",
                               shipped(names[i])));
    }
    const char *again = arena_printf(mem(), "%s --recompute_config.recompute True",
                                     shipped("configs/gpt2-tiny.yaml"));
    same_plan("recomputed", 1, again);
    same_plan("recomputed", 2, again);
    same_plan("recomputed", 2,
              arena_printf(mem(), "%s --parallel_config.pipeline_stage 2", again));
}

static const char *texts(void) {
    const char *path = in_temp("texts.jsonl");
    Text t = text_new(mem());
    for (int i = 0; i < 60; i++)
        text_add(&t, "{\"text\": \"%d one and %d is %d\"}\n", i, i, 2 * i);
    write_text(path, t.s);
    return path;
}

/* Data of any numbers: the plan does not read them. */
static void zeros(const char *dir, const char *name, const char *descr, const char *shape,
                  size_t n) {
    npy_write(path_join(mem(), dir, arena_printf(mem(), "%s.npy", name)), descr, shape,
              NEW_ARRAY(mem(), char, n), n);
}

TEST_LIMIT(examples_of_own_models, 120) {
    const char *dir = in_temp("data");
    EXPECT(mkdir(dir, 0700) == 0);
    zeros(dir, "kind", "<i4", "(80,)", 80 * 4);
    zeros(dir, "labels", "<i4", "(80,)", 80 * 4);
    zeros(dir, "target", "<f4", "(80,)", 80 * 4);
    zeros(dir, "left", "<f4", "(80, 6)", 80 * 24);
    zeros(dir, "right", "<f4", "(80, 3)", 80 * 12);
    const char *examples[] = {"lstm", "classifier", "two_towers"};
    for (int i = 0; i < ARRAY_LEN(examples); i++) {
        if (i == 0) zeros(dir, "x", "<f4", "(80, 12, 4)", 80 * 192);
        if (i == 1) zeros(dir, "x", "<f4", "(80, 6)", 80 * 24);
        const char *config =
            shipped(arena_printf(mem(), "examples/%s/train.yaml", examples[i]));
        same_plan(examples[i], 1,
                  arena_printf(mem(), "%s --lr_schedule.warmup_steps 0 --dataset_dir %s",
                               config, dir));
        same_plan(
            examples[i], 2,
            arena_printf(
                mem(),
                "%s --lr_schedule.warmup_steps 0 --dataset_dir %s --parallel_config."
                "micro_batch_num 2 " ZERO_LEVEL(3),
                config, dir));
    }
}

/* The large ones, thin: their strategies, layers, vocabulary and source of data, on as many
 * ranks as they are for. */
TEST_LIMIT(large_configurations_thin, 240) {
    const char *prefix = in_temp("tokens");
    RUN_EXPECT(0, arena_printf(mem(),
                               "preprocess --input %s --output-prefix %s "
                               "--tokenizer-type ByteTokenizer",
                               texts(), prefix));
    const char *thin = arena_printf(mem(),
                                    "--dataset_dir %s_text_document "
                                    "--model.model_config.vocab_size 320 "
                                    "--model.model_config.seq_length 16 ",
                                    prefix);
    same_plan("gpt2_124m", 1,
              arena_printf(mem(),
                           "%s %s --model.model_config.hidden_size 48 "
                           "--model.model_config.eos_token 0",
                           shipped("configs/gpt2_124m.yaml"), thin));
    same_plan("gpt2_13b", 32,
              arena_printf(mem(),
                           "%s %s --model.model_config.hidden_size 80 "
                           "--model.model_config.num_layers 2",
                           shipped("configs/gpt2_13b.yaml"), thin));
    same_plan("run_gpt2_13b", 32,
              arena_printf(mem(),
                           "%s %s --model.model_config.hidden_size 80 "
                           "--model.model_config.num_layers 4 "
                           "--lr_schedule.warmup_steps 0 "
                           "--parallel_config.micro_batch_num 4 "
                           "--model.model_config.eos_token 0",
                           shipped("configs/gpt2/run_gpt2_13b.yaml"), thin));
}

/* ---- every source of tokens ---- */

static const char tiny[] =
    "--model.model_config.vocab_size 256 --model.model_config.seq_length 16 "
    "--model.model_config.hidden_size 16 --model.model_config.num_layers 2 "
    "--model.model_config.num_heads 2 --model.model_config.eos_token 0 "
    "--model.model_config.dropout_prob 0.1 --batch_size 2 ";

static void with_source(const char *type, const char *path, const char *more) {
    const char *words =
        arena_printf(mem(), "%s--train_dataset.data_loader.type %s --dataset_dir %s %s",
                     tiny, type, path, more);
    same_plan(type, 1, words);
    same_plan(type, 2,
              arena_printf(mem(), "%s --parallel_config.micro_batch_num 2 " ZERO_LEVEL(1),
                           words));
}

TEST_LIMIT(text_and_loose_json, 120) {
    with_source("TextFile", runs_text(), "");
    with_source("WebtextDataset", texts(),
                "--train_dataset.data_loader.tokenizer_type ByteTokenizer");
    with_source("WebtextDataset", texts(),
                "--train_dataset.data_loader.tokenizer_type ByteTokenizer "
                "--runner_wrapper.calculate_per_token_loss False");
}

TEST_LIMIT(indexed_tokens, 120) {
    const char *prefix = in_temp("made");
    RUN_EXPECT(0, arena_printf(mem(),
                               "preprocess --input %s --output-prefix %s "
                               "--tokenizer-type ByteTokenizer",
                               texts(), prefix));
    const char *pair = arena_printf(mem(), "%s_text_document", prefix);
    with_source("MegatronIndexed", pair, "");
    with_source("GPTDataset", pair, "");
    with_source("GPTDataset", pair,
                "--train_dataset.data_loader.reset_position_ids True "
                "--train_dataset.data_loader.reset_attention_mask True "
                "--train_dataset.data_loader.eod_mask_loss True");
}

/* Their batch and length are the file's. */
TEST_LIMIT(ready_batches, 120) {
    const char *config = runs_golden_config("gpt2_tiny");
    RUN_EXPECT(0,
               arena_printf(mem(), "plan %s --model.model_config.seq_length 8", config));
    SAID_EXPECT("seq_length 8 is not used");
    same_plan("TensorBatches", 1, config);
    same_plan("TensorBatches", 2,
              arena_printf(mem(), "%s --parallel_config.micro_batch_num 2", config));
    const char *ring = "--parallel_config.context_parallel 2 "
                       "--parallel_config.context_parallel_algo megatron_cp_algo";
    same_plan("TensorBatches", 2, arena_printf(mem(), "%s %s", config, ring));
}
