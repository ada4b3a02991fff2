/* Tests of recomputation in real runs: layers that are made again differ from layer to
 * layer, between the halves of a run and from its validation and checkpoints to its
 * prediction. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);

#define AGAIN(what) "--recompute_config.recompute " what " "

static const struct {
    int ranks;
    const char *words;
} after[] = {
    {1, AGAIN("3") "--recompute_config.select_recompute norm,act"},
    {1, ""},
    {2, AGAIN("True") "--parallel_config.model_parallel 2"},
    {2, AGAIN("True") "--recompute_config.mp_comm_recompute False "
                      "--parallel_config.sequence_parallel True "
                      "--parallel_config.model_parallel 2"},
    {1, AGAIN("2") "--recompute_config.recompute_method uniform"},
    {2, AGAIN("[1,2]") "--parallel_config.pipeline_stage 2 "
                       "--parallel_config.micro_batch_num 2"},
    {2, AGAIN("1") "--parallel_config.data_parallel 2 " ZERO_LEVEL(3)},
};

static void expect_golden(const char *name, int ranks, const char *first) {
    const char *config = runs_golden_config(name), *half = in_temp("half");
    double worst = 0;
    ranks_run(ranks, config, half, first);
    for (int i = 0; i < ARRAY_LEN(after); i++) {
        /* sanitized, each follows one of the two runs */
        if (RANKS_SANITIZED && !test_long() && i % 2 != (ranks > 1)) continue;
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        EXPECT_INT(system(arena_printf(mem(), "cp -r '%s' '%s'", half, run)), 0);
        ranks_run(after[i].ranks, config, run, after[i].words);
        SAID_EXPECT("resumed after step 10");
        worst = fmax(worst, ranks_expect_curve(name, run, after[i].words));
        remove_all(run);
    }
    remove_all(half);
    printf("  worst relative loss %.2g\n", worst);
}

/* One stage has several arguments for a stacked parameter. */
TEST_LABEL_OF(one_rank_then_others, RELEASED);
TEST_LIMIT(one_rank_then_others, 240) {
    expect_golden("gpt2_tiny", 1, AGAIN("2") "--runner_config.max_steps 10");
}

TEST_LIMIT(several_ranks_then_others, 240) {
    expect_golden("llama_tiny", 4,
                  AGAIN("1") "--parallel_config.data_parallel 2 "
                             "--parallel_config.model_parallel 2 " ZERO_LEVEL(
                                 1) "--runner_config.max_steps 10");
}

static double validation_loss(const char *run) {
    size_t n;
    const char *path = path_join(mem(), run, "valid.jsonl");
    const char *text = file_read(mem(), path, 1 << 16, &n, EXIT_DATA);
    const char *loss = strstr(text, "\"valid_loss\":");
    EXPECT(loss);
    return strtod(loss + strlen("\"valid_loss\":"), NULL);
}

/* The same weights whichever way the layers are cut: initial ones and those that
 * validation reads. */
TEST_LIMIT(cut_layers_are_the_same_model, 120) {
    const char *config = runs_small_config(4, 4), *one = in_temp("one");
    const char *two = in_temp("two");
    const char *words = "--runner_config.eval_interval 2 --runner_config.eval_iters 2 "
                        "--train_dataset.data_loader.split 8,2 ";
    ranks_run(1, config, one, arena_printf(mem(), "%s" AGAIN("True"), words));
    ranks_run(1, config, two, arena_printf(mem(), "%s" AGAIN("1"), words));
    runs_expect_near_losses(one, two, 4);
    EXPECT_NEAR(validation_loss(one), validation_loss(two), 1e-6);
    remove_all(one);
    remove_all(two);
}

/* Rank 0 chooses for all: losses are those without, and a line says what was chosen. */
TEST_LIMIT(auto_on_ranks, 120) {
    static const char *const words[] = {
        "--parallel_config.pipeline_stage 2 --parallel_config.micro_batch_num 4 ",
        "--parallel_config.data_parallel 2 --runner_config.batch_size 16 "};
    if (RANKS_SANITIZED) test_skip("the sanitizer's own memory is not in the plan");
    const char *config = path_join(mem(), tests_dir(), "../configs/gpt2-tiny.yaml");
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        const char *one = in_temp("one"), *two = in_temp("two");
        const char *all = arena_printf(mem(), "%s--runner_config.max_steps 2 ", words[i]);
        ranks_run(2, config, one, all);
        ranks_run(2, config, two,
                  arena_printf(mem(),
                               "%s" AGAIN("auto") "--context.max_device_memory 109MB",
                               all));
        SAID_EXPECT("recompute auto: ");
        SAID_EXPECT("full,-");
        runs_expect_near_losses(one, two, 2);
        remove_all(one);
        remove_all(two);
    }
}
