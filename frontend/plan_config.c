/* plan_config.c - from a configuration to its planned module, as `stator train` makes it
 * but without data and without code. */
#include "../codegen/planned.h"
#include "config_state.h"
#include "plan.h"
#include "train.h"

#define BATCH "runner_config.batch_size"

/* ---- how many ranks ---- */

static void choose_ranks(Config *cfg, int64_t ranks) {
    static const char key[] = "parallel_config.data_parallel";
    int64_t others =
        cfg->parallel_config_model_parallel * cfg->parallel_config_context_parallel;
    if (!ranks || config_given(cfg, key)) return;
    if (ranks % others)
        config_refuse(cfg, "parallel_config.model_parallel",
                      "parallel_config.context_parallel", NULL,
                      "%lld ranks are no multiple of model_parallel x context_parallel, "
                      "%lld",
                      (long long)ranks, (long long)others);
    strategy_replicate(cfg, ranks, "ranks are asked for");
}

static void compare_ranks(const Config *cfg, const Strategy *s, int64_t ranks) {
    int64_t have = strategy_ranks(s);
    if (!ranks || ranks == have) return;
    config_refuse(
        cfg, "parallel_config.data_parallel", "parallel_config.model_parallel",
        "leave data_parallel out, or -n with the product",
        "data_parallel x model_parallel x context_parallel is %lld x %lld x %lld = "
        "%lld ranks, but -n says %lld",
        (long long)s->data, (long long)s->tensor, (long long)s->context, (long long)have,
        (long long)ranks);
}

/* ---- the module ---- */

typedef struct Making {
    Config *cfg;
    Train *t; /* for the functions of train_model.c: only what they read is set */
    Strategy *strategy;
    const ModelSpec *spec; /* NULL: the user's module */
    ModelShape shape;
    int64_t micro;
} Making;

static void choose_batch(Making *k) {
    Config *cfg = k->cfg;
    int64_t each = cfg->runner_config_batch_size, replicas = k->strategy->data;
    bool given =
        config_given(cfg, BATCH) || config_given(cfg, "train_dataset.batch_size");
    if (!k->spec) {
        train_model_shape(k->t, &k->shape.batch, &k->shape.seq);
        return;
    }
    if (each > INT32_MAX / replicas / k->micro)
        config_refuse(cfg, BATCH, NULL, NULL,
                      "%lld micro-batches of %lld sequences on each of %lld replicas",
                      (long long)k->micro, (long long)each, (long long)replicas);
    k->shape.batch = each * replicas;
    k->shape.seq = k->t->seq;
    if (cfg->train_dataset_data_loader_type == LOADER_TENSOR_BATCHES && !given)
        config_note(cfg, BATCH,
                    "a file of TensorBatches has its own batch when training; the "
                    "plan takes %lld sequences",
                    (long long)each);
}

static void choose_inputs(Making *k) {
    const Config *cfg = k->cfg;
    bool gpt = cfg->train_dataset_data_loader_type == LOADER_GPT_DATASET;
    k->shape.own_positions = gpt && cfg->train_dataset_data_loader_reset_position_ids;
    k->shape.documents = gpt && cfg->train_dataset_data_loader_reset_attention_mask;
    k->shape.zigzag = k->strategy->ring > 1 ? k->strategy->ring : 0;
    k->shape.masked = gpt;
    k->shape.vocab_rows = strategy_vocab(k->strategy, k->spec);
}

/* Values that the strategy changes are lines of the plan. */
static void note_changes(const Making *k) {
    if (k->shape.vocab_rows <= k->spec->vocab) return;
    config_note(
        k->cfg, "parallel_config.vocab_emb_dp",
        "the vocabulary of %lld is padded to %lld rows, so that model_parallel %lld "
        "divides it",
        (long long)k->spec->vocab, (long long)k->shape.vocab_rows,
        (long long)k->strategy->tensor);
}

