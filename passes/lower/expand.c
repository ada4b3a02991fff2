/* expand.c - composite ops in terms of primitive ones, by the expand hook of their row.
 *     level local; %y, %m, %r = layernorm ...  ->  sum, scale, sub, mul, ...
 * In f32 where the elements are of 16 bits: each of the primitive ops would round, and the square of an
 * f16 above 256 is none. */
#include "passes/passes.h"

static bool expand_op(Op *op, Value **out, void *context) {
    (void)context;
    if (!optab[op->kind].expand) return false;
    Builder b = build_before(op);
    for (int i = 0; i < op->nin; i++)
        if (dtype_is_narrow(op->in[i]->ty.dt))
            op->in[i] = build_cast(&b, op->in[i], DT_F32);
    optab[op->kind].expand(&b, op, out);
    for (int i = 0; i < op->nout; i++) {
        out[i] = build_cast(&b, out[i], op->out[i]->ty.dt);
        out[i]->name = op->out[i]->name;
    }
    return true;
}

void pass_expand(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) func_rewrite(f, expand_op, NULL);
}
