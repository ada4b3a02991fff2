/* narrow.c - products of narrow numbers: the factors of dense ops become `narrow`
 * (bf16 or f16), their sums stay what they were, and so do parameters, which are rounded
 * where a product reads them (pass hoist makes that once a step). Level global.
 *     %y = dot %x, %w {mk,kn->mn} : f32[..]
 *  -> %x1 = cast %x : bf16[..]; %w1 = cast %w : bf16[..]
 *     %y = dot %x1, %w1 {mk,kn->mn} : f32[..]; %y1 = cast %y : bf16[..]
 *     %y2 = cast %y1 : f32[..]
 * Every rounding is an op of the text. What is kept in memory is narrow: results of
 * products with what is added to each row (a bias), unless an F_EXACT op of the function reads
 * them; sums of two tensors that an op reads which is not elementwise; and what loops carry
 * from run to run. The last two are the residual stream, which `residual_exact` leaves as it
 * is. */
#include "ir/op_hooks.h"
#include "passes/passes.h"

typedef struct Narrow {
    Arena *mem;
    Func *f;
    DType to;
    Value **old, **made; /* by id: a value of before, and what it is rounded to */
    bool *exact;         /* by id: rounding it would reach a loss */
    int n;
    bool residual_exact;
} Narrow;

/* f64 is asked for by who wants it exact. */
static bool is_wider(const Value *v, DType to) {
    return v->ty.dt == DT_F32 && dtype_bytes[v->ty.dt] > dtype_bytes[to];
}

static Value *cast_at(Builder *b, Value *v, DType to) {
    b->name = v->name;
    return build_cast(b, v, to);
}

static Value *cast_behind(Func *f, Value *v, DType to) {
    Builder b = v->def ? build_behind(v->def) : build_at_start(f);
    return cast_at(&b, v, to);
}

/* ---- rounding a value ---- */

/* What v is rounded to already; NULL: nothing yet. */
static Value *known(const Narrow *n, const Value *v) {
    if (v->id < n->n && n->old[v->id] == v && n->made[v->id]) return n->made[v->id];
    const Op *op = v->def;
    return op && op_has(op, F_CAST) && op->in[0]->ty.dt == n->to ? op->in[0] : NULL;
}

static void note(Narrow *n, const Value *v, Value *made) {
    if (v->id < n->n && n->old[v->id] == v) n->made[v->id] = made;
}

/* Rounding before the op is as good as behind it. */
static bool rounds_before(const Op *op) {
    return op && op_has(op, F_MOVE | F_TYPELESS | F_ROUNDS) && op->nin &&
           !(op_has(op, F_TYPELESS) && op->nin > 1);
}

/* The op on a narrow operand 0. */
static Op *narrow_op(const Narrow *n, Builder b, const Op *op, Value *in0) {
    Value **in = NEW_ARRAY(n->f->mod->mem, Value *, (size_t)op->nin);
    memcpy(in, op->in, (size_t)op->nin * sizeof *in);
    in[0] = in0;
    Op *copy = op_again(&b, op, in);
    for (int i = 0; i < op->nout; i++) copy->out[i]->ty.dt = n->to;
    return copy;
}

/* v, rounded for `reader`: as far up as that is the same. Of an argument, and views of it,
 * every reader has its own, so that gradients are added up unrounded, and stages of a
 * pipeline are given the argument. */
static Value *narrowed(Narrow *n, Value *v, Op *reader) {
    Arena *mem = arena_new();
    Value **way = NULL, *at = v;
    int steps = 0, cap = 0;
    while (!known(n, at) && rounds_before(at->def)) {
        PUSH(mem, way, steps, cap, at);
        at = at->def->in[0];
    }
    bool argument = !at->def;
    Builder b = build_before(reader);
    Value *made = known(n, at);
    if (!made && argument)
        made = cast_at(&b, at, n->to);
    else if (!made)
        note(n, at, made = cast_behind(n->f, at, n->to));
    for (int i = steps - 1; i >= 0; i--) {
        Op *op = way[i]->def;
        if (!argument) b = build_behind(op);
        Op *copy = narrow_op(n, b, op, made);
        for (int k = 0; k < op->nout && !argument; k++) note(n, op->out[k], copy->out[k]);
        made = copy->out[way[i]->nth];
    }
    arena_free(mem);
    return made;
}

/* All readers of v see it rounded. */
static void round_value(Narrow *n, Value *v) {
    if (known(n, v)) return;
    Value *narrow = cast_behind(n->f, v, n->to);
    value_replace_behind(v, cast_behind(n->f, narrow, v->ty.dt));
    note(n, v, narrow);
}

/* ---- which values ---- */

/* From readers to what they read, through ops on elements one by one. */
static void mark_exact(Narrow *n) {
    for (const Op *op = n->f->last; op; op = op->prev) {
        bool exact = op_has(op, F_EXACT);
        for (int i = 0; i < op->nout && op_has(op, F_MAP | F_MOVE); i++)
            exact |= n->exact[op->out[i]->id];
        for (int i = 0; i < op->nin; i++) n->exact[op->in[i]->id] |= exact;
    }
}

/* v with the biases that are added to it. */
static Value *with_bias(const Func *f, Value *v) {
    for (;;) {
        Op *sum = value_only_reader(f, v);
        if (!sum || !op_has(sum, F_PLUS)) return v;
        const Value *other = sum->in[sum->in[0] == v];
        if (other->ty.rank >= v->ty.rank || !type_same_shape(&sum->out[0]->ty, &v->ty))
            return v;
        v = sum->out[0];
    }
}

