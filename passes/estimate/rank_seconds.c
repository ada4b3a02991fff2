/* rank_seconds.c - see rank_seconds.h. A stage goes through its program piece by piece, all of
 * its ranks at once; it stands still where a message is not there that another stage has yet
 * to send. The order in which stages go on changes nothing: clocks are all that counts. */
#include "passes/estimate/rank_pieces.h"

/* ---- what the shown rank did ---- */

static int add_event(RankWalk *w, Lanes *l, RankEvent e) {
    RankLog *log = w->out->log ? &w->out->log[l->stage] : NULL;
    if (!log) return 0;
    PUSH(w->out_mem, log->event, log->n, log->cap, e);
    return log->n - 1;
}

/* A piece at frame `depth`, that it came to at `begin`. */
static void note_piece(RankWalk *w, Lanes *l, const RankPiece *p, int func,
                       double begin) {
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
static void note_run(RankWalk *w, Lanes *l, const Frame *f, bool again) {
    RankLog *log = w->out->log ? &w->out->log[l->stage] : NULL;
    if (!log || l->depth < 1) return;
    RankEvent *e = &log->event[f->event];
    e->end = l->clock[w->show.rank];
    RankEvent next = {e->piece, e->func, e->end, e->end, false};
    if (again) l->frame[l->depth].event = add_event(w, l, next);
}

/* The shown rank has come to the piece of the entry, or behind it. */
static void note_task(RankWalk *w, Lanes *l, const RankPiece *p, bool end) {
    if (w->show.rank < 0 || !p->is_task) return;
    StageTime *t = &w->out->shown[l->stage];
    if (end)
        t->task[t->ntasks++] = (TaskTime){p->task, l->task_begin, l->clock[w->show.rank]};
    else
        l->task_begin = l->clock[w->show.rank];
}

/* The function of the last frame has ended: it runs again, or its caller goes on. */
static void end_run(RankWalk *w, Lanes *l) {
    Frame f = l->frame[--l->depth];
    note_run(w, l, &f, f.left > 1);
    if (f.left > 1) {
        int event = l->frame[l->depth].event;
        rank_enter(l, f.func, f.left - 1);
        l->frame[l->depth - 1].event = event;
    } else if (l->depth == 1) {
        Frame *entry = &l->frame[0];
        note_task(w, l, &l->p->func[entry->func].piece[entry->at - 1], true);
    }
}

/* ---- stages ---- */

/* Until a message is missing, or the step ends; was anything done? */
static bool go_on(RankWalk *w, Lanes *l) {
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
        if (!rank_piece_run(w, l, p)) return any;
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
    l.begun = NEW_ARRAY(mem, Begun *, (size_t)p->slots + 1);
    for (int s = 0; s < p->slots; s++) l.begun[s] = NEW_ARRAY(mem, Begun, n);
    l.under_way = NEW_ARRAY(mem, int, (size_t)p->slots + 1);
    for (int f = 0; f < p->nfuncs; f++) {
        if (!p->func[f].communicates) continue;
        if (run->p->parts.machine->issue_seconds > 0)
            l.queued[f] = NEW_ARRAY(mem, double, n);
        if (p->func[f].begins && !l.sending) l.sending = NEW_ARRAY(mem, double, n);
    }
    l.frame = NEW_ARRAY(mem, Frame, funcs);
    return l;
}

static void end_step(RankWalk *w) {
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
            rank_take_late(w, &w->lanes[s].late[r], last, left);
        }
        if (w->show.rank >= 0) out->shown[s].end = w->lanes[s].clock[w->show.rank];
    }
}

static void steps_of_stages(RankWalk *w) {
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
    RankWalk w = {
        .mem = own, .run = run, .out_mem = mem, .out = &out, .step = step, .show = show};
    w.lanes = NEW_ARRAY(own, Lanes, (size_t)parts->stages);
    w.box = NEW_ARRAY(own, MailBox, (size_t)parts->nmessages + 1);
    w.draw = NEW_ARRAY(own, double, n);
    w.waited = NEW_ARRAY(own, double, n);
    w.top = NEW_ARRAY(own, double, n);
    w.length = NEW_ARRAY(own, double, n);
    w.last = NEW_ARRAY(own, Cause, n);
    w.who = NEW_ARRAY(own, int, n);
    for (int s = 0; s < parts->stages; s++) {
        w.lanes[s] = lanes_new(own, run, s);
        rank_enter(&w.lanes[s], run->p->stage[s].entry, 1);
    }
    steps_of_stages(&w);
    end_step(&w);
    arena_free(own);
    return out;
}
