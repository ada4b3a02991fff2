/* overlap.c - starts collectives as soon as their operands are there and waits for them
 * when their results are needed. Level fused; only where there is work in between.
 *     %w = dot %h, %d; %x = ...; %s = reduce_scatter %w; return %x, %s
 *     -> %w = dot %h, %d; %s = reduce_scatter %w {late=1}; %x = ...;
 *        %t = arrive %s, %w; return %x, %t
 * Collectives run in the order of the text, which is the same on every rank. None is in
 * flight when a function returns. The results are those of the program without overlap,
 * to the bit. */
#include "passes/comm/cost.h"
#include "passes/passes.h"
#include <math.h>

typedef struct Overlap {
    Arena *mem;
    Func *f;
    const Cost *known;
    bool always; /* whether it pays or not */
    bool moved;  /* since ops were numbered */
    int stages;
} Overlap;

static double seconds_of(const Overlap *o, const Op *op) {
    return cost_to_send(o->known, 1, &op);
}

/* Has a collective too little work to be hidden behind? With less than a quarter of what it takes
 * most of it is waited for wherever it starts. */
static bool is_urgent(const Overlap *o, const Op *op, const Window *w) {
    return w->work <= (o->always ? 0 : seconds_of(o, op) / 4);
}

/* Seconds of an op in the window of another before it waits for messages; INFINITY: it does not.
 * They go one after the other, so one that starts before it delays it. */
static double before_wait(const Overlap *o, const Op *at) {
    if (op_has(at, F_COMM) && !op_int(at, "late", 0)) {
        Window w = window_of(o->known, at);
        return is_urgent(o, at, &w) ? 0 : INFINITY;
    }
    return at->kind == OP_arrive ? INFINITY : cost_before_wait(o->known, at);
}

/* The first op after which least of it is exposed (NULL: the start of the function): that is what
 * the work up to the next op that waits for messages, or else to its use, does not hide. Behind a
 * message of another stage each stage hands on to the next what it has waited. */
static Op *least_exposed(const Overlap *o, const Op *op, const Window *w) {
    double seconds = seconds_of(o, op), least = INFINITY, work = 0;
    int waiting = 1;
    Op *best = w->ready, *from = w->ready;
    for (Op *at = from ? from->next : o->f->first;; at = at->next) {
        bool end = !at || at == w->use;
        if (!end && window_moves(w, op, at)) continue;
        double before = end ? 0 : before_wait(o, at);
        if (before < INFINITY) {
            double exposed = waiting * MAX(0, seconds - work - before);
            if (exposed < least) least = exposed, best = from;
            from = at;
            work = 0;
            if (!end && op_has(at, F_EFFECT)) waiting = o->stages;
        } else {
            work += cost_of(o->known, at);
        }
        if (end) return best;
    }
}

/* The op after which it starts (NULL: the start of the function). What gives more memory
 * than it takes starts as early as it can; else as late as hides it: before twice as much work as
 * it takes, since both are estimates, or as much right behind one that waits for messages. */
static Op *start_after(const Overlap *o, const Op *op, const Window *w) {
    int64_t in = 0, out = 0;
    double enough = 2 * seconds_of(o, op), work = 0;
    for (int i = 0; i < op->nin; i++) in += type_bytes(&op->in[i]->ty);
    for (int i = 0; i < op->nout; i++) out += type_bytes(&op->out[i]->ty);
    if (out <= in) return least_exposed(o, op, w);
    for (Op *at = w->use ? w->use->prev : o->f->last; at != w->ready; at = at->prev) {
        if (window_moves(w, op, at)) continue;
        double before = before_wait(o, at);
        bool waits = before < INFINITY;
        if (waits && 2 * work >= enough) return at;
        work = waits ? before : work + cost_of(o->known, at);
        if (work >= enough) return at->prev;
    }
    return least_exposed(o, op, w);
}

static void number(Overlap *o) {
    if (o->moved) func_number(o->f);
    o->moved = false;
}

