/* automatic.c - see automatic.h. */
#include "frontend/search/automatic.h"
#include "frontend/config/config_state.h"
#include "frontend/model/recompute.h"
#include "frontend/search/report.h"

#define MODE "parallel.parallel_mode"

bool automatic_asked(const Config *cfg) {
    return cfg->parallel_parallel_mode == 2;
}

/* What is given and chosen by no knob, but belongs to a strategy. */
static const char *const beside_knobs[] = {
    "parallel_config.ulysses_degree_in_cp",
    "parallel_config.optimizer_shard",
    "parallel_config.offset",
    "parallel_config.num_layers_in_first_pipeline_stage",
    "parallel_config.num_layers_in_last_pipeline_stage",
    "recompute_config.recompute_method"};

static void add(Arena *mem, ConfigWords *w, const char *flag) {
    PUSH(mem, w->flag, w->nflags, w->flag_cap, arena_strdup(mem, flag));
}

/* A flag that no user wrote. */
static void add_own(Arena *mem, ConfigWords *w, const char *flag) {
    const SourcePos at = {.file = config_search_file};
    PUSH(mem, w->flag, w->nflags, w->flag_cap, config_flag_from(mem, at));
    add(mem, w, flag);
}

/* What was found, in which keys that the user gave by flags are as they were. */
static void add_found(Arena *mem, ConfigWords *to, const SearchOptions *o,
                      const Verified *best) {
    for (int i = 0; i < best->nflags; i++) {
        bool given = search_has_flag(o->flag, o->nflags, best->flag[i]);
        (given ? add : add_own)(mem, to, best->flag[i]);
    }
}

static const char *tell(Arena *mem, const SearchOptions *o, const SearchResult *r,
                        double seconds) {
    const Verified *best = &r->top[0];
    return arena_printf(mem,
                        "parallel_mode 2: the fastest of %lld strategies of %d rank%s on "
                        "%s, found in %.1f s: %s "
                        "(micro-batches x sequences), %lld sequences a step; planned: "
                        "%.4g s a step, %s on a rank",
                        (long long)r->choices, o->ranks, o->ranks == 1 ? "" : "s",
                        o->machine->name, seconds, report_strategy(mem, &best->c),
                        (long long)o->sequences, best->seconds,
                        human((double)best->bytes, "B").s);
}

ConfigWords automatic_words(Arena *mem, const ConfigWords *w, int ranks,
                            double limit_bytes, const char **said) {
    Arena *own = arena_scratch();
    double start = clock_seconds();
    SearchOptions o = search_options(own, w->files, w->nflags, w->flag, ranks);
    if (!(o.limit_bytes > 0)) o.limit_bytes = limit_bytes;
    SearchResult r = search_run(own, &o);
    search_check_found(&o, &r);
    ConfigWords found = {.files = w->files};
    add_found(mem, &found, &o, &r.top[0]);
    /* the last flag counts; one rank has no use for a mode */
    add_own(mem, &found, o.ranks > 1 ? "--" MODE "=1" : "--" MODE "=0");
    *said = tell(mem, &o, &r, clock_seconds() - start);
    arena_free(own);
    return found;
}

/* As a flag that reads to the same value. Entries of lists of texts may have commas. */
static const char *value_of(Arena *mem, const Config *cfg, const char *path) {
    const Key *key = &key_table[key_find(path)];
    return key_text(mem, key, cfg, key->kind == KIND_TextList);
}

/* What the run has of a key, where it or the file as it is now says something of it: a key that it
 * does not have may not stand beside another one. */
static void take(Arena *mem, const Config *run, const Config *now, const char *key,
                 ConfigWords *to) {
    if (!config_given(run, key) && !config_given(now, key)) return;
    const char *value = config_given(run, key) ? value_of(mem, run, key) : "null";
    add_own(mem, to, arena_printf(mem, "--%s=%s", key, value));
}

ConfigWords automatic_words_of(Arena *mem, const ConfigWords *w, const char *path) {
    const Config *run = config_load(mem, path, 0, NULL);
    const Config *now = config_load_of(mem, w->files, w->nflags, w->flag);
    ConfigWords all = {.files = w->files};
    for (int k = 0; k < KNOBS; k++) take(mem, run, now, knob_key[k], &all);
    for (int i = 0; i < ARRAY_LEN(beside_knobs); i++)
        take(mem, run, now, beside_knobs[i], &all);
    for (int i = 0; i < RECOMPUTE_PARTS; i++)
        if (recompute_counts(now, i)) take(mem, run, now, recompute_part_keys[i], &all);
    char **flag = search_first_names(mem, now, w->nflags, w->flag);
    for (int i = 0; i < w->nflags; i++) add(mem, &all, flag[i]);
    add_own(mem, &all, arena_printf(mem, "--" MODE "=%s", config_value(run, mem, MODE)));
    return all;
}

Config *automatic_load(Arena *mem, const ConfigWords *w, int64_t ranks) {
    const char *said;
    Config *cfg = config_load_of(mem, w->files, w->nflags, w->flag);
    if (!automatic_asked(cfg)) return cfg;
    ConfigWords found = automatic_words(mem, w, (int)ranks, 0, &said);
    cfg = config_load_of(mem, found.files, found.nflags, found.flag);
    PUSH(mem, cfg->notes, cfg->n_notes, cfg->cap_notes, said);
    return cfg;
}
