/* flat.c - see flat.h. */
#include "passes/pipe/flat.h"
#include "ir/placement.h"
#include "passes/passes.h"
#include <stdlib.h>

static size_t task_index(const Flat *p, Task t) {
    size_t chunk = (size_t)t.chunk * TASK_KINDS + (size_t)t.kind;
    return chunk * (size_t)p->s->micro + (size_t)t.micro;
}

/* ---- the flat step ---- */

static void find_leads(Flat *p) {
    Func **order = module_order(p->mem, p->m);
    int n = order_length(order);
    p->leads = NEW_ARRAY(p->mem, bool, (size_t)n + 1);
    for (int i = 0; i < n; i++)
        for (const Op *op = order[i]->first; op; op = op->next) {
            const Func *callee = op_callee(op);
            p->leads[i] |= callee && (callee->task || p->leads[callee->nth]);
        }
}

/* Calls of calls could lead to any number of tasks. */
static void count_task(Flat *p, const Op *op) {
    int64_t most = (int64_t)p->s->chunks * TASK_KINDS * p->s->micro;
    if (++p->written > most)
        fail_op(op, "the step runs chunks more often than the schedule, %lld times",
                (long long)most);
}

/* Slice `at` of a stacked value. */
static Value *slice_of(Builder *b, Value *v, int64_t at, const Type *slice) {
    b->name = v->name;
    Value *one =
        build1(b, OP_slice, bfmt(b, "dim=0; first=%lld; size=1", (long long)at), v, NULL);
    b->name = v->name;
    return build_as(b, OP_reshape, NULL, *slice, one, NULL);
}

static void write_out(Flat *p, Builder *b, const Func *f, Value **arg, Value **ret);

static void write_out_call(Flat *p, Builder *b, const Op *op, Value **map) {
    const Call c = call_of(op);
    Value **arg = NEW_ARRAY(p->mem, Value *, (size_t)op->nin + 1);
    Value **ret = NEW_ARRAY(p->mem, Value *, (size_t)op->nout + 1);
    if (op->nout > c.carry && c.loop)
        fail_op(op,
                "a loop that runs the chunks of a pipeline cannot give a slice a run");
    for (int i = 0; i < op->nin; i++) arg[i] = map[op->in[i]->id];
    for (int64_t k = 0; k < c.times; k++) {
        for (int i = c.carry; i < c.carry + c.each; i++)
            arg[i] = slice_of(b, map[op->in[i]->id], c.reverse ? c.times - 1 - k : k,
                              &c.f->arg[i]->ty);
        write_out(p, b, c.f, arg, ret);
        memcpy(arg, ret, (size_t)c.carry * sizeof *arg);
    }
    for (int i = 0; i < op->nout; i++) map[op->out[i]->id] = ret[i];
}

/* Appends the ops of f on these arguments. Calls are nested at most MAX_CALL_DEPTH deep. */
static void write_out(Flat *p, Builder *b, const Func *f, Value **arg, Value **ret) {
    Value **map = NEW_ARRAY(p->mem, Value *, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++) map[f->arg[i]->id] = arg[i];
    for (const Op *op = f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        if (callee && !callee->task && p->leads[callee->nth]) {
            write_out_call(p, b, op, map);
            continue;
        }
        if (callee && callee->task) count_task(p, op);
        op_clone(b, op, map);
    }
    for (int i = 0; i < f->nret; i++) ret[i] = map[f->ret[i]->id];
}

/* The argument that argument i is another name of, for a stage that reads it too; NULL: it
 * is one of its own. */
static Value *argument_again(const Func *step, int i, Value **arg) {
    int of = func_arg_same(step, i);
    return of >= 0 && of < i ? arg[of] : NULL;
}

