/* Tests of how several MPI ranks begin and end together: the same configuration or
 * nothing, one compiler, one end when the run has diverged. */
#include "frontend/config/commands.h"
#include "ranks.h"
#include "runtime/core/rt.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

static int count(const char *text, const char *part) {
    int n = 0;
    while ((text = strstr(text, part))) n++, text += strlen(part);
    return n;
}

/* ---- agreement ---- */

/* Rank 1 has `more` words and is refused with `part`, before there is a run folder. */
static void refuse_pair(const char *more, const char *part) {
    const char *config = runs_small_config(4, 4), *run = in_temp("run");
    const char *words = arena_printf(mem(), "%s --output_dir %s", config, run);
    int code = ranks_pair("", words, "", arena_printf(mem(), "%s %s", words, more));
    const char *said_all = mpi_said();
    if (code != EXIT_CONFIG || count(said_all, "ranks disagree on the ") != 1 ||
        !strstr(said_all, "rank 1 on ") || !strstr(said_all, part))
        test_fail(__FILE__, __LINE__, "exit code %d, wanted 2 and '%s':\n%s", code, part,
                  said_all);
    EXPECT(!file_exists(run));
}

TEST(another_value_of_a_key) {
    refuse_pair("--lr_schedule.learning_rate 2e-3",
                "has 'lr_schedule.learning_rate = 0.002', rank 0 has "
                "'lr_schedule.learning_rate = 0.001'");
    refuse_pair("--parallel_config.micro_batch_num 1",
                "has 'parallel_config.micro_batch_num = 1', rank 0 has "
                "'parallel_config.micro_batch_num = 2'");
    refuse_pair("--seed 8", "has 'seed = 8', rank 0 has 'seed = 7'");
}

/* What is said of values that are longer than a message is where they differ. */
TEST(another_end_of_a_long_value) {
    Text path = text_new(mem());
    for (int i = 0; i < 60; i++) text_add(&path, "/folder%d", i);
    const char *words = arena_printf(mem(), "%s --output_dir %s --dataset_dir %s",
                                     runs_small_config(4, 4), in_temp("run"), path.s);
    const char *part = arena_printf(
        mem(), "%s/b', rank 0 has 'train_dataset.data_loader.", "/folder58/folder59");
    int code = ranks_pair("", arena_printf(mem(), "%s/a", words), "",
                          arena_printf(mem(), "%s/b", words));
    if (code != EXIT_CONFIG || !strstr(mpi_said(), part) ||
        !strstr(mpi_said(), "/folder58/folder59/a'; "))
        test_fail(__FILE__, __LINE__, "exit code %d, wanted '%s':\n%s", code, part,
                  mpi_said());
}

/* A folder with orders of two stages. */
static const char *folder_of_orders(const char *name, const char *orders) {
    const char *folder = in_temp(name);
    EXPECT_INT(mkdir(folder, 0777), 0);
    write_text(path_join(mem(), folder, "orders.csv"), orders);
    return folder;
}

/* The name of the file is the same, but each rank has a folder of its own. */
TEST(another_order_of_the_pipeline) {
    const char *gpipe = folder_of_orders("a", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    const char *backward = folder_of_orders("b", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    const char *words = arena_printf(
        mem(),
        "%s --parallel_config.pipeline_stage 2 --parallel_config.micro_batch_num 2 "
        "--parallel.pipeline_config.pipeline_scheduler orders.csv --output_dir %s",
        runs_small_config(4, 4), in_temp("run"));
    const char *in_a = arena_printf(mem(), "-wdir %s", gpipe);
    int code = ranks_pair(in_a, words, arena_printf(mem(), "-wdir %s", backward), words);
    if (code != EXIT_CONFIG || !strstr(mpi_said(), "disagree on the schedule of the "))
        test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, mpi_said());
    EXPECT(!file_exists(in_temp("run")));
    EXPECT_INT(ranks_pair(in_a, words, in_a, words), 0);
}

/* Rank 1 has other variables of its environment. */
static void refuse_variables(const char *first, const char *second, const char *part) {
    const char *words = arena_printf(mem(), "%s --output_dir %s", runs_small_config(4, 4),
                                     in_temp("run"));
    int code = ranks_pair(first, words, second, words);
    if (code != EXIT_CONFIG || !strstr(mpi_said(), part))
        test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, mpi_said());
}

/* What rank 0 alone finds out is the failure of all: no other rank has other files. */
TEST(a_search_of_rank_0_that_fails) {
    pid_t pid = ranks_start(2, runs_small_config(4, 4), in_temp("run"),
                            "--parallel_config.data_parallel 2 "
                            "--recompute_config.recompute auto");
    ranks_end(pid, EXIT_CONFIG, "recompute auto without a limit");
    SAID_EXPECT("recompute auto makes the plan fit context.max_device_memory");
    SAID_EXPECT("1 other rank said the same");
    EXPECT(!strstr(said(), "has no such failure"));
}

