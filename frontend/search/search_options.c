/* search_options.c - what a search begins with, and what is said where it finds nothing. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/search/search.h"

enum { TOPS = 3 };

static const char mode_key[] = "parallel.parallel_mode";

/* The key of a flag "--a.b=VALUE"; NULL: of none, which config_load refuses. */
static const char *key_of(Arena *mem, const char *flag) {
    char *name = arena_strndup(mem, flag + 2, strcspn(flag, "=") - 2);
    int k = key_find(key_of_word(mem, name));
    return k < 0 ? NULL : key_table[k].path;
}

static bool is_chosen(const char *key) {
    return key && is_one_of(config_first_name(key), knob_key, KNOBS);
}

/* A key that --KEY=null leaves as it is has no other name. */
static char *by_first_name(Arena *mem, const Config *cfg, char *flag) {
    const char *key = key_of(mem, flag), *first = key ? config_first_name(key) : NULL;
    bool shard = first && !strcmp(first, "parallel_config.optimizer_shard");
    if (!key || !strcmp(key, first) || !(shard || is_chosen(key)) ||
        !config_by_flag(cfg, key))
        return flag;
    return arena_printf(mem, "--%s=%s", first, config_value(cfg, mem, key));
}

char **search_first_names(Arena *mem, const Config *cfg, int nflags, char **flag) {
    char **named = NEW_ARRAY(mem, char *, (size_t)nflags + 1);
    for (int i = 0; i < nflags; i++) named[i] = by_first_name(mem, cfg, flag[i]);
    return named;
}

/* The flags without those of the mode, and without those of keys that a search chooses where these
 * are not kept; and that a strategy is given. */
static char **plain_flags(Arena *mem, char **flag, int *n, bool keep_chosen) {
    char **rest = NEW_ARRAY(mem, char *, (size_t)*n + 1);
    int all = *n;
    *n = 0;
    for (int i = 0; i < all; i++) {
        const char *key = key_of(mem, flag[i]);
        bool mode = key && !strcmp(key, mode_key);
        if (!mode && (keep_chosen || !is_chosen(key))) rest[(*n)++] = flag[i];
    }
    rest[(*n)++] = arena_printf(mem, "--%s=1", mode_key);
    return rest;
}

int64_t search_sequences(Arena *mem, ConfigFiles *files, int nflags, char **flag,
                         int ranks) {
    char **rest = plain_flags(mem, flag, &nflags, false);
    Config *cfg = config_load_of(mem, files, nflags, rest);
    strategy_replicate(cfg, ranks, "ranks are asked for");
    return cfg->runner_config_batch_size * cfg->parallel_config_data_parallel *
           cfg->parallel_config_micro_batch_num;
}

/* The user's flags by first names, and, where no flag says otherwise, that a strategy is given. */
static char **add_mode(Arena *mem, ConfigFiles *files, int *nflags, char **given) {
    const Config *cfg = config_load_of(mem, files, *nflags, given);
    char **flag = search_first_names(mem, cfg, *nflags, given);
    bool flag_says = config_by_flag(cfg, mode_key);
    if (flag_says && cfg->parallel_parallel_mode < 2) return flag;
    return plain_flags(mem, flag, nflags, true);
}

/* So many as the degrees of the configuration have. */
static int ranks_of(const Config *cfg) {
    enum { MOST = 1 << 20 };
    int64_t all = config_ranks(cfg);
    if (all > MOST)
        config_refuse(cfg, knob_key[KNOB_DP], knob_key[KNOB_TP], NULL,
                      "more than %d ranks", MOST);
    return (int)all;
}

SearchOptions search_options(Arena *mem, ConfigFiles *files, int nflags, char **flag,
                             int ranks) {
    SearchOptions s = {.files = files, .tops = TOPS, .nflags = nflags};
    s.flag = add_mode(mem, files, &s.nflags, flag);
    Config *cfg = config_load_of(mem, files, s.nflags, s.flag);
    s.cfg = cfg;
    s.ranks = ranks ? ranks : ranks_of(cfg);
    s.machine = config_machine_or_plain(cfg);
    s.limit_bytes = (double)cfg->context_max_device_memory;
    if (!(s.limit_bytes > 0)) s.limit_bytes = s.machine->memory_bytes;
    s.sequences = search_sequences(mem, files, nflags, flag, s.ranks);
    return s;
}

