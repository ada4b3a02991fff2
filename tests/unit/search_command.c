/* search_command.c - stator search: what it refuses, what it keeps. */
#include "command.h"
#include <math.h>

#define SEARCH(...)                                                                      \
    run(cmd_search,                                                                      \
        arena_printf(arena_new(), "%s/../configs/gpt2_13b.yaml", tests_dir()), "-n",     \
        "32", __VA_ARGS__, (char *)NULL)

TEST(what_no_strategy_has_is_refused) {
    SEARCH("--parallel_config.model_parallel", "3");
    refused(EXIT_CONFIG, "no strategy of 32 ranks has the keys that are given");
    EXPECT_PART(message,
                "hint: --parallel_config.model_parallel=3 does not divide 32 ranks");
    SEARCH("--runner_config.batch_size", "5", "--parallel_config.data_parallel", "2");
    refused(EXIT_CONFIG, "no strategy of 32 ranks has the keys that are given");
    EXPECT_PART(message,
                "hint: --parallel_config.data_parallel=2 x --runner_config.batch_size=5 "
                "does not divide the 32 sequences of a step");
    SEARCH("--runner_config.batch_size", "2", "--parallel_config.data_parallel", "2",
           "--parallel_config.micro_batch_num", "4");
    refused(EXIT_CONFIG, "no strategy of 32 ranks has the keys that are given");
    EXPECT_PART(message,
                "hint: --parallel_config.data_parallel=2 x --runner_config.batch_size=2 "
                "x --parallel_config.micro_batch_num=4 is less than the 32 sequences");
    SEARCH("--parallel_config.pipeline_stage", "2", "--parallel_config.pp_interleave_num",
           "25");
    refused(EXIT_CONFIG, "no strategy of 32 ranks has the keys that are given");
    EXPECT_PART(message, "leave out one of --parallel_config.pipeline_stage, "
                         "--parallel_config.pp_interleave_num");
    SEARCH("--parallel_config.num_layer_list", "[[100,1],[1,1]]");
    refused(EXIT_CONFIG, "the list has 103 layers, the model 40");
    SEARCH("--record", "/nonexistent/x");
    refused(EXIT_DATA, "cannot write /nonexistent/x");
    SEARCH("--context.cpu", "avx2"); /* not a name */
    refused(EXIT_CONFIG, "unknown CPU 'avx2'");
}

TEST(files_that_cannot_be_written_are_refused_before_the_search) {
    static char *const option[] = {"--write", "--svg", "--html"};
    for (int i = 0; i < ARRAY_LEN(option); i++) {
        SEARCH(option[i], "/nonexistent/x");
        refused(EXIT_DATA, "cannot write /nonexistent/x: No such file or directory");
        EXPECT_STR(printed, "");
        SEARCH(option[i], (char *)temp_dir());
        refused(EXIT_DATA, ": Is a directory");
        EXPECT_STR(printed, "");
    }
}

/* Nobody gave a flag that could be left out. */
TEST(ranks_that_no_strategy_has_are_refused) {
    char *path = temp("small.yaml");
    write_text(path,
               "model: {model_config: {vocab_size: 256, seq_length: 15, hidden_size: "
               "16,\nnum_layers: 1, num_heads: 1}}\n"
               "parallel_config: {data_parallel: 1, model_parallel: 7}\n"
               "runner_config: {batch_size: 2}\n");
    run(cmd_search, path, "-n", "7", (char *)NULL);
    refused(EXIT_CONFIG, "no strategy of 7 ranks is possible");
    EXPECT_PART(message, "hint: another number of ranks, or of sequences a step");
    run(cmd_search, path, "-n", "7", "--parallel_config.pipeline_stage=1", (char *)NULL);
    refused(EXIT_CONFIG, "no strategy of 7 ranks has the keys that are given");
    run(cmd_search, path, "-n", "1", "--parallel_config.model_parallel=7", (char *)NULL);
    refused(EXIT_CONFIG, "no strategy of 1 rank has the keys that are given");
}

