/* beside.c - the parts of a micro-batch, done beside each other. Level local.
 *     %a = call %x, %w {fn=@f; beside=2}; %b = call %y, %w {fn=@f; beside=2}
 *     -> %a, %b = call %x, %y, %w {fn=@f.x2}
 * where @f.x2 has the ops of @f for each part. Operands that are the same for all parts
 * (weights) are one argument, and what is made of them alone (their gathers) is made once.
 * Calls in @f, loops over layers, become one call in the same way. The parts take turns
 * such that one computes while what another has sent is on its way: ops are put in order as
 * a rank with one core and one wire would do them, by the costs of cost.h. Of the parts that
 * wait for nothing the one goes on that is nearest to its next collective, so that the wire
 * has work. Pass overlap then begins collectives early and waits late. */
#include "passes/comm/cost.h"
#include "passes/passes.h"

typedef struct Joined { /* a function for several parts */
    const Func *f;
    int parts, carry;
    const bool *same; /* by argument of f: it is one for all parts */
    Func *to;
    bool *one; /* by result of f: the same */
    struct Joined *next;
} Joined;

typedef struct Beside {
    Module *m;
    Arena *mem;
    Cost known;
    Joined *joined;
} Beside;

typedef struct Line { /* a part on its way through a function */
    Value **map;      /* by value id of the function: the value of this part */
    double *ready;    /* by value id: when it is there */
    int at;           /* the next op */
} Line;

typedef struct Turns {
    Beside *b;
    const Joined *of;
    Builder at;
    Op **op;         /* of the function, in its order */
    bool *same;      /* by value id: it is one for all parts */
    double *to_send; /* by op id: work from there up to the next collective */
    Line *line;
    double now, sent; /* when the core, the wire will be free */
} Turns;

static const double never = 1e30;

static const Joined *join(Beside *b, const Call *c, const bool *same, int parts);

/* ---- arguments and results ---- */

static void add_arguments(Turns *t) {
    const Joined *j = t->of;
    for (int i = 0; i < j->f->narg; i++) {
        const Value *arg = j->f->arg[i];
        Value *made = NULL;
        t->same[arg->id] = j->same[i];
        for (int p = 0; p < j->parts; p++) {
            if (!made || !j->same[i]) {
                made = func_arg_given(j->to, arg);
                j->to->arg_attr[made->nth] = j->f->arg_attr[i];
            }
            t->line[p].map[arg->id] = made;
        }
    }
}

/* A result that overwrites an argument of all parts would do so for each of them. */
static void add_results(Turns *t) {
    const Joined *j = t->of;
    for (int i = 0; i < j->f->nret; i++) {
        const Value *v = j->f->ret[i];
        int a = j->f->alias[i];
        j->one[i] = i >= j->carry && t->same[v->id];
        for (int p = 0; p < (j->one[i] ? 1 : j->parts); p++) {
            const Value *over =
                a >= 0 && !j->same[a] ? t->line[p].map[j->f->arg[a]->id] : NULL;
            func_ret(j->to, t->line[p].map[v->id], over ? over->nth : -1);
        }
    }
}

/* ---- a call for all parts ---- */

/* The operands of all parts; in[p] has those of part p. */
static Value **operands(Arena *mem, const Joined *j, Value *const *const *in, int *n) {
    Value **all = NEW_ARRAY(mem, Value *, (size_t)(j->f->narg * j->parts) + 1);
    *n = 0;
    for (int i = 0; i < j->f->narg; i++)
        for (int p = 0; p < (j->same[i] ? 1 : j->parts); p++) all[(*n)++] = in[p][i];
    return all;
}

/* How many of the operands [first, end) all parts together have. */
static int count_operands(const Joined *j, int first, int end) {
    int n = 0;
    for (int i = first; i < end; i++) n += j->same[i] ? 1 : j->parts;
    return n;
}

/* Calls j for parts whose operands are in[part]; out[part][i] is set to result i. */
static Op *call_joined(Builder *at, const Call *c, const Joined *j,
                       Value *const *const *in, Value ***out) {
    int n, nth = 0;
    Value **all = operands(at->mem, j, in, &n);
    Call joined = *c;
    joined.f = j->to;
    joined.carry *= j->parts;
    joined.each = count_operands(j, c->carry, c->carry + c->each);
    Op *op = build_runs(at, &joined, n, all);
    for (int i = 0; i < c->op->nout; i++)
        for (int p = 0; p < j->parts; p++) {
            Value *v = op->out[nth + (j->one[i] ? 0 : p)];
            v->name = c->op->out[i]->name;
            v->grad_of = c->op->out[i]->grad_of;
            out[p][i] = v;
            if (p == j->parts - 1) nth += j->one[i] ? 1 : j->parts;
        }
    return op;
}

