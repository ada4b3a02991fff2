/* strategy.c - see strategy.h. */
#include "frontend/model/strategy.h"
#include "codegen/planned.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/model/recompute.h"
#include "frontend/model/strategy_schedule.h"
#include <math.h>
#include <stdlib.h>

#define PC "parallel_config."

/* ---- from keys ---- */

static void choose_order(Config *cfg, Strategy *s) {
    s->order = rank_order_of_config(cfg);
}

static void choose_schedule(Config *cfg, Strategy *s) {
    s->schedule_pos = schedule_place(cfg);
    s->schedule = schedule_of_config(cfg);
}

static void choose_layers(Config *cfg, Strategy *s) {
    s->layers = stage_layers_of_config(cfg);
}

static void choose_context(Config *cfg, Strategy *s) {
    int64_t u = cfg->parallel_config_ulysses_degree_in_cp;
    switch (cfg->parallel_config_context_parallel_algo) {
    case CP_ULYSSES:
        s->ring = 1;
        break;
    case CP_RING:
        s->ring = s->context;
        break;
    case CP_HYBRID:
        if (u <= 1 || u >= s->context || s->context % u)
            config_refuse(cfg, PC "ulysses_degree_in_cp", PC "context_parallel_algo",
                          "a divisor of context_parallel above 1 and below it; where "
                          "there is none ulysses_cp_algo or megatron_cp_algo",
                          "hybrid_cp_algo with context_parallel %lld and "
                          "ulysses_degree_in_cp %lld",
                          (long long)s->context, (long long)u);
        s->ring = s->context / u;
        return;
    }
}

int strategy_zero_level(const Config *cfg) {
    bool gradients = cfg->parallel_parallel_optimizer_config_gradient_accumulation_shard;
    int levels[] = {
        [ZERO_AUTO] = gradients ? 2 : 1, [ZERO_1] = 1, [ZERO_2] = 2, [ZERO_3] = 3};
    ZeroLevel asked = cfg->parallel_parallel_optimizer_config_optimizer_level;
    return config_wants_shards(cfg) ? levels[asked] : 0;
}

#define SHARE "parallel.parallel_optimizer_config.optimizer_weight_shard_size"

/* Neighbours that split states among them, all parts of a sequence with them. */
static void choose_groups(Config *cfg, Strategy *s) {
    int64_t all = s->data * s->context;
    int64_t each = cfg->parallel_parallel_optimizer_config_optimizer_weight_shard_size;
    if (each < 0) return;
    if (each == 1) {
        s->zero_level = 0;
        config_note(cfg, SHARE,
                    "optimizer_weight_shard_size 1: each rank has whole states, as "
                    "without optimizer_shard");
        return;
    }
    if (each == 0 || all % each || each % s->context)
        config_refuse(cfg, SHARE, PC "data_parallel",
                      "a multiple of context_parallel that divides that product; -1: "
                      "all of them",
                      "optimizer_weight_shard_size %lld with data_parallel x "
                      "context_parallel = %lld x %lld",
                      (long long)each, (long long)s->data, (long long)s->context);
    s->groups = all / each;
}

static void choose_zero(Config *cfg, Strategy *s) {
    s->zero_level = strategy_zero_level(cfg);
    if (!s->zero_level) return;
    s->zero_threshold_bytes =
        cfg->parallel_parallel_optimizer_config_parallel_optimizer_threshold * 1024;
    if (s->data * s->context == 1)
        s->zero_level = 0;
    else
        choose_groups(cfg, s);
}

/* parallel.bucket_size before comm_fusion before gradient_aggregation_group. */
static void choose_buckets(Config *cfg, Strategy *s) {
    static const char *const mode[] = {"parallel.comm_fusion.allreduce.mode",
                                       "parallel.comm_fusion.allgather.mode",
                                       "parallel.comm_fusion.reducescatter.mode"};
    const FusionMode how[] = {cfg->parallel_comm_fusion_allreduce_mode,
                              cfg->parallel_comm_fusion_allgather_mode,
                              cfg->parallel_comm_fusion_reducescatter_mode};
    const int64_t size[] = {cfg->parallel_comm_fusion_allreduce_config,
                            cfg->parallel_comm_fusion_allgather_config,
                            cfg->parallel_comm_fusion_reducescatter_config};
    int64_t most = 0;
    bool given = config_given(cfg, "parallel.bucket_size");
    s->bucket_bytes = cfg->parallel_bucket_size;
    for (int i = 0; i < ARRAY_LEN(mode); i++) {
        if (how[i] == FUSION_INDEX)
            config_refuse(cfg, mode[i], NULL, "mode size with config in MB",
                          "mode index counts the operators of another program");
        if (how[i] == FUSION_SIZE) most = MAX(most, size[i]);
    }
    if (given) return;
    if (most)
        s->bucket_bytes = most << 20;
    else if (config_given(cfg, PC "gradient_aggregation_group"))
        s->gradient_groups = cfg->parallel_config_gradient_aggregation_group;
}

