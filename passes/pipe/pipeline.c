/* pipeline.c - a step for each stage from the step of all. Level local.
 *     @step: a loop over micro-batches of  %y = call %x {fn=@chunk.0.fwd}
 *                                          %loss = call %y {fn=@chunk.1.fwd} ...
 *     -> @step.0:step stage(0): call @chunk.0.fwd for micro-batch 0; send %y {to=1}; ...
 *        @step.1:step stage(1): %y = receive {from=0}; call @chunk.1.fwd; ...
 * First calls that lead to chunks are written out, a loop run by run, so that every task is
 * a call in the step itself. Then each op is given a stage: a task that of its chunk; any
 * other op that of its operands (of the most bytes, if they differ); what needs only data
 * and constants is made by every stage that reads it. Last the stages are gone through
 * together, each in the order of its schedule, always the one that can begin first: what an
 * op of another stage reads is sent as soon as it is made, and received where it is read
 * first. The wait for a message that was sent comes, before the next one that the stage
 * sends, as soon as it has been received in that order of all stages: so no stage can wait
 * for a message whose sender waits for it, however little MPI buffers.
 * Messages between two stages are numbered by what they carry. */
#include "ir/placement.h"
#include "passes/passes.h"
#include "passes/pipe/flat.h"

typedef struct Sent { /* a message that is not yet waited for */
    Value *token, *value;
    int to;
    int64_t message;
    bool received;
    struct Sent *next;
} Sent;

typedef struct Stage {
    Func *f;
    Builder b;
    Value **any;   /* of values that every stage makes for itself, by Pipe.nth_any */
    bool *emitted; /* by op id */
    int next;      /* task of its list */
    Op **ops;      /* of the flat step, that are of this stage alone; then NULL */
    Op **rest;     /* of these: behind the tasks the next one to look at */
    double now;    /* unit time, for the order */
    Op *at; /* what it does next, once op_at has said so; NULL: it is to be asked */
    const Value
        *why; /* of `at`: what was not there yet; NULL: all is there, at `ready` */
    double ready;
    Sent *sent; /* oldest first */
} Stage;

typedef struct Edge { /* a value that a stage gets from the one that makes it */
    int to;
    int64_t message;
    Sent *sent;  /* NULL: not made yet */
    Value *here; /* what the stage received; NULL: nothing yet */
    double at;
    struct Edge *next;
} Edge;

typedef struct Pipe {
    Module *m;
    const PipeSchedule *s;
    Arena *mem;
    Flat flat;
    int *op_stage, *value_stage; /* by id; ANYWHERE */
    Edge **edge;                 /* by value id */
    Value **own;                 /* by value id: what its stage has */
    int *nth_any, nany;          /* by value id, of those that are ANYWHERE */
    Value **map;                 /* by value id: scratch of emit */
    Op ***reader;                /* by value id: ops that read it, ended by NULL */
    Stage *stage;
    int64_t *messages; /* by pair of stages: how many so far */
    struct Need *need; /* scratch of collect */
} Pipe;

enum { ANYWHERE = -1 }; /* as func_arg_stage says it */

/* ---- who does what ---- */

/* That of the operands with the most bytes; of equals the first. */
static int operand_stage(const Pipe *p, const Op *op) {
    int64_t most = -1;
    int stage = ANYWHERE;
    for (int i = 0; i < op->nin; i++) {
        int at = p->value_stage[op->in[i]->id];
        int64_t bytes = 0;
        for (int k = i; k < op->nin; k++)
            if (p->value_stage[op->in[k]->id] == at) bytes += type_bytes(&op->in[k]->ty);
        if (at == ANYWHERE || bytes <= most) continue;
        most = bytes;
        stage = at;
    }
    return stage;
}

static void choose_stages(Pipe *p) {
    Func *f = p->flat.f;
    p->op_stage = NEW_ARRAY(p->mem, int, (size_t)f->nops + 1);
    p->value_stage = NEW_ARRAY(p->mem, int, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++)
        p->value_stage[f->arg[i]->id] = func_arg_stage(f, i);
    for (const Op *op = f->first; op; op = op->next) {
        int stage = p->flat.is_task[op->id] ? p->s->stage_of[op_func(op)->chunk]
                                            : operand_stage(p, op);
        p->op_stage[op->id] = stage;
        for (int i = 0; i < op->nout; i++) p->value_stage[op->out[i]->id] = stage;
    }
}

