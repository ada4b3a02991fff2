/* fuse_prepare.c - see fuse_prepare.h. */
#include "passes/lower/fuse_prepare.h"

bool fuse_takes(const Op *op) {
    return (optab[op->kind].flags & (F_MAP | F_REDUCE)) != 0;
}

/* A wider copy takes more memory and time than widening again: each reader that can be in a
 * kernel has its own. */
static void widen_for_each(Func *f, Op *cast) {
    const Value *v = cast->out[0];
    if (dtype_bytes[v->ty.dt] <= dtype_bytes[cast->in[0]->ty.dt]) return;
    bool first = true;
    for (Op *op = cast->next; op; op = op->next) {
        if (!op_reads_value(op, v) || !fuse_takes(op)) continue;
        Builder b = build_before(op);
        if (!first) op_replace_in(op, cast->out[0], op_again(&b, cast, cast->in)->out[0]);
        first = false;
    }
    if (!value_uses(f, v)) op_remove(cast);
}

/* What rounds v, if that is all it is read for; else NULL. */
static Op *rounding_of(const Func *f, const Value *v) {
    Op *def = v->def;
    return def && op_has(def, F_CAST) && value_uses(f, v) == 1 ? def : NULL;
}

/* Does it only add a sum over rows, or what that is rounded to, to what the function is given, for
 * its caller? Then *rounds is the op that rounds it, or NULL. */
static bool adds_up_for_caller(const Func *f, const Op *op, Op **rounds) {
    bool sum = false, others = false;
    *rounds = NULL;
    if (!op_has(op, F_PLUS) || func_result(f, op->out[0]) < 0) return false;
    for (int i = 0; i < op->nin; i++) {
        Op *def = op->in[i]->def, *cast = rounding_of(f, op->in[i]);
        if (cast) def = cast->in[0]->def;
        bool sums = def && op_has(def, F_REDUCE);
        if (sums && cast) *rounds = cast;
        others |= op->in[i]->def && !sums;
        sum |= sums;
    }
    return sum && !others && value_uses(f, op->out[0]) == 1;
}

/* Such sums go last, so that a kernel that makes several of them can go on. */
static void add_up_last(Func *f) {
    Op *last = f->last;
    for (Op *op = f->first, *next; op && op != last; op = next) {
        Op *rounds;
        next = op->next;
        if (!adds_up_for_caller(f, op, &rounds)) continue;
        Builder end = build_at_end(f);
        if (rounds) op_move(&end, rounds);
        op_move(&end, op);
    }
}

/* Does the op read a tensor that one of [from, to) reads, or what makes its operands in kernels? */
static bool reads_with(const Op *op, const Op *from, const Op *to, int depth) {
    for (int i = 0; i < op->nin; i++) {
        const Value *v = op->in[i];
        if (depth && v->def && fuse_takes(v->def) &&
            reads_with(v->def, from, to, depth - 1))
            return true;
        if (v->ty.rank < 2) continue;
        for (const Op *at = from; at != to; at = at->next)
            if (op_reads_value(at, v)) return true;
    }
    return false;
}

/* A matmul of something that elementwise ops make stands before others that read what these do, and
 * do not need it: a hidden layer's activation made again, its product for the gradient of weights,
 * the activation's gradient. Behind them it leaves one kernel, which reads the tensor once. */
static Op *waits_behind(const Op *product) {
    enum { DEPTH = 4 }; /* of elementwise ops */
    Op *last = NULL;
    if (!(optab[product->kind].flags & F_DENSE) || product->nout != 1) return NULL;
    for (Op *op = product->next; op && fuse_takes(op); op = op->next) {
        if (op_reads_value(op, product->out[0])) return NULL;
        last = op;
    }
    for (int i = 0; last && i < product->nin; i++) {
        const Op *def = product->in[i]->def;
        if (def && fuse_takes(def) && reads_with(def, product->next, last->next, DEPTH))
            return last;
    }
    return NULL;
}

static void products_behind(Func *f) {
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        Op *last = waits_behind(op);
        if (!last) continue;
        Builder b = build_behind(last);
        op_move(&b, op);
    }
}

void fuse_prepare(Func *f) {
    add_up_last(f);
    products_behind(f);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        if (op_has(op, F_CAST)) widen_for_each(f, op);
    }
}
