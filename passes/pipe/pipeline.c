/* pipeline.c - a step for each stage from the step of all. Level local.
 *     @step: a loop over micro-batches of  %y = call %x {fn=@chunk.0.fwd}
 *                                          %loss = call %y {fn=@chunk.1.fwd} ...
 *     -> @step.0:step stage(0): call @chunk.0.fwd for micro-batch 0; send %y {to=1}; ...
 *        @step.1:step stage(1): %y = receive {from=0}; call @chunk.1.fwd; ...
 * First calls that lead to chunks are written out, a loop run by run, so that every task is
 * a call in the step itself. Then each op is given a stage: a task that of its chunk; any
 * other op that of its operands (if they differ, of the task that reads it, else of the most
 * bytes); what needs only data and constants is made by every stage that reads it. Last the
 * stages are gone through together, each in the order of its schedule, always the one that can
 * begin first: what an op of another stage reads is sent as soon as it is made, and received
 * where it is read first; weights are gathered before all that. The wait for a message that was
 * sent comes, before another one that the stage sends, when it has been received in that
 * order of all stages: so no stage can wait for a message whose sender waits for it, however
 * little MPI buffers. When the steps run that order is another; so all but one such message are waited for only
 * once something that came back shows that they are there. Messages between two stages are
 * numbered by what they carry. */
#include "passes/passes.h"
#include "passes/pipe/pipeline_stage.h"

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

/* Has it operands of several stages, or such that are made of those? */
static bool is_mixed(const Pipe *p, const bool *mixed, const Op *op) {
    for (int i = 0; i < op->nin; i++) {
        const Value *v = op->in[i];
        int at = p->value_stage[v->id];
        if (at != ANYWHERE && at != p->op_stage[op->id]) return true;
        if (v->def && mixed[v->def->id]) return true;
    }
    return false;
}

/* That of the tasks which read it, or what is mixed and made for them; ANYWHERE: others do too,
 * of another stage or none at all. */
static int readers_stage(const Pipe *p, const bool *mixed, const Op *op) {
    int stage = ANYWHERE;
    for (int i = 0; i < op->nout; i++)
        for (Op **r = p->reader[op->out[i]->id]; *r; r++) {
            int id = (*r)->id, at = p->op_stage[id];
            bool task = p->flat.is_task[id] || mixed[id];
            if (!task || (stage != ANYWHERE && at != stage)) return ANYWHERE;
            stage = at;
        }
    return stage;
}

static void set_stage(Pipe *p, const Op *op, int stage) {
    p->op_stage[op->id] = stage;
    for (int i = 0; i < op->nout; i++) p->value_stage[op->out[i]->id] = stage;
}

/* The gradient of a value that two chunks read is the sum of what each gives. The stage of
 * neither has a task that needs it, so the reader's makes it. */
static void follow_readers(Pipe *p, bool *mixed) {
    for (const Op *op = p->flat.f->last; op; op = op->prev) {
        int stage = mixed[op->id] ? readers_stage(p, mixed, op) : ANYWHERE;
        mixed[op->id] = stage != ANYWHERE;
        if (mixed[op->id]) set_stage(p, op, stage);
    }
}

static void choose_stages(Pipe *p) {
    Func *f = p->flat.f;
    bool *mixed = NEW_ARRAY(p->mem, bool, (size_t)f->nops + 1);
    p->op_stage = NEW_ARRAY(p->mem, int, (size_t)f->nops + 1);
    p->value_stage = NEW_ARRAY(p->mem, int, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++)
        p->value_stage[f->arg[i]->id] = func_arg_stage(f, i);
    for (const Op *op = f->first; op; op = op->next) {
        bool task = p->flat.is_task[op->id];
        set_stage(p, op,
                  task ? p->s->stage_of[op_func(op)->chunk] : operand_stage(p, op));
        mixed[op->id] = !task && is_mixed(p, mixed, op);
    }
    follow_readers(p, mixed);
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
    const Edge *e = known ? pipe_edge_to(p, s->why, stage) : NULL;
    if (!s->at || (e && !e->sent)) return false;
    bool here = pipe_collect(p, stage, s->at);
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
    if (!op || pipe_collect(p, k, op)) return "";
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
        check(pipe_collect(p, k, p->stage[k].at));
        pipe_emit(p, k, p->flat.is_task[op->id] ? seconds[op_func(op)->task] : 0);
    }
    if (waits) refuse_stuck(p);
}

/* ---- the steps ---- */

static void make_steps(Pipe *p, Func *step) {
    p->flat = flat_make(p->m, p->mem, p->s, step);
    p->reader = func_readers(p->mem, p->flat.f);
    choose_stages(p);
    add_edges(p);
    pipe_stages_begin(p, step);
    run_stages(p);
    pipe_stages_end(p);
    step->role = p->flat.f->role = ROLE_FUNC; /* nobody calls them */
    module_remove_unused(p->m);
}

void pass_pipeline(Module *m, const PassOptions *o) {
    Pipe p = {.m = m, .s = schedule_of_options(m->mem, o)};
    if (!p.s) return;
    if (m->stages)
        fail(EXIT_CONFIG, "module @%s has stages already: pass pipeline runs once",
             m->name);
    Func *step = m->first;
    while (step && !func_is_entry(step)) step = step->next;
    if (!step)
        fail(EXIT_CONFIG, "module @%s has no entry to make a pipeline of", m->name);
    p.mem = arena_scratch();
    make_steps(&p, step);
    arena_free(p.mem);
}
