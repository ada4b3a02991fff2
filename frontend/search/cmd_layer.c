/* cmd_layer.c - stator layer: the fastest placements inside of a layer. */
#include "frontend/config/commands.h"
#include "frontend/config/config_state.h"
#include "frontend/config/machine_file.h"
#include "frontend/config/options.h"
#include "frontend/plan/plan.h"
#include "frontend/search/layer_probe.h"
#include <math.h>

enum { LAYOUTS = 3 }; /* the best, model_parallel, and sequence_parallel besides */

typedef struct Candidate {
    const char *name;
    const LayerChoice *choice; /* NULL: it cannot be priced */
    LayerCost cost;
    LayerPlanned planned;
} Candidate;

typedef struct Found {
    Arena *mem;
    LayerAsk ask;
    LayerGraph *g;
    double limit_bytes, bound;
    const char *limit; /* limit_bytes, and of what they are */
    Candidate layout[LAYOUTS];
    char **entry;
    int nentries;
    double seconds;
    int name_width; /* of a column */
    Text *out;
} Found;

/* ---- what is printed ---- */

static const char *place_text(Arena *mem, const Type *ty, int place) {
    Text t = text_new(mem);
    if (place == place_pending(ty)) return "summands";
    if (place == PLACE_WHOLE) return "whole";
    for (int d = 1; d <= ty->rank; d++)
        text_add(&t, "%s%lld%s", d > 1 ? "," : "", (long long)ty->dim[d - 1],
                 d == place ? ":tp" : "");
    return t.s;
}

static void add_rows(const Found *f, bool params) {
    const LayerGraph *g = f->g;
    for (int i = 0; i < g->ngroups; i++) {
        const LayerGroup *k = &g->group[i];
        bool any = params;
        if (k->param != params) continue;
        for (int l = 0; l < LAYOUTS; l++)
            any |= f->layout[l].choice && f->layout[l].choice->seed[i] != PLACE_WHOLE;
        if (!any || !k->may) continue;
        text_add(f->out, "  %-*s", f->name_width, k->name);
        for (int l = 0; l < LAYOUTS; l++) {
            const LayerChoice *c = f->layout[l].choice;
            text_add(f->out, " %-20s", c ? place_text(f->mem, &k->ty, c->seed[i]) : "-");
        }
        text_add(f->out, "\n");
    }
}

static void add_value(const Found *f, double v) {
    text_add(f->out, " %-20s", isnan(v) ? "-" : human(v, "").s);
}

static void add_cost(const Found *f, const char *what, size_t of, double unit) {
    text_add(f->out, "  %-*s", f->name_width, what);
    for (int l = 0; l < LAYOUTS; l++) {
        const Candidate *c = &f->layout[l];
        double v = *(const double *)((const char *)&c->cost + of);
        add_value(f, c->choice ? unit * v : NAN);
    }
    text_add(f->out, "\n");
}

static void add_costs(const Found *f) {
    add_cost(f, "us of a layer and micro-batch", offsetof(LayerCost, seconds), 1e6);
    add_cost(f, "  compute", offsetof(LayerCost, compute), 1e6);
    add_cost(f, "  messages", offsetof(LayerCost, messages), 1e6);
    add_cost(f, "  its share of the update", offsetof(LayerCost, step), 1e6);
    text_add(f->out, "  %-*s", f->name_width, "us of the planned layer");
    for (int l = 0; l < LAYOUTS; l++) {
        const LayerPlanned *p = &f->layout[l].planned;
        add_value(f, p->refused ? NAN : 1e6 * p->seconds);
    }
    text_add(f->out, "\n");
    add_cost(f, "bytes of weights and states", offsetof(LayerCost, weight_bytes), 1);
    add_cost(f, "bytes kept for backward", offsetof(LayerCost, kept_bytes), 1);
}

