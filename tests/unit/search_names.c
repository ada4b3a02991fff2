/* Tests of searches whose flags name a key by its second or third name, and of flags that ask for
 * a level of ZeRO or for some level. */
#include "command.h"

static const char yaml[] =
    "model:\n"
    "  model_config: {type: GPT2Config, vocab_size: 256, seq_length: 16,\n"
    "    hidden_size: 16, num_layers: 2, num_heads: 2}\n"
    "runner_config: {batch_size: 8}\n";

static char *machine(void) {
    return arena_printf(arena_new(), "%s/../machines/cpu100g.yaml", tests_dir());
}

static void search(const char *flag, char *more, char *last) {
    char *path = temp("names.yaml"), *best = temp("best.yaml");
    write_text(path, yaml);
    run(cmd_search, path, "-n", "4", "--machine", machine(), "--write", best,
        arena_strdup(arena_new(), flag), more, last, (char *)NULL);
    worked();
}

/* The keys of the best, without the text in front. */
static char *best_of(const char *flag, char *more) {
    search(flag, more, NULL);
    char *at = strstr(printed, "\nbest: ");
    EXPECT(at);
    return arena_strdup(arena_new(), at);
}

TEST_LABEL_OF(a_flag_is_kept_by_any_of_its_names, RELEASED);
TEST(a_flag_is_kept_by_any_of_its_names) {
    static const char *const names[] = {"--parallel_config.micro_batch_num=4",
                                        "--parallel.grad_accumulation_step=4",
                                        "--runner_config.gradient_accumulation_steps=4"};
    static char *const more[] = {NULL, "--parallel_config.pipeline_stage=2"};
    for (int k = 0; k < ARRAY_LEN(more); k++) {
        char *first = best_of(names[0], more[k]);
        EXPECT(strstr(first, "--parallel_config.micro_batch_num=4"));
        for (int i = 1; i < ARRAY_LEN(names); i++) {
            EXPECT_STR(best_of(names[i], more[k]), first);
            EXPECT_PART(printed, " 32 sequences a step");
            run(cmd_plan, temp("best.yaml"), "-n", "4", (char *)NULL);
            worked();
            EXPECT_PART(printed, ": 32 sequences, ");
        }
    }
    EXPECT_STR(best_of("--parallel.pipeline_stages=2", NULL),
               best_of("--parallel_config.pipeline_stage=2", NULL));
    EXPECT_STR(best_of("--train_dataset.batch_size=2", NULL),
               best_of("--runner_config.batch_size=2", NULL));
}

/* Of the strategies that were planned, how many have that text, and how many there are. */
static void expect_planned(const char *part, bool all) {
    char *at = strstr(printed, "(micro-batches x sequences)\n"), *end;
    EXPECT(at);
    at = strchr(at, '\n') + 1;
    EXPECT(*at == ' ');
    for (; *at == ' ' && strncmp(at, "  and ", 6); at = end + 1) {
        end = strchr(at, '\n');
        *end = 0;
        if ((strstr(at, part) != NULL) != all)
            test_fail(__FILE__, __LINE__, "%s: %s", part, at);
    }
}

TEST(flags_ask_for_levels_of_zero) {
    static char *const degrees = "--parallel_config.model_parallel=1",
                       *const stages = "--parallel_config.pipeline_stage=1";
    search("--parallel.parallel_optimizer_config.optimizer_level=level2", degrees,
           stages);
    expect_planned("ZeRO-2", true);
    search("--parallel_config.optimizer_shard=True", degrees, stages);
    EXPECT_PART(printed, "ZeRO-1");
    EXPECT_PART(printed, "ZeRO-2");
    expect_planned("ZeRO-", true);
    search("--parallel.enable_parallel_optimizer=True", degrees, stages);
    expect_planned("ZeRO-", true);
    search("--parallel.enable_parallel_optimizer=False", degrees, stages);
    expect_planned("ZeRO-", false);
    search("--parallel_config.optimizer_shard=True",
           "--parallel.parallel_optimizer_config.optimizer_level=level3", stages);
    expect_planned("ZeRO-3", true);
    search("--parallel_config.optimizer_shard=False",
           "--parallel.parallel_optimizer_config.optimizer_level=level2", stages);
    expect_planned("ZeRO-", false);
}