/* A result of the model, which may have been moved. */
static bool is_output(const Func *f, const Value *v) {
    if (f->role != ROLE_MODEL) return false;
    while (func_result(f, v) < 0) {
        const Op *op = value_only_reader(f, v);
        if (!op || !op_has(op, F_MOVE)) return false;
        v = op->out[0];
    }
    return true;
}

static void round_result(Narrow *n, Value *v) {
    if (!is_wider(v, n->to) || v->ty.rank < 2 || n->exact[v->id]) return;
    if (is_output(n->f, v)) return;
    round_value(n, v);
}

/* Is it read by an op that is not elementwise? */
static bool read_as_whole(const Value *v) {
    for (const Op *op = v->def->next; op; op = op->next)
        if (!op_has(op, F_MAP | F_MOVE | F_LINEAR | F_CALL) && op_reads_value(op, v))
            return true;
    return false;
}

static bool is_residual(const Narrow *n, const Op *op) {
    if (n->residual_exact || !op_has(op, F_PLUS)) return false;
    for (int i = 0; i < 2; i++)
        if (!type_same_shape(&op->in[i]->ty, &op->out[0]->ty)) return false;
    return read_as_whole(op->out[0]);
}

/* ---- ops ---- */

/* Factors are the operands that must have one type; results get the type that the row gives
 * for such operands, and where it leaves that open stay as they are. */
static void narrow_dense(Narrow *n, Op *op) {
    const char *spec = optab[op->kind].types;
    for (int i = 0; i < op->nin; i++) {
        char c = spec[MIN((size_t)i, strcspn(spec, "-") - 1)];
        if (c == 'f' && is_wider(op->in[i], n->to))
            op->in[i] = narrowed(n, op->in[i], op);
    }
    Arena *mem = arena_new();
    Type *was = NEW_ARRAY(mem, Type, (size_t)op->nout);
    Type *now = NEW_ARRAY(mem, Type, (size_t)op->nout);
    int nout = op->nout;
    for (int i = 0; i < op->nout; i++) was[i] = op->out[i]->ty;
    const char *why = op_infer(mem, op, was, nout, now, &nout);
    if (why) die("narrow: %s", why);
    for (int i = 0; i < op->nout; i++) {
        Value *v = op->out[i];
        if (now[i].dt == was[i].dt) continue;
        v->ty.dt = now[i].dt;
        value_replace_behind(v, cast_behind(n->f, v, was[i].dt));
    }
    for (int i = 0; i < op->nout && now[i].dt == was[i].dt; i++)
        round_result(n, with_bias(n->f, op->out[i]));
    arena_free(mem);
}

static void narrow_func(Narrow *n, Func *f) {
    func_number(f);
    n->f = f;
    n->n = f->nvalues;
    n->old = NEW_ARRAY(n->mem, Value *, (size_t)f->nvalues + 1);
    n->made = NEW_ARRAY(n->mem, Value *, (size_t)f->nvalues + 1);
    n->exact = NEW_ARRAY(n->mem, bool, (size_t)f->nvalues + 1);
    for (int i = 0; i < f->narg; i++) n->old[f->arg[i]->id] = f->arg[i];
    for (Op *op = f->first; op; op = op->next)
        for (int i = 0; i < op->nout; i++) n->old[op->out[i]->id] = op->out[i];
    mark_exact(n);
    for (Op *op = f->first, *next; op; op = next) {
        next = op->next;
        if (op_has(op, F_DENSE)) narrow_dense(n, op);
        if (is_residual(n, op)) round_result(n, op->out[0]);
    }
}

/* ---- what loops carry ---- */

/* Value i of every call of f is carried by a loop. */
static bool always_carried(const Module *m, const Func *f, int i) {
    bool any = false;
    for (const Func *g = m->first; g; g = g->next)
        for (const Op *op = g->first; op; op = op->next) {
            if (op_callee(op) != f) continue;
            any = true;
            if (call_of(op).carry <= i) return false;
        }
    return any;
}

static void narrow_calls(Module *m, const Func *f, int i, DType to) {
    for (Func *g = m->first; g; g = g->next)
        for (Op *op = g->first; op; op = op->next) {
            if (op_callee(op) != f) continue;
            Builder b = build_before(op);
            DType was = op->out[i]->ty.dt;
            op->in[i] = cast_at(&b, op->in[i], to);
            op->out[i]->ty.dt = to;
            value_replace_behind(op->out[i], cast_behind(g, op->out[i], was));
        }
}

static void narrow_carried(Module *m, Func *f, int i, DType to) {
    Value *arg = f->arg[i];
    DType was = arg->ty.dt;
    Builder end = build_at_end(f);
    f->ret[i] = cast_at(&end, f->ret[i], to);
    arg->ty.dt = to;
    value_replace_behind(arg, cast_behind(f, arg, was));
    narrow_calls(m, f, i, to);
}

static void narrow_loops(Module *m, DType to) {
    for (Func *f = m->first; f; f = f->next)
        for (int i = 0; i < f->narg && i < f->nret && always_carried(m, f, i); i++)
            if (is_wider(f->arg[i], to) && f->arg[i]->ty.rank >= 2)
                narrow_carried(m, f, i, to);
}

void pass_narrow(Module *m, const PassOptions *o) {
    if (!o->narrow) return;
    Narrow n = {.mem = arena_new(), .residual_exact = o->residual_exact};
    n.to = o->narrow;
    if (!n.residual_exact) narrow_loops(m, n.to);
    for (Func *f = m->first; f; f = f->next) narrow_func(&n, f);
    arena_free(n.mem);
}
