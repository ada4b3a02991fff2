/* func_seconds.c - see func_seconds.h. A function is on one stage, and a collective that
 * begins in one ends there, so each has its seconds, whoever calls it; but for a run that begins while
 * its caller has messages in flight, which is gone through by itself. */
#include "passes/estimate/func_seconds.h"
#include "passes/estimate/touches.h"
#include <math.h>

bool op_in_model(const Op *op, const bool *model_funcs) {
    return model_funcs[op->fn->nth] || op_int(op, "model", 0) > 0;
}

bool *model_funcs(Arena *mem, Func **order) {
    int n = order_length(order);
    bool *in = NEW_ARRAY(mem, bool, (size_t)n + 1);
    for (int i = n - 1; i >= 0; i--) {
        const Func *f = order[i];
        in[i] |= f->task || func_is_gradient(f);
        for (const Op *op = f->first; op; op = op->next)
            if (op_calls_ops(op) && op_in_model(op, in)) in[op_func(op)->nth] = true;
    }
    return in;
}

/* Room for the ops of a function: no more than it needs, as a search keeps many of them. */
static OpSizes sizes_for(Arena *mem, const Func *f) {
    OpSizes s = {.cap = f->nops};
    s.size = arena_room(mem, array_bytes((size_t)s.cap + 1, sizeof *s.size));
    return s;
}

FuncSizes func_sizes(Arena *mem, const Module *m, const SizeScale *scale) {
    Func **order = module_order(mem, m);
    FuncSizes s = {0};
    Arena *own = arena_new();
    s.n = order_length(order);
    s.func = NEW_ARRAY(mem, OpSizes, (size_t)s.n + 1);
    s.in_model = model_funcs(mem, order);
    s.row = NEW_ARRAY(mem, int *, (size_t)s.n + 1);
    for (int i = 0; i < s.n; i++) {
        if (order[i]->role == ROLE_KERNEL) continue;
        func_number(order[i]);
        s.row[i] = NEW_ARRAY(mem, int, (size_t)order[i]->nops + 1);
        s.func[i] = sizes_for(mem, order[i]);
        for (const Op *op = order[i]->first; op; op = op->next)
            op_sizes_add(mem, &s.func[i], op, op_in_model(op, s.in_model), scale,
                         s.row[i]);
    }
    touches_note(own, order, scale, &s);
    arena_free(own);
    return s;
}

/* ---- time ---- */

static FuncTime run_seconds(const Timing *k, int func, double in_flight);

void func_time_drain(FuncTime *t) {
    double idle = t->issue - t->queued;
    if (idle > 0 && !(t->all > 0)) {
        t->all = t->kind[WORK_KERNELS] = idle;
    } else if (idle > 0) {
        double stretch = 1 + idle / t->all;
        t->all *= stretch;
        for (int i = 0; i < WORK_KINDS; i++) t->kind[i] *= stretch;
    }
    t->issue = t->queued = 0;
}

static void pass_time(OpClock *c, WorkKind kind, double seconds) {
    c->t.all += seconds;
    c->t.queued += seconds;
    c->t.kind[kind] += seconds;
}

double size_collective_seconds(const Timing *k, const OpSize *s) {
    double seconds =
        collective_seconds(k->m, &k->shape[s->axes], s->op, op_size_sent_bytes(k->m, s));
    return (1 - k->free) * seconds;
}

void flight_idle(Flight *f, double now, double seconds) {
    f->beside = flight_beside(f, now);
    f->begin = MAX(f->begin, now + seconds);
}

double flight_beside(const Flight *f, double now) {
    return f->beside + MAX(0, MIN(now, f->end) - f->begin);
}

void flight_end_beside(Flight *f, double now) {
    f->beside = flight_beside(f, now);
    f->begin = MAX(f->begin, f->end);
}

static void note_wait(OpClock *c, double at) {
    c->t.first_wait = MIN(c->t.first_wait, at);
}

/* Messages are waited for; what is in flight goes on. */
static void wait_for_messages(OpClock *c, double seconds) {
    for (int i = 0; i < c->nlate; i++) flight_idle(&c->late[i].flight, c->t.all, seconds);
    pass_time(c, WORK_MESSAGES, seconds);
}

