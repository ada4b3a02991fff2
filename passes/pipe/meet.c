/* meet.c - proves that the steps of the stages of a pipeline go together, before any of
 * them runs. Any level from local on, all stages in the module. It shares no code with pass
 * pipeline, and takes nothing of the schedule for granted.
 *
 * First every message, which is a number from one stage to another: it has one send and one
 * receive of the same type. (That each send has one sent, and that the peer is there, the
 * verifier sees in a step alone.) Then the stages are gone
 * through together as if nothing could be buffered: a receive is done when its sender has
 * come to the send, a sent when the receiver has come to the receive, all else at once.
 * Whether that ends does not depend on who goes first, since nothing that one stage does
 * can take away what another one waits for. So if it ends, every run does, however much or
 * little is buffered.
 *
 * A stage counts as one here, though it is several ranks that also wait for each other in
 * collectives. They all run the same step, so they come to the collectives in the same
 * order, and a message goes between ranks of equal coordinates. If a run of the ranks stood
 * still, take what some rank stands at and what comes first in the order found here: all
 * that it waits for comes before that and is done on all ranks, so it can go on.
 *
 * Last, what a task gets from tasks of other stages, it must get in the same way for every
 * micro-batch. That finds messages whose numbers were exchanged between micro-batches, which
 * neither types nor order show. (With one micro-batch, or of what is computed between tasks,
 * it shows nothing.)
 *
 * At level planned also that nothing is written over what is being sent: flight_check,
 * which pass memplan runs on the step of one stage too. */
#include "ir/placement.h"
#include "passes/passes.h"
#include "passes/pipe/op_tasks.h"
#include <stdlib.h>

enum { SHOWN_STAGES = 8 }; /* of a circle */

typedef struct Message {
    int from, to;
    int64_t number;
    const Op *send, *receive;
    bool is_sending, is_receiving; /* a stage has come to its send, its receive */
} Message;

typedef struct End { /* a send or a receive */
    int from, to;
    int64_t number;
    const Op *op;
} End;

typedef struct Feed { /* what all calls of a task's function have as one operand */
    const Func *maker;
    int result, behind; /* micro-batches that the maker is behind */
    const Op *call;     /* the first; NULL: none yet */
} Feed;

typedef struct Meet {
    const Module *m;
    Arena *mem;
    int stages;
    const Func **step; /* by stage */
    Task **task;       /* by stage and op id */
    Message ***of_op;  /* by stage and op id: what the op is about */
    End *end;
    int nends, cap;
} Meet;

static int stage_of(const Op *op) {
    return op->fn->stage;
}

static int64_t number_of(const Op *op) {
    return op_int(op, "message", 0);
}

/* The other stage, as the op says. */
static int64_t peer_of(const Op *op) {
    return op_int(op, op->kind == OP_receive ? "from" : "to", -1);
}

/* ---- every message has one of each ---- */

static void find_steps(Meet *k) {
    k->step = NEW_ARRAY(k->mem, const Func *, (size_t)k->stages);
    for (Func *f = k->m->first; f; f = f->next) {
        func_number(f);
        if (!func_is_entry(f)) continue;
        k->step[f->stage] = f;
    }
    for (int s = 0; s < k->stages; s++)
        if (!k->step[s])
            fail(
                EXIT_CONFIG,
                "stage %d has no step: pass meet takes the steps of all %d stages, so it "
                "goes before pass stage",
                s, k->stages);
}

static int by_message(const void *a, const void *b) {
    const End *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    if (x->number != y->number) return x->number < y->number ? -1 : 1;
    return (x->op->kind == OP_receive) - (y->op->kind == OP_receive);
}

static void list_ends(Meet *k) {
    for (int s = 0; s < k->stages; s++)
        for (const Op *op = k->step[s]->first; op; op = op->next) {
            if (op->kind != OP_send && op->kind != OP_receive) continue;
            int peer = (int)peer_of(op);
            End e = {s, peer, number_of(op), op};
            if (op->kind == OP_receive) e = (End){peer, s, number_of(op), op};
            PUSH(k->mem, k->end, k->nends, k->cap, e);
        }
    if (k->nends) qsort(k->end, (size_t)k->nends, sizeof *k->end, by_message);
}

