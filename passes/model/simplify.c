/* simplify.c - dead code, common subexpressions, arithmetic of constants. Any level up to
 * local; leaves the level as it is.
 *     %a = fill {value=0}; %b = add %x, %a     ->     %x */
#include "passes/passes.h"

/* ---- common subexpressions ---- */

static bool same_work(const Op *a, const Op *b) {
    if (a->kind != b->kind || a->nin != b->nin || a->nout != b->nout) return false;
    for (int i = 0; i < a->nin; i++) {
        if (a->in[i] != b->in[i]) return false;
    }
    for (int i = 0; i < a->nout; i++) {
        if (!type_equal(&a->out[i]->ty, &b->out[i]->ty)) return false;
    }
    return attrs_equal(a->attr, b->attr);
}

static uint64_t work_hash(const Op *op) {
    uint64_t h = (uint64_t)op->kind * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < op->nin; i++) h = (h ^ (uint64_t)op->in[i]->id) * 0x100000001b3u;
    return h;
}

typedef struct Seen {
    int cap;
    Op **slot; /* by hash */
} Seen;

static bool seen_before(Op *op, Value **out, void *context) {
    Seen *s = context;
    if (op_has(op, F_EFFECT)) return false;
    int at = (int)(work_hash(op) % (uint64_t)s->cap);
    while (s->slot[at] && !same_work(s->slot[at], op)) at = (at + 1) % s->cap;
    bool seen = s->slot[at] != NULL;
    if (!seen) s->slot[at] = op;
    for (int i = 0; seen && i < op->nout; i++) out[i] = s->slot[at]->out[i];
    return seen;
}

static void common_subexpressions(Func *f) {
    Arena *mem = arena_new();
    Seen s = {.cap = 2 * f->nops + 1};
    s.slot = NEW_ARRAY(mem, Op *, (size_t)s.cap);
    func_rewrite(f, seen_before, &s);
    arena_free(mem);
}

/* ---- arithmetic ---- */

/* The constant that a value is filled with. */
static bool constant(const Value *v, double *c) {
    const Attr *a = v->def && op_has(v->def, F_FILL) ? op_attr(v->def, "value") : NULL;
    if (a) *c = a->f;
    return a != NULL;
}

/* Does a move by rule keep all elements in their order (only dimensions of one element
 * are moved)? */
static bool keeps_order(const Op *op) {
    const Type *in = &op->in[0]->ty, *out = &op->out[0]->ty;
    const Rule *r = op_rule(op);
    if (!(optab[op->kind].flags & F_MOVE) || !op_attr(op, "rule") ||
        type_count(in) != type_count(out)) {
        return false;
    }
    int at = 0;
    for (int k = 0; k < r->term[0].n; k++) {
        if (r->term[0].letter[k] == '.') return false;
        if (in->dim[k] == 1) continue;
        while (at < out->rank && out->dim[at] == 1) at++;
        if (at == out->rank || r->term[1].letter[at++] != r->term[0].letter[k])
            return false;
    }
    return true;
}

/* Such a move is a view. */
static void moves_to_views(Func *f) {
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        if (op->nin != 1 || !keeps_order(op)) continue;
        Builder b = build_before(op);
        b.name = op->out[0]->name;
        Value *view = build_placed(&b, OP_reshape, NULL, op->out[0]->ty, op->in[0]);
        value_move(op->out[0], view->def, 0);
        op_remove(op);
    }
}

/* The value that a cast gives back: x, widened and cast to its own type again. One that says of what
 * it may be stays for that. */
static Value *cast_back(const Op *op) {
    Value *v = op->in[0];
    if (op->attr) return NULL;
    while (v->def && op_has(v->def, F_CAST) && dtype_is_float(v->ty.dt) &&
           dtype_is_float(v->def->in[0]->ty.dt) &&
           dtype_holds(v->ty.dt, v->def->in[0]->ty.dt))
        v = v->def->in[0];
    return type_equal(&v->ty, &op->out[0]->ty) ? v : NULL;
}

/* Is operand i of an elementwise op where the result has it, element by element? */
static bool in_order(const Op *op, int i) {
    Dims d;
    return type_equal(&op->in[i]->ty, &op->out[0]->ty) && op_dims(op, &d) &&
           dims_same_order(&d, i, op->nin);
}

/* A value that an op only hands on, or NULL: x + 0, 0 + x, x scaled by 1, x cast back. */
static Value *handed_on(const Op *op) {
    double c;
    if (!op->nin || !op->nout) return NULL;
    if (optab[op->kind].flags & F_PLUS) {
        for (int i = 0; i < 2; i++) {
            if (constant(op->in[i], &c) && c == 0 && in_order(op, 1 - i))
                return op->in[1 - i];
        }
    }
    if (op_has(op, F_CAST)) return cast_back(op);
    bool same = type_equal(&op->in[0]->ty, &op->out[0]->ty);
    if (op->nin == 1 && (optab[op->kind].flags & F_VIEW) && same) return op->in[0];
    if (op_has(op, F_SCALE) && op_float(op, "by", 0) == 1) return op->in[0];
    return NULL;
}

static bool arithmetic(Op *op, Value **out, void *context) {
    (void)context;
    Value *v = handed_on(op);
    if (v) out[0] = v;
    return v != NULL;
}

/* What v is a view of, if it is read by nothing but one op; else NULL. */
static Value *viewed(const Func *f, const Value *v) {
    const Op *view = v->def;
    bool is = view && op_has(view, F_VIEW) && op_has(view, F_MOVE) && view->nin == 1 &&
              !view->attr;
    return is && value_uses(f, v) == 1 ? view->in[0] : NULL;
}

/* The sum of two views of one shape is the view of a sum, which ranks then make once. */
static bool view_of_sum(Op *op, Value **out, void *context) {
    (void)context;
    if (!op_has(op, F_PLUS) || op->nin != 2 || op_attr(op, "rule")) return false;
    Value *x = viewed(op->fn, op->in[0]), *y = viewed(op->fn, op->in[1]);
    if (!x || !y || x == y || !type_equal(&x->ty, &y->ty)) return false;
    Builder b = build_before(op);
    b.name = op->out[0]->name;
    Value *sum = build1(&b, op->kind, NULL, x, y, NULL);
    sum->ty = x->ty;
    b.name = op->out[0]->name;
    out[0] = build_placed(&b, op->in[0]->def->kind, NULL, op->out[0]->ty, sum);
    sum->grad_of = out[0]->grad_of = op->out[0]->grad_of;
    return true;
}

void pass_simplify(Module *m, const PassOptions *o) {
    (void)o;
    module_remove_unused(m);
    for (Func *f = m->first; f; f = f->next) {
        func_rewrite(f, arithmetic, NULL);
        if (m->level <= LEVEL_DIFFED) func_rewrite(f, view_of_sum, NULL);
        if (m->level >= LEVEL_LOCAL) moves_to_views(f);
        common_subexpressions(f);
        func_remove_dead(f);
    }
    module_remove_unused(m);
}
