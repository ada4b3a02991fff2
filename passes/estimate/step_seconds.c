/* step_seconds.c - see step_seconds.h. First how long each function takes, callees first;
 * functions are on one stage, and a collective that begins in one ends there. Then the steps
 * of all stages together: each is a row of ops that take so long, and messages. */
#include "passes/estimate/step_seconds.h"
#include "passes/estimate/step_parts.h"
#include "passes/pipe/op_tasks.h"
#include <math.h>

/* ---- steps as rows of pieces ---- */

typedef enum PieceKind {
    PIECE_WORK,
    PIECE_SEND,
    PIECE_RECEIVE,
    PIECE_SENT,
    PIECE_END
} PieceKind;

typedef struct Piece {
    PieceKind kind;
    FuncTime time; /* of work */
    double issued; /* of that: while the queue of ops is empty */
    const Op *op;  /* a message's; of work the call that is a task, or NULL */
    int message;
} Piece;

/* A message: when it was begun, its receive reached, and it arrived; -1: not yet. */
typedef struct Way {
    double sent, taken, there;
} Way;

typedef struct Worker { /* a stage at work */
    const StageParts *parts;
    const Op *op; /* behind the piece */
    OpClock clock;
    FuncTime before; /* on that clock, where the piece began */
    Piece piece;     /* that it is at */
    double left;     /* of that */
    double since;    /* when it came to it */
    double speed;    /* of its work: 1 is that of a stage which works alone */
    Task *task;      /* by op id */
    StageTime *t;
} Worker;

typedef struct Race {
    const StepParts *parts;
    Worker *w;
    int stages;
    bool *works; /* by stage */
    Way *way;    /* by message */
    double now;
} Race;

/* Makes what is on the clock since the last piece the next one; false: that is nothing. */
static bool take_work(Worker *w, const Op *task) {
    const FuncTime *now = &w->clock.t, *before = &w->before;
    Piece p = {.kind = PIECE_WORK, .op = task};
    p.time.all = now->all - before->all;
    p.time.hidden = now->hidden - before->hidden;
    for (int i = 0; i < WORK_KINDS; i++) p.time.kind[i] = now->kind[i] - before->kind[i];
    p.time.issue = now->issue - before->issue;
    p.time.queued = now->queued - before->queued;
    double busy = p.time.all;
    func_time_drain(&p.time);
    p.issued = p.time.all - busy;
    w->before = w->clock.t;
    w->piece = p;
    return p.time.all > 0 || task;
}

static Piece message_piece(const Worker *w, const Op *op) {
    PieceKind kind = op->kind == OP_receive ? PIECE_RECEIVE
                     : op->kind == OP_send  ? PIECE_SEND
                                            : PIECE_SENT;
    return (Piece){.kind = kind, .op = op, .message = w->parts->message[op->id]};
}

/* Work between messages and tasks is one piece, a task is one, a message is one. They are made
 * one by one, as collectives that were begun go on while a message is waited for, which comes
 * behind them. */
static void next_piece(Worker *w) {
    const FuncSizes *sizes = &w->parts->sizes;
    int nth = w->parts->entry->nth;
    for (; w->op; w->op = w->op->next) {
        const Op *op = w->op;
        bool message = w->parts->message[op->id] >= 0, task = op_is_task(op);
        int row = sizes->row[nth][op->id];
        if (message && op->kind != OP_send) clock_wait_in_flight(&w->clock);
        if ((message || task) && take_work(w, NULL)) return;
        if (message) w->piece = message_piece(w, op);
        if (row >= 0) clock_add(&w->clock, &w->parts->timing, &sizes->func[nth], row);
        if (task) take_work(w, op);
        if (!message && !task) continue;
        w->op = op->next;
        return;
    }
    if (!take_work(w, NULL)) w->piece.kind = PIECE_END;
}

/* ---- all stages in time ---- */

static void note_who_works(Race *k) {
    for (int s = 0; s < k->stages; s++) k->works[s] = k->w[s].piece.kind == PIECE_WORK;
}

/* A stage that waits sees a message when it has a core: those that compute on it give it up
 * from time to time, or when they wait themselves. Whoever comes last to a message does what
 * there is to do. */
static double arrival(const Race *k, const Worker *w) {
    const Way *y = &k->way[w->piece.message];
    bool waits =
        w->piece.kind == PIECE_RECEIVE ? y->sent > y->taken : y->there > w->since;
    double notice = k->parts->machine->notice_seconds;
    if (!waits || !(notice > 0) ||
        !sharing_is_crowded(&k->parts->share, (int)(w - k->w), k->works))
        notice = 0;
    return MAX(k->now, y->there + notice);
}

