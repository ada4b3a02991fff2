/* recompute_auto.c - see recompute_auto.h. Choices are tried in the order of their work. One
 * is passed over without a plan where it cannot fit: what the same loops take with nothing
 * made again, less all that the choice drops, is above the limit. What is left is planned
 * exactly; a plan also says how much more than that bound the same set takes with other
 * numbers of layers. */
#include "frontend/plan/recompute_auto.h"
#include "codegen/planned.h"
#include "frontend/config/config_state.h"
#include "frontend/plan/plan.h"
#include "passes/estimate/op_size.h"
#include "passes/model/made_again.h"
#include <stdlib.h>

enum { LAYER_STEPS = 16 }; /* numbers of layers that are tried */

/* ---- plans ---- */

/* The job in an arena of its own, with this made again. */
static Job job_with(Arena *mem, const Job *j, const char *remake) {
    Job copy = *j;
    copy.mem = mem;
    copy.strategy.remake = remake;
    return copy;
}

static Module *build_job(const Job *j, PassOptions *o) {
    *o = strategy_pass_options(j->cfg);
    o->dump_dir = NULL;
    return job_module(j, o);
}

/* The planned step of each stage. */
static Func **plan_steps(Arena *mem, const Job *j, PassOptions *o) {
    CompileOptions co = plan_compile_options(j);
    Module *m = build_job(j, o);
    int stages = o->schedule ? o->schedule->stages : 1;
    Func **step = NEW_ARRAY(mem, Func *, (size_t)stages);
    module_plan_common(mem, m, o);
    for (o->stage = 0; o->stage < stages; o->stage++)
        step[o->stage] = module_plan_stage(mem, m, o, &co);
    return step;
}

int64_t *recompute_stage_bytes(Arena *mem, const Job *j, const char *remake) {
    Arena *own = arena_scratch();
    Job copy = job_with(own, j, remake);
    PassOptions o;
    int64_t *bytes = NEW_ARRAY(mem, int64_t, (size_t)MAX(j->strategy.stages, 1));
    Func **step = plan_steps(own, &copy, &o);
    for (int k = 0; k < MAX(j->strategy.stages, 1); k++)
        bytes[k] = memory_plan(own, step[k]).total_bytes;
    arena_free(own);
    return bytes;
}

/* ---- the menu ---- */

static bool named_in(const char *names, const char *name) {
    for (const char *p = names; *p; p = made_again_next(p)) {
        size_t n = strcspn(p, ",");
        if (strlen(name) == n && !strncmp(p, name, n)) return true;
    }
    return false;
}

/* Values of one op belong together, and to a group with one of their names. */
static void add_group(RecomputeMenu *m, const Op *op, const bool *kept) {
    int at = -1;
    Text t = text_new(m->mem);
    for (int i = 0; i < op->nout; i++) {
        if (!kept[op->out[i]->id]) continue;
        for (int g = 0; g < m->n; g++)
            if (named_in(m->group[g], op->out[i]->name)) at = g;
    }
    if (at >= 0) text_add(&t, "%s", m->group[at]);
    for (int i = 0; i < op->nout; i++)
        if (kept[op->out[i]->id] && !named_in(t.s, op->out[i]->name))
            text_add(&t, "%s%s", t.n ? "," : "", op->out[i]->name);
    if (!t.n || (at < 0 && m->n == RECOMPUTE_MOST_GROUPS)) return;
    m->group[at < 0 ? m->n++ : at] = t.s;
}

typedef struct Seen { /* by passes under these options */
    RecomputeMenu *menu;
    const PassOptions *o;
} Seen;

static void see_groups(const LayerSeen *l, void *seen) {
    Arena *mem = arena_new();
    bool *kept;
    made_again_ops(mem, l, NULL, &kept);
    for (const Op *op = l->w->first; op != l->last->next; op = op->next)
        add_group(((Seen *)seen)->menu, op, kept);
    arena_free(mem);
}

/* What backward takes longer on a rank of the machine, if a rank did it for all. */
static double seconds_again(const LayerSeen *l, const PassOptions *o,
                            const char *policy) {
    Arena *mem = arena_new();
    const Machine *m = machine_of_passes(o);
    int ranks = mesh_ranks(&l->w->mod->mesh) * pass_stages(o);
    const MachineRank *rank = machine_rank_of(m, ranks, o->threads);
    double seconds = 0;
    bool *kept, *again = made_again_ops(mem, l, policy, &kept);
    for (const Op *op = l->w->first; op != l->last->next; op = op->next) {
        if (!again[op->id] || op_has(op, F_VIEW)) continue;
        OpSize size = op_size(mem, op, true, NULL);
        seconds += op_size_seconds(m, rank, &size);
    }
    arena_free(mem);
    return seconds;
}

