/* halve.c - takes the backward of a chunk apart: what the chunk before waits for, and the
 * gradients of weights, which can be made later (zero bubble, arXiv 2401.10241). Level diffed;
 * for schedules with tasks I and W.
 *     %dx, %dw = call %dy, %h, %w {fn=@chunk.1.bwd}
 *     -> %dx, %k = call %dy, %w {fn=@chunk.1.bwd.inputs}      task(1I)
 *        %dw = call %k, %h {fn=@chunk.1.bwd.weights}          task(1W)
 * The first half is what its results need; the rest is the second, which is handed what it
 * reads of the first (%k). Calls in the body, a loop over layers, are taken apart before: what
 * the second loop reads comes out of the first one stacked. An op that would have the first
 * half hand on a value much larger than its results stays in the first, and so does one, not a product,
 * that makes less of what it alone reads (a sum over rows, a rounding); what is widened is handed on
 * narrow and widened again. */
#include "passes/passes.h"
#include "passes/pipe/schedule.h"

/* A value handed on, of one run of a loop, is at most so many times the largest result of
 * the first half. */
enum { MOST_TIMES = 8 };

/* Group of an argument or result: carried by a loop, a slice a run, the same for all runs. */
typedef enum Group { CARRIED, SLICED, SHARED, GROUPS } Group;

typedef struct Half {
    Func *f;
    int carry, each;
    int *arg;    /* of its arguments: which of the whole, or -1 - n: value n handed on */
    int *result; /* by result of the whole: its number here, or -1 */
} Half;

typedef struct Halves {
    const Func *f;
    int carry, each;
    bool *want; /* by result: the first half makes it */
    Half first, second;
    int nhanded; /* the last results of the first */
    struct Halves *next;
} Halves;

typedef struct Halve {
    Module *m;
    Arena *mem;
    Halves *known;
} Halve;

typedef struct Body { /* of a copy of a function */
    Halve *h;
    Halves *to;
    Func *f;
    int nvalues, nops, value_cap, op_cap; /* of the arrays by id */
    bool *needed;   /* by value id: read in the first half, or a result of it */
    bool *in_first; /* by op id */
    bool *again;    /* by op id: of the first half, made again in the second */
    bool *whole;    /* by op id: a call that stays as it is */
    Value **handed; /* values that the second half reads of the first */
    Value **map;    /* by value id: the value in the half that is being made */
} Body;

static Halves *halve(Halve *h, const Func *f, int carry, int each, const bool *want);

static Group group_of(const Halves *to, int arg) {
    return arg < to->carry ? CARRIED : arg < to->carry + to->each ? SLICED : SHARED;
}

/* ---- calls in the body ---- */

static bool *longer(Body *b, const bool *flags, int n, int cap) {
    bool *all = NEW_ARRAY(b->h->mem, bool, (size_t)cap);
    if (n) memcpy(all, flags, (size_t)n * sizeof *all);
    return all;
}

/* Room for one more op with so many results in the arrays by id. */
static void make_room(Body *b, int nout) {
    if (b->nops + 1 > b->op_cap) {
        b->op_cap = 2 * (b->nops + 1);
        b->in_first = longer(b, b->in_first, b->nops, b->op_cap);
        b->again = longer(b, b->again, b->nops, b->op_cap);
        b->whole = longer(b, b->whole, b->nops, b->op_cap);
    }
    if (b->nvalues + nout > b->value_cap) {
        b->value_cap = 2 * (b->nvalues + nout);
        b->needed = longer(b, b->needed, b->nvalues, b->value_cap);
    }
}

static void number_new(Body *b, Op *op) {
    make_room(b, op->nout);
    op->id = b->nops++;
    b->whole[op->id] = true;
    for (int i = 0; i < op->nout; i++) op->out[i]->id = b->nvalues++;
}

/* The call of one half, before `op`; `first` is that of the other one. */
static Op *call_half(Body *b, Op *op, const Halves *to, const Half *half,
                     const Op *first) {
    Builder at = build_before(op);
    Call c = call_of(op);
    int handed = first ? first->nout - to->nhanded : 0;
    Value **in = NEW_ARRAY(b->h->m->mem, Value *, (size_t)half->f->narg + 1);
    for (int i = 0; i < half->f->narg; i++) {
        int from = half->arg[i];
        in[i] = from >= 0 ? op->in[from] : first->out[handed - 1 - from];
    }
    c.f = half->f;
    c.carry = half->carry;
    c.each = half->each;
    Op *made = build_runs(&at, &c, half->f->narg, in);
    number_new(b, made);
    for (int i = 0; i < op->nout; i++) {
        int k = half->result[i];
        if (k < 0) continue;
        made->out[k]->name = op->out[i]->name;
        made->out[k]->grad_of = op->out[i]->grad_of;
        b->needed[made->out[k]->id] = b->needed[op->out[i]->id];
        func_replace(b->f, op->out[i], made->out[k]);
    }
    return made;
}