const char *search_limit(const SearchOptions *o) {
    if (o->cfg->context_max_device_memory) return config_memory_limit(o->cfg);
    return arena_strdup(o->cfg->state->mem, human(o->limit_bytes, "B").s);
}

/* "4 ranks" */
static const char *ranks_text(const SearchOptions *s) {
    return arena_printf(s->cfg->state->mem, "%d rank%s", s->ranks,
                        s->ranks == 1 ? "" : "s");
}

/* The product of those of n knobs that flags give must divide what there is; of all of them it is
 * all. */
static void refuse_product(const SearchOptions *s, const Knob *knob, int n, int64_t whole,
                           const char *what) {
    Arena *mem = s->cfg->state->mem;
    int64_t product = 1;
    const char *text = "";
    int given = 0;
    for (int i = 0; i < n && product <= whole; i++) {
        if (!config_by_flag(s->cfg, knob_key[knob[i]])) continue;
        int64_t value = knob_value(s->cfg, knob[i]);
        product *= MAX(value, 1);
        text = arena_printf(mem, "%s%s--%s=%lld", text, given++ ? " x " : "",
                            knob_key[knob[i]], (long long)value);
    }
    if (whole % product || (given == n && whole != product))
        fail(EXIT_CONFIG,
             "no strategy of %s has the keys that are given\n    hint: %s %s %s",
             ranks_text(s), text, whole % product ? "does not divide" : "is less than",
             what);
}

/* Flags for keys that a search chooses leave fewer choices; what else there is may allow none. */
static _Noreturn void refuse_all(const SearchOptions *s) {
    static const Knob of_ranks[] = {KNOB_DP, KNOB_TP, KNOB_CP, KNOB_PP},
                      of_step[] = {KNOB_DP, KNOB_BATCH, KNOB_MICRO};
    Arena *mem = s->cfg->state->mem;
    refuse_product(s, of_ranks, ARRAY_LEN(of_ranks), s->ranks, ranks_text(s));
    refuse_product(
        s, of_step, ARRAY_LEN(of_step), s->sequences,
        arena_printf(mem,
                     "the %lld sequences of a step, which follow from the file "
                     "without flags",
                     (long long)s->sequences));
    const char *given = "";
    for (int i = 0; i < KNOBS; i++)
        if (config_by_flag(s->cfg, knob_key[i]))
            given =
                arena_printf(mem, "%s%s--%s", given, given[0] ? ", " : "", knob_key[i]);
    if (given[0])
        fail(EXIT_CONFIG,
             "no strategy of %s has the keys that are given\n    hint: leave out one of "
             "%s",
             ranks_text(s), given);
    fail(EXIT_CONFIG,
         "no strategy of %s is possible: stator search says why each is refused\n"
         "    hint: another number of ranks, or of sequences a step (batch_size x "
         "micro_batch_num)",
         ranks_text(s));
}

void search_check_found(const SearchOptions *s, const SearchResult *r) {
    if (r->ntop) return;
    if (r->stopped)
        fail(EXIT_SIGNALLED, "stopped before a strategy was planned that fits");
    if (!r->choices) refuse_all(s);
    if (r->why)
        fail(EXIT_CONFIG, "no strategy of %s can be planned: %s", ranks_text(s), r->why);
    if (r->gave_up)
        fail(EXIT_MEMORY,
             "none of the %d fastest strategies that were planned fits %s of memory on a "
             "rank\n"
             "    hint: flags that narrow the search, such as "
             "--parallel.parallel_optimizer_config.optimizer_level level3 or "
             "--recompute_config.recompute True",
             r->planned, search_limit(s));
    fail(EXIT_MEMORY,
         "no strategy of %s fits %s of memory on a rank, of which a process has %s "
         "for itself\n    hint: more ranks, or a larger context.max_device_memory",
         ranks_text(s), search_limit(s),
         human((double)plan_process_bytes(s->cfg), "B").s);
}
