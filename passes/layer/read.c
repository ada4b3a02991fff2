/* read.c - the choice that a program was made with, and what the planned one sends. */
#include "passes/layer/layer.h"

static int letter_of(const Op *op, Axes axis) {
    Over o = over_read(op);
    for (int id = 0; o.has_dims && id < o.d.n; id++)
        if (o.split[id] & axis && over_leader(&o.d, id) == id) return id;
    return o.passes & axis ? OVER_PASS : OVER_WHOLE;
}

static bool read_function(const LayerGraph *g, int part, const Func *f, Axes axis,
                          LayerChoice *c) {
    const Op *theirs = f->first, *ours = g->func[part]->first;
    int nth = g->first_op[part];
    if (f->narg != g->func[part]->narg) return false;
    for (int i = 0; i < f->narg; i++) {
        const Value *v = g->func[part]->arg[i];
        c->place[g->first_value[part] + v->id] = layer_place(&f->arg[i]->ty, axis);
    }
    for (; theirs && ours; theirs = theirs->next, ours = ours->next, nth++) {
        if (theirs->kind != ours->kind || theirs->nout != ours->nout) return false;
        c->letter[nth] = letter_of(theirs, axis);
        for (int i = 0; i < theirs->nout; i++)
            c->place[g->op[nth].out[i]] = layer_place(&theirs->out[i]->ty, axis);
    }
    return !theirs && !ours;
}

/* Groups of values lie as their first value; parameters as the arguments are stored. */
static void read_seeds(const LayerGraph *g, LayerChoice *c) {
    for (int i = g->nvalues; i-- > 0;) {
        const LayerValue *x = &g->value[i];
        int place = c->place[i];
        if (x->group < 0 || x->open || place == place_pending(&x->v->ty)) continue;
        if (!g->group[x->group].param || x->source == FROM_GROUP)
            c->seed[x->group] = place;
    }
}

LayerChoice *layer_read(Arena *mem, const LayerGraph *g, const Module *sharded,
                        const char **why) {
    const Op *loop[2];
    LayerChoice *c = layer_choice_new(mem, g);
    Axes axis = 0;
    *why = layer_loops(sharded, loop);
    if (*why) return NULL;
    for (int a = 0; a < sharded->mesh.naxes; a++)
        if (sharded->mesh.axis[a].size > 1) axis |= (Axes)(1u << a);
    for (int part = 0; part < 2; part++)
        if (!read_function(g, part, op_func(loop[part]), axis, c)) {
            *why = "its layers have other ops";
            return NULL;
        }
    read_seeds(g, c);
    return c;
}

LayerMessages layer_messages(const Module *local) {
    LayerMessages m = {0};
    const Op *loop[2];
    if (layer_loops(local, loop)) return m;
    for (int part = 0; part < 2; part++)
        for (const Op *op = op_func(loop[part])->first; op; op = op->next) {
            if (!op_has(op, F_COMM) || !op_attr(op, "axis")) continue;
            int n = mesh_group_size(&local->mesh, op_axes(op) & (Axes)~AXES_REVERSED);
            m.count[part][op->kind] += op->nin;
            for (int i = 0; i < op->nin; i++)
                m.bytes[part][op->kind] +=
                    (double)message_sent_bytes(op->kind, type_bytes(&op->in[i]->ty), n);
        }
    return m;
}