/* Of all stages the one that lacks most is told, as the plan tells it. */
TEST_LIMIT(a_stage_that_does_not_fit, 120) {
    static const char *const layers[] = {"[6,1,1]", "[1,6,1]", "[1,1,6]"};
    const char *config = runs_small_config(4, 4), *run = in_temp("run");
    for (int i = 0; i < ARRAY_LEN(layers); i++) {
        const char *more = arena_printf(
            mem(),
            "--model.model_config.num_layers 8 --model.model_config.hidden_size 128 "
            "--parallel_config.pipeline_stage 3 "
            "--parallel_config.micro_batch_num 4 --parallel_config.num_layer_list %s "
            "--context.max_device_memory 54MB",
            layers[i]);
        RUN_EXPECT(EXIT_MEMORY, arena_printf(mem(), "plan %s -n 3 %s", config, more));
        const char *needs = strstr(said(), "the plan needs "), *end;
        EXPECT(needs && (end = strstr(needs, ", and the process")));
        needs = arena_strndup(mem(), needs, (size_t)(end - needs));
        EXPECT(ends_with(needs, arena_printf(mem(), "on every rank of stage %d", i)));
        pid_t pid = ranks_start(3, config, run, more);
        ranks_end(pid, EXIT_MEMORY, layers[i]);
        SAID_EXPECT(needs);
        SAID_EXPECT("hint: fewer layers there (parallel_config.num_layer_list)");
        SAID_EXPECT(arena_printf(mem(), "stator: rank %d of 3 ", i));
    }
}

TEST(another_jit_level) {
    refuse_variables("-x STATOR_JIT_LEVEL=O0", "-x STATOR_JIT_LEVEL=O2",
                     "ranks disagree on the JIT level: ");
}

/* Generated code has the shares of the threads in it. */
TEST(another_number_of_threads) {
    refuse_variables("-x STATOR_THREADS=1", "-x STATOR_THREADS=2",
                     "has 'threads 2', rank 0 has 'threads 1'; ");
}

/* ---- one compiler ---- */

static int entries(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Each rank has a cache of its own: only rank 0's is used, and both train. */
TEST(rank_0_compiles_for_all) {
    const char *config = runs_small_config(4, 4), *run = in_temp("run");
    const char *cache[2] = {in_temp("cache0"), in_temp("cache1")};
    const char *words = arena_printf(mem(), "%s --output_dir %s %s", config, run,
                                     "--parallel_config.model_parallel 2");
    for (int again = 0; again < 2; again++) {
        int code = ranks_pair(arena_printf(mem(), "-x STATOR_CACHE=%s", cache[0]), words,
                              arena_printf(mem(), "-x STATOR_CACHE=%s", cache[1]), words);
        if (code) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, mpi_said());
        const Json *plan =
            json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 20, EXIT_DATA);
        double seconds = json_f64(json_need(plan, "codegen_seconds"));
        printf("  code on two ranks in %.3f s%s\n", seconds, again ? " (cached)" : "");
        EXPECT((strstr(mpi_said(), "(from the cache)") != NULL) == (again == 1));
        EXPECT(entries(cache[0]) > 0 && entries(cache[1]) == 0);
        remove_all(run);
    }
}

/* ---- divergence ---- */

TEST_LIMIT(divergence_ends_all_ranks_after_the_same_step, 120) {
    const char *config = runs_small_config(200, 10), *run = in_temp("run");
    pid_t launch =
        ranks_start(4, config, run,
                    "--parallel_config.data_parallel 2 "
                    "--parallel_config.model_parallel 2 " ZERO_LEVEL(
                        2) "--runner_wrapper.use_clip_grad False "
                           "--optimizer.type SGD --lr_schedule.learning_rate 1000 "
                           "--optimizer.weight_decay 900");
    ranks_end(launch, EXIT_DIVERGED, "a huge learning rate");
    int n;
    const MetricsRow *row = runs_metrics(run, &n);
    EXPECT(n > 10 && n < 200 && !row[n - 11].skipped);
    for (int i = n - 10; i < n; i++) EXPECT(row[i].skipped);
    EXPECT(file_exists(arena_printf(mem(), "%s/ckpt/step_%08d", run, n)));
    EXPECT(file_exists(path_join(mem(), run, "loss.svg")));
    EXPECT_INT(count(said(), "stator: error: "), 1);
    SAID_EXPECT(arena_printf(mem(), "not finite in 10 steps up to step %d; ", n));
    for (int r = 0; r < 4; r++) {
        EXPECT_INT(count(ranks_log(run, r), "ERROR: the run has diverged"), 1);
        EXPECT_INT(count(ranks_log(run, r), "is skipped: "), 10);
    }
}

/* ---- what is said ---- */