static void add_collective(OpClock *c, const Timing *k, const OpSize *s, int row) {
    double seconds = size_collective_seconds(k, s);
    Flight f = {.begin = MAX(c->t.all, c->sending)};
    c->sending = f.end = f.begin + seconds;
    if (s->late) {
        PUSH(k->mem, c->late, c->nlate, c->late_cap, ((Late){row, f}));
        return;
    }
    note_wait(c, c->t.all);
    wait_for_messages(c, c->sending - c->t.all);
}

double clock_in_flight(const OpClock *c) {
    return MAX(0, c->sending - c->t.all);
}

void clock_wait_in_flight(OpClock *c) {
    wait_for_messages(c, clock_in_flight(c));
}

/* What of it cannot be hidden costs compute its time. */
static void add_arrival(OpClock *c, const Timing *k, const OpSize *s) {
    int i = 0;
    while (i < c->nlate && c->late[i].row != s->begun) i++;
    if (i == c->nlate) return;
    Flight f = c->late[i].flight;
    c->late[i] = c->late[--c->nlate];
    double beside = flight_beside(&f, c->t.all);
    note_wait(c, c->t.all);
    wait_for_messages(c, MAX(0, f.end - c->t.all));
    pass_time(c, WORK_MESSAGES, (1 - k->m->hidden) * beside);
    c->t.hidden += k->m->hidden * beside;
}

static void add_runs(FuncTime *t, const FuncTime *run, double times) {
    t->all += times * run->all;
    t->hidden += times * run->hidden;
    for (int i = 0; i < WORK_KINDS; i++) t->kind[i] += times * run->kind[i];
}

/* The first run has what is in flight before its own messages; a function has nothing in flight
 * when it returns. */
static void add_call(OpClock *c, const Timing *k, const OpSize *s) {
    const FuncTime *callee = &k->func[s->callee];
    double times = s->times, in_flight = clock_in_flight(c);
    if (in_flight > 0 && times >= 1) {
        FuncTime first = run_seconds(k, s->callee, in_flight);
        double wait = c->t.all + first.first_wait;
        for (int i = 0; i < c->nlate && wait < INFINITY; i++)
            flight_end_beside(&c->late[i].flight, wait);
        note_wait(c, wait);
        add_runs(&c->t, &first, 1);
        times--;
    } else if (times > 0) {
        note_wait(c, c->t.all + callee->first_wait);
    }
    add_runs(&c->t, callee, times);
}

void clock_add(OpClock *c, const Timing *k, const OpSizes *sizes, int row) {
    const OpSize *s = &sizes->size[row];
    if (s->kind != SIZE_CALL) c->t.issue += k->m->issue_seconds;
    switch (s->kind) {
    case SIZE_CALL:
        add_call(c, k, s);
        break;
    case SIZE_COLLECTIVE:
        add_collective(c, k, s, row);
        break;
    case SIZE_ARRIVE:
        add_arrival(c, k, s);
        break;
    default:
        pass_time(c, s->work, k->stretch * op_size_seconds(k->m, k->rank, s));
    }
}

/* One run, begun when what its callers have begun is in flight for so long. Calls are no deeper than
 * MAX_CALL_DEPTH. */
static FuncTime run_seconds(const Timing *k, int func, double in_flight) {
    const OpSizes *s = &k->sizes->func[func];
    OpClock c = {.sending = in_flight, .t.first_wait = INFINITY};
    for (int i = 0; i < s->n; i++) clock_add(&c, k, s, i);
    func_time_drain(&c.t);
    return c.t;
}

void clock_wait(OpClock *c, double seconds) {
    c->sending -= seconds;
    for (int i = 0; i < c->nlate; i++) {
        Flight *f = &c->late[i].flight;
        flight_idle(f, c->t.all, seconds);
        f->begin -= seconds;
        f->end -= seconds;
    }
}

FuncTime *func_seconds(Arena *mem, const FuncSizes *f, Timing *t) {
    FuncTime *of = NEW_ARRAY(mem, FuncTime, (size_t)f->n + 1);
    t->func = of;
    t->sizes = f;
    for (int i = 0; i < f->n; i++) of[i] = run_seconds(t, i, 0);
    return of;
}