static void see_seconds(const LayerSeen *l, void *seen) {
    const Seen *s = seen;
    for (unsigned set = 1; set < 1u << s->menu->n; set++)
        s->menu->seconds[set] += seconds_again(l, s->o, recompute_policy(s->menu, set));
}

const char *recompute_policy(const RecomputeMenu *m, unsigned set) {
    Text t = text_new(m->mem);
    if (!set) return NULL;
    text_add(&t, "full");
    for (int g = 0; g < m->n; g++) {
        if (set >> g & 1) continue;
        for (const char *p = m->group[g]; *p; p = made_again_next(p))
            text_add(&t, ",-%.*s", (int)strcspn(p, ","), p);
    }
    text_add(&t, "%s", m->kept);
    return t.s;
}

static void see_layers(const Job *j, void (*see)(const LayerSeen *, void *),
                       RecomputeMenu *m) {
    Arena *own = arena_new();
    Job copy = job_with(own, j, NULL);
    PassOptions o;
    Module *module = build_job(&copy, &o);
    o.layer_seen = see;
    o.layer_ctx = &(Seen){m, &o};
    passes_run(module, "simplify,seed,zero,remake,cut,autodiff", &o);
    arena_free(own);
}

RecomputeMenu recompute_menu(Arena *mem, const Job *j) {
    RecomputeMenu m = {.mem = mem, .kept = j->strategy.remake_kept};
    see_layers(j, see_groups, &m);
    m.seconds = NEW_ARRAY(mem, double, (size_t)1 << m.n);
    see_layers(j, see_seconds, &m);
    return m;
}

/* ---- what nothing made again takes ---- */

typedef struct Stage {
    int64_t *bytes; /* by layers: of its plan with nothing made again, where the loops are
                       cut behind so many layers; 0: not known yet */
    int64_t limit;
    int64_t
        *group; /* what a layer keeps of each group for a micro-batch; all in the last */
    int64_t in_flight; /* micro-batches of its chunks */
    int chunks;
    int64_t most_layers; /* of its chunks */
    int at;              /* choice that is tried */
    bool fits;           /* it was planned, and does */
    int64_t got;         /* bytes of that plan */
} Stage;

typedef struct Choice {
    unsigned set;
    int64_t layers; /* first ones of each chunk */
    double seconds;
    int64_t dropped; /* at most: in flight, and where one layer is at work */
} Choice;

typedef struct Search {
    Arena *mem;
    Job *j;
    RecomputeMenu menu;
    Stage *stage;
    int stages, chunks;
    const int64_t *layers; /* by chunk */
    const int *stage_of;   /* by chunk */
    Choice **choice;       /* by stage, in the order of their work */
    int *nchoices;
    int64_t **more; /* by stage and set: what a plan took above the bound */
    int plans;
} Search;

/* What layers hand to their backward, of the loops that a step runs. */
static void read_kept(Search *s, Stage *k, const Module *m) {
    for (const Func *f = m->first; f; f = f->next)
        for (const Op *op = f->first; op; op = op->next) {
            if (!op_is_call(op) || op_func(op)->part != PART_FORWARD) continue;
            const Call c = call_of(op);
            int64_t *kept = NEW_ARRAY(s->mem, int64_t, (size_t)s->menu.n + 1);
            for (int i = c.carry; i < op->nout && c.loop; i++) {
                int64_t bytes = type_bytes(&op->out[i]->ty) / c.times;
                for (int g = 0; g < s->menu.n; g++)
                    if (named_in(s->menu.group[g], op_func(op)->ret[i]->name))
                        kept[g] += bytes;
                kept[s->menu.n] += bytes;
            }
            for (int g = 0; g <= s->menu.n; g++) k->group[g] = MAX(k->group[g], kept[g]);
        }
}