static void add_messages(const Found *f, LayerPart part, int kind) {
    bool any = false;
    for (int l = 0; l < LAYOUTS; l++)
        any |= f->layout[l].choice && f->layout[l].cost.sent.count[part][kind] > 0;
    if (!any) return;
    text_add(f->out, "  %-*s", f->name_width,
             arena_printf(f->mem, "%s, %s", layer_part_name[part], optab[kind].name));
    for (int l = 0; l < LAYOUTS; l++) {
        const LayerMessages *m = &f->layout[l].cost.sent;
        double n = m->count[part][kind];
        text_add(f->out, " %-20s",
                 n > 0 ? arena_printf(f->mem, "%.0f x, %s", n,
                                      human(m->bytes[part][kind], "B").s)
                       : "-");
    }
    text_add(f->out, "\n");
}

/* ---- is it what is planned? ---- */

static const char *difference(const Found *f, const Candidate *l) {
    for (int part = 0; part < PART_OF_STEP; part++)
        for (int k = 0; k < OP_COUNT; k++) {
            double want = l->cost.sent.bytes[part][k],
                   is = l->planned.sent.bytes[part][k];
            if (want == is) continue;
            return arena_printf(f->mem, "%s, %s: %s are planned, %s were reckoned with",
                                layer_part_name[part], optab[k].name, human(is, "B").s,
                                human(want, "B").s);
        }
    return NULL;
}

static void add_check(const Found *f) {
    const Candidate *best = &f->layout[0];
    const char *differs = best->planned.refused;
    if (differs)
        differs = arena_printf(f->mem, "it is refused: %s", differs);
    else
        differs = difference(f, best);
    text_add(f->out, "\n%s\n",
             differs ? arena_printf(f->mem, "planned with these entries it is not so: %s",
                                    differs)
                     : "planned with these entries a layer sends just that");
}

static void print_found(const Found *f) {
    const LayerGraph *g = f->g;
    text_add(f->out,
             "layer     %d ops, %d values, %d seeds on %d ranks of %s, in %.2f s\n",
             g->nops, g->nvalues, g->ngroups, g->ranks, g->machine->name, f->seconds);
    if (f->limit_bytes > 0)
        text_add(f->out, "          at most %s of a layer on a rank\n", f->limit);
    if (f->layout[0].cost.seconds > f->bound * (1 + 1e-9))
        text_add(f->out, "          none within the limit is faster than %.4g us\n",
                 1e6 * f->bound);
    text_add(f->out, "\n  %-*s", f->name_width, "");
    for (int l = 0; l < LAYOUTS; l++) text_add(f->out, " %-20s", f->layout[l].name);
    text_add(f->out, "\n");
    add_rows(f, true);
    add_rows(f, false);
    text_add(f->out, "\n");
    add_costs(f);
    for (int part = 0; part < LAYER_PARTS; part++)
        for (int k = 0; k < OP_COUNT; k++) add_messages(f, (LayerPart)part, k);
    for (int l = 1; l < LAYOUTS; l++)
        if (!f->layout[l].choice)
            text_add(f->out, "  %s is not priced on this graph: %s\n", f->layout[l].name,
                     f->layout[l].planned.refused ? f->layout[l].planned.refused
                                                  : f->layout[l].planned.differs);
    add_check(f);
    text_add(f->out, "  --parallel.shard '[");
    for (int i = 0; i < f->nentries; i++)
        text_add(f->out, "%s\"%s\"", i ? ",\n      " : "", f->entry[i]);
    text_add(f->out, "]'\n");
}

/* ---- the command ---- */

static int name_width(const LayerGraph *g) {
    int width = 31;
    for (int i = 0; i < g->ngroups; i++)
        width = MAX(width, (int)strlen(g->group[i].name));
    return width;
}

static void find_layouts(Found *f) {
    static const char *const names[LAYOUTS] = {"best", "model_parallel",
                                               "and sequence_parallel"};
    Candidate *best = &f->layout[0];
    best->choice = layer_solve_within(f->mem, f->g, f->limit_bytes, &f->bound);
    if (!best->choice)
        fail(EXIT_MEMORY,
             "no placements of a layer on %d ranks fit %s\n    hint: more ranks, "
             "or a larger --layer_bytes",
             f->g->ranks, f->limit);
    f->entry = layer_entries(f->mem, &f->ask, f->g, best->choice, true, &f->nentries);
    best->planned = layer_probe_plan(f->mem, &f->ask, f->g, f->nentries, f->entry, false);
    for (int l = 1; l < LAYOUTS; l++) {
        Candidate *k = &f->layout[l];
        k->planned = layer_probe_plan(f->mem, &f->ask, f->g, -1, NULL, l == 2);
        k->choice = k->planned.choice;
    }
    for (int l = 0; l < LAYOUTS; l++) {
        f->layout[l].name = names[l];
        if (f->layout[l].choice)
            f->layout[l].cost = layer_cost(f->g, f->layout[l].choice);
    }
}

