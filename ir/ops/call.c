/* call.c - calling a function, once or in a loop. */
#include "ir/op_hooks.h"

/* Type of `n` stacked copies of t. */
static Type stacked(int64_t n, const Type *t) {
    Type s = *t;
    if (t->rank >= MAX_RANK) infer_error("a stack of more than %d dimensions", MAX_RANK);
    memmove(s.dim + 1, t->dim, sizeof(int64_t) * (MAX_RANK - 1));
    memmove(s.split + 1, t->split, sizeof(Axes) * (MAX_RANK - 1));
    s.dim[0] = n;
    s.split[0] = 0;
    s.rank++;
    return s;
}

void infer_call(Op *op, Type *out) {
    const Func *f = op_func(op);
    bool loop = op_attr(op, "times") != NULL;
    int64_t times = op_int(op, "times", 1), carry = op_int(op, "carry", 0);
    int64_t each = op_int(op, "each", 0);
    if (op->nin != f->narg) {
        infer_error("%d operands, @%s takes %d", op->nin, f->name, f->narg);
    }
    if (!loop && (carry || each)) infer_error("carry and each need times");
    if (times > MAX_TIMES) infer_error("times is at most %d", MAX_TIMES);
    if (times < 1 || carry < 0 || each < 0 || carry > f->nret || carry > op->nin ||
        each > op->nin - carry) {
        infer_error("times, carry and each don't fit @%s", f->name);
    }
    for (int i = 0; i < op->nin; i++) {
        Type want = f->arg[i]->ty;
        if (i >= carry && i < carry + each) want = stacked(times, &want);
        if (!type_same_shape(&want, &op->in[i]->ty)) {
            infer_error("operand %d (%%%s) does not fit argument %%%s of @%s", i,
                        op->in[i]->name, f->arg[i]->name, f->name);
        }
    }
    for (int i = 0; i < f->nret; i++) {
        out[i] = f->ret[i]->ty;
        if (loop && i >= carry) {
            if (type_bytes(&out[i]) > TYPE_MAX_BYTES / times) {
                fail(EXIT_MEMORY,
                     "call of @%s: result %d of %lld runs has more than 2^50 bytes",
                     f->name, i, (long long)times);
            }
            out[i] = stacked(times, &out[i]);
        }
        if (i < carry && !type_same_shape(&f->ret[i]->ty, &f->arg[i]->ty)) {
            infer_error("carried value %d changes its type in @%s", i, f->name);
        }
    }
    for (int i = 0; loop && i < f->nret; i++) {
        int a = f->alias[i];
        bool same = i < carry ? a == i : a >= carry && a < carry + each;
        if (a >= 0 && !same) {
            infer_error("in a loop result %d of @%s cannot overwrite %%%s: a carried "
                        "result overwrites what it is carried from, a stacked one a "
                        "stacked operand",
                        i, f->name, f->arg[a]->name);
        }
    }
    op->nout = f->nret;
}
