/* layer_probe.c - see layer_probe.h. */
#include "frontend/search/layer_probe.h"
#include "frontend/config/config.h"
#include "frontend/search/probe.h"
#include "passes/passes.h"

/* ---- configurations ---- */

/* One stage of one replica and so many ranks of tp, without what is besides the layer. */
static Config config_of(const Config *cfg, int ranks, bool sp, TextList user) {
    Config c = one_stage_config(cfg);
    c.parallel_config_data_parallel = 1;
    c.parallel_config_model_parallel = ranks;
    c.parallel_config_context_parallel = 1;
    c.parallel_config_context_parallel_algo = CP_ULYSSES;
    c.parallel_config_sequence_parallel = sp;
    c.parallel_shard = user;
    return c;
}

static Job *job_of(Arena *mem, Config *cfg, PassOptions *o) {
    Job *j = job_to_plan(mem, cfg);
    strategy_check(cfg, &j->strategy, job_spec(j), j->shape);
    *o = strategy_pass_options(cfg);
    o->unverified = true;
    o->hoist_slices = true; /* once a step, so no part of what a layer takes */
    return j;
}

LayerGraph *layer_probe_graph(Arena *mem, const LayerAsk *a) {
    PassOptions o;
    Config *c = NEW(mem, Config);
    *c = config_of(a->cfg, a->ranks, false, (TextList){0});
    Job *j = job_of(mem, c, &o);
    Module *m = job_build_step(j, &o);
    passes_run(m, "simplify", &o);
    LayerGraph *g = layer_graph(mem, m, &o, a->ranks, a->machine);
    g->known = a->known ? a->known : layer_known(mem);
    return g;
}

/* ---- as planned ---- */

static double seconds_of(Arena *mem, const LayerGraph *g, const LayerAsk *a,
                         const Module *m) {
    FuncSizes s = func_sizes(mem, m, NULL);
    Timing t = {.mem = mem,
                .m = g->machine,
                .rank = g->rank,
                .stretch = g->stretch,
                .shape = mesh_shapes(mem, g->machine, &m->mesh, 1, a->machine.threads)};
    const FuncTime *f = func_seconds(mem, &s, &t);
    const Op *loop[2];
    if (layer_loops(m, loop)) return 0;
    return f[op_func(loop[0])->nth].all + f[op_func(loop[1])->nth].all;
}

static void plan(Arena *own, Arena *mem, const LayerAsk *a, const LayerGraph *g,
                 Config *c, LayerPlanned *p) {
    PassOptions o;
    Job *j = job_of(own, c, &o);
    o.optimizer = "none"; /* only layers are looked at */
    Module *m = job_module(j, &o);
    passes_run(m, passes_part(own, train_passes, NULL, "reshard", "halve"), &o);
    p->choice = layer_read(mem, g, m, &p->differs);
    passes_run(m, passes_part(own, train_passes, "reshard", "beside", ""), &o);
    p->sent = layer_messages(m);
    passes_run(m, "beside,sink,simplify", &o);
    passes_run(m, passes_part(own, train_passes, "bucket", "inline", ""), &o);
    p->seconds = seconds_of(own, g, a, m);
}

LayerPlanned layer_probe_plan(Arena *mem, const LayerAsk *a, const LayerGraph *g, int n,
                              char **entry, bool sequence_parallel) {
    LayerPlanned *p = NEW(mem, LayerPlanned);
    Arena *own = arena_new();
    Config *c = NEW(own, Config);
    Catch caught;
    if (CATCH(caught)) {
        *c = config_of(a->cfg, a->ranks, sequence_parallel,
                       (TextList){.items = (const char **)entry, .n = MAX(n, 0)});
        plan(own, mem, a, g, c, p);
        catch_end(&caught);
    } else {
        p->refused = arena_strdup(mem, caught.message);
    }
    arena_free(own);
    return *p;
}

/* ---- entries ---- */

/* By group: 1 + the dimension that replicas split, which grows with the micro-batch; 0: none. */
static int *sample_dims(Arena *mem, const LayerAsk *a, const LayerGraph *g) {
    Config twice = *a->cfg;
    LayerAsk ask = *a;
    twice.runner_config_batch_size *= 2;
    ask.cfg = &twice;
    const LayerGraph *two = layer_probe_graph(mem, &ask);
    int *dim = NEW_ARRAY(mem, int, (size_t)g->ngroups + 1);
    check(two->ngroups == g->ngroups);
    for (int i = 0; i < g->ngroups; i++) {
        const Type *x = &g->group[i].ty, *y = &two->group[i].ty;
        check(x->rank == y->rank);
        for (int d = 0; d < x->rank; d++)
            if (x->dim[d] != y->dim[d]) dim[i] = 1 + d;
    }
    return dim;
}

static char *entry_of(Arena *mem, const LayerGroup *k, int seed, int sample) {
    Text t = text_new(mem);
    if (k->func) text_add(&t, "%s/", k->func);
    text_add(&t, "%s=", k->name);
    for (int d = 1; d <= k->ty.rank; d++) {
        bool here = d == seed, replicas = !k->param && d == sample;
        text_add(&t, "%s%s", d > 1 ? "," : "",
                 here ? (replicas ? "dp.tp" : "tp") : (replicas ? "dp" : "-"));
    }
    return t.s;
}

char **layer_entries(Arena *mem, const LayerAsk *a, const LayerGraph *g,
                     const LayerChoice *c, bool replicas, int *n) {
    char **entry = NEW_ARRAY(mem, char *, (size_t)g->ngroups + 1);
    Arena *own = arena_new();
    const int *sample = sample_dims(own, a, g);
    *n = 0;
    for (int i = 0; i < g->ngroups; i++)
        if (g->group[i].param || c->seed[i] != PLACE_WHOLE)
            entry[(*n)++] =
                entry_of(mem, &g->group[i], c->seed[i], replicas ? sample[i] : 0);
    arena_free(own);
    return entry;
}
