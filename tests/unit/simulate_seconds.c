/* simulate_seconds.c - stator simulate --seconds: the command, what it says, what it refuses. */
#include "../simulations.h"
#include "base/json.h"
#include "command.h"
#include "frontend/simulate/seconds.h"

#define A100 TESTS_DIR "/../machines/a100.yaml"

static char *config_path(void) {
    char *path = temp("seconds.yaml");
    write_text(path, simulated_gpt2);
    return path;
}

#define SECONDS(...)                                                                     \
    run(cmd_simulate, config_path(), "--seconds", "--machine", A100, "-n", "32",         \
        "--parallel_config.pipeline_stage", "2", "--parallel_config.model_parallel",     \
        "2", "--parallel_config.micro_batch_num", "4", __VA_ARGS__, (char *)NULL)

static const Json *seconds_json_of(Arena *mem) {
    EXPECT_INT(code, 0);
    return json_parse(mem, "stdout", printed, strlen(printed), 1 << 20, EXIT_DATA);
}

static double number(const Json *j, const char *key) {
    return json_f64(json_need(j, key));
}

TEST(the_command_says_what_a_slow_rank_costs) {
    Arena *mem = arena_new();
    SECONDS("--slow_rank", "13=3", "--json");
    const Json *j = seconds_json_of(mem);
    double ideal = number(j, "ideal_seconds"), slow = number(j, "median_seconds");
    EXPECT_INT(json_i64(json_need(j, "ranks"), 0, 1000), 32);
    EXPECT(slow > 1.5 * ideal && slow < 3 * ideal);
    const Json *first = json_need(j, "waited_for")->first;
    EXPECT_INT(json_i64(json_need(first, "rank"), 0, 1000), 13);
    EXPECT_INT(json_i64(json_need(first, "host"), 0, 1000), 1);
    EXPECT(number(first, "share") > 0.99);
    const Json *row = json_need(j, "rank_seconds");
    double sum = 0, none = 0;
    for (const Json *r = row->first; r; r = r->next) {
        sum += number(r, "mean");
        none += number(r, "ideal");
    }
    EXPECT_NEAR(sum / slow, 1, 1e-12);
    EXPECT_NEAR(none / ideal, 1, 1e-12);
    /* So does the plan. */
    run(cmd_plan, config_path(), "--machine", A100, "-n", "32",
        "--parallel_config.pipeline_stage", "2", "--parallel_config.model_parallel", "2",
        "--parallel_config.micro_batch_num", "4", "--json", (char *)NULL);
    double planned = number(seconds_json_of(mem), "step_seconds");
    EXPECT_NEAR(planned / ideal, 1, 1e-5); /* it has six digits */
    arena_free(mem);
}

TEST(the_command_prints_a_table_and_draws) {
    char *svg = temp("seconds.svg");
    SECONDS("--slow_rank=host1=1.5", "--slow_link=host0-host2=4", "--slow_link=2-4=2",
            "--jitter=lognormal:0.05", "--message_jitter=pareto:0.1:2.5",
            "--rank_jitter=normal:0.02", "--steps=5", "--seed=3",
            arena_printf(arena_new(), "--svg=%s", svg));
    EXPECT_INT(code, 0);
    EXPECT_PART(printed, "simulated 32 ranks = pp 2 x dp 8 x tp 2");
    EXPECT_PART(printed, "slow      compute of rank host1=1.5\n");
    EXPECT_PART(printed, "slow      link host0-host2=4\n");
    EXPECT_PART(printed, "jitter    of messages pareto:0.1:2.5\n");
    EXPECT_PART(printed, "in 95 % of the steps");
    EXPECT_PART(printed, "waits: data parallel (dp)");
    EXPECT_PART(printed, "waits: pipeline (other stages)");
    EXPECT_PART(printed, "(stage 0, dp ");
    size_t n;
    Arena *mem = arena_new();
    const char *drawn = file_read(mem, svg, 1 << 22, &n, EXIT_DATA);
    EXPECT_PART(drawn, ">rank ");
    arena_free(mem);
}

/* The end of all events of a rank is that of its step, no event of a thread leaves another, and
 * there are such of all kinds. */
