/* simulations.h - for tests of `stator simulate`: a simulation of a small configuration and
 * keys, in this process. */
#ifndef STATOR_TEST_SIMULATIONS_H
#define STATOR_TEST_SIMULATIONS_H
#include "frontend/simulate/simulate.h"
#include "test.h"

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

/* "tp 2" is --parallel_config.model_parallel 2; any other word is a path as it is. */
static inline Config *simulated_config(Arena *mem, const char *yaml, const char *keys) {
    static const struct {
        const char *word, *path;
    } shorts[] = {
        {"dp", "parallel_config.data_parallel"},
        {"tp", "parallel_config.model_parallel"},
        {"cp", "parallel_config.context_parallel"},
        {"algo", "parallel_config.context_parallel_algo"},
        {"ulysses", "parallel_config.ulysses_degree_in_cp"},
        {"pp", "parallel_config.pipeline_stage"},
        {"chunks", "parallel_config.pp_interleave_num"},
        {"schedule", "parallel.pipeline_config.pipeline_scheduler"},
        {"layers", "parallel_config.num_layer_list"},
        {"micro", "parallel_config.micro_batch_num"},
        {"beside", "micro_batch_interleave_num"},
        {"sp", "parallel_config.sequence_parallel"},
        {"emb_dp", "parallel_config.vocab_emb_dp"},
        {"zero", "parallel.parallel_optimizer_config.optimizer_level"},
        {"type", "model.model_config.compute_dtype"},
        {"again", "recompute_config.recompute"},
        {"select", "recompute_config.select_recompute"},
        {"data", "train_dataset.data_loader.type"},
        {"M", "model.model_config"},
        {"L", "train_dataset.data_loader"},
    };
    const char *file = path_join(mem, temp_dir(), "simulated.yaml");
    char *words = arena_strdup(mem, keys), *save = NULL;
    char **flag = NEW_ARRAY(mem, char *, strlen(keys) + 2);
    int n = 0;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save), n++) {
        size_t length = strcspn(w, ".");
        flag[n] = n % 2 ? w : arena_printf(mem, "--%s", w);
        for (int i = 0; i < ARRAY_LEN(shorts) && n % 2 == 0; i++)
            if (strlen(shorts[i].word) == length && !memcmp(shorts[i].word, w, length))
                flag[n] = arena_printf(mem, "--%s%s", shorts[i].path, w + length);
    }
    EXPECT(n % 2 == 0 && !file_write_atomic(file, yaml, strlen(yaml)));
    return config_load(mem, file, n, flag);
}

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
