/* Tests of parallel_mode 2 on real ranks: rank 0 searches for all, losses are those of one rank,
 * and what goes on from a checkpoint keeps the strategy and its bits. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define MODE "--parallel.parallel_mode 2 --parallel_config.data_parallel 2 "

static const char *on(const char *machine) {
    return arena_printf(mem(), MODE "--machine %s/../machines/%s.yaml ", tests_dir(),
                        machine);
}

TEST_LIMIT(losses_are_those_of_one_rank, 120) {
    const char *config = runs_small_config(4, 0), *one = in_temp("one");
    const char *run = in_temp("run");
    ranks_run(1, config, one, "--batch_size 4 --parallel_config.micro_batch_num 4 ");
    ranks_run(4, config, run, on("h100"));
    EXPECT_PART(said(), "parallel_mode 2: the fastest of ");
    runs_expect_near_losses(one, run, 4);
}

/* On the other machine another strategy is the fastest. */
TEST_LIMIT(what_goes_on_keeps_the_strategy, 180) {
    const char *config = runs_small_config(6, 3), *whole = in_temp("whole");
    const char *run = in_temp("run"), *anew = in_temp("anew");
    ranks_run(4, config, whole, on("h100"));
    ranks_run(4, config, run,
              arena_printf(mem(), "%s--train_steps 3 --lr_schedule.total_steps 6 ",
                           on("h100")));
    ranks_run(4, config, run, on("cpu100g"));
    EXPECT_PART(said(), "the strategy stays that of ");
    runs_expect_same_losses(whole, run, 6);
    ranks_run(4, config, anew, on("cpu100g"));
    EXPECT_PART(said(), "parallel_mode 2: the fastest of ");
    const char *a =
        file_read(mem(), path_join(mem(), run, "config.yaml"), 1 << 20, NULL, EXIT_DATA);
    const char *b =
        file_read(mem(), path_join(mem(), anew, "config.yaml"), 1 << 20, NULL, EXIT_DATA);
    EXPECT_PART(a, "  model_parallel: 2");
    EXPECT(!strstr(b, "  model_parallel: 2"));
}

/* With other ranks, or another number of sequences, it is looked for again. */
TEST_LIMIT(on_other_ranks_it_is_looked_for_again, 180) {
    const char *config = runs_small_config(3, 3), *run = in_temp("run");
    const char *more = in_temp("more.yaml");
    char *text = file_read(mem(), config, 1 << 20, NULL, EXIT_DATA);
    char *batch = strstr(text, "batch_size: 2");
    EXPECT(batch != NULL);
    ranks_run(4, config, run, on("h100"));
    ranks_run(2, config, run, arena_printf(mem(), "%s--train_steps 5 ", on("h100")));
    EXPECT_PART(said(), "parallel_mode 2: the fastest of ");
    EXPECT_PART(said(), "strategies of 2 ranks on h100");
    ranks_run(2, config, run, arena_printf(mem(), "%s--train_steps 6 ", on("h100")));
    EXPECT_PART(said(), "the strategy stays that of ");
    batch[strlen("batch_size: ")] = '4';
    write_text(more, text);
    ranks_run(2, more, run, arena_printf(mem(), "%s--train_steps 7 ", on("h100")));
    EXPECT_PART(said(), "parallel_mode 2: the fastest of ");
    EXPECT_PART(said(), "16 sequences a step");
}

/* Weights to begin from are opened by rank 0 alone while it searches; what is no strategy is told
 * once. */
TEST_LIMIT(others_wait_while_rank_0_searches, 120) {
    const char *config = runs_golden_config("gpt2_tiny"), *run = in_temp("run");
    char *text = file_read(mem(), config, 1 << 20, NULL, EXIT_DATA);
    write_text(config, arena_printf(mem(), "%srunner_config: {batch_size: 4}\n", text));
    ranks_run(2, config, run, "--parallel.parallel_mode 2 ");
    ranks_expect_curve("gpt2_tiny", run, "parallel_mode 2");
    ranks_end(
        ranks_start(2, config, in_temp("none"),
                    "--parallel.parallel_mode 2 --parallel_config.model_parallel 3"),
        EXIT_CONFIG, "no strategy");
    SAID_EXPECT("no strategy of 2 ranks has the keys that are given");
    EXPECT(!strstr(said(), "has no such failure"));
}