/* Returns the call of the first half. */
static Op *take_apart(Body *b, Op *op) {
    const Call c = call_of(op);
    bool *want = NEW_ARRAY(b->h->m->mem, bool, (size_t)op->nout + 1);
    for (int i = 0; i < op->nout; i++) want[i] = b->needed[op->out[i]->id];
    Halves *to = halve(b->h, c.f, c.carry, c.each, want);
    Op *first = call_half(b, op, to, &to->first, NULL);
    if (to->second.f->nret) call_half(b, op, to, &to->second, first);
    op_remove(op);
    return first;
}

static bool is_apart(const Body *b, const Op *op) {
    return !op_is_call(op) || op_func(op)->role != ROLE_FUNC || b->whole[op->id];
}

/* ---- what belongs to the first half ---- */

static void mark_first(Body *b) {
    for (Op *op = b->f->last; op; op = op->prev) {
        if (!b->in_first[op->id] && !op_makes_marked(op, b->needed)) continue;
        if (!is_apart(b, op)) op = take_apart(b, op);
        b->in_first[op->id] = true;
        op_mark_operands(op, b->needed);
    }
}

/* Must the second half be handed the value, if it reads it? */
static bool is_of_first(const Body *b, const Value *v) {
    if (v->def) return b->in_first[v->def->id] && !b->again[v->def->id];
    return v->nth < b->to->carry && b->to->want[v->nth];
}

/* A carried argument that the first half reads is carried there. True: one was not. */
static bool carry_more(Body *b) {
    bool more = false;
    for (int i = 0; i < b->to->carry; i++) {
        if (!b->needed[b->f->arg[i]->id] || b->to->want[i]) continue;
        b->to->want[i] = more = true;
        b->needed[b->f->ret[i]->id] = true;
    }
    return more;
}

/* Of a stack that a loop gives: what one run does. */
static int64_t bytes_of_run(const Value *v) {
    int64_t bytes = type_bytes(&v->ty);
    if (!v->def || !op_is_call(v->def)) return bytes;
    const Call c = call_of(v->def);
    return c.loop && v->nth >= c.carry ? bytes / c.times : bytes;
}

/* Ops of the second half that read what is too large to be handed on go to the first. */
static bool keep_large(Body *b) {
    int64_t most = 0;
    bool moved = false;
    for (int i = 0; i < b->f->nret; i++)
        if (b->to->want[i]) most = MAX(most, type_bytes(&b->f->ret[i]->ty));
    for (Op *op = b->f->first; op; op = op->next)
        for (int i = 0; i < op->nin && !b->in_first[op->id]; i++) {
            if (!is_of_first(b, op->in[i])) continue;
            if (bytes_of_run(op->in[i]) / MOST_TIMES <= most) continue;
            b->in_first[op->id] = moved = true;
        }
    return moved;
}

/* Is it read in the second half by another op than this, or given there? */
static bool is_read_beside(const Body *b, const Value *v, const Op *op) {
    for (const Op *at = b->f->first; at; at = at->next)
        if (at != op && !b->in_first[at->id] && op_reads_value(at, v)) return true;
    for (int i = 0; i < b->f->nret; i++)
        if (b->f->ret[i] == v && v->def != op && !b->to->want[i]) return true;
    return false;
}

/* Bytes that need not be handed on if the op of the second half is in the first. */
static int64_t bytes_saved_by(const Body *b, const Op *op) {
    int64_t saved = 0;
    for (int i = 0; i < op->nin; i++) {
        const Value *v = op->in[i];
        bool before = false;
        for (int k = 0; k < i; k++) before |= op->in[k] == v;
        if (!is_of_first(b, v) && v->def) return 0; /* it waits for the second half */
        bool handed = is_of_first(b, v) && !before;
        if (handed && !is_read_beside(b, v, op)) saved += type_bytes(&v->ty);
    }
    for (int i = 0; i < op->nout; i++)
        if (is_read_beside(b, op->out[i], op)) saved -= type_bytes(&op->out[i]->ty);
    return saved;
}

static bool gives_carried(const Body *b, const Op *op) {
    for (int i = 0; i < b->to->carry; i++)
        if (b->f->ret[i]->def == op) return true;
    return false;
}

