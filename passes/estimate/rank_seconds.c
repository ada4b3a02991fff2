/* rank_seconds.c - see rank_seconds.h. A stage goes through its program piece by piece, all of
 * its ranks at once; it stands still where a message is not there that another stage has yet
 * to send. The order in which stages go on changes nothing: clocks are all that counts. */
#include "passes/estimate/rank_run.h"
#include <math.h>

/* ---- what a step works on ---- */

/* Why a rank is as late as it is, but for jitter: of all lateness on the way to its clock, who is the majority
 * of it and by how much, as in a vote where each second against takes one away (Boyer and
 * Moore, "MJRTY", 1991). */
typedef struct Cause {
    int who; /* a rank; behind all ranks a slow link */
    double by;
} Cause;

/* A collective in flight, of a rank. */
typedef struct Begun {
    Flight flight;
    double seconds;
    Cause late; /* of the member that began last */
} Begun;

/* A message in flight, of each pair. */
typedef struct Mail Mail;
struct Mail {
    double *sent,
        *taken;  /* when; once both are there: when it arrives, and is on its way */
    Cause *late; /* of the sender; then of the one that came last */
    Mail *next;
};
typedef struct MailBox {
    Mail *mail;
    bool is_sent, is_there;
    int uses;
} MailBox;

typedef struct Frame {
    int func, at;
    int64_t left;  /* runs */
    int event;     /* of its run, in the log */
    int under_way; /* collectives of its callers */
} Frame;

typedef struct Lanes { /* the ranks of a stage */
    const StageProgram *p;
    int stage;
    const int *of_all; /* by rank: its number of all ranks */
    double *clock;
    Cause *late;
    const double *factor;
    const SlowOfStage *slow;
    const RankGroups *groups;
    double **queued,
        **sending;  /* by function, where there is a queue, and late collectives */
    Begun **begun;  /* by slot */
    int *under_way; /* slots, those of the last frame behind those of its callers */
    int nunder_way;
    Frame *frame;
    int depth;
    uint32_t number; /* of pieces that draw */
    double task_begin;
} Lanes;

typedef struct Walk {
    Arena *mem;
    const RankRun *run;
    Arena *out_mem;
    RankStep *out;
    int64_t step;
    RankShow show;
    Lanes *lanes;
    MailBox *box; /* by message */
    Mail *spare;
    double *draw;         /* by rank or group */
    double *top, *length; /* by group */
    Cause *last;
    int *who;
} Walk;

static void draw(Walk *w, Lanes *l, const JitterTable *j, uint32_t purpose, int n) {
    JitterKey key = {w->run->noise->seed, (uint32_t)w->step,
                     purpose << 24 | (uint32_t)l->stage, l->number++};
    if (j) jitter_draw(j, &key, n, w->draw);
}

static void add_late(Cause *l, int who, double by) {
    if (l->who == who) {
        l->by = MAX(0, l->by + by);
    } else if (by > l->by) {
        *l = (Cause){who, by - l->by};
    } else if (by > 0) {
        l->by -= by;
    }
}

/* A rank has waited for another: its lateness is that one's. */
static void take_late(Walk *w, Cause *mine, const Cause *theirs, double waited) {
    if (!w->run->any_late || !(waited > 0)) return;
    w->out->blame[theirs->who] += MIN(waited, theirs->by);
    *mine = *theirs;
}

/* ---- pieces; false: a message is missing ---- */

static bool run_compute(Walk *w, Lanes *l, const RankPiece *p) {
    const JitterTable *j = w->run->compute;
    double *queued = l->queued[l->frame[l->depth - 1].func], sum = 0;
    draw(w, l, j, PURPOSE_COMPUTE, w->run->ranks);
    for (int r = 0; r < w->run->ranks; r++) {
        double factor = j ? l->factor[r] * w->draw[r] : l->factor[r];
        l->clock[r] += p->seconds * factor;
        sum += p->seconds * factor;
        if (queued) queued[r] += p->queued * factor;
    }
    for (int i = 0; i < l->slow->n; i++) {
        int r = l->slow->rank[i];
        add_late(&l->late[r], l->of_all[r], p->seconds * (l->factor[r] - 1));
    }
    w->out->sums.compute += sum;
    return true;
}