/* By operand of a call in the function: is it the same for all parts? */
static bool *same_operands(const Turns *t, const Op *op) {
    bool *same = NEW_ARRAY(t->b->mem, bool, (size_t)op->nin + 1);
    for (int i = call_of(op).carry; i < op->nin; i++) same[i] = t->same[op->in[i]->id];
    return same;
}

static void call_for_all(Turns *t, const Op *op) {
    const Call c = call_of(op);
    int parts = t->of->parts;
    const Joined *j = join(t->b, &c, same_operands(t, op), parts);
    Value ***in = NEW_ARRAY(t->b->mem, Value **, (size_t)parts);
    Value ***out = NEW_ARRAY(t->b->mem, Value **, (size_t)parts);
    for (int p = 0; p < parts; p++) {
        in[p] = NEW_ARRAY(t->b->mem, Value *, (size_t)op->nin + 1);
        out[p] = NEW_ARRAY(t->b->mem, Value *, (size_t)op->nout + 1);
        for (int i = 0; i < op->nin; i++) in[p][i] = t->line[p].map[op->in[i]->id];
    }
    call_joined(&t->at, &c, j, (Value *const *const *)in, out);
    t->now = MAX(t->now, t->sent) + parts * cost_of(&t->b->known, op);
    for (int p = 0; p < parts; p++)
        for (int i = 0; i < op->nout; i++) {
            int id = op->out[i]->id;
            t->line[p].map[id] = out[p][i];
            t->line[p].ready[id] = t->now;
            t->same[id] = j->one[i];
        }
}

/* ---- turns ---- */

/* Is the op the same for all parts? */
static bool is_same(const Turns *t, const Op *op) {
    for (int i = 0; i < op->nin; i++)
        if (!t->same[op->in[i]->id]) return false;
    return !op_has(op, F_EFFECT);
}

static void do_op(Turns *t, int part, const Op *op) {
    Line *l = &t->line[part];
    bool same = is_same(t, op);
    if (same && op->nout && l->map[op->out[0]->id]) return; /* an earlier part has */
    double begin = 0;
    for (int i = 0; i < op->nin; i++) begin = MAX(begin, l->ready[op->in[i]->id]);
    bool sends = op_has(op, F_COMM);
    double *end = sends ? &t->sent : &t->now;
    begin = MAX(begin, sends ? MAX(t->now, t->sent) : t->now);
    *end =
        begin + (sends ? cost_to_send(&t->b->known, 1, &op) : cost_of(&t->b->known, op));
    Op *made = op_clone(&t->at, op, l->map);
    for (int i = 0; i < op->nout; i++) {
        int id = op->out[i]->id;
        t->same[id] = same;
        for (int p = 0; p < t->of->parts; p++) {
            if (!same && p != part) continue;
            t->line[p].map[id] = made->out[i];
            t->line[p].ready[id] = *end;
        }
    }
}

static double waiting(const Turns *t, const Line *l) {
    const Op *op = t->op[l->at];
    double ready = t->now;
    for (int i = 0; i < op->nin; i++) ready = MAX(ready, l->ready[op->in[i]->id]);
    return ready - t->now;
}

/* What follows a matmul stays behind it, so that it can become a part of it or one kernel;
 * and a collective begins at once. */
static bool goes_on(const Turns *t, int part) {
    const Op *op = t->op[t->line[part].at];
    return op && !op_calls_ops(op) && !op_has(op, F_DENSE) &&
           waiting(t, &t->line[part]) <= 0;
}

/* The part that goes on after `last`; -1: all wait for each other, or are at the end. */
static int whose_turn(const Turns *t, int last) {
    int best = -1;
    if (last >= 0 && goes_on(t, last)) return last;
    double wait = 0, far = 0;
    for (int p = 0; p < t->of->parts; p++) {
        const Op *op = t->op[t->line[p].at];
        if (!op || (op_calls_ops(op) && !is_same(t, op))) continue; /* waits for all */
        double w = waiting(t, &t->line[p]), d = t->to_send[op->id];
        if (best >= 0 && (w > wait || (w == wait && d >= far))) continue;
        best = p;
        wait = w;
        far = d;
    }
    return best;
}

static void take_turns(Turns *t) {
    for (int p = -1;;) {
        p = whose_turn(t, p);
        const Op *op = t->op[t->line[MAX(p, 0)].at];
        if (p >= 0) {
            do_op(t, p, op);
            t->line[p].at++;
            continue;
        }
        if (!op) return;
        call_for_all(t, op);
        for (int i = 0; i < t->of->parts; i++) t->line[i].at++;
    }
}

static void measure(Turns *t) {
    double work = never;
    for (const Op *op = t->of->f->last; op; op = op->prev) {
        bool all = op_calls_ops(op);
        work = op_has(op, F_COMM) ? 0
               : all              ? never
                                  : MIN(never, work + cost_of(&t->b->known, op));
        t->to_send[op->id] = work;
    }
}

