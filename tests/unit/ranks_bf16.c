/* Tests of training in bf16 on real MPI ranks: near one rank's curve and near float32's,
 * the same bits in every run, validation and resumes as without. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define BF16 "--model.model_config.compute_dtype bfloat16 "
#define PC   "--parallel_config."
enum { STEPS = 20 };

/* Worst relative difference of the losses. */
static double apart(const char *a, const char *b) {
    int n, m;
    const MetricsRow *x = runs_metrics(a, &n), *y = runs_metrics(b, &m);
    double worst = 0;
    EXPECT(n == m && n >= 2);
    for (int i = 0; i < n; i++)
        worst = fmax(worst, fabs(x[i].loss - y[i].loss) / x[i].loss);
    return worst;
}

static const char *run_of(const char *name, const char *model, int ranks,
                          const char *words) {
    const char *run = in_temp(name);
    ranks_run(ranks, runs_golden_config(model), run, words);
    return run;
}

/* The strategies of a kind each, of both models; in the short form each with one of them. */
static void each_strategy(const char *model, int first) {
    static const struct {
        int ranks;
        const char *words;
    } way[] = {
        {2, PC "data_parallel 2 " ZERO_LEVEL(1)},
        {4, PC "data_parallel 4 " ZERO_LEVEL(3) PC "micro_batch_num 2 "},
        {2, PC "model_parallel 2 " PC "sequence_parallel True " PC "vocab_emb_dp False "},
        {2, PC "context_parallel 2 " PC "context_parallel_algo megatron_cp_algo "},
        {2, PC "context_parallel 2 " PC "context_parallel_algo ulysses_cp_algo "},
        {2, PC "pipeline_stage 2 " PC "micro_batch_num 4 "},
        {4, PC "data_parallel 2 " PC "pipeline_stage 2 " PC
               "micro_batch_num 2 " ZERO_LEVEL(1) "--recompute_config.recompute True "},
    };
    const char *f32 = run_of("f32", model, 1, "");
    const char *one = run_of("one", model, 1, BF16);
    double worst = 0, from_f32 = apart(f32, one);
    EXPECT(from_f32 > 1e-7); /* or nothing was rounded */
    for (int i = test_long() ? 0 : first; i < ARRAY_LEN(way); i += test_long() ? 1 : 2) {
        const char *words = arena_printf(mem(), BF16 "%s", way[i].words);
        const char *many = run_of("many", model, way[i].ranks, words);
        double off = apart(one, many);
        if (!(off <= 2e-3))
            test_fail(__FILE__, __LINE__, "%s: %s: %.2g from one rank", model, words,
                      off);
        worst = fmax(worst, off);
        from_f32 = fmax(from_f32, apart(f32, many));
        remove_all(many);
    }
    printf("  %s: worst relative loss %.2g of one rank, %.2g of float32\n", model, worst,
           from_f32);
    EXPECT(from_f32 <= 1e-2);
}

TEST_LIMIT(gpt2_as_one, 180) {
    each_strategy("gpt2_tiny", 0);
}

TEST_LIMIT(llama_as_one, 180) {
    each_strategy("llama_tiny", 1);
}

/* Residual streams in float32 change the numbers, and not by much. */
TEST_LIMIT(residual_in_float32, 60) {
    const char *one = run_of("one", "gpt2_tiny", 1, BF16);
    const char *exact = run_of("exact", "gpt2_tiny", 1,
                               BF16 "--model.model_config.fp32_residual_connection True");
    double off = apart(one, exact);
    EXPECT(off > 0 && off <= 2e-3);
}

/* A run that stops and goes on, and one run again, give the same bits. */
TEST_LIMIT(same_bits, 120) {
    const char *words = BF16 PC "data_parallel 2 " ZERO_LEVEL(2);
    const char *config = runs_golden_config("gpt2_tiny");
    const char *a = in_temp("a"), *b = in_temp("b"), *c = in_temp("c");
    const char *part = "--runner_config.max_steps 10";
    ranks_run(2, config, a, words);
    ranks_run(2, config, b, words);
    ranks_run(2, config, c, arena_printf(mem(), "%s%s", words, part));
    ranks_run(2, config, c, words);
    EXPECT(apart(a, b) == 0 && apart(a, c) == 0);
}
