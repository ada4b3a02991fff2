/* rank_program.c - see rank_program.h. */
#include "passes/estimate/rank_program.h"
#include "passes/pipe/op_tasks.h"

typedef struct Writer {
    Arena *mem;
    const StageParts *at;
    StageProgram *p;
    RankFunc *f;
    double issue; /* of the ops since the queue was empty */
    int *slot;    /* by row of the function */
} Writer;

static void add(Writer *w, RankPiece piece) {
    PUSH(w->mem, w->f->piece, w->f->n, w->f->cap, piece);
}

/* Compute behind compute is one piece, unless either is a task. */
static void add_compute(Writer *w, double seconds, double queued) {
    RankPiece *last = w->f->n ? &w->f->piece[w->f->n - 1] : NULL;
    if (last && last->kind == RANK_COMPUTE && !last->is_task) {
        last->seconds += seconds;
        last->queued += queued;
    } else {
        add(w, (RankPiece){.kind = RANK_COMPUTE, .seconds = seconds, .queued = queued});
    }
}

static void add_drain(Writer *w) {
    if (w->issue > 0) add(w, (RankPiece){.kind = RANK_DRAIN, .queued = w->issue});
    w->issue = 0;
}

static void add_call(Writer *w, const OpSize *s) {
    if (!w->p->func[s->callee].communicates) {
        add_compute(w, s->times * w->at->timing.func[s->callee].all, 0);
        return;
    }
    w->f->communicates = true;
    add(w,
        (RankPiece){.kind = RANK_CALL, .callee = s->callee, .times = (int64_t)s->times});
}

static void add_collective(Writer *w, const OpSize *s, int row) {
    const Timing *t = &w->at->timing;
    RankPiece piece = {.kind = RANK_COLLECTIVE,
                       .axes = s->axes,
                       .op = s->op,
                       .pairs = !message_in_ring(s->op),
                       .seconds = size_collective_seconds(t, s),
                       .slot = -1};
    w->f->communicates = true;
    if (s->late) {
        w->f->begins = true;
        w->slot[row] = piece.slot = w->p->slots++;
    }
    add(w, piece);
}

static void add_row(Writer *w, const OpSizes *sizes, int row) {
    const OpSize *s = &sizes->size[row];
    const Timing *t = &w->at->timing;
    if (s->kind != SIZE_CALL) w->issue += t->m->issue_seconds;
    if (s->kind == SIZE_CALL) {
        add_call(w, s);
    } else if (s->kind == SIZE_COLLECTIVE) {
        add_collective(w, s, row);
    } else if (s->kind == SIZE_ARRIVE) {
        add(w, (RankPiece){.kind = RANK_ARRIVE,
                           .axes = sizes->size[s->begun].axes,
                           .op = sizes->size[s->begun].op,
                           .slot = w->slot[s->begun]});
    } else {
        double seconds = t->stretch * op_size_seconds(t->m, t->rank, s);
        add_compute(w, seconds, seconds);
    }
}

static void begin_func(Writer *w, int nth) {
    w->f = &w->p->func[nth];
    w->issue = 0;
    w->slot = NEW_ARRAY(w->mem, int, (size_t)w->at->sizes.func[nth].n + 1);
}

static void write_func(Writer *w, int nth) {
    const OpSizes *sizes = &w->at->sizes.func[nth];
    begin_func(w, nth);
    for (int row = 0; row < sizes->n; row++) add_row(w, sizes, row);
    add_drain(w);
}

static void add_message(Writer *w, const Op *op) {
    RankPieceKind kind = op->kind == OP_receive ? RANK_RECEIVE
                         : op->kind == OP_send  ? RANK_SEND
                                                : RANK_SENT;
    add(w, (RankPiece){.kind = kind, .message = w->at->message[op->id]});
}

/* A task is one piece, even one that takes no time. */
static void add_task(Writer *w, int row, Task task) {
    int before = w->f->n;
    add(w, (RankPiece){.kind = RANK_COMPUTE, .is_task = true, .task = task});
    if (row >= 0) add_row(w, &w->at->sizes.func[w->p->entry], row);
    if (w->f->n == before + 1) return;
    RankPiece own = w->f->piece[--w->f->n];
    own.is_task = true;
    own.task = task;
    w->f->piece[before] = own;
}

static void write_entry(Writer *w) {
    const Func *entry = w->at->entry;
    const Task *task = op_tasks(w->mem, entry);
    begin_func(w, entry->nth);
    w->f->communicates = true;
    for (const Op *op = entry->first; op; op = op->next) {
        int row = w->at->sizes.row[entry->nth][op->id];
        bool message = w->at->message[op->id] >= 0;
        if (message || op_is_task(op)) add_drain(w);
        if (message) add_message(w, op);
        if (op_is_task(op)) {
            add_task(w, row, task[op->id]);
            w->p->tasks++;
        } else if (row >= 0) {
            add_row(w, &w->at->sizes.func[entry->nth], row);
        }
    }
    add_drain(w);
}

RankProgram rank_program(Arena *mem, const Machine *m, const Func *const *entry,
                         int stages, int threads) {
    RankProgram r = {.parts = step_parts(mem, m, entry, stages, threads)};
    r.ranks = mesh_ranks(r.parts.mesh);
    r.stage = NEW_ARRAY(mem, StageProgram, (size_t)stages);
    for (int s = 0; s < stages; s++) {
        StageProgram *p = &r.stage[s];
        const FuncSizes *sizes = &r.parts.stage[s].sizes;
        Writer w = {.mem = mem, .at = &r.parts.stage[s], .p = p};
        p->nfuncs = sizes->n;
        p->entry = entry[s]->nth;
        p->func = NEW_ARRAY(mem, RankFunc, (size_t)sizes->n + 1);
        for (int f = 0; f < sizes->n; f++)
            if (f != p->entry) write_func(&w, f);
        write_entry(&w);
    }
    return r;
}

double rank_program_pieces(const RankProgram *p) {
    Arena *own = arena_new();
    double all = 0;
    for (int s = 0; s < p->parts.stages; s++) {
        const StageProgram *stage = &p->stage[s];
        double *of = NEW_ARRAY(own, double, (size_t)stage->nfuncs + 1);
        for (int f = 0; f < stage->nfuncs; f++)
            for (int i = 0; i < stage->func[f].n; i++) {
                const RankPiece *piece = &stage->func[f].piece[i];
                of[f] += piece->kind == RANK_CALL
                             ? (double)piece->times * (1 + of[piece->callee])
                             : 1;
            }
        all += of[stage->entry];
    }
    arena_free(own);
    return all;
}
