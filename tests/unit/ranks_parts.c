/* Tests of training on real MPI ranks with micro-batches in parts beside each other: any
 * strategy gives PyTorch's losses. */
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

#define PC      "--parallel_config."
#define PARTS   "--micro_batch_interleave_num 2 --parallel.overlap thread "
#define TENSOR  PC "model_parallel 2 "
#define HALVES  TENSOR PC "sequence_parallel True "
#define CONTEXT PC "context_parallel 2 "
#define STAGES  PC "pipeline_stage 2 "

static const struct {
    const char *name;
    int ranks;
    const char *words;
} runs[] = {
    {"gpt2_tiny", 2, TENSOR PARTS},
    {"llama_tiny", 2, HALVES PC "vocab_emb_dp False " PC "micro_batch_num 2 " PARTS},
    {"llama_tiny", 2, CONTEXT PC "context_parallel_algo megatron_cp_algo " PARTS},
    {"gpt2_tiny", 4,
     CONTEXT PC "data_parallel 2 " PC "micro_batch_num 2 " ZERO_LEVEL(2) PARTS},
    {"gpt2_tiny", 4,
     HALVES PC "data_parallel 2 --recompute_config.recompute True " ZERO_LEVEL(3) PARTS},
    {"gpt2_tiny", 4,
     STAGES TENSOR PC "pp_interleave_num 2 " PC "micro_batch_num 2 " PARTS},
    {"llama_tiny", 4,
     STAGES HALVES PC
     "micro_batch_num 4 "
     "--parallel.pipeline_config.pipeline_scheduler zero_bubble_h1 " PARTS},
};

TEST_LIMIT(losses_are_those_of_pytorch, 180) {
    double worst = 0;
    int n = RANKS_SANITIZED ? 2 : ARRAY_LEN(runs);
    for (int i = 0; i < n; i += test_long() ? 1 : 2) {
        const char *run = in_temp("run");
        test_at("%s %s", runs[i].name, runs[i].words);
        ranks_run(runs[i].ranks, runs_golden_config(runs[i].name), run, runs[i].words);
        worst = fmax(worst, ranks_expect_curve(runs[i].name, run, runs[i].words));
        remove_all(run);
    }
    printf("  %d runs, worst relative loss %.2g\n", n, worst);
}
