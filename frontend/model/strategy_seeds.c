/* strategy_seeds.c - a strategy on a module: its mesh, the placements that it asks for of
 * parameters, data and values, and options of the passes. See strategy.h. */
#include "frontend/model/model_parts.h"
#include "frontend/model/recompute.h"
#include "frontend/model/strategy.h"
#include "frontend/model/strategy_schedule.h"
#include "passes/pipe/marks.h"

#define PC "parallel_config."

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
        const char *source = arena_printf(k->mem, "parallel.shard, entry %d", i + 1);
        char *eq = strchr(text, '=');
        if (!eq)
            fail_at(EXIT_CONFIG, at,
                    "PATTERN=PLACEMENT in quotes, since a comma ends an entry: "
                    "[\"h.mlp.c_fc.weight=-,tp\"]",
                    "%s: '%s' has no placement", source, text);
        *eq = 0;
        add(k, (Annotation){text, eq + 1, source, .at = at});
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
    o->remake_pos = s->selected_pos;
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