TEST(ranks_that_nothing_has_are_refused_at_their_keys) {
    static const char *const degrees[] = {
        "data_parallel: 65536, model_parallel: 65536",
        "data_parallel: 32768, model_parallel: 65536",
        "data_parallel: 1048576, pipeline_stage: 2",
        "data_parallel: 1048576, model_parallel: 65536, context_parallel: 65536, "
        "pipeline_stage: 1024"};
    char *path = temp("many.yaml");
    for (int i = 0; i < ARRAY_LEN(degrees); i++) {
        test_at("%s", degrees[i]);
        write_text(path,
                   arena_printf(arena_new(),
                                "parallel_config: {%s}\n"
                                "model: {model_config: {vocab_size: 256, seq_length: 16, "
                                "hidden_size: 16, num_layers: 2, num_heads: 2}}\n",
                                degrees[i]));
        run(cmd_search, path, (char *)NULL);
        refused(EXIT_CONFIG, "many.yaml:1:34: error: more than 1048576 ranks");
        run(cmd_plan, path, "--parallel.parallel_mode=2", (char *)NULL);
        refused(EXIT_CONFIG, "many.yaml:1:34: error: more than 1048576 ranks");
    }
}

/* Of hundreds of them, in one folder. */
TEST(no_program_is_written) {
    char *folder = temp("ir");
    run(cmd_search,
        arena_printf(arena_new(), "%s/../configs/gpt2-tiny.yaml", tests_dir()), "-n", "2",
        "--parallel_config.model_parallel=2", "--dump_ir", folder, (char *)NULL);
    worked();
    EXPECT_PART(message,
                "note: dump_ir has no effect: of all the programs of a search none is");
    EXPECT(!file_exists(folder));
}

TEST_LIMIT(parts_that_are_asked_for_stay, 240) {
    SEARCH("--parallel_config.model_parallel", "1", "--parallel_config.context_parallel",
           "1", "--micro_batch_interleave_num", "2");
    EXPECT_INT(code, 0);
    EXPECT_PART(printed, "--micro_batch_interleave_num=2");
}

/* Written elsewhere, the answer finds the machine that lies beside the configuration. */
TEST(a_machine_is_found_beside_what_names_it) {
    Arena *mem = arena_new();
    char *folder = temp("own"), *other = temp("other"), *best = temp("other/best.yaml");
    EXPECT(!dir_make(folder) && !dir_make(other));
    size_t n;
    const char *from = arena_printf(mem, "%s/../machines/cpu100g.yaml", tests_dir());
    write_text(temp("own/mm.yaml"), file_read(mem, from, 1 << 20, &n, EXIT_CONFIG));
    char *yaml =
        "context: {machine: %s}\nrunner_config: {batch_size: 4}\n"
        "model: {model_config: {type: GPT2Config, vocab_size: 64, seq_length: 16,"
        " hidden_size: 16, num_layers: 2, num_heads: 2}}\n";
    write_text(temp("own/a.yaml"), arena_printf(mem, yaml, "mm.yaml"));
    run(cmd_search, temp("own/a.yaml"), "-n", "2", "--write", best, (char *)NULL);
    EXPECT_INT(code, 0);
    run(cmd_plan, best, "-n", "2", (char *)NULL);
    EXPECT_INT(code, 0);
    EXPECT_PART(printed, "cpu100g");
    write_text(temp("own/b.yaml"), arena_printf(mem, yaml, "nn.yaml"));
    run(cmd_plan, temp("own/b.yaml"), "-n", "2", (char *)NULL);
    refused(EXIT_CONFIG, "own/b.yaml:1:20: error: context.machine: there is no file");
}

