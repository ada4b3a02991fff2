/* megatron_export.c - the strategy of a job as flags of Megatron-LM: megatron_strategy.c the other
 * way round. */
#include "frontend/tools/megatron_export.h"
#include "frontend/config/config_state.h"
#include "frontend/config/key.h"
#include "frontend/tools/megatron_parts.h"

#define REMAKE "recompute_config."
#define ZERO   "parallel.parallel_optimizer_config."

typedef struct Export {
    Arena *mem;
    const Job *j;
    const Strategy *s;
    const PassOptions *o;
    MegatronExport out;
    int cap;
} Export;

static void add_flag(Export *e, MegatronId id, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void add_flag(Export *e, MegatronId id, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    const char *words = arena_vprintf(e->mem, fmt, ap);
    va_end(ap);
    text_add(&e->out.flags, "%s%s%s\n", megatron_name(e->mem, (int)id),
             words[0] ? " " : "", words);
}

#define FLAG(name, ...) add_flag(e, MEGATRON_##name, __VA_ARGS__)
#define SWITCH(name)    add_flag(e, MEGATRON_##name, "%s", "")
#define NUMBER(name, n) add_flag(e, MEGATRON_##name, "%lld", (long long)(n))

/* A line on a key that no flag says, or not all of it. */
static void add_note(Export *e, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void add_note(Export *e, const char *key, const char *fmt, ...) {
    SourcePos at = config_where(e->j->cfg, key);
    char *place = at.line ? arena_printf(e->mem, "%s:%d: ", at.file, at.line) : "";
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(e->mem, fmt, ap);
    va_end(ap);
    PUSH(e->mem, e->out.note, e->out.nnotes, e->cap,
         arena_printf(e->mem, "%s%s %s: %s", place, key,
                      config_value(e->j->cfg, e->mem, key), text));
}

/* ---- ranks ---- */

/* Sums of products over ranks, and rows of the vocabulary. */
static void note_split(Export *e) {
    enum { DIVISIBLE = 128 }; /* --make-vocab-size-divisible-by where it is not given */
    const Config *cfg = e->j->cfg;
    const int64_t rows = e->j->shape.vocab_rows;
    if (cfg->model_compute_dtype != FLOAT_32 && cfg->model_allreduce_activations_in_fp32)
        add_note(e, MODEL "allreduce_activations_in_fp32",
                 "Megatron-LM adds what these ranks made in 16 bits");
    if (rows % (DIVISIBLE * e->s->tensor))
        add_note(e, PART "model_parallel",
                 "here the vocabulary has %lld rows; Megatron-LM fills it up to a "
                 "multiple of --make-vocab-size-divisible-by times that",
                 (long long)rows);
}

static void add_tensor(Export *e) {
    const Strategy *s = e->s;
    NUMBER(tensor_model_parallel_size, s->tensor);
    if (s->tensor == 1) return;
    if (s->sequence_parallel) SWITCH(sequence_parallel);
    note_split(e);
    if (!s->vocab_parallel)
        add_note(e, PART "vocab_emb_dp",
                 "Megatron-LM always splits embedding and head over these ranks");
}

static void add_context(Export *e) {
    const Strategy *s = e->s;
    const char *algo = config_value(e->j->cfg, e->mem, PART "context_parallel_algo");
    const bool hybrid = s->ring > 1 && s->ring < s->context;
    const long long inner = (long long)(s->context / s->ring);
    NUMBER(context_parallel_size, s->context);
    if (s->context == 1) return;
    FLAG(cp_comm_type, "%s", hybrid ? "a2a+p2p" : s->ring > 1 ? "p2p" : "a2a");
    if (hybrid)
        FLAG(hierarchical_context_parallel_sizes, "%lld %lld", inner, (long long)s->ring);
    char *degree =
        hybrid ? arena_printf(e->mem, " --ulysses-degree-in-cp %lld", inner) : "";
    add_note(e, PART "context_parallel_algo",
             "MindSpeed has --context-parallel-algo %s%s instead of --cp-comm-type", algo,
             degree);
}

/* The order of the degrees above 1, neighbours first: "tp-dp". */
static const char *order_of(const Export *e, const char *order) {
    const Strategy *s = e->s;
    const int64_t size[] = {s->tensor, s->context, s->data, s->stages};
    static const char words[][3] = {"tp", "cp", "dp", "pp"};
    Text t = text_new(e->mem);
    for (const char *p = order; *p; p += p[2] ? 3 : 2)
        for (int i = 0; i < ARRAY_LEN(words); i++)
            if (size[i] > 1 && begins_with(p, words[i])) text_add(&t, "-%s", words[i]);
    return t.s;
}

static void add_order(Export *e) {
    const char *is = order_of(e, rank_order_text(e->mem, &e->s->order));
    if (!strcmp(is, order_of(e, "tp-cp-dp-pp"))) return;
    if (!strcmp(is, order_of(e, "tp-cp-pp-dp")))
        SWITCH(use_tp_pp_dp_mapping);
    else
        add_note(e, PART "rank_order", "no flag says it");
}

static void add_batch(Export *e) {
    const Job *j = e->j;
    NUMBER(micro_batch_size, j->batch / e->s->data);
    NUMBER(global_batch_size, j->batch * j->micro);
    if (j->parts > 1)
        add_note(e, "micro_batch_interleave_num",
                 "--tp-comm-overlap hides what layers exchange, in another way");
}

/* ---- stages ---- */

static bool is_even(const PassOptions *o) {
    for (int c = 1; c < o->schedule->chunks; c++)
        if (o->chunk_layers[c] != o->chunk_layers[0]) return false;
    return true;
}

/* In letters alone: a shell that expands them leaves them as they are. */
static void add_layout(Export *e) {
    const int chunks = e->o->schedule->chunks;
    Text t = text_new(e->mem);
    for (int c = 0; c < chunks; c++) {
        text_add(&t, c ? "|" : "E");
        for (int64_t i = 0; i < e->o->chunk_layers[c]; i++) text_add(&t, "t");
    }
    FLAG(pipeline_model_parallel_layout, "%sL", t.s);
}

static void add_layers(Export *e) {
    const Strategy *s = e->s;
    const StageLayers *l = &s->layers;
    const bool empty = (l->has_first && !l->first) || (l->has_last && !l->last);
    const bool ends = (l->has_first || l->has_last) && !l->noop.n && !empty;
    if (l->noop.n)
        add_note(e, PART "noop_layers", "--num-layers is %lld, of layers that exist",
                 (long long)e->j->spec.layers);
    if (!is_even(e->o) && !ends) {
        add_layout(e);
        return;
    }
    if (l->has_first && ends) NUMBER(decoder_first_pipeline_num_layers, l->first);
    if (l->has_last && ends) NUMBER(decoder_last_pipeline_num_layers, l->last);
    if (s->chunks > 1) NUMBER(num_virtual_stages_per_pipeline_rank, s->chunks);
}

static void add_stages(Export *e) {
    const Strategy *s = e->s;
    NUMBER(pipeline_model_parallel_size, s->stages);
    if (s->stages == 1) return;
    const PipeSchedule *p = e->o->schedule;
    if (strcmp(s->schedule, "1f1b") != 0) {
        add_note(e, "parallel.pipeline_config.pipeline_scheduler",
                 "Megatron-LM has 1f1b alone; a search that keeps to it has this key "
                 "given");
        if (p->stage_of[p->chunks - 1] != p->stages - 1) return; /* a V */
    }
    add_layers(e);
}

/* ---- states of the optimizer ---- */

static bool is_adam(OptimizerType type) {
    return type != OPTIMIZER_SGD && type != OPTIMIZER_MOMENTUM;
}

/* Levels 2 and 3, which Megatron-LM has without stages. */
static void add_fsdp(Export *e) {
    static const char key[] = ZERO "optimizer_level";
    if (e->s->stages > 1) {
        add_note(e, key,
                 "with stages Megatron-LM splits the state of the optimizer alone, "
                 "level1");
        return;
    }
    SWITCH(use_megatron_fsdp);
    FLAG(data_parallel_sharding_strategy, "%s", megatron_shards[e->s->zero_level][0]);
    FLAG(ckpt_format, "fsdp_dtensor");
    add_note(e, key,
             "Megatron-LM's FSDP wants CUDA_DEVICE_MAX_CONNECTIONS above 1; in core 0.12 "
             "it is --use-custom-fsdp");
}

static void add_optimizer_shard(Export *e) {
    const Strategy *s = e->s;
    const bool overlaps = s->overlap != OVERLAP_OFF && s->data * s->context > 1;
    if (s->zero_level > 0) SWITCH(use_distributed_optimizer);
    if (s->zero_level > 1) add_fsdp(e);
    if (s->zero_level > 0 && !is_adam(e->j->cfg->optimizer_type))
        add_note(e, "optimizer.type",
                 "Megatron-LM's distributed optimizer is for Adam alone");
    if (s->zero_level > 0 && s->groups > 1)
        NUMBER(num_distributed_optimizer_instances, s->groups);
    if (overlaps) SWITCH(overlap_grad_reduce);
    if (overlaps && s->zero_level > 0 && !s->gathers_at_end) SWITCH(overlap_param_gather);
    if (!config_given(e->j->cfg, "parallel.bucket_size")) return;
    if (s->bucket_bytes >= 4)
        NUMBER(ddp_bucket_size, s->bucket_bytes / 4);
    else
        add_note(e, "parallel.bucket_size", "each message by itself is no flag");
}

/* ---- recomputation ---- */

static void add_full(Export *e, const char *method, const char *layers) {
    FLAG(recompute_granularity, "full");
    FLAG(recompute_method, "%s", method);
    FLAG(recompute_num_layers, "%s", layers);
}

/* Of the layers that are not made again as a whole. */
static void add_selected(Export *e, bool beside) {
    const int on = config_switch(&e->j->cfg->recompute_config_select_recompute);
    if (!on) return;
    if (on > 0 && !beside)
        FLAG(recompute_granularity, "selective");
    else
        add_note(e, REMAKE "select_recompute",
                 "--recompute-granularity is full, or selective of attention");
}

/* What auto has chosen; NULL: something else than the first layers of each chunk. */
static const char *chosen_layers(const Export *e) {
    const char *text = e->s->remake ? e->s->remake : "0:full";
    size_t digits = strspn(text, "0123456789");
    bool count = digits && !strcmp(text + digits, ":full");
    return count ? arena_strndup(e->mem, text, digits) : NULL;
}

/* Of each chunk: "0", "3"; NULL: of each another number. */
static const char *same_layers(const Export *e) {
    const TextList *all = &e->j->cfg->recompute_config_recompute;
    if (e->s->remake_auto) return chosen_layers(e);
    if (!config_switch(all)) return "0";
    for (int i = 1; i < all->n; i++)
        if (strcmp(all->items[i], all->items[0]) != 0) return NULL;
    return all->items[0];
}

static void add_recompute(Export *e) {
    const Config *cfg = e->j->cfg;
    const char *layers = same_layers(e);
    bool whole = config_switch(&cfg->recompute_config_recompute) > 0 ||
                 (e->s->remake_auto && e->s->remake && !strcmp(e->s->remake, "full"));
    bool none = !whole && layers && !strcmp(layers, "0");
    bool uniform = cfg->recompute_config_recompute_method == RECOMPUTE_UNIFORM;
    if (whole)
        add_full(e, "uniform", "1");
    else if (layers && !none)
        add_full(e, uniform ? "uniform" : "block", layers);
    else if (!none)
        add_note(e, REMAKE "recompute",
                 "%s is made again; --recompute-num-layers is one number for all",
                 e->s->remake);
    if (!whole && !e->s->remake_auto) add_selected(e, !none);
    if (!e->s->slice_kept) return;
    if ((whole || (layers && !none)) && !e->s->sequence_parallel)
        SWITCH(distribute_saved_activations);
    else
        add_note(e, REMAKE "recompute_slice_activation",
                 "Megatron-LM has it with full recomputation and without "
                 "sequence_parallel alone");
}

/* ---- what is left ---- */

/* Sections of a strategy, and their keys that the functions above read. */
static bool is_of_strategy(const char *key) {
    static const char *const sections[] = {"parallel.", PART, REMAKE};
    for (int i = 0; i < ARRAY_LEN(sections); i++)
        if (begins_with(key, sections[i])) return true;
    return false;
}

static bool is_read(const char *key) {
    static const char *const keys[] = {
        "parallel.parallel_mode",
        "parallel.enable_parallel_optimizer",
        "parallel.parallel_optimizer_config.gradient_accumulation_shard",
        "parallel.parallel_optimizer_config.optimizer_level",
        "parallel.parallel_optimizer_config.optimizer_weight_shard_size",
        "parallel.bucket_size",
        "parallel.overlap",
        "parallel.overlap_param_gather",
        "parallel.pipeline_config.pipeline_scheduler",
        PART "data_parallel",
        PART "model_parallel",
        PART "context_parallel",
        PART "context_parallel_algo",
        PART "ulysses_degree_in_cp",
        PART "micro_batch_num",
        PART "pipeline_stage",
        PART "rank_order",
        PART "pp_interleave_num",
        PART "offset",
        PART "num_layer_list",
        PART "num_layers_in_first_pipeline_stage",
        PART "num_layers_in_last_pipeline_stage",
        PART "noop_layers",
        PART "optimizer_shard",
        PART "vocab_emb_dp",
        PART "sequence_parallel",
        REMAKE "recompute",
        REMAKE "recompute_method",
        REMAKE "select_recompute",
        REMAKE "recompute_slice_activation"};
    return is_one_of(key, keys, ARRAY_LEN(keys));
}

static void note_others(Export *e) {
    const Config *cfg = e->j->cfg;
    for (int k = 0; k < N_KEYS; k++) {
        const Key *key = &key_table[k];
        if (key->cat != CAT_WORKS || !is_of_strategy(key->path) || is_read(key->path))
            continue;
        const char *value = key_text(e->mem, key, cfg, false);
        if (config_given(cfg, key->path) && !key_same_value(value, key->def))
            add_note(e, key->path, "no flag says it");
    }
}

MegatronExport megatron_export(Arena *mem, const Job *j, const PassOptions *o) {
    Export e = {.mem = mem, .j = j, .s = &j->strategy, .o = o};
    e.out.flags = text_new(mem);
    if (!j->has_spec)
        fail(EXIT_CONFIG,
             "model.file is a model of its own: Megatron-LM has no such one");
    add_tensor(&e);
    add_context(&e);
    add_stages(&e);
    add_order(&e);
    add_batch(&e);
    add_optimizer_shard(&e);
    add_recompute(&e);
    note_others(&e);
    return e.out;
}
