/* probe.c - see probe.h. */
#include "frontend/search/probe.h"
#include "frontend/config/config_state.h"
#include "frontend/model/recompute.h"
#include "passes/estimate/touches.h"
#include "passes/passes.h"

bool probe_same_key(const ProbeKey *a, const ProbeKey *b) {
    return a->tp == b->tp && a->cp == b->cp && a->ring == b->ring &&
           a->parts == b->parts && a->sequence_parallel == b->sequence_parallel &&
           a->splits_vocab == b->splits_vocab;
}

/* How sequences are split matters: a gradient may be added up in parts. */
bool probe_same_update(const ProbeKey *a, const ProbeKey *b) {
    return a->tp == b->tp && a->cp == b->cp && a->ring == b->ring &&
           a->splits_vocab == b->splits_vocab;
}

/* ---- the program ---- */

Config one_stage_config(const Config *cfg) {
    Config c = *cfg;
    c.notes = NULL;
    c.n_notes = c.cap_notes = 0;
    c.parallel_config_data_parallel = 1;
    c.parallel_config_pipeline_stage = 1;
    c.parallel_config_pp_interleave_num = 1;
    c.parallel_config_num_layer_list = (IntTable){0};
    c.parallel_config_offset = (IntTable){0};
    c.parallel_config_num_layers_in_first_pipeline_stage = -1;
    c.parallel_config_num_layers_in_last_pipeline_stage = -1;
    c.parallel_config_optimizer_shard = false;
    c.parallel_enable_parallel_optimizer = false;
    c.parallel_parallel_optimizer_config_optimizer_level = ZERO_AUTO;
    c.recompute_config_recompute = (TextList){0};
    c.recompute_config_recompute_method = RECOMPUTE_BLOCK;
    for (int i = 0; i < RECOMPUTE_PARTS; i++)
        if (recompute_counts(&c, i)) recompute_part_default(&c, i);
    c.context_tile_size = 0; /* rows of a tile do not grow in a straight line */
    return c;
}

/* The configuration with the keys of the strategy set to those of a probe. */
static Config probe_config(const Config *cfg, ProbeKey key, int64_t sequences) {
    Config c = one_stage_config(cfg);
    bool ring = key.ring == key.cp, whole = key.ring == 1;
    c.parallel_config_model_parallel = key.tp;
    c.parallel_config_context_parallel = key.cp;
    c.parallel_config_context_parallel_algo = whole  ? CP_ULYSSES
                                              : ring ? CP_RING
                                                     : CP_HYBRID;
    c.parallel_config_ulysses_degree_in_cp = key.cp / key.ring;
    c.parallel_config_sequence_parallel = key.sequence_parallel;
    c.parallel_config_vocab_emb_dp = !key.splits_vocab;
    c.parallel_config_micro_batch_num = 1;
    c.micro_batch_interleave_num = key.parts;
    c.runner_config_batch_size = sequences;
    return c;
}

/* Those of train_passes that change what one stage takes, up to memory. What is done once a step
 * with sums of gradients stays behind the layers, which every micro-batch goes through: so sink is
 * run without overlap. */
static void run_passes(Arena *mem, Module *m, const PassOptions *o) {
    PassOptions once = *o;
    once.overlap = 0;
    passes_run(m, passes_part(mem, train_passes, NULL, "sink", "halve"), o);
    passes_run(m, "sink,simplify", &once);
    passes_run(m, passes_part(mem, train_passes, "bucket", "inline", ""), o);
}

static Module *probe_module(Arena *mem, Config *cfg, const Machine *machine, bool updates,
                            KnownPaths *paths) {
    Job *j = job_to_plan(mem, cfg);
    PassOptions o = strategy_pass_options(cfg);
    o.machine = machine == &machine_plain ? NULL : machine; /* as plans have it */
    o.unverified = true;
    o.hoist_slices = true; /* pieces know what one micro-batch has less */
    o.paths = paths;
    if (!updates) o.optimizer = "none";
    Module *m = job_module(j, &o);
    run_passes(mem, m, &o);
    return m;
}

/* ---- its pieces ---- */

