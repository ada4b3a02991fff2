/* expand.c - composite ops in terms of primitive ones, by the expand hook of their row.
 *     level local; %y, %m, %r = layernorm ...  ->  sum, scale, sub, mul, ...
 * In f32 where the elements are of 16 bits: each of the primitive ops would round, and the square of an
 * f16 above 256 is none. */
#include "passes/passes.h"

static Value *as_type(Builder *b, Value *v, DType dt) {
    Type ty = v->ty;
    ty.dt = dt;
    return v->ty.dt == dt ? v : build_as(b, OP_cast, NULL, ty, v, NULL);
}

static void expand_op(Op *op, Value **out) {
    Builder b = build_before(op);
    for (int i = 0; i < op->nin; i++)
        if (dtype_is_narrow(op->in[i]->ty.dt)) op->in[i] = as_type(&b, op->in[i], DT_F32);
    optab[op->kind].expand(&b, op, out);
    for (int i = 0; i < op->nout; i++) out[i] = as_type(&b, out[i], op->out[i]->ty.dt);
}

static void expand_func(Func *f) {
    Arena *mem = arena_new();
    Renames r = renames_new(mem, f);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        renames_reach(&r, op);
        if (!optab[op->kind].expand) continue;
        Value *out[MAX_TERMS] = {NULL};
        expand_op(op, out);
        for (int i = 0; i < op->nout; i++) {
            out[i]->name = op->out[i]->name;
            r.now[op->out[i]->id] = out[i];
        }
        op_remove(op);
    }
    renames_end(&r);
    arena_free(mem);
}

void pass_expand(Module *m, const PassOptions *o) {
    (void)o;
    for (Func *f = m->first; f; f = f->next) expand_func(f);
}
