/* cost.c - see cost.h. */
#include "passes/comm/cost.h"
#include <math.h>

Cost cost_new(Arena *mem, const Module *m, const PassOptions *o) {
    const Mesh *mesh = &m->mesh;
    int stages = pass_stages(o);
    Cost c = {.mem = mem, .m = machine_of_passes(o)};
    c.shape = mesh_shapes(mem, c.m, mesh, stages, o->threads);
    c.rank = machine_rank_of(c.m, mesh_ranks(mesh) * stages, o->threads);
    return c;
}

/* The cost of functions is computed callees first and looked up here. */
static const FuncCost *cost_of_callee(const Cost *c, const Op *op) {
    const Func *callee = op_callee(op);
    if (!callee || callee->role == ROLE_KERNEL) return NULL;
    const FuncCost *at = c->func;
    while (at && at->f != callee) at = at->next;
    return at;
}

double cost_of(const Cost *c, const Op *op) {
    unsigned flags = optab[op->kind].flags;
    if (flags & (F_COMM | F_VIEW)) return 0;
    const FuncCost *callee = cost_of_callee(c, op);
    if (callee) return callee->seconds * (double)call_of(op).times;
    if (!flag_products(flags)) return next_to_nothing_seconds;
    OpSize size = op_size(c->mem, op, true, NULL);
    return op_size_seconds(c->m, c->rank, &size);
}

double cost_before_wait(const Cost *c, const Op *op) {
    const FuncCost *callee = cost_of_callee(c, op);
    if (callee) return call_of(op).times ? callee->before_wait : INFINITY;
    bool waits = op_has(op, F_COMM) ? !op_int(op, "late", 0)
                                    : op_has(op, F_EFFECT) || op->kind == OP_arrive;
    return waits ? 0 : INFINITY;
}

void cost_add(Cost *c, const Func *f) {
    FuncCost *of = NEW(c->mem, FuncCost);
    *of = (FuncCost){.f = f, .next = c->func, .before_wait = INFINITY};
    for (const Op *op = f->first; op; op = op->next) {
        of->before_wait = MIN(of->before_wait, of->seconds + cost_before_wait(c, op));
        of->seconds += cost_of(c, op);
    }
    c->func = of;
}

double cost_to_send(const Cost *c, int n, const Op *const *op) {
    double bytes = 0;
    OpSize size = {0};
    for (int i = 0; i < n; i++) {
        size = op_size(c->mem, op[i], true, NULL);
        bytes += op_size_sent_bytes(c->m, &size);
    }
    return n ? collective_seconds(c->m, &c->shape[size.axes], size.op, bytes) : 0;
}

double cost_start(const Cost *c, const Op *op) {
    OpSize size = op_size(c->mem, op, true, NULL);
    return c->m->link[c->shape[size.axes].level].start_seconds;
}

/* Seconds of the n-th part of a collective, and of its bytes alone. Where a message is sent another
 * way from some size on, only one of half as many bytes and twice as many has the difference in
 * it. */
static double part_seconds(const Cost *c, const Op *op, int64_t n, double *of_bytes) {
    OpSize size = op_size(c->mem, op, true, NULL);
    const GroupShape *g = &c->shape[size.axes];
    double bytes = op_size_sent_bytes(c->m, &size) / (double)n;
    double all = collective_seconds(c->m, g, size.op, bytes);
    double half = all - collective_seconds(c->m, g, size.op, bytes / 2);
    double more = collective_seconds(c->m, g, size.op, bytes * 2) - all;
    *of_bytes = MIN(2 * half, more);
    return all;
}

bool cost_fills_message(const Cost *c, const Op *op, int64_t runs) {
    double bytes, all = part_seconds(c, op, runs, &bytes);
    return bytes >= all - bytes;
}

bool cost_pays_apart(const Cost *c, const Op *op, int64_t runs, double work) {
    double bytes, part = part_seconds(c, op, runs, &bytes), start = part - bytes;
    double exposed = part - c->m->hidden * MIN(part, work);
    return (double)runs * exposed + start <= part_seconds(c, op, 1, &bytes);
}

double cost_between(const Cost *c, const Func *f, const Op *ready, const Op *use) {
    double work = 0;
    if (ready && use && ready->id >= use->id) return 0;
    for (const Op *at = ready ? ready->next : f->first; at != use; at = at->next) {
        work += cost_of(c, at);
    }
    return work;
}

/* ---- windows ---- */

static Op *last_operand(const Op *op) {
    Op *last = NULL;
    for (int i = 0; i < op->nin; i++) {
        Op *def = op->in[i]->def;
        if (def && (!last || def->id > last->id)) last = def;
    }
    return last;
}

static bool follows(const Window *w, const Op *op, const Op *at) {
    bool yes = op_reads(at, op);
    for (int i = 0; i < w->nmoved; i++) yes |= op_reads(at, w->moved[i]);
    return yes;
}

bool window_moves(const Window *w, const Op *op, const Op *at) {
    bool yes = at == op;
    for (int i = 0; i < w->nmoved; i++) yes |= at == w->moved[i];
    return yes;
}

Window window_of(const Cost *c, const Op *op) {
    Window w = {.ready = last_operand(op)};
    for (Op *at = op->next; at && !w.use; at = at->next) {
        if (!follows(&w, op, at)) continue;
        bool waits = (optab[at->kind].flags & (F_VIEW | F_MOVE)) && at->nout == at->nin;
        if (waits)
            PUSH(c->mem, w.moved, w.nmoved, w.moved_cap, at);
        else
            w.use = at;
    }
    w.work = cost_between(c, op->fn, w.ready, w.use);
    for (int i = 0; i < w.nmoved; i++) w.work -= cost_of(c, w.moved[i]);
    return w;
}
