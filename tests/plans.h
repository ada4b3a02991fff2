/* plans.h - for tests of plans: the plan of a small model under the keys of one line. */
#ifndef STATOR_TEST_PLANS_H
#define STATOR_TEST_PLANS_H
#include "frontend/plan/plan.h"
#include "test.h"

/* The small models; a sequence is as long as the model is wide. */
enum { PLAN_B = 4, PLAN_T = 256, PLAN_C = 256, PLAN_L = 4, PLAN_V = 1000, PLAN_F = 704 };

static const char plan_gpt2[] = "model:\n"
                                "  model_config: {type: GPT2Config, vocab_size: 1000, "
                                "seq_length: 256, hidden_size: 256,\n"
                                "                 num_layers: 4, num_heads: 8}\n"
                                "runner_config: {batch_size: 4}\n"
                                "context: {threads: 1}\n";
static const char plan_llama[] =
    "model:\n"
    "  model_config: {type: LlamaConfig, vocab_size: 1000, seq_length: 256, hidden_size: "
    "256,\n"
    "                 num_layers: 4, num_heads: 8, n_kv_heads: 4, ffn_hidden_size: 704,\n"
    "                 tie_word_embeddings: False}\n"
    "runner_config: {batch_size: 4}\n"
    "context: {threads: 1}\n";

/* `keys`: words "path value path value ..."; "tp" is parallel_config.model_parallel, and what
 * stands before the first dot of a path may be short as well ("M.vocab_size"). */
static inline Config *plan_config(Arena *mem, const char *yaml, const char *keys) {
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
        {"threshold", "parallel.parallel_optimizer_config.parallel_optimizer_threshold"},
        {"zero", "parallel.parallel_optimizer_config.optimizer_level"},
        {"shard", "parallel.parallel_optimizer_config.optimizer_weight_shard_size"},
        {"type", "model.model_config.compute_dtype"},
        {"again", "recompute_config.recompute"},
        {"select", "recompute_config.select_recompute"},
        {"data", "train_dataset.data_loader.type"},
        {"M", "model.model_config"},
        {"L", "train_dataset.data_loader"},
    };
    const char *file = path_join(mem, temp_dir(), "plan.yaml");
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

static inline Plan plan_of(Arena *mem, const char *yaml, const char *keys) {
    return plan_of_config(mem, plan_config(mem, yaml, keys), 0);
}

/* Collectives of one kind over some axes in one part of the program, added up. */
static inline PlanComm plan_find(const Plan *p, PlanPart part, const char *kind,
                                 const char *axes) {
    PlanComm sum = {.kind = kind, .axes = axes, .part = part};
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        if (c->part != part || strcmp(c->kind, kind) || strcmp(c->axes, axes)) continue;
        sum.group = c->group;
        sum.runs = c->runs;
        sum.micro_runs = c->micro_runs;
        sum.operations += c->operations;
        sum.operands += c->operands;
        sum.bytes += c->bytes;
        sum.sent_bytes += c->sent_bytes;
    }
    return sum;
}

/* Bytes that a rank sends a step in sums over the axes ("dp"), by functions that run at least so
 * often in it. */
static inline int64_t plan_summed_bytes(const Plan *p, const char *axes, int64_t runs) {
    int64_t bytes = 0;
    for (int i = 0; i < p->ncomm; i++) {
        const PlanComm *c = &p->comm[i];
        bool sums = !strcmp(c->kind, "reduce_scatter") || !strcmp(c->kind, "all_reduce");
        if (sums && !strcmp(c->axes, axes) && c->runs >= runs)
            bytes += c->sent_bytes * c->runs;
    }
    return bytes;
}

/* Number of operations in a part, of every kind and over any axes. */
static inline int64_t plan_operations(const Plan *p, PlanPart part) {
    int64_t n = 0;
    for (int i = 0; i < p->ncomm; i++)
        if (p->comm[i].part == part) n += p->comm[i].operations;
    return n;
}

#endif
