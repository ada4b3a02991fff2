/* megatron_strategy.c - how a command line of Megatron-LM splits a model over ranks, and what it
 * makes again. */
#include "frontend/tools/megatron_parts.h"

#define ZERO   "parallel.parallel_optimizer_config."
#define REMAKE "recompute_config."

/* ---- parallelism ---- */

static void add_context(Megatron *m, const MegatronSizes *s) {
    static const char *const types[][2] = {{"p2p", "megatron_cp_algo"},
                                           {"a2a", "ulysses_cp_algo"},
                                           {"a2a+p2p", "hybrid_cp_algo"}};
    const char *type = WORD(m, cp_comm_type, "p2p"), *algo = NULL;
    int n = m->flag[MEGATRON_cp_comm_type].n;
    for (int i = 1; i < n; i++)
        if (strcmp(m->flag[MEGATRON_cp_comm_type].word[i], type) != 0)
            fail(EXIT_CONFIG, "--cp-comm-type: not there: other types of other layers");
    megatron_add_count(m, PART "context_parallel", s->cp);
    if (s->cp == 1) return;
    for (int i = 0; i < ARRAY_LEN(types); i++)
        if (!strcmp(type, types[i][0])) algo = types[i][1];
    if (GIVEN(m, context_parallel_algo)) algo = WORD(m, context_parallel_algo, "");
    if (!algo)
        fail(EXIT_CONFIG, "--cp-comm-type %.60s: not there; p2p, a2a and a2a+p2p are",
             type);
    megatron_add(m, PART "context_parallel_algo", "%s", algo);
    if (strcmp(algo, "hybrid_cp_algo") != 0) return;
    if (GIVEN(m, ulysses_degree_in_cp))
        ADD(m, ulysses_degree_in_cp, PART "ulysses_degree_in_cp", NULL);
    else if (GIVEN(m, hierarchical_context_parallel_sizes))
        ADD(m, hierarchical_context_parallel_sizes, PART "ulysses_degree_in_cp", NULL);
    else
        fail(EXIT_CONFIG,
             "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes, of "
             "the ranks that exchange heads first");
}

static int64_t chunks_of(const Megatron *m, const MegatronSizes *s) {
    if (GIVEN(m, num_virtual_stages_per_pipeline_rank))
        return DEGREE(m, num_virtual_stages_per_pipeline_rank);
    if (!GIVEN(m, num_layers_per_virtual_pipeline_stage)) return 1;
    int64_t each = DEGREE(m, num_layers_per_virtual_pipeline_stage);
    int64_t layers = COUNT(m, num_layers, 0), all = times_capped(s->pp, each);
    if (layers % all)
        fail(EXIT_CONFIG,
             "--num-layers-per-virtual-pipeline-stage %lld: %lld stages of such chunks "
             "do not "
             "divide %lld layers",
             (long long)each, (long long)s->pp, (long long)layers);
    return layers / all;
}

/* A row for each chunk of a stage, a column for each stage. */
static void add_layer_list(Megatron *m, const int64_t *layers, int64_t stages,
                           int64_t chunks) {
    Text t = text_new(m->mem);
    for (int64_t row = 0; row < chunks; row++) {
        text_add(&t, chunks > 1 ? row ? ",[" : "[[" : "[");
        for (int64_t i = 0; i < stages; i++)
            text_add(&t, "%s%lld", i ? "," : "", (long long)layers[row * stages + i]);
        text_add(&t, "]");
    }
    if (chunks > 1) text_add(&t, "]");
    megatron_add(m, PART "num_layer_list", "%s", t.s);
}

/* Embedding and head count as a layer each: the chunks that have them have one less. */
static void add_counted_layers(Megatron *m, int64_t stages, int64_t chunks) {
    bool first = GIVEN(m, account_for_embedding_in_pipeline_split);
    bool last = GIVEN(m, account_for_loss_in_pipeline_split);
    int64_t all = stages * chunks, layers = COUNT(m, num_layers, 0) + first + last;
    if (all > 1 << 16 || layers % all || layers > 1 << 16)
        fail(EXIT_CONFIG,
             "%lld layers, with embedding and head as they are counted, are no "
             "multiple of %lld chunks",
             (long long)layers, (long long)all);
    int64_t *each = NEW_ARRAY(m->mem, int64_t, (size_t)all);
    for (int64_t k = 0; k < all; k++)
        each[k] = layers / all - (first && !k) - (last && k == all - 1);
    add_layer_list(m, each, stages, chunks);
}

