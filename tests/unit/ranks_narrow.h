/* ranks_narrow.h - for tests of training in bf16 and f16 on real MPI ranks. */
#ifndef STATOR_TESTS_RANKS_NARROW_H
#define STATOR_TESTS_RANKS_NARROW_H
#include "ranks.h"

#define PC "--parallel_config."

typedef struct Way {
    int ranks;
    const char *words;
} Way;

/* Strategies of a kind each. */
static const Way way[] = {
    {2, PC "data_parallel 2 " ZERO_LEVEL(1)},
    {4, PC "data_parallel 4 " ZERO_LEVEL(3) PC "micro_batch_num 2 "},
    {2, PC "model_parallel 2 " PC "sequence_parallel True " PC "vocab_emb_dp False "},
    {2, PC "context_parallel 2 " PC "context_parallel_algo megatron_cp_algo "},
    {2, PC "context_parallel 2 " PC "context_parallel_algo ulysses_cp_algo "},
    {2, PC "pipeline_stage 2 " PC "micro_batch_num 4 "},
    {4, PC "data_parallel 2 " PC "pipeline_stage 2 " PC
           "micro_batch_num 2 " ZERO_LEVEL(1) "--recompute_config.recompute True "},
};

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

#endif
