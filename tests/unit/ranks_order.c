/* Tests of parallel_config.rank_order on real ranks: bits do not depend on it, a run goes on under
 * another one, and so do predictions. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define PC        "--parallel_config."
#define ORDER(o)  PC "rank_order " o " "
#define STAGES    PC "pipeline_stage 2 " PC "micro_batch_num 2 --batch_size 1 "
#define STEPS     "--model.model_config.num_layers 4 --lr_schedule.total_steps 12 "
#define SIX_STEPS STEPS "--runner_config.max_steps 6 "

/* Twelve steps in the usual order; six in one order and six in another. */
static void expect_same(int ranks, const char *strategy, const char *first,
                        const char *then) {
    const char *config = runs_small_config(12, 6), *whole = in_temp("whole");
    const char *run = in_temp("run");
    ranks_run(ranks, config, whole, arena_printf(mem(), STEPS "%s", strategy));
    ranks_run(ranks, config, run, arena_printf(mem(), SIX_STEPS "%s%s", strategy, first));
    ranks_run(ranks, config, run, arena_printf(mem(), STEPS "%s%s", strategy, then));
    SAID_EXPECT("resumed after step 6");
    runs_expect_same_losses(whole, run, 12);
    runs_expect_same_tensors(whole, run, 12);
    remove_all(whole);
    remove_all(run);
}

TEST_LIMIT(bits_are_those_of_the_usual_order, 180) {
    expect_same(4, PC "data_parallel 2 " PC "model_parallel 2 " ZERO_LEVEL(1),
                ORDER("dp-tp-cp-pp"), "");
    if (test_long()) /* the second one is that of eight ranks too */
        expect_same(4, PC "data_parallel 2 " STAGES ZERO_LEVEL(2), ORDER("tp-cp-pp-dp"),
                    "");
    expect_same(4, PC "model_parallel 2 " STAGES, "", ORDER("pp-cp-tp-dp"));
}

TEST_LIMIT(bits_of_eight_ranks, 180) {
    const char *all = PC "data_parallel 2 " PC "model_parallel 2 " STAGES ZERO_LEVEL(3);
    if (RANKS_SANITIZED) test_skip("eight ranks");
    expect_same(8, all, ORDER("tp-pp-cp-dp"), ORDER("pp-dp-cp-tp"));
}

/* What four ranks print, without what goes to stderr. */
static const char *printed_by_four(const char *words) {
    const char *out = in_temp("stdout.txt");
    mpi_environment();
    EXPECT_INT(system(arena_printf(mem(), "%s launch -n 4 predict %s > %s 2> %s",
                                   stator_program(), words, out, in_temp("stderr.txt"))),
               0);
    return file_read(mem(), out, 1 << 20, NULL, EXIT_DATA);
}

TEST_LIMIT(other_strategies_predict_in_any_order, 180) {
    const char *config = runs_small_config(6, 6), *run = in_temp("run");
    ranks_run(4, config, run,
              "--model.model_config.num_layers 4 " PC
              "model_parallel 2 " STAGES ORDER("tp-pp-dp-cp"));
    const char *one = ranks_predicted(run);
    static const char *const words[] = {"--tp 2 --dp 2 " ORDER("dp-cp-tp-pp"),
                                        "--tp 2 --pp 2 " ORDER("pp-tp-cp-dp")};
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        const char *text =
            printed_by_four(arena_printf(mem(),
                                         "%s --greedy --prompt_tokens 1,2,3 "
                                         "--max_new_tokens 10 --tokens --threads 1 %s",
                                         run, words[i]));
        EXPECT_STR(arena_strndup(mem(), text, strcspn(text, "\n")), one);
    }
}
