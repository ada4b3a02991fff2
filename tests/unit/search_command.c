/* search_command.c - stator search: what it refuses, what it keeps. */
#include "command.h"

#define SEARCH(...)                                                                      \
    run(cmd_search,                                                                      \
        arena_printf(arena_new(), "%s/../configs/gpt2_13b.yaml", tests_dir()), "-n",     \
        "32", __VA_ARGS__, (char *)NULL)

TEST(what_no_strategy_has_is_refused) {
    SEARCH("--parallel_config.model_parallel", "3");
    refused(EXIT_CONFIG, "no strategy of 32 ranks has the keys that are given");
    SEARCH("--parallel_config.num_layer_list", "[[100,1],[1,1]]");
    refused(EXIT_CONFIG, "the list has 103 layers, the model 40");
    SEARCH("--record", "/nonexistent/x");
    refused(EXIT_DATA, "cannot write /nonexistent/x");
}

TEST(parts_that_are_asked_for_stay) {
    SEARCH("--parallel_config.model_parallel", "1", "--parallel_config.context_parallel",
           "1", "--micro_batch_interleave_num", "2");
    EXPECT_INT(code, 0);
    EXPECT_PART(printed, "--micro_batch_interleave_num=2");
}