static void add_edge(Pipe *p, const Value *v, int to) {
    int from = p->value_stage[v->id];
    if (from == ANYWHERE || from == to || to == ANYWHERE) return;
    for (const Edge *e = p->edge[v->id]; e; e = e->next)
        if (e->to == to) return;
    Edge *e = NEW(p->mem, Edge);
    *e = (Edge){.to = to, .next = p->edge[v->id]};
    e->message = p->messages[from * p->s->stages + to]++;
    p->edge[v->id] = e;
}

/* Results over arguments belong to the argument's stage, others to all. */
static void add_edges(Pipe *p) {
    const Func *f = p->flat.f;
    int stages = p->s->stages;
    p->edge = NEW_ARRAY(p->mem, Edge *, (size_t)f->nvalues + 1);
    p->messages = NEW_ARRAY(p->mem, int64_t, (size_t)stages * (size_t)stages);
    for (const Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) add_edge(p, op->in[i], p->op_stage[op->id]);
    for (int i = 0; i < f->nret; i++) {
        int owner = f->alias[i] >= 0 ? func_arg_stage(f, f->alias[i]) : ANYWHERE;
        for (int k = 0; k < stages; k++)
            if (owner == ANYWHERE || owner == k) add_edge(p, f->ret[i], k);
    }
}

static void list_readers(Pipe *p) {
    const Func *f = p->flat.f;
    int *n = NEW_ARRAY(p->mem, int, (size_t)f->nvalues + 1);
    p->reader = NEW_ARRAY(p->mem, Op **, (size_t)f->nvalues + 1);
    for (const Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) n[op->in[i]->id]++;
    for (int i = 0; i < f->nvalues; i++)
        p->reader[i] = NEW_ARRAY(p->mem, Op *, (size_t)n[i] + 1);
    memset(n, 0, (size_t)f->nvalues * sizeof *n);
    for (Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++)
            p->reader[op->in[i]->id][n[op->in[i]->id]++] = op;
}

/* ---- the ops of a stage ---- */

static Edge *edge_to(const Pipe *p, const Value *v, int stage) {
    Edge *e = p->edge[v->id];
    while (e && e->to != stage) e = e->next;
    return e;
}

/* Where a stage has a value of the flat step; NULL: it never does. A table of all values for
 * each stage would be most of the memory of a long pipeline. */
static Value **place_of(const Pipe *p, int stage, const Value *v) {
    int from = p->value_stage[v->id];
    if (from == stage) return &p->own[v->id];
    if (from == ANYWHERE) return &p->stage[stage].any[p->nth_any[v->id]];
    Edge *e = edge_to(p, v, stage);
    return e ? &e->here : NULL;
}

static Value *value_at(const Pipe *p, int stage, const Value *v) {
    Value **place = place_of(p, stage, v);
    return place ? *place : NULL;
}

static void number_anywhere(Pipe *p) {
    const Func *f = p->flat.f;
    size_t n = (size_t)f->nvalues + 1;
    p->own = NEW_ARRAY(p->mem, Value *, n);
    p->map = NEW_ARRAY(p->mem, Value *, n);
    p->nth_any = NEW_ARRAY(p->mem, int, n);
    for (int i = 0; i < f->nvalues; i++)
        if (p->value_stage[i] == ANYWHERE) p->nth_any[i] = p->nany++;
}

/* Waits, before it sends again, for what the others have received by now. */
static void await_sent(Stage *s, bool all) {
    for (Sent **at = &s->sent; *at;) {
        Sent *m = *at;
        if (!m->received && !all) {
            at = &m->next;
            continue;
        }
        build(&s->b, OP_sent,
              bfmt(&s->b, "to=%d; message=%lld", m->to, (long long)m->message), m->token,
              m->value, NULL);
        *at = m->next;
    }
}

static void send_value(Pipe *p, int from, const Value *v) {
    Stage *s = &p->stage[from];
    for (Edge *e = p->edge[v->id]; e; e = e->next) {
        await_sent(s, false);
        Sent *m = e->sent = NEW(p->mem, Sent), **end = &s->sent;
        *m = (Sent){.value = p->own[v->id], .to = e->to, .message = e->message};
        s->b.name = "sending";
        m->token =
            build1(&s->b, OP_send,
                   bfmt(&s->b, "to=%d; message=%lld", e->to, (long long)e->message),
                   m->value, NULL);
        e->at = s->now;
        while (*end) end = &(*end)->next;
        *end = m;
    }
}

