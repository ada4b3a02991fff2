/* localize.c - the program of one rank. Level sharded -> local: sizes become those of a
 * rank's part, one-step reshards become collectives, and ops that count elements learn
 * where their part begins (hook `local` of their row). The text is the same for every
 * rank. */
#include "ir/placement.h"
#include "passes/passes.h"

static Type local_type(const Mesh *m, const Type *whole) {
    Type t = *whole;
    for (int d = 0; d < t.rank; d++) t.dim[d] /= mesh_group_size(m, whole->split[d]);
    memset(t.split, 0, sizeof t.split);
    t.pending = 0;
    t.open = 0;
    t.open_sum = false;
    return t;
}

typedef struct Localize {
    const Mesh *mesh;
    Func *f;
    Value *whole; /* by value id: a copy with its global type */
} Localize;

static Value **whole_values(Localize *l, Arena *mem, int n, Value **v) {
    Value **out = NEW_ARRAY(mem, Value *, (size_t)n + 1);
    for (int i = 0; i < n; i++) out[i] = &l->whole[v[i]->id];
    return out;
}

/* reshard {how=...} -> the op of that name. */
static void make_collective(Op *op) {
    Builder b = build_before(op);
    b.name = op->out[0]->name;
    const char *axis = op_attr(op, "axis")->s;
    Text attrs = text_new(b.mem);
    text_add(&attrs, "axis=\"%s\"", axis);
    int64_t dim = op_int(op, "dim", -1), to = op_int(op, "to", -1);
    if (to >= 0)
        text_add(&attrs, "; split=%lld; join=%lld", (long long)to, (long long)dim);
    else if (dim >= 0)
        text_add(&attrs, "; dim=%lld", (long long)dim);
    int kind = op_kind(op_attr(op, "how")->s);
    check(kind >= 0 && (optab[kind].flags & (F_COMM | F_RANK)));
    Op *made = build_list(&b, kind, attrs.s, 1, op->in, NULL, 0);
    value_move(op->out[0], made, 0);
    op_remove(op);
}

static void localize_op(Localize *l, Op *op, const Over *o, Arena *mem) {
    if (op->kind == OP_reshard) {
        make_collective(op);
        return;
    }
    over_drop(op);
    if (!o || !o->has_dims) return;
    Op whole = *op;
    whole.in = whole_values(l, mem, op->nin, op->in);
    whole.out = whole_values(l, mem, op->nout, op->out);
    Local hook = {
        .b = build_before(op), .op = op, .d = &o->d, .split = o->split, .whole = &whole};
    optab[op->kind].local(&hook);
}

/* What the runtime must know of an argument: the tensor that it is a part of. */
static void tell_layout(const Localize *l, int i) {
    Func *f = l->f;
    Type rows, *whole = &l->whole[f->arg[i]->id].ty;
    Arena *mem = f->mod->mem;
    Attr a = {0};
    if (attr_find(f->arg_attr[i], "lead")) { /* flattened: `global` is there already */
        a.key = "flat";
        a.kind = ATTR_AXES;
        a.s = mesh_axes_text(mem, l->mesh, whole->split[whole->rank - 1]);
    } else if (attr_find(f->arg_attr[i], "first")) { /* some rows of that */
        rows = type_parse(mem, l->mesh, arg_str(f, i, "global", NULL));
        memcpy(rows.split, whole->split, sizeof rows.split);
        a.key = "global";
        a.kind = ATTR_TYPE;
        a.s = type_text(mem, l->mesh, &rows);
    } else if (type_is_split(whole)) {
        a.key = "global";
        a.kind = ATTR_TYPE;
        a.s = type_text(mem, l->mesh, whole);
    } else {
        return;
    }
    func_arg_set(f, i, &a);
}

static void localize_func(Module *m, Func *f) {
    Arena *mem = arena_new();
    func_number(f);
    Localize l = {&m->mesh, f, NEW_ARRAY(mem, Value, (size_t)f->nvalues + 1)};
    Over **over = NEW_ARRAY(mem, Over *, (size_t)f->nops + 1); /* NULL: no hook */
    for (Op *op = f->first; op; op = op->next) {
        if (optab[op->kind].local) {
            over[op->id] = NEW(mem, Over);
            *over[op->id] = over_read(op);
        }
        for (int i = 0; i < op->nout; i++) l.whole[op->out[i]->id] = *op->out[i];
    }
    for (int i = 0; i < f->narg; i++) l.whole[f->arg[i]->id] = *f->arg[i];
    for (int i = 0; i < f->narg; i++) {
        f->arg[i]->ty = local_type(l.mesh, &f->arg[i]->ty);
        if (func_is_entry(f)) tell_layout(&l, i);
    }
    for (Op *op = f->first; op; op = op->next) {
        for (int i = 0; i < op->nout; i++)
            op->out[i]->ty = local_type(l.mesh, &op->out[i]->ty);
    }
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        localize_op(&l, op, over[op->id], mem);
    }
    arena_free(mem);
}

void pass_localize(Module *m, const PassOptions *o) {
    if (!o->unverified) check_placed(m);
    for (Func *f = m->first; f; f = f->next) localize_func(m, f);
}