/* The memory of a rank shared out to its layers. */
static double limit_of(const Options *o, const Config *cfg, const Machine *m,
                       const Job *j) {
    double all = (double)cfg->context_max_device_memory;
    if (option_given(o, "--layer_bytes"))
        return (double)option_int(o, "--layer_bytes", 0);
    if (!(all > 0)) all = m->memory_bytes;
    return j->has_spec ? all / (double)MAX(j->spec.layers, 1) : 0;
}

static const char *limit_text(Arena *mem, const Options *o, const Config *cfg,
                              double bytes) {
    const char *size = arena_strdup(mem, human(bytes, "B").s);
    if (option_given(o, "--layer_bytes"))
        return arena_printf(mem, "--layer_bytes %s", option_text(o, "--layer_bytes"));
    if (!cfg->context_max_device_memory) return size;
    return arena_printf(mem, "%s, its part of context.max_device_memory %s,", size,
                        config_memory_limit(cfg));
}

/* So that what these ranks do not divide is said of -n. */
static void place_ranks(Config *cfg, int ranks) {
    Arena *mem = cfg->state->mem;
    SourcePos at = {.file = arena_printf(mem, "-n %d", ranks)};
    Setting *s = &cfg->state->settings[key_find("parallel_config.model_parallel")];
    s->value = yaml_scalar(mem, arena_printf(mem, "%d", ranks), at);
}

static Found find(Arena *mem, const Options *o, Text *out) {
    Found f = {.mem = mem, .out = out};
    double start = clock_seconds();
    char *mode = arena_strdup(mem, "--parallel.parallel_mode=1");
    char **flag = NEW_ARRAY(mem, char *, (size_t)o->nflags + 2);
    flag[0] = mode;
    for (int i = 0; i < o->nflags; i++) flag[i + 1] = o->flag[i];
    Config *cfg = config_load(mem, o->word[0], o->nflags + 1, flag);
    Job *j = NEW(mem, Job);
    *j = (Job){.mem = mem, .plans = true, .cfg = cfg};
    job_choose_model(j);
    f.ask.cfg = j->cfg;
    f.ask.ranks = (int)option_int(o, "-n", cfg->parallel_config_model_parallel);
    if (f.ask.ranks < 2)
        fail(EXIT_CONFIG, "stator layer splits a layer over 2 ranks at least: -n RANKS");
    if (option_given(o, "-n")) place_ranks(cfg, f.ask.ranks);
    f.ask.machine.machine = config_machine_or_plain(cfg);
    f.ask.machine.threads = plan_threads(cfg, f.ask.machine.machine, f.ask.ranks);
    f.limit_bytes = limit_of(o, cfg, f.ask.machine.machine, j);
    f.limit = limit_text(mem, o, cfg, f.limit_bytes);
    if (cfg->parallel_shard.n)
        fprintf(stderr,
                "note: entries of parallel.shard are not kept: all placements of the "
                "layer are chosen\n");
    f.g = layer_probe_graph(mem, &f.ask);
    f.name_width = name_width(f.g);
    find_layouts(&f);
    f.seconds = clock_seconds() - start;
    return f;
}

int cmd_layer(int argc, char **argv) {
    const Options *o = options_take(COMMAND_layer, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
    if (!o->nwords)
        fail(EXIT_CONFIG, "stator layer needs a configuration: stator layer CONFIG.yaml "
                          "-n RANKS [--machine FILE.yaml]");
    Text out = text_new(mem);
    Found f = find(mem, o, &out);
    print_found(&f);
    text_print(&out);
    arena_free(mem);
    return 0;
}
