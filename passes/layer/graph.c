/* graph.c - the graph of a layer; see layer.h. Which seed places a value of the gradients is
 * what passes make of it, so it is asked of them: before autodiff every name gets a number, as
 * a placement over axes of one rank, and is recognized by it behind autodiff. */
#include "passes/layer/layer.h"
#include "passes/pipe/layers.h"
#include "passes/shard/sums.h"

const char *const layer_part_name[LAYER_PARTS] = {"forward", "backward", "once a step"};

enum { MARK_AXES = MAX_AXES - 1 };

/* ---- loops ---- */

const char *layer_loops(const Module *m, const Op *loop[2]) {
    const Func *f = module_gradient(m);
    int n = 0;
    if (!f) return "the model has no gradient";
    for (const Op *op = f->first; op; op = op->next) {
        if (!op_is_loop(op)) continue;
        if (n == 2) return "the model has more than one loop over layers";
        loop[n++] = op;
    }
    return n == 2 ? NULL : "the model has no loop over layers";
}

/* ---- names get numbers ---- */

static int group_named(LayerGraph *g, const char *func, const char *name,
                       const Type *ty) {
    for (int i = 0; i < g->ngroups; i++) {
        LayerGroup *k = &g->group[i];
        if (k->param == !func && !strcmp(k->name, name)) return i;
    }
    LayerGroup k = {func, name, *ty, (1u << ty->rank) - 1, !func};
    PUSH(g->mem, g->group, g->ngroups, g->group_cap, k);
    return g->ngroups - 1;
}

/* Values of one name but other ranks cannot be said by one entry: none of them has a seed. */
static void join(LayerGraph *g, int nth, const Type *ty) {
    LayerGroup *k = &g->group[nth];
    if (k->ty.rank != ty->rank) k->may = 0;
    for (int d = 0; d < ty->rank; d++)
        if (ty->dim[d] % g->ranks || ty->dim[d] < g->ranks) k->may &= ~(1u << d);
}

static void mark(Type *ty, int dim, int nth) {
    if (nth + 1 >= 1 << MARK_AXES)
        fail(EXIT_CONFIG, "a layer has more than %d names of values",
             (1 << MARK_AXES) - 2);
    ty->split[dim] = (Axes)(nth + 1);
}

static void mark_value(LayerGraph *g, const Func *f, Value *v) {
    if (!v->ty.rank || !dtype_is_float(v->ty.dt)) return;
    int nth = group_named(g, f->name, v->name, &v->ty);
    join(g, nth, &v->ty);
    mark(&v->ty, 0, nth);
}

/* Sliced arguments of the model; the carried one and results have names of the function. */
static void mark_all(LayerGraph *g, Module *m) {
    const Func *model = layers_model(m);
    const Op *loop = model->first;
    while (loop && !op_is_loop(loop)) loop = loop->next;
    if (!loop) fail(EXIT_CONFIG, "module @%s has no loop over layers to split", m->name);
    const Call c = call_of(loop);
    for (int i = 0; i < loop->nin; i++) {
        Value *v = loop->in[i], *arg = c.f->arg[i];
        bool param =
            call_slices(&c, i) && !v->def && arg_role(model, v->nth) == ARG_param;
        if (i < c.carry) mark_value(g, c.f, arg);
        if (!param || !arg->ty.rank) continue;
        int nth = group_named(g, NULL, v->name, &arg->ty);
        join(g, nth, &arg->ty);
        mark(&arg->ty, 0, nth);
        mark(&v->ty, 1, nth);
    }
    for (Op *op = c.f->first; op; op = op->next)
        for (int i = 0; i < op->nout; i++) mark_value(g, c.f, op->out[i]);
}

static Mesh marking_mesh(Arena *mem) {
    Mesh mesh = {.naxes = MARK_AXES};
    for (int i = 0; i < MARK_AXES; i++) {
        mesh.axis[i].name = arena_printf(mem, "m%d", i);
        mesh.axis[i].size = 1;
    }
    return mesh;
}

static int marked(const LayerGraph *g, const Type *ty) {
    int nth = (ty->rank ? ty->split[0] : 0) - 1;
    return nth >= 0 && nth < g->ngroups && g->group[nth].may ? nth : -1;
}

static void wipe(Type *ty) {
    memset(ty->split, 0, sizeof ty->split);
    ty->open_sum = false;
    ty->open = 0;
}

static void wipe_all(Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        for (int i = 0; i < f->narg; i++) wipe(&f->arg[i]->ty);
        for (Op *op = f->first; op; op = op->next)
            for (int i = 0; i < op->nout; i++) wipe(&op->out[i]->ty);
    }
}

/* ---- values and ops ---- */

static int value_at(const LayerGraph *g, int part, const Value *v) {
    return g->first_value[part] + v->id;
}

static void see_value(LayerGraph *g, int part, const Value *v, LayerSource source) {
    bool zero;
    LayerValue *x = &g->value[value_at(g, part, v)];
    *x = (LayerValue){.v = v,
                      .source = source,
                      .op = -1,
                      .saved = -1,
                      .group = marked(g, &v->ty),
                      .open = v->ty.open_sum,
                      .free = value_is_free(v, &zero),
                      .priority = PRIORITY_FOLLOWS};
    if (x->group >= 0 && g->group[x->group].param && !v->def)
        x->priority = PRIORITY_PARAMETER;
}

