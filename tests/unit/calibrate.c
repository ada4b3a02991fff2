/* stator calibrate in its small form: the file is whole, keeps sections of other numbers of
 * ranks, and plans take it. */
#include "frontend/calibrate/calibrate.h"
#include "../test.h"
#include "frontend/config/machine_file.h"
#include "profiled.h"
#include "runs.h"
#include <math.h>

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

static void expect_section(const Machine *m, int i, int ranks) {
    const MachineRank *r = &m->rank[i];
    EXPECT_INT(r->ranks, ranks);
    EXPECT(r->threads >= 1 && r->flops[0] > 0 && r->flops[1] > 0);
    EXPECT(r->memory.n && r->in_place.n && r->reads.n && r->ninner && r->nelements);
    EXPECT_INT(r->nproducts, 6);
    for (int k = 0; k < r->nproducts; k++) EXPECT(r->product[k].rate[0] > 0);
    EXPECT(r->residual[0] != 0 && r->residual[1] != 0);
}

static const Machine *calibrated(const char *words) {
    const char *path = in_temp("machine.yaml");
    RUN_EXPECT(0, arena_printf(mem(), "calibrate --quick --output %s%s", path, words));
    return machine_read(mem(), path);
}

TEST_LIMIT(sections_of_other_numbers_of_ranks_stay, 120) {
    const Machine *m = calibrated("");
    EXPECT_INT(m->nranks, 1);
    expect_section(m, 0, 1);
    EXPECT(m->cores >= 1 && m->op_start_seconds > 0 && !m->ncollectives);
    EXPECT(m->name[0] && m->host[0]);
    EXPECT_PART(m->made_on, "oneDNN");
    bool crowded = m->cores < 2;
    m = calibrated(" -n 2");
    EXPECT_INT(m->nranks, 2 - crowded);
    expect_section(m, 0, 1);
    if (!crowded) expect_section(m, 1, 2);
    EXPECT_INT(m->ncollectives, 5);
    for (int i = 0; i < m->ncollectives; i++) {
        const CollectiveCurve *c = &m->collective[i];
        EXPECT(c->group == 2 && c->ranks == 2 && c->level == LINK_HOST &&
               c->seconds.n > 1);
        for (int k = 0; k < c->seconds.n; k++) EXPECT(c->seconds.y[k] > 0);
    }
    EXPECT(m->link[LINK_HOST].start_seconds !=
           machine_plain.link[LINK_HOST].start_seconds);
    write_text(
        in_temp("small.yaml"),
        "model:\n  model_config: {type: GPT2Config, vocab_size: 256, seq_length: 32,\n"
        "    num_layers: 1, hidden_size: 32, num_heads: 2, eos_token: -1}\n");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n 2 --machine %s", in_temp("small.yaml"),
                               in_temp("machine.yaml")));
    SAID_EXPECT("s a step on ");
    EXPECT(!strstr(said(), "note: the rates are those of host"));
    EXPECT(!strstr(said(), "note: messages were measured"));
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n 4 --machine %s", in_temp("small.yaml"),
                               in_temp("machine.yaml")));
    SAID_EXPECT(
        "note: messages were measured with at most 2 ranks of a host, here are 4: "
        "stator calibrate -n 4 measures these");
    Machine other = *m;
    other.host = "elsewhere";
    Text text = text_new(mem());
    machine_print(&other, NULL, &text);
    write_text(in_temp("machine.yaml"), text.s);
    RUN_EXPECT(0, arena_printf(mem(), "plan %s -n 2 --machine %s", in_temp("small.yaml"),
                               in_temp("machine.yaml")));
    SAID_EXPECT("note: the rates are those of host elsewhere");
    RUN_EXPECT(0, arena_printf(mem(), "plan %s --json --machine %s",
                               in_temp("small.yaml"), in_temp("machine.yaml")));
    SAID_EXPECT("\"of_other_host\": true");
}

/* Two ranks a core: what they compute is not measured, and how late they see a message is, if a
 * core has a neighbour to get one from. */
TEST_LIMIT(ranks_that_share_cores_measure_messages, 120) {
    const Machine *m = calibrated("");
    int cores = m->cores;
    EXPECT(m->notice_seconds == 0);
    if (cores > 4) return; /* as many ranks take long */
    RUN_EXPECT(2, arena_printf(mem(), "calibrate --quick --output %s -n %d",
                               in_temp("other.yaml"), 2 * cores));
    SAID_EXPECT("run stator calibrate -o ");
    EXPECT(!file_exists(in_temp("other.yaml")));
    m = calibrated(arena_printf(mem(), " -n %d", 2 * cores));
    EXPECT_INT(m->nranks, 1);
    EXPECT(m->ncollectives >= 5);
    EXPECT((m->notice_seconds > 0) == (cores > 1));
}

TEST(rounds_count_alike_unless_one_was_disturbed) {
    EXPECT_NEAR(calibrate_mean((double[]){1, 1.2}), 1.1, 1e-12);
    EXPECT_NEAR(calibrate_mean((double[]){1.2, 1}), 1.1, 1e-12);
    EXPECT_NEAR(calibrate_mean((double[]){1, 1.3}), 1, 1e-12);
    EXPECT_NEAR(calibrate_mean((double[]){3, 1}), 1, 1e-12);
}