static void expect_trace(Arena *mem, const char *path, double seconds, int first_rank) {
    static const char *const kinds[] = {"task", "compute", "collective", "call",
                                        "message"};
    const Json *j = json_read(mem, path, 1 << 24, EXIT_DATA);
    int count[ARRAY_LEN(kinds)] = {0};
    double last = 0, ends[16];
    int depth = 0;
    for (const Json *e = json_need(j, "traceEvents")->first; e; e = e->next) {
        if (strcmp(json_string(json_need(e, "ph")), "X")) continue;
        EXPECT_INT(json_i64(json_need(e, "pid"), 0, 100) % 16, first_rank);
        double begin = number(e, "ts"), end = begin + number(e, "dur");
        for (int k = 0; k < ARRAY_LEN(kinds); k++)
            count[k] += !strcmp(json_string(json_need(e, "cat")), kinds[k]);
        last = MAX(last, end);
        if (number(e, "tid") > 0) continue;
        if (!strcmp(json_string(json_need(e, "cat")), "step")) depth = 0;
        while (depth && ends[depth - 1] <= begin + 2e-3) depth--; /* whole nanoseconds */
        EXPECT(!depth || end <= ends[depth - 1] + 2e-3);
        EXPECT(depth < ARRAY_LEN(ends));
        ends[depth++] = end;
    }
    for (int k = 0; k < ARRAY_LEN(kinds); k++) EXPECT(count[k] >= 8);
    EXPECT_NEAR(1e-6 * last / seconds, 1, 1e-5); /* of a step of 1e-3 s and more */
}

TEST(a_trace_is_the_step) {
    Arena *mem = arena_new();
    char *path = temp("step.json");
    run(cmd_plan, config_path(), "--machine", A100, "-n", "32",
        "--parallel_config.pipeline_stage", "2", "--parallel_config.model_parallel", "2",
        "--parallel_config.micro_batch_num", "4", "--json", "--trace", path,
        (char *)NULL);
    expect_trace(mem, path, number(seconds_json_of(mem), "step_seconds"), 0);
    SECONDS("--slow_rank", "13=3", "--json", "--trace", path);
    expect_trace(mem, path, number(seconds_json_of(mem), "median_seconds"), 13);
    run(cmd_plan, config_path(), "--trace", path, (char *)NULL);
    refused(EXIT_CONFIG, "needs a machine");
    char *machine = temp("few.yaml");
    write_text(machine, "name: few\ncores: 1\n"
                        "links:\n  host: {start_us: 1, gbytes: 1}\n"
                        "ranks:\n- {ranks: 1, threads: 1, f32_gflops: 10, bf16_gflops: "
                        "10}\n");
    run(cmd_plan, config_path(), "--machine", machine, "--trace", path,
        "--parallel_config.pipeline_stage", "2", (char *)NULL);
    refused(EXIT_CONFIG, "2 stages share the cores of a host");
    write_text(machine, "name: slow\nlinks: {host: {start_us: 1, gbytes: 1}}\n"
                        "ranks: [{f32_gflops: 1, bf16_gflops: 1,\n"
                        "  memory: {bytes: [1], gbytes: [1.e-12]}}]\n");
    run(cmd_plan, config_path(), "--machine", machine, "--trace", path, "-n", "2",
        (char *)NULL);
    refused(EXIT_CONFIG, "a trace has nanoseconds of 9000000 s at most");
    arena_free(mem);
}

/* Sums of the tasks of two ranks, which are all that the trace has. */
static void add_tasks(Arena *mem, const char *path, const int rank[2], double sum[2]) {
    const Json *j = json_read(mem, path, 1 << 24, EXIT_DATA);
    sum[0] = sum[1] = 0;
    for (const Json *e = json_need(j, "traceEvents")->first; e; e = e->next) {
        if (strcmp(json_string(json_need(e, "ph")), "X")) continue;
        int64_t pid = json_i64(json_need(e, "pid"), 0, 100);
        EXPECT(pid == rank[0] || pid == rank[1]);
        if (!strcmp(json_string(json_need(e, "cat")), "compute"))
            sum[pid == rank[1]] += number(e, "dur");
    }
}

/* The slow rank and the one of the other stage with its coordinates, however ranks are numbered;
 * also where it is as fast as the others. */
TEST(a_slow_rank_is_shown_in_any_order) {
    static const struct {
        const char *order;
        int slow, shown[2]; /* of the stages */
    } c[] = {{"tp-cp-dp-pp", 13, {13, 29}}, {"tp-cp-dp-pp", 22, {6, 22}},
             {"tp-cp-pp-dp", 13, {13, 15}}, {"tp-cp-pp-dp", 22, {20, 22}},
             {"pp-tp-cp-dp", 13, {12, 13}}, {"dp-pp-tp-cp", 13, {5, 13}}};
    Arena *mem = arena_new();
    char *trace = temp("shown.json"), *svg = temp("shown.svg");
    for (int i = 0; i < 2 * ARRAY_LEN(c); i++) {
        const int k = i / 2, factor = i % 2 ? 3 : 1, *shown = c[k].shown;
        test_at("%s, rank %d, %d times", c[k].order, c[k].slow, factor);
        SECONDS("--parallel_config.rank_order", arena_strdup(mem, c[k].order),
                "--slow_rank", arena_printf(mem, "%d=%d", c[k].slow, factor), "--trace",
                trace, "--svg", svg);
        EXPECT_INT(code, 0);
        double sum[2];
        add_tasks(mem, trace, shown, sum);
        int slow = c[k].slow == shown[1];
        EXPECT(sum[slow] > 0 && sum[!slow] > 0);
        EXPECT((sum[slow] > 2 * sum[!slow]) == (factor > 1));
        const char *drawn = file_read(mem, svg, 1 << 22, NULL, EXIT_DATA);
        for (int n = 0; n < 2; n++)
            EXPECT_PART(drawn, arena_printf(mem, ">rank %d<", shown[n]));
    }
    arena_free(mem);
}

