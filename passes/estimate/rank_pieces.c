/* rank_pieces.c - see rank_pieces.h. */
#include "passes/estimate/rank_pieces.h"

/* ---- jitter and lateness ---- */

static void draw(RankWalk *w, Lanes *l, const JitterTable *j, uint32_t purpose, int n) {
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

void rank_take_late(RankWalk *w, Cause *mine, const Cause *theirs, double waited) {
    if (!w->run->any_late || !(waited > 0)) return;
    w->out->blame[theirs->who] += MIN(waited, theirs->by);
    *mine = *theirs;
}

/* ---- pieces; false: a message is missing ---- */

static bool run_compute(RankWalk *w, Lanes *l, const RankPiece *p) {
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

/* Nothing is computed for so many seconds; what the function has in flight goes on. */
static void idle_for(Lanes *l, int r, double seconds) {
    for (int k = l->frame[l->depth - 1].under_way; k < l->nunder_way; k++)
        flight_idle(&l->begun[l->under_way[k]][r].flight, l->clock[r], seconds);
    l->clock[r] += seconds;
}

/* A rank waits for a message, so what its callers have in flight is there before that. */
static void wait_for(Lanes *l, int r, double seconds) {
    for (int k = 0; k < l->frame[l->depth - 1].under_way; k++)
        flight_end_beside(&l->begun[l->under_way[k]][r].flight, l->clock[r]);
    idle_for(l, r, seconds);
}

static bool run_drain(RankWalk *w, Lanes *l, const RankPiece *p) {
    double *queued = l->queued[l->frame[l->depth - 1].func];
    for (int r = 0; r < w->run->ranks; r++) {
        double idle = MAX(0, p->queued * l->factor[r] - queued[r]);
        idle_for(l, r, idle);
        w->out->sums.compute += idle;
        queued[r] = 0;
    }
    return true;
}

/* When the last member of each group is there, and how long its collective takes. */
static void meet(RankWalk *w, Lanes *l, const RankPiece *p, const double *sending) {
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
static void blame_link(const RankWalk *w, const Lanes *l, const RankPiece *p, Cause *late,
                       int group) {
    const RankGroups *g = &l->groups[p->axes];
    if (!g->ring) return;
    const LinkDelay *d = p->pairs ? &g->pairs[group] : &g->ring[group];
    int all = w->run->ranks * w->run->p->parts.stages;
    if (d->link >= 0) add_late(late, all + d->link, p->seconds * (d->factor - 1));
}

static void begin_collective(RankWalk *w, Lanes *l, const RankPiece *p, double *sending) {
    const int *of = l->groups[p->axes].of;
    Begun *begun = l->begun[p->slot];
    l->under_way[l->nunder_way++] = p->slot;
    for (int r = 0; r < w->run->ranks; r++) {
        int k = of[r];
        double waits = w->top[k] - MAX(l->clock[r], sending[r]);
        sending[r] = w->top[k] + w->length[k];
        Flight flight = {.begin = w->top[k], .end = sending[r]};
        begun[r] = (Begun){flight, w->length[k], waits, p->axes, w->last[k]};
        blame_link(w, l, p, &begun[r].late, k);
    }
}

/* Of what rank r does between the two times but wait, while collectives are in flight: the part in
 * which one of these waits for other members. Returns it. */
static double take_waits(RankWalk *w, Lanes *l, int r, double from, double to) {
    double sum = 0;
    for (int k = 0; k < l->nunder_way; k++) {
        const Begun *b = &l->begun[l->under_way[k]][r];
        double begin = b->flight.begin;
        double waited = MAX(0, MIN(begin, to) - MAX(begin - b->waits, from));
        w->out->sums.wait[b->axes] += waited;
        rank_take_late(w, &l->late[r], &b->late, waited);
        sum += waited;
    }
    return sum;
}

static bool run_collective(RankWalk *w, Lanes *l, const RankPiece *p) {
    int func = l->frame[l->depth - 1].func;
    double *queued = l->queued[func], *sending = l->sending;
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
        messages += took - waited - take_waits(w, l, r, l->clock[r], there);
        rank_take_late(w, &l->late[r], &w->last[k], waited);
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
static bool run_arrive(RankWalk *w, Lanes *l, const RankPiece *p) {
    double *queued = l->queued[l->frame[l->depth - 1].func];
    const Begun *begun = l->begun[p->slot];
    double shown = 1 - w->run->p->parts.machine->hidden;
    for (int r = 0; r < w->run->ranks; r++)
        w->waited[r] = take_waits(w, l, r, l->clock[r], begun[r].flight.end);
    for (int k = 0; k < l->nunder_way; k++)
        if (l->under_way[k] == p->slot) l->under_way[k] = l->under_way[--l->nunder_way];
    for (int r = 0; r < w->run->ranks; r++) {
        const Flight *flight = &begun[r].flight;
        double wait = MAX(0, flight->end - l->clock[r]);
        double extra = shown * flight_beside(flight, l->clock[r]);
        w->out->sums.messages += wait - w->waited[r] + extra;
        wait_for(l, r, wait);
        l->clock[r] += extra;
        if (queued) queued[r] += wait + extra;
    }
    return true;
}

void rank_enter(Lanes *l, int func, int64_t times) {
    l->frame[l->depth++] =
        (Frame){.func = func, .left = times, .under_way = l->nunder_way};
}

static bool run_call(RankWalk *w, Lanes *l, const RankPiece *p) {
    (void)w;
    if (p->times > 0) rank_enter(l, p->callee, p->times);
    return true;
}

/* ---- messages ---- */

static Mail *mail_of(RankWalk *w, int message) {
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
static void leave_mail(RankWalk *w, int message) {
    MailBox *box = &w->box[message];
    if (++box->uses < 2) return;
    box->mail->next = w->spare;
    w->spare = box->mail;
    box->mail = NULL;
}

static bool run_send(RankWalk *w, Lanes *l, const RankPiece *p) {
    Mail *m = mail_of(w, p->message);
    for (int r = 0; r < w->run->ranks; r++)
        m->sent[r] = l->sending ? MAX(l->clock[r], l->sending[r]) : l->clock[r];
    memcpy(m->late, l->late, (size_t)w->run->ranks * sizeof *m->late);
    w->box[p->message].is_sent = true;
    return true;
}

/* What waits for a message waits for the collectives before it. */
static void wait_in_flight(RankWalk *w, Lanes *l) {
    for (int r = 0; r < w->run->ranks && l->sending; r++) {
        double wait = MAX(0, l->sending[r] - l->clock[r]);
        w->out->sums.messages += wait - take_waits(w, l, r, l->clock[r], l->sending[r]);
        wait_for(l, r, wait);
    }
}

/* A message is on its way when both ends are at it. */
static bool run_receive(RankWalk *w, Lanes *l, const RankPiece *p) {
    const RankRun *run = w->run;
    const StageMessage *message = &run->p->parts.message[p->message];
    const LinkDelay *delay = run->delay ? run->delay[p->message] : NULL;
    const JitterTable *j = run->message;
    MailBox *box = &w->box[p->message];
    if (!box->is_sent) return false;
    Mail *m = mail_of(w, p->message);
    wait_in_flight(w, l);
    draw(w, l, j, PURPOSE_MESSAGE, run->ranks);
    for (int r = 0; r < run->ranks; r++) {
        double factor = (delay ? delay[r].factor : 1) * (j ? w->draw[r] : 1);
        double took = message->seconds * factor, waited = m->sent[r] - l->clock[r];
        double off = MAX(m->sent[r], l->clock[r]);
        rank_take_late(w, &l->late[r], &m->late[r], waited);
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
static bool run_sent(RankWalk *w, Lanes *l, const RankPiece *p) {
    if (!w->box[p->message].is_there) return false;
    const Mail *m = w->box[p->message].mail;
    wait_in_flight(w, l);
    for (int r = 0; r < w->run->ranks; r++) {
        double wait = MAX(0, m->sent[r] - l->clock[r]);
        double own = MIN(wait, m->sent[r] - m->taken[r]);
        w->out->sums.stages += wait - own;
        w->out->sums.messages += own;
        rank_take_late(w, &l->late[r], &m->late[r], wait - own);
        wait_for(l, r, wait);
    }
    leave_mail(w, p->message);
    return true;
}

static bool (*const run_piece[RANK_PIECES])(RankWalk *, Lanes *, const RankPiece *) = {
    [RANK_COMPUTE] = run_compute, [RANK_COLLECTIVE] = run_collective,
    [RANK_ARRIVE] = run_arrive,   [RANK_CALL] = run_call,
    [RANK_DRAIN] = run_drain,     [RANK_SEND] = run_send,
    [RANK_RECEIVE] = run_receive, [RANK_SENT] = run_sent,
};

bool rank_piece_run(RankWalk *w, Lanes *l, const RankPiece *p) {
    return run_piece[p->kind](w, l, p);
}
