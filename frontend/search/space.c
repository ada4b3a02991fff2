/* space.c - the choices of a search: every combination of its free keys that is one. */
#include "frontend/config/config_state.h"
#include "frontend/model/recompute.h"
#include "frontend/model/strategy.h"
#include "frontend/search/search_state.h"
#include <stdlib.h>

const char *const knob_key[KNOBS] = {
    [KNOB_DP] = PC "data_parallel",
    [KNOB_TP] = PC "model_parallel",
    [KNOB_CP] = PC "context_parallel",
    [KNOB_ALGO] = PC "context_parallel_algo",
    [KNOB_PP] = PC "pipeline_stage",
    [KNOB_CHUNKS] = PC "pp_interleave_num",
    [KNOB_SCHEDULE] = "parallel.pipeline_config.pipeline_scheduler",
    [KNOB_BATCH] = "runner_config.batch_size",
    [KNOB_MICRO] = PC "micro_batch_num",
    [KNOB_PARTS] = "micro_batch_interleave_num",
    [KNOB_ZERO] = "parallel.parallel_optimizer_config.optimizer_level",
    [KNOB_SP] = PC "sequence_parallel",
    [KNOB_VOCAB] = PC "vocab_emb_dp",
    [KNOB_LAYERS] = PC "num_layer_list",
    [KNOB_RECOMPUTE] = "recompute_config.recompute",
    [KNOB_OVERLAP] = "parallel.overlap",
    [KNOB_ORDER] = PC "rank_order",
    [KNOB_SHARD] = "parallel.shard",
};

/* ---- what is fixed ---- */

static int schedule_number(const char *name) {
    for (int k = 0; schedule_name_at(k); k++)
        if (!strcmp(schedule_name_at(k), name)) return k;
    return -1;
}

int64_t knob_value(const Config *cfg, Knob k) {
    if (k == KNOB_SCHEDULE)
        return schedule_number(cfg->parallel_pipeline_config_pipeline_scheduler);
    int64_t value = key_number(&key_table[key_find(knob_key[k])], cfg);
    return k == KNOB_VOCAB ? !value : value;
}

/* Layers of stages; what says nothing of them, as the flags of an answer may, passes. */
static void refuse_layers(const Config *cfg) {
    const IntTable *offset = &cfg->parallel_config_offset;
    const struct {
        const char *key;
        bool says;
    } way[] = {{PC "offset",
                offset->rows * offset->columns > 1 || (offset->rows && offset->items[0])},
               {PC "num_layers_in_first_pipeline_stage",
                cfg->parallel_config_num_layers_in_first_pipeline_stage >= 0},
               {PC "num_layers_in_last_pipeline_stage",
                cfg->parallel_config_num_layers_in_last_pipeline_stage >= 0}};
    for (int i = 0; i < ARRAY_LEN(way); i++)
        if (way[i].says && config_by_flag(cfg, way[i].key))
            config_refuse(cfg, way[i].key, NULL, PC "num_layer_list",
                          "a search takes layers of stages as num_layer_list");
}

/* Keys that say something that pieces cannot. */
static void refuse_flags(const Config *cfg) {
    const char *schedule = cfg->parallel_pipeline_config_pipeline_scheduler;
    refuse_layers(cfg);
    if (config_by_flag(cfg, knob_key[KNOB_SCHEDULE]) && schedule_number(schedule) < 0)
        config_refuse(cfg, knob_key[KNOB_SCHEDULE], NULL,
                      "1f1b, or another one by its name",
                      "a search does not take the schedule of a file");
    if (config_by_flag(cfg, METHOD) &&
        cfg->recompute_config_recompute_method == RECOMPUTE_UNIFORM)
        config_refuse(cfg, METHOD, NULL, "leave it out, or block",
                      "a search takes layers that are computed again one by one");
    if (config_by_flag(cfg, SHARE) &&
        cfg->parallel_parallel_optimizer_config_optimizer_weight_shard_size != -1)
        config_refuse(cfg, SHARE, NULL, "leave it out, and try sizes with stator plan",
                      "a search splits states over all replicas, or none");
    for (int i = 0; i < RECOMPUTE_PARTS; i++)
        if (config_by_flag(cfg, recompute_part_keys[i]) && recompute_counts(cfg, i))
            config_refuse(cfg, recompute_part_keys[i], NULL,
                          "leave it out, or True, False or names of values",
                          "a search takes %s alike for all layers",
                          recompute_part_keys[i]);
    if (cfg->parallel_config_noop_layers.n)
        config_refuse(cfg, PC "noop_layers", NULL, "num_layers without them",
                      "a search does not take layers that do not exist");
}

