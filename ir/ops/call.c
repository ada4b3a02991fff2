/* call.c - calling a function, once or in a loop. */
#include "ir/op_hooks.h"
#include "ir/placement.h"

/* Type of `n` stacked copies of t. */
static Type stacked(int64_t n, const Type *t) {
    if (t->rank >= MAX_RANK) infer_error("a stack of more than %d dimensions", MAX_RANK);
    return type_stack(t, n);
}

/* Numbers of the attributes, which call_of takes for verified. */
static void check_counts(const Op *op, const Func *f) {
    int64_t times = op_int(op, "times", 1), carry = op_int(op, "carry", 0);
    int64_t each = op_int(op, "each", 0);
    if (op->nin != f->narg)
        infer_error("%d operands, @%s takes %d", op->nin, f->name, f->narg);
    if (!op_attr(op, "times") && (carry || each))
        infer_error("carry and each need times");
    if (times > MAX_TIMES) infer_error("times is at most %d", MAX_TIMES);
    bool some = times >= 1 && carry >= 0 && each >= 0;
    if (!some || carry > MIN(f->nret, op->nin) || each > op->nin - carry)
        infer_error("times %lld, carry %lld and each %lld do not fit %d operands and %d "
                    "results of @%s",
                    (long long)times, (long long)carry, (long long)each, op->nin, f->nret,
                    f->name);
}

static const char *shape_text(const Call *c, const Type *ty) {
    const Module *m = c->f->mod;
    return type_text(m->mem, &m->mesh, ty);
}

static void check_operand(const Call *c, int i) {
    const Value *arg = c->f->arg[i], *v = c->op->in[i];
    Type want = call_slices(c, i) ? stacked(c->times, &arg->ty) : arg->ty;
    if (!type_same_shape(&want, &v->ty))
        infer_error("operand %d (%%%s) is %s, argument %%%s of @%s takes %s", i, v->name,
                    shape_text(c, &v->ty), arg->name, c->f->name, shape_text(c, &want));
}

static Type result_of(const Call *c, int i) {
    const Type *t = &c->f->ret[i]->ty;
    if (i < c->carry && !type_same_shape(t, &c->f->arg[i]->ty))
        infer_error("carried value %d changes its type in @%s", i, c->f->name);
    if (!c->loop || i < c->carry) return *t;
    if (type_bytes(t) > TYPE_MAX_BYTES / c->times)
        fail(EXIT_MEMORY, "call of @%s: result %d of %lld runs has more than 2^50 bytes",
             c->f->name, i, (long long)c->times);
    return stacked(c->times, t);
}

static void check_alias(const Call *c, int i) {
    int a = c->f->alias[i];
    if (a < 0 || (i < c->carry ? a == i : call_slices(c, a))) return;
    infer_error("in a loop result %d of @%s cannot overwrite %%%s: a carried result "
                "overwrites what it is carried from, a stacked one a stacked operand",
                i, c->f->name, c->f->arg[a]->name);
}

void infer_call(Op *op, Type *out) {
    const Func *f = op_func(op);
    check_counts(op, f);
    const Call c = call_of(op);
    for (int i = 0; i < op->nin; i++) check_operand(&c, i);
    for (int i = 0; i < f->nret; i++) out[i] = result_of(&c, i);
    for (int i = 0; c.loop && i < f->nret; i++) check_alias(&c, i);
    op->nout = f->nret;
}
