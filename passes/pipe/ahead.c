/* ahead.c - what backward begins with is done at the end of forward, where forward makes a
 * large value for it alone: then the value is not saved, and pass tile finds all that reads
 * it in one function. Level local.
 *     @f: %l = dot %x, %w; ...; return %l    @b: %d = xent_grad %l, ..., %g; %dx = dot %d, %w
 *     %l = call %x, %w {fn=@f}; %dx = call %g, %l, %w {fn=@b}
 *  -> @f: %l = dot %x, %w; ...; %d = xent_grad %l, ..., %g; %dx = dot %d, %w; return %dx
 *     %dx = call %x, %w, %g {fn=@f}; call %dx {fn=@b}
 * Sums that such values are added to are carried from one forward to the next instead of from
 * one backward to the next, in the same order. */
#include "passes/passes.h"

/* Where an argument of backward comes from, in every pair of calls. */
typedef enum From { FROM_LATER, FROM_FORWARD, FROM_BEFORE, FROM_LAST } From;

typedef struct Source {
    From from;
    int nth; /* FROM_FORWARD: result of forward; FROM_LAST: of the backward before */
    Value *forward; /* forward's value of it; NULL: it has none yet */
} Source;

/* Of the function whose calls were looked at last. */
typedef struct Uses {
    Arena *mem;
    Func *of; /* NULL: it has changed */
    int *n;   /* by value id */
} Uses;

typedef struct Ahead {
    Arena *mem;
    Func *caller, *fwd, *bwd;
    Op **first, **second; /* the calls of each pair, in order */
    int n;
    const int *uses;  /* by value id of caller */
    bool *seed;       /* by argument of bwd: it is large, and the reason */
    int64_t elements; /* of a seed */
    Source *source;   /* by argument of bwd */
    bool *moves;      /* by op id of bwd: it is done in forward */
    bool *copied;     /* by op id of bwd: forward does it as well, for those that move */
} Ahead;

static const int *uses_of(Uses *u, Func *f) {
    if (u->of == f) return u->n;
    if (u->mem) arena_free(u->mem);
    u->mem = arena_new();
    u->of = f;
    func_number(f);
    return u->n = func_uses(u->mem, f);
}

/* ---- the pairs of calls ---- */

/* All calls of both functions are pairs, each forward before its backward, in one order. */
static bool find_pairs(Ahead *a, int operand) {
    int calls = func_calls(a->caller->mod, a->bwd);
    if (func_calls(a->caller->mod, a->fwd) != calls) return false;
    a->first = NEW_ARRAY(a->mem, Op *, (size_t)calls + 1);
    a->second = NEW_ARRAY(a->mem, Op *, (size_t)calls + 1);
    a->n = 0;
    for (Op *op = a->caller->first; op; op = op->next) {
        if (op_callee(op) != a->bwd) continue;
        Op *from = op->in[operand]->def;
        if (call_of(op).loop || op_callee(from) != a->fwd || call_of(from).loop)
            return false;
        if (a->n && a->first[a->n - 1]->id >= from->id) return false;
        a->first[a->n] = from;
        a->second[a->n++] = op;
    }
    return a->n == calls;
}

/* ---- what forward can have ---- */

/* Is it there before the forward of pair p, or could it be? */
static bool is_given(const Ahead *a, int p, const int *mark, const Value *v) {
    return !v->def || v->def->id < a->first[p]->id || mark[v->id] == p + 1;
}

/* Marks with p + 1, by value id of the caller, what ops between the calls of pair p make that
 * could be made before the first. */
static void mark_given(const Ahead *a, int p, int *mark) {
    for (const Op *op = a->first[p]->next; op != a->second[p]; op = op->next) {
        bool can = !op_has(op, F_EFFECT | F_CALL | F_COMM);
        for (int i = 0; i < op->nin; i++) can = can && is_given(a, p, mark, op->in[i]);
        for (int i = 0; i < op->nout && can; i++) mark[op->out[i]->id] = p + 1;
    }
}

