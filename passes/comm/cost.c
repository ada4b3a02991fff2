/* cost.c - roughly how long ops and messages take, to decide which messages compute can
 * hide. The unit is the time of one multiplication and addition on a core that does 25
 * thousand million of them a second and sends 2 GB/s. Only matmuls count: ops that only
 * move memory compete with messages for it and count as next to nothing. */
#include "passes/comm/cost.h"

enum { PER_BYTE_SENT = 12, PER_MESSAGE = 500000 };
static const double most = 1e18;

static int64_t bytes_of(int n, Value *const *v) {
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += type_bytes(&v[i]->ty);
    return bytes;
}

static double dense(const Op *op) {
    Dims d;
    double n = 1;
    if (!op_dims(op, &d)) return 0;
    for (int id = 0; id < d.n; id++) {
        if (d.tied[id] < 0) n *= (double)d.size[id];
    }
    return n;
}

/* The cost of functions is computed callees first and looked up here. */
double cost_of(const Cost *w, const Op *op) {
    unsigned flags = optab[op->kind].flags;
    const Func *callee = op_callee(op);
    if (flags & (F_COMM | F_VIEW)) return 0;
    if (callee && callee->role != ROLE_KERNEL) {
        for (const Cost *at = w; at; at = at->next) {
            if (at->f == callee) return MIN(most, at->total * (double)call_of(op).times);
        }
    }
    return MIN(most, 1 + (flags & F_DENSE ? dense(op) : 0));
}

Cost *cost_add(Arena *mem, Cost *known, const Func *f) {
    Cost *w = NEW(mem, Cost);
    *w = (Cost){.f = f, .next = known};
    for (const Op *op = f->first; op; op = op->next) {
        w->total = MIN(most, w->total + cost_of(known, op));
    }
    return w;
}

double cost_to_send(int n, const Op *const *op) {
    double work = PER_MESSAGE;
    for (int i = 0; i < n; i++) {
        int64_t in = bytes_of(op[i]->nin, op[i]->in),
                out = bytes_of(op[i]->nout, op[i]->out);
        work += (double)MAX(in, out) * PER_BYTE_SENT;
    }
    return work;
}

bool fills_message(int64_t bytes) {
    return (double)bytes * PER_BYTE_SENT >= PER_MESSAGE;
}

double cost_between(const Cost *known, const Func *f, const Op *ready, const Op *use) {
    double work = 0;
    if (ready && use && ready->id >= use->id) return 0;
    for (const Op *at = ready ? ready->next : f->first; at != use; at = at->next) {
        work += cost_of(known, at);
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

static bool reads(const Op *op, const Op *of) {
    for (int i = 0; i < op->nin; i++) {
        if (op->in[i]->def == of) return true;
    }
    return false;
}

static bool follows(const Window *w, const Op *op, const Op *at) {
    bool yes = reads(at, op);
    for (int i = 0; i < w->nmoved; i++) yes |= reads(at, w->moved[i]);
    return yes;
}

bool window_moves(const Window *w, const Op *op, const Op *at) {
    bool yes = at == op;
    for (int i = 0; i < w->nmoved; i++) yes |= at == w->moved[i];
    return yes;
}

Window window_of(Arena *mem, const Cost *known, const Op *op) {
    Window w = {.ready = last_operand(op)};
    for (Op *at = op->next; at && !w.use; at = at->next) {
        if (!follows(&w, op, at)) continue;
        bool waits = (optab[at->kind].flags & (F_VIEW | F_MOVE)) && at->nout == at->nin;
        if (waits)
            PUSH(mem, w.moved, w.nmoved, w.moved_cap, at);
        else
            w.use = at;
    }
    w.work = cost_between(known, op->fn, w.ready, w.use);
    for (int i = 0; i < w.nmoved; i++) w.work -= cost_of(known, w.moved[i]);
    return w;
}
