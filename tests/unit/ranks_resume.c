/* Tests of going on with a run on several MPI ranks: under another strategy along the
 * same curve, under the same one with the same bits. */
#include "ranks.h"

TEST_LABEL(RANKS);

/* ---- under another strategy ---- */

#define HALF_WAY                                                                         \
    "--parallel_config.data_parallel 2 --parallel_config.model_parallel 2 "              \
    "--runner_config.max_steps 10 "

static const struct {
    int ranks;
    const char *words;
} after[] = {
    {4, "--parallel_config.data_parallel 4"},
    {4, "--parallel_config.model_parallel 4 --parallel_config.vocab_emb_dp False"},
    {1, ""},
    {2, "--parallel_config.context_parallel 2 " ZERO_LEVEL(3)},
};

static void copy_run(const char *from, const char *to) {
    EXPECT_INT(system(arena_printf(mem(), "cp -r '%s' '%s'", from, to)), 0);
}

/* Ten steps on 2 x 2 ranks, ten more under each other strategy. */
static void resume_under_others(const char *name, const char *first) {
    const char *config = runs_golden_config(name), *half = in_temp("half");
    double worst = 0;
    ranks_run(4, config, half, first);
    for (int i = 0; i < ARRAY_LEN(after); i++) {
        if (strstr(after[i].words, "model_parallel 4") && strstr(name, "llama")) continue;
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        copy_run(half, run);
        ranks_run(after[i].ranks, config, run, after[i].words);
        SAID_EXPECT("resumed after step 10");
        worst = fmax(worst, ranks_expect_curve(name, run, after[i].words));
        remove_all(run);
    }
    printf("  worst relative loss %.2g\n", worst);
}

TEST_LABEL_OF(resume_gpt2_under_other_strategies, RELEASED);
TEST_LIMIT(resume_gpt2_under_other_strategies, 120) {
    resume_under_others("gpt2_tiny", HALF_WAY);
}

/* Two heads of keys: no tp 4. Saved with split states and a split vocabulary. */
TEST_LABEL_OF(resume_llama_under_other_strategies, RELEASED);
TEST_LIMIT(resume_llama_under_other_strategies, 120) {
    resume_under_others("llama_tiny", HALF_WAY
                        "--parallel_config.vocab_emb_dp False "
                        "--parallel_config.sequence_parallel True " ZERO_LEVEL(1));
}

static void resume_under_same(int ranks, const char *words) {
    const char *config = runs_small_config(12, 6), *whole = in_temp("whole");
    const char *run = in_temp("run");
    const char *half = arena_printf(mem(),
                                    "--runner_config.max_steps 6 "
                                    "--lr_schedule.total_steps 12 %s",
                                    words);
    const char *all = arena_printf(mem(), "--lr_schedule.total_steps 12 %s", words);
    ranks_run(ranks, config, whole, all);
    ranks_run(ranks, config, run, half);
    ranks_run(ranks, config, run, all);
    SAID_EXPECT("resumed after step 6");
    runs_expect_same_losses(whole, run, 12);
    runs_expect_same_tensors(whole, run, 12);
    remove_all(whole);
    remove_all(run);
}

TEST_LABEL_OF(resume_under_the_same_strategy_gives_the_same_bits, RELEASED);
TEST_LIMIT(resume_under_the_same_strategy_gives_the_same_bits, 120) {
    resume_under_same(4, "--parallel_config.model_parallel 2 "
                         "--parallel_config.data_parallel 2 " ZERO_LEVEL(1));
    resume_under_same(2, "--parallel_config.context_parallel 2 " ZERO_LEVEL(3));
    resume_under_same(2, "--parallel_config.data_parallel 2 " ZERO_LEVEL(2));
    resume_under_same(2, "--parallel_config.data_parallel 2 ");
}

/* States cut into more parts than the whole weights have padding, which no collective ahead of the
 * step hides: 15 biases of two ranks, 3 ranks of everything. */
TEST_LABEL_OF(parts_that_do_not_divide, RELEASED);
TEST_LIMIT(parts_that_do_not_divide, 180) {
    static const char odd[] =
        "--model.model_config.ffn_hidden_size 15 --runner_config.batch_size 1 ";
    static const char *const way[] = {
        "--parallel.overlap off " ZERO_LEVEL(1),
        "--parallel.overlap thread " ZERO_LEVEL(1),
        "--parallel.overlap_param_gather False " ZERO_LEVEL(2), ZERO_LEVEL(3)};
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        int ranks = 2 + i % 2;
        resume_under_same(ranks,
                          arena_printf(mem(), "%s%s--parallel_config.data_parallel %d %s",
                                       ranks_no_starts(), odd, ranks, way[i]));
    }
}

/* Saved by three replicas that have padding, read by one rank. */
TEST_LIMIT(padding_is_left_behind, 120) {
    const char *config = runs_small_config(12, 6), *whole = in_temp("whole");
    const char *run = in_temp("run"), *words = "--lr_schedule.total_steps 12 ";
    const char *odd = arena_printf(mem(),
                                   "%s--model.model_config.ffn_hidden_size 15 "
                                   "--runner_config.batch_size %s ",
                                   words, "6");
    const char *three = arena_printf(
        mem(),
        "%s--model.model_config.ffn_hidden_size 15 --runner_config.batch_size 2 "
        "--parallel_config.data_parallel 3 --parallel.overlap off "
        "--runner_config.max_steps 6 " ZERO_LEVEL(1),
        words);
    ranks_run(1, config, whole, odd);
    ranks_run(3, config, run, three);
    ranks_run(1, config, run, odd);
    SAID_EXPECT("resumed after step 6");
    runs_expect_near_losses(whole, run, 12);
    RUN_EXPECT(0, arena_printf(mem(), "inspect %s", run));
}