static const char *task_at(const Meet *k, const Op *op) {
    return op_task_text(k->mem, k->task[stage_of(op)][op->id]);
}

/* What a send sends or a receive receives: "%y of 0F3", or "%y before 1F3" where that is
 * the next task. */
static const char *value_text(const Meet *k, const Op *op) {
    const Value *v = op->kind == OP_receive ? op->out[0] : op->in[0];
    const Func *maker = v->def ? op_callee(v->def) : NULL;
    bool of_task = maker && maker->task;
    return arena_printf(k->mem, "%%%s %s %s", v->name, of_task ? "of" : "before",
                        task_at(k, of_task ? v->def : op));
}

static _Noreturn void refuse_message(const Meet *k, const End *e, const char *why) {
    fail_op(e->op, "message %lld from stage %d to stage %d (%s) %s", (long long)e->number,
            e->from, e->to, value_text(k, e->op), why);
}

static bool same_message(const End *a, const End *b) {
    return a->from == b->from && a->to == b->to && a->number == b->number;
}

/* The ends of one message, of which there are n; the sends come first. */
static void match_ends(const Meet *k, const End *e, int n) {
    const Op *send = e[0].op, *last = e[n - 1].op;
    if (send->kind == OP_receive) refuse_message(k, e, "is never sent");
    if (n == 1) refuse_message(k, e, "is never received");
    if (e[1].op->kind == OP_send) refuse_message(k, &e[1], "is sent twice");
    if (n > 2) refuse_message(k, &e[n - 1], "is received twice");
    const Type *a = &send->in[0]->ty, *b = &last->out[0]->ty;
    if (!type_same_shape(a, b))
        refuse_message(k, &e[1],
                       arena_printf(k->mem, "is sent as %s, and received as %s",
                                    type_text(k->mem, &k->m->mesh, a),
                                    type_text(k->mem, &k->m->mesh, b)));
    Message *m = NEW(k->mem, Message);
    *m = (Message){e->from, e->to, e->number, .send = send, .receive = last};
    k->of_op[e->from][send->id] = k->of_op[e->to][last->id] = m;
}

static void match_messages(Meet *k) {
    list_ends(k);
    for (int i = 0, n; i < k->nends; i += n) {
        for (n = 1; i + n < k->nends && same_message(&k->end[i], &k->end[i + n]);) n++;
        match_ends(k, &k->end[i], n);
    }
}

static const Op *token_maker(const Value *v) {
    return v->def && v->def->kind == OP_send ? v->def : NULL;
}

static void note_sent(const Meet *k, const Op *op) {
    const Op *send = token_maker(op->in[0]);
    if (!send || send->in[0] != op->in[1] || op->id < send->id)
        fail_op(op, "no send of %%%s before it has made its token", op->in[1]->name);
    Message *m = k->of_op[stage_of(op)][send->id];
    if (peer_of(op) != m->to || number_of(op) != m->number)
        fail_op(op,
                "waits for message %lld to stage %lld with the token of message %lld to "
                "stage %d",
                (long long)number_of(op), (long long)peer_of(op), (long long)m->number,
                m->to);
    k->of_op[m->from][op->id] = m;
}

/* A sent waits for the message that its token is of, and nobody else takes the token. */
static void match_waits(const Meet *k, const Func *f) {
    for (const Op *op = f->first; op; op = op->next) {
        if (op->kind == OP_sent) note_sent(k, op);
        for (int i = 0; i < op->nin; i++)
            if (token_maker(op->in[i]) && (op->kind != OP_sent || i > 0))
                fail_op(op, "the result of a send, %%%s, is for `sent` alone",
                        op->in[i]->name);
    }
    for (int i = 0; i < f->nret; i++)
        if (token_maker(f->ret[i]))
            fail_op(f->ret[i]->def, "the result of a send is for `sent` alone");
}

/* ---- nobody waits for ever ---- */

