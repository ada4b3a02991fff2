/* Tests of parallel_mode 2: commands search for the strategy of a configuration themselves. */
#include "frontend/search/automatic.h"
#include "command.h"
#include "frontend/config/config_state.h"
#include "frontend/model/stage_layers.h"
#include "frontend/search/search.h"

static const char yaml[] =
    "model:\n"
    "  model_config: {type: GPT2Config, vocab_size: 256, seq_length: 16,\n"
    "    hidden_size: 16, num_layers: 2, num_heads: 2}\n"
    "train_dataset:\n"
    "  data_loader: {type: TextFile, dataset_dir: embedded}\n"
    "runner_config: {max_steps: 2, batch_size: 2}\n"
    "parallel: {parallel_mode: %d}\n"
    "parallel_config: {micro_batch_num: 2, pp_interleave_num: 1%s}\n";

static char *config(int mode, const char *more) {
    char *path = temp(arena_printf(arena_new(), "mode%d.yaml", mode));
    write_text(path, arena_printf(arena_new(), yaml, mode, more));
    return path;
}

static char *machine(const char *name) {
    return arena_printf(arena_new(), "%s/../machines/%s.yaml", tests_dir(), name);
}

/* The hash of the plan that was printed. */
static char *plan_hash(void) {
    const char *at = strstr(printed, "plan_hash");
    EXPECT(at && strlen(at) > 60);
    return arena_strndup(arena_new(), at, 60);
}

/* Plans of what a search finds and of the configuration that asks for a search are the same. */
static void plan_is_of_the_best(const char *name, char *more) {
    char *best = temp("best.yaml"), *file = config(2, "");
    run(cmd_search, config(1, ""), "-n", "4", "--machine", machine(name), "--write", best,
        more, (char *)NULL);
    worked();
    run(cmd_plan, best, "-n", "4", "--json", (char *)NULL);
    worked();
    char *hash = plan_hash();
    run(cmd_plan, file, "-n", "4", "--json", "--machine", machine(name), more,
        (char *)NULL);
    worked();
    EXPECT(!strcmp(plan_hash(), hash));
    run(cmd_plan, file, "-n", "4", "--machine", machine(name), more, (char *)NULL);
    worked();
    EXPECT_PART(printed, "parallel_mode 2: the fastest of ");
}

TEST_LABEL_OF(a_plan_is_that_of_the_best_strategy, RELEASED);
TEST(a_plan_is_that_of_the_best_strategy) {
    plan_is_of_the_best("cpu100g", NULL);
    plan_is_of_the_best("h100", "--parallel_config.data_parallel=1");
    plan_is_of_the_best("a100-vtrain", "--parallel_config.model_parallel=2");
    plan_is_of_the_best("cpu100g", "--context.max_device_memory=68MB");
}

TEST_LABEL_OF(a_mode_on_the_command_line_counts, RELEASED);
TEST(a_mode_on_the_command_line_counts) {
    char *file = config(2, ", model_parallel: 2");
    run(cmd_plan, file, "-n", "4", "--parallel.parallel_mode", "1", (char *)NULL);
    worked();
    EXPECT_PART(printed, "dp 2 x tp 2");
    EXPECT(!strstr(printed, "fastest of"));
    run(cmd_plan, config(1, ""), "-n", "4", "--parallel.parallel_mode", "2",
        (char *)NULL);
    worked();
    EXPECT_PART(printed, "parallel_mode 2: the fastest of ");
    EXPECT_PART(printed, " of 4 ranks on plain");
}

/* Keys that a search writes, and nobody else, are not said to be without effect. */
TEST_LABEL_OF(nothing_is_said_of_keys_that_nobody_wrote, RELEASED);
TEST(nothing_is_said_of_keys_that_nobody_wrote) {
    char *path = temp("plain.yaml");
    write_text(path,
               "model:\n"
               "  model_config: {type: GPT2Config, vocab_size: 256, seq_length: 16,\n"
               "    hidden_size: 16, num_layers: 2, num_heads: 2}\n"
               "parallel: {parallel_mode: 2}\n");
    static char *const ranks[] = {"1", "2", "4"};
    for (int i = 0; i < ARRAY_LEN(ranks); i++) {
        run(cmd_plan, path, "-n", ranks[i], (char *)NULL);
        worked();
        EXPECT_PART(printed, "parallel_mode 2: the fastest of ");
        EXPECT(!strstr(printed, "no effect"));
    }
}