/* Ops that make less of what they alone read go to the first half. */
static bool hand_less(Body *b) {
    bool moved = false;
    for (Op *op = b->f->first; op; op = op->next) {
        unsigned flags = optab[op->kind].flags;
        if (b->in_first[op->id] || op_is_call(op) || flag_products(flags)) continue;
        if (gives_carried(b, op) || bytes_saved_by(b, op) <= 0) continue;
        b->in_first[op->id] = moved = true;
    }
    return moved;
}

static void widen_again(Body *b) {
    for (const Op *op = b->f->first; op; op = op->next)
        b->again[op->id] = b->in_first[op->id] && op_has(op, F_CAST) &&
                           type_bytes(&op->in[0]->ty) < type_bytes(&op->out[0]->ty) &&
                           is_read_beside(b, op->out[0], op);
}

/* What the first half makes beside its own results is given there: handed on only to be
 * given by the second half, its sum over ranks would be finished on the way. */
static void give_made(Body *b) {
    for (int i = b->to->carry; i < b->f->nret; i++) {
        const Op *def = b->f->ret[i]->def;
        if (def && b->in_first[def->id]) b->to->want[i] = true;
    }
}

static void choose_first(Body *b) {
    for (int i = 0; i < b->f->nret; i++)
        if (b->to->want[i]) b->needed[b->f->ret[i]->id] = true;
    do mark_first(b);
    while (carry_more(b) || keep_large(b) || hand_less(b));
    give_made(b);
    widen_again(b);
}

/* ---- the two functions ---- */

static Half half_new(Body *b, const char *what, TaskKind task) {
    Arena *mem = b->h->m->mem;
    const Func *of = b->to->f;
    Half half = {.arg = NEW_ARRAY(mem, int, (size_t)(b->nvalues + of->narg) + 1),
                 .result = NEW_ARRAY(mem, int, (size_t)of->nret + 1)};
    half.f =
        func_new_unique(b->h->m, arena_printf(mem, "%s.%s", of->name, what), ROLE_FUNC);
    func_made_of(half.f, of, PART_BACKWARD);
    half.f->task = of->task ? task : TASK_NONE;
    half.f->chunk = of->chunk;
    for (int i = 0; i < of->nret; i++) half.result[i] = -1;
    b->map = NEW_ARRAY(b->h->mem, Value *, (size_t)b->nvalues + 1);
    return half;
}

static void add_arg(Body *b, Half *half, const Value *v, int from) {
    half->arg[half->f->narg] = from;
    b->map[v->id] = func_arg_given(half->f, v);
}

/* Those arguments of the whole that a half reads, and what it is handed behind the carried
 * ones: a loop cuts it into slices. */
static void add_args(Body *b, Half *half, const bool *reads, int nhanded) {
    for (Group g = CARRIED; g < GROUPS; g++) {
        for (int i = 0; i < b->f->narg; i++)
            if (group_of(b->to, i) == g && reads[b->f->arg[i]->id])
                add_arg(b, half, b->f->arg[i], i);
        if (g == CARRIED) {
            half->carry = half->f->narg;
            for (int k = 0; k < nhanded; k++) add_arg(b, half, b->handed[k], -1 - k);
        }
        if (g == SLICED) half->each = half->f->narg - half->carry;
    }
}

static void add_ops(Body *b, Half *half, bool first) {
    Builder at = build_at_end(half->f);
    for (const Op *op = b->f->first; op; op = op->next)
        if (b->in_first[op->id] == first || (b->again[op->id] && !first))
            op_clone(&at, op, b->map);
}

/* Results over arguments stay so where the argument is there. */
static void add_results(Body *b, Half *half, bool first) {
    for (int i = 0; i < b->f->nret; i++) {
        if (b->to->want[i] != first) continue;
        int a = b->f->alias[i];
        const Value *arg = a >= 0 ? b->map[b->f->arg[a]->id] : NULL;
        bool own = arg && !arg->def && arg->nth < half->f->narg &&
                   half->f->arg[arg->nth] == arg && half->arg[arg->nth] == a;
        half->result[i] =
            func_ret(half->f, b->map[b->f->ret[i]->id], own ? arg->nth : -1);
    }
}

static void make_first(Body *b) {
    Half *half = &b->to->first;
    *half = half_new(b, "inputs", TASK_INPUTS);
    bool *reads = NEW_ARRAY(b->h->mem, bool, (size_t)b->nvalues + 1); /* by value id */
    for (int i = 0; i < b->f->narg; i++) {
        int id = b->f->arg[i]->id;
        reads[id] = b->needed[id] || (i < b->to->carry && b->to->want[i]);
    }
    add_args(b, half, reads, 0);
    add_ops(b, half, true);
    add_results(b, half, true);
    for (int k = 0; k < b->to->nhanded; k++)
        func_ret(half->f, b->map[b->handed[k]->id], -1);
}