/* A rank waits for so many seconds; what its function has in flight goes on. */
static void wait_for(Lanes *l, int r, double seconds) {
    for (int k = l->frame[l->depth - 1].under_way; k < l->nunder_way; k++)
        flight_idle(&l->begun[l->under_way[k]][r].flight, l->clock[r], seconds);
    l->clock[r] += seconds;
}

static bool run_drain(Walk *w, Lanes *l, const RankPiece *p) {
    double *queued = l->queued[l->frame[l->depth - 1].func];
    for (int r = 0; r < w->run->ranks; r++) {
        double idle = MAX(0, p->queued * l->factor[r] - queued[r]);
        wait_for(l, r, idle);
        w->out->sums.compute += idle;
        queued[r] = 0;
    }
    return true;
}

/* When the last member of each group is there, and how long its collective takes. */
static void meet(Walk *w, Lanes *l, const RankPiece *p, const double *sending) {
    const RankGroups *g = &l->groups[p->axes];
    const LinkDelay *delay = p->pairs ? g->pairs : g->ring;
    const JitterTable *j = w->run->message;
    draw(w, l, j, PURPOSE_COLLECTIVE, g->n);
    for (int k = 0; k < g->n; k++) {
        w->top[k] = -1;
        w->length[k] = p->seconds * (delay ? delay[k].factor : 1);
        if (j) w->length[k] *= w->draw[k];
    }
    for (int r = 0; r < w->run->ranks; r++) {
        int k = g->of[r];
        double there = sending ? MAX(l->clock[r], sending[r]) : l->clock[r];
        if (there > w->top[k]) w->top[k] = there, w->who[k] = r;
    }
    for (int k = 0; k < g->n; k++) w->last[k] = l->late[w->who[k]];
}

/* What a slow link adds is its own. */
static void blame_link(const Walk *w, const Lanes *l, const RankPiece *p, Cause *late,
                       int group) {
    const RankGroups *g = &l->groups[p->axes];
    if (!g->ring) return;
    const LinkDelay *d = p->pairs ? &g->pairs[group] : &g->ring[group];
    int all = w->run->ranks * w->run->p->parts.stages;
    if (d->link >= 0) add_late(late, all + d->link, p->seconds * (d->factor - 1));
}

static void begin_collective(Walk *w, Lanes *l, const RankPiece *p, double *sending) {
    const int *of = l->groups[p->axes].of;
    Begun *begun = l->begun[p->slot];
    l->under_way[l->nunder_way++] = p->slot;
    for (int r = 0; r < w->run->ranks; r++) {
        int k = of[r];
        sending[r] = w->top[k] + w->length[k];
        Flight flight = {.begin = w->top[k], .end = sending[r]};
        begun[r] = (Begun){flight, w->length[k], w->last[k]};
        blame_link(w, l, p, &begun[r].late, k);
    }
}

static bool run_collective(Walk *w, Lanes *l, const RankPiece *p) {
    int func = l->frame[l->depth - 1].func;
    double *queued = l->queued[func], *sending = l->sending[func];
    const int *of = l->groups[p->axes].of;
    double waits = 0, messages = 0;
    meet(w, l, p, sending);
    if (p->slot >= 0) {
        begin_collective(w, l, p, sending);
        return true;
    }
    for (int r = 0; r < w->run->ranks; r++) {
        int k = of[r];
        double there = sending ? MAX(l->clock[r], sending[r]) : l->clock[r];
        double waited = w->top[k] - there, took = w->top[k] + w->length[k] - l->clock[r];
        waits += waited;
        messages += took - waited;
        take_late(w, &l->late[r], &w->last[k], waited);
        blame_link(w, l, p, &l->late[r], k);
        wait_for(l, r, took);
        if (sending) sending[r] = l->clock[r];
        if (queued) queued[r] += took;
    }
    w->out->sums.wait[p->axes] += waits;
    w->out->sums.messages += messages;
    return true;
}