/* The argument that a value is, perhaps under another shape; -1: it is made. */
static int argument_of(const Func *f, const Value *v) {
    while (v->def && op_has(v->def, F_VIEW) && v->def->nin == 1) v = v->def->in[0];
    for (int i = 0; i < f->narg && !v->def; i++)
        if (f->arg[i] == v) return i;
    return -1;
}

typedef enum Where { BEFORE = 1, LAYERS = 2, BEHIND = 4 } Where;

static void mark(int *where, const Func *f, const Op *op, const Op *forward, Where here) {
    for (int i = 0; i < op->nin; i++) {
        int a = argument_of(f, op->in[i]);
        Call c = {0};
        if (op == forward) c = call_of(op);
        if (a >= 0) where[a] |= op == forward && call_slices(&c, i) ? LAYERS : here;
    }
}

static void add_param(ParamBytes *to, int where, double bytes, double layers) {
    if (where & LAYERS)
        to->layer += bytes / layers;
    else if (where & BEHIND)
        to->last += bytes;
    else
        to->first += bytes;
    if ((where & BEFORE) && (where & BEHIND)) {
        to->first += bytes;
        to->tied += bytes;
    }
}

/* The parameter of the step that an argument of the model is, perhaps rounded; or itself. */
static const Value *held_by(const Module *m, const Value *arg) {
    for (const Func *f = m->first; f; f = f->next)
        for (int i = 0; func_is_entry(f) && i < f->narg; i++)
            if (arg_role(f, i) == ARG_param && !strcmp(f->arg[i]->name, arg->name))
                return f->arg[i];
    return arg;
}

/* Parameters, by who reads them: embedding, layers, head. */
static void add_parameters(Arena *mem, Probe *p, const Func *f, const Op *forward,
                           const Op *backward) {
    int *where = NEW_ARRAY(mem, int, (size_t)f->narg + 1);
    Where here = BEFORE;
    for (const Op *op = f->first; op && op != backward; op = op->next) {
        mark(where, f, op, forward, here);
        if (op == forward) here = BEHIND;
    }
    double layers = (double)call_of(forward).times;
    for (int i = 0; i < f->narg; i++) {
        if (arg_role(f, i) != ARG_param) continue;
        const Value *held = held_by(f->mod, f->arg[i]);
        add_param(&p->bytes.held, where[i], (double)type_bytes(&held->ty), layers);
        add_param(&p->bytes.read, where[i], (double)type_bytes(&f->arg[i]->ty), layers);
    }
}

static void add_activations(Probe *p, const Op *forward, const SizeScale *one) {
    Call c = call_of(forward);
    for (int i = 0; i < forward->nout; i++) {
        double bytes = (double)scaled_bytes(one, &forward->out[i]->ty) / (double)p->unit;
        if (i < c.carry)
            p->bytes.carried += bytes;
        else
            p->bytes.kept += bytes / (double)c.times;
    }
}

/* ---- what gradients of weights read ---- */

typedef struct Delayed {
    const Op *backward; /* the loop over layers */
    bool *needed;       /* by value id: for what the layer before waits for */
    bool *taken;        /* by value id: the gradients of weights read it */
    double bytes;
    const SizeScale *one;
    const int *row; /* by op id */
    uint8_t *later; /* by row: Later */
} Delayed;

static void note_later(Delayed *d, const Op *op) {
    int row = d->row[op->id];
    if (row >= 0) d->later[row] |= op_makes_marked(op, d->needed) ? LATER_AGAIN : LATER;
}

/* Gathers are made again. */
static const Value *before_gather(Delayed *d, const Value *v) {
    while (v->def && op_has(v->def, F_COMM | F_VIEW) && v->def->nin == v->def->nout &&
           type_bytes(&v->def->in[v->nth]->ty) <= type_bytes(&v->ty)) {
        note_later(d, v->def);
        v = v->def->in[v->nth];
    }
    return v;
}

/* A value that the gradients of weights read. What they make themselves is not kept, but what that is
 * made of; nor are arguments of the model, which are there anyhow. */
static void take(Delayed *d, const Value *v) {
    v = before_gather(d, v);
    if (d->taken[v->id]) return;
    d->taken[v->id] = true;
    if (v->def && !op_makes_marked(v->def, d->needed)) return;
    if (!v->def && argument_of(d->backward->fn, d->backward->in[v->nth]) >= 0) return;
    d->bytes += (double)scaled_bytes(d->one, &v->ty);
}