static void receive_value(Pipe *p, int stage, const Value *v) {
    Stage *s = &p->stage[stage];
    Edge *e = edge_to(p, v, stage);
    check(e && e->sent);
    e->sent->received = true;
    s->b.name = v->name;
    char *attrs = bfmt(&s->b, "from=%d; message=%lld", p->value_stage[v->id],
                       (long long)e->message);
    e->here = build_as(&s->b, OP_receive, attrs, v->ty, NULL);
    e->here->grad_of = v->grad_of;
    s->now = MAX(s->now, e->at);
}

static void emit(Pipe *p, int stage, Op *op) {
    Stage *s = &p->stage[stage];
    for (int i = 0; i < op->nin; i++)
        p->map[op->in[i]->id] = value_at(p, stage, op->in[i]);
    op_clone(&s->b, op, p->map);
    for (int i = 0; i < op->nout; i++)
        *place_of(p, stage, op->out[i]) = p->map[op->out[i]->id];
    s->emitted[op->id] = true;
    for (int i = 0; i < op->nout && p->op_stage[op->id] == stage; i++)
        send_value(p, stage, op->out[i]);
}

/* What must be done for an op: other ops of the stage in their order and it itself, and
 * values to receive. `why` (or NULL): a value that is not there yet. */
typedef struct Need {
    Op **list;
    const Value **foreign;
    int n, nforeign;
    const Value *why;
    double at;  /* when all of it is there */
    Op **stack; /* scratch */
    int *operand, *seen, nth;
} Need;

static void need_op(Need *n, Op *op, int *depth) {
    n->seen[op->id] = n->nth;
    n->operand[*depth] = 0;
    n->stack[(*depth)++] = op;
}

/* Operand v of an op that is needed; false: it is not there yet. */
static bool need_value(Pipe *p, int stage, const Value *v, int *depth) {
    Need *n = p->need;
    int from = p->value_stage[v->id];
    if (value_at(p, stage, v)) return true;
    if (from != ANYWHERE && from != stage) {
        const Edge *e = edge_to(p, v, stage);
        n->foreign[n->nforeign++] = v;
        if (e && e->sent) n->at = MAX(n->at, e->at);
        return e && e->sent;
    }
    if (n->seen[v->def->id] == n->nth) return true;
    if (p->flat.is_task[v->def->id]) return false;
    need_op(n, v->def, depth);
    return true;
}

static bool collect(Pipe *p, int stage, Op *first) {
    Need *n = p->need;
    int depth = 0;
    n->n = n->nforeign = 0;
    n->nth++;
    n->at = p->stage[stage].now;
    n->why = NULL;
    need_op(n, first, &depth);
    while (depth) {
        Op *op = n->stack[depth - 1];
        int i = n->operand[depth - 1]++;
        if (i == op->nin) {
            n->list[n->n++] = op;
            depth--;
        } else if (!need_value(p, stage, op->in[i], &depth)) {
            n->why = op->in[i];
            return false;
        }
    }
    return true;
}

static bool all_here(const Pipe *p, int stage, const Op *op) {
    for (int i = 0; i < op->nin; i++)
        if (!value_at(p, stage, op->in[i])) return false;
    return true;
}

static bool is_sent(const Pipe *p, const Op *op) {
    for (int i = 0; i < op->nout && !p->flat.is_task[op->id]; i++)
        if (p->edge[op->out[i]->id]) return true;
    return false;
}

/* Sums and the like are made as soon as they can be: that frees what they read. */
static void emit_followers(Pipe *p, int stage, Op **list, int n) {
    Stage *s = &p->stage[stage];
    for (int k = 0; k < n; k++)
        for (int i = 0; i < list[k]->nout; i++)
            for (Op **r = p->reader[list[k]->out[i]->id]; *r; r++) {
                Op *op = *r;
                if (p->op_stage[op->id] != stage || p->flat.is_task[op->id]) continue;
                if (s->emitted[op->id] || !all_here(p, stage, op)) continue;
                emit(p, stage, op);
                list[n++] = op;
            }
}

static void emit_needed(Pipe *p, int stage, double seconds) {
    Need *n = p->need;
    Stage *s = &p->stage[stage];
    for (int i = 0; i < n->nforeign; i++)
        if (!value_at(p, stage, n->foreign[i])) receive_value(p, stage, n->foreign[i]);
    s->now = n->at + seconds;
    for (int i = 0; i < n->n; i++) emit(p, stage, n->list[i]);
    emit_followers(p, stage, n->list, n->n);
    s->at = NULL;
}