static void move_behind(Overlap *o, Op *op, Op *after) {
    if (op == after || op->prev == after) return;
    o->moved = true;
    Builder b = after ? build_behind(after) : build_at_start(o->f);
    op_move(&b, op);
}

static void add_arrival(Overlap *o, Op *op, const Window *w) {
    int n = op->nin;
    o->moved = true;
    Builder b = w->use ? build_before(w->use) : build_at_end(o->f);
    b.line = op->line;
    Value **in = NEW_ARRAY(o->f->mod->mem, Value *, (size_t)(op->nout + n));
    Type *out = NEW_ARRAY(o->mem, Type, (size_t)op->nout);
    memcpy(in, op->out, (size_t)op->nout * sizeof *in);
    memcpy(in + op->nout, op->in, (size_t)n * sizeof *in);
    for (int i = 0; i < op->nout; i++) out[i] = op->out[i]->ty;
    Op *at = build_list(&b, OP_arrive, NULL, op->nout + n, in, out, op->nout);
    for (int i = 0; i < op->nout; i++) {
        at->out[i]->name = op->out[i]->name;
        func_replace(o->f, op->out[i], at->out[i]);
        at->in[i] = op->out[i];
    }
    Op *last = at;
    for (int i = 0; i < w->nmoved; i++, last = last->next) {
        move_behind(o, w->moved[i], last);
    }
}

/* Not before a message that comes before it: another stage may wait for that one. */
static void hoist(Overlap *o, Op *op) {
    number(o);
    Op *ready = window_of(o->known, op).ready, *at = op->prev;
    while (at && at != ready && !op_has(at, F_EFFECT)) at = at->prev;
    if (cost_between(o->known, o->f, at, op) > 0) move_behind(o, op, at);
}

/* What makes the operands comes up to where it can be made: gradients of weights before
 * those of activations, say. */
static void hoist_operands(Overlap *o, const Op *op) {
    for (int i = 0; i < op->nin; i++) {
        Op *made = op->in[i]->def, *views[8];
        int n = 0;
        while (made && (optab[made->kind].flags & F_VIEW) && made->nin == 1 &&
               n < ARRAY_LEN(views)) {
            views[n++] = made;
            made = made->in[0]->def;
        }
        if (!made || (optab[made->kind].flags & (F_COMM | F_VIEW))) continue;
        hoist(o, made);
        while (n > 0) hoist(o, views[--n]);
    }
}

static void visit(Overlap *o, Op *op) {
    number(o);
    Window w = window_of(o->known, op);
    if (w.work < seconds_of(o, op)) {
        hoist_operands(o, op);
        number(o);
        w = window_of(o->known, op);
    }
    if (is_urgent(o, op, &w)) return;
    move_behind(o, op, start_after(o, op, &w));
    add_arrival(o, op, &w);
    op_set_int(op, "late", 1);
}

static void overlap_func(Arena *mem, Func *f, const Cost *known, bool always,
                         int stages) {
    Overlap o = {.mem = mem, .f = f, .known = known, .always = always, .stages = stages};
    Op **list = NEW_ARRAY(mem, Op *, (size_t)f->nops + 1);
    int n = 0;
    for (Op *op = f->first; op; op = op->next) {
        bool late = op_int(op, "late", 0);
        if ((optab[op->kind].flags & F_COMM) && !late) list[n++] = op;
    }
    for (int i = 0; i < n; i++) visit(&o, list[i]);
}

void pass_overlap(Module *m, const PassOptions *o) {
    if (!o->overlap) return;
    Arena *mem = arena_new();
    Func **order = module_order(mem, m);
    Cost known = cost_new(mem, m, o);
    for (int i = 0; order[i]; i++) {
        if (order[i]->role == ROLE_KERNEL) continue;
        func_number(order[i]);
        overlap_func(mem, order[i], &known, o->overlap > 1, pass_stages(o));
        cost_add(&known, order[i]);
    }
    arena_free(mem);
}