/* So is the order of a pipeline that the answer does not have, and may have again. */
TEST(an_order_is_found_beside_what_names_it) {
    Arena *mem = arena_new();
    char *folder = temp("own"), *other = temp("other"), *best = temp("other/best.yaml");
    EXPECT(!dir_make(folder) && !dir_make(other));
    write_text(temp("own/mine.csv"), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    write_text(temp("own/a.yaml"),
               "parallel: {pipeline_config: {pipeline_scheduler: mine.csv}}\n"
               "runner_config: {batch_size: 4}\n"
               "model: {model_config: {type: GPT2Config, vocab_size: 64, seq_length: 16,"
               " hidden_size: 16, num_layers: 2, num_heads: 2}}\n");
    char *no_stages = "--parallel_config.pipeline_stage=1";
    run(cmd_search, temp("own/a.yaml"), "-n", "2", no_stages, "--write", best,
        (char *)NULL);
    worked();
    run(cmd_plan, best, "-n", "2", "--parallel_config.pipeline_stage=2",
        "--parallel_config.data_parallel=1", "--parallel_config.micro_batch_num=2",
        (char *)NULL);
    worked();
    best = temp("own/best.yaml");
    run(cmd_search, temp("own/a.yaml"), "-n", "2", no_stages, "--write", best,
        (char *)NULL);
    worked();
    EXPECT_PART(file_read(mem, best, 1 << 20, NULL, EXIT_CONFIG),
                "pipeline_scheduler: \"mine.csv\"\n");
    arena_free(mem);
}

/* The rows of a table, from the line behind the one that begins with `head`. */
static const char *rows_behind(const char *head) {
    const char *at = strstr(printed, head);
    if (!at) test_fail(__FILE__, __LINE__, "no '%s' in:\n%s", head, printed);
    return strchr(at, '\n') + 1;
}

/* The best and the front are seconds of plans, but for what is marked. */
TEST_LABEL_OF(numbers_by_pieces_are_marked, RELEASED);
TEST(numbers_by_pieces_are_marked) {
    SEARCH("--top", "14");
    EXPECT_INT(code, 0);
    double best = 0, seconds;
    int rows = 0, marked = 0;
    for (const char *at = rows_behind("  seconds  a rank's"); *at == ' ';
         at = strchr(at, '\n') + 1) {
        if (!strncmp(at, "  and ", 6)) break;
        EXPECT_INT(sscanf(at, "%lf", &seconds), 1);
        if (!rows++) best = seconds;
        EXPECT(seconds >= best);
    }
    EXPECT_INT(rows, 14);
    rows = 0;
    for (const char *at = rows_behind("less memory for more"); *at == ' ';
         at = strchr(at, '\n') + 1, rows++) {
        char mark;
        EXPECT_INT(sscanf(at, "%lf %c", &seconds, &mark), 2);
        marked += mark == '~';
        EXPECT(mark == '~' || seconds >= best);
    }
    EXPECT(rows > 1 && marked < rows);
    EXPECT_PART(rows_behind("the fastest of each split"), "+0.0 %");
}

static void run_with(int ranks, int replicas, int stages, const char *machine, int mb,
                     const char *flag) {
    Arena *own = arena_new();
    run(cmd_search, arena_printf(own, "%s/../configs/gpt2-tiny.yaml", tests_dir()), "-n",
        arena_printf(own, "%d", ranks), "--machine",
        arena_printf(own, "%s/../machines/%s.yaml", tests_dir(), machine),
        arena_printf(own, "--parallel_config.data_parallel=%d", replicas),
        arena_printf(own, "--parallel_config.pipeline_stage=%d", stages),
        arena_printf(own, "--context.max_device_memory=%dMB", mb), "--json", flag,
        (char *)NULL);
}

static double printed_seconds(void) {
    const char *at = strstr(printed, "\"step_seconds\": ");
    double seconds;
    EXPECT(at && sscanf(at, "\"step_seconds\": %lf", &seconds) == 1);
    return seconds;
}

static double seconds_with(int ranks, int replicas, int stages, const char *machine,
                           int mb, const char *flag) {
    run_with(ranks, replicas, stages, machine, mb, flag);
    worked();
    return printed_seconds();
}

/* Near the limit plans with overlap do not fit and those without do, with as many layers that are
 * made again, or with fewer; and what a plan that does not fit has more, another with more layers
 * made again has not. */
TEST_LABEL_OF(with_more_memory_the_answer_is_no_slower, RELEASED);
TEST_LIMIT(with_more_memory_the_answer_is_no_slower, 180) {
    static const struct {
        int ranks, replicas, stages;
        const char *machine;
        int from, to, by;
    } row[] = {{4, 2, 2, "cpu100g", 77, 79, 1}, {8, 4, 2, "h100", 72, 74, 2}};
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        double before = INFINITY;
        for (int mb = row[i].from; mb <= row[i].to; mb += row[i].by) {
            double seconds = seconds_with(row[i].ranks, row[i].replicas, row[i].stages,
                                          row[i].machine, mb, NULL);
            test_at("%s, %d MB: %g s, %g s with less", row[i].machine, mb, seconds,
                    before);
            EXPECT(seconds <= before);
            before = seconds;
        }
    }
}

