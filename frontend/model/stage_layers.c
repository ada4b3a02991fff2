/* stage_layers.c - see stage_layers.h. */
#include "frontend/model/stage_layers.h"
#include "frontend/config/config_state.h"

#define PC    "parallel_config."
#define LIST  PC "num_layer_list"
#define FIRST PC "num_layers_in_first_pipeline_stage"
#define LAST  PC "num_layers_in_last_pipeline_stage"
#define NOOP  PC "noop_layers"

/* ---- from keys ---- */

/* A single 0 is none. */
static IntList offsets(const Config *cfg) {
    const IntTable *t = &cfg->parallel_config_offset;
    int n = t->rows * t->columns;
    if (n == 1 && !t->items[0]) n = 0;
    return (IntList){t->items, n};
}

/* Keys that say it, each in its own way; `joined`: these two go together. */
static void refuse_two(const Config *cfg) {
    static const struct {
        const char *path;
        bool joined;
    } ways[] = {{LIST, false}, {FIRST, true}, {LAST, true}, {PC "offset", false}};
    const int n = ARRAY_LEN(ways) - !offsets(cfg).n;
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) {
            bool both =
                config_given(cfg, ways[i].path) && config_given(cfg, ways[k].path);
            if (!both || (ways[i].joined && ways[k].joined)) continue;
            SourcePos at = config_where(cfg, ways[k].path);
            config_refuse(cfg, ways[i].path, NULL, "keep one of the two",
                          "%s and %s (%s:%d) both say how many layers a stage has",
                          ways[i].path, ways[k].path, at.file, at.line);
        }
}

/* What asks for so many chunks. */
static SourcePos where_chunks(const Config *cfg) {
    static const char *const keys[] = {PC "pipeline_stage", "parallel.pipeline_stages",
                                       PC "pp_interleave_num"};
    for (int i = 0; i < ARRAY_LEN(keys); i++)
        if (config_given(cfg, keys[i])) return config_where(cfg, keys[i]);
    return (SourcePos){0};
}

StageLayers stage_layers_of_config(const Config *cfg) {
    refuse_two(cfg);
    StageLayers s = {.list = cfg->parallel_config_num_layer_list,
                     .offset = offsets(cfg),
                     .first = cfg->parallel_config_num_layers_in_first_pipeline_stage,
                     .last = cfg->parallel_config_num_layers_in_last_pipeline_stage,
                     .noop = cfg->parallel_config_noop_layers,
                     .list_pos = config_where(cfg, LIST),
                     .offset_pos = config_where(cfg, PC "offset"),
                     .first_pos = config_where(cfg, FIRST),
                     .last_pos = config_where(cfg, LAST),
                     .chunks_pos = where_chunks(cfg)};
    s.has_first = s.first >= 0;
    s.has_last = s.last >= 0;
    return s;
}

void stage_layers_check_noop(Config *cfg, int64_t layers) {
    const IntList *noop = &cfg->parallel_config_noop_layers;
    long long n = noop->n, all = layers;
    for (int i = 0; i < noop->n; i++) {
        long long id = noop->items[i];
        if (id >= layers)
            config_refuse(cfg, NOOP, NULL, "layers are counted from 0",
                          "noop_layers has %lld, but the last of %lld layers is %lld", id,
                          all, all - 1);
        for (int k = 0; k < i; k++)
            if (noop->items[k] == id)
                config_refuse(cfg, NOOP, NULL, "each once", "noop_layers has %lld twice",
                              id);
    }
    if (n && n == all)
        config_refuse(cfg, NOOP, NULL, NULL, "noop_layers leaves none of %lld layers",
                      all);
    if (n)
        config_note(cfg, NOOP, "%lld layers, %lld of them noop: %lld are trained", all, n,
                    all - n);
}

void stage_layers_refuse_noop(const Config *cfg, const char *module) {
    if (cfg->parallel_config_noop_layers.n)
        config_refuse(cfg, NOOP, NULL,
                      "for other stages, the attribute stage=K on ops of the module",
                      "noop_layers is for a model.model_config: %s says itself what its "
                      "layers are",
                      module);
}

