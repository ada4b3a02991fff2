/* Tests of recompute: auto against brute force: of all choices that exist, each planned, the
 * one with the least work that fits is as good as what the search found, for random
 * limits. */
#include "frontend/plan/recompute_auto.h"
#include "../plans.h"
#include "base/rng.h"
#include "frontend/config/config_state.h"

TEST_LABEL(RELEASED);

static int limits(void) { /* 200 in the long form */
    return test_long() ? 40 : 8;
}

static Job *job_of(Arena *mem, const char *yaml, const char *keys) {
    const char *words = arena_printf(mem, "%s recompute_config.recompute auto", keys);
    Plan p = plan_of(mem, yaml,
                     arena_printf(mem, "%s context.max_device_memory 100GB", words));
    return (Job *)p.job;
}

typedef struct Known { /* all choices of a stage */
    int64_t *bytes;    /* by layers and set */
    double *seconds;
} Known;

typedef struct Case {
    const char *name;
    Arena *mem;
    Job *j;
    RecomputeMenu menu;
    int64_t layers; /* of each chunk */
    int stages, sets;
    Known *known; /* by stage */
} Case;

static const char *spans(const Case *c, int64_t layers, unsigned set) {
    const char *policy = recompute_policy(&c->menu, set);
    return policy ? arena_printf(c->mem, "%lld:%s", (long long)layers, policy) : NULL;
}

static void plan_all(Case *c) {
    size_t n = (size_t)((c->layers + 1) * c->sets);
    c->known = NEW_ARRAY(c->mem, Known, (size_t)c->stages);
    for (int k = 0; k < c->stages; k++)
        c->known[k] =
            (Known){NEW_ARRAY(c->mem, int64_t, n), NEW_ARRAY(c->mem, double, n)};
    for (int64_t layers = 1; layers <= c->layers; layers++)
        for (int set = 0; set < c->sets; set++) {
            const char *text = spans(c, layers, (unsigned)set);
            int64_t *bytes = recompute_stage_bytes(c->mem, c->j, text);
            for (int k = 0; k < c->stages; k++) {
                c->known[k].bytes[layers * c->sets + set] = bytes[k];
                c->known[k].seconds[layers * c->sets + set] =
                    (double)layers * c->menu.seconds[set];
            }
        }
}

static double least_seconds(const Case *c, int stage, int64_t limit) {
    const Known *k = &c->known[stage];
    double best = HUGE_VAL;
    for (int64_t i = c->sets; i < (c->layers + 1) * c->sets; i++)
        if (k->bytes[i] <= limit) best = fmin(best, k->seconds[i]);
    return best;
}

/* Of the text of a stage's chunk. */
static double seconds_of(const Case *c, const char *chunk) {
    if (!*chunk) return 0;
    const char *colon = strchr(chunk, ':');
    int64_t layers = colon ? atoll(chunk) : c->layers;
    for (int set = 0; set < c->sets; set++) {
        const char *policy = recompute_policy(&c->menu, (unsigned)set);
        if (policy && !strcmp(policy, colon ? colon + 1 : chunk))
            return (double)layers * c->menu.seconds[set];
    }
    test_fail(__FILE__, __LINE__, "%s: '%s' is no choice", c->name, chunk);
}

/* One chunk a stage. */
static void expect_best(Case *c, int64_t limit, int *fitting) {
    Job j = *c->j;
    int64_t beside = PLAN_PROCESS_BYTES + job_ahead_bytes(&j);
    j.cfg->context_max_device_memory = limit + beside;
    recompute_choose(&j);
    int64_t *bytes = recompute_stage_bytes(c->mem, &j, j.strategy.remake);
    char *text = arena_strdup(c->mem, j.strategy.remake ? j.strategy.remake : "");
    for (int k = 0; k < c->stages; k++) {
        char *end = text + strcspn(text, "|"), *next = *end ? end + 1 : end;
        *end = 0;
        double want = least_seconds(c, k, limit), got = seconds_of(c, text);
        if (want < HUGE_VAL && (bytes[k] > limit || got > want * (1 + 1e-12)))
            test_fail(__FILE__, __LINE__,
                      "%s, limit %lld, stage %d: '%s' takes %lld bytes and %g s, %g s do",
                      c->name, (long long)limit, k, text, (long long)bytes[k], got, want);
        *fitting += want < HUGE_VAL;
        text = next;
    }
}

