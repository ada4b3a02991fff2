/* flight.c - at level planned: nothing is written over what is being sent. It knows only
 * where things are, as passes/lower/memcheck.c, with which it shares no code: that one
 * looks at how long values live, this one at every write between a send and its sent. */
#include "passes/passes.h"

typedef struct Bytes {
    LocKind kind;   /* LOC_NONE: none */
    int64_t buffer; /* of an argument or a result: which */
    int64_t from, to;
} Bytes;

typedef struct Flight { /* a send, or a collective that has begun */
    const Op *op;
    struct Flight *next;
} Flight;

/* A result over an argument is in that argument's buffer. */
static Bytes bytes_of(const Value *v) {
    const Func *f = v->def ? v->def->fn : NULL;
    int64_t n = type_bytes(&v->ty), at = v->loc.at;
    if (!f) return (Bytes){LOC_ARG, v->nth, 0, n};
    if (v->loc.kind == LOC_FRAME) return (Bytes){LOC_FRAME, 0, at, at + n};
    if (v->loc.kind == LOC_RET && f->alias[at] >= 0)
        return (Bytes){LOC_ARG, f->alias[at], 0, n};
    return (Bytes){v->loc.kind, at, 0, n};
}

static bool meet(Bytes a, Bytes b) {
    return a.kind && a.kind == b.kind && a.buffer == b.buffer && a.from < b.to &&
           b.from < a.to;
}

/* What an op writes: result i; behind the last one its workspace. */
static Bytes written(const Op *op, int i) {
    int64_t ws = op_int(op, "ws", 0), n = op_int(op, "ws_bytes", 0);
    if (i == op->nout) return (Bytes){n ? LOC_FRAME : LOC_NONE, 0, ws, ws + n};
    return op_has(op, F_VIEW) ? (Bytes){LOC_NONE, 0, 0, 0} : bytes_of(op->out[i]);
}

static const char *writes_over(Arena *mem, const Op *op, const Op *send) {
    for (int i = 0; i <= op->nout; i++) {
        if (!meet(written(op, i), bytes_of(send->in[0]))) continue;
        bool result = i < op->nout;
        return arena_printf(mem, "@%s: %s%s is written over %%%s while that is sent",
                            op->fn->name, result ? "%" : "the workspace of ",
                            result ? op->out[i]->name : optab[op->kind].name,
                            send->in[0]->name);
    }
    return NULL;
}

static void begin(Arena *mem, Flight **list, const Op *op) {
    Flight *f = NEW(mem, Flight);
    *f = (Flight){op, *list};
    *list = f;
}

/* `op` waits for what made its operand 0. */
static void end(Flight **list, const Op *op) {
    for (; *list; list = &(*list)->next)
        if ((*list)->op == op->in[0]->def) {
            *list = (*list)->next;
            return;
        }
}

static const char *over_any(Arena *mem, const Op *op, const Flight *sends) {
    const char *why = NULL;
    for (; sends && !why; sends = sends->next) why = writes_over(mem, op, sends->op);
    return why;
}

/* A late collective writes from where it begins until it has arrived. */
const char *flight_check(Arena *mem, const Func *f) {
    Flight *sends = NULL, *late = NULL;
    const char *why = NULL;
    for (const Op *op = f->first; op && !why; op = op->next) {
        if (op->kind == OP_send) begin(mem, &sends, op);
        if (op->kind == OP_sent) end(&sends, op);
        if (op->kind == OP_arrive) end(&late, op);
        why = over_any(mem, op, sends);
        if (op_int(op, "late", 0)) begin(mem, &late, op);
        for (const Flight *l = late; l && op->kind == OP_send && !why; l = l->next)
            why = writes_over(mem, l->op, op);
    }
    return why;
}
