/* simulations.h - for tests of `stator simulate`: a simulation of a small configuration and
 * keys, in this process. */
#ifndef STATOR_TEST_SIMULATIONS_H
#define STATOR_TEST_SIMULATIONS_H
#include "frontend/simulate/simulate.h"
#include "plans.h"

static const char simulated_gpt2[] = "model:\n"
                                     "  model_config: {type: GPT2Config, vocab_size: "
                                     "1001, seq_length: 256, hidden_size: 256,\n"
                                     "                 num_layers: 16, num_heads: 16}\n"
                                     "runner_config: {batch_size: 4}\n"
                                     "context: {threads: 1}\n";
static const char simulated_llama[] =
    "model:\n"
    "  model_config: {type: LlamaConfig, vocab_size: 1000, seq_length: 256, hidden_size: "
    "512,\n"
    "                 num_layers: 16, num_heads: 32, n_kv_heads: 8, ffn_hidden_size: "
    "1408}\n"
    "runner_config: {batch_size: 4}\n"
    "context: {threads: 1}\n";

/* Its parts must stay: they are in mem. */
static inline Simulation simulated_open(Arena *mem, Config *cfg, int64_t ranks,
                                        int64_t steps) {
    Simulation s = {.mem = mem, .steps = steps};
    Plan *p = NEW(mem, Plan);
    SimulateJob *j = NEW(mem, SimulateJob);
    *p = plan_of_config(mem, cfg, ranks);
    *j = simulate_shrink(mem, p, false);
    s.plan = p;
    s.job = j;
    s.data = simulate_data_open(mem, j, steps, false);
    return s;
}

#endif