static void make_flat(Flat *p, const Func *step) {
    find_leads(p);
    Func *f = p->f = func_new_unique(p->m, "flat", ROLE_FUNC);
    Value **arg = NEW_ARRAY(p->mem, Value *, (size_t)step->narg + 1);
    Value **ret = NEW_ARRAY(p->mem, Value *, (size_t)step->nret + 1);
    for (Func *g = p->m->first; g; g = g->next) func_number(g);
    for (int i = 0; i < step->narg; i++) {
        arg[i] = argument_again(step, i, arg);
        if (arg[i]) continue;
        arg[i] = func_arg(f, step->arg[i]->name, step->arg[i]->ty);
        f->arg_attr[f->narg - 1] = step->arg_attr[i];
    }
    Builder b = build_at_end(f);
    write_out(p, &b, step, arg, ret);
    for (int i = 0; i < step->nret; i++) {
        int a = step->alias[i];
        func_ret(f, ret[i], a < 0 ? -1 : arg[a]->nth);
    }
    func_remove_dead(f);
    func_number(f);
}

/* ---- who does what ---- */

static void find_tasks(Flat *p) {
    const PipeSchedule *s = p->s;
    size_t chunks = (size_t)s->chunks * TASK_KINDS;
    int *count = NEW_ARRAY(p->mem, int, chunks);
    p->task = NEW_ARRAY(p->mem, Op *, chunks * (size_t)s->micro);
    p->is_task = NEW_ARRAY(p->mem, bool, (size_t)p->f->nops + 1);
    for (Op *op = p->f->first; op; op = op->next) {
        const Func *f = op_callee(op);
        if (!f || !f->task) continue;
        Task t = {f->task, f->chunk, 0};
        if (f->chunk >= s->chunks)
            fail_op(op, "chunk %d; the schedule has %d", f->chunk, s->chunks);
        t.micro = count[f->chunk * TASK_KINDS + (int)f->task]++;
        if (t.micro >= s->micro)
            fail_op(op,
                    "chunk %d runs more often than on the %d micro-batches of the "
                    "schedule",
                    f->chunk, s->micro);
        p->task[task_index(p, t)] = op;
        p->is_task[op->id] = true;
    }
}

/* The op that does the task as such; NULL: there is none. */
static Op *task_op(const Flat *p, TaskKind kind, Task t) {
    t.kind = kind;
    return p->task[task_index(p, t)];
}

int flat_task_ops(const Flat *p, Task t, Op *list[2]) {
    Op *whole = task_op(p, TASK_BACKWARD, t);
    bool both = t.kind == TASK_BACKWARD;
    Op *one = t.kind == TASK_FORWARD            ? task_op(p, TASK_FORWARD, t)
              : both                            ? whole
              : t.kind == TASK_WEIGHTS && whole ? whole
                                                : task_op(p, t.kind, t);
    int n = 0;
    if (one) list[n++] = one;
    for (TaskKind k = TASK_INPUTS; both && !whole && k <= TASK_WEIGHTS; k++)
        if (task_op(p, k, t)) list[n++] = task_op(p, k, t);
    return n;
}

/* A schedule is complete, but may name tasks that this module has in another form. */
static void refuse_unlisted(const Flat *p) {
    const PipeSchedule *s = p->s;
    bool *listed = NEW_ARRAY(p->mem, bool, (size_t)p->f->nops + 1);
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++) {
            Op *op[2];
            int n = flat_task_ops(p, s->stage[k].task[i], op);
            for (int j = 0; j < n; j++) listed[op[j]->id] = true;
        }
    for (const Op *op = p->f->first; op; op = op->next)
        if (p->is_task[op->id] && !listed[op->id])
            fail_op(op, "schedule %s has no task for a call of @%s", s->name,
                    op_func(op)->name);
}

/* ---- sums over micro-batches ---- */

/* Tasks of one kind and chunk, in the order of the schedule. */
typedef struct Run {
    Op **op, **in_order; /* in_order: of the micro-batches */
    int n;
} Run;

