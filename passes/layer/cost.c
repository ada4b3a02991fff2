/* cost.c - what a choice takes: ops at the seconds of a rank's part, and what brings values
 * from the placement they have to those that their readers need. */
#include "passes/layer/layer.h"
#include <math.h>

/* Machines may say how wide numbers in sums are. */
static double seconds_of(const LayerGraph *g, DType type, int op, double bytes) {
    bytes *= message_width(g->machine, op, type);
    return collective_seconds(g->machine, &g->shape, op, bytes);
}

/* The collective that pass collect takes over one axis, by the bytes that it sends. */
Move layer_move(const LayerGraph *g, const LayerValue *x, int from, int to) {
    const Type *ty = &x->v->ty;
    int sum = place_pending(ty);
    Move m = {.op = -1, .can = true};
    bool split = to != PLACE_WHOLE && to != sum;
    if (from == to) return m;
    if (to == sum) { /* one rank has it, the others have zeros */
        m.can = from == PLACE_WHOLE;
        return m;
    }
    if (split && ty->dim[to - 1] % g->ranks) return (Move){.op = -1};
    if (from == PLACE_WHOLE) return m; /* each rank takes its part */
    m.op = from != sum ? (split ? OP_all_to_all : OP_all_gather)
           : split     ? OP_reduce_scatter
                       : OP_all_reduce;
    DType type = message_sums(m.op) ? x->sum : x->v->ty.dt;
    double bytes = (double)type_count(ty) * dtype_bytes[type];
    if (from != sum) bytes /= g->ranks;
    m.bytes = (double)message_sent_bytes(m.op, (int64_t)bytes, g->ranks);
    m.seconds = seconds_of(g, type, m.op, m.bytes);
    return m;
}

double layer_weight_bytes(const LayerGraph *g, const LayerGroup *k, int seed) {
    double part = (double)type_bytes(&k->ty) / (seed == PLACE_WHOLE ? 1 : g->ranks);
    return k->param ? part * g->copies : 0;
}

/* Gradient, parameter and states are read, the last two written. */
double layer_update_seconds(const LayerGraph *g, const LayerGroup *k, int seed) {
    double part = (double)type_bytes(&k->ty) / (seed == PLACE_WHOLE ? 1 : g->ranks);
    double moved = part * (3 + 2 * g->states);
    if (!k->param || !(moved > 0)) return 0;
    return g->stretch * moved / machine_memory_rate(g->rank, moved) / g->micro;
}

/* ---- a choice ---- */

static LayerPart part_of(const LayerGraph *g, int value) {
    return value < g->first_value[PART_OF_BACKWARD] ? PART_OF_FORWARD : PART_OF_BACKWARD;
}

static void add_move(const LayerGraph *g, LayerCost *c, LayerPart part, int value,
                     int from, int to) {
    Move m = layer_move(g, &g->value[value], from, to);
    bool step = part == PART_OF_STEP;
    double seconds = step ? m.seconds / g->micro : m.seconds;
    if (!m.can) seconds = INFINITY;
    *(step ? &c->step : &c->messages) += seconds;
    if (m.op < 0) return;
    c->sent.count[part][m.op]++;
    c->sent.bytes[part][m.op] += m.bytes;
}

/* One for each placement that some reader needs. */
static void add_reads(const LayerGraph *g, const LayerChoice *c, LayerCost *k, int value,
                      const unsigned *needed) {
    int place = c->place[value];
    for (int q = 0; needed[value] >> q; q++)
        if (needed[value] >> q & 1) add_move(g, k, part_of(g, value), value, place, q);
}

static void add_op(const LayerGraph *g, const LayerChoice *c, int nth, LayerCost *k,
                   unsigned *needed) {
    const LayerOp *op = &g->op[nth];
    int letter = c->letter[nth];
    if (!op->noptions) return;
    k->compute += op->seconds[letter < 0 ? 0 : letter + 1];
    for (int i = 0; i < op->op->nin; i++)
        if (!g->value[op->in[i]].free)
            needed[op->in[i]] |= 1u << layer_need(op, letter, i, c->place[op->in[i]]);
    for (int i = 0; i < op->op->nout; i++) {
        int gives = layer_gives(op, letter, i), y = op->out[i];
        if (gives != c->place[y]) add_move(g, k, part_of(g, y), y, gives, c->place[y]);
    }
}

double layer_kept_bytes(const LayerGraph *g, int value, int place) {
    const Type *ty = &g->value[value].v->ty;
    bool split = place != PLACE_WHOLE && place != place_pending(ty);
    return g->in_flight * (double)type_bytes(ty) / (split ? g->ranks : 1);
}

static void add_return(const LayerGraph *g, const LayerChoice *c, const LayerReturn *r,
                       LayerCost *k, unsigned *needed) {
    const LayerValue *x = &g->value[r->value];
    if (r->end == END_CARRIED) needed[r->value] |= 1u << c->place[r->to];
    if (r->end == END_SAVED)
        k->kept_bytes += layer_kept_bytes(g, r->value, c->place[r->value]);
    if (r->end != END_GRADIENT) return;
    int to = x->group >= 0 ? c->seed[x->group] : PLACE_WHOLE;
    add_move(g, k, PART_OF_STEP, r->value, c->place[r->value], to);
}

LayerCost layer_cost(const LayerGraph *g, const LayerChoice *c) {
    LayerCost k = {0};
    Arena *mem = arena_new();
    unsigned *needed = NEW_ARRAY(mem, unsigned, (size_t)g->nvalues + 1);
    for (int i = 0; i < g->nops; i++) add_op(g, c, i, &k, needed);
    for (int i = 0; i < g->nrets; i++) add_return(g, c, &g->ret[i], &k, needed);
    for (int i = 0; i < g->nvalues; i++) add_reads(g, c, &k, i, needed);
    for (int i = 0; i < g->ngroups; i++) {
        k.step += layer_update_seconds(g, &g->group[i], c->seed[i]);
        k.weight_bytes += layer_weight_bytes(g, &g->group[i], c->seed[i]);
    }
    k.seconds = k.compute + k.messages + k.step;
    arena_free(mem);
    return k;
}