/* Of a layer: what its own backward makes, or forward kept, and products for gradients of weights
 * read. */
static void add_delayed(Arena *keep, Arena *mem, Probe *p, const Op *backward,
                        const SizeScale *one) {
    const Func *f = op_func(backward);
    size_t n = (size_t)f->nvalues + 1;
    int rows = p->size[0].func[f->nth].n;
    Delayed d = {.backward = backward,
                 .needed = NEW_ARRAY(mem, bool, n),
                 .taken = NEW_ARRAY(mem, bool, n),
                 .one = one,
                 .row = p->size[0].row[f->nth],
                 .later = NEW_ARRAY(keep, uint8_t, (size_t)rows + 1)};
    for (int i = 0; i < call_of(backward).carry; i++) d.needed[f->ret[i]->id] = true;
    for (const Op *op = f->last; op; op = op->prev)
        if (op_makes_marked(op, d.needed)) op_mark_operands(op, d.needed);
    for (const Op *op = f->last; op; op = op->prev) {
        bool read = op_has(op, F_DENSE) || op_makes_marked(op, d.taken);
        if (!read || op_makes_marked(op, d.needed)) continue;
        note_later(&d, op);
        for (int i = 0; i < op->nin; i++) take(&d, op->in[i]);
    }
    p->bytes.delayed = d.bytes / (double)p->unit;
    p->later = d.later;
}

/* Products add to the gradients of the micro-batches before; others are added by an op each. */
static void add_gradients(Probe *p, const Op *backward) {
    const Func *f = op_func(backward);
    for (int i = call_of(backward).carry; i < f->nret; i++) {
        const Value *v = f->ret[i];
        while (v->def && op_has(v->def, F_VIEW) && v->def->nin == 1) v = v->def->in[0];
        p->bytes.gradients++;
        if (v->def && op_has(v->def, F_ADDENDS)) continue;
        p->bytes.added++;
        p->bytes.added_bytes += (double)type_bytes(&v->ty);
    }
}

/* Of a layer: what it keeps for backward is made of these, and what only the next layer reads is not. */
static void add_remade(Arena *keep, Arena *mem, Probe *p, const Op *forward) {
    const Func *f = op_func(forward);
    const int *row = p->size[0].row[f->nth];
    bool *needed = NEW_ARRAY(mem, bool, (size_t)f->nvalues + 1);
    bool *remade = NEW_ARRAY(keep, bool, (size_t)p->size[0].func[f->nth].n + 1);
    for (int i = call_of(forward).carry; i < f->nret; i++) needed[f->ret[i]->id] = true;
    for (const Op *op = f->last; op; op = op->prev) {
        if (!op_makes_marked(op, needed)) continue;
        op_mark_operands(op, needed);
        if (row[op->id] >= 0) remade[row[op->id]] = true;
    }
    p->remade = remade;
}

static double role_bytes(const Func *f, ArgRole role) {
    double bytes = 0;
    for (int i = 0; i < f->narg; i++)
        if (arg_role(f, i) == role) bytes += (double)type_bytes(&f->arg[i]->ty);
    return bytes;
}

/* Of one sequence: nothing in it grows with the micro-batch. What the model moves between two updates
 * differs by strategy, and is left out: all parameters and states are more than caches hold. */
static const ProbeUpdate *read_update(Arena *mem, Arena *own, const Probe *p,
                                      const Module *m, const SizeScale *one) {
    ProbeUpdate *u = NEW(mem, ProbeUpdate);
    u->key = p->key;
    u->size = p->size[0];
    u->size.func = NEW_ARRAY(mem, OpSizes, (size_t)u->size.n + 1);
    for (int i = 0; i < u->size.n; i++)
        if (!u->size.in_model[i]) u->size.func[i] = p->size[0].func[i];
    touches_note(own, module_order(own, m), one, &u->size);
    for (const Func *s = m->first; s; s = s->next)
        if (func_is_entry(s)) {
            u->step = s->nth;
            u->states = role_bytes(s, ARG_state) / role_bytes(s, ARG_param);
        }
    return u;
}

