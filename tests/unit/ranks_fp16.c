/* Tests of training in f16 on real MPI ranks: near float32's curve and one rank's, with loss
 * scales that fall and grow at the same steps whatever the strategy, and over a resume. */
#include "ranks_narrow.h"
#include "runtime/run/loss_scale.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define FP16 "--model.model_config.compute_dtype float16 "
/* Gradients overflow at first; then the scale grows until they do again. */
#define MOVES FP16 "--initial_loss_scale 4194304 --hysteresis 2 --loss_scale_window 3 "
enum { STEPS = 20 };

static void expect_same_scales(const char *a, const char *b, const char *words) {
    int n, m;
    const MetricsRow *x = runs_metrics(a, &n), *y = runs_metrics(b, &m);
    EXPECT(n == m && n == STEPS);
    for (int i = 0; i < n; i++)
        if (x[i].loss_scale != y[i].loss_scale || x[i].skipped != y[i].skipped)
            test_fail(__FILE__, __LINE__, "%s: step %d has a scale of %g, not %g", words,
                      i + 1, y[i].loss_scale, x[i].loss_scale);
}

/* By the rule itself, from which steps were skipped: at least one fall and one growth. */
static void expect_rule(const char *run) {
    const LossScaleRule rule = {.dynamic = true,
                                .first = 4194304,
                                .least = 1,
                                .factor = 2,
                                .window = 3,
                                .hysteresis = 2};
    LossScale s = loss_scale_start(&rule);
    int n, falls = 0, growths = 0;
    const MetricsRow *row = runs_metrics(run, &n);
    for (int i = 0; i < n; i++) {
        double before = s.value;
        EXPECT(row[i].loss_scale == s.value && isfinite(row[i].loss));
        EXPECT(row[i].skipped == !isfinite(row[i].grad_norm));
        loss_scale_update(&s, !row[i].skipped);
        falls += s.value < before;
        growths += s.value > before;
    }
    printf("  %d falls, %d growths\n", falls, growths);
    EXPECT(falls >= 2 && growths >= 2 && row[0].skipped && row[1].skipped);
    EXPECT(row[1].loss_scale == row[0].loss_scale);
}

/* In the short form those whose letter is x. */
static void each_strategy(const char *model, const char *chosen) {
    const char *f32 = run_of("f32", model, 1, "");
    const char *still = run_of("still", model, 1, FP16 "--loss_scale 65536 ");
    const char *one = run_of("one", model, 1, MOVES);
    double worst = 0, from_f32 = apart(f32, still);
    EXPECT(from_f32 > 1e-7); /* or nothing was rounded */
    expect_rule(one);
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        if (!test_long() && chosen[i] != 'x') continue;
        const char *words = arena_printf(mem(), MOVES "%s", way[i].words);
        const char *many = run_of("many", model, way[i].ranks, words);
        expect_same_scales(one, many, words);
        double off = apart(one, many);
        if (!(off <= 1e-3))
            test_fail(__FILE__, __LINE__, "%s: %s: %.2g from one rank", model, words,
                      off);
        worst = fmax(worst, off);
        remove_all(many);
    }
    printf("  %s: worst relative loss %.2g of one rank, %.2g of float32\n", model, worst,
           from_f32);
    EXPECT(from_f32 <= 2e-3);
}

TEST_LIMIT(gpt2_as_one, 180) {
    each_strategy("gpt2_tiny", ".x....x");
}

TEST_LIMIT(llama_as_one, 180) {
    each_strategy("llama_tiny", "..x....");
}

/* Which overflow much earlier, so the scale is small. */
TEST_LIMIT(gradients_of_16_bits, 120) {
    const char *words =
        FP16 "--loss_scale 1024 "
             "--model.model_config.accumulate_allreduce_grads_in_fp32 False "
             "--model.model_config.allreduce_activations_in_fp32 False ";
    const char *one = run_of("one", "gpt2_tiny", 1, words);
    for (int i = 1; i < ARRAY_LEN(way); i += test_long() ? 1 : 5) {
        const char *many = run_of("many", "gpt2_tiny", way[i].ranks,
                                  arena_printf(mem(), "%s%s", words, way[i].words));
        double off = apart(one, many);
        if (!(off <= 1e-3))
            test_fail(__FILE__, __LINE__, "%s: %.2g from one rank", way[i].words, off);
        remove_all(many);
    }
}

