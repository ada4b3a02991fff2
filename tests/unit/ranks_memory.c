/* Tests of memory on several ranks: what is resident is what the plan says, and
 * strategies lower weights, states and activations as they should. */
#include "frontend/config/commands.h"
#include "ranks.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { HIDDEN = 512, SEQ = 128, VOCAB = 8192 };

static const char large_yaml[] =
    "seed: 7\n"
    "model:\n"
    "  model_config:\n"
    "    type: GPT2Config\n"
    "    vocab_size: %d\n"
    "    seq_length: %d\n"
    "    hidden_size: %d\n"
    "    num_layers: %d\n"
    "    num_heads: 8\n"
    "    dropout_prob: 0.0\n"
    "    attention_probs_dropout_prob: 0.0\n"
    "train_dataset:\n"
    "  data_loader: {type: MegatronIndexed, dataset_dir: %s}\n"
    "runner_config: {max_steps: 1000, batch_size: %d}\n"
    "lr_schedule: {learning_rate: 1.e-3}\n"
    "callbacks:\n"
    "  - type: CheckpointMonitor\n"
    "    save_checkpoint_steps: 0\n";

static const char *large_config(int layers, int batch) {
    const char *config = in_temp(arena_printf(mem(), "large%d.yaml", layers));
    runs_pair_words();
    write_text(config, arena_printf(mem(), large_yaml, VOCAB, SEQ, HIDDEN, layers,
                                    in_temp("tokens"), batch));
    return config;
}

/* ---- measured ---- */

static int64_t plan_bytes(const Json *plan, const char *class) {
    return json_i64(json_need(json_need(plan, "memory_bytes"), class), 0, INT64_MAX);
}

static int64_t state_bytes(const Json *plan) {
    return plan_bytes(plan, "weights") + plan_bytes(plan, "optimizer") +
           plan_bytes(plan, "gradients");
}

/* Trains some steps on two ranks; each must be as large as planned. Returns the plan. */
static const Json *measure(const char *config, const char *words) {
    const char *run = in_temp("run");
    pid_t rank[2], launch = ranks_start(2, config, run, words);
    ranks_wait_start(launch, rank, 2);
    EXPECT(runs_wait_steps(launch, run, 2));
    int64_t resident[2] = {runs_resident_bytes(rank[0]), runs_resident_bytes(rank[1])};
    kill(rank[0], SIGKILL);
    ranks_end(launch, 128 + SIGKILL, words);
    const Json *plan =
        json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 24, EXIT_DATA);
    remove_all(run);
    int64_t planned = json_i64(json_need(plan, "resident_bytes"), 1, INT64_MAX);
    for (int r = 0; r < 2; r++) {
        double ratio = (double)resident[r] / (double)planned;
        printf("  rank %d has %.0f MB of %.0f MB planned: %.3f %s\n", r,
               (double)resident[r] / 1e6, (double)planned / 1e6, ratio, words);
        if (!(ratio > 0.95 && ratio < 1.05))
            test_fail(__FILE__, __LINE__, "rank %d: resident %lld, planned %lld: %s", r,
                      (long long)resident[r], (long long)planned, words);
    }
    return plan;
}

/* Weights, gradients and both of Adam's states in f32. Where weights are split, two
 * layers of them are gathered at a time. */