/* As add_arrival of func_seconds.c has it. */
static bool run_arrive(Walk *w, Lanes *l, const RankPiece *p) {
    double *queued = l->queued[l->frame[l->depth - 1].func];
    const Begun *begun = l->begun[p->slot];
    double shown = 1 - w->run->p->parts.machine->hidden;
    for (int k = 0; k < l->nunder_way; k++)
        if (l->under_way[k] == p->slot) l->under_way[k] = l->under_way[--l->nunder_way];
    for (int r = 0; r < w->run->ranks; r++) {
        const Begun *b = &begun[r];
        double wait = MAX(0, b->flight.end - l->clock[r]), own = MIN(wait, b->seconds);
        double extra = shown * flight_beside(&b->flight, l->clock[r]);
        w->out->sums.wait[p->axes] += wait - own;
        w->out->sums.messages += own + extra;
        take_late(w, &l->late[r], &b->late, wait - own);
        wait_for(l, r, wait);
        l->clock[r] += extra;
        if (queued) queued[r] += wait + extra;
    }
    return true;
}

static void enter(Walk *w, Lanes *l, int func, int64_t times) {
    size_t bytes = (size_t)w->run->ranks * sizeof(double);
    if (l->sending[func]) memset(l->sending[func], 0, bytes);
    l->frame[l->depth++] =
        (Frame){.func = func, .left = times, .under_way = l->nunder_way};
}

static bool run_call(Walk *w, Lanes *l, const RankPiece *p) {
    if (p->times > 0) enter(w, l, p->callee, p->times);
    return true;
}

/* ---- messages ---- */

static Mail *mail_of(Walk *w, int message) {
    MailBox *box = &w->box[message];
    size_t n = (size_t)w->run->ranks;
    if (box->mail) return box->mail;
    Mail *m = w->spare;
    if (m) {
        w->spare = m->next;
    } else {
        m = NEW(w->mem, Mail);
        m->sent = NEW_ARRAY(w->mem, double, n);
        m->taken = NEW_ARRAY(w->mem, double, n);
        m->late = NEW_ARRAY(w->mem, Cause, n);
    }
    return box->mail = m;
}

/* Both ends are done with it. */
static void leave_mail(Walk *w, int message) {
    MailBox *box = &w->box[message];
    if (++box->uses < 2) return;
    box->mail->next = w->spare;
    w->spare = box->mail;
    box->mail = NULL;
}

static bool run_send(Walk *w, Lanes *l, const RankPiece *p) {
    Mail *m = mail_of(w, p->message);
    memcpy(m->sent, l->clock, (size_t)w->run->ranks * sizeof *m->sent);
    memcpy(m->late, l->late, (size_t)w->run->ranks * sizeof *m->late);
    w->box[p->message].is_sent = true;
    return true;
}

/* A message is on its way when both ends are at it. */
static bool run_receive(Walk *w, Lanes *l, const RankPiece *p) {
    const RankRun *run = w->run;
    const StageMessage *message = &run->p->parts.message[p->message];
    const LinkDelay *delay = run->delay ? run->delay[p->message] : NULL;
    const JitterTable *j = run->message;
    MailBox *box = &w->box[p->message];
    if (!box->is_sent) return false;
    Mail *m = mail_of(w, p->message);
    draw(w, l, j, PURPOSE_MESSAGE, run->ranks);
    for (int r = 0; r < run->ranks; r++) {
        double factor = (delay ? delay[r].factor : 1) * (j ? w->draw[r] : 1);
        double took = message->seconds * factor, waited = m->sent[r] - l->clock[r];
        double off = MAX(m->sent[r], l->clock[r]);
        take_late(w, &l->late[r], &m->late[r], waited);
        if (delay && delay[r].link >= 0)
            add_late(&l->late[r], run->ranks * run->p->parts.stages + delay[r].link,
                     message->seconds * (delay[r].factor - 1));
        m->late[r] = l->late[r];
        w->out->sums.stages += MAX(0, waited);
        w->out->sums.messages += took;
        m->taken[r] = off;
        m->sent[r] = off + took;
        wait_for(l, r, m->sent[r] - l->clock[r]);
    }
    box->is_there = true;
    leave_mail(w, p->message);
    return true;
}

/* The sender waits until it is there. */
static bool run_sent(Walk *w, Lanes *l, const RankPiece *p) {
    if (!w->box[p->message].is_there) return false;
    const Mail *m = w->box[p->message].mail;
    for (int r = 0; r < w->run->ranks; r++) {
        double wait = MAX(0, m->sent[r] - l->clock[r]);
        double own = MIN(wait, m->sent[r] - m->taken[r]);
        w->out->sums.stages += wait - own;
        w->out->sums.messages += own;
        take_late(w, &l->late[r], &m->late[r], wait - own);
        wait_for(l, r, wait);
    }
    leave_mail(w, p->message);
    return true;
}