static Turns turns_new(Beside *b, const Joined *j) {
    Turns t = {.b = b, .of = j, .at = build_at_end(j->to)};
    Func *f = (Func *)(uintptr_t)j->f;
    func_number(f);
    size_t values = (size_t)f->nvalues + 1, ops = (size_t)f->nops + 1;
    t.op = NEW_ARRAY(b->mem, Op *, ops);
    t.same = NEW_ARRAY(b->mem, bool, values);
    t.to_send = NEW_ARRAY(b->mem, double, ops);
    t.line = NEW_ARRAY(b->mem, Line, (size_t)j->parts);
    for (int p = 0; p < j->parts; p++) {
        t.line[p].map = NEW_ARRAY(b->mem, Value *, values);
        t.line[p].ready = NEW_ARRAY(b->mem, double, values);
    }
    for (Op *op = f->first; op; op = op->next) t.op[op->id] = op;
    return t;
}

static Joined *find(const Beside *b, const Call *c, const bool *same, int parts) {
    for (Joined *j = b->joined; j; j = j->next)
        if (j->f == c->f && j->parts == parts && j->carry == c->carry &&
            !memcmp(j->same, same, (size_t)c->f->narg * sizeof *same))
            return j;
    return NULL;
}

static const Joined *join(Beside *b, const Call *c, const bool *same, int parts) {
    Joined *j = find(b, c, same, parts);
    if (j) return j;
    j = NEW(b->mem, Joined);
    *j = (Joined){.f = c->f, .parts = parts, .carry = c->carry, .same = same};
    j->one = NEW_ARRAY(b->mem, bool, (size_t)c->f->nret + 1);
    const char *name = arena_printf(b->m->mem, "%s.x%d", c->f->name, parts);
    j->to = func_new_unique(b->m, name, ROLE_FUNC);
    j->to->made_of = c->f->made_of;
    j->to->part = c->f->part;
    j->to->task = c->f->task;
    j->to->chunk = c->f->chunk;
    Turns t = turns_new(b, j);
    add_arguments(&t);
    measure(&t);
    take_turns(&t);
    add_results(&t);
    j->next = b->joined;
    return b->joined = j;
}

/* ---- the calls that say so ---- */

/* Does an op between the first and the last call read what one of them makes, or do they
 * read each other's results? */
static bool reads_between(Op *const *call, int n) {
    for (const Op *op = call[0]->next; op != call[n - 1]->next; op = op->next)
        for (int i = 0; i < op->nin; i++)
            for (int k = 0; k < n; k++)
                if (op->in[i]->def == call[k]) return true;
    return false;
}

static bool same_for_all(Op *const *call, int n, int operand) {
    bool same = true;
    for (int k = 1; k < n; k++) same &= call[k]->in[operand] == call[0]->in[operand];
    return same;
}

/* One call in place of n. */
static void join_calls(Beside *b, Op *const *call, int n) {
    const Call c = call_of(call[0]);
    Func *f = call[0]->fn;
    Builder at = build_before(call[n - 1]);
    Value ***in = NEW_ARRAY(b->mem, Value **, (size_t)n);
    Value ***out = NEW_ARRAY(b->mem, Value **, (size_t)n);
    bool *same = NEW_ARRAY(b->mem, bool, (size_t)c.op->nin + 1);
    for (int i = c.carry; i < c.op->nin; i++) same[i] = same_for_all(call, n, i);
    for (int k = 0; k < n; k++) {
        in[k] = call[k]->in;
        out[k] = NEW_ARRAY(b->mem, Value *, (size_t)c.op->nout + 1);
    }
    call_joined(&at, &c, join(b, &c, same, n), (Value *const *const *)in, out);
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < c.op->nout; i++) func_replace(f, call[k]->out[i], out[k][i]);
        op_remove(call[k]);
    }
}

static void join_in(Beside *b, Func *f) {
    Op *call[MAX_BESIDE];
    int n = 0;
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        int64_t parts = op_int(op, "beside", 0);
        if (parts < 2 || parts > MAX_BESIDE) continue;
        if (n && (op->nout != call[0]->nout || !attrs_equal(call[0]->attr, op->attr)))
            n = 0;
        call[n++] = op;
        if (n < parts) continue;
        if (!reads_between(call, n)) join_calls(b, call, n);
        n = 0;
    }
}

void pass_beside(Module *m, const PassOptions *o) {
    Beside b = {.m = m, .mem = arena_new()};
    b.known = cost_new(b.mem, m, o);
    Func **order = module_order(b.mem, m);
    for (int i = 0; order[i]; i++) cost_add(&b.known, order[i]);
    for (int i = 0; order[i]; i++)
        if (order[i]->role != ROLE_KERNEL) join_in(&b, order[i]);
    arena_free(b.mem);
    module_remove_unused(m);
}