/* -1: it is no number. */
static int layers_of_word(const char *word) {
    size_t digits = strspn(word, "0123456789");
    return digits && digits < 9 && !word[digits] ? atoi(word) : -1;
}

enum { REMAKE_ALL = INT32_MAX };

/* A fixed recompute_config.recompute: layers of each chunk, or a list with a number for each. */
static void fix_recompute(Search *s) {
    const TextList *l = &s->o.cfg->recompute_config_recompute;
    int on = config_switch(l);
    bool numbers = l->n > 0;
    int *n = NEW_ARRAY(s->mem, int, (size_t)l->n + 1);
    for (int i = 0; i < l->n; i++) {
        n[i] = layers_of_word(l->items[i]);
        numbers &= n[i] >= 0;
    }
    if (!numbers && on < 0)
        config_refuse(s->o.cfg, knob_key[KNOB_RECOMPUTE], NULL,
                      "leave it out, and the search finds how many layers",
                      "a search takes True, False, a number, or a list of numbers");
    s->fixed[KNOB_RECOMPUTE] = on >= 0 ? on * REMAKE_ALL : n[0];
    if (l->n <= 1) return;
    s->remade = n;
    s->nremade = l->n;
}

/* An empty one: evenly. */
static void take_list(Search *s) {
    const IntTable *list = &s->o.cfg->parallel_config_num_layer_list;
    int64_t all = 0;
    for (int i = 0; i < list->rows * list->columns; i++) all += list->items[i];
    if (list->rows && all != s->layers)
        config_refuse(s->o.cfg, knob_key[KNOB_LAYERS], NULL,
                      "a row for each chunk, a column for each stage",
                      "the list has %lld layers, the model %lld", (long long)all,
                      (long long)s->layers);
    s->list = *list;
}

/* optimizer_shard asks for any level; optimizer_level for one, or as the keys have it. */
static void fix_zero(Search *s) {
    const Config *cfg = s->o.cfg;
    bool level = s->fixed[KNOB_ZERO] >= 0, shard = config_by_flag(cfg, SHARD);
    if (level) s->fixed[KNOB_ZERO] = strategy_zero_level(cfg);
    if (shard && !level && !cfg->parallel_config_optimizer_shard) s->fixed[KNOB_ZERO] = 0;
    s->least_zero = shard && !level && cfg->parallel_config_optimizer_shard;
}

bool search_keeps_batches(const Config *cfg) {
    return !cfg->runner_wrapper_calculate_per_token_loss && job_masks_labels(cfg);
}

static void fix_knobs(Search *s) {
    const Config *cfg = s->o.cfg;
    refuse_flags(cfg);
    for (int k = 0; k < KNOBS; k++)
        s->fixed[k] = config_by_flag(cfg, knob_key[k]) ? knob_value(cfg, (Knob)k) : -1;
    if (search_keeps_batches(cfg)) s->fixed[KNOB_BATCH] = knob_value(cfg, KNOB_BATCH);
    if (s->fixed[KNOB_RECOMPUTE] >= 0) fix_recompute(s);
    if (s->fixed[KNOB_LAYERS] >= 0) take_list(s);
    fix_zero(s);
    if (config_by_flag(cfg, INNER)) s->inner = cfg->parallel_config_ulysses_degree_in_cp;
    s->order = rank_order_of_config(cfg);
}

static bool may(const Search *s, Knob k, int64_t value) {
    return s->fixed[k] < 0 || s->fixed[k] == value;
}

/* ---- probes ---- */

static int known_probe(const Search *s, ProbeKey key) {
    for (int i = 0; i < s->nprobes; i++)
        if (probe_same_key(&s->probe[i].key, &key)) return i;
    return -1;
}