/* ---- stages ---- */

static bool (*const run_piece[RANK_PIECES])(Walk *, Lanes *, const RankPiece *) = {
    [RANK_COMPUTE] = run_compute, [RANK_COLLECTIVE] = run_collective,
    [RANK_ARRIVE] = run_arrive,   [RANK_CALL] = run_call,
    [RANK_DRAIN] = run_drain,     [RANK_SEND] = run_send,
    [RANK_RECEIVE] = run_receive, [RANK_SENT] = run_sent,
};

/* ---- what the shown rank did ---- */

static int add_event(Walk *w, Lanes *l, RankEvent e) {
    RankLog *log = w->out->log ? &w->out->log[l->stage] : NULL;
    if (!log) return 0;
    PUSH(w->out_mem, log->event, log->n, log->cap, e);
    return log->n - 1;
}

/* A piece at frame `depth`, that it came to at `begin`. */
static void note_piece(Walk *w, Lanes *l, const RankPiece *p, int func, double begin) {
    if (!w->out->log) return;
    double now = l->clock[w->show.rank];
    RankEvent e = {p, func, begin, now, false};
    if (p->kind == RANK_CALL && p->times > 0)
        l->frame[l->depth - 1].event = add_event(w, l, e);
    else if (now > begin)
        add_event(w, l, e);
    if (p->kind != RANK_ARRIVE) return;
    const Begun *b = &l->begun[p->slot][w->show.rank];
    add_event(w, l,
              (RankEvent){p, func, b->flight.end - b->seconds, b->flight.end, true});
}

/* The function of the last frame has run once: it is called once more. */
static void note_run(Walk *w, Lanes *l, const Frame *f, bool again) {
    RankLog *log = w->out->log ? &w->out->log[l->stage] : NULL;
    if (!log || l->depth < 1) return;
    RankEvent *e = &log->event[f->event];
    e->end = l->clock[w->show.rank];
    RankEvent next = {e->piece, e->func, e->end, e->end, false};
    if (again) l->frame[l->depth].event = add_event(w, l, next);
}

/* The shown rank has come to the piece of the entry, or behind it. */
static void note_task(Walk *w, Lanes *l, const RankPiece *p, bool end) {
    if (w->show.rank < 0 || !p->is_task) return;
    StageTime *t = &w->out->shown[l->stage];
    if (end)
        t->task[t->ntasks++] = (TaskTime){p->task, l->task_begin, l->clock[w->show.rank]};
    else
        l->task_begin = l->clock[w->show.rank];
}

/* The function of the last frame has ended: it runs again, or its caller goes on. */
static void end_run(Walk *w, Lanes *l) {
    Frame f = l->frame[--l->depth];
    note_run(w, l, &f, f.left > 1);
    if (f.left > 1) {
        int event = l->frame[l->depth].event;
        enter(w, l, f.func, f.left - 1);
        l->frame[l->depth - 1].event = event;
    } else if (l->depth == 1) {
        Frame *entry = &l->frame[0];
        note_task(w, l, &l->p->func[entry->func].piece[entry->at - 1], true);
    }
}

/* ---- stages ---- */

/* Until a message is missing, or the step ends; was anything done? */
static bool go_on(Walk *w, Lanes *l) {
    bool any = false;
    while (l->depth) {
        Frame *f = &l->frame[l->depth - 1];
        const RankFunc *func = &l->p->func[f->func];
        if (f->at == func->n) {
            end_run(w, l);
            continue;
        }
        const RankPiece *p = &func->piece[f->at];
        int depth = l->depth;
        double begin = l->clock[MAX(w->show.rank, 0)];
        note_task(w, l, p, false);
        if (!run_piece[p->kind](w, l, p)) return any;
        f->at++;
        note_piece(w, l, p, f->func, begin);
        if (l->depth == depth) note_task(w, l, p, true);
        any = true;
    }
    return any;
}

