/* predict_strategy.c - see predict_strategy.h. */
#include "frontend/tools/predict_strategy.h"
#include "frontend/config/config_state.h"
#include "frontend/config/key.h"
#include "runtime/comm/comm.h"

#define PC   "parallel_config."
#define ZERO "parallel.parallel_optimizer_config."

static const char *const keys[] = {PC "data_parallel",
                                   PC "model_parallel",
                                   PC "pipeline_stage",
                                   PC "context_parallel",
                                   PC "rank_order",
                                   PC "vocab_emb_dp",
                                   PC "optimizer_shard",
                                   PC "num_layer_list",
                                   PC "num_layers_in_first_pipeline_stage",
                                   PC "num_layers_in_last_pipeline_stage",
                                   "parallel.enable_parallel_optimizer",
                                   ZERO "optimizer_level",
                                   ZERO "optimizer_weight_shard_size",
                                   ZERO "parallel_optimizer_threshold"};

bool predict_strategy_key(const char *key) {
    return is_one_of(key, keys, ARRAY_LEN(keys));
}

/* The flags that are about the strategy, as a configuration of their own: what the file of
 * a run says of its strategy was for training. */
static Config *config_of_flags(Arena *mem, const Options *o) {
    char **flag = NEW_ARRAY(mem, char *, (size_t)o->nflags + 1);
    int n = 0;
    for (int i = 0; i < o->nflags; i++) {
        const char *path = o->flag[i] + 2;
        int k = key_find(arena_strndup(mem, path, strcspn(path, "=")));
        if (k >= 0 && predict_strategy_key(key_table[k].path)) flag[n++] = o->flag[i];
    }
    return config_load(mem, NULL, n, flag);
}

static bool splits(const ModelSpec *s, int64_t n) {
    return s->heads % n == 0 && (s->kv_heads == 1 || s->kv_heads % n == 0) &&
           s->ffn % n == 0;
}

/* Nothing was said: all heads over all processes. */
static void choose(Config *cfg, const ModelSpec *spec) {
    int64_t ranks = comm_size(), tensor = ranks;
    bool said = false;
    for (int i = 0; i < ARRAY_LEN(keys); i++) said |= config_given(cfg, keys[i]);
    if (said || ranks == 1) return;
    while (ranks % tensor || !splits(spec, tensor)) tensor--;
    if (tensor < ranks)
        fail(EXIT_CONFIG,
             "%lld processes cannot share this model by its heads (%lld, of keys and "
             "values %lld; width of the MLP %lld): write how they are to, such as --tp "
             "%lld --dp %lld (replicas, for several prompts) or --tp %lld --pp %lld",
             (long long)ranks, (long long)spec->heads, (long long)spec->kv_heads,
             (long long)spec->ffn, (long long)tensor, (long long)(ranks / tensor),
             (long long)tensor, (long long)(ranks / tensor));
    cfg->parallel_config_model_parallel = ranks;
}

static void check_ranks(Arena *mem, const Config *cfg, const Strategy *s) {
    int64_t ranks = strategy_ranks(s);
    if (ranks == comm_size()) return;
    config_refuse(cfg, PC "model_parallel", PC "data_parallel",
                  arena_printf(mem,
                               "stator launch -n %lld predict ..., or another strategy",
                               (long long)ranks),
                  "%s is %lld ranks, but %d process%s", predict_strategy_text(mem, s),
                  (long long)ranks, comm_size(), comm_size() == 1 ? " runs" : "es run");
}

static void check_supported(const Config *cfg, const Strategy *s) {
    if (s->zero_level == 1 || s->zero_level == 2)
        config_refuse(cfg, ZERO "optimizer_level", PC "optimizer_shard",
                      "optimizer_level level3, which splits the weights, or leave "
                      "optimizer_shard out",
                      "prediction has no optimizer whose state could be split");
}

Strategy predict_strategy(Arena *mem, const Options *o, const ModelSpec *spec) {
    Config *cfg = config_of_flags(mem, o);
    int said = cfg->n_notes;
    choose(cfg, spec);
    if (comm_size() > 1) strategy_replicate(cfg, comm_size(), "processes run");
    cfg->parallel_config_context_parallel_algo =
        CP_ULYSSES; /* caches stay where they are */
    Strategy s = strategy_of_config(cfg);
    for (int i = said; i < cfg->n_notes && comm_rank() == 0; i++)
        fprintf(stderr, "note: %s\n", cfg->notes[i]);
    s.own_data = true;
    s.overlap = OVERLAP_OFF;
    check_supported(cfg, &s);
    check_ranks(mem, cfg, &s);
    ModelShape shape = {.batch = s.data, .seq = s.context};
    strategy_check(cfg, &s, spec, shape);
    return s;
}

const char *predict_strategy_text(Arena *mem, const Strategy *s) {
    const struct {
        const char *name;
        int64_t n;
    } degree[] = {
        {"dp", s->data}, {"cp", s->context}, {"tp", s->tensor}, {"pp", s->stages}};
    Text t = text_new(mem);
    for (int i = 0; i < ARRAY_LEN(degree); i++)
        if (degree[i].n > 1)
            text_add(&t, "%s%s %lld", t.n ? ", " : "", degree[i].name,
                     (long long)degree[i].n);
    if (s->vocab_parallel) text_add(&t, ", vocabulary split");
    if (s->zero_level) text_add(&t, ", weights split over dp");
    return t.n ? t.s : "one rank";
}
