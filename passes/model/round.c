/* round.c - gradients of parameters are kept, summed over micro-batches and exchanged in the type
 * of the products' factors: each is rounded where it is made, in the innermost function, as far
 * up through moves as it is read there alone. Level diffed, before train.
 *     @m.grad: %dw = call %dy {fn=@layer.grad; times=n} : f32[n,6,6]; return %dw
 *     @layer.grad: %d = dot %x, %dy : f32[6,6]; return %d
 *  -> @m.grad: %dw = call %dy {fn=@layer.grad; times=n} : bf16[n,6,6]; return %dw
 *     @layer.grad: %d = dot %x, %dy : f32[6,6]; %d1 = cast %d {parts=1} : bf16[6,6]; return %d1
 * What calls hand from run to run, and sums of several readers of a parameter, stay f32 until
 * they are complete. `parts` lets a sum over ranks go on behind the rounding: each rank rounds its
 * part, and the message has half the bytes. */
#include "passes/passes.h"

typedef struct Round {
    Func **order;
    bool **wanted; /* by Func.nth and result: it becomes narrow */
    DType to;
} Round;

static bool moves(const Op *op) {
    return op && op_has(op, F_MOVE) && op->nin == 1 && op->nout == 1;
}

/* Which result of f v ends as, through moves of which each is read once; -1: none. */
static int ends_as(Func *f, const Value *v) {
    for (;;) {
        if (value_uses(f, v) != 1) return -1;
        int result = func_result(f, v);
        if (result >= 0) return result;
        const Op *reader = value_only_reader(f, v);
        if (!moves(reader)) return -1;
        v = reader->out[0];
    }
}

/* Do all callers want result i of f rounded? */
static bool callers_want(const Round *r, const Func *f, int i) {
    int calls = 0;
    for (int k = 0; r->order[k]; k++) {
        for (Op *op = r->order[k]->first; op; op = op->next) {
            if (op_callee(op) != f) continue;
            int as = i < call_of(op).carry ? -1 : ends_as(op->fn, op->out[i]);
            if (as < 0 || !r->wanted[op->fn->nth][as]) return false;
            calls++;
        }
    }
    return calls > 0;
}

/* Result i of f, rounded as far up as it is read there alone. */
static void round_result(const Round *r, Func *f, int i) {
    Value **at = &f->ret[i], *v = *at;
    while (moves(v->def) && value_uses(f, v) == 1) {
        v->ty.dt = r->to;
        at = &v->def->in[0];
        v = *at;
    }
    const Func *callee = v->def ? op_callee(v->def) : NULL;
    if (callee && r->wanted[callee->nth][v->nth]) {
        v->ty.dt = r->to;
        return;
    }
    Builder b = v->def ? build_behind(v->def) : build_at_start(f);
    Type ty = v->ty;
    ty.dt = r->to;
    b.name = v->name;
    *at = build_placed(&b, OP_cast, "parts=1", ty, v);
    (*at)->grad_of = v->grad_of;
}

/* The gradients of the model's parameters, its last results. */
static void want_gradients(const Round *r, const Func *f) {
    int n = f->nret;
    for (int i = f->narg - 1; i >= 0; i--)
        if (arg_role(f, i) == ARG_param) n--;
    for (; n < f->nret; n++) r->wanted[f->nth][n] = f->ret[n]->ty.dt == DT_F32;
}

void pass_round(Module *m, const PassOptions *o) {
    if (!o->round_gradients || dtype_bytes[o->narrow] >= dtype_bytes[DT_F32]) return;
    Arena *mem = arena_new();
    Round r = {.order = module_order(mem, m), .to = o->narrow};
    int n = order_length(r.order);
    r.wanted = NEW_ARRAY(mem, bool *, (size_t)n + 1);
    while (n--) { /* callers before callees */
        Func *f = r.order[n];
        r.wanted[f->nth] = NEW_ARRAY(mem, bool, (size_t)f->nret + 1);
        if (func_is_gradient(f)) want_gradients(&r, f);
        for (int i = 0; i < f->nret && !func_is_entry(f); i++)
            r.wanted[f->nth][i] = f->ret[i]->ty.dt == DT_F32 && callers_want(&r, f, i);
    }
    for (n = 0; r.order[n]; n++)
        for (int i = 0; i < r.order[n]->nret; i++)
            if (r.wanted[r.order[n]->nth][i]) round_result(&r, r.order[n], i);
    arena_free(mem);
}