static Lanes lanes_new(Arena *mem, const RankRun *run, int stage) {
    const StageProgram *p = &run->p->stage[stage];
    size_t n = (size_t)run->ranks, funcs = (size_t)p->nfuncs + 1;
    Lanes l = {.p = p, .stage = stage, .of_all = run->number[stage]};
    l.clock = NEW_ARRAY(mem, double, n);
    l.late = NEW_ARRAY(mem, Cause, n);
    for (int r = 0; r < run->ranks; r++) l.late[r].who = l.of_all[r];
    l.factor = run->factor[stage];
    l.slow = &run->slow[stage];
    l.groups = run->groups[stage];
    l.queued = NEW_ARRAY(mem, double *, funcs);
    l.sending = NEW_ARRAY(mem, double *, funcs);
    l.begun = NEW_ARRAY(mem, Begun *, (size_t)p->slots + 1);
    for (int s = 0; s < p->slots; s++) l.begun[s] = NEW_ARRAY(mem, Begun, n);
    l.under_way = NEW_ARRAY(mem, int, (size_t)p->slots + 1);
    for (int f = 0; f < p->nfuncs; f++) {
        if (!p->func[f].communicates) continue;
        if (run->p->parts.machine->issue_seconds > 0)
            l.queued[f] = NEW_ARRAY(mem, double, n);
        if (p->func[f].begins) l.sending[f] = NEW_ARRAY(mem, double, n);
    }
    l.frame = NEW_ARRAY(mem, Frame, funcs);
    return l;
}

static void end_step(Walk *w) {
    const RankRun *run = w->run;
    const Cause *last = NULL;
    RankStep *out = w->out;
    for (int s = 0; s < run->p->parts.stages; s++)
        for (int r = 0; r < run->ranks; r++)
            if (!last || w->lanes[s].clock[r] > out->seconds) {
                out->seconds = w->lanes[s].clock[r];
                last = &w->lanes[s].late[r];
            }
    for (int s = 0; s < run->p->parts.stages; s++) {
        for (int r = 0; r < run->ranks; r++) {
            double left = out->seconds - w->lanes[s].clock[r];
            out->sums.end += left;
            take_late(w, &w->lanes[s].late[r], last, left);
        }
        if (w->show.rank >= 0) out->shown[s].end = w->lanes[s].clock[w->show.rank];
    }
}

static void steps_of_stages(Walk *w) {
    int stages = w->run->p->parts.stages;
    for (bool any = true; any;) {
        any = false;
        for (int s = 0; s < stages; s++) any |= go_on(w, &w->lanes[s]);
    }
    for (int s = 0; s < stages; s++) check(!w->lanes[s].depth);
}

static RankStep step_new(Arena *mem, const RankRun *run, RankShow show) {
    int stages = run->p->parts.stages;
    RankStep out = {0};
    out.sums.wait = NEW_ARRAY(mem, double, (size_t)run->axes_sets);
    out.blame =
        NEW_ARRAY(mem, double, (size_t)run->ranks *(size_t)stages + (size_t)run->links.n);
    if (show.rank < 0) return out;
    if (show.pieces) out.log = NEW_ARRAY(mem, RankLog, (size_t)stages);
    out.shown = NEW_ARRAY(mem, StageTime, (size_t)stages);
    for (int s = 0; s < stages; s++)
        out.shown[s].task = NEW_ARRAY(mem, TaskTime, (size_t)run->p->stage[s].tasks + 1);
    return out;
}

RankStep rank_run_step(Arena *mem, const RankRun *run, int64_t step, RankShow show) {
    Arena *own = arena_new();
    const StepParts *parts = &run->p->parts;
    size_t n = (size_t)run->ranks;
    RankStep out = step_new(mem, run, show);
    Walk w = {
        .mem = own, .run = run, .out_mem = mem, .out = &out, .step = step, .show = show};
    w.lanes = NEW_ARRAY(own, Lanes, (size_t)parts->stages);
    w.box = NEW_ARRAY(own, MailBox, (size_t)parts->nmessages + 1);
    w.draw = NEW_ARRAY(own, double, n);
    w.top = NEW_ARRAY(own, double, n);
    w.length = NEW_ARRAY(own, double, n);
    w.last = NEW_ARRAY(own, Cause, n);
    w.who = NEW_ARRAY(own, int, n);
    for (int s = 0; s < parts->stages; s++) {
        w.lanes[s] = lanes_new(own, run, s);
        enter(&w, &w.lanes[s], run->p->stage[s].entry, 1);
    }
    steps_of_stages(&w);
    end_step(&w);
    arena_free(own);
    return out;
}