static Probe make_probe(Search *s, ProbeKey key) {
    const Probe *found = record_probe(s->record, key);
    s->programs++;
    if (found) return *found;
    Probe p = search_probe(s, key);
    record_add_probe(s->record, &p);
    return p;
}

/* A program of several parts is the larger half of all, and few of them are among the fastest; so one
 * is only made when its bound is. */
static bool bound_probe(const Search *s, ProbeKey key, Probe *p) {
    ProbeKey one = key;
    one.parts = 1;
    int whole = s->bounds_parts && key.parts > 1 ? known_probe(s, one) : -1;
    if (whole < 0 || s->probe[whole].refused) return false;
    const Probe *of = &s->probe[whole];
    *p = (Probe){.key = key,
                 .mesh = of->mesh,
                 .bytes = of->bytes,
                 .is_bound = true,
                 .whole = whole};
    return true;
}

static int find_probe(Search *s, ProbeKey key) {
    Probe p;
    int known = known_probe(s, key);
    if (known >= 0) return known;
    if (!bound_probe(s, key, &p)) p = make_probe(s, key);
    PUSH(s->mem, s->probe, s->nprobes, s->probe_cap, p);
    return s->nprobes - 1;
}

void search_make_probe(Search *s, int probe) {
    Probe *p = &s->probe[probe];
    p->pieces = NULL; /* bounds */
    probe_take(p, make_probe(s, p->key));
}

/* ---- all choices ---- */

typedef struct Walk {
    Search *s;
    void (*see)(void *ctx, const Choice *c);
    void *ctx;
    Choice c;
    bool balances; /* choice_may_balance */
} Walk;

static bool has_layers_to_remake(Search *s, const Choice *c) {
    int64_t given = s->fixed[KNOB_RECOMPUTE];
    if (!s->nremade && (given <= 0 || given == REMAKE_ALL)) return true;
    choice_layers(s, c, s->times.layers);
    for (int i = 0; i < c->pp * c->chunks; i++) {
        int64_t n = s->nremade ? s->remade[i] : given;
        if (!recompute_count_fits(n, s->times.layers[i], s->nremade > 0)) return false;
    }
    return true;
}

static void see(Walk *w) {
    if (!has_layers_to_remake(w->s, &w->c)) return;
    w->c.number = (int)w->s->choices++;
    choice_bound(w->s, &w->c);
    w->c.first_bound = w->c.bound;
    w->see(w->ctx, &w->c);
}

static void each_layers(Walk *w) {
    const IntTable *list = &w->s->list;
    bool fixed = w->s->fixed[KNOB_LAYERS] >= 0, given = list->rows > 0;
    if (given && (list->columns != w->c.pp || list->rows != w->c.chunks)) return;
    if (w->s->nremade && w->s->nremade != w->c.pp * w->c.chunks) return;
    w->c.layers = given ? LAYERS_GIVEN : LAYERS_EVEN;
    see(w);
    if (fixed || !w->balances) return;
    w->c.layers = LAYERS_BALANCED;
    see(w);
}

static void each_zero(Walk *w) {
    int most = (int64_t)w->c.dp * w->c.cp > 1 ? 3 : 0;
    w->balances = w->c.pp > 1 && choice_may_balance(w->s, &w->c);
    for (w->c.zero = MIN(most, w->s->least_zero); w->c.zero <= most; w->c.zero++)
        if (may(w->s, KNOB_ZERO, w->c.zero) || !most) each_layers(w);
}

/* What keeps more activations than 1f1b, in the same time, is only taken when asked for. */
static bool worth_trying(const Search *s, int schedule) {
    return s->fixed[KNOB_SCHEDULE] >= 0 || !schedule_kind_at(schedule)->all_forward;
}

/* Their number is given. */
static bool fixes_chunks(const Search *s) {
    return s->list.rows > 0 || s->fixed[KNOB_CHUNKS] >= 0;
}

/* Chunks of all stages at most; each has a layer. */
static int64_t most_chunks(const Search *s) {
    return fixes_chunks(s) ? s->layers : MIN(s->layers, SEARCH_CHUNKS);
}