void stage_layers_refuse_keys(const StageLayers *s, const char *module) {
    const struct {
        bool given;
        SourcePos at;
        const char *key;
    } ways[] = {{s->list.rows > 0, s->list_pos, LIST},
                {s->has_first, s->first_pos, FIRST},
                {s->has_last, s->last_pos, LAST},
                {s->offset.n > 0, s->offset_pos, PC "offset"}};
    for (int i = 0; i < ARRAY_LEN(ways); i++)
        if (ways[i].given)
            fail_at(EXIT_CONFIG, ways[i].at, "leave it out, or the attributes stage=K",
                    "%s is given, but ops of module @%s say where its chunks begin",
                    ways[i].key, module);
}

/* ---- shares ---- */

/* A pipeline whose layers are shared out. */
typedef struct Sharing {
    const StageLayers *keys;
    const PipeSchedule *p;
    int64_t layers; /* with noop ones */
    int *nth;       /* by chunk: which one of its stage it is */
    int *chunks;    /* by stage: how many it has */
    int64_t *each;  /* by chunk: its layers */
} Sharing;

static Sharing sharing_new(const StageLayers *keys, Arena *mem, const PipeSchedule *p,
                           int64_t layers) {
    Sharing s = {.keys = keys, .p = p, .layers = layers};
    s.nth = NEW_ARRAY(mem, int, (size_t)p->chunks);
    s.chunks = NEW_ARRAY(mem, int, (size_t)p->stages);
    s.each = NEW_ARRAY(mem, int64_t, (size_t)p->chunks);
    for (int c = 0; c < p->chunks; c++) s.nth[c] = s.chunks[p->stage_of[c]]++;
    return s;
}

static int64_t sum_of(const Sharing *s) {
    int64_t sum = 0;
    for (int c = 0; c < s->p->chunks; c++) sum += s->each[c];
    return sum;
}

static void check_shape(const Sharing *s) {
    const IntTable *l = &s->keys->list;
    const PipeSchedule *p = s->p;
    int rows = p->chunks / p->stages;
    if (l->rows != rows || l->columns != p->stages)
        fail_at(EXIT_CONFIG, s->keys->list_pos,
                "a row for each chunk of a stage (pp_interleave_num), a column for each "
                "stage (pipeline_stage)",
                "num_layer_list has %d row%s of %d, but there are %d stage%s of %d "
                "chunk%s: it must have %d row%s of %d",
                l->rows, l->rows == 1 ? "" : "s", l->columns, p->stages,
                p->stages == 1 ? "" : "s", rows, rows == 1 ? "" : "s", rows,
                rows == 1 ? "" : "s", p->stages);
    for (int k = 0; k < p->stages; k++)
        if (s->chunks[k] != rows)
            fail_at(EXIT_CONFIG, s->keys->list_pos,
                    "parallel_config.offset, a number for each chunk",
                    "num_layer_list has %d row%s, but schedule %s gives stage %d %d "
                    "chunks",
                    rows, rows == 1 ? "" : "s", p->name, k, s->chunks[k]);
}

static void share_by_list(Sharing *s) {
    const IntTable *l = &s->keys->list;
    check_shape(s);
    for (int c = 0; c < s->p->chunks; c++)
        s->each[c] = l->items[s->nth[c] * l->columns + s->p->stage_of[c]];
    int64_t sum = sum_of(s);
    if (sum != s->layers)
        fail_at(EXIT_CONFIG, s->keys->list_pos,
                sum < s->layers ? "more in some entries, or a smaller num_layers"
                                : "less in some entries, or a larger num_layers",
                "the list has %lld layers, the model %lld%s", (long long)sum,
                (long long)s->layers, s->keys->noop.n ? " with noop_layers" : "");
}

/* Of stage k; -1: it shares what the first and the last one leave. */
static int64_t layers_given(const Sharing *s, int k) {
    if (k == 0 && s->keys->has_first) return s->keys->first;
    return k == s->p->stages - 1 && s->keys->has_last ? s->keys->last : -1;
}