/* Lists what the second half is handed; reads: by value id, arguments of the whole that it
 * reads itself. */
static void list_handed(Body *b, bool *reads) {
    bool *seen = NEW_ARRAY(b->h->mem, bool, (size_t)b->nvalues + 1);
    b->handed = NEW_ARRAY(b->h->mem, Value *, (size_t)b->nvalues + 1);
    for (const Op *op = b->f->first;; op = op->next) {
        int n = op ? op->nin : b->f->nret;
        for (int i = 0; i < n; i++) {
            Value *v = op ? op->in[i] : b->f->ret[i];
            bool mine = op ? !b->in_first[op->id] || b->again[op->id] : !b->to->want[i];
            if (!mine || seen[v->id]) continue;
            seen[v->id] = true;
            if (is_of_first(b, v))
                b->handed[b->to->nhanded++] = v;
            else if (!v->def)
                reads[v->id] = true;
        }
        if (!op) break;
    }
    for (int i = 0; i < b->to->carry; i++)
        if (!b->to->want[i]) reads[b->f->arg[i]->id] = true;
}

static void make_second(Body *b, const bool *reads) {
    Half *half = &b->to->second;
    *half = half_new(b, "weights", TASK_WEIGHTS);
    add_args(b, half, reads, b->to->nhanded);
    add_ops(b, half, false);
    add_results(b, half, false);
}

static Body body_of(Halve *h, Halves *to) {
    Func *f = func_clone(to->f, to->f->name, ROLE_FUNC);
    func_number(f);
    Body b = {.h = h, .to = to, .f = f, .nvalues = f->nvalues, .nops = f->nops};
    b.value_cap = b.nvalues + 1;
    b.op_cap = b.nops + 1;
    b.needed = NEW_ARRAY(h->mem, bool, (size_t)b.value_cap);
    b.in_first = NEW_ARRAY(h->mem, bool, (size_t)b.op_cap);
    b.again = NEW_ARRAY(h->mem, bool, (size_t)b.op_cap);
    b.whole = NEW_ARRAY(h->mem, bool, (size_t)b.op_cap);
    return b;
}

static Halves *halve(Halve *h, const Func *f, int carry, int each, const bool *want) {
    size_t flags = (size_t)f->nret * sizeof *want;
    for (Halves *k = h->known; k; k = k->next)
        if (k->f == f && k->carry == carry && k->each == each &&
            !memcmp(k->want + f->nret, want, flags))
            return k;
    Halves *to = NEW(h->mem, Halves);
    *to = (Halves){.f = f, .carry = carry, .each = each, .next = h->known};
    to->want = NEW_ARRAY(h->mem, bool, 2 * (size_t)f->nret + 1); /* and as it was asked */
    memcpy(to->want, want, flags);
    memcpy(to->want + f->nret, want, flags);
    Body b = body_of(h, to);
    choose_first(&b);
    bool *reads = NEW_ARRAY(h->mem, bool, (size_t)b.nvalues + 1);
    list_handed(&b, reads);
    make_first(&b);
    make_second(&b, reads);
    return h->known = to;
}

/* ---- the calls of chunks ---- */

/* By value id of the function: does a task read it, perhaps through other ops? */
static bool *read_by_tasks(Halve *h, const Func *f) {
    bool *read = NEW_ARRAY(h->mem, bool, (size_t)f->nvalues + 1);
    for (const Op *op = f->last; op; op = op->prev) {
        const Func *callee = op_callee(op);
        if ((callee && callee->task) || op_makes_marked(op, read))
            op_mark_operands(op, read);
    }
    return read;
}

static void halve_calls(Halve *h, Func *f) {
    func_number(f);
    const bool *read = read_by_tasks(h, f);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        const Func *callee = op_callee(op);
        if (!callee || callee->task != TASK_BACKWARD) continue;
        Halves none = {.f = f};
        Body b = {.h = h, .to = &none, .f = f, .nvalues = f->nvalues};
        b.value_cap = f->nvalues + 1;
        b.needed = NEW_ARRAY(h->mem, bool, (size_t)b.value_cap);
        bool any = false;
        for (int i = 0; i < op->nout; i++)
            any |= b.needed[op->out[i]->id] = read[op->out[i]->id];
        if (any) take_apart(&b, op);
    }
}

void pass_halve(Module *m, const PassOptions *o) {
    const PipeSchedule *s = schedule_of_options(m->mem, o);
    if (!s || !schedule_has_halves(s)) return;
    Halve h = {.m = m, .mem = arena_new()};
    for (Func *f = m->first; f; f = f->next)
        if (f->role == ROLE_MODEL) halve_calls(&h, f);
    arena_free(h.mem);
    module_remove_unused(m);
}
