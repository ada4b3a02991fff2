/* search_options.c - what a search begins with, and what is said where it finds nothing. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/search/search.h"

enum { TOPS = 3 };

int64_t search_sequences(Arena *mem, const char *path, int ranks) {
    char *mode = arena_strdup(mem, "--parallel.parallel_mode=1");
    Config *cfg = config_load(mem, path, 1, &mode);
    strategy_replicate(cfg, ranks, "ranks are asked for");
    return cfg->runner_config_batch_size * cfg->parallel_config_data_parallel *
           cfg->parallel_config_micro_batch_num;
}

/* The user's flags, and, where no flag says otherwise, that a strategy is given. */
static char **add_mode(Arena *mem, const char *path, int *nflags, char **given) {
    static const char key[] = "parallel.parallel_mode";
    const Config *cfg = config_load(mem, path, *nflags, given);
    bool flag_says =
        config_given(cfg, key) && !strcmp(config_where(cfg, key).file, "command line");
    if (flag_says && cfg->parallel_parallel_mode < 2) return given;
    char **flag = NEW_ARRAY(mem, char *, (size_t)*nflags + 1);
    for (int i = 0; i < *nflags; i++) flag[i] = given[i];
    flag[(*nflags)++] = arena_printf(mem, "--%s=1", key);
    return flag;
}

SearchOptions search_options(Arena *mem, const char *path, int nflags, char **flag,
                             int ranks) {
    SearchOptions s = {.path = path, .tops = TOPS, .nflags = nflags};
    s.flag = add_mode(mem, path, &s.nflags, flag);
    Config *cfg = config_load(mem, path, s.nflags, s.flag);
    int64_t all =
        cfg->parallel_config_model_parallel * cfg->parallel_config_context_parallel *
        cfg->parallel_config_pipeline_stage * cfg->parallel_config_data_parallel;
    s.cfg = cfg;
    s.ranks = ranks ? ranks : (int)all;
    s.machine = config_machine_or_plain(cfg);
    s.limit_bytes = (double)cfg->context_max_device_memory;
    if (!(s.limit_bytes > 0)) s.limit_bytes = s.machine->memory_bytes;
    s.sequences = search_sequences(mem, path, s.ranks);
    return s;
}

void search_check_found(const SearchOptions *s, const SearchResult *r) {
    if (r->ntop) return;
    if (r->stopped)
        fail(EXIT_SIGNALLED, "stopped before a strategy was planned that fits");
    if (!r->choices)
        fail(EXIT_CONFIG,
             "no strategy of %d ranks has the keys that are given\n    hint: leave "
             "out flags",
             s->ranks);
    if (r->gave_up)
        fail(EXIT_MEMORY,
             "none of the %d fastest strategies that were planned fits %s of memory on a "
             "rank\n"
             "    hint: flags that narrow the search, such as "
             "--parallel.parallel_optimizer_config.optimizer_level level3 or "
             "--recompute_config.recompute True",
             r->planned, human(s->limit_bytes, "B").s);
    fail(EXIT_MEMORY,
         "no strategy of %d ranks fits %s of memory on a rank\n    hint: "
         "more ranks, or a larger context.max_device_memory",
         s->ranks, human(s->limit_bytes, "B").s);
}
