/* Tests of runs with noop layers: a checkpoint has the others alone, and everything that
 * takes weights takes it; weights that were made without noop layers train with them. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define PC "--parallel_config."

/* Weights of four layers, in a folder of Hugging Face. */
TEST_LIMIT(weights_of_the_other_layers, 120) {
    const char *run = in_temp("run"), *config = runs_golden_config("gpt2_tiny");
    const char *words =
        PC "noop_layers 1,4 " PC "pipeline_stage 2 " PC "micro_batch_num 2 ";
    ranks_run(2, config, run, words);
    SAID_EXPECT("6 layers, 2 of them noop: 4 are trained");
    ranks_expect_curve("gpt2_tiny", run, words);
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "train %s " PC "noop_layers 6", config));
    SAID_EXPECT("noop_layers has 6, but the last of 5 layers is 4");
}

/* Six layers without two are four: in training, when it goes on, as weights to start from,
 * and in predict. */
TEST_LIMIT(a_checkpoint_has_the_other_layers, 180) {
    const char *config = runs_small_config(6, 3), *plain = in_temp("plain");
    const char *run = in_temp("run"), *next = in_temp("next");
    const char *six = "--model.model_config.num_layers 6 " PC "noop_layers 2,5 ";
    const char *four = "--lr_schedule.total_steps 6 --model.model_config.num_layers 4 ";
    const char *words = arena_printf(mem(), "%s--lr_schedule.total_steps 6 ", six);
    ranks_run(1, config, plain, four);
    ranks_run(1, config, run,
              arena_printf(mem(), "%s--runner_config.max_steps 3", words));
    ranks_run(1, config, run, words);
    SAID_EXPECT("resumed after step 3");
    runs_expect_same_losses(plain, run, 6);
    runs_expect_same_tensors(plain, run, 6);
    EXPECT_STR(ranks_predicted(run), ranks_predicted(plain));
    const char *start = arena_printf(mem(), "--init_from %s --resume never ", run);
    ranks_run(1, config, next, arena_printf(mem(), "%s%s", words, start));
    ranks_run(1, config, plain, arena_printf(mem(), "%s%s", four, start));
    runs_expect_same_losses(plain, next, 6);
    RUN_EXPECT(EXIT_CONFIG,
               arena_printf(mem(), "train %s %s %s --model.model_config.num_layers 4",
                            config, six, start));
    SAID_EXPECT("num_layers 4 with 2 of noop_layers is 2 layers, but the weights of ");
}