int64_t strategy_bucket_bytes(const Strategy *s, const ModelSpec *spec) {
    if (!s->gradient_groups || !spec) return s->bucket_bytes;
    int64_t bytes = model_parameters(spec) / s->tensor * (int64_t)sizeof(float);
    return bytes / s->gradient_groups + 1;
}

/* A user's module has tensors split over tp only where an entry says so. */
static void note_idle_tensor(Config *cfg, const Strategy *s) {
    if (!cfg->model_file[0] || s->tensor == 1) return;
    for (int i = 0; i < s->user.n; i++) {
        const char *placement = strchr(s->user.items[i], '=');
        if (placement && strstr(placement, "tp")) return;
    }
    config_note(cfg, PC "model_parallel",
                "model_parallel %lld has no effect: no entry of parallel.shard splits a "
                "value of the model.file over tp, so these ranks compute the same",
                (long long)s->tensor);
}

static void check_mesh(Config *cfg, Strategy *s) {
    if (s->data > (1 << 20) / s->context / s->tensor / s->stages)
        config_refuse(cfg, PC "data_parallel", PC "model_parallel", NULL,
                      "more than %d ranks", 1 << 20);
    if (cfg->parallel_parallel_mode == 0 && s->tensor * s->context > 1 &&
        config_given(cfg, "parallel.parallel_mode"))
        config_refuse(cfg, "parallel.parallel_mode", NULL, "parallel_mode 1",
                      "parallel_mode 0 is data parallel: model_parallel and "
                      "context_parallel must be 1");
}

/* Commands that can look for a strategy have done so before. One rank has one. */
static void check_found(Config *cfg, Strategy *s) {
    if (cfg->parallel_parallel_mode == 2 && strategy_ranks(s) > 1)
        config_refuse(
            cfg, "parallel.parallel_mode", NULL,
            "--parallel.parallel_mode 1 takes the strategy that stands here; stator "
            "search CONFIG.yaml -n RANKS --write best.yaml finds one",
            "parallel_mode 2: train, plan and simulate search for a strategy, this "
            "command does not");
}

/* MindFormers splits with stages whatever this says, where there is nothing left over. A flag is
 * for this program. */
static void note_whole_vocab(Config *cfg, const Strategy *s) {
    const char *key = "parallel_config.vocab_emb_dp";
    bool told = config_given(cfg, key) && !config_by_flag(cfg, key);
    bool even = config_has_source(cfg) || cfg->model_vocab_size % s->tensor == 0;
    if (told && even && !s->vocab_parallel && s->stages > 1 && s->tensor > 1)
        config_note(
            cfg, key,
            "vocab_emb_dp True: embedding and head are whole on every rank, where "
            "MindFormers splits them, as there are stages: False does that");
}

typedef struct Part {
    Config *cfg;
    Strategy *s;
    void (*choose)(Config *cfg, Strategy *s);
} Part;

static void choose_part(void *context) {
    const Part *p = context;
    p->choose(p->cfg, p->s);
}

/* What one of them refuses leaves the others, whose problems are told with its own. */
static void choose_parts(Config *cfg, Strategy *s) {
    static void (*const choose[])(Config *, Strategy *) = {
        check_mesh,     check_found, choose_order,   choose_schedule,    choose_layers,
        choose_context, choose_zero, choose_buckets, recompute_of_config};
    for (int i = 0; i < ARRAY_LEN(choose); i++)
        config_try(cfg->state, choose_part, &(Part){cfg, s, choose[i]});
    config_fail_all(cfg->state);
}

Strategy strategy_of_config(Config *cfg) {
    Strategy s = {.data = cfg->parallel_config_data_parallel,
                  .context = cfg->parallel_config_context_parallel,
                  .tensor = cfg->parallel_config_model_parallel,
                  .stages = cfg->parallel_config_pipeline_stage,
                  .chunks = cfg->parallel_config_pp_interleave_num,
                  .ring = 1,
                  .sequence_parallel = cfg->parallel_config_sequence_parallel,
                  .vocab_parallel = !cfg->parallel_config_vocab_emb_dp,
                  .zero_axes = "",
                  .overlap = cfg->parallel_overlap,
                  .gathers_at_end = !cfg->parallel_overlap_param_gather,
                  .user = cfg->parallel_shard,
                  .user_pos = config_where(cfg, "parallel.shard")};
    s.slice_kept = cfg->recompute_config_recompute_slice_activation && s.tensor > 1;
    if (!cfg->runner_wrapper_calculate_per_token_loss)
        config_note(cfg, "runner_wrapper.calculate_per_token_loss",
                    "calculate_per_token_loss False: the loss is the mean of the means "
                    "of the micro-batches of each replica: a label weighs more where "
                    "few of its micro-batch count");
    note_idle_tensor(cfg, &s);
    note_whole_vocab(cfg, &s);
    s.sequence_parallel &= s.tensor > 1;
    s.vocab_parallel &= s.tensor > 1;
    choose_parts(cfg, &s);
    config_note_idle(cfg);
    if (s.zero_level)
        s.zero_axes =
            s.context > 1 && s.ring > 1 && s.ring < s.context ? "dp.cp.up" : "dp.cp";
    return s;
}

