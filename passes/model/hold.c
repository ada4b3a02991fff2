/* hold.c - a program without gradients need not hold its parameters wider than it reads them:
 * one that every reader rounds is an argument of the narrow type. Level global, behind hoist.
 *     @m(%w: f32[6,6] {role="param"}): %w1 = cast %w : bf16[6,6]; dot %x, %w1
 *  -> @m(%w: bf16[6,6] {role="param"}): dot %x, %w
 * Of a parameter whose numbers are of that type anyhow (attribute `exact`), rows that are
 * looked up are narrow too, and widened behind. One of f32 that is looked up and also rounded, as a
 * table that is the head's matrix too, is held twice:
 *     @m(%t: f32[9,6] {role="param"}): %r = lookup %t, ..; %t1 = cast %t : bf16[9,6]; dot %x, %t1
 *  -> @m(%t: f32[9,6] {role="param"}, %t.rounded: bf16[9,6] {role="param"; rounds="t"}): ..
 * (not in a pipeline, where the two may be on two stages). So every result keeps its bits. */
#include "passes/passes.h"

typedef struct Hold {
    Func *f;
    DType to;
    bool exact;
    bool *narrow; /* by value id: becomes so with the argument */
} Hold;

static bool rounds(const Hold *h, const Op *op) {
    return op_has(op, F_CAST) && op->out[0]->ty.dt == h->to;
}

static bool moves(const Op *op) {
    return op_has(op, F_MOVE) && op->nin == 1;
}

static bool looks_up(const Hold *h, const Op *op) {
    return h->exact && op_has(op, F_LOOKUP);
}

static bool is_result(const Hold *h, int arg) {
    for (int i = 0; i < h->f->nret; i++)
        if (h->f->alias[i] == arg || h->narrow[h->f->ret[i]->id]) return true;
    return false;
}

static bool is_returned(const Func *f, int arg) {
    return func_result_over(f, arg) >= 0 || func_result(f, f->arg[arg]) >= 0;
}

/* Marks what becomes narrow with the argument; false: some reader needs it as it is, or none
 * reads it rounded. */
static bool mark_readers(Hold *h, int arg) {
    int rounded = 0;
    memset(h->narrow, 0, (size_t)h->f->nvalues * sizeof *h->narrow);
    h->narrow[h->f->arg[arg]->id] = true;
    for (const Op *op = h->f->first; op; op = op->next) {
        for (int i = 0; i < op->nin; i++) {
            if (!h->narrow[op->in[i]->id]) continue;
            bool reads = rounds(h, op) || looks_up(h, op);
            if (i || !(reads || moves(op))) return false;
            rounded += reads;
            for (int k = 0; k < op->nout && moves(op); k++)
                h->narrow[op->out[k]->id] = true;
        }
    }
    return rounded && !is_result(h, arg);
}

static void widen_behind(const Hold *h, Op *op) {
    Value *rows = op->out[0];
    Builder b = build_behind(op);
    DType was = rows->ty.dt;
    rows->ty.dt = h->to;
    b.name = rows->name;
    value_replace_behind(rows, build_cast(&b, rows, was));
}

static void narrow_reader(const Hold *h, Op *op) {
    if (rounds(h, op)) {
        func_replace(h->f, op->out[0], op->in[0]);
        op_remove(op);
    } else if (looks_up(h, op)) {
        widen_behind(h, op);
    } else {
        op->out[0]->ty.dt = h->to;
    }
}

/* All are found first: values that are made on the way have no marks. */
static void narrow_readers(Arena *mem, const Hold *h) {
    Op **reader = NULL;
    int n = 0, cap = 0;
    for (Op *op = h->f->first; op; op = op->next)
        if (op->nin && h->narrow[op->in[0]->id]) PUSH(mem, reader, n, cap, op);
    for (int i = 0; i < n; i++) narrow_reader(h, reader[i]);
}

/* `global` is the type of the whole parameter where ranks have flat parts of it. */
static void narrow_argument(const Hold *h, int i) {
    Module *m = h->f->mod;
    const char *text = arg_str(h->f, i, "global", NULL);
    h->f->arg[i]->ty.dt = h->to;
    if (!text) return;
    Type whole = type_parse(m->mem, &m->mesh, text);
    whole.dt = h->to;
    func_arg_set_text(h->f, i, "global", ATTR_TYPE, type_text(m->mem, &m->mesh, &whole));
}

/* Is it looked up, rounded, and nothing else? */
static bool is_both(const Hold *h, int arg) {
    const Func *f = h->f;
    int rounded = 0, looked_up = 0;
    if (attr_find(f->arg_attr[arg], "flat") || is_returned(f, arg)) return false;
    for (const Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nin; i++) {
            if (op->in[i] != f->arg[arg]) continue;
            bool looks = op_has(op, F_LOOKUP);
            if (i || !(looks || rounds(h, op))) return false;
            looked_up += looks;
            rounded += !looks;
        }
    return rounded && looked_up;
}

/* A second argument behind the first has it rounded. */
static void hold_twice(const Hold *h, int arg) {
    Func *f = h->f;
    Module *m = f->mod;
    Value *wide = f->arg[arg];
    Type ty = wide->ty;
    ty.dt = h->to;
    Value *narrow =
        func_arg_at(f, arg + 1, arena_printf(m->mem, "%s.rounded", wide->name), ty);
    f->arg_attr[arg + 1] = attr_copy(m->mem, f->arg_attr[arg]);
    func_arg_set_text(f, arg + 1, "rounds", ATTR_STR, wide->name);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        if (!op->nin || op->in[0] != wide || !rounds(h, op)) continue;
        func_replace(f, op->out[0], narrow);
        op_remove(op);
    }
}

static void hold_argument(Arena *mem, Func *f, int i, const PassOptions *o) {
    DType to = o->narrow;
    const char *text = arg_str(f, i, "exact", NULL);
    bool exact = text && type_parse(mem, &f->mod->mesh, text).dt == to;
    if (arg_role(f, i) != ARG_param || f->arg[i]->ty.dt != DT_F32) return;
    /* Stages that have it in common send each other its numbers, in one type: one of them may
     * read it in another way than the other. */
    if (func_arg_in_common(f, i)) return;
    func_number(f);
    Hold h = {f, to, exact, NEW_ARRAY(mem, bool, (size_t)f->nvalues)};
    if (mark_readers(&h, i)) {
        narrow_readers(mem, &h);
        narrow_argument(&h, i);
    } else if (pass_stages(o) == 1 && is_both(&h, i)) {
        hold_twice(&h, i);
    }
}

void pass_hold(Module *m, const PassOptions *o) {
    if (!o->hold || dtype_bytes[o->narrow] >= dtype_bytes[DT_F32]) return;
    Arena *mem = arena_new();
    for (Func *f = m->first; f; f = f->next)
        for (int i = 0; i < f->narg && func_is_entry(f); i++) hold_argument(mem, f, i, o);
    arena_free(mem);
}