typedef struct Walk {
    const Op **at; /* by stage; NULL: it is done */
    int *ready, nready;
    bool *is_ready;
} Walk;

static void wake(Walk *w, int stage) {
    if (w->is_ready[stage]) return;
    w->is_ready[stage] = true;
    w->ready[w->nready++] = stage;
}

/* Comes to an op of a message; false: it waits there. */
static bool come_to(Walk *w, const Op *op, Message *m) {
    if (op->kind == OP_sent) return m->is_receiving;
    if (op->kind == OP_send) {
        m->is_sending = true;
        wake(w, m->to);
        return true;
    }
    if (!m->is_receiving) wake(w, m->from);
    m->is_receiving = true;
    return m->is_sending;
}

static void go_on(const Meet *k, Walk *w, int s) {
    for (const Op **at = &w->at[s]; *at; *at = (*at)->next) {
        Message *m = k->of_op[s][(*at)->id];
        if (m && !come_to(w, *at, m)) return;
    }
}

static Message *waits_for(const Meet *k, const Walk *w, int stage) {
    return k->of_op[stage][w->at[stage]->id];
}

/* The stage that it waits for. */
static int next_waiting(const Meet *k, const Walk *w, int stage) {
    const Message *m = waits_for(k, w, stage);
    return m->from == stage ? m->to : m->from;
}

static const char *line_text(const Meet *k, const Op *op) {
    return op->line ? arena_printf(k->mem, " (line %d)", op->line) : "";
}

static void add_wait(const Meet *k, const Walk *w, int stage, Text *out) {
    const Op *op = w->at[stage];
    const Message *m = waits_for(k, w, stage);
    const char *what = value_text(k, m->send);
    long long number = (long long)m->number;
    text_add(out, "\n    stage %d, before %s%s: ", stage, task_at(k, op),
             line_text(k, op));
    if (op->kind == OP_sent)
        text_add(out,
                 "sent of %s waits until stage %d receives message %lld, before %s%s",
                 what, m->to, number, task_at(k, m->receive), line_text(k, m->receive));
    else
        text_add(out,
                 "receive of %s waits until stage %d sends message %lld, before %s%s",
                 what, m->from, number, task_at(k, m->send), line_text(k, m->send));
}

/* Every stage that waits, waits for one that does too: one that is done has sent and
 * received all. So the way from any of them comes back to where it was. */
static _Noreturn void refuse_circle(const Meet *k, const Walk *w, int stage) {
    bool *seen = NEW_ARRAY(k->mem, bool, (size_t)k->stages);
    for (; !seen[stage]; stage = next_waiting(k, w, stage)) seen[stage] = true;
    Text head = text_new(k->mem), lines = text_new(k->mem);
    int at = stage, n = 0;
    do {
        int next = next_waiting(k, w, at);
        if (n < SHOWN_STAGES) {
            text_add(&head, "%s waits for stage %d", n ? ", which" : "", next);
            add_wait(k, w, at, &lines);
        }
        at = next;
        n++;
    } while (at != stage);
    if (n > SHOWN_STAGES) text_add(&head, ", and so on over %d stages", n);
    fail_op(w->at[stage], "stage %d%s, for ever%s", stage, head.s, lines.s);
}

static void walk_stages(const Meet *k) {
    Walk w = {.at = NEW_ARRAY(k->mem, const Op *, (size_t)k->stages),
              .ready = NEW_ARRAY(k->mem, int, (size_t)k->stages),
              .is_ready = NEW_ARRAY(k->mem, bool, (size_t)k->stages)};
    for (int s = k->stages - 1; s >= 0; s--) {
        w.at[s] = k->step[s]->first;
        wake(&w, s);
    }
    while (w.nready) {
        int s = w.ready[--w.nready];
        w.is_ready[s] = false;
        go_on(k, &w, s);
    }
    for (int s = 0; s < k->stages; s++)
        if (w.at[s]) refuse_circle(k, &w, s);
}

/* ---- tasks get the same of every micro-batch ---- */

typedef struct Feeds { /* of a function */
    const Func *f;
    Feed *operand;
    struct Feeds *next;
} Feeds;

