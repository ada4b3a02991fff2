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
    Task *task;   /* by op id */
    StageTime *t;
} Worker;

/* Messages from one stage to another by their numbers: 1 + where they are. */
typedef struct Numbers {
    int *way, n;
} Numbers;

typedef struct Race {
    Arena *mem;
    const Machine *m;
    const Mesh *mesh;
    Worker *w;
    int stages;
    Way *way;
    int nways, cap;
    Numbers *numbers;  /* [from][to] */
    double now, cores; /* of all ranks of a stage; INFINITY: enough for all */
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
static double piece_end(const Race *k, const Worker *w, double speed) {
    if (w->at >= w->n) return INFINITY;
    const Piece *p = &w->piece[w->at];
    const Way *y = &k->way[p->message];
    switch (p->kind) {
    case PIECE_WORK:
        return k->now + w->left / speed;
    case PIECE_SEND:
        return k->now;
    default:
        return y->there < 0 ? INFINITY : MAX(k->now, y->there);
    }
}

static bool works(const Worker *w) {
    return w->at < w->n && w->piece[w->at].kind == PIECE_WORK;
}

/* Ranks that share cores stay on them: one that waits looks for its message again and again,
 * so that no core is idle and the system moves nobody. With n stages on so many cores, and w
 * of them at work, a core has no stage at work with the chance C(n - w, n / cores) over
 * C(n, n / cores); those that have one do all the work. */
static double speed_now(const Race *k) {
    int working = 0;
    double on_core = k->stages / k->cores, idle = 1;
    for (int s = 0; s < k->stages; s++) working += works(&k->w[s]);
    if (on_core <= 1 || !working) return 1;
    for (int i = 0; i < working; i++)
        idle *= MAX(0, k->stages - on_core - i) / (k->stages - i);
    return k->cores / working * (1 - idle);
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
        double speed = speed_now(k), next = INFINITY;
        int first = -1;
        for (int s = 0; s < k->stages; s++) {
            double end = piece_end(k, &k->w[s], speed);
            if (end < next) next = end, first = s;
        }
        if (first < 0) return;
        for (int s = 0; s < k->stages; s++)
            if (works(&k->w[s])) k->w[s].left -= (next - k->now) * speed;
        k->now = next;
        end_piece(k, &k->w[first]);
    }
}

/* ---- the step ---- */

/* Rates are those of ranks that have cores of their own. The ranks of one stage compute at
 * the same time, so where they share cores all of its compute is stretched; and stages that
 * share cores are slower while more of them compute than there are cores for. Measured
 * collectives have the sharing among their ranks in them. */

/* How many stages a host has cores for, where one host has them all; at least the one whose
 * ranks are stretched. */
static double cores_of_stages(const Machine *m, int ranks, int stages, int threads) {
    bool one_host = !m->host_ranks || ranks * stages <= m->host_ranks;
    if (!one_host || m->cores <= 0 || threads <= 0) return INFINITY;
    return MAX(1, (double)m->cores / ((double)ranks * threads));
}

static double stretch_of_stage(const Machine *m, int ranks, int threads) {
    if (m->host_ranks) ranks = MIN(ranks, m->host_ranks);
    if (m->cores <= 0 || threads <= 0) return 1;
    return MAX(1, (double)ranks * threads / m->cores);
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
              .cores = cores_of_stages(m, ranks, stages, threads)};
    StepTime t = {.stage = NEW_ARRAY(mem, StageTime, (size_t)stages), .stages = stages};
    Timing timing = {
        .mem = own,
        .m = m,
        .rank = machine_rank(m, MIN(host, machine_ranks_with_cores(m, threads)), threads),
        .stretch = stretch_of_stage(m, ranks, threads),
        .shape = mesh_shapes(own, m, mesh, stages, threads)};
    for (int s = 0; s < stages; s++) {
        FuncSizes sizes = func_sizes(own, entry[s]->mod, NULL);
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