/* Nor those of a file that a search set anew. */
TEST(nothing_is_said_of_what_a_search_set) {
    char *path = temp("parts.yaml");
    config(1, "");
    write_text(path, "base_config: mode1.yaml\nparallel: {parallel_mode: 2}\n"
                     "micro_batch_interleave_num: 2\n");
    run(cmd_plan, path, (char *)NULL);
    worked();
    EXPECT_PART(printed, "parallel_mode 2: the fastest of ");
    EXPECT(!strstr(printed, "no effect") && !strstr(printed, "command line"));
    run(cmd_plan, path, "--micro_batch_interleave_num=2", (char *)NULL);
    worked();
    EXPECT_PART(printed, "command line:1: micro_batch_interleave_num has no effect");
}

TEST_LABEL_OF(shrunk_models_have_the_strategy_too, RELEASED);
TEST(shrunk_models_have_the_strategy_too) {
    run(cmd_simulate, config(2, ""), "-n", "4", "--machine", machine("h100"),
        "--parallel_config.data_parallel=1", (char *)NULL);
    worked();
    EXPECT_PART(printed, "tp 2");
}

TEST(what_does_not_search_says_so) {
    run(cmd_eval, config(2, ", data_parallel: 2"), "--load_checkpoint",
        golden("gpt2_tiny"), (char *)NULL);
    refused(EXIT_CONFIG, "this command does not");
    run(cmd_plan, config(3, ""), (char *)NULL);
    refused(EXIT_CONFIG, "parallel_mode 3: nobody writes messages by hand");
}

TEST(no_strategy_is_a_failure) {
    run(cmd_plan, config(2, ""), "-n", "4", "--context.max_device_memory=1MB",
        (char *)NULL);
    refused(EXIT_MEMORY, "no strategy of 4 ranks fits");
    run(cmd_plan, config(2, ""), "-n", "4", "--parallel_config.model_parallel=3",
        (char *)NULL);
    refused(EXIT_CONFIG, "no strategy of 4 ranks has the keys that are given");
}

/* ---- what goes on ---- */

static void same_value(const Config *a, const Config *b, const char *key) {
    Arena *mem = arena_new();
    EXPECT_STR(config_value(a, mem, key), config_value(b, mem, key));
    arena_free(mem);
}

/* Whatever the file has come to say of a strategy: that of the run stays. */
TEST_LABEL_OF(a_run_keeps_its_strategy, RELEASED);
TEST(a_run_keeps_its_strategy) {
    static const char more[] = "parallel:\n"
                               "  parallel_mode: 2\n"
                               "  overlap: off\n"
                               "  shard: ['layer/x=-,-,-']\n"
                               "  parallel_optimizer_config: {optimizer_level: level3}\n"
                               "parallel_config: {micro_batch_num: 2, rank_order: "
                               "dp-tp-cp-pp, offset: [1, -1],\n"
                               "  pipeline_stage: 2}\n"
                               "micro_batch_interleave_num: 2\n";
    static char *const flags[] = {"--parallel_config.model_parallel=2",
                                  "--parallel_config.data_parallel=1",
                                  "--parallel_config.pipeline_stage=1"};
    char *path = config(2, ""), *kept = temp("config.yaml"), *later = temp("later.yaml");
    char *text = file_read(arena_new(), path, 1 << 20, NULL, EXIT_DATA);
    write_text(later, arena_printf(arena_new(), "%.*s%s",
                                   (int)(strstr(text, "parallel:") - text), text, more));
    bool inside = false;
    for (int i = 0; i < ARRAY_LEN(flags); i++) {
        Arena *mem = arena_new();
        char *flag[] = {flags[i],
                        arena_printf(mem, "--context.machine=%s", machine("h100"))};
        ConfigWords w = {config_files(mem, path), 2, flag};
        const char *said;
        ConfigWords found = automatic_words(mem, &w, 4, 0, &said);
        Config *run = config_load_of(mem, found.files, found.nflags, found.flag);
        Text out = text_new(mem);
        config_print(run, &out);
        write_text(kept, out.s);
        inside |= run->parallel_shard.n > 0;
        w.files = config_files(mem, later);
        ConfigWords on = automatic_words_of(mem, &w, kept);
        Config *cfg = config_load_of(mem, on.files, on.nflags, on.flag);
        EXPECT(!automatic_asked(cfg));
        for (int k = 0; k < KNOBS; k++) same_value(run, cfg, knob_key[k]);
        same_value(run, cfg, "parallel_config.optimizer_shard");
        same_value(run, cfg, "parallel_config.offset");
        strategy_of_config(cfg);
        arena_free(mem);
    }
    EXPECT(inside);
}

