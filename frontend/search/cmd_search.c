/* cmd_search.c - stator search: the fastest strategy of a configuration. */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/options.h"
#include "frontend/search/search.h"
#include <errno.h>
#include <math.h>

enum { TOPS = 3, FRONT_SHOWN = 12 };

typedef struct Report {
    Arena *mem;
    const SearchOptions *o;
    const SearchResult *r;
    double seconds;
    Text *out;
} Report;

/* ---- for people ---- */

static const char *strategy_text(Arena *mem, const Choice *c) {
    Text t = text_new(mem);
    text_add(&t, "dp %d tp %d", c->dp, c->tp);
    if (c->cp > 1)
        text_add(&t, " cp %d (%s)", c->cp,
                 c->ring == 1       ? "all-to-all"
                 : c->ring == c->cp ? "ring"
                                    : "both");
    if (c->pp > 1) text_add(&t, " pp %d %s", c->pp, schedule_name_at(c->schedule));
    if (c->chunks > 1) text_add(&t, " x%d", c->chunks);
    if (c->layers == LAYERS_BALANCED) text_add(&t, " balanced");
    text_add(&t, ", %d x %d", c->micro, c->batch);
    if (c->zero) text_add(&t, ", ZeRO-%d", c->zero);
    if (c->sp) text_add(&t, ", sp");
    if (c->vocab) text_add(&t, ", vocab");
    if (c->remade > 0) text_add(&t, ", again %d", c->remade);
    return t.s;
}

static void add_top(const Report *r) {
    text_add(r->out,
             "\n  seconds  a rank's memory  strategy (micro-batches x sequences)\n");
    for (int i = 0; i < r->r->ntop; i++) {
        const Verified *v = &r->r->top[i];
        text_add(r->out, "  %7.4g  %15s  %s\n", v->seconds,
                 human((double)v->bytes, "B").s, strategy_text(r->mem, &v->c));
    }
}

static void add_front(const Report *r) {
    int n = r->r->nfront, step = MAX(1, (n + FRONT_SHOWN - 1) / FRONT_SHOWN);
    text_add(r->out, "\nless memory for more time (not planned; %d of %d)\n",
             (n + step - 1) / step, n);
    for (int i = n - 1; i >= 0; i -= step) {
        const Choice *c = &r->r->front[i];
        text_add(r->out, "  %7.4g  %15s  %s\n", c->seconds, human(c->bytes, "B").s,
                 strategy_text(r->mem, c));
    }
}

static void add_family(const Report *r, const Family *f, double best) {
    text_add(r->out, "  tp %-3d cp %-3d ", f->tp, f->cp);
    if (f->pp) text_add(r->out, "pp %-3d ", f->pp);
    if (f->refused) {
        text_add(r->out, "refused: %.*s\n", (int)strcspn(f->refused, "\n"), f->refused);
    } else if (f->fit) {
        text_add(r->out, "%7.4g s  %9s  %+.1f %%\n", f->seconds, human(f->bytes, "B").s,
                 100 * (f->seconds / best - 1));
    } else {
        double room = r->o->limit_bytes - PLAN_PROCESS_BYTES;
        text_add(r->out, "does not fit: %s at least, ", human(f->bytes, "B").s);
        text_add(r->out, "%s too many\n", human(f->bytes - room, "B").s);
    }
}

static void add_families(const Report *r) {
    text_add(r->out, "\nthe fastest of each split of the ranks, before planning\n");
    for (int i = 0; i < r->r->nfamilies; i++)
        add_family(r, &r->r->family[i], r->r->family[0].seconds);
}

static void add_best(const Report *r) {
    const Verified *v = &r->r->top[0];
    text_add(r->out, "\nbest: %.4g s a step, %s on a rank\n", v->seconds,
             human((double)v->bytes, "B").s);
    for (int i = 0; i < v->nflags; i++) text_add(r->out, "  %s\n", v->flag[i]);
}

static void print_report(const Report *r) {
    text_add(r->out, "search    %lld strategies of %d ranks on %s, %lld sequences a step",
             (long long)r->r->choices, r->o->ranks, r->o->machine->name,
             (long long)r->o->sequences);
    if (r->o->limit_bytes > 0)
        text_add(r->out, ", %s on a rank", human(r->o->limit_bytes, "B").s);
    text_add(r->out,
             "\n          %d programs looked at, %lld schedules gone through, %d "
             "planned, in %.2f s\n",
             r->r->probes, (long long)r->r->simulated, r->r->planned, r->seconds);
    if (r->r->ntop) add_top(r);
    add_families(r);
    if (r->r->ntop) {
        add_front(r);
        add_best(r);
    }
}

/* ---- for programs ---- */

static void add_flags_json(const Verified *v, Text *out) {
    text_add(out, "[");
    for (int i = 0; i < v->nflags; i++) {
        text_add(out, i ? ", " : "");
        json_write_string(out, v->flag[i]);
    }
    text_add(out, "]");
}

static void add_verified_json(const Report *r, const Verified *v) {
    text_add(r->out, "{\"strategy\": ");
    json_write_string(r->out, strategy_text(r->mem, &v->c));
    text_add(r->out, ", \"flags\": ");
    add_flags_json(v, r->out);
    text_add(r->out, ", \"step_seconds\": %.6g, \"memory_bytes\": %lld}", v->seconds,
             (long long)v->bytes);
}