static void see_op(LayerGraph *g, int part, const Op *op) {
    LayerOp o = {.op = op};
    o.in = NEW_ARRAY(g->mem, int, (size_t)op->nin + 1);
    o.out = NEW_ARRAY(g->mem, int, (size_t)op->nout + 1);
    for (int i = 0; i < op->nin; i++) o.in[i] = value_at(g, part, op->in[i]);
    for (int i = 0; i < op->nout; i++) {
        o.out[i] = value_at(g, part, op->out[i]);
        see_value(g, part, op->out[i], FROM_OP);
        LayerValue *y = &g->value[o.out[i]];
        y->op = g->nops;
        /* a parameter in another shape, or rounded, is as hard to move */
        if (op_has(op, F_MOVE | F_CAST) && op->nin == 1)
            y->priority = MAX(y->priority, g->value[o.in[0]].priority);
    }
    PUSH(g->mem, g->op, g->nops, g->op_cap, o);
}

static void see_arguments(LayerGraph *g, int part, const Op *loop, const Op *forward) {
    const Func *f = g->func[part];
    const Call c = call_of(loop);
    for (int i = 0; i < f->narg; i++) {
        const Value *from = loop->in[i];
        see_value(g, part, f->arg[i], FROM_WHOLE);
        LayerValue *x = &g->value[value_at(g, part, f->arg[i])];
        if (part == PART_OF_BACKWARD && from->def == forward && call_slices(&c, i)) {
            x->source = FROM_SAVED;
            x->saved = value_at(g, PART_OF_FORWARD, op_func(forward)->ret[from->nth]);
        } else if (x->group >= 0) {
            x->source = FROM_GROUP;
        } else if (call_slices(&c, i) && from->def && op_is_call(from->def)) {
            fail(EXIT_CONFIG,
                 "@%s: %%%s of a layer comes from another call; this layer's "
                 "placements cannot be chosen",
                 f->name, f->arg[i]->name);
        }
    }
}

static void see_returns(LayerGraph *g, int part, const Op *loop) {
    const Func *f = g->func[part];
    const Call c = call_of(loop);
    for (int i = 0; i < f->nret; i++) {
        LayerReturn r = {.value = value_at(g, part, f->ret[i]), .to = -1};
        LayerValue *x = &g->value[r.value];
        r.end = part == PART_OF_FORWARD ? END_SAVED : END_GRADIENT;
        if (i < c.carry) {
            r.end = END_CARRIED;
            r.to = value_at(g, part, f->arg[i]);
            x->reads++;
        }
        x->returned = true;
        PUSH(g->mem, g->ret, g->nrets, g->ret_cap, r);
    }
}

static void see_function(LayerGraph *g, int part, const Op *loop, const Op *forward) {
    Func *f = op_func(loop);
    func_number(f);
    g->func[part] = f;
    g->first_value[part] = g->nvalues;
    g->first_op[part] = g->nops;
    for (int i = 0; i < f->nvalues; i++)
        PUSH(g->mem, g->value, g->nvalues, g->value_cap, (LayerValue){0});
    see_arguments(g, part, loop, forward);
    for (const Op *op = f->first; op; op = op->next) {
        if (op_is_call(op))
            fail(EXIT_CONFIG,
                 "@%s calls @%s; placements inside of a layer are chosen for "
                 "layers of plain ops",
                 f->name, op_func(op)->name);
        see_op(g, part, op);
        for (int i = 0; i < op->nin; i++) g->value[value_at(g, part, op->in[i])].reads++;
    }
    see_returns(g, part, loop);
}

/* Bytes of states over those of parameters, of the step. */
static double states_of(const Module *m) {
    double states = 0, params = 0;
    for (const Func *f = m->first; f; f = f->next) {
        if (!func_is_entry(f)) continue;
        for (int i = 0; i < f->narg; i++) {
            double bytes = (double)type_bytes(&f->arg[i]->ty);
            if (arg_role(f, i) == ARG_state) states += bytes;
            if (arg_role(f, i) == ARG_param) params += bytes;
        }
    }
    return params > 0 ? states / params : 0;
}

static void place_on_machine(LayerGraph *g, LayerMachine k) {
    const Machine *m = k.machine;
    int host = machine_host_ranks(m, g->ranks);
    int with_cores = MIN(host, machine_ranks_with_cores(m, k.threads));
    g->machine = m;
    g->rank = machine_rank_of(m, g->ranks, k.threads);
    g->stretch = (double)host / with_cores * machine_rank_stretch(m, g->rank, k.threads);
    g->shape = mesh_shapes(g->mem, m, &g->m->mesh, 1, k.threads)[1];
}

LayerGraph *layer_graph(Arena *mem, Module *m, const PassOptions *o, int n,
                        LayerMachine machine) {
    LayerGraph *g = NEW(mem, LayerGraph);
    const Op *loop[2];
    *g = (LayerGraph){.mem = mem, .m = m, .ranks = n};
    m->mesh = marking_mesh(m->mem);
    mark_all(g, m);
    passes_run(m, passes_part(mem, train_passes, "narrow", "shard", "cut,halve"), o);
    const char *wrong = layer_loops(m, loop);
    if (wrong) fail(EXIT_CONFIG, "module @%s: %s", m->name, wrong);
    m->mesh = (Mesh){.naxes = 1};
    m->mesh.axis[0].name = "tp";
    m->mesh.axis[0].size = n;
    g->micro = (double)MAX(o->micro_batches, 1);
    g->states = states_of(m);
    g->copies = 2 + g->states;
    g->in_flight = 1;
    place_on_machine(g, machine);
    for (int part = 0; part < 2; part++) {
        see_function(g, part, loop[part], loop[0]);
        for (int i = g->first_value[part]; i < g->nvalues; i++)
            g->value[i].sum = sum_over_ranks(g->func[part], g->value[i].v, o);
    }
    wipe_all(m);
    for (int i = 0; i < g->nops; i++) {
        layer_time_op(g, &g->op[i]);
        layer_options(g, &g->op[i]);
    }
    return g;
}
