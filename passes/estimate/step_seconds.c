/* step_seconds.c - see step_seconds.h. First how long each function takes, callees first;
 * functions are on one stage, and a collective that begins in one ends there. Then the steps
 * of all stages together: each is a row of ops that take so long, and messages. */
#include "passes/estimate/step_seconds.h"
#include "passes/estimate/func_seconds.h"
#include "passes/pipe/op_tasks.h"
#include <math.h>

/* ---- steps as rows of pieces ---- */

typedef enum PieceKind { PIECE_WORK, PIECE_SEND, PIECE_RECEIVE, PIECE_SENT } PieceKind;

typedef struct Piece {
    PieceKind kind;
    FuncTime time; /* of work */
    const Op *op;  /* a message's; of work the call that is a task, or NULL */
    int message;
} Piece;

/* A message from stage to stage. */
typedef struct Way {
    double seconds, sent, taken,
        there; /* when: begun, its receive reached, arrived; -1 */
} Way;

typedef struct Worker { /* a stage at work */
    Piece *piece;
    int n, cap, at;
    double left;  /* of the piece that it works on */
    double since; /* when it came to this piece */
    double speed; /* of its work: 1 is that of a stage which works alone */
    Task *task;   /* by op id */
    StageTime *t;
} Worker;

/* Messages from one stage to another by their numbers: 1 + where they are. */
typedef struct Numbers {
    int *way, n;
} Numbers;

/* Ranks are dealt out, in their order, to places of as many cores as a rank has threads, as
 * `stator launch` binds them: load[s * places + p] ranks of stage s are on place p. */
typedef struct Sharing {
    int places;
    int *load;
} Sharing;

typedef struct Race {
    Arena *mem;
    const Machine *m;
    const Mesh *mesh;
    Worker *w;
    int stages;
    Way *way;
    int nways, cap;
    Numbers *numbers; /* [from][to] */
    double now;
    Sharing share;
} Race;

static void add_work(Race *k, Worker *w, const FuncTime *before, const FuncTime *now,
                     const Op *task) {
    Piece p = {.kind = PIECE_WORK, .op = task};
    p.time.all = now->all - before->all;
    p.time.hidden = now->hidden - before->hidden;
    for (int i = 0; i < WORK_KINDS; i++) p.time.kind[i] = now->kind[i] - before->kind[i];
    p.time.issue = now->issue - before->issue;
    p.time.queued = now->queued - before->queued;
    func_time_drain(&p.time);
    if (p.time.all > 0 || task) PUSH(k->mem, w->piece, w->n, w->cap, p);
}

static int *number_place(Race *k, int from, int to, int64_t number) {
    enum { MOST = 1 << 24 };
    Numbers *list = &k->numbers[from * k->stages + to];
    check(number >= 0 && number < MOST);
    if (number >= list->n) {
        int n = MAX(2 * list->n, (int)number + 16);
        int *way = NEW_ARRAY(k->mem, int, (size_t)n);
        if (list->n) memcpy(way, list->way, (size_t)list->n * sizeof *way);
        *list = (Numbers){way, n};
    }
    return &list->way[number];
}

static int find_way(Race *k, int from, int to, const Op *op) {
    int *place = number_place(k, from, to, op_int(op, "message", 0));
    if (*place) return *place - 1;
    GroupShape g = stages_shape(k->m, k->mesh, k->stages, from, to);
    const Value *v = op->nin ? op->in[op->nin - 1] : op->out[0];
    Way w = {message_seconds(k->m, &g, (double)type_bytes(&v->ty)), -1, -1, -1};
    PUSH(k->mem, k->way, k->nways, k->cap, w);
    *place = k->nways;
    return k->nways - 1;
}

static void add_message(Race *k, int stage, const Op *op) {
    bool receives = op->kind == OP_receive;
    int peer = (int)op_int(op, receives ? "from" : "to", -1);
    Piece p = {.kind = receives              ? PIECE_RECEIVE
                       : op->kind == OP_send ? PIECE_SEND
                                             : PIECE_SENT,
               .op = op};
    p.message = receives ? find_way(k, peer, stage, op) : find_way(k, stage, peer, op);
    PUSH(k->mem, k->w[stage].piece, k->w[stage].n, k->w[stage].cap, p);
}

/* Work between messages and tasks is one piece, a task is one, a message is one. */
static void list_pieces(Race *k, int stage, const Func *entry, const FuncSizes *sizes,
                        const Timing *timing) {
    Worker *w = &k->w[stage];
    OpClock c = {0};
    FuncTime before = c.t;
    const OpSizes *own = &sizes->func[entry->nth];
    w->task = op_tasks(k->mem, entry);
    for (const Op *op = entry->first; op; op = op->next) {
        bool message = op_has(op, F_EFFECT) && !op_has(op, F_COMM), task = op_is_task(op);
        int row = sizes->row[entry->nth][op->id];
        if (message || task) {
            add_work(k, w, &before, &c.t, NULL);
            before = c.t;
        }
        if (message) add_message(k, stage, op);
        if (row >= 0) clock_add(&c, timing, own, row);
        if (task) {
            add_work(k, w, &before, &c.t, op);
            before = c.t;
        }
    }
    add_work(k, w, &before, &c.t, NULL);
}

/* ---- all stages in time ---- */

/* When the piece that the stage is at is done, if nothing else changes. */
static double piece_end(const Race *k, const Worker *w) {
    if (w->at >= w->n) return INFINITY;
    const Piece *p = &w->piece[w->at];
    const Way *y = &k->way[p->message];
    switch (p->kind) {
    case PIECE_WORK:
        return k->now + w->left / w->speed;
    case PIECE_SEND:
        return k->now;
    default:
        return y->there < 0 ? INFINITY : MAX(k->now, y->there);
    }
}