/* Of 4 x 4 x 4 points; how many dips there are. */
static int dips_of(const double rate[64], int *first) {
    double of[64];
    memcpy(of, rate, sizeof of);
    ProductTable p = {.n = 4, .rate = of};
    int n = 0;
    for (int at = 63; at >= 0; at--) {
        if (!calibrate_is_dip(&p, at)) continue;
        *first = at;
        n++;
    }
    return n;
}

TEST(a_product_much_slower_than_those_of_the_next_sizes_is_a_dip) {
    double even[64], grows[64], rest[64];
    int at = -1;
    for (int i = 0; i < 64; i++) {
        int size = i / 16 + i / 4 % 4 + i % 4;
        even[i] = 200 - 5 * (i % 3);
        grows[i] = 20 * pow(1.15, size);
        rest[i] = size < 7 ? 200 : 0; /* not measured */
    }
    EXPECT_INT(dips_of(even, &at), 0);
    EXPECT_INT(dips_of(rest, &at), 0);
    for (int i = 1; i < 63; i++) {
        double was = even[i];
        even[i] = 150;
        EXPECT_INT(dips_of(even, &at), 1);
        EXPECT_INT(at, i);
        even[i] = was;
    }
    even[21] = even[37] = 120; /* beside each other */
    EXPECT_INT(dips_of(even, &at), 2);
    EXPECT_INT(at, 21);
    rest[42] = 160;
    EXPECT_INT(dips_of(rest, &at), 1);
    EXPECT_INT(dips_of(grows, &at), 0);
}

TEST(counts_that_are_none_are_refused) {
    RUN_EXPECT(2, "calibrate -n 0");
    SAID_EXPECT("write counts of ranks such as 1,2,4");
    RUN_EXPECT(2, "calibrate -n 2,x");
    RUN_EXPECT(2, "calibrate --machine a");
    RUN_EXPECT(3, arena_printf(mem(), "calibrate --quick --output %s",
                               in_temp("none/machine.yaml")));
}

/* The same machine, named in plan and run: what is predicted is what the plan says. */
static void expect_predicted(const char *launch, const char *words, bool profiled) {
    const char *file = path_join(mem(), tests_dir(), "../machines/a100.yaml");
    const char *config = in_temp("run.yaml"), *run = in_temp("predicted");
    write_text(config, arena_printf(mem(), runs_small_yaml, runs_text(), 4, 0));
    RUN_EXPECT(
        0, arena_printf(mem(), "plan %s --json --machine %s %s", config, file, words));
    const Json *plan =
        json_parse(mem(), "plan", said(), strlen(said()), 1 << 20, EXIT_DATA);
    double planned = json_get_f64(plan, "step_seconds", 0);
    EXPECT(planned > 0);
    RUN_EXPECT(0,
               arena_printf(mem(), "%strain %s --machine %s --output_dir %s %s%s", launch,
                            config, file, run, words, profiled ? " --profile" : ""));
    SAID_EXPECT("predicted ");
    SAID_EXPECT("(median of 3)");
    EXPECT(!strstr(said(), "  products ") == !profiled);
    size_t n;
    char *text =
        file_read(mem(), path_join(mem(), run, "predicted.json"), 1 << 16, &n, EXIT_DATA);
    const Json *v = json_parse(mem(), "predicted", text, n, 1 << 16, EXIT_DATA);
    const Json *said_ = json_need(v, "predicted"), *took = json_need(v, "measured");
    EXPECT_NEAR(json_get_f64(said_, "step_seconds", 0) / planned, 1, 1e-4);
    double measured = json_get_f64(took, "step_seconds", 0);
    EXPECT(measured > 0);
    EXPECT((json_get(took, "products") != NULL) == profiled);
    double slowest =
        0; /* products are a mean over steps, the measured seconds their median */
    int steps;
    const MetricsRow *row = runs_metrics(run, &steps);
    for (int i = 0; i < steps; i++) slowest = MAX(slowest, row[i].seconds);
    if (profiled) EXPECT(json_get_f64(took, "products", 0) < slowest);
    text = file_read(mem(), path_join(mem(), run, "plan.json"), 1 << 20, &n, EXIT_DATA);
    EXPECT_PART(text, "\"predicted_step_seconds\": ");
    if (profiled) profiled_remove_maps(run);
    remove_all(run);
}

TEST(runs_say_what_was_predicted) {
    expect_predicted("", "--context.threads 1", true);
    expect_predicted("launch -n 2 --threads 1 ",
                     "--context.threads 1 --parallel_config.data_parallel 2", false);
    expect_predicted("launch -n 2 --threads 1 ",
                     "--context.threads 1 --parallel_config.pipeline_stage 2", true);
}

TEST(what_caches_lose_tells_how_long_they_keep_it) {
    const double pause[] = {1e-3, 3e-3, 1e-2, 3e-2}, keeps[] = {5e-4, 3e-3, 2e-2};
    for (int k = 0; k < ARRAY_LEN(keeps); k++) {
        double lost[ARRAY_LEN(pause)];
        for (int i = 0; i < ARRAY_LEN(pause); i++)
            lost[i] = 1 - exp(-pause[i] / keeps[k]);
        double found = calibrate_keeps_seconds(pause, lost, ARRAY_LEN(pause));
        EXPECT_NEAR(found / keeps[k], 1, 0.01);
    }
}