/* mpirun gives rank 0 a terminal, whatever launch's own stdout is. */
TEST(no_bar_in_a_file) {
    const char *config = runs_small_config(10, 10), *run = in_temp("run");
    ranks_run(2, config, run, "--runner_config.log_interval 3");
    EXPECT(count(said(), "\033") == 0 && count(said(), "\r") == 0);
    EXPECT_INT(count(said(), "\nstep "), 4);
    EXPECT_INT(count(ranks_log(run, 0), "\nstep "), 4);
    EXPECT_INT(count(ranks_log(run, 0), "\nstep 10/10 | loss "), 1);
}

/* ---- threads ---- */

static int threads_under(const char *flags) {
    const char *run = in_temp("run");
    const char *words = arena_printf(mem(), "%s train %s --output_dir %s",
                                     stator_program(), runs_small_config(4, 4), run);
    unsetenv("STATOR_THREADS");
    unsetenv("OMP_NUM_THREADS");
    EXPECT_MPI(2, flags, words);
    const Json *plan =
        json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 20, EXIT_DATA);
    remove_all(run);
    return (int)json_f64(json_need(plan, "threads"));
}

/* Where nobody says a number: the plan of some ranks is that of their run. */
TEST(threads_of_a_plan) {
    const char *config = runs_small_config(4, 4), *run = in_temp("run");
    unsetenv("STATOR_THREADS");
    unsetenv("OMP_NUM_THREADS");
    for (int ranks = 1; ranks <= 2; ranks++) {
        remove_all(run);
        ranks_run(ranks, config, run, "--train_steps 4");
        const Json *plan =
            json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 20, EXIT_DATA);
        int threads = MAX(1, rt_cores() / ranks);
        EXPECT_INT(json_i64(json_need(plan, "threads"), 0, 4096), threads);
        static const char *const how[] = {"-n", "--parallel_config.data_parallel"};
        for (int i = 0; i < ARRAY_LEN(how); i++) {
            RUN_EXPECT(0, arena_printf(mem(), "plan %s --train_steps 4 %s %d", config,
                                       how[i], ranks));
            SAID_EXPECT(arena_printf(mem(), "plan %s of %d thread",
                                     json_string(json_need(plan, "plan_hash")), threads));
        }
    }
}

/* Of another machine: with its cores, which may be more than this one starts threads. */
TEST(threads_of_another_machine) {
    static const struct Case {
        int cores, host_ranks, ranks, threads;
    } c[] = {{1, 1, 1, 1}, {96, 2, 2, 48}, {96, 1, 2, 96}, {2048, 1, 2, 2048}};
    const char *config = runs_small_config(4, 4), *file = in_temp("machine.yaml");
    for (int i = 0; i < ARRAY_LEN(c); i++) {
        write_text(file, arena_printf(mem(),
                                      "name: other\ncores: %d\nhost_ranks: %d\n"
                                      "links: {host: {start_us: 1, gbytes: 12}, "
                                      "network: {start_us: 2, gbytes: 11}}\n"
                                      "ranks: [{ranks: 1, threads: 1, f32_gflops: 50, "
                                      "bf16_gflops: 50}]\n",
                                      c[i].cores, c[i].host_ranks));
        RUN_EXPECT(0, arena_printf(mem(), "plan %s -n %d --machine %s", config,
                                   c[i].ranks, file));
        SAID_EXPECT(arena_printf(mem(), " of %d thread%s a rank", c[i].threads,
                                 c[i].threads > 1 ? "s" : ""));
    }
}

/* Ranks of a host that nobody gave cores share them; who says a number gets it. */
TEST(threads_of_plain_mpirun) {
    int cores = rt_cores();
    EXPECT_INT(threads_under(""), MAX(1, cores / 2));
    EXPECT_INT(threads_under("-x OMP_NUM_THREADS=3,1"), 3);
    EXPECT_INT(threads_under("-x OMP_NUM_THREADS=3 -x STATOR_THREADS=2"), 2);
    EXPECT_INT(threads_under("-x OMP_NUM_THREADS=3 -x OMP_THREAD_LIMIT=2"), 2);
    EXPECT_INT(threads_under("-x OMP_THREAD_LIMIT=1"), 1);
}

TEST(a_number_of_threads_that_is_none) {
    setenv("STATOR_THREADS", "abc", 1);
    RUN_EXPECT(EXIT_CONFIG, arena_printf(mem(), "train %s --output_dir %s",
                                         runs_small_config(4, 4), in_temp("run")));
    SAID_EXPECT("STATOR_THREADS=abc: write a number from 1 to 4096");
}

/* As users start it: ranks with cores of their own, whose threads wait as they like. The runner
 * of these tests says otherwise to all that it starts. */
TEST_LIMIT(ways_to_wait_change_no_bit, 120) {
    const char *config = runs_small_config(6, 6);
    const char *more = "--parallel_config.data_parallel 2 " ZERO_LEVEL(1);
    const char *shared = in_temp("shared"), *own = in_temp("own");
    ranks_run(2, config, shared, more);
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
    unsetenv("OMP_WAIT_POLICY");
    ranks_run(2, config, own, more);
    runs_expect_same_tensors(shared, own, 6);
}