static bool works(const Worker *w) {
    return w->at < w->n && w->piece[w->at].kind == PIECE_WORK;
}

static int most_on_place(const Sharing *h, int stage) {
    int most = 1;
    for (int p = 0; p < h->places; p++) most = MAX(most, h->load[stage * h->places + p]);
    return most;
}

/* Ranks of a place that work have equal parts of it, and a stage is as fast as its slowest
 * rank. What its own ranks on one place do to each other is in its pieces. */
static double speed_of(const Race *k, int stage) {
    const Sharing *h = &k->share;
    int most = 1;
    for (int p = 0; p < h->places; p++) {
        int here = 0;
        if (!h->load[stage * h->places + p]) continue;
        for (int s = 0; s < k->stages; s++)
            if (works(&k->w[s])) here += h->load[s * h->places + p];
        most = MAX(most, here);
    }
    return (double)most_on_place(h, stage) / most;
}

/* A message is on its way when both ends are at it. */
static void set_off(Way *y) {
    if (y->sent >= 0 && y->taken >= 0) y->there = MAX(y->sent, y->taken) + y->seconds;
}

static void begin_piece(Race *k, Worker *w) {
    w->since = k->now;
    if (w->at >= w->n) return;
    const Piece *p = &w->piece[w->at];
    if (p->kind == PIECE_WORK) w->left = p->time.all;
    if (p->kind != PIECE_RECEIVE) return;
    k->way[p->message].taken = k->now;
    set_off(&k->way[p->message]);
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
    const Piece *p = &w->piece[w->at];
    Way *y = &k->way[p->message];
    double waited = k->now - w->since;
    if (p->kind == PIECE_WORK) {
        note_work(k, w, p);
    } else if (p->kind == PIECE_SEND) {
        y->sent = k->now;
        set_off(y);
    } else {
        w->t->waiting += waited;
        w->t->sending += MIN(waited, y->seconds);
    }
    w->at++;
    w->t->end = k->now;
    begin_piece(k, w);
}

static void run_race(Race *k) {
    for (int s = 0; s < k->stages; s++) begin_piece(k, &k->w[s]);
    for (;;) {
        double next = INFINITY;
        int first = -1;
        for (int s = 0; s < k->stages; s++) {
            if (works(&k->w[s])) k->w[s].speed = speed_of(k, s);
            double end = piece_end(k, &k->w[s]);
            if (end < next) next = end, first = s;
        }
        if (first < 0) return;
        for (int s = 0; s < k->stages; s++)
            if (works(&k->w[s])) k->w[s].left -= (next - k->now) * k->w[s].speed;
        k->now = next;
        end_piece(k, &k->w[first]);
    }
}

/* ---- the step ---- */

/* Rates are those of ranks that have cores of their own. The ranks of one stage compute at
 * the same time, so where they share cores all of its compute is stretched; and stages that
 * share cores are slower while more of them compute than there are cores for. Measured
 * collectives have the sharing among their ranks in them. */

/* None where every rank has cores of its own. */
static Sharing sharing_of(Arena *mem, const Machine *m, int ranks, int stages,
                          int threads) {
    int all = ranks * stages, host = m->host_ranks ? MIN(m->host_ranks, all) : all;
    int on_host = machine_ranks_with_cores(m, threads);
    Sharing h = {0};
    if (host <= on_host) return h;
    h.places = on_host * ((all + host - 1) / host);
    h.load = NEW_ARRAY(mem, int, array_bytes((size_t)h.places, (size_t)stages));
    for (int g = 0; g < all; g++)
        h.load[g / ranks * h.places + g / host * on_host + g % host % on_host]++;
    return h;
}

/* Of compute: threads that are more than the cores of a host, ranks of a stage that are on one
 * place. */
static double stretch_of_stage(const Machine *m, const Sharing *h, int stage,
                               int threads) {
    double crowd = m->cores > 0 ? MAX(1, (double)threads / m->cores) : 1;
    return crowd * most_on_place(h, stage);
}

StepTime step_seconds(Arena *mem, const Machine *m, const Func *const *entry, int stages,
                      int threads) {
    Arena *own = arena_new();
    const Mesh *mesh = &entry[0]->mod->mesh;
    int ranks = mesh_ranks(mesh);
    int host = m->host_ranks ? MIN(m->host_ranks, ranks * stages) : ranks * stages;
    Race k = {.mem = own,
              .m = m,
              .mesh = mesh,
              .stages = stages,
              .w = NEW_ARRAY(own, Worker, (size_t)stages),
              .numbers = NEW_ARRAY(own, Numbers, (size_t)stages * (size_t)stages),
              .share = sharing_of(own, m, ranks, stages, threads)};
    StepTime t = {.stage = NEW_ARRAY(mem, StageTime, (size_t)stages), .stages = stages};
    Timing timing = {
        .mem = own,
        .m = m,
        .rank = machine_rank(m, MIN(host, machine_ranks_with_cores(m, threads)), threads),
        .shape = mesh_shapes(own, m, mesh, stages, threads)};
    for (int s = 0; s < stages; s++) {
        FuncSizes sizes = func_sizes(own, entry[s]->mod, NULL);
        timing.stretch = stretch_of_stage(m, &k.share, s, threads);
        func_seconds(own, &sizes, &timing);
        k.w[s].t = &t.stage[s];
        list_pieces(&k, s, entry[s], &sizes, &timing);
        t.stage[s].task = NEW_ARRAY(mem, TaskTime, (size_t)k.w[s].n + 1);
    }
    run_race(&k);
    for (int s = 0; s < stages; s++) {
        check(k.w[s].at == k.w[s].n);
        t.seconds = MAX(t.seconds, t.stage[s].end);
    }
    arena_free(own);
    return t;
}
