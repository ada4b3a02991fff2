/* pipeline_stage.c - see pipeline_stage.h. */
#include "passes/pipe/pipeline_stage.h"
#include "passes/passes.h"

/* ---- values and messages ---- */

Edge *pipe_edge_to(const Pipe *p, const Value *v, int stage) {
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
    Edge *e = pipe_edge_to(p, v, stage);
    return e ? &e->here : NULL;
}

static Value *value_at(const Pipe *p, int stage, const Value *v) {
    Value **place = place_of(p, stage, v);
    return place ? *place : NULL;
}

/* Messages on their way from a stage of which nothing that came back says that they have come. With one no
 * schedule waits for them; each is memory. */
enum { MOST_UNKNOWN = 1 };

/* That were received by now in the order of all stages, but perhaps not yet when they run. */
static int64_t unknown(const Stage *s) {
    int64_t n = 0;
    for (const Sent *m = s->sent; m; m = m->next) n += m->received > s->known[m->to];
    return n;
}

/* Waits, before it sends again, for what others have received by now: where nothing that came back
 * shows it, only for the oldest, as one may wait long for a stage that is not yet there. */
static void await_sent(Stage *s, bool all) {
    int64_t over = unknown(s) - MOST_UNKNOWN;
    for (Sent **at = &s->sent; *at;) {
        Sent *m = *at;
        bool known = m->received && m->received <= s->known[m->to];
        bool waits = all || known || (m->received && over-- > 0);
        if (!waits) {
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
        e->received = s->received;
        while (*end) end = &(*end)->next;
        *end = m;
    }
}

static void receive_value(Pipe *p, int stage, const Value *v) {
    Stage *s = &p->stage[stage];
    Edge *e = pipe_edge_to(p, v, stage);
    check(e && e->sent);
    e->sent->received = ++s->received;
    int64_t *known = &s->known[p->value_stage[v->id]];
    *known = MAX(*known, e->received);
    s->b.name = v->name;
    char *attrs = bfmt(&s->b, "from=%d; message=%lld", p->value_stage[v->id],
                       (long long)e->message);
    e->here = build_as(&s->b, OP_receive, attrs, v->ty, NULL);
    e->here->grad_of = v->grad_of;
    s->now = MAX(s->now, e->at);
}

/* ---- ops ---- */

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
        const Edge *e = pipe_edge_to(p, v, stage);
        n->foreign[n->nforeign++] = v;
        if (e && e->sent) n->at = MAX(n->at, e->at);
        return e && e->sent;
    }
    if (n->seen[v->def->id] == n->nth) return true;
    if (p->flat.is_task[v->def->id]) return false;
    need_op(n, v->def, depth);
    return true;
}

bool pipe_collect(Pipe *p, int stage, Op *first) {
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

/* What is made of nothing, which sums begin with, is there when it is asked for. (An update of
 * parameters is not to be made before it is known whether it is good.) */
static void emit_constants(Pipe *p, int stage, const Op *op) {
    for (int i = 0; i < op->nin; i++) {
        Op *def = op->in[i]->def;
        if (def && !def->nin && !value_at(p, stage, op->in[i]) &&
            (p->op_stage[def->id] == stage || p->op_stage[def->id] == ANYWHERE))
            emit(p, stage, def);
    }
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
                if (s->emitted[op->id]) continue;
                if (op_has(op, F_PLUS)) emit_constants(p, stage, op);
                if (!all_here(p, stage, op)) continue;
                emit(p, stage, op);
                list[n++] = op;
            }
}

void pipe_emit(Pipe *p, int stage, double seconds) {
    Need *n = p->need;
    Stage *s = &p->stage[stage];
    for (int i = 0; i < n->nforeign; i++)
        if (!value_at(p, stage, n->foreign[i])) receive_value(p, stage, n->foreign[i]);
    s->now = n->at + seconds;
    for (int i = 0; i < n->n; i++) emit(p, stage, n->list[i]);
    emit_followers(p, stage, n->list, n->n);
    s->at = NULL;
}

/* ---- begin and end ---- */

static void number_anywhere(Pipe *p) {
    const Func *f = p->flat.f;
    size_t n = (size_t)f->nvalues + 1;
    p->own = NEW_ARRAY(p->mem, Value *, n);
    p->map = NEW_ARRAY(p->mem, Value *, n);
    p->nth_any = NEW_ARRAY(p->mem, int, n);
    for (int i = 0; i < f->nvalues; i++)
        if (p->value_stage[i] == ANYWHERE) p->nth_any[i] = p->nany++;
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
    s->known = NEW_ARRAY(p->mem, int64_t, (size_t)p->s->stages);
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

/* Weights are gathered before anything is waited for, in all stages at once: behind a receive each
 * stage would wait for the gathers of those before it too. */
static void gather_first(Pipe *p, int k) {
    for (Op **op = p->stage[k].ops; *op; op++)
        if (op_has(*op, F_COMM) && (*op)->nin && !p->stage[k].emitted[(*op)->id] &&
            pipe_collect(p, k, *op) && !p->need->nforeign)
            pipe_emit(p, k, 0);
}

static Value *result_of(Pipe *p, int k, Value *v) {
    int from = p->value_stage[v->id];
    if (value_at(p, k, v)) return value_at(p, k, v);
    if (from != ANYWHERE && from != k)
        receive_value(p, k, v);
    else if (pipe_collect(p, k, v->def))
        pipe_emit(p, k, 0);
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

void pipe_stages_begin(Pipe *p, const Func *step) {
    number_anywhere(p);
    make_scratch(p);
    p->stage = NEW_ARRAY(p->mem, Stage, (size_t)p->s->stages);
    p->m->stages = p->s->stages;
    list_ops(p);
    for (int k = 0; k < p->s->stages; k++) begin_stage(p, step, k);
    for (int k = 0; k < p->s->stages; k++) gather_first(p, k);
}

void pipe_stages_end(Pipe *p) {
    for (int k = 0; k < p->s->stages; k++) end_stage(p, k);
}