/* When the piece that the stage is at is done, if nothing else changes. */
static double piece_end(const Race *k, const Worker *w) {
    const Piece *p = &w->piece;
    if (p->kind == PIECE_WORK) return k->now + w->left / w->speed;
    if (p->kind == PIECE_SEND) return k->now;
    if (p->kind == PIECE_END || k->way[p->message].there < 0) return INFINITY;
    return arrival(k, w);
}

/* A message is on its way when both ends are at it. */
static void set_off(Race *k, int message) {
    Way *y = &k->way[message];
    if (y->sent >= 0 && y->taken >= 0)
        y->there = MAX(y->sent, y->taken) + k->parts->message[message].seconds;
}

static void begin_piece(Race *k, Worker *w) {
    w->since = k->now;
    next_piece(w);
    if (w->piece.kind == PIECE_WORK) w->left = w->piece.time.all;
    if (w->piece.kind != PIECE_RECEIVE) return;
    k->way[w->piece.message].taken = k->now;
    set_off(k, w->piece.message);
}

static void note_work(Race *k, Worker *w, const Piece *p) {
    StageTime *t = w->t;
    double took = k->now - w->since;
    double stretch = p->time.all > 0 ? took / p->time.all : 1;
    for (int i = 0; i < WORK_KINDS; i++) t->kind[i] += stretch * p->time.kind[i];
    t->hidden += p->time.hidden;
    if (p->op && k->stages > 1)
        t->task[t->ntasks++] = (TaskTime){w->task[p->op->id], w->since, k->now};
}

static void end_piece(Race *k, Worker *w) {
    const Piece *p = &w->piece;
    double waited = k->now - w->since;
    if (p->kind == PIECE_WORK) {
        note_work(k, w, p);
        clock_wait(&w->clock, p->issued);
    } else if (p->kind == PIECE_SEND) {
        k->way[p->message].sent = k->now + clock_in_flight(&w->clock);
        set_off(k, p->message);
    } else {
        w->t->waiting += waited;
        w->t->sending += MIN(waited, k->parts->message[p->message].seconds);
        clock_wait(&w->clock, waited);
    }
    w->t->end = k->now;
    begin_piece(k, w);
}

static void run_race(Race *k) {
    for (int s = 0; s < k->stages; s++) begin_piece(k, &k->w[s]);
    for (;;) {
        double next = INFINITY;
        int first = -1;
        note_who_works(k);
        for (int s = 0; s < k->stages; s++) {
            /* what its own ranks on one place do to each other is in its pieces */
            if (k->works[s]) k->w[s].speed = sharing_speed(&k->parts->share, s, k->works);
            double end = piece_end(k, &k->w[s]);
            if (end < next) next = end, first = s;
        }
        if (first < 0) return;
        for (int s = 0; s < k->stages; s++)
            if (k->works[s]) k->w[s].left -= (next - k->now) * k->w[s].speed;
        k->now = next;
        end_piece(k, &k->w[first]);
    }
}

/* ---- the step ---- */

static int count_tasks(const Func *entry) {
    int n = 0;
    for (const Op *op = entry->first; op; op = op->next) n += op_is_task(op);
    return n;
}

StepTime step_seconds(Arena *mem, const Machine *m, const Func *const *entry, int stages,
                      int threads) {
    Arena *own = arena_new();
    StepParts parts = step_parts(own, m, entry, stages, threads);
    Race k = {.parts = &parts,
              .stages = stages,
              .w = NEW_ARRAY(own, Worker, (size_t)stages),
              .works = NEW_ARRAY(own, bool, (size_t)stages),
              .way = NEW_ARRAY(own, Way, (size_t)parts.nmessages + 1)};
    StepTime t = {.stage = NEW_ARRAY(mem, StageTime, (size_t)stages), .stages = stages};
    for (int i = 0; i < parts.nmessages; i++) k.way[i] = (Way){-1, -1, -1};
    for (int s = 0; s < stages; s++) {
        k.w[s] = (Worker){.parts = &parts.stage[s],
                          .op = entry[s]->first,
                          .task = op_tasks(own, entry[s]),
                          .t = &t.stage[s]};
        t.stage[s].task = NEW_ARRAY(mem, TaskTime, (size_t)count_tasks(entry[s]) + 1);
    }
    run_race(&k);
    for (int s = 0; s < stages; s++) {
        check(k.w[s].piece.kind == PIECE_END);
        t.seconds = MAX(t.seconds, t.stage[s].end);
    }
    arena_free(own);
    return t;
}