/* It says all of how layers are spread over stages. */
static void add_layout(Megatron *m, const MegatronSizes *s) {
    static const MegatronId others[] = {MEGATRON_num_layers_per_virtual_pipeline_stage,
                                        MEGATRON_num_virtual_stages_per_pipeline_rank,
                                        MEGATRON_decoder_first_pipeline_num_layers,
                                        MEGATRON_decoder_last_pipeline_num_layers,
                                        MEGATRON_account_for_embedding_in_pipeline_split,
                                        MEGATRON_account_for_loss_in_pipeline_split,
                                        MEGATRON_num_layer_list};
    static const char flag[] = "--pipeline-model-parallel-layout";
    int chunks;
    int64_t all = 0, layers = COUNT(m, num_layers, 0);
    int64_t *each =
        megatron_layout(m->mem, WORD(m, pipeline_model_parallel_layout, ""), &chunks);
    for (int i = 0; i < ARRAY_LEN(others); i++)
        if (m->flag[others[i]].given)
            fail(EXIT_CONFIG,
                 "%s says how layers are spread, and so does %s: leave one out", flag,
                 megatron_name(m->mem, (int)others[i]));
    for (int k = 0; k < chunks; k++) all += each[k];
    if (all != layers)
        fail(EXIT_CONFIG, "%s has %lld layers, --num-layers is %lld", flag,
             (long long)all, (long long)layers);
    if (chunks % s->pp || (s->pp == 1 && chunks > 1))
        fail(EXIT_CONFIG, "%s has %d stages, --pipeline-model-parallel-size is %lld",
             flag, chunks, (long long)s->pp);
    if (s->pp == 1) return;
    int64_t rows = chunks / s->pp;
    if (rows > 1) megatron_add_count(m, PART "pp_interleave_num", rows);
    add_layer_list(m, each, s->pp, rows);
}

static void add_stages(Megatron *m, const MegatronSizes *s) {
    megatron_add_count(m, PART "pipeline_stage", s->pp);
    if (GIVEN(m, pipeline_model_parallel_layout)) {
        add_layout(m, s);
        return;
    }
    if (s->pp == 1) return;
    int64_t chunks = chunks_of(m, s);
    if (chunks > 1) megatron_add_count(m, PART "pp_interleave_num", chunks);
    ADD(m, decoder_first_pipeline_num_layers, PART "num_layers_in_first_pipeline_stage",
        NULL);
    ADD(m, decoder_last_pipeline_num_layers, PART "num_layers_in_last_pipeline_stage",
        NULL);
    ADD(m, num_layer_list, PART "num_layer_list", NULL);
    if (GIVEN(m, account_for_embedding_in_pipeline_split) ||
        GIVEN(m, account_for_loss_in_pipeline_split))
        add_counted_layers(m, s->pp, chunks);
}

const char *const megatron_shards[4][2] = {{"no_shard", NULL},
                                           {"optim", "level1"},
                                           {"optim_grads", "level2"},
                                           {"optim_grads_params", "level3"}};

/* NULL: nothing is split. */
static const char *level_of(const Megatron *m) {
    const char *strategy = WORD(m, data_parallel_sharding_strategy, "no_shard");
    if (GIVEN(m, use_torch_fsdp2))
        return GIVEN(m, torch_fsdp2_no_reshard_after_forward) ? "level2" : "level3";
    if (GIVEN(m, use_megatron_fsdp)) {
        for (int i = 0; i < ARRAY_LEN(megatron_shards); i++)
            if (!strcmp(strategy, megatron_shards[i][0])) return megatron_shards[i][1];
        fail(EXIT_CONFIG,
             "--data-parallel-sharding-strategy %.60s: write no_shard, optim, "
             "optim_grads or optim_grads_params",
             strategy);
    }
    return GIVEN(m, use_distributed_optimizer) ? "level1" : NULL;
}