/* Megatron-LM's rule. */
static void share_by_ends(Sharing *s) {
    const StageLayers *keys = s->keys;
    SourcePos at = keys->has_first ? keys->first_pos : keys->last_pos;
    int64_t rest = s->layers, others = 0;
    for (int k = 0; k < s->p->stages; k++) {
        int64_t given = layers_given(s, k);
        rest -= MAX(given, 0);
        others += given < 0;
    }
    if (rest < 0 || (others ? rest % others : rest))
        fail_at(EXIT_CONFIG, at,
                "other numbers of layers there; or num_layer_list, with those of every "
                "stage",
                "the first and the last stage leave %lld of %lld layers to %lld others, "
                "which cannot share them evenly",
                (long long)rest, (long long)s->layers, (long long)others);
    for (int c = 0; c < s->p->chunks; c++) {
        int k = s->p->stage_of[c];
        int64_t given = layers_given(s, k), n = given < 0 ? rest / others : given;
        if (n % s->chunks[k])
            fail_at(EXIT_CONFIG, given >= 0 && k ? keys->last_pos : at,
                    "a multiple; or num_layer_list, with the layers of every chunk",
                    "%lld layers of stage %d cannot be divided over its %d chunks",
                    (long long)n, k, s->chunks[k]);
        s->each[c] = n / s->chunks[k];
    }
}

static void share_by_offset(Sharing *s) {
    const IntList *offset = &s->keys->offset;
    SourcePos at = s->keys->offset_pos;
    int chunks = s->p->chunks;
    if (offset->n != chunks)
        fail_at(EXIT_CONFIG, at, "one number a chunk, in the order of the model",
                "offset has %d entries for %d chunks", offset->n, chunks);
    for (int c = 0; c < chunks; c++) {
        s->each[c] = s->layers / chunks + offset->items[c];
        if (s->each[c] < 0)
            fail_at(EXIT_CONFIG, at, NULL, "offset %lld leaves chunk %d without layers",
                    (long long)offset->items[c], c);
    }
    int64_t sum = sum_of(s);
    if (sum != s->layers)
        fail_at(EXIT_CONFIG, at,
                "the offsets add up to what is left over when the layers are divided",
                "with these offsets the chunks have %lld layers, the model has %lld",
                (long long)sum, (long long)s->layers);
}

static void check_enough(const Sharing *s) {
    const PipeSchedule *p = s->p;
    char what[200];
    if (s->layers >= p->chunks) return;
    snprintf(what, sizeof what,
             "%lld layer%s cannot be cut into %d chunks: parallel_config.pipeline_stage "
             "%d x pp_interleave_num %d",
             (long long)s->layers, s->layers == 1 ? "" : "s", p->chunks, p->stages,
             p->chunks / p->stages);
    const char *hint = s->layers ? "at most as many chunks as layers"
                                 : "a module without loops says stage=K on the op that "
                                   "begins chunk K";
    if (s->keys->chunks_pos.line)
        fail_at(EXIT_CONFIG, s->keys->chunks_pos, hint, "%s", what);
    fail(EXIT_CONFIG, "%s\n    hint: %s", what, hint);
}

static void share_evenly(Sharing *s) {
    int64_t chunks = s->p->chunks;
    for (int c = 0; c < chunks; c++)
        s->each[c] = s->layers / chunks + (c < s->layers % chunks);
}

static void take_noops(Sharing *s) {
    const IntList *noop = &s->keys->noop;
    int64_t begin = 0;
    for (int c = 0; c < s->p->chunks; c++) {
        int64_t share = s->each[c];
        for (int i = 0; i < noop->n; i++)
            s->each[c] -= noop->items[i] >= begin && noop->items[i] < begin + share;
        begin += share;
    }
}

const int64_t *stage_layers(const StageLayers *keys, Arena *mem, const PipeSchedule *p,
                            int64_t layers) {
    Sharing s = sharing_new(keys, mem, p, layers + keys->noop.n);
    bool ends = keys->has_first || keys->has_last;
    if (!keys->list.rows && !ends) check_enough(&s);
    if (keys->list.rows)
        share_by_list(&s);
    else if (ends)
        share_by_ends(&s);
    else if (keys->offset.n)
        share_by_offset(&s);
    else
        share_evenly(&s);
    take_noops(&s);
    return s.each;
}
