/* automatic.c - see automatic.h. */
#include "frontend/search/automatic.h"
#include "frontend/config/config_state.h"
#include "frontend/search/report.h"

#define MODE "parallel.parallel_mode"

bool automatic_asked(const Config *cfg) {
    return cfg->parallel_parallel_mode == 2;
}

/* What is given and chosen by no knob, but belongs to a strategy. */
static const char *const beside_knobs[] = {
    "parallel_config.ulysses_degree_in_cp", "parallel_config.optimizer_shard",
    "parallel_config.offset", "recompute_config.recompute_method"};

static void add(Arena *mem, ConfigWords *w, const char *flag) {
    char **more = NEW_ARRAY(mem, char *, (size_t)w->nflags + 1);
    if (w->nflags) memcpy(more, w->flag, (size_t)w->nflags * sizeof *more);
    more[w->nflags++] = arena_strdup(mem, flag);
    w->flag = more;
}

/* The last flag counts. One rank has no use for a mode. */
static void end_asking(Arena *mem, ConfigWords *w, int ranks) {
    add(mem, w, ranks > 1 ? "--" MODE "=1" : "--" MODE "=0");
}

static const char *tell(Arena *mem, const SearchOptions *o, const SearchResult *r,
                        double seconds) {
    const Verified *best = &r->top[0];
    return arena_printf(
        mem,
        "parallel_mode 2: the fastest of %lld strategies of %d rank%s on %s, "
        "found in %.1f s: %s (micro-batches x sequences); planned: %.4g s a "
        "step, %s on a rank",
        (long long)r->choices, o->ranks, o->ranks == 1 ? "" : "s", o->machine->name,
        seconds, report_strategy(mem, &best->c), best->seconds,
        human((double)best->bytes, "B").s);
}

ConfigWords automatic_words(Arena *mem, const ConfigWords *w, int ranks,
                            double limit_bytes, const char **said) {
    double start = clock_seconds();
    SearchOptions o = search_options(mem, w->path, w->nflags, w->flag, ranks);
    if (!(o.limit_bytes > 0)) o.limit_bytes = limit_bytes;
    SearchResult r = search_run(mem, &o);
    search_check_found(&o, &r);
    ConfigWords found = {w->path, r.top[0].nflags, r.top[0].flag};
    end_asking(mem, &found, o.ranks);
    *said = tell(mem, &o, &r, clock_seconds() - start);
    return found;
}

static void take(Arena *mem, const Config *run, const char *key, ConfigWords *to) {
    if (!config_given(run, key)) return;
    add(mem, to, arena_printf(mem, "--%s=%s", key, config_value(run, mem, key)));
}

ConfigWords automatic_words_of(Arena *mem, const ConfigWords *w, const char *path) {
    const Config *run = config_load(mem, path, 0, NULL);
    ConfigWords all = {.path = w->path};
    for (int k = 0; k < KNOBS; k++) take(mem, run, knob_key[k], &all);
    for (int i = 0; i < ARRAY_LEN(beside_knobs); i++)
        take(mem, run, beside_knobs[i], &all);
    for (int i = 0; i < w->nflags; i++) add(mem, &all, w->flag[i]);
    add(mem, &all, arena_printf(mem, "--" MODE "=%s", config_value(run, mem, MODE)));
    return all;
}

Config *automatic_load(Arena *mem, const ConfigWords *w, int64_t ranks) {
    const char *said;
    Config *cfg = config_load(mem, w->path, w->nflags, w->flag);
    if (!automatic_asked(cfg)) return cfg;
    ConfigWords found = automatic_words(mem, w, (int)ranks, 0, &said);
    cfg = config_load(mem, found.path, found.nflags, found.flag);
    PUSH(mem, cfg->notes, cfg->n_notes, cfg->cap_notes, said);
    return cfg;
}