static void add_optimizer_shard(Megatron *m, const MegatronSizes *s) {
    const char *level = level_of(m);
    int64_t copies = s->dp * s->cp,
            instances = COUNT(m, num_distributed_optimizer_instances, 1);
    if (!level || copies == 1) return;
    megatron_add(m, PART "optimizer_shard", "True");
    megatron_add(m, ZERO "optimizer_level", "%s", level);
    if (instances < 2) return;
    if (copies % instances)
        fail(EXIT_CONFIG,
             "--num-distributed-optimizer-instances %lld does not divide %lld "
             "replicas",
             (long long)instances, (long long)copies);
    megatron_add_count(m, ZERO "optimizer_weight_shard_size", copies / instances);
}

void megatron_add_parallel(Megatron *m, const MegatronSizes *s) {
    if (s->tp > 1 || s->cp > 1 || s->pp > 1)
        megatron_add(m, "parallel.parallel_mode", "1");
    megatron_add_count(m, PART "data_parallel", s->dp);
    megatron_add_count(m, PART "model_parallel", s->tp);
    if (s->tp > 1 && GIVEN(m, sequence_parallel))
        megatron_add(m, PART "sequence_parallel", "True");
    add_context(m, s);
    add_stages(m, s);
    add_optimizer_shard(m, s);
    if (GIVEN(m, use_tp_pp_dp_mapping)) megatron_add(m, PART "rank_order", "tp-cp-pp-dp");
    if (GIVEN(m, ddp_bucket_size))
        megatron_add(m, "parallel.bucket_size", "%lldB",
                     (long long)times_capped(4, COUNT(m, ddp_bucket_size, 0)));
}

/* ---- recomputation ---- */

/* Of each chunk, where all have as many; 0: they do not. */
static int64_t layers_of_all(const Megatron *m, const MegatronSizes *s) {
    static const MegatronId uneven[] = {MEGATRON_pipeline_model_parallel_layout,
                                        MEGATRON_decoder_first_pipeline_num_layers,
                                        MEGATRON_decoder_last_pipeline_num_layers,
                                        MEGATRON_account_for_embedding_in_pipeline_split,
                                        MEGATRON_account_for_loss_in_pipeline_split,
                                        MEGATRON_num_layer_list,
                                        MEGATRON_noop_layers};
    int64_t layers = COUNT(m, num_layers, 0);
    if (s->pp == 1) return GIVEN(m, noop_layers) ? 0 : layers;
    for (int i = 0; i < ARRAY_LEN(uneven); i++)
        if (m->flag[uneven[i]].given) return 0;
    return layers / s->pp / chunks_of(m, s);
}

/* A block of more layers than there are is all of them. */
static void add_layers_again(Megatron *m, const MegatronSizes *s, bool block,
                             int64_t layers) {
    int64_t all = layers_of_all(m, s);
    if (block && all && layers > all) layers = all;
    megatron_add(m, REMAKE "recompute", "%lld", (long long)layers);
}

void megatron_add_recompute(Megatron *m, const MegatronSizes *s) {
    bool selective = GIVEN(m, recompute_activations);
    bool old =
        GIVEN(m, checkpoint_activations) || GIVEN(m, activations_checkpoint_method);
    const char *what = WORD(m, recompute_granularity,
                            old         ? "full"
                            : selective ? "selective"
                                        : NULL);
    if (!what) return;
    if (!strcmp(what, "selective")) {
        megatron_add(m, REMAKE "select_recompute", "True");
        return;
    }
    const char *method =
        WORD(m, recompute_method,
             WORD(m, activations_checkpoint_method, old ? "uniform" : ""));
    bool block = !strcmp(method, "block");
    if (strcmp(what, "full") != 0)
        fail(EXIT_CONFIG, "--recompute-granularity %.60s: write full or selective", what);
    if (!block && strcmp(method, "uniform") != 0)
        fail(EXIT_CONFIG,
             "--recompute-granularity full needs --recompute-method block or uniform");
    if (!old) NEED(m, recompute_num_layers);
    int64_t layers =
        COUNT(m, activations_checkpoint_num_layers, COUNT(m, checkpoint_num_layers, 1));
    megatron_add(m, REMAKE "recompute_method", "%s", method);
    add_layers_again(m, s, block, COUNT(m, recompute_num_layers, layers));
}