static void expect_brute_force(const char *name, const char *yaml, const char *keys,
                               int stages, int64_t layers) {
    Case c = {.name = name, .mem = arena_new(), .stages = stages, .layers = layers};
    c.j = job_of(c.mem, yaml, keys);
    c.menu = recompute_menu(c.mem, c.j);
    c.sets = 1 << c.menu.n;
    EXPECT(c.menu.n >= 4);
    plan_all(&c);
    int64_t low = INT64_MAX, high = 0;
    for (int k = 0; k < stages; k++)
        for (int64_t i = c.sets; i < (layers + 1) * c.sets; i++) {
            low = MIN(low, c.known[k].bytes[i]);
            high = MAX(high, c.known[k].bytes[i]);
        }
    int fitting = 0;
    for (int i = 0; i < limits(); i++) {
        double at = rng_uniform(7, 0, (uint64_t)i);
        expect_best(&c, low + (int64_t)(at * (double)(high - low)), &fitting);
    }
    printf("  %s: %d groups, %lld choices planned, %d limits, %d of %d fit\n", name,
           c.menu.n, (long long)layers * c.sets, limits(), fitting, limits() * stages);
    EXPECT(fitting > limits() / 2);
    arena_free(c.mem);
}

TEST_LABEL_OF(never_more_work_than_the_best, SLOW);
TEST_LIMIT(never_more_work_than_the_best, 300) {
    expect_brute_force("GPT-2", plan_gpt2, "", 1, 4);
    if (test_long())
        expect_brute_force("Llama", plan_llama, "model.model_config.num_layers 1", 1, 1);
    expect_brute_force("GPT-2, tp 2", plan_gpt2,
                       "tp 2 sp True micro 2 model.model_config.num_layers 3", 1, 3);
    expect_brute_force("GPT-2, what is exchanged is kept", plan_gpt2,
                       "tp 2 recompute_config.mp_comm_recompute False "
                       "model.model_config.num_layers 2",
                       1, 2);
    expect_brute_force("GPT-2, two stages", plan_gpt2,
                       "dp 2 zero level1 micro 4 parallel_config.pipeline_stage 2", 2, 2);
}

/* Then all is made again, and a line says that it is not enough. */
TEST(with_too_small_a_limit) {
    Arena *mem = arena_new();
    Plan p = plan_of(mem, plan_gpt2,
                     "recompute_config.recompute auto context.max_device_memory 64MB");
    EXPECT_STR(p.job->strategy.remake, "full");
    EXPECT_INT(p.job->cfg->n_notes, 1);
    EXPECT(strstr(p.job->cfg->notes[0], "nothing is enough for"));
    arena_free(mem);
}

TEST(without_a_limit) {
    Arena *mem = arena_new();
    EXPECT_FAIL(plan_of(mem, plan_gpt2, "recompute_config.recompute auto"), EXIT_CONFIG,
                "max_device_memory");
    arena_free(mem);
}

/* ---- seconds of the machine ---- */

/* Seconds of making again the group that has this value, on a machine where products and
 * what has products inside reach these shares of the peak. */
static double seconds_again(const char *value, double reached, double inner_reached) {
    Arena *mem = arena_new();
    const char *file = path_join(mem, temp_dir(), "machine.yaml");
    const char *text = arena_printf(
        mem,
        "name: m\nreached: %g\ninner_reached: %g\n"
        "links: {host: {start_us: 1, gbytes: 10}}\n"
        "ranks: [{f32_gflops: 100, bf16_gflops: 200, memory: {bytes: [1000], gbytes: "
        "[20]}}]\n",
        reached, inner_reached);
    EXPECT(!file_write_atomic(file, text, strlen(text)));
    RecomputeMenu m = recompute_menu(
        mem, job_of(mem, plan_gpt2, arena_printf(mem, "context.machine %s", file)));
    double seconds = 0;
    for (int g = 0; g < m.n; g++)
        if (strstr(m.group[g], value)) seconds = m.seconds[1u << g];
    arena_free(mem);
    return seconds;
}

/* Where attention has an eighth of its rate it takes seven times its seconds more, with a
 * quarter three times; products take as long, and longer where they are slower. */
TEST(work_is_that_of_the_machine) {
    double at_once = seconds_again("lse", 1, 1), quarter = seconds_again("lse", 1, 0.25),
           eighth = seconds_again("lse", 1, 0.125);
    double product = seconds_again("q,k,v", 1, 1);
    EXPECT(at_once > 0 && quarter > at_once && product > 0);
    EXPECT_NEAR((eighth - at_once) / (quarter - at_once), 7.0 / 3, 1e-9);
    EXPECT_NEAR(seconds_again("q,k,v", 1, 0.125) / product, 1, 1e-12);
    EXPECT(seconds_again("q,k,v", 0.25, 1) > 2 * product);
}
