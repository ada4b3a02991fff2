/* Training steps of each family of Hugging Face's models over two ranks that split its
 * matrices and heads: the losses of one rank. */
#include "families.h"
#include "ranks.h"
#include "runtime/store/safetensors.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

enum { STEPS = 3, BATCH = 2, TOKENS = 21, VOCAB = 40 };

static const char yaml[] = "seed: 1\n"
                           "optimizer:\n  type: AdamW\n"
                           "lr_schedule:\n  type: constant\n  learning_rate: 3.e-3\n"
                           "init_from: %s\n"
                           "train_dataset:\n  data_loader:\n    type: TensorBatches\n"
                           "    dataset_dir: %s\n";

static const char *tokens_file(void) {
    static int64_t id[STEPS * BATCH * TOKENS];
    uint64_t state = 3;
    for (int i = 0; i < ARRAY_LEN(id); i++)
        id[i] = (int64_t)(runs_random(&state) >> 33) % VOCAB;
    SafeTensor t = {.name = "tokens",
                    .dtype = DT_I64,
                    .rank = 3,
                    .dim = {STEPS, BATCH, TOKENS},
                    .data = id};
    const char *path = in_temp("tokens.safetensors");
    EXPECT(!safetensors_write(path, &t, 1, NULL, NULL));
    return path;
}

static const char *config_of(const char *data, int i) {
    const char *config = in_temp(arena_printf(mem(), "%s.yaml", families[i].name));
    write_text(config, arena_printf(mem(), yaml, family_folder(mem(), i), data));
    return config;
}

static void one_family(const char *data, int i) {
    const char *one = in_temp("one"), *two = in_temp("two");
    const char *config = config_of(data, i);
    ranks_run(1, config, one, "");
    ranks_run(2, config, two, "--parallel_config.model_parallel 2");
    runs_expect_near_losses(one, two, STEPS);
    int n;
    const MetricsRow *row = runs_metrics(one, &n);
    EXPECT(row[0].loss > 3 && row[0].loss != row[STEPS - 1].loss);
    remove_all(one);
    remove_all(two);
}

TEST_LIMIT(two_ranks_train_as_one, 120) {
    static const char *const wanted[] = {"yarn",  "dynamic", "qwen2",
                                         "qwen3", "neox",    "neox_sequential"};
    const char *data = tokens_file();
    for (int i = 0; i < ARRAY_LEN(families); i++)
        for (int k = 0; k < ARRAY_LEN(wanted); k++)
            if (!strcmp(families[i].name, wanted[k])) one_family(data, i);
}

/* Norms of queries and keys have weights that all heads share, whoever has which heads. */
TEST_LIMIT(norms_of_heads_under_other_strategies, 120) {
    static const char *const words[] = {
        "--parallel_config.context_parallel 2",
        "--parallel_config.context_parallel 2 "
        "--parallel_config.context_parallel_algo megatron_cp_algo",
        "--parallel_config.model_parallel 2 --parallel_config.sequence_parallel True "
        "--recompute_config.recompute True",
        "--parallel_config.pipeline_stage 2 --parallel_config.micro_batch_num 2 "
        "--runner_config.batch_size 1"};
    int i = 0;
    while (strcmp(families[i].name, "qwen3")) i++;
    const char *config = config_of(tokens_file(), i), *one = in_temp("one");
    ranks_run(1, config, one, "");
    for (int k = 0; k < ARRAY_LEN(words); k++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", k));
        ranks_run(2, config, run, words[k]);
        runs_expect_near_losses(one, run, STEPS);
    }
}