static Module *make_module(Arena *mem, Making *k) {
    choose_batch(k);
    if (k->spec) choose_inputs(k);
    strategy_check(k->cfg, k->strategy, k->spec, k->shape);
    if (k->spec) note_changes(k);
    return k->spec ? model_build(mem, k->spec, k->shape, MODEL_TRAIN)
                   : model_read(mem, k->cfg->model_file);
}

/* An entry of parallel.shard may name axes of one rank, which split nothing. */
static void note_single_axes(Config *cfg, const Module *m, const Annotation *a) {
    for (const char *p = a->placement; *p; p += strcspn(p, ","), p += *p == ',') {
        Axes axes = 0;
        mesh_axes_parse(&m->mesh, arena_strndup(m->mem, p, strcspn(p, ",")), &axes);
        for (int i = 0; i < m->mesh.naxes; i++) {
            if (!(axes >> i & 1) || m->mesh.axis[i].size > 1) continue;
            config_note(cfg, "parallel.shard",
                        "parallel.shard '%s=%s': %s has no effect there: it has one rank",
                        a->pattern, a->placement, m->mesh.axis[i].name);
        }
    }
}

/* How many values `by` takes from the annotations that one key makes. */
static int replaced_by(const Module *m, const PassOptions *o, const Annotation *by,
                       const char *key) {
    int n = 0;
    for (int i = 0; i < o->nannotations; i++)
        if (!strcmp(o->annotation[i].source, key))
            n += seed_replaces(m, by, &o->annotation[i]);
    return n;
}

static bool is_first_of_key(const PassOptions *o, int nth) {
    for (int i = 0; i < nth; i++)
        if (!strcmp(o->annotation[i].source, o->annotation[nth].source)) return false;
    return true;
}

/* Entries of parallel.shard that place what other keys would place otherwise, or not at
 * all. */
static void note_entries(Config *cfg, const Module *m, const PassOptions *o) {
    for (int u = 0; u < o->nannotations; u++) {
        const Annotation *by = &o->annotation[u];
        if (by->derived) continue;
        note_single_axes(cfg, m, by);
        for (int i = 0; i < o->nannotations; i++) {
            const char *key = o->annotation[i].source;
            int n = is_first_of_key(o, i) ? replaced_by(m, o, by, key) : 0;
            if (n)
                config_note(cfg, "parallel.shard",
                            "parallel.shard '%s=%s' replaces the placement that %s gives "
                            "%d %s",
                            by->pattern, by->placement, key, n,
                            n == 1 ? "value" : "values");
        }
    }
}

Plan plan_of_config(Arena *mem, Config *cfg, int64_t ranks) {
    Train *t = NEW(mem, Train);
    Strategy *strategy = NEW(mem, Strategy);
    t->mem = mem;
    t->cfg = cfg;
    choose_ranks(cfg, ranks);
    *strategy = strategy_of_config(cfg);
    compare_ranks(cfg, strategy, ranks);
    train_model_choose(t);
    Making k = {.cfg = cfg,
                .t = t,
                .strategy = strategy,
                .spec = t->has_spec ? &t->spec : NULL,
                .micro = cfg->parallel_config_micro_batch_num};
    Module *m = make_module(mem, &k);
    PassOptions o = strategy_pass_options(cfg);
    strategy->bucket_bytes = strategy_bucket_bytes(strategy, k.spec);
    strategy->gradient_groups = 0;
    strategy_apply(strategy, k.spec, m, &o);
    note_entries(cfg, m, &o);
    CompileOptions co = {.cpu = cfg->context_cpu, .threads = (int)cfg->context_threads};
    const Func *entry = module_plan(mem, m, train_passes, &o, &co);
    PlanWork work = {.cfg = cfg,
                     .spec = k.spec,
                     .strategy = strategy,
                     .micro = k.micro,
                     .batch = k.shape.batch,
                     .seq = k.shape.seq};
    return plan_read(mem, entry, work);
}
