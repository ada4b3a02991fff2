/* cmd_search.c - stator search: the fastest strategy of a configuration. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/config/options.h"
#include "frontend/search/report.h"
#include "runtime/core/stop_signal.h"
#include <errno.h>
#include <math.h>

enum { TOPS = 3 };

static void write_text(const char *path, Text t) {
    int error = file_write_atomic(path, t.s, t.n);
    if (error) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(error));
}

static void write_best(Arena *mem, const SearchOptions *o, const Verified *v,
                       const char *path) {
    Config *cfg = config_load(mem, o->path, v->nflags, v->flag);
    Text out = text_new(mem);
    config_print(cfg, &out);
    write_text(path, out);
}

static void write_report(const Options *o, const Report *r) {
    const char *svg = option_text(o, "--svg"), *html = option_text(o, "--html");
    Text out = text_new(r->mem);
    if (option_given(o, "--json"))
        report_json(r, &out);
    else
        report_text(r, &out);
    if (fwrite(out.s, 1, out.n, stdout) != out.n || fflush(stdout))
        fail(EXIT_DATA, "cannot write the result: %s", strerror(errno));
    if (svg) write_text(svg, report_svg(r));
    if (html) write_text(html, report_html(r));
}

/* Where there is no answer, why. */
static void check_found(const SearchOptions *s, const SearchResult *r) {
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

/* Sequences of a step as the file has them; replicas that it leaves open follow. */
static int64_t sequences_of(Config *cfg, int ranks) {
    strategy_replicate(cfg, ranks, "ranks are asked for");
    return cfg->runner_config_batch_size * cfg->parallel_config_data_parallel *
           cfg->parallel_config_micro_batch_num;
}

/* The user's flags, and that a strategy is given, where the file asks for one. */
static char **add_mode(Arena *mem, const Options *o, int *n) {
    static char mode[] = "--parallel.parallel_mode";
    char **flag = NEW_ARRAY(mem, char *, (size_t)o->nflags + 2);
    bool given = false;
    for (*n = 0; *n < o->nflags; ++*n) {
        flag[*n] = o->flag[*n];
        given |= !strncmp(flag[*n], mode, strlen(mode));
    }
    if (!given) flag[(*n)++] = arena_printf(mem, "%s=1", mode);
    return flag;
}

static SearchOptions read_options(Arena *mem, const Options *o) {
    SearchOptions s = {.path = o->nwords ? o->word[0] : NULL,
                       .tops = (int)option_int(o, "--top", TOPS),
                       .record = option_text(o, "--record")};
    s.flag = add_mode(mem, o, &s.nflags);
    Config *cfg = config_load(mem, s.path, s.nflags, s.flag);
    char *mode = arena_strdup(mem, "--parallel.parallel_mode=1");
    Config *plain = config_load(mem, s.path, 1, &mode);
    int64_t all =
        cfg->parallel_config_model_parallel * cfg->parallel_config_context_parallel *
        cfg->parallel_config_pipeline_stage * cfg->parallel_config_data_parallel;
    s.cfg = cfg;
    s.ranks = (int)option_int(o, "-n", all);
    s.machine = config_machine_or_plain(cfg);
    s.limit_bytes = (double)cfg->context_max_device_memory;
    if (!(s.limit_bytes > 0)) s.limit_bytes = s.machine->memory_bytes;
    s.sequences = sequences_of(plain, s.ranks);
    return s;
}

int cmd_search(int argc, char **argv) {
    double start = clock_seconds();
    Arena *mem = arena_new();
    const Options *o = options_read(mem, COMMAND_search, argc, argv);
    if (!o) {
        arena_free(mem);
        return 0;
    }
    if (!o->nwords)
        fail(EXIT_CONFIG,
             "stator search needs a configuration: stator search CONFIG.yaml "
             "-n RANKS [--machine FILE.yaml]");
    SearchOptions s = read_options(mem, o);
    s.stop = stop_signal_catch();
    SearchResult r = search_run(mem, &s);
    Report report = {mem, &s, &r, clock_seconds() - start};
    write_report(o, &report);
    check_found(&s, &r);
    const char *path = option_text(o, "--write");
    if (path) write_best(mem, &s, &r.top[0], path);
    arena_free(mem);
    stop_signal_release();
    return r.stopped ? EXIT_SIGNALLED : 0;
}