TEST(a_seed_gives_its_steps_on_any_threads) {
    char first[sizeof printed];
    for (int i = 0; i < 2; i++) {
        setenv("STATOR_THREADS", i ? "3" : "1", 1);
        SECONDS("--jitter", "exponential:0.1", "--steps", "7", "--seed", "5", "--json");
        EXPECT_INT(code, 0);
        *strstr(printed, "  \"plan_seconds\"") = 0;
        if (i) EXPECT_STR(printed, first);
        strcpy(first, printed);
    }
}

TEST(what_does_not_fit_is_refused) {
    SECONDS("--slow_rank", "32=2");
    refused(EXIT_CONFIG, "--slow_rank 32=2: there are 32 ranks, from 0 on");
    SECONDS("--slow_rank", "host4=2");
    refused(EXIT_CONFIG, "there are 4 hosts");
    SECONDS("--slow_rank", "3");
    refused(EXIT_CONFIG, "write it as one of 5=1.5");
    SECONDS("--slow_rank", "3=0.5");
    refused(EXIT_CONFIG, "the factor is a number from 1 to 1e6");
    SECONDS("--slow_rank", "3=nan");
    refused(EXIT_CONFIG, "the factor is a number from 1 to 1e6");
    SECONDS("--slow_rank", "5-3=2");
    refused(EXIT_CONFIG, "the first is above the last");
    SECONDS("--slow_rank", "99999999999999999999=2");
    refused(EXIT_CONFIG, "write it as one of");
    SECONDS("--slow_link", "3=2");
    refused(EXIT_CONFIG, "a link has two ends");
    SECONDS("--slow_link", "3-3=2");
    refused(EXIT_CONFIG, "both ends are one");
    SECONDS("--slow_link", "host1-3=2");
    refused(EXIT_CONFIG, "write it as one of 5-6=4");
    SECONDS("--jitter", "normal");
    refused(EXIT_CONFIG, "--jitter normal: DEVIATION is a number");
    SECONDS("--slow_rank", "3=1e6", "--slow_rank", "3=1e6", "--slow_rank", "3=2");
    refused(EXIT_CONFIG, "--slow_rank: all factors together are more than 1e12");
    SECONDS("--jitter", "spike:1:0.5");
    refused(EXIT_CONFIG, "FACTOR is a number");
    run(cmd_simulate, config_path(), "--trace", "t.json", (char *)NULL);
    refused(EXIT_CONFIG, "--trace is an option of --seconds");
    SECONDS("--full");
    refused(EXIT_CONFIG, "--full is none of --seconds");
    run(cmd_simulate, config_path(), "--slow_rank", "3=2", (char *)NULL);
    refused(EXIT_CONFIG, "--slow_rank is an option of --seconds");
    run(cmd_simulate, config_path(), "--steps", "101", (char *)NULL);
    refused(EXIT_CONFIG, "--steps: 100 at most, without --seconds");
    run(cmd_simulate, config_path(), "--seconds", (char *)NULL);
    refused(EXIT_CONFIG, "--seconds needs a machine");
    run(cmd_simulate, config_path(), "--seconds", "--machine", A100, "--svg", "x.svg",
        (char *)NULL);
    refused(EXIT_CONFIG, "there is one stage");
    run(cmd_simulate, config_path(), "--seconds", "--machine", A100, "--slow_link",
        "host0=2", (char *)NULL);
    refused(EXIT_CONFIG, "all ranks are on one host");
}

/* On a host with fewer cores than ranks a slow one slows its neighbours. */
TEST(shared_cores_are_refused) {
    char *machine = temp("few.yaml");
    write_text(machine,
               "name: few\ncores: 2\nhost_ranks: 4\n"
               "links:\n  host: {start_us: 1, gbytes: 1}\n"
               "ranks:\n- {ranks: 2, threads: 1, f32_gflops: 10, bf16_gflops: 10}\n");
    run(cmd_simulate, config_path(), "--seconds", "--machine", machine, "-n", "4",
        (char *)NULL);
    refused(EXIT_CONFIG, "4 ranks of 1 thread share the 2 cores of a host");
    EXPECT_PART(message, "hint: a machine whose host_ranks have cores");
    run(cmd_simulate, config_path(), "--seconds", "--machine", machine, "-n", "2",
        (char *)NULL);
    EXPECT_INT(code, 0);
}