/* Several chunks a stage have equal layers; where the layers cannot be split so, two are tried. */
static bool chunks_worth_trying(const Search *s, const Choice *c, int chunks) {
    const char *name = schedule_name_at(c->schedule);
    bool equal = false; /* some number of chunks splits them so */
    if (!schedule_fits(name, c->pp, chunks, c->micro)) return false;
    if (chunks == 1 || fixes_chunks(s)) return true;
    if (s->layers % ((int64_t)chunks * c->pp) == 0) return true;
    for (int v = 2; v * c->pp <= most_chunks(s); v++)
        equal |= s->layers % ((int64_t)v * c->pp) == 0 &&
                 schedule_fits(name, c->pp, v, c->micro);
    return chunks == 2 && !equal;
}

static void each_schedule(Walk *w) {
    const Search *s = w->s;
    Choice *c = &w->c;
    c->schedule = 0;
    c->chunks = 1;
    if (c->pp == 1) {
        if (may(s, KNOB_CHUNKS, 1)) each_zero(w);
        return;
    }
    for (int k = 0; schedule_name_at(k); k++) {
        if (!may(s, KNOB_SCHEDULE, k) || !worth_trying(s, k)) continue;
        c->schedule = k;
        for (int v = 1; v == 1 || v * c->pp <= most_chunks(s); v++) {
            if (!may(s, KNOB_CHUNKS, v) || !chunks_worth_trying(s, c, v)) continue;
            c->chunks = v;
            each_zero(w);
        }
    }
}

static void with_batch(Walk *w, int64_t own, int64_t batch) {
    if (!may(w->s, KNOB_BATCH, batch) || !may(w->s, KNOB_MICRO, own / batch)) return;
    if (batch % w->c.parts) return;
    w->c.batch = (int)batch;
    w->c.micro = (int)(own / batch);
    each_schedule(w);
}

static void each_batch(Walk *w) {
    int64_t own = w->s->o.sequences / w->c.dp;
    for (int64_t b = 1; b * b <= own; b++) {
        if (own % b) continue;
        with_batch(w, own, b);
        if (b * b < own) with_batch(w, own, own / b);
    }
}

/* Two parts hide the messages of one behind the work of the other; more are only taken when
 * asked for. */
static void each_parts(Walk *w) {
    Search *s = w->s;
    Choice *c = &w->c;
    int64_t asked = s->fixed[KNOB_PARTS];
    bool hides = c->tp * c->cp > 1 && s->overlap && s->o.machine->hidden > 0;
    int least = asked < 0 ? 1 : (int)asked;
    int most = asked < 0 && hides ? SEARCH_PARTS : least;
    for (c->parts = least; c->parts <= most; c->parts++) {
        if (s->o.sequences / c->dp % c->parts || !search_goes_on(s)) continue;
        ProbeKey key = {.tp = c->tp,
                        .cp = c->cp,
                        .ring = c->ring,
                        .parts = c->parts,
                        .sequence_parallel = c->sequence_parallel,
                        .splits_vocab = c->splits_vocab};
        c->probe = find_probe(s, key);
        search_tell(s, NULL, 0);
        if (!s->probe[c->probe].refused) each_batch(w);
    }
}

static void each_split(Walk *w) {
    Search *s = w->s;
    Choice *c = &w->c;
    for (int sp = 0; sp <= (c->tp > 1); sp++)
        for (int vocab = 0; vocab <= (c->tp > 1); vocab++) {
            if (c->tp > 1 && (!may(s, KNOB_SP, sp) || !may(s, KNOB_VOCAB, vocab)))
                continue;
            c->sequence_parallel = sp;
            c->splits_vocab = vocab;
            each_parts(w);
        }
}

static void each_order(Walk *w) {
    RankOrder order[SEARCH_ORDERS];
    int n = choice_orders(w->s, &w->c, order);
    for (int k = 0; k < n; k++) {
        w->c.order = order[k];
        each_split(w);
    }
}