static char *layers_file(const char *name, const char *more) {
    char *path = temp(name);
    write_text(
        path, arena_printf(arena_new(),
                           "model: {model_config: {type: GPT2Config, vocab_size: "
                           "64, seq_length: 64, hidden_size: 64, num_layers: 9, "
                           "num_heads: 4}}\n"
                           "parallel: {parallel_mode: 2}\n"
                           "parallel_config: {pipeline_stage: 4, micro_batch_num: 8%s}\n",
                           more));
    return path;
}

/* What the file says of them in another way, in the run or later, does not go beside its list. */
TEST(layers_of_stages_are_kept) {
    static const char *const says[] = {"", ", num_layers_in_first_pipeline_stage: 1",
                                       ", num_layers_in_last_pipeline_stage: 3",
                                       ", offset: [1, 0, 0, 0]",
                                       "}\nrecompute_config: {select_recompute: "
                                       "[2, 1, 0, 0]"};
    for (int i = 0; i < ARRAY_LEN(says) * ARRAY_LEN(says); i++) {
        Arena *mem = arena_new();
        const char *first = says[i % ARRAY_LEN(says)], *then = says[i / ARRAY_LEN(says)];
        test_at("%s, then %s", first, then);
        char *flag[] = {"--parallel_config.pipeline_stage=4",
                        arena_printf(mem, "--context.machine=%s", machine("a100"))};
        ConfigWords w = {config_files(mem, layers_file("first.yaml", first)), 2, flag};
        const char *said;
        ConfigWords found = automatic_words(mem, &w, 4, 0, &said);
        Config *run = config_load_of(mem, found.files, found.nflags, found.flag);
        EXPECT_INT(stage_layers_of_config(run).list.columns, 4);
        Text out = text_new(mem);
        config_print(run, &out);
        write_text(temp("config.yaml"), out.s);
        w.files = config_files(mem, layers_file("later.yaml", then));
        ConfigWords on = automatic_words_of(mem, &w, temp("config.yaml"));
        Config *cfg = config_load_of(mem, on.files, on.nflags, on.flag);
        EXPECT_INT(stage_layers_of_config(cfg).list.columns, 4);
        for (int k = 0; k < KNOBS; k++) same_value(run, cfg, knob_key[k]);
        same_value(run, cfg, "recompute_config.select_recompute");
        arena_free(mem);
    }
}

/* The user's flags belong to the file: what it cannot do without is not asked of it alone. */
TEST(flags_complete_the_file) {
    char *path = temp("finetune.yaml");
    Arena *mem = arena_new();
    write_text(path, "run_mode: finetune\n"
                     "parallel: {parallel_mode: 2}\n"
                     "runner_config: {batch_size: 3}\n");
    char *flag[] = {arena_printf(mem, "--init_from=%s", golden("gpt2_tiny")),
                    "--runner_config.batch-size=1", "--parallel.parallel-mode=2"};
    EXPECT_INT(search_sequences(mem, config_files(mem, path), 3, flag, 4), 12);
    ConfigWords w = {config_files(mem, path), 3, flag};
    Config *cfg = automatic_load(mem, &w, 4);
    EXPECT_INT(cfg->runner_config_batch_size, 1);
    EXPECT_INT(cfg->parallel_parallel_mode, 1);
    arena_free(mem);
}