static bool all_from_forward(const Ahead *a, int i, int nth) {
    for (int p = 0; p < a->n; p++) {
        const Value *v = a->second[p]->in[i];
        if (v->def != a->first[p] || v->nth != nth) return false;
    }
    return true;
}

/* The result of backward that overwrites argument i and that the next backward takes as the
 * same argument, and nobody else; -1: there is none. */
static int carried_result(const Ahead *a, int i) {
    int r = func_result_over(a->bwd, i);
    for (int p = 0; r >= 0 && p + 1 < a->n; p++) {
        const Value *v = a->second[p]->out[r];
        if (a->second[p + 1]->in[i] != v || a->uses[v->id] != 1) return -1;
    }
    return r;
}

static void find_sources(Ahead *a) {
    const int n = a->bwd->narg;
    int *mark = NEW_ARRAY(a->mem, int, (size_t)a->caller->nvalues + 1);
    int *given =
        NEW_ARRAY(a->mem, int, (size_t)n + 1); /* in so many pairs from the first */
    a->source = NEW_ARRAY(a->mem, Source, (size_t)n + 1);
    for (int p = 0; p < a->n; p++) {
        mark_given(a, p, mark);
        for (int i = 0; i < n; i++)
            given[i] += given[i] == p && is_given(a, p, mark, a->second[p]->in[i]);
    }
    for (int i = 0; i < n; i++) {
        const Value *v = a->second[0]->in[i];
        Source *s = &a->source[i];
        int carried = carried_result(a, i);
        if (v->def == a->first[0] && all_from_forward(a, i, v->nth))
            *s = (Source){FROM_FORWARD, v->nth, a->fwd->ret[v->nth]};
        else if (carried >= 0 && given[i])
            *s = (Source){FROM_LAST, carried, NULL};
        else if (given[i] == a->n)
            *s = (Source){FROM_BEFORE, 0, NULL};
    }
}

/* ---- what moves ---- */

static bool is_as_large(const Ahead *a, const Value *v) {
    return type_count(&v->ty) >= a->elements;
}

/* Is the value the large one, or made of it and as large? */
static bool is_large(const Ahead *a, const Value *v) {
    return v->def ? a->moves[v->def->id] && is_as_large(a, v) : a->seed[v->nth];
}

static bool reads_large(const Ahead *a, const Op *op) {
    for (int i = 0; i < op->nin; i++)
        if (is_large(a, op->in[i])) return true;
    return false;
}

/* Is the value a sum that is carried, or one with something added that nobody else reads? */
static bool is_sum(const Ahead *a, const bool *adds, const Value *v) {
    if (value_uses(a->bwd, v) != 1) return false;
    return v->def ? adds[v->def->id] : a->source[v->nth].from == FROM_LAST;
}

/* Does the op add what moves to such a sum? */
static bool adds_up(const Ahead *a, const bool *adds, const Op *op) {
    bool sum = false, moves = true;
    for (int i = 0; i < op->nin; i++) {
        const Value *v = op->in[i];
        if (is_sum(a, adds, v))
            sum = true;
        else
            moves &= v->def && a->moves[v->def->id];
    }
    return sum && moves && op->nin > 1;
}

/* Marks what reads large values, and what those need. False: some of it must wait for what
 * comes after forward. */