/* Stopped while the scale falls and behind a growth: the bits of a run that never stopped. */
static void over_resumes(int ranks, const char *more, int step) {
    const char *config = runs_golden_config("gpt2_tiny");
    const char *words = arena_printf(mem(), MOVES "%s", more);
    const char *a = in_temp("a"), *b = in_temp("b");
    ranks_run(ranks, config, a, words);
    for (int stop = 1; stop < STEPS; stop += step)
        ranks_run(ranks, config, b,
                  arena_printf(mem(), "%s--runner_config.max_steps %d", words, stop));
    ranks_run(ranks, config, b, words);
    expect_same_scales(a, b, words);
    EXPECT(apart(a, b) == 0);
    runs_expect_same_tensors(a, b, STEPS);
}

TEST_LIMIT(over_a_resume, 60) {
    over_resumes(1, "", test_long() ? 3 : 9);
}

TEST_LIMIT(over_a_resume_of_four_ranks, 120) {
    over_resumes(way[6].ranks, way[6].words, test_long() ? 3 : 12);
}

/* What no smaller scale mends ends the run: a fixed scale, and one that has come to its
 * least. Overflows before that do not count. */
TEST_LIMIT(scales_that_cannot_fall, 60) {
    const char *config = runs_golden_config("gpt2_tiny"), *run = in_temp("fixed");
    const char *most = "--runner_config.max_skipped_steps 3";
    RUN_EXPECT(1, arena_printf(mem(),
                               "train %s --output_dir %s " FP16 "--loss_scale 4194304 %s",
                               config, run, most));
    SAID_EXPECT("loss scale 4194304, fixed");
    SAID_EXPECT("(skipped in a row: 3 of at most 3)");
    SAID_EXPECT("3 steps in a row were skipped");
    SAID_EXPECT("try a smaller runner_wrapper.loss_scale");
    int n;
    runs_metrics(run, &n);
    EXPECT_INT(n, 3);
    const char *least = in_temp("least");
    RUN_EXPECT(1, arena_printf(mem(),
                               "train %s --output_dir %s " MOVES
                               "--min_loss_scale 2097152 --loss_scale_factor 4 %s",
                               config, least, most));
    SAID_EXPECT(
        "note: step 1 is skipped: gradients overflow at a loss scale of 4194304; it "
        "stays 4194304");
    SAID_EXPECT(
        "note: step 2 is skipped: gradients overflow at a loss scale of 4194304; it "
        "is now 2097152");
    SAID_EXPECT("(skipped in a row: 3 of at most 3)");
    runs_metrics(least, &n);
    EXPECT_INT(n, 5);
}

/* A scale to begin with that was changed is used; one that was not is that of the checkpoint. */
TEST_LIMIT(a_changed_scale_at_a_resume, 60) {
    const char *scale = MOVES "--initial_loss_scale 1024 --runner_config.max_steps 14";
    const char *run = run_of("run", "gpt2_tiny", 1, MOVES "--runner_config.max_steps 10");
    int n;
    EXPECT_INT(system(arena_printf(mem(), "cp -r %s %s", run, in_temp("other"))), 0);
    run_of("run", "gpt2_tiny", 1, MOVES "--runner_config.max_steps 14");
    EXPECT(runs_metrics(run, &n)[10].loss_scale > 2048);
    run_of("other", "gpt2_tiny", 1, scale);
    SAID_EXPECT("loss_scale_value was 4194304 and is 1024");
    const MetricsRow *row = runs_metrics(in_temp("other"), &n);
    EXPECT_INT(n, 14);
    EXPECT(row[10].loss_scale == 1024 && row[13].loss_scale == 2048);
    run_of("other", "gpt2_tiny", 1, arena_printf(mem(), "%s --train_steps 16", scale));
    EXPECT(runs_metrics(in_temp("other"), &n)[14].loss_scale == 2048);
}