static const char *find_pieces(Arena *keep, Arena *mem, Probe *p, const Module *m,
                               const SizeScale *one) {
    const Func *f = module_gradient(m);
    const Op *forward = NULL, *backward = NULL;
    if (!f) return "the step has no model of its own";
    for (const Op *op = f->first; op; op = op->next) {
        if (!op_is_loop(op)) continue;
        if (!forward)
            forward = op;
        else if (!backward)
            backward = op;
        else
            return "the model has more than one loop over layers";
    }
    if (!backward) return "the model has no loop over layers";
    p->model = f->nth;
    p->forward = op_func(forward)->nth;
    p->backward = op_func(backward)->nth;
    p->begin = p->size[0].row[f->nth][forward->id];
    p->end = p->size[0].row[f->nth][backward->id];
    add_parameters(mem, p, f, forward, backward);
    add_activations(p, forward, one);
    add_remade(keep, mem, p, forward);
    add_delayed(keep, mem, p, backward, one);
    add_gradients(p, backward);
    return NULL;
}

static bool divides_dim(const Type *t, int64_t n) {
    for (int d = 0; d < t->rank; d++)
        if (t->dim[d] % n == 0) return true;
    return false;
}

/* Does n divide a size of some value? */
static bool divides_size(const Module *m, int64_t n) {
    for (const Func *f = m->first; f; f = f->next) {
        for (int i = 0; i < f->narg; i++)
            if (divides_dim(&f->arg[i]->ty, n)) return true;
        for (const Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++)
                if (divides_dim(&op->out[i]->ty, n)) return true;
    }
    return false;
}

/* The least prime from 5 on that divides no size of the model: so what it divides has the
 * sequences of the micro-batch in it. */
static int64_t marking_prime(const Module *whole, const Job *base, ProbeKey key) {
    static const int64_t primes[] = {5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47};
    const Type padded = TYPE(DT_F32, round_up(base->spec.vocab, key.tp), key.tp, key.cp);
    for (int i = 0; i < ARRAY_LEN(primes); i++)
        if (!divides_size(whole, primes[i]) && !divides_dim(&padded, primes[i]))
            return primes[i];
    return 0;
}

/* The sequences of a micro-batch are split over its parts, and over what entries say. */
static int64_t fewest_sequences(const Config *cfg, ProbeKey key) {
    return (int64_t)key.parts * (cfg->parallel_shard.n ? (int64_t)key.tp * key.cp : 1);
}

char *probe_reason(Arena *mem, const char *message) {
    static const char before[] = ": error: ";
    const char *at = strstr(message, before);
    if (at) message = at + sizeof before - 1;
    return arena_strndup(mem, message, strcspn(message, "\n"));
}

ProbeShared probe_shared(Arena *mem, const Job *base) {
    Job j = *base;
    j.mem = mem;
    return (ProbeShared){.paths = known_paths(mem), .whole = job_build_whole(&j)};
}

Probe probe_make(Arena *mem, const Job *base, const Machine *machine, ProbeKey key,
                 const ProbeUpdate *update, const ProbeShared *shared) {
    Probe p = {.key = key, .update = update, .unit = fewest_sequences(base->cfg, key)};
    Arena *own = arena_new();
    int64_t prime = marking_prime(shared->whole, base, key);
    Config c = probe_config(base->cfg, key, prime * p.unit);
    Catch caught;
    if (!prime) {
        p.refused = "sizes of the model are multiples of all small primes";
    } else if (CATCH(caught)) {
        Module *m = probe_module(own, &c, machine, !update, shared->paths);
        SizeScale one = {prime, 1}, two = {prime, 2};
        p.size[0] = func_sizes(mem, m, &one);
        p.size[1] = func_sizes(mem, m, &two);
        p.mesh = m->mesh;
        p.refused = find_pieces(mem, own, &p, m, &one);
        if (!p.update && !p.refused) p.update = read_update(mem, own, &p, m, &one);
        if (p.update) p.bytes.states = p.update->states;
        catch_end(&caught);
    } else {
        p.refused = probe_reason(mem, caught.message);
    }
    arena_free(own);
    return p;
}