/* ---- all stages together ---- */

/* The first op of the task that has not been emitted; NULL: all are. */
static Op *left_of(const Pipe *p, int stage, Task t) {
    Op *op[2];
    int n = flat_task_ops(&p->flat, t, op);
    for (int i = 0; i < n; i++)
        if (!p->stage[stage].emitted[op[i]->id]) return op[i];
    return NULL;
}

static Task *task_at(const Pipe *p, int stage) {
    Stage *s = &p->stage[stage];
    const TaskList *l = &p->s->stage[stage];
    while (s->next < l->n && !left_of(p, stage, l->task[s->next])) s->next++;
    return s->next < l->n ? &l->task[s->next] : NULL;
}

/* What the stage does next; NULL: all is done but its results. */
static Op *op_at(const Pipe *p, int stage) {
    Stage *s = &p->stage[stage];
    const Task *t = task_at(p, stage);
    if (t) return left_of(p, stage, *t);
    while (*s->rest && s->emitted[(*s->rest)->id]) s->rest++;
    return *s->rest;
}

/* Can the stage go on? Then `ready` is set. What it found out holds until it has gone on, or
 * until what it waits for has been sent. */
static bool can_go_on(Pipe *p, int stage) {
    Stage *s = &p->stage[stage];
    bool known = s->at;
    if (!known) s->at = op_at(p, stage);
    if (known && !s->why) return true;
    const Edge *e = known ? edge_to(p, s->why, stage) : NULL;
    if (!s->at || (e && !e->sent)) return false;
    bool here = collect(p, stage, s->at);
    s->why = p->need->why;
    s->ready = p->need->at;
    return here;
}

/* The stage that can go on first; -1: none can. */
static int next_stage(Pipe *p, bool *waits) {
    int best = -1;
    *waits = false;
    for (int k = 0; k < p->s->stages; k++) {
        Stage *s = &p->stage[k];
        bool can = can_go_on(p, k);
        *waits |= s->at != NULL;
        if (can && (best < 0 || s->ready < p->stage[best].ready)) best = k;
    }
    return best;
}

static const char *stage_waits(Pipe *p, int k) {
    const Task *t = task_at(p, k);
    Op *op = op_at(p, k);
    if (!op || collect(p, k, op)) return "";
    const Value *v = p->need->why;
    const char *what = t ? task_text(p->mem, *t) : optab[op->kind].name;
    Task made;
    const char *maker = flat_maker(&p->flat, v, &made);
    if (maker)
        return arena_printf(p->mem, "\n    stage %d: %s waits for %s of stage %d", k,
                            what, maker, p->s->stage_of[made.chunk]);
    return arena_printf(p->mem, "\n    stage %d: %s waits for %%%s", k, what, v->name);
}

static _Noreturn void refuse_stuck(Pipe *p) {
    Text t = text_new(p->mem);
    for (int k = 0; k < p->s->stages; k++) text_add(&t, "%s", stage_waits(p, k));
    fail(EXIT_CONFIG, "schedule %s: its stages wait for each other for ever%s",
         p->s->name, t.s);
}

static void run_stages(Pipe *p) {
    static const double seconds[TASK_KINDS] = {
        [TASK_FORWARD] = 1, [TASK_BACKWARD] = 2, [TASK_INPUTS] = 1, [TASK_WEIGHTS] = 1};
    bool waits;
    for (int k; (k = next_stage(p, &waits)) >= 0;) {
        const Op *op = p->stage[k].at;
        check(collect(p, k, p->stage[k].at));
        emit_needed(p, k, p->flat.is_task[op->id] ? seconds[op_func(op)->task] : 0);
    }
    if (waits) refuse_stuck(p);
}

/* ---- the steps ---- */

static void list_ops(Pipe *p) {
    int *n = NEW_ARRAY(p->mem, int, (size_t)p->s->stages);
    for (const Op *op = p->flat.f->first; op; op = op->next)
        if (p->op_stage[op->id] != ANYWHERE) n[p->op_stage[op->id]]++;
    for (int k = 0; k < p->s->stages; k++) {
        Stage *s = &p->stage[k];
        s->ops = s->rest = NEW_ARRAY(p->mem, Op *, (size_t)n[k] + 1);
        n[k] = 0;
    }
    for (Op *op = p->flat.f->first; op; op = op->next) {
        int k = p->op_stage[op->id];
        if (k != ANYWHERE) p->stage[k].ops[n[k]++] = op;
    }
}