static bool find_moves(Ahead *a) {
    bool *early =
        NEW_ARRAY(a->mem, bool, (size_t)a->bwd->nvalues + 1); /* forward can have it */
    a->moves = NEW_ARRAY(a->mem, bool, (size_t)a->bwd->nops + 1);
    a->copied = NEW_ARRAY(a->mem, bool, (size_t)a->bwd->nops + 1);
    bool *needed = NEW_ARRAY(a->mem, bool, (size_t)a->bwd->nvalues + 1);
    bool *adds = NEW_ARRAY(a->mem, bool, (size_t)a->bwd->nops + 1);
    for (int i = 0; i < a->bwd->narg; i++)
        early[a->bwd->arg[i]->id] = a->source[i].from != FROM_LATER;
    for (Op *op = a->bwd->first; op; op = op->next) {
        bool can = !op_has(op, F_EFFECT | F_CALL);
        for (int i = 0; i < op->nin; i++) can &= early[op->in[i]->id];
        for (int i = 0; i < op->nout; i++) early[op->out[i]->id] = can;
        adds[op->id] = adds_up(a, adds, op);
        a->moves[op->id] = adds[op->id] || reads_large(a, op);
        if (a->moves[op->id] && !can) return false;
    }
    for (Op *op = a->bwd->last; op; op = op->prev) {
        if (!a->moves[op->id] && !op_makes_marked(op, needed)) continue;
        bool dear = op_has(op, F_DENSE | F_COMM);
        for (int i = 0; i < op->nout; i++) dear |= is_as_large(a, op->out[i]);
        if (dear) a->moves[op->id] = true;
        a->copied[op->id] = !a->moves[op->id];
        op_mark_operands(op, needed);
    }
    return true;
}

/* Is the value read in what stays of backward? */
static bool read_later(const Ahead *a, const Value *v) {
    for (const Op *op = a->bwd->first; op; op = op->next)
        if (!a->moves[op->id] && op_reads_value(op, v)) return true;
    return false;
}

/* Is it a result of backward that overwrites nothing? */
static bool is_result(const Ahead *a, const Value *v) {
    for (int r = 0; r < a->bwd->nret; r++)
        if (a->bwd->ret[r] == v && a->bwd->alias[r] < 0) return true;
    return false;
}

/* All that is added to a carried sum is added in forward, or nothing. */
static bool keeps_sum(const Ahead *a, int arg) {
    const Value *v = a->bwd->arg[arg];
    const Op *made = a->bwd->ret[a->source[arg].nth]->def;
    for (const Op *op = a->bwd->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) {
            bool ahead = a->moves[op->id] || a->copied[op->id];
            if (op->in[i] != v || !ahead) continue;
            bool all = a->moves[op->id] && made && a->moves[made->id];
            if (!all || value_uses(a->bwd, v) != 1) return false;
        }
    return true;
}

/* Only carried sums are overwritten by what forward makes: others may read another argument
 * between forward and backward. */
static bool overwrites_sums_alone(const Ahead *a) {
    for (int r = 0; r < a->bwd->nret; r++) {
        const Op *def = a->bwd->ret[r]->def;
        int over = a->bwd->alias[r];
        bool sum = over < 0 || a->source[over].from == FROM_LAST;
        if (def && a->moves[def->id] && !sum) return false;
    }
    return true;
}

/* Nobody else reads the large values, and what is saved instead has fewer bytes. */
static bool is_gain(const Ahead *a) {
    int64_t less = 0, more = 0;
    for (int i = 0; i < a->bwd->narg; i++) {
        if (a->source[i].from == FROM_LAST && !keeps_sum(a, i)) return false;
        if (!a->seed[i]) continue;
        less += type_bytes(&a->bwd->arg[i]->ty);
        for (int p = 0; p < a->n; p++)
            if (a->uses[a->second[p]->in[i]->id] != 1) return false;
    }
    for (const Op *op = a->bwd->first; op; op = op->next)
        for (int i = 0; a->moves[op->id] && i < op->nout; i++)
            if (read_later(a, op->out[i]) || is_result(a, op->out[i]))
                more += type_bytes(&op->out[i]->ty);
    return more < less;
}

/* ---- moving ---- */

/* What this operand of a second call needs is done before the first one. */
static void make_before(Ahead *a, int p, const Value *v) {
    bool *needed = NEW_ARRAY(a->mem, bool, (size_t)a->caller->nvalues + 1);
    Op **op = NEW_ARRAY(a->mem, Op *, (size_t)a->caller->nops + 1);
    int n = 0;
    needed[v->id] = true;
    for (Op *o = a->second[p]->prev; o != a->first[p]; o = o->prev) {
        if (!op_makes_marked(o, needed)) continue;
        op_mark_operands(o, needed);
        op[n++] = o;
    }
    Builder b = build_before(a->first[p]);
    while (n-- > 0) {
        op_move(&b, op[n]);
        op[n]->id = a->first[p]->id;
    }
}