TEST_LIMIT(resident_as_planned_states_as_split, 180) {
    static const struct {
        const char *words;
        double bytes; /* of a parameter */
    } cases[] = {
        {"--parallel_config.data_parallel 2", 16},
        {ZERO_LEVEL(1), 8 + 8 / 2.0},
        {ZERO_LEVEL(2), 4 + 12 / 2.0},
        {ZERO_LEVEL(3), 16 / 2.0},
        {"--parallel_config.model_parallel 2 --parallel_config.vocab_emb_dp False "
         "--parallel_config.sequence_parallel True",
         16 / 2.0},
    };
    if (RANKS_SANITIZED) test_skip("the sanitizer's own memory is not in the plan");
    const char *config = large_config(8, 1);
    int64_t activations[ARRAY_LEN(cases)];
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        if (!test_long() && (i == 1 || i == 2))
            continue; /* whole and wholly split ones */
        /* what is in flight would come on top; in a step of one micro-batch gradients lie
         * over activations */
        const char *words = arena_printf(
            mem(), "%s --parallel.overlap off --parallel_config.micro_batch_num 2",
            cases[i].words);
        const Json *plan = measure(config, words);
        int64_t n = json_i64(json_need(plan, "parameters"), 1, INT64_MAX);
        double bytes = (double)state_bytes(plan) / (double)n;
        printf("  %.3f bytes a parameter\n", bytes);
        EXPECT(n > 29000000 && fabs(bytes / cases[i].bytes - 1) < 0.02);
        activations[i] = plan_bytes(plan, "activations");
    }
    double gathered = 2.0 * 4 * (12.0 * HIDDEN * HIDDEN + 13 * HIDDEN);
    /* where weights are whole the head's step may be the largest, with a factor packed */
    double packed = 4.0 * VOCAB * SEQ, more = (double)(activations[3] - activations[0]);
    EXPECT(more < 1.1 * gathered && more > 0.9 * gathered - packed);
}

/* ---- planned ---- */

static const Json *plan_of(const char *config, int ranks, const char *words) {
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n %d --json %s", config, ranks, words));
    const char *text = strchr(said(), '{'); /* behind notes */
    EXPECT(text != NULL);
    return json_parse(mem(), "the plan", text, strlen(text), 1 << 24, EXIT_DATA);
}

/* What a layer keeps for its gradients, from two depths at which that is most: 16 f32 values
 * for each of the hidden ones without dropout, of which 4 (what the norms and the first
 * products take) lie on all ranks of tensor parallelism unless the sequence is split there.
 * Gradients live through two micro-batches, and so lie over no activations. */
TEST_LIMIT(activations_of_a_layer, 120) {
    static const struct {
        int ranks;
        const char *words;
        double values;
    } cases[] = {
        {1, "", 16},
        {2, "--parallel_config.model_parallel 2", 4 + 12 / 2.0},
        {2, "--parallel_config.model_parallel 2 --parallel_config.sequence_parallel True",
         16 / 2.0},
        {4, "--parallel_config.model_parallel 4", 4 + 12 / 4.0},
        {4, "--parallel_config.model_parallel 4 --parallel_config.sequence_parallel True",
         16 / 4.0},
        {2, "--parallel_config.context_parallel 2", 16 / 2.0},
        {4,
         "--parallel_config.context_parallel 4 "
         "--parallel_config.context_parallel_algo megatron_cp_algo",
         16 / 4.0},
    };
    const char *shallow = large_config(8, 8), *deep = large_config(12, 8);
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const char *words =
            arena_printf(mem(),
                         "%s --recompute_config.recompute_elementwise False "
                         "--parallel_config.micro_batch_num 2",
                         cases[i].words);
        int64_t a = plan_bytes(plan_of(shallow, cases[i].ranks, words), "activations");
        int64_t b = plan_bytes(plan_of(deep, cases[i].ranks, words), "activations");
        double values = (double)(b - a) / 4 / (4.0 * 8 * SEQ * HIDDEN);
        printf("  %.2f values, wanted %.2f: %s\n", values, cases[i].values,
               cases[i].words);
        if (!(fabs(values / cases[i].values - 1) < 0.1))
            test_fail(__FILE__, __LINE__, "a layer keeps %.2f values, wanted %.2f: %s",
                      values, cases[i].values, cases[i].words);
    }
}

/* ---- limits ---- */

static const char *group; /* a cgroup of the test's own */
static const char *procs; /* its file of processes */

static void enter_group(void) {
    mpi_environment();
    const char *pid = arena_printf(mem(), "%d\n", (int)getpid());
    int fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, pid, strlen(pid)) != (ssize_t)strlen(pid)) _exit(99);
    close(fd);
}