/* For one CPU, as it is in the bytes of a rank. */
static void run_haswell(const char *flag) {
    Arena *own = arena_new();
    run(cmd_search, arena_printf(own, "%s/../configs/gpt2-tiny.yaml", tests_dir()), "-n",
        "4", "--machine", arena_printf(own, "%s/../machines/cpu100g.yaml", tests_dir()),
        "--context.cpu", "haswell", "--context.threads", "2",
        "--parallel_config.data_parallel", "2", "--parallel_config.pipeline_stage", "2",
        "--context.max_device_memory", "68MB", "--json", flag, (char *)NULL);
}

/* An answer whose stages make different numbers of layers again has a list of them. */
TEST_LIMIT(a_list_of_layers_made_again_is_kept, 300) {
    const char *key = "--recompute_config.recompute=";
    Arena *own = arena_new();
    run_haswell(NULL);
    worked();
    double seconds = printed_seconds();
    const char *at = strstr(printed, key);
    EXPECT(at);
    char *flag = arena_printf(own, "%.*s", (int)strcspn(at, "\""), at);
    EXPECT_PART(flag, "[");
    run_haswell(flag);
    worked();
    EXPECT(printed_seconds() == seconds);
    EXPECT_PART(printed, flag);
    run_haswell(arena_printf(own, "%s[1,1,1]", key)); /* for three chunks */
    refused(EXIT_CONFIG, "no strategy of 4 ranks has the keys that are given");
    static const char *const too_many[] = {"3", "[3,0]", "[0,3]"}; /* of two layers */
    for (int i = 0; i < ARRAY_LEN(too_many); i++) {
        run_haswell(arena_printf(own, "%s%s", key, too_many[i]));
        refused(EXIT_CONFIG, "no strategy of 4 ranks has the keys that are given");
    }
}

/* The search goes on until something fits, though the fastest by their pieces do not. */
TEST_LABEL_OF(what_fits_is_found_among_much_that_does_not, RELEASED);
TEST_LIMIT(what_fits_is_found_among_much_that_does_not, 120) {
    run(cmd_search,
        arena_printf(arena_new(), "%s/../configs/gpt2-tiny.yaml", tests_dir()), "-n", "8",
        "--machine", arena_printf(arena_new(), "%s/../machines/h100.yaml", tests_dir()),
        "--parallel_config.pipeline_stage=2", "--context.max_device_memory=78MB",
        (char *)NULL);
    worked();
    EXPECT_PART(printed, "--parallel_config.pipeline_stage=2");
}

/* Batches that are read ahead need memory beside the plan: a plan that is within theirs of the
 * limit is too large, and not the last one that is tried. */
TEST_LABEL_OF(with_more_memory_there_is_an_answer_too, RELEASED);
TEST(with_more_memory_there_is_an_answer_too) {
    bool found = false;
    for (int tenth = 562; tenth <= 570; tenth++) {
        run(cmd_search,
            arena_printf(arena_new(), "%s/../configs/gpt2-tiny.yaml", tests_dir()), "-n",
            "4", "--machine",
            arena_printf(arena_new(), "%s/../machines/cpu100g.yaml", tests_dir()),
            "--parallel_config.data_parallel=4", "--runner_config.batch_size=1",
            "--context.threads=2",
            arena_printf(arena_new(), "--context.max_device_memory=%d.%dMB", tenth / 10,
                         tenth % 10),
            (char *)NULL);
        test_at("%d.%d MB: %s", tenth / 10, tenth % 10, message);
        EXPECT(code == 0 || (code == EXIT_MEMORY && !found));
        found |= code == 0;
    }
    EXPECT(found);
}
