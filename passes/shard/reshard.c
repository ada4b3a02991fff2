/* reshard.c - makes every mismatch of placements an op. Level sharded.
 *     %y : f32[8:dp,64]+tp used where f32[8:dp,64:tp] is needed
 *     -> %y2 = reshard %y : f32[8:dp,64:tp]
 * A constant is made again with the placement needed instead. One reshard serves all
 * uses. */
#include "ir/placement.h"
#include "passes/shard/sums.h"

/* Carried arguments of a loop body: what it hands back must lie alike. */
static int carried(const Module *m, const Func *f) {
    int most = 0;
    for (const Func *g = m->first; g; g = g->next) {
        for (const Op *op = g->first; op; op = op->next) {
            if (op_callee(op) == f) most = MAX(most, call_of(op).carry);
        }
    }
    return most;
}

/* Can it be made under this placement, with no message? */
static bool may_lie_so(const Value *v, const Type *want) {
    bool zero;
    return value_is_free(v, &zero) && (zero || !want->pending);
}

/* An earlier reshard of v to this placement. */
static Value *made_before(Func *f, const Value *v, const Type *ty, const Op *stop) {
    for (Op *op = f->first; op && op != stop; op = op->next) {
        if (op->kind == OP_reshard && op->in[0] == v && !op_attr(op, "how") &&
            type_same_placement(&op->out[0]->ty, ty)) {
            return op->out[0];
        }
    }
    return NULL;
}

static Value *brought(const PassOptions *options, Func *f, Op *before, Value *v,
                      const Type *ty);

/* Does the result have a dimension that no operand has? Then every rank can make its part
 * of it. */
static bool makes_dimension(const Op *op) {
    Over o = over_none(op);
    uint32_t given = 0;
    if (!(optab[op->kind].flags & F_MAP) || !o.has_dims || op->nout != 1) return false;
    for (int i = 0; i < op->nin; i++) given |= dims_mask(&o.d, i);
    return op->nin && (dims_mask(&o.d, op->nin) & ~given) != 0;
}

/* A constant, a map of constants, or what makes_dimension, made again with the splits of
 * `want`. */
static Value *made_again(const PassOptions *options, Builder *b, const Op *op,
                         const Type *want) {
    Value **in = NEW_ARRAY(b->mem, Value *, (size_t)op->nin + 1);
    Over o = over_none(op);
    for (int k = 0; k < want->rank; k++) o.split[o.d.term[op->nin][k]] = want->split[k];
    for (int i = 0; i < op->nin; i++) {
        Type x = over_operand(op, &o, i);
        bool there = type_same_placement(&x, &op->in[i]->ty) || !op->in[i]->ty.rank;
        in[i] = there ? op->in[i] : brought(options, b->fn, b->before, op->in[i], &x);
    }
    Op *made = op_again(b, op, in);
    made->out[0]->ty = *want;
    over_write(made, &o);
    return made->out[0];
}

/* v in another element type, each rank's part of it. */
static Value *cast_parts(Builder *b, Value *v, DType to) {
    Type ty = v->ty;
    ty.dt = to;
    bool narrows = dtype_bytes[to] < dtype_bytes[v->ty.dt];
    Value *from = v->def && op_has(v->def, F_CAST) ? v->def->in[0] : NULL;
    if (narrows && from && from->ty.dt == to && type_same_placement(&from->ty, &ty))
        return from;
    b->name = v->name;
    Value *made =
        build_placed(b, OP_cast, narrows && ty.pending ? "parts=1" : NULL, ty, v);
    Over o = over_none(made->def);
    for (int k = 0; k < ty.rank; k++) o.split[o.d.term[0][k]] = ty.split[k];
    o.passes = ty.pending;
    over_write(made->def, &o);
    return made;
}

/* v under another placement. */
static Value *moved(const PassOptions *options, Builder *b, Value *v, Type want) {
    DType was = v->ty.dt;
    if (v->ty.pending & ~want.pending) want.dt = sum_over_ranks(b->fn, v, options);
    if (want.dt != was) v = cast_parts(b, v, want.dt);
    b->name = v->name;
    v = build_placed(b, OP_reshard, NULL, want, v);
    return want.dt == was ? v : cast_parts(b, v, was);
}

static Value *brought(const PassOptions *options, Func *f, Op *before, Value *v,
                      const Type *ty) {
    Type want = *ty;
    want.dt = v->ty.dt;
    Builder b = before ? build_before(before) : build_at_end(f);
    if (may_lie_so(v, &want)) return made_again(options, &b, v->def, &want);
    if (v->def && !want.pending && makes_dimension(v->def))
        return made_again(options, &b, v->def, &want);
    b.name = v->name;
    Value *old = made_before(f, v, &want, before);
    return old ? old : moved(options, &b, v, want);
}

/* A result whose annotation is not what the op gives. */
static void bring_results(const PassOptions *options, Op *op, const Over *o) {
    bool call = op_is_call(op);
    for (int i = 0; i < op->nout; i++) {
        Type gives = call ? call_result(op, i) : over_result(op, o, i),
             want = op->out[i]->ty;
        if (type_same_placement(&gives, &want) || may_lie_so(op->out[i], &want)) continue;
        Builder b = build_behind(op);
        b.name = op->out[i]->name;
        op->out[i]->ty = gives;
        value_replace_behind(op->out[i], moved(options, &b, op->out[i], want));
    }
}

static void reshard_func(const PassOptions *options, Module *m, Func *f) {
    int carry = carried(m, f);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        bool call = op_is_call(op);
        Over o = {0};
        if (!call) o = over_read(op);
        if (op->kind == OP_reshard) continue;
        for (int i = 0; i < op->nin; i++) {
            Type want = op_is_call(op) ? call_operand(op, i) : over_operand(op, &o, i);
            if (type_same_placement(&want, &op->in[i]->ty)) continue;
            op->in[i] = brought(options, f, op, op->in[i], &want);
        }
        bring_results(options, op, &o);
    }
    for (int i = 0; i < f->nret; i++) {
        int alias = i < carry ? i : f->alias[i];
        Type want = f->ret[i]->ty;
        if (alias >= 0)
            want = f->arg[alias]->ty;
        else if (func_is_entry(f))
            memset(want.split, 0, sizeof want.split), want.pending = 0;
        if (!type_same_placement(&want, &f->ret[i]->ty)) {
            f->ret[i] = brought(options, f, NULL, f->ret[i], &want);
        }
    }
}

void pass_reshard(Module *m, const PassOptions *o) {
    for (Func *f = m->first; f; f = f->next) reshard_func(o, m, f);
}
