/* strategy.c - see strategy.h. */
#include "frontend/model/strategy.h"
#include "codegen/planned.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/model/model_parts.h"
#include "frontend/model/recompute.h"
#include "frontend/model/strategy_schedule.h"
#include "passes/pipe/marks.h"
#include <stdlib.h>

#define PC "parallel_config."

/* ---- from keys ---- */

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
                          "a divisor of context_parallel above 1 and below it",
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

static void check_mesh(Config *cfg, const Strategy *s) {
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
static void check_found(const Config *cfg, const Strategy *s) {
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

Strategy strategy_of_config(Config *cfg) {
    Strategy s = {.order = rank_order_of_config(cfg),
                  .data = cfg->parallel_config_data_parallel,
                  .context = cfg->parallel_config_context_parallel,
                  .tensor = cfg->parallel_config_model_parallel,
                  .stages = cfg->parallel_config_pipeline_stage,
                  .chunks = cfg->parallel_config_pp_interleave_num,
                  .schedule = schedule_of_config(cfg),
                  .schedule_pos = schedule_place(cfg),
                  .layers = stage_layers_of_config(cfg),
                  .sequence_parallel = cfg->parallel_config_sequence_parallel,
                  .vocab_parallel = !cfg->parallel_config_vocab_emb_dp,
                  .zero_axes = "",
                  .overlap = cfg->parallel_overlap,
                  .gathers_at_end = !cfg->parallel_overlap_param_gather,
                  .user = cfg->parallel_shard,
                  .user_pos = config_where(cfg, "parallel.shard")};
    check_mesh(cfg, &s);
    check_found(cfg, &s);
    if (!cfg->runner_wrapper_calculate_per_token_loss)
        config_note(cfg, "runner_wrapper.calculate_per_token_loss",
                    "calculate_per_token_loss False: the loss is the mean of the means "
                    "of the micro-batches of each replica: a label weighs more where "
                    "few of its micro-batch count");
    s.slice_kept = cfg->recompute_config_recompute_slice_activation && s.tensor > 1;
    choose_context(cfg, &s);
    choose_zero(cfg, &s);
    choose_buckets(cfg, &s);
    note_idle_tensor(cfg, &s);
    note_whole_vocab(cfg, &s);
    s.sequence_parallel &= s.tensor > 1;
    s.vocab_parallel &= s.tensor > 1;
    recompute_of_config(cfg, &s);
    config_note_idle(cfg);
    if (s.zero_level)
        s.zero_axes =
            s.context > 1 && s.ring > 1 && s.ring < s.context ? "dp.cp.up" : "dp.cp";
    return s;
}

void strategy_replicate(Config *cfg, int64_t ranks, const char *why) {
    int64_t others = cfg->parallel_config_model_parallel *
                     cfg->parallel_config_context_parallel *
                     cfg->parallel_config_pipeline_stage;
    if (config_given(cfg, PC "data_parallel") || ranks % others) return;
    cfg->parallel_config_data_parallel = ranks / others;
    if (ranks == others) return;
    config_note(cfg, PC "data_parallel", "data_parallel is %lld, as %lld %s",
                (long long)(ranks / others), (long long)ranks, why);
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

/* ---- seeds ---- */

typedef struct Seeds {
    Arena *mem;
    const Strategy *s;
    Annotation *list;
    int n, cap;
    const char *batch;  /* axes of samples: "dp", "rp.dp", "-" */
    const char *tokens; /* of the sequence, where data are: "cp", "cp.up", "-" */
    const char *seq;    /* where activations are */
    const char *ring;   /* where queries are inside attention: "cp", "-" */
    const char *heads;  /* of heads there */
} Seeds;

static void add(Seeds *k, Annotation a) {
    PUSH(k->mem, k->list, k->n, k->cap, a);
}

/* A placement that `key` asks for. */
static void derive(Seeds *k, const char *pattern, const char *placement, const char *key,
                   bool optional) {
    add(k, (Annotation){pattern, placement, key, optional, .derived = true});
}

/* Axes that split a letter of a parameter's shape (see model_parts.h). */
static const char *axes_of_letter(const Strategy *s, const ModelSpec *spec, char c) {
    switch (c) {
    case 'h':
    case 'f':
        return "tp";
    case 'g':
        return spec->kv_heads % s->tensor ? "-" : "tp";
    case 'v':
        return s->vocab_parallel ? "tp" : "-";
    default:
        return "-";
    }
}

static void seed_parameters(Seeds *k, const ModelSpec *spec) {
    PartParam p[MODEL_MAX_PARAMS];
    int n = model_params(k->mem, spec, p);
    for (int i = 0; i < n; i++) {
        const char *in, *out;
        char stored[8];
        model_part_letters(spec, p[i].part, stored, &in, &out);
        Text t = text_new(k->mem);
        for (const char *c = p[i].bias ? out : stored; *c; c++)
            text_add(&t, "%s%s", t.n ? "," : "", axes_of_letter(k->s, spec, *c));
        derive(k, model_param_name(k->mem, p[i].hf), t.s, PC "model_parallel", false);
    }
}

/* Samples over dp; of a matrix [samples, tokens] the tokens too. */
static void seed_data(Seeds *k, const Func *model) {
    static const ArgRole roles[] = {ARG_tokens, ARG_labels, ARG_positions,
                                    ARG_attends_from, ARG_data};
    for (int i = 0; i < model->narg; i++) {
        ArgRole role = arg_role(model, i);
        int rank = model->arg[i]->ty.rank;
        for (int r = 0; r < ARRAY_LEN(roles); r++) {
            if (role != roles[r]) continue;
            bool tokens = role != ARG_data && rank == 2;
            Text t = text_new(k->mem);
            text_add(&t, "%s%s", k->batch, tokens ? "," : "");
            if (tokens) text_add(&t, "%s", k->tokens);
            for (int d = 1; d < rank && !tokens; d++) text_add(&t, ",-");
            derive(k, model->arg[i]->name, t.s,
                   k->s->context > 1 && tokens ? PC "context_parallel"
                                               : PC "data_parallel",
                   false);
        }
    }
}

/* Queries, keys and values: axes of heads, which a single one of keys and values has not. */
static const char *const inner_names[] = {"layer/q", "layer/k", "layer/v"};
static const char *inner_heads(const ModelSpec *spec, int i, const char *axes) {
    return i && spec->kv_heads == 1 ? "-" : axes;
}

/* The residual stream, and what is added to it. */
static void seed_values(Seeds *k, const ModelSpec *spec) {
    static const char *const names[] = {"layer/x", "layer/attn", "layer/mlp", "model/x"};
    const char *seq = k->seq, *key = PC "data_parallel";
    if (k->s->context > 1) key = PC "context_parallel";
    if (k->s->sequence_parallel) {
        key = PC "sequence_parallel";
        seq = !strcmp(seq, "-") ? "tp" : arena_printf(k->mem, "%s.tp", seq);
    }
    for (int i = 0; i < ARRAY_LEN(names); i++)
        derive(k, names[i], arena_printf(k->mem, "%s,%s,-", k->batch, seq), key, true);
    for (int i = 0; i < ARRAY_LEN(inner_names) && k->heads; i++)
        derive(k, inner_names[i],
               arena_printf(k->mem, "%s,%s,%s,-", k->batch, k->seq,
                            inner_heads(spec, i, "tp")),
               PC "context_parallel_algo", true);
    if (k->heads)
        derive(k, "layer/o",
               arena_printf(k->mem, "%s,%s,%s,-", k->batch, k->ring, k->heads),
               PC "context_parallel_algo", true);
}

/* Each rank keeps the keys and values of the heads that it has in attention. */
static void seed_caches(Seeds *k, const ModelSpec *spec) {
    static const char *const names[] = {"layer/kcache", "layer/vcache"};
    for (int i = 0; i < ARRAY_LEN(names) && k->heads && spec->kv_heads > 1; i++)
        derive(k, names[i], arena_printf(k->mem, "%s,-,%s,-", k->batch, k->heads),
               PC "context_parallel_algo", true);
}

/* Ranks of a replica that brings data of its own all have the same tokens. They split the work on
 * them where there are enough, and caches are by heads. */
static void split_tokens(Seeds *k, const Func *model, const char *axes) {
    int tokens = func_arg_role(model, ARG_tokens);
    bool enough = tokens >= 0 && k->s->ring == 1 &&
                  model->arg[tokens]->ty.dim[1] % k->s->context == 0;
    k->tokens = k->s->own_data ? "-" : axes;
    k->seq = k->s->own_data && !enough ? "-" : axes;
    k->ring = k->s->own_data || k->s->ring == 1 ? "-" : "cp";
}

static void gather(Seeds *k, const char *pattern, const char *placement,
                   const char *key) {
    add(k, (Annotation){pattern, placement, key, .optional = true, .derived = true,
                        .gathered = true});
}

/* As the matmuls and attention of a layer read them. */
static void seed_gathered(Seeds *k, const ModelSpec *spec) {
    const char *whole = arena_printf(k->mem, "%s,%s,-", k->batch, k->seq);
    if (k->s->sequence_parallel) gather(k, "layer/norm", whole, PC "sequence_parallel");
    if (!k->heads) return;
    const char *tokens = arena_printf(k->mem, "%s,%s,tp,-", k->batch, k->seq);
    for (int i = 0; i < ARRAY_LEN(inner_names); i++)
        gather(k, inner_names[i],
               arena_printf(k->mem, "%s,%s,%s,-", k->batch, k->ring,
                            inner_heads(spec, i, k->heads)),
               PC "context_parallel_algo");
    gather(k, "layer/o", tokens, PC "context_parallel_algo");
}

static void seed_user(Seeds *k) {
    for (int i = 0; i < k->s->user.n; i++) {
        char *text =
            arena_strndup(k->mem, k->s->user.items[i], strlen(k->s->user.items[i]));
        SourcePos at = k->s->user_pos;
        const char *source = arena_printf(k->mem, "%s:%d: parallel.shard, entry %d",
                                          at.file ? at.file : "?", at.line, i + 1);
        char *eq = strchr(text, '=');
        if (!eq)
            fail(EXIT_CONFIG,
                 "%s: '%s': write PATTERN=PLACEMENT in quotes, since a comma ends an "
                 "entry: [\"h.mlp.c_fc.weight=-,tp\"]",
                 source, text);
        *eq = 0;
        add(k, (Annotation){text, eq + 1, source});
    }
}

static void add_axis(Mesh *m, const char *name, int64_t size) {
    m->axis[m->naxes].name = name;
    m->axis[m->naxes++].size = (int)size;
}

static void apply_stages(const Strategy *s, Module *m, PassOptions *o) {
    int64_t chunks = s->stages * MAX(s->chunks, 1);
    if (s->stages <= 1) return;
    o->schedule = schedule_of_strategy(s, m->mem, (int)chunks, (int)o->micro_batches);
    const int64_t *marked = module_marked_layers(m, (int)chunks);
    if (marked) stage_layers_refuse_keys(&s->layers, m->name);
    o->chunk_layers =
        marked ? marked : stage_layers(&s->layers, m->mem, o->schedule, module_layers(m));
}

void strategy_apply(const Strategy *s, const ModelSpec *spec, Module *m, PassOptions *o) {
    int64_t groups = MAX(s->groups, 1);
    const char *samples = groups > 1 ? "rp.dp" : "dp";
    Seeds k = {.mem = m->mem, .s = s, .batch = s->own_data ? "-" : samples};
    k.tokens = k.seq = k.ring = "-";
    apply_stages(s, m, o);
    o->remake = s->remake;
    if (s->remake && s->remake_pos.line) {
        const int64_t all = module_layers(m);
        recompute_check_counts(s, o->chunk_layers ? o->chunk_layers : &all,
                               o->chunk_layers ? o->schedule->chunks : 1);
    }
    o->remake_axes = s->slice_kept ? "tp" : NULL;
    if (s->data * s->context * s->tensor == 1 && !s->user.n) return;
    bool hybrid = s->ring > 1 && s->ring < s->context;
    if (groups > 1) add_axis(&m->mesh, "rp", groups);
    add_axis(&m->mesh, "dp", s->data / groups);
    add_axis(&m->mesh, "cp", hybrid ? s->ring : s->context);
    if (hybrid) add_axis(&m->mesh, "up", s->context / s->ring);
    add_axis(&m->mesh, "tp", s->tensor);
    mesh_set_order(&m->mesh, s->stages, &s->order);
    if (s->context > 1) split_tokens(&k, model_entry(m), hybrid ? "cp.up" : "cp");
    if (s->context > s->ring) k.heads = hybrid ? "tp.up" : "tp.cp";
    seed_data(&k, model_entry(m));
    if (spec) {
        seed_parameters(&k, spec);
        seed_values(&k, spec);
        seed_caches(&k, spec);
        if (s->names_gathered) seed_gathered(&k, spec);
    }
    seed_user(&k);
    o->annotation = k.list;
    o->nannotations = k.n;
    o->zero_level = s->zero_level;
    o->zero_axes = s->zero_axes;
    o->zero_threshold_bytes = s->zero_threshold_bytes;
    o->bucket_bytes = strategy_bucket_bytes(s, spec);
    o->overlap = s->overlap != OVERLAP_OFF;
    o->gathers_at_end = s->gathers_at_end;
}

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

PassOptions strategy_pass_options(const Config *cfg) {
    PassOptions o = pass_options_default();
    o.micro_batches = cfg->parallel_config_micro_batch_num;
    o.remake_elementwise = cfg->recompute_config_recompute_elementwise;
    o.narrow = factor_type[cfg->model_compute_dtype];
    o.scale_loss = cfg->model_compute_dtype == FLOAT_16;
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