/* The argument of forward that has in all pairs what backward has as argument i. */
static Value *same_argument(const Ahead *a, int i) {
    for (int k = 0; k < a->fwd->narg; k++) {
        bool same = true;
        for (int p = 0; p < a->n; p++) same &= a->first[p]->in[k] == a->second[p]->in[i];
        if (same) return a->fwd->arg[k];
    }
    return NULL;
}

static Value *argument_of_forward(Ahead *a, int i) {
    const Value *arg = a->bwd->arg[i];
    Source *s = &a->source[i];
    if (s->forward) return s->forward;
    if (s->from == FROM_BEFORE) s->forward = same_argument(a, i);
    if (s->forward) return s->forward;
    for (int p = 0; p < a->n; p++) {
        bool before = p == 0 || s->from == FROM_BEFORE;
        if (before) make_before(a, p, a->second[p]->in[i]);
        op_add_operand(a->first[p], a->second[p]->in[i]);
    }
    return s->forward = func_arg_given(a->fwd, arg);
}

/* Forward's copies of the ops; map: by value id of backward. */
static void copy_ops(Ahead *a, Value **map) {
    Builder b = build_at_end(a->fwd);
    for (Op *op = a->bwd->first; op; op = op->next) {
        if (!a->moves[op->id] && !a->copied[op->id]) continue;
        for (int i = 0; i < op->nin; i++) {
            const Value *v = op->in[i];
            if (!v->def) map[v->id] = argument_of_forward(a, v->nth);
        }
        op_clone(&b, op, map);
    }
}

/* One more result of forward; returns its number. */
static int add_result(Ahead *a, const Value *v, Value *made, int alias) {
    int nth = func_ret(a->fwd, made, alias);
    for (int p = 0; p < a->n; p++) {
        Value *out = op_add_result(a->first[p], v->ty);
        out->name = v->name;
        out->grad_of = v->grad_of;
    }
    return nth;
}

/* Reads of what second calls gave read what `instead` has by value id. */
static void read_instead(const Ahead *a, Value *const *instead) {
    for (Op *op = a->caller->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++)
            if (op->in[i]->def && op_callee(op->in[i]->def) == a->bwd &&
                instead[op->in[i]->id])
                op->in[i] = instead[op->in[i]->id];
    for (int i = 0; i < a->caller->nret; i++) {
        Value **v = &a->caller->ret[i];
        if ((*v)->def && op_callee((*v)->def) == a->bwd && instead[(*v)->id])
            *v = instead[(*v)->id];
    }
}

/* What forward makes of backward's results is its own. */
static void take_results(Ahead *a, Value *const *map, int *nth) {
    Value **instead = NEW_ARRAY(a->mem, Value *, (size_t)a->caller->nvalues + 1);
    for (int r = a->bwd->nret - 1; r >= 0; r--) {
        const Value *v = a->bwd->ret[r];
        if (!v->def || !a->moves[v->def->id]) continue;
        int over = a->bwd->alias[r];
        const Value *sum = over >= 0 ? a->source[over].forward : NULL;
        int at = add_result(a, v, map[v->id], sum && !sum->def ? sum->nth : -1);
        nth[v->id] = at + 1;
        for (int p = 0; p < a->n; p++)
            instead[a->second[p]->out[r]->id] = a->first[p]->out[at];
        func_drop_result(a->bwd, r, a->second, a->n);
    }
    read_instead(a, instead);
}

/* What the rest of backward reads of it. */
static void save_results(Ahead *a, Value *const *map, const int *nth) {
    for (Op *op = a->bwd->first; op; op = op->next)
        for (int i = 0; a->moves[op->id] && i < op->nout; i++) {
            Value *v = op->out[i];
            if (!read_later(a, v)) continue;
            int at = nth[v->id] ? nth[v->id] - 1 : add_result(a, v, map[v->id], -1);
            func_replace(a->bwd, v, func_arg_given(a->bwd, v));
            for (int p = 0; p < a->n; p++)
                op_add_operand(a->second[p], a->first[p]->out[at]);
        }
}

