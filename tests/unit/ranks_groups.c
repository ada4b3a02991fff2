/* Tests of optimizer_weight_shard_size on real MPI ranks: replicas in groups, each of which splits
 * states for itself. The losses are PyTorch's, and a run goes on under other groups. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define PC      "--parallel_config."
#define EACH(n) "--parallel.parallel_optimizer_config.optimizer_weight_shard_size " #n " "

static const struct {
    int ranks;
    const char *words;
} way[] = {
    {4, PC "data_parallel 4 " ZERO_LEVEL(1) EACH(2)},
    {8, PC "data_parallel 8 " ZERO_LEVEL(2) EACH(2)},
    {8, PC "data_parallel 8 " ZERO_LEVEL(3) EACH(4)},
    {4, PC "data_parallel 2 " PC "context_parallel 2 " PC
           "context_parallel_algo megatron_cp_algo " PC "micro_batch_num 2 " ZERO_LEVEL(2)
               EACH(2) "--parallel.overlap off "},
    {8, PC "data_parallel 4 " PC "model_parallel 2 " PC "sequence_parallel True " PC
           "micro_batch_num 2 " ZERO_LEVEL(3) EACH(2)},
    {8, PC "data_parallel 4 " PC "pipeline_stage 2 " PC "rank_order tp-cp-pp-dp " PC
           "micro_batch_num 2 " ZERO_LEVEL(1) EACH(2)},
};

/* In the short form every second one, so that of two models each has the other half. */
static void each_way(const char *model, int first) {
    const char *config = runs_golden_config(model), *run = in_temp("run");
    double worst = 0;
    for (int i = test_long() ? 0 : first; i < ARRAY_LEN(way); i += test_long() ? 1 : 2) {
        const char *words = arena_printf(mem(), "%s%s", ranks_no_starts(), way[i].words);
        ranks_run(way[i].ranks, config, run, words);
        worst = fmax(worst, ranks_expect_curve(model, run, words));
        remove_all(run);
    }
    printf("  worst relative loss %.2g\n", worst);
}

TEST_LIMIT(gpt2_as_one, 180) {
    each_way("gpt2_tiny", 0);
}

TEST_LIMIT(llama_as_one, 180) {
    each_way("llama_tiny", 1);
}

/* Megatron-LM's mean of means has the replicas of all groups. */
TEST_LIMIT(means_of_replicas, 120) {
    static const char each[] = "--calculate_per_token_loss False ";
    const char *config = runs_small_config(4, 0), *all = in_temp("all");
    const char *run = in_temp("run");
    ranks_run(4, config, all, arena_printf(mem(), "%s" PC "data_parallel 4", each));
    ranks_run(
        4, config, run,
        arena_printf(mem(), "%s" PC "data_parallel 4 " ZERO_LEVEL(2) EACH(2), each));
    int n, m;
    const MetricsRow *x = runs_metrics(all, &n), *y = runs_metrics(run, &m);
    EXPECT(n == 4 && m == 4);
    for (int i = 0; i < n; i++) EXPECT(fabs(x[i].loss - y[i].loss) <= 1e-5 * x[i].loss);
}

/* Saved by groups of two, loaded by one group of four and by one rank; and back. */
TEST_LIMIT(resumed_under_other_groups, 180) {
    static const char two[] = PC "data_parallel 4 " ZERO_LEVEL(3) EACH(2);
    static const struct {
        int ranks;
        const char *words;
    } after[] = {{4, PC "data_parallel 4 " ZERO_LEVEL(2)}, {1, ""}};
    static const char half[] = "--runner_config.max_steps 10 ";
    const char *model = "gpt2_tiny", *config = runs_golden_config(model);
    for (int i = 0; i < ARRAY_LEN(after); i++)
        for (int back = 0; back < 2; back++) {
            const char *run = in_temp(arena_printf(mem(), "run%d%d", i, back));
            int first = back ? after[i].ranks : 4, then = back ? 4 : after[i].ranks;
            const char *words = back ? after[i].words : two;
            ranks_run(first, config, run, arena_printf(mem(), "%s%s", half, words));
            ranks_run(then, config, run, back ? two : after[i].words);
            SAID_EXPECT("resumed after step 10");
            ranks_expect_curve(model, run, words);
            remove_all(run);
        }
}

/* The same bits, run after run and from where it was saved. */
TEST_LIMIT(the_same_bits, 120) {
    static const char words[] =
        "--lr_schedule.total_steps 8 " PC "data_parallel 4 " ZERO_LEVEL(3) EACH(2);
    const char *config = runs_small_config(8, 4), *whole = in_temp("whole");
    const char *run = in_temp("run");
    ranks_run(4, config, whole, words);
    ranks_run(4, config, run,
              arena_printf(mem(), "--runner_config.max_steps 4 %s", words));
    ranks_run(4, config, run, words);
    SAID_EXPECT("resumed after step 4");
    runs_expect_same_losses(whole, run, 8);
    runs_expect_same_tensors(whole, run, 8);
}