static void begin_stage(Pipe *p, const Func *step, int k) {
    Stage *s = &p->stage[k];
    const Func *flat = p->flat.f;
    s->f = func_new_unique(p->m, arena_printf(p->m->mem, "%s.%d", step->name, k),
                           step->role);
    s->f->stage = k;
    s->b = build_at_end(s->f);
    s->any = NEW_ARRAY(p->mem, Value *, (size_t)p->nany + 1);
    s->emitted = NEW_ARRAY(p->mem, bool, (size_t)flat->nops + 1);
    for (int i = 0; i < flat->narg; i++) {
        int owner = func_arg_stage(flat, i);
        if (owner != k && owner != ANYWHERE) continue;
        *place_of(p, k, flat->arg[i]) =
            func_arg(s->f, flat->arg[i]->name, flat->arg[i]->ty);
        s->f->arg_attr[s->f->narg - 1] = flat->arg_attr[i];
    }
    for (int i = 0; i < flat->narg; i++)
        if (func_arg_stage(flat, i) == k) send_value(p, k, flat->arg[i]);
    /* what others read of arguments, a rounded weight, is there from the start too */
    for (Op **op = s->ops; *op; op++)
        if ((*op)->nin && is_sent(p, *op) && all_here(p, k, *op)) emit(p, k, *op);
}

static Value *result_of(Pipe *p, int k, Value *v) {
    int from = p->value_stage[v->id];
    if (value_at(p, k, v)) return value_at(p, k, v);
    if (from != ANYWHERE && from != k)
        receive_value(p, k, v);
    else if (collect(p, k, v->def))
        emit_needed(p, k, 0);
    check(value_at(p, k, v));
    return value_at(p, k, v);
}

static void end_stage(Pipe *p, int k) {
    Stage *s = &p->stage[k];
    const Func *flat = p->flat.f;
    for (int i = 0; i < flat->nret; i++) {
        int a = flat->alias[i], owner = a >= 0 ? func_arg_stage(flat, a) : ANYWHERE;
        if (owner != k && owner != ANYWHERE) continue;
        Value *v = result_of(p, k, flat->ret[i]);
        func_ret(s->f, v, a >= 0 ? value_at(p, k, flat->arg[a])->nth : -1);
    }
    await_sent(s, true);
    for (int i = s->f->narg - 1; i >= 0; i--) {
        bool owned = func_arg_stage(s->f, i) == k;
        if (!owned && !value_uses(s->f, s->f->arg[i])) func_drop_arg(s->f, i);
    }
}

static void make_scratch(Pipe *p) {
    Need *n = p->need = NEW(p->mem, Need);
    size_t ops = (size_t)p->flat.f->nops + 1;
    n->list = NEW_ARRAY(p->mem, Op *, ops);
    n->stack = NEW_ARRAY(p->mem, Op *, ops);
    n->operand = NEW_ARRAY(p->mem, int, ops);
    n->seen = NEW_ARRAY(p->mem, int, ops);
    size_t reads = 1;
    for (const Op *op = p->flat.f->first; op; op = op->next) reads += (size_t)op->nin;
    n->foreign = NEW_ARRAY(p->mem, const Value *, reads);
}

static void make_steps(Pipe *p, Func *step) {
    p->flat = flat_make(p->m, p->mem, p->s, step);
    choose_stages(p);
    add_edges(p);
    list_readers(p);
    number_anywhere(p);
    make_scratch(p);
    p->stage = NEW_ARRAY(p->mem, Stage, (size_t)p->s->stages);
    p->m->stages = p->s->stages;
    list_ops(p);
    for (int k = 0; k < p->s->stages; k++) begin_stage(p, step, k);
    run_stages(p);
    for (int k = 0; k < p->s->stages; k++) end_stage(p, k);
    step->role = p->flat.f->role = ROLE_FUNC; /* nobody calls them */
    module_remove_unused(p->m);
}

void pass_pipeline(Module *m, const PassOptions *o) {
    Pipe p = {.m = m, .s = schedule_of_options(m->mem, o)};
    if (!p.s) return;
    Func *step = m->first;
    while (step && !func_is_entry(step)) step = step->next;
    if (!step)
        fail(EXIT_CONFIG, "module @%s has no entry to make a pipeline of", m->name);
    Catch c;
    p.mem = arena_new();
    if (CATCH(c)) {
        make_steps(&p, step);
        catch_end(&c);
    }
    arena_free(p.mem);
    if (c.code) fail_again(c.code, c.message);
}