/* All-to-all and a ring are at the ends of what both together can be. */
static bool may_ring(const Search *s, int cp, int ring) {
    bool both = ring > 1 && ring < cp;
    if (both && s->inner && (int64_t)ring * s->inner != cp) return false;
    switch (s->fixed[KNOB_ALGO]) {
    case CP_ULYSSES:
        return ring == 1;
    case CP_RING:
        return ring == cp;
    case CP_HYBRID:
        return both;
    default:
        return true;
    }
}

static void each_ring(Walk *w) {
    int cp = w->c.cp;
    for (int ring = 1; ring <= cp; ring++) {
        if (cp % ring || !may_ring(w->s, cp, ring)) continue;
        w->c.ring = ring;
        each_order(w);
    }
}

static void leave_out(Search *s, Family split, const char *why) {
    split.refused = why;
    PUSH(s->mem, s->left_out, s->nleft_out, s->left_out_cap, split);
}

/* The ranks of a stage. */
static void each_degrees(Walk *w, int n) {
    Search *s = w->s;
    Choice *c = &w->c;
    for (c->tp = 1; c->tp <= n; c->tp++) {
        if (n % c->tp || !may(s, KNOB_TP, c->tp)) continue;
        for (c->cp = 1; c->cp <= n / c->tp; c->cp++) {
            if (n / c->tp % c->cp || !may(s, KNOB_CP, c->cp)) continue;
            c->dp = n / c->tp / c->cp;
            if (!may(s, KNOB_DP, c->dp)) continue;
            if (s->o.sequences % c->dp == 0)
                each_ring(w);
            else
                leave_out(s, (Family){.tp = c->tp, .cp = c->cp, .pp = c->pp},
                          arena_printf(s->mem,
                                       "%lld sequences a step are not a multiple of %d "
                                       "replicas",
                                       (long long)s->o.sequences, c->dp));
        }
    }
}

void search_each(Search *s, void (*see_choice)(void *ctx, const Choice *c), void *ctx) {
    Walk w = {.s = s, .see = see_choice, .ctx = ctx};
    int n = s->o.ranks;
    for (int pp = 1; pp <= n; pp++) {
        if (n % pp || !may(s, KNOB_PP, pp)) continue;
        w.c.pp = pp;
        if (pp <= s->layers)
            each_degrees(&w, n / pp);
        else
            leave_out(s, (Family){.pp = pp},
                      arena_printf(s->mem, "the model has %lld layers, fewer than stages",
                                   (long long)s->layers));
    }
}

/* ---- a search ---- */

enum { MOST_SEQUENCES = 1 << 22 };

Search *search_open(Arena *mem, const SearchOptions *o) {
    Search *s = NEW(mem, Search);
    Config *cfg = NEW(mem, Config);
    if (o->sequences < 1 || o->sequences > MOST_SEQUENCES)
        fail(EXIT_CONFIG, "a step of %lld sequences; a search takes at most %d",
             (long long)o->sequences, MOST_SEQUENCES);
    *cfg = *o->cfg;
    cfg->dump_ir = ""; /* of which of all the programs? */
    *s = (Search){.mem = mem, .o = *o};
    s->o.cfg = cfg;
    if (cfg->parallel_overlap == OVERLAP_OFF &&
        !config_by_flag(cfg, knob_key[KNOB_OVERLAP]))
        cfg->parallel_overlap = OVERLAP_AUTO;
    if (!config_by_flag(cfg, knob_key[KNOB_SHARD])) cfg->parallel_shard = (TextList){0};
    s->job = (Job){.mem = mem, .plans = true, .cfg = cfg};
    job_choose_model(&s->job);
    if (!s->job.has_spec)
        fail(EXIT_CONFIG, "stator search takes a model of model.model_config or of a "
                          "Hugging Face folder: how a model.file may be split is said in "
                          "parallel.shard");
    (void)strategy_compile_options(cfg);
    s->layers = s->job.spec.layers;
    s->overlap = cfg->parallel_overlap != OVERLAP_OFF;
    s->threads = plan_threads(cfg, o->machine, o->ranks);
    choice_make_room(s);
    fix_knobs(s);
    s->ahead_bytes = search_ahead_bytes(s);
    PassOptions po = strategy_pass_options(s->job.cfg);
    s->gradient = po.round_gradients ? po.narrow : DT_F32;
    s->record = search_record(s);
    return s;
}