static void read_stages(Search *s) {
    Arena *own = arena_new();
    Job copy = job_with(own, s->j, NULL);
    PassOptions o;
    Func **step = plan_steps(own, &copy, &o);
    s->chunks = o.schedule ? o.schedule->chunks : 1;
    s->stages = o.schedule ? o.schedule->stages : 1;
    int64_t *layers = NEW_ARRAY(s->mem, int64_t, (size_t)s->chunks);
    int *stage_of = NEW_ARRAY(s->mem, int, (size_t)s->chunks);
    s->stage = NEW_ARRAY(s->mem, Stage, (size_t)s->stages);
    Module *whole = job_build_step(&copy, &o);
    for (int c = 0; c < s->chunks; c++) {
        layers[c] = o.schedule ? o.chunk_layers[c] : module_layers(whole);
        stage_of[c] = o.schedule ? o.schedule->stage_of[c] : 0;
        Stage *k = &s->stage[stage_of[c]];
        k->most_layers = MAX(k->most_layers, layers[c]);
        k->chunks++;
    }
    for (int i = 0; i < s->stages; i++) {
        Stage *k = &s->stage[i];
        k->group = NEW_ARRAY(s->mem, int64_t, (size_t)s->menu.n + 1);
        k->bytes = NEW_ARRAY(s->mem, int64_t, (size_t)k->most_layers + 1);
        k->bytes[0] = memory_plan(own, step[i]).total_bytes;
        k->in_flight = o.schedule ? schedule_in_flight(o.schedule, i) : 1;
        read_kept(s, k, step[i]->mod);
    }
    s->layers = layers;
    s->stage_of = stage_of;
    arena_free(own);
    s->plans = 1;
}

/* ---- choices ---- */

static int by_seconds(const void *a, const void *b) {
    const Choice *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->dropped != y->dropped) return x->dropped > y->dropped ? -1 : 1;
    return x->set != y->set ? (x->set < y->set ? -1 : 1) : 0;
}

/* Layers of the stage that are made again, of all its chunks. */
static int64_t layers_again(const Search *s, int stage, int64_t first) {
    int64_t n = 0;
    for (int c = 0; c < s->chunks; c++)
        if (s->stage_of[c] == stage) n += MIN(first, s->layers[c]);
    return n;
}

static int64_t dropped_by(const Search *s, const Stage *k, unsigned set) {
    int64_t bytes = 0;
    for (int g = 0; g < s->menu.n; g++)
        if (set >> g & 1) bytes += k->group[g];
    return bytes;
}

static void list_choices(Search *s, int stage) {
    const Stage *k = &s->stage[stage];
    size_t sets = (size_t)1 << s->menu.n;
    Choice *list =
        NEW_ARRAY(s->mem, Choice, (sets - 1) * (size_t)MAX(k->most_layers, 0) + 1);
    int n = 1;
    const int64_t step = divided_up(k->most_layers, LAYER_STEPS);
    for (int64_t i = step; i < k->most_layers + step; i += step) {
        const int64_t layers = MIN(i, k->most_layers);
        for (unsigned set = 1; set < sets; set++)
            list[n++] = (Choice){
                .set = set,
                .layers = layers,
                .seconds = s->menu.seconds[set] * (double)layers_again(s, stage, layers),
                .dropped = (layers * k->in_flight + 1) * dropped_by(s, k, set)};
    }
    qsort(list, (size_t)n, sizeof *list, by_seconds);
    s->choice[stage] = list;
    s->nchoices[stage] = n;
    s->more[stage] = NEW_ARRAY(s->mem, int64_t, sets);
}

/* Cuts the loops of all stages there; a word that names nothing makes nothing again. */
static void plan_cut(Search *s, int64_t layers) {
    Text t = text_new(s->mem);
    for (int c = 0; c < s->chunks; c++)
        text_add(&t, "%s%lld:-none", c ? "|" : "", (long long)MIN(layers, s->layers[c]));
    int64_t *bytes = recompute_stage_bytes(s->mem, s->j, t.s);
    for (int i = 0; i < s->stages; i++)
        if (layers <= s->stage[i].most_layers) s->stage[i].bytes[layers] = bytes[i];
    s->plans++;
}

static int64_t kept_bytes(Search *s, int stage, int64_t layers) {
    const Stage *k = &s->stage[stage];
    if (!k->bytes[layers]) plan_cut(s, layers);
    return k->bytes[layers];
}

static int64_t bound(Search *s, int stage, const Choice *c) {
    const Stage *k = &s->stage[stage];
    int64_t layer = k->group[s->menu.n] * k->in_flight;
    int64_t more = MAX(s->more[stage][c->set] - layer, 0);
    return kept_bytes(s, stage, c->layers) - c->dropped + more;
}