static Run *list_runs(const Flat *p) {
    const PipeSchedule *s = p->s;
    Run *run = NEW_ARRAY(p->mem, Run, (size_t)s->chunks * TASK_KINDS);
    for (int i = 0; i < s->chunks * TASK_KINDS; i++)
        run[i].op = NEW_ARRAY(p->mem, Op *, (size_t)s->micro);
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++) {
            Op *op[2];
            int n = flat_task_ops(p, s->stage[k].task[i], op);
            for (int j = 0; j < n; j++) {
                const Func *f = op_func(op[j]);
                Run *r = &run[f->chunk * TASK_KINDS + (int)f->task];
                r->op[r->n++] = op[j];
            }
        }
    return run;
}

static bool is_ascending(const Run *r) {
    for (int i = 1; i < r->n; i++)
        if (r->op[i]->id < r->op[i - 1]->id) return false;
    return true;
}

/* One that has a function of its own, as hand-written ones may: another cannot be in its place. */
static void refuse_own(const Flat *p, const Run *r) {
    for (int i = 1; i < r->n; i++)
        if (op_func(r->op[i]) != op_func(r->op[0]))
            fail(EXIT_CONFIG,
                 "schedule %s: chunk %d goes through its micro-batches in another order "
                 "than theirs, which all must call the same function then",
                 p->s->name, op_func(r->op[0])->chunk);
}

/* Operand i of the ops of a run, in the order of micro-batches, where each is result *nth of
 * the one before. */
static bool is_sum(Op *const *op, int n, int i, int *nth) {
    for (int k = 1; k < n; k++) {
        const Value *v = op[k]->in[i];
        if (v->def != op[k - 1] || (k > 1 && v->nth != *nth)) return false;
        *nth = v->nth;
    }
    return n > 1;
}

/* Sums go from task to task as the schedule has them. */
static void link_sums(Flat *p, const Run *r) {
    Op **in_order = r->in_order;
    const int n = r->n;
    int nth = 0;
    Op *last = in_order[n - 1], *end = r->op[n - 1];
    for (int i = 0; i < last->nin; i++) {
        if (!is_sum(in_order, n, i, &nth)) continue;
        Value *begin = in_order[0]->in[i], *sum = last->out[nth];
        Value *other = NEW(p->m->mem, Value); /* stands for the sum where it is read */
        *other = *sum;
        func_replace(p->f, sum, other);
        for (int k = 0; k < n; k++) r->op[k]->in[i] = k ? r->op[k - 1]->out[nth] : begin;
        func_replace(p->f, other, end->out[nth]);
    }
}

static void sort_run(Flat *p, Run *r) {
    r->in_order = NEW_ARRAY(p->mem, Op *, (size_t)r->n);
    memcpy(r->in_order, r->op, (size_t)r->n * sizeof *r->op);
    qsort(r->in_order, (size_t)r->n, sizeof *r->op, op_by_id);
}

static void link_by_schedule(Flat *p) {
    Run *run = list_runs(p);
    for (int i = 0; i < p->s->chunks * TASK_KINDS; i++) {
        if (is_ascending(&run[i])) continue;
        refuse_own(p, &run[i]);
        sort_run(p, &run[i]);
        link_sums(p, &run[i]);
        for (int k = 0; k < run[i].n; k++) op_set_int(run[i].in_order[k], "micro", k);
    }
}

/* ---- the whole ---- */

const char *flat_maker(const Flat *p, const Value *v, Task *made) {
    const Func *f = v->def ? op_callee(v->def) : NULL;
    for (int i = 0; f && f->task && i < p->s->micro; i++) {
        *made = (Task){f->task, f->chunk, i};
        if (p->task[task_index(p, *made)] == v->def) return task_text(p->mem, *made);
    }
    return NULL;
}

Flat flat_make(Module *m, Arena *mem, const PipeSchedule *s, const Func *step) {
    Flat p = {.m = m, .mem = mem, .s = s};
    make_flat(&p, step);
    find_tasks(&p);
    refuse_unlisted(&p);
    link_by_schedule(&p);
    return p;
}