static void add_family_json(const Report *r, const Family *f) {
    text_add(r->out, "{\"model_parallel\": %d, \"context_parallel\": %d", f->tp, f->cp);
    if (f->pp) text_add(r->out, ", \"pipeline_stage\": %d", f->pp);
    if (f->refused) {
        text_add(r->out, ", \"refused\": ");
        json_write_string(r->out, f->refused);
    } else {
        text_add(r->out, ", \"choices\": %lld, \"fit\": %lld, \"memory_bytes\": %.0f",
                 (long long)f->choices, (long long)f->fit, f->bytes);
        if (f->fit) text_add(r->out, ", \"step_seconds\": %.6g", f->seconds);
    }
    text_add(r->out, "}");
}

static void print_json(const Report *r) {
    text_add(r->out, "{\n  \"ranks\": %d,\n  \"machine\": ", r->o->ranks);
    json_write_string(r->out, r->o->machine->name);
    text_add(r->out, ",\n  \"best\": ");
    if (r->r->ntop)
        add_verified_json(r, &r->r->top[0]);
    else
        text_add(r->out, "null");
    text_add(r->out, ",\n  \"top\": [");
    for (int i = 0; i < r->r->ntop; i++) {
        text_add(r->out, "%s\n    ", i ? "," : "");
        add_verified_json(r, &r->r->top[i]);
    }
    text_add(r->out, "],\n  \"front\": [");
    for (int i = 0; i < r->r->nfront; i++) {
        const Choice *c = &r->r->front[i];
        text_add(r->out, "%s\n    {\"strategy\": ", i ? "," : "");
        json_write_string(r->out, strategy_text(r->mem, c));
        text_add(r->out, ", \"step_seconds\": %.6g, \"memory_bytes\": %.0f}", c->seconds,
                 c->bytes);
    }
    text_add(r->out, "],\n  \"families\": [");
    for (int i = 0; i < r->r->nfamilies; i++) {
        text_add(r->out, "%s\n    ", i ? "," : "");
        add_family_json(r, &r->r->family[i]);
    }
    text_add(r->out,
             "],\n  \"choices\": %lld, \"probes\": %d, \"simulated\": %lld, "
             "\"planned\": %d,\n  \"seconds\": %.4g\n}\n",
             (long long)r->r->choices, r->r->probes, (long long)r->r->simulated,
             r->r->planned, r->seconds);
}

/* ---- the command ---- */

static void write_best(Arena *mem, const SearchOptions *o, const Verified *v,
                       const char *path) {
    Config *cfg = config_load(mem, o->path, v->nflags, v->flag);
    Text out = text_new(mem);
    config_print(cfg, &out);
    int error = file_write_atomic(path, out.s, out.n);
    if (error) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(error));
}

static const Machine *search_machine(Arena *mem, Config *cfg) {
    const Machine *m = plan_machine(mem, cfg);
    if (m) return m;
    fprintf(stderr, "note: no machine is given (--machine FILE.yaml, made by stator "
                    "calibrate or of machines/): seconds are those of a plain one\n");
    return &machine_plain;
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
                       .tops = (int)option_int(o, "--top", TOPS)};
    s.flag = add_mode(mem, o, &s.nflags);
    Config *cfg = config_load(mem, s.path, s.nflags, s.flag);
    char *mode = arena_strdup(mem, "--parallel.parallel_mode=1");
    Config *plain = config_load(mem, s.path, 1, &mode);
    int64_t all =
        cfg->parallel_config_model_parallel * cfg->parallel_config_context_parallel *
        cfg->parallel_config_pipeline_stage * cfg->parallel_config_data_parallel;
    s.cfg = cfg;
    s.ranks = (int)option_int(o, "-n", all);
    s.machine = search_machine(mem, cfg);
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
    SearchResult r = search_run(mem, &s);
    Text out = text_new(mem);
    Report report = {mem, &s, &r, clock_seconds() - start, &out};
    if (option_given(o, "--json"))
        print_json(&report);
    else
        print_report(&report);
    if (fwrite(out.s, 1, out.n, stdout) != out.n || fflush(stdout))
        fail(EXIT_DATA, "cannot write the result: %s", strerror(errno));
    if (!r.ntop && r.gave_up)
        fail(EXIT_MEMORY,
             "none of the %d fastest strategies that were planned fits %s of memory on a "
             "rank\n"
             "    hint: flags that narrow the search, such as "
             "--parallel.parallel_optimizer_config.optimizer_level level3 or "
             "--recompute_config.recompute True",
             r.planned, human(s.limit_bytes, "B").s);
    if (!r.ntop)
        fail(EXIT_MEMORY,
             "no strategy of %d ranks fits %s of memory on a rank\n    hint: "
             "more ranks, or a larger context.max_device_memory",
             s.ranks, human(s.limit_bytes, "B").s);
    const char *path = option_text(o, "--write");
    if (path) write_best(mem, &s, &r.top[0], path);
    arena_free(mem);
    return 0;
}