/* The next choice that may fit; false: there is none. */
static bool next_choice(Search *s, int stage) {
    Stage *k = &s->stage[stage];
    while (k->at < s->nchoices[stage]) {
        if (bound(s, stage, &s->choice[stage][k->at]) <= k->limit) return true;
        k->at++;
    }
    return false;
}

static const char *chunk_text(Search *s, int chunk) {
    int stage = s->stage_of[chunk];
    const Stage *k = &s->stage[stage];
    if (k->at >= s->nchoices[stage])
        return recompute_policy(&s->menu, (1u << s->menu.n) - 1);
    const Choice *c = &s->choice[stage][k->at];
    if (!c->set) return "";
    const char *policy = recompute_policy(&s->menu, c->set);
    if (c->layers >= s->layers[chunk]) return policy;
    return arena_printf(s->mem, "%lld:%s", (long long)c->layers, policy);
}

static const char *text_of(Search *s) {
    Text t = text_new(s->j->mem);
    bool any = false;
    for (int c = 0; c < s->chunks; c++) {
        const char *chunk = chunk_text(s, c);
        text_add(&t, "%s%s", c ? "|" : "", chunk);
        any |= chunk[0] != 0;
    }
    return any ? t.s : NULL;
}

/* Plans what is tried, and goes on where it does not fit; true: all fit, or never will. */
static bool try_choices(Search *s) {
    bool done = true;
    int64_t *bytes = recompute_stage_bytes(s->mem, s->j, text_of(s));
    s->plans++;
    for (int i = 0; i < s->stages; i++) {
        Stage *k = &s->stage[i];
        k->got = bytes[i];
        k->fits = bytes[i] <= k->limit;
        if (k->fits || k->at >= s->nchoices[i]) continue;
        const Choice *c = &s->choice[i][k->at++];
        s->more[i][c->set] = bytes[i] - (kept_bytes(s, i, c->layers) - c->dropped);
        next_choice(s, i);
        done = false;
    }
    return done;
}

/* ---- what is said ---- */

static void note_choice(Search *s) {
    const Job *j = s->j;
    int64_t most = 0, first = 0;
    bool fits = true;
    for (int i = 0; i < s->stages; i++) {
        fits &= s->stage[i].fits;
        most = MAX(most, s->stage[i].got);
        first = MAX(first, s->stage[i].bytes[0]);
    }
    config_note(
        j->cfg, "recompute_config.recompute",
        "recompute auto: %s%s, so the largest plan is %s instead of %s, "
        "with %s beside it in the process (%d plans tried)",
        fits ? "" : "nothing is enough for context.max_device_memory; ",
        j->strategy.remake ? j->strategy.remake : "nothing is made again",
        arena_strdup(s->mem, human((double)most, "B").s),
        arena_strdup(s->mem, human((double)first, "B").s),
        arena_strdup(
            s->mem,
            human((double)(plan_process_bytes(j->cfg) + job_ahead_bytes(j)), "B").s),
        s->plans);
}

static int64_t limit_of(const Job *j) {
    int64_t limit = j->cfg->context_max_device_memory;
    if (!limit)
        config_refuse(
            j->cfg, "recompute_config.recompute", NULL, "--context.max_device_memory 8GB",
            "recompute auto makes the plan fit context.max_device_memory, which "
            "is not given");
    return limit - plan_process_bytes(j->cfg) - job_ahead_bytes(j);
}

void recompute_choose(Job *j) {
    if (!j->strategy.remake_auto) return;
    int64_t limit = limit_of(j);
    Search s = {.mem = arena_scratch(), .j = j};
    s.menu = recompute_menu(s.mem, j);
    read_stages(&s);
    s.choice = NEW_ARRAY(s.mem, Choice *, (size_t)s.stages);
    s.nchoices = NEW_ARRAY(s.mem, int, (size_t)s.stages);
    s.more = NEW_ARRAY(s.mem, int64_t *, (size_t)s.stages);
    for (int i = 0; i < s.stages; i++) {
        s.stage[i].limit = limit;
        list_choices(&s, i);
        next_choice(&s, i);
    }
    while (!try_choices(&s)) continue;
    j->strategy.remake = text_of(&s);
    note_choice(&s);
    arena_free(s.mem);
}