static Feed *feeds_of(const Meet *k, Feeds **list, const Func *f) {
    Feeds *s = list[f->chunk * TASK_KINDS + (int)f->task];
    while (s && s->f != f) s = s->next;
    if (s) return s->operand;
    s = NEW(k->mem, Feeds);
    *s = (Feeds){f, NEW_ARRAY(k->mem, Feed, (size_t)f->narg + 1),
                 list[f->chunk * TASK_KINDS + (int)f->task]};
    list[f->chunk * TASK_KINDS + (int)f->task] = s;
    return s->operand;
}

/* A task may have several functions: the first forward of a step gathers parameters besides. */
static bool same_feed(const Feed *a, const Feed *b) {
    return a->maker->chunk == b->maker->chunk && a->maker->task == b->maker->task &&
           a->result == b->result && a->behind == b->behind;
}

/* Operand i of a call is what a task of another stage made. */
static void check_feed(const Meet *k, Feed *feed, const Op *call, int i) {
    const Message *m = k->of_op[stage_of(call)][call->in[i]->def->id];
    const Value *v = m->send->in[0];
    const Func *maker = op_callee(v->def);
    Task made = k->task[m->from][v->def->id], t = k->task[m->to][call->id];
    Feed here = {maker, v->nth, t.micro - made.micro, call};
    if (!feed->call) *feed = here;
    if (same_feed(feed, &here)) return;
    Task first = k->task[m->to][feed->call->id];
    fail_op(call,
            "%s gets result %d of %s as operand %d (%%%s, message %lld of stage %d), but "
            "%s, which runs the same function, result %d of %s",
            op_task_text(k->mem, t), v->nth, op_task_text(k->mem, made), i,
            call->in[i]->name, (long long)m->number, m->from, op_task_text(k->mem, first),
            feed->result,
            op_task_text(k->mem, (Task){feed->maker->task, feed->maker->chunk,
                                        first.micro - feed->behind}));
}

static bool is_from_task(const Meet *k, const Value *v) {
    if (!v->def || v->def->kind != OP_receive) return false;
    const Message *m = k->of_op[stage_of(v->def)][v->def->id];
    const Op *maker = m->send->in[0]->def;
    const Func *f = maker ? op_callee(maker) : NULL;
    return f && f->task;
}

static void check_feeds(const Meet *k) {
    Feeds **list = NEW_ARRAY(k->mem, Feeds *, (size_t)MAX_CHUNKS * TASK_KINDS);
    for (int s = 0; s < k->stages; s++)
        for (const Op *op = k->step[s]->first; op; op = op->next) {
            const Func *f = op_callee(op);
            if (!f || !f->task) continue;
            Feed *feed = feeds_of(k, list, f);
            for (int i = 0; i < op->nin; i++)
                if (is_from_task(k, op->in[i])) check_feed(k, &feed[i], op, i);
        }
}

/* ---- the pass ---- */

static void prove(Meet *k) {
    k->task = NEW_ARRAY(k->mem, Task *, (size_t)k->stages);
    k->of_op = NEW_ARRAY(k->mem, Message **, (size_t)k->stages);
    find_steps(k);
    for (int s = 0; s < k->stages; s++) {
        k->task[s] = op_tasks(k->mem, k->step[s]);
        k->of_op[s] = NEW_ARRAY(k->mem, Message *, (size_t)k->step[s]->nops + 1);
    }
    match_messages(k);
    for (int s = 0; s < k->stages; s++) match_waits(k, k->step[s]);
    walk_stages(k);
    check_feeds(k);
    for (int s = 0; s < k->stages && k->m->level == LEVEL_PLANNED; s++) {
        const char *why = flight_check(k->mem, k->step[s]);
        if (why) fail(EXIT_CONFIG, "%s", why);
    }
}

void pass_meet(Module *m, const PassOptions *o) {
    (void)o;
    if (!m->stages) return;
    Meet k = {.m = m, .stages = m->stages, .mem = arena_scratch()};
    prove(&k);
    arena_free(k.mem);
}