static bool write_plain(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return good;
}

/* Of version 1 or 2, where this process may make one. */
static void make_group(const char *limit) {
    static const char *const kinds[][2] = {
        {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
        {"/sys/fs/cgroup", "memory.max"},
        {"/sys/fs/cgroup/unified", "memory.max"}};
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        group = arena_printf(mem(), "%s/stator-test-%d", kinds[i][0], (int)getpid());
        procs = path_join(mem(), group, "cgroup.procs");
        if (mkdir(group, 0755) != 0) continue;
        if (write_plain(path_join(mem(), group, kinds[i][1]), limit)) return;
        rmdir(group);
    }
    test_skip("no cgroup can be made here");
}

static int run_in_group(const char *launch, const char *config, const char *run) {
    driven_prepare = enter_group;
    return stator_wait(stator_start(
        arena_printf(mem(), "%strain %s --output_dir %s --runner_config.max_steps 1",
                     launch, config, run)));
}

/* Refused before anything is allocated, not killed by the kernel. */
TEST_LIMIT(a_cgroup_bounds_the_plan, 120) {
    if (RANKS_SANITIZED) test_skip("the sanitizer's own memory is not in the plan");
    const char *run = in_temp("run");
    make_group("1000000000");
    int large = run_in_group("", large_config(2, 130), run);
    const char *words = arena_strdup(mem(), said());
    int small = run_in_group("", large_config(2, 40), run);
    rmdir(group);
    if (large == 99) test_skip("no process can be put into a cgroup here");
    if (large != EXIT_MEMORY || !strstr(words, "(limit 1000.0 MB) leaves") ||
        !strstr(words, "activations") ||
        !strstr(words, ", or more memory from the sys") ||
        strstr(words, "max_device_memory"))
        test_fail(__FILE__, __LINE__, "exit code %d of 1.2 GB:\n%s", large, words);
    if (small)
        test_fail(__FILE__, __LINE__, "exit code %d of 0.8 GB:\n%s", small, said());
}

/* Two ranks have half of it each. */
TEST_LIMIT(a_cgroup_bounds_the_ranks_of_a_host_together, 120) {
    if (RANKS_SANITIZED) test_skip("the sanitizer's own memory is not in the plan");
    if (!mpi_available()) test_skip("there is no mpirun");
    make_group("1000000000");
    int code = run_in_group("launch -n 2 ", large_config(2, 60), in_temp("run"));
    rmdir(group);
    if (code == 99) test_skip("no process can be put into a cgroup here");
    EXPECT_INT(code, EXIT_MEMORY);
    SAID_EXPECT("(limit 1000.0 MB) leaves, for each of the 2 ranks here,");
}

/* Bytes of rank 0's process before the program has its memory. */
static int64_t process_bytes(int micro_batches) {
    const char *run = in_temp(arena_printf(mem(), "of%d", micro_batches));
    ranks_run(2, runs_small_config(4, 0), run,
              arena_printf(mem(),
                           "--context.jit_level O0 --batch_size 1 "
                           "--parallel_config.pipeline_stage 2 "
                           "--parallel_config.micro_batch_num %d",
                           micro_batches));
    const Json *plan =
        json_read(mem(), path_join(mem(), run, "plan.json"), 1 << 24, EXIT_DATA);
    return json_i64(json_need(plan, "process_bytes"), 1, INT64_MAX);
}

/* A list of its tasks, not what passes left when they made it; and nothing of the other stages,
 * which rank 0 plans too. */
TEST(a_process_keeps_little_of_each_micro_batch) {
    int64_t few = process_bytes(8), many = process_bytes(264);
    printf("  process %.1f MB with 8 micro-batches, %.1f MB with 264\n",
           (double)few / 1e6, (double)many / 1e6);
    EXPECT(many - few <= 256 * 40000);
}
