/* Tests of training in bf16 on real MPI ranks: near one rank's curve and near float32's,
 * the same bits in every run, validation and resumes as without. */
#include "ranks_narrow.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define MODEL_KEY "--model.model_config."
#define BF16      MODEL_KEY "compute_dtype bfloat16 "
enum { STEPS = 20 };

/* The strategies of a kind each, of both models; in the short form each with one of them. */
static void each_strategy(const char *model, const char *types, const char *more,
                          int first) {
    const char *f32 = run_of("f32", model, 1, more);
    types = arena_printf(mem(), "%s%s", types, more);
    const char *one = run_of("one", model, 1, types);
    double worst = 0, from_f32 = apart(f32, one);
    EXPECT(from_f32 > 1e-7); /* or nothing was rounded */
    for (int i = test_long() ? 0 : first; i < ARRAY_LEN(way); i += test_long() ? 1 : 2) {
        const char *words = arena_printf(mem(), "%s%s", types, way[i].words);
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
    each_strategy("gpt2_tiny", BF16, "", 0);
}

TEST_LIMIT(llama_as_one, 180) {
    each_strategy("llama_tiny", BF16, "", 1);
}

TEST_LIMIT(gradients_of_16_bits, 180) {
    each_strategy("gpt2_tiny", BF16 MODEL_KEY "accumulate_allreduce_grads_in_fp32 False ",
                  MODEL_KEY "hidden_dropout_prob 0.1 " MODEL_KEY
                            "attention_probs_dropout_prob 0.1 ",
                  1);
}

/* Sums of activations over ranks in bf16 change the numbers, and not by much. */
TEST_LIMIT(sums_of_16_bits, 180) {
    static const Way split[] = {
        {2, PC "model_parallel 2 " PC "vocab_emb_dp False "},
        {2, PC "model_parallel 2 " PC "sequence_parallel True " PC "vocab_emb_dp False "},
        {4, PC "model_parallel 2 " PC "sequence_parallel True " PC
               "data_parallel 2 " ZERO_LEVEL(3)},
        {4, PC "model_parallel 2 " PC "pipeline_stage 2 " PC "micro_batch_num 4 "},
        {4, PC "model_parallel 2 " PC "context_parallel 2 " PC
               "context_parallel_algo megatron_cp_algo "},
    };
    static const char *const model[] = {"gpt2_tiny", "llama_tiny"};
    double worst = 0;
    const char *alone[] = {run_of("gpt2", model[0], 1, BF16),
                           run_of("llama", model[1], 1, BF16)};
    for (int i = 0; i < ARRAY_LEN(split); i++) {
        const char *one = alone[i % 2];
        const char *words = arena_printf(mem(), "%s%s", BF16, split[i].words);
        const char *wide = run_of("wide", model[i % 2], split[i].ranks, words);
        words = arena_printf(mem(), "%s%sallreduce_activations_in_fp32 False ", words,
                             MODEL_KEY);
        const char *narrow = run_of("narrow", model[i % 2], split[i].ranks, words);
        double off = apart(one, narrow);
        if (!(off <= 2e-3) || !(apart(wide, narrow) > 0))
            test_fail(__FILE__, __LINE__, "%s: %.2g from one rank, %.2g from f32 sums",
                      words, off, apart(wide, narrow));
        worst = fmax(worst, off);
        remove_all(wide);
        remove_all(narrow);
    }
    printf("  worst relative loss %.2g of one rank\n", worst);
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