/* Keys of the file that name what is chosen once more are no reason to refuse choices. */
TEST(second_names_of_the_file_are_free) {
    char *path = temp("names.yaml"), *plain = temp("plain.yaml");
    static const char text[] =
        "model:\n"
        "  model_config: {type: GPT2Config, vocab_size: 256, seq_length: 16,\n"
        "    hidden_size: 16, num_layers: 2, num_heads: 2}\n"
        "parallel: {parallel_mode: 2%s}\n"
        "runner_config: {batch_size: 4}\n"
        "parallel_config: {data_parallel: 2, pipeline_stage: 2, micro_batch_num: 2%s}\n";
    write_text(path,
               arena_printf(arena_new(), text,
                            ", enable_parallel_optimizer: True, pipeline_stages: 2, "
                            "grad_accumulation_step: 2",
                            ", optimizer_shard: True, offset: [1, -1]"));
    write_text(plain, arena_printf(arena_new(), text, "", ""));
    run(cmd_plan, plain, "-n", "4", "--json", "--machine", machine("h100"), (char *)NULL);
    worked();
    char *hash = plan_hash();
    run(cmd_plan, path, "-n", "4", "--json", "--machine", machine("h100"), (char *)NULL);
    worked();
    EXPECT_STR(plan_hash(), hash);
}

/* They are no reason not to go on either. */
TEST(a_run_with_second_names_goes_on) {
    static char *const flags[] = {
        "--parallel_config.data_parallel=2", "--parallel.grad_accumulation_step=4",
        "--runner_config.gradient_accumulation_steps=4",
        "--parallel.enable_parallel_optimizer=True", "--parallel.pipeline_stages=2"};
    char *path = temp("names.yaml"), *kept = temp("config.yaml");
    write_text(path, "model:\n"
                     "  model_config: {type: GPT2Config, vocab_size: 256, seq_length: "
                     "16,\n"
                     "    hidden_size: 16, num_layers: 2, num_heads: 2}\n"
                     "parallel: {parallel_mode: 2, enable_parallel_optimizer: True,\n"
                     "  pipeline_stages: 2, grad_accumulation_step: 8}\n");
    for (int i = 0; i < ARRAY_LEN(flags); i++) {
        Arena *mem = arena_new();
        char *flag[] = {flags[i]};
        ConfigWords w = {config_files(mem, path), 1, flag};
        const char *said;
        ConfigWords found = automatic_words(mem, &w, 2, 0, &said);
        Config *run = config_load_of(mem, found.files, found.nflags, found.flag);
        Text out = text_new(mem);
        config_print(run, &out);
        write_text(kept, out.s);
        ConfigWords on = automatic_words_of(mem, &w, kept);
        Config *cfg = config_load_of(mem, on.files, on.nflags, on.flag);
        test_at("%s", flags[i]);
        for (int k = 0; k < KNOBS; k++) same_value(run, cfg, knob_key[k]);
        same_value(run, cfg, "parallel_config.optimizer_shard");
        arena_free(mem);
    }
}

/* What is searched for is of the files as they were when it began, whoever changes them meanwhile. */
TEST(files_that_change_during_a_search) {
    Arena *mem = arena_new();
    char *base = temp("base.yaml"), *path = temp("on_base.yaml");
    char *own = temp("machine.yaml");
    size_t n;
    char *text = file_read(mem, machine("a100"), YAML_MAX_BYTES, &n, EXIT_DATA);
    write_text(own, text);
    write_text(base,
               "model: {model_config: {type: GPT2Config, vocab_size: 64, seq_length: "
               "32,\n"
               "    hidden_size: 32, num_layers: 4, num_heads: 4}}\n");
    write_text(path, "base_config: base.yaml\n"
                     "context: {machine: machine.yaml}\n"
                     "parallel: {parallel_mode: 2}\n");
    const char *best[2];
    for (int i = 0; i < 2; i++) {
        SearchOptions o = search_options(mem, config_files(mem, path), 0, NULL, 4);
        if (i) EXPECT(!remove(base) && !remove(own));
        if (i) write_text(path, "model: {model_config: {num_layers: 96}}\n");
        SearchResult r = search_run(mem, &o);
        EXPECT(r.ntop > 0);
        Config *cfg = config_load_of(mem, o.files, r.top[0].nflags, r.top[0].flag);
        EXPECT_INT(cfg->model_num_layers, 4);
        best[i] = arena_printf(mem, "%lld strategies, %d planned, %.17g",
                               (long long)r.choices, r.planned, r.top[0].seconds);
    }
    EXPECT_STR(best[1], best[0]);
    arena_free(mem);
}