void strategy_replicate(Config *cfg, int64_t ranks, const char *why) {
    int64_t others = config_replica_ranks(cfg);
    if (config_given(cfg, PC "data_parallel") || ranks % others) return;
    cfg->parallel_config_data_parallel = ranks / others;
    if (ranks == others) return;
    config_note(cfg, PC "data_parallel", "data_parallel is %lld, as %lld %s",
                (long long)(ranks / others), (long long)ranks, why);
}

const char *strategy_degree_given(const Config *cfg) {
    static const char *const key[] = {PC "data_parallel", PC "model_parallel",
                                      PC "context_parallel", PC "pipeline_stage",
                                      "parallel.pipeline_stages"};
    for (int i = 0; i < ARRAY_LEN(key); i++)
        if (config_given(cfg, key[i])) return key[i];
    return key[0];
}

int64_t strategy_ranks(const Strategy *s) {
    return s->data * s->context * s->tensor * MAX(s->stages, 1);
}

int64_t strategy_vocab(const Strategy *s, const ModelSpec *spec) {
    if (!s->vocab_parallel) return spec->vocab;
    return round_up(spec->vocab, s->tensor);
}

int64_t strategy_loss_groups(const Config *cfg, const Strategy *s) {
    return cfg->runner_wrapper_calculate_per_token_loss ? 0 : s->data;
}

/* ---- options ---- */

/* Rows of ops.def; AdamWeightDecay is AdamW whose bias corrections are 1. */
static const char *const optimizer_op[] = {[OPTIMIZER_ADAMW] = "adamw",
                                           [OPTIMIZER_ADAM_WEIGHT_DECAY] = "adamw",
                                           [OPTIMIZER_FUSED_ADAM_WEIGHT_DECAY] = "adamw",
                                           [OPTIMIZER_ADAM] = "adam",
                                           [OPTIMIZER_SGD] = "sgd",
                                           [OPTIMIZER_MOMENTUM] = "momentum"};

static const DType factor_type[] = {
    [FLOAT_32] = DT_F32, [FLOAT_16] = DT_F16, [FLOAT_BF16] = DT_BF16};

static bool decays_weights(const Config *cfg) {
    if (cfg->optimizer_weight_decay_incr_style == WD_CONSTANT)
        return cfg->optimizer_weight_decay > 0;
    return cfg->optimizer_start_weight_decay > 0 || cfg->optimizer_end_weight_decay > 0;
}

static bool makes_code_quickly(const Config *cfg) {
    const char *name = "STATOR_JIT_LEVEL", *set = getenv(name);
    if (cfg->context_jit_level != JIT_AUTO || !set)
        return cfg->context_jit_level == JIT_O0;
    if (strcmp(set, "O0") && strcmp(set, "O2"))
        fail(EXIT_CONFIG, "%s=%.100s: write O0 or O2", name, set);
    return !strcmp(set, "O0");
}

/* A name that nobody knows, or a CPU that this one is not, is told where it stands. */
static void check_cpu(const Config *cfg) {
    Catch c;
    if (!config_given(cfg, "context.cpu")) return;
    if (!CATCH(c)) catch_fail_at(&c, config_where(cfg, "context.cpu"));
    compile_check_cpu(cfg->context_cpu);
    catch_end(&c);
}

CompileOptions strategy_compile_options(const Config *cfg) {
    check_cpu(cfg);
    return (CompileOptions){.cpu = cfg->context_cpu,
                            .threads = (int)cfg->context_threads,
                            .quick = makes_code_quickly(cfg)};
}

double strategy_bias_correction(const Config *cfg, double beta, int64_t update) {
    OptimizerType type = cfg->optimizer_type;
    bool corrects = type == OPTIMIZER_ADAM || type == OPTIMIZER_ADAMW;
    return corrects ? 1 - pow(beta, (double)update) : 1;
}

PassOptions strategy_pass_options(const Config *cfg) {
    PassOptions o = pass_options_default();
    o.micro_batches = cfg->parallel_config_micro_batch_num;
    o.remake_elementwise = cfg->recompute_config_recompute_elementwise;
    o.narrow = factor_type[cfg->model_compute_dtype];
    o.scale_loss = cfg->model_compute_dtype == FLOAT_16;
    o.round_gradients = !cfg->model_accumulate_allreduce_grads_in_fp32;
    o.round_sums = !cfg->model_allreduce_activations_in_fp32;
    o.residual_exact = cfg->model_fp32_residual_connection;
    o.beta1 = cfg->optimizer_beta1;
    o.beta2 = cfg->optimizer_beta2;
    o.eps = cfg->optimizer_eps;
    o.decay_weights = decays_weights(cfg);
    o.optimizer = optimizer_op[cfg->optimizer_type];
    o.momentum = cfg->optimizer_momentum;
    o.clip_norm =
        cfg->runner_wrapper_use_clip_grad ? cfg->runner_wrapper_max_grad_norm : 0;
    o.tile_bytes = cfg->context_tile_size;
    o.machine = config_machine(cfg);
    o.threads = (int)cfg->context_threads;
    o.dump_dir = cfg->dump_ir[0] ? cfg->dump_ir : NULL;
    return o;
}