static void drop_unread(Ahead *a) {
    func_remove_dead(a->bwd);
    for (int i = a->bwd->narg - 1; i >= 0; i--) {
        if (func_result_over(a->bwd, i) >= 0) continue;
        if (value_uses(a->bwd, a->bwd->arg[i])) continue;
        func_drop_arg(a->bwd, i);
        for (int p = 0; p < a->n; p++) op_drop_operand(a->second[p], i);
    }
    func_number(a->caller);
    const int *read = func_uses(a->mem, a->caller);
    for (int r = a->fwd->nret - 1; r >= 0; r--) {
        int uses = 0;
        for (int p = 0; p < a->n; p++) uses += read[a->first[p]->out[r]->id];
        if (!uses) func_drop_result(a->fwd, r, a->first, a->n);
    }
    func_remove_dead(a->fwd);
}

static void move(Ahead *a) {
    Value **map = NEW_ARRAY(a->mem, Value *, (size_t)a->bwd->nvalues + 1);
    int *nth = NEW_ARRAY(a->mem, int, (size_t)a->bwd->nvalues + 1);
    copy_ops(a, map);
    take_results(a, map, nth);
    save_results(a, map, nth);
    drop_unread(a);
}

/* ---- the module ---- */

/* Gradients of weights that a schedule makes later stay where it makes them. */
static bool is_pair(const Func *fwd, const Func *bwd) {
    bool back = bwd->task == TASK_BACKWARD || bwd->task == TASK_INPUTS;
    return fwd->task == TASK_FORWARD && back && fwd->chunk == bwd->chunk;
}

/* Those are large that are as this one: the parts of a micro-batch have one each. */
static void find_seeds(Ahead *a, int operand) {
    const Type *ty = &a->bwd->arg[operand]->ty;
    a->seed = NEW_ARRAY(a->mem, bool, (size_t)a->bwd->narg);
    a->elements = type_count(ty);
    for (int i = 0; i < a->bwd->narg; i++)
        a->seed[i] =
            a->source[i].from == FROM_FORWARD && type_equal(&a->bwd->arg[i]->ty, ty);
}

static bool visit(const PassOptions *o, Uses *uses, Op *op, int operand) {
    const Value *v = op->in[operand];
    if (!v->def || !op_callee(v->def) || type_bytes(&v->ty) <= o->tile_bytes)
        return false;
    if (!is_pair(op_func(v->def), op_func(op))) return false;
    Ahead a = {.mem = arena_new(), .caller = op->fn};
    a.fwd = op_func(v->def);
    a.bwd = op_func(op);
    a.uses = uses_of(uses, a.caller);
    func_number(a.bwd);
    bool moved = find_pairs(&a, operand);
    if (moved) {
        find_sources(&a);
        find_seeds(&a, operand);
        moved =
            a.seed[operand] && find_moves(&a) && overwrites_sums_alone(&a) && is_gain(&a);
    }
    if (moved) {
        move(&a);
        uses->of = NULL;
    }
    arena_free(a.mem);
    return moved;
}

static Op *first_call(const Module *m, const Func *f) {
    for (Func *g = m->first; g; g = g->next)
        for (Op *op = g->first; op; op = op->next)
            if (op_callee(op) == f) return op;
    return NULL;
}

/* All calls of a function are pairs, or none. */
void pass_ahead(Module *m, const PassOptions *o) {
    if (!o->tile_bytes) return;
    Uses uses = {0};
    for (Func *f = m->first; f; f = f->next) {
        Op *op = f->task ? first_call(m, f) : NULL;
        for (int i = 0; op && i < op->nin; i++)
            if (visit(o, &uses, op, i)) i = -1;
    }
    if (uses.mem) arena_free(uses.mem);
}
