/* autodiff.c - reverse-mode gradients by the vjp hooks of the op rows.
 *     level global -> diffed. For the model @m(args) -> (loss, more...) adds
 *     @m.grad(args, %dloss) -> (loss, more..., gradient of every parameter).
 *
 * A function f that is called gets @f.fwd, which also returns what backward needs, and
 * @f.bwd. In a loop those values come stacked, and the backward loop runs in reverse:
 *     call %x, %w {fn=@f; times=n; carry=1; each=1}
 *     call %dy, %saved, %w {fn=@f.bwd; times=n; carry=1; each=2; reverse=1} */
#include "ir/over.h"
#include "passes/passes.h"

typedef struct Pair { /* @f.fwd and @f.bwd for one pattern of use */
    const Func *f;
    bool loop;
    int carry, each;
    const bool *wants; /* per argument */
    const bool *cot;   /* per result: does a gradient come in? */
    Func *fwd, *bwd;
    /* what backward reads: arguments of f, or extra results of fwd (from f->nret on) */
    int *saved_arg, nsaved_arg;
    int nsaved;
    struct Pair *next;
} Pair;

typedef struct Diff { /* gradient of one function body */
    Grad g;           /* first: hooks get a Grad * */
    Module *m;
    Func *f;
    bool *active; /* by id: depends on an argument that wants a gradient */
    Value **grad; /* by id: its gradient so far */
    int nvalues;
    Pair **pairs;
    const PassOptions *o;
} Diff;

static Value *grad_of(Grad *g, Value *v) {
    Diff *d = (Diff *)g;
    return v->id < d->nvalues ? d->grad[v->id] : NULL;
}

static bool grad_wants(Grad *g, Value *v) {
    Diff *d = (Diff *)g;
    return v->id < d->nvalues && d->active[v->id];
}

/* A gradient is split like what it is the gradient of; its sums may be finished later. */
static void lie_like(Value *grad, const Type *ty) {
    bool split = false;
    for (int d = 0; d < ty->rank; d++) split |= ty->split[d] != 0;
    if (!split) return;
    memcpy(grad->ty.split, ty->split, sizeof ty->split);
    grad->ty.open_sum = true;
}

static void grad_add(Grad *g, Value *v, Value *more) {
    Diff *d = (Diff *)g;
    check(grad_wants(g, v) && type_same_shape(&v->ty, &more->ty));
    Value **at = &d->grad[v->id];
    if (more->def) lie_like(more, &v->ty);
    *at = *at ? build1(&g->b, OP_add, NULL, *at, more, NULL) : more;
    if (!(*at)->def) return;
    (*at)->name = arena_printf(d->m->mem, "d.%s", v->name);
    lie_like(*at, &v->ty);
}

static Value *zeros(Builder *b, const Type *ty) {
    return build_as(b, OP_fill, "value=0", *ty, NULL);
}

/* Rows that are constants for a gradient (a maximum, indices) have no vjp on purpose; a
 * linear one without it would lose the gradient. */
static void refuse_unknown(const Op *op) {
    const OpInfo *row = &optab[op->kind];
    if (!(row->flags & F_LINEAR) || row->vjp || !dtype_is_float(op->out[0]->ty.dt))
        return;
    fail_op(op, "no gradient flows through %s (%%%s); write it with other ops", row->name,
            op->out[0]->name);
}

static void mark_active(Diff *d) {
    for (Op *op = d->f->first; op; op = op->next) {
        bool any = false;
        for (int i = 0; i < op->nin; i++) any |= d->active[op->in[i]->id];
        if (any) refuse_unknown(op);
        if (!any || (!optab[op->kind].vjp && !op_is_call(op))) continue;
        for (int i = 0; i < op->nout; i++) {
            d->active[op->out[i]->id] = dtype_is_float(op->out[i]->ty.dt);
        }
    }
}

static void diff_call(Diff *d, Op *op);

/* Rows with further results (statistics of a norm, log sum exp) have gradients for the
 * first one only. */
static void refuse_further_results(const Diff *d, const Op *op) {
    for (int i = 1; i < op->nout && optab[op->kind].nout > 1; i++) {
        if (!d->grad[op->out[i]->id]) continue;
        fail(EXIT_CONFIG,
             "@%s: no gradient flows through result %d of %s (%%%s); make the "
             "loss from other values",
             d->f->name, i, optab[op->kind].name, op->out[i]->name);
    }
}

/* Walks the forward ops of d->f backwards, appending the gradients at the end. */
static void diff_body(Diff *d, Op *last_forward) {
    for (Op *op = last_forward, *prev; op; op = prev) {
        prev = op->prev;
        bool any = false;
        for (int i = 0; i < op->nout; i++) any |= d->grad[op->out[i]->id] != NULL;
        bool wanted = false;
        for (int i = 0; i < op->nin; i++) wanted |= grad_wants(&d->g, op->in[i]);
        if (!any || !wanted) continue;
        refuse_further_results(d, op);
        if (op_is_call(op))
            diff_call(d, op);
        else if (optab[op->kind].vjp)
            optab[op->kind].vjp(&d->g, op);
    }
}

static Diff diff_begin(Module *m, Func *f, Pair **pairs, const PassOptions *o) {
    func_number(f);
    Diff d = {.m = m, .f = f, .nvalues = f->nvalues, .pairs = pairs, .o = o};
    d.active = NEW_ARRAY(m->mem, bool, (size_t)f->nvalues);
    d.grad = NEW_ARRAY(m->mem, Value *, (size_t)f->nvalues);
    d.g = (Grad){build_at_end(f), grad_of, grad_add, grad_wants};
    return d;
}

/* ---- pairs ---- */

static bool is_each(const Pair *p, int arg) {
    return p->loop && arg >= p->carry && arg < p->carry + p->each;
}

static bool is_carry(const Pair *p, int arg) {
    return p->loop && arg < p->carry;
}

/* Is v an argument that no run changes, only with its elements in other places? */
static bool is_moved_argument(const Pair *p, const Value *v) {
    while (v->def && (optab[v->def->kind].flags & F_MOVE)) v = v->def->in[0];
    return !v->def && v->nth < p->f->narg && !is_carry(p, v->nth);
}

static Value *moved_again(Builder *b, Value *v, Value **again) {
    if (!v->def) return v;
    if (again[v->id]) return again[v->id];
    Value *in = moved_again(b, v->def->in[0], again);
    return again[v->id] = op_again(b, v->def, &in)->out[0];
}

/* Backward moves such arguments again rather than keep what they became. */
static void remake_moves(Pair *p, Op *last) {
    Func *w = p->fwd;
    if (!last) return;
    func_number(w);
    Value **again = NEW_ARRAY(w->mod->mem, Value *, (size_t)w->nvalues + 1);
    Op *first = last->next;
    for (Op *op = first; op; op = op->next) {
        for (int i = 0; i < op->nin; i++) {
            Value *v = op->in[i];
            if (!v->def || v->def->id > last->id || !is_moved_argument(p, v)) continue;
            Builder b = build_before(first);
            op->in[i] = moved_again(&b, v, again);
        }
    }
}

/* A gradient lies like its parameter, or is sharded over the copies of it at once. */
static void place_gradient(const PassOptions *o, const Func *f, int i, Value *grad) {
    if (!grad || !grad->def) return;
    const Type *ty = &f->arg[i]->ty;
    if (arg_float(f, i, "zero", 0) >= 2)
        grad->ty = zero_type(f->mod, o, ty);
    else
        lie_like(grad, ty);
}

/* In fwd: forward ops up to `last`, then backward ops. Lists the forward values that
 * backward reads: arguments that the caller still has by index, the rest as new results. */
static Value **collect_saved(Module *m, Pair *p, Op *last, Value **grads, int ncot) {
    Func *w = p->fwd;
    func_number(w);
    bool *seen = NEW_ARRAY(m->mem, bool, (size_t)w->nvalues);
    Value **saved = NEW_ARRAY(m->mem, Value *, (size_t)w->nvalues);
    int first_cot = w->narg - ncot, n = 0;
    p->saved_arg = NEW_ARRAY(m->mem, int, (size_t)w->narg);
    int last_id = last ? last->id : -1;
    for (Op *op = last ? last->next : w->first;; op = op->next) {
        int count = op ? op->nin : p->f->narg;
        for (int i = 0; i < count; i++) {
            Value *v = op ? op->in[i] : grads[i];
            if (!v || seen[v->id] || (v->def && v->def->id > last_id)) continue;
            if (!v->def && v->nth >= first_cot) continue;
            seen[v->id] = true;
            if (!v->def && !is_carry(p, v->nth))
                p->saved_arg[p->nsaved_arg++] = v->nth;
            else
                saved[n++] = v;
        }
        if (!op) break;
    }
    p->nsaved = n;
    return saved;
}

/* The arguments of @f.bwd in the order the backward call gives them; map is by value id
 * of fwd. acc[i] gets the accumulator of argument i (loops, invariants). */
static void bwd_arguments(Pair *p, Func *bwd, Value **cot, Value **saved, Value **map,
                          Value **acc) {
    const Func *f = p->f, *w = p->fwd;
    for (int i = 0; i < f->nret; i++) {
        if (cot[i] && p->loop && i < p->carry) {
            map[cot[i]->id] = func_arg(bwd, cot[i]->name, cot[i]->ty);
        }
    }
    for (int i = 0; i < f->narg && p->loop; i++) {
        if (!p->wants[i] || is_carry(p, i) || is_each(p, i)) continue;
        acc[i] = func_arg(bwd, arena_printf(bwd->mod->mem, "acc.%s", f->arg[i]->name),
                          f->arg[i]->ty);
    }
    for (int i = 0; i < f->nret; i++) {
        if (cot[i] && !(p->loop && i < p->carry)) {
            map[cot[i]->id] = func_arg(bwd, cot[i]->name, cot[i]->ty);
        }
    }
    for (int i = 0; i < p->nsaved; i++) {
        map[saved[i]->id] = func_arg(bwd, saved[i]->name, saved[i]->ty);
    }
    for (int pass = 0; pass < 2; pass++) { /* sliced arguments first, then invariants */
        for (int k = 0; k < p->nsaved_arg; k++) {
            int i = p->saved_arg[k];
            if (is_each(p, i) == (pass == 0)) {
                map[w->arg[i]->id] = func_arg(bwd, w->arg[i]->name, w->arg[i]->ty);
            }
        }
    }
}

/* Results: gradients of carried arguments, accumulators, then the rest. */
static void bwd_results(Pair *p, Func *bwd, Value **grads, Value **acc) {
    Builder b = build_at_end(bwd);
    for (int group = 0; group < 3; group++) {
        for (int i = 0; i < p->f->narg; i++) {
            if (!p->wants[i]) continue;
            int mine = is_carry(p, i) ? 0 : acc[i] ? 1 : 2;
            if (mine != group) continue;
            Value *v = grads[i] ? grads[i]
                       : acc[i] ? acc[i]
                                : zeros(&b, &p->f->arg[i]->ty);
            if (acc[i] && grads[i]) v = build1(&b, OP_add, NULL, acc[i], grads[i], NULL);
            func_ret(bwd, v, acc[i] ? acc[i]->nth : -1);
        }
    }
}

/* Moves the ops after `last` of fwd into bwd. */
static void split(Module *m, Pair *p, Op *last, Value **cot, int ncot, Value **grads,
                  const PassOptions *o) {
    Func *w = p->fwd;
    remake_moves(p, last);
    Value **saved = collect_saved(m, p, last, grads, ncot);
    p->bwd = func_new_unique(m, arena_printf(m->mem, "%s.bwd", p->f->name), ROLE_FUNC);
    Value **map = NEW_ARRAY(m->mem, Value *, (size_t)w->nvalues);
    Value **acc = NEW_ARRAY(m->mem, Value *, (size_t)p->f->narg);
    bwd_arguments(p, p->bwd, cot, saved, map, acc);
    Builder b = build_at_end(p->bwd);
    for (Op *op = last ? last->next : w->first, *next; op; op = next) {
        next = op->next;
        op_clone(&b, op, map);
        op_remove(op);
    }
    for (int i = 0; i < p->f->narg; i++) {
        if (!grads[i]) continue;
        grads[i] = map[grads[i]->id];
        place_gradient(o, w, i, grads[i]);
    }
    bwd_results(p, p->bwd, grads, acc);
    w->narg -= ncot;
    for (int i = 0; i < p->nsaved; i++) func_ret(w, saved[i], -1);
    func_remove_dead(p->bwd);
}

static Pair *pair_make(Diff *caller, Pair want) {
    Module *m = caller->m;
    Pair *p = NEW(m->mem, Pair);
    *p = want;
    p->fwd = func_clone(p->f, arena_printf(m->mem, "%s.fwd", p->f->name), ROLE_FUNC);
    Func *w = p->fwd;
    Value **cot = NEW_ARRAY(m->mem, Value *, (size_t)p->f->nret);
    int ncot = 0;
    for (int i = 0; i < p->f->nret; i++) {
        if (!p->cot[i]) continue;
        cot[i] =
            func_arg(w, arena_printf(m->mem, "d.%s", w->ret[i]->name), w->ret[i]->ty);
        ncot++;
    }
    Diff d = diff_begin(m, w, caller->pairs, caller->o);
    for (int i = 0; i < p->f->narg; i++) d.active[w->arg[i]->id] = p->wants[i];
    mark_active(&d);
    for (int i = 0; i < p->f->nret; i++) {
        if (cot[i] && d.active[w->ret[i]->id]) grad_add(&d.g, w->ret[i], cot[i]);
    }
    for (int i = 0; i < p->f->nret; i++) {
        if (cot[i]) cot[i]->name = arena_printf(m->mem, "d.%s", w->ret[i]->name);
    }
    int nforward = w->nops; /* a call is replaced by a call, so the count stays */
    diff_body(&d, w->last);
    Op *last = NULL;
    for (int i = 0; i < nforward; i++) last = last ? last->next : w->first;
    Value **grads = NEW_ARRAY(m->mem, Value *, (size_t)p->f->narg);
    for (int i = 0; i < p->f->narg; i++) {
        grads[i] = p->wants[i] ? d.grad[w->arg[i]->id] : NULL;
    }
    split(m, p, last, cot, ncot, grads, caller->o);
    p->next = *caller->pairs;
    return *caller->pairs = p;
}

static bool same_flags(const bool *a, const bool *b, int n) {
    return !n || !memcmp(a, b, (size_t)n * sizeof(bool));
}

static Pair *pair_for(Diff *d, Op *op) {
    const Call c = call_of(op);
    Pair want = {.f = c.f, .loop = c.loop, .carry = c.carry, .each = c.each};
    bool *wants = NEW_ARRAY(d->m->mem, bool, (size_t)op->nin);
    bool *cot = NEW_ARRAY(d->m->mem, bool, (size_t)op->nout);
    for (int i = 0; i < op->nin; i++) {
        wants[i] = is_carry(&want, i) ? dtype_is_float(op->in[i]->ty.dt)
                                      : grad_wants(&d->g, op->in[i]);
    }
    for (int i = 0; i < op->nout; i++) {
        cot[i] = is_carry(&want, i) ? dtype_is_float(op->out[i]->ty.dt)
                                    : d->grad[op->out[i]->id] != NULL;
    }
    want.wants = wants;
    want.cot = cot;
    for (Pair *p = *d->pairs; p; p = p->next) {
        if (p->f == want.f && p->loop == want.loop && p->carry == want.carry &&
            p->each == want.each && same_flags(p->wants, wants, op->nin) &&
            same_flags(p->cot, cot, op->nout)) {
            return p;
        }
    }
    return pair_make(d, want);
}

/* Replaces the call by one of @f.fwd; the first results keep their ids. */
static Op *call_forward(Diff *d, Op *op, const Pair *p) {
    Builder b = build_before(op);
    const Call c = call_of(op);
    Text attrs = text_new(d->m->mem);
    text_add(&attrs, "fn=@%s", p->fwd->name);
    if (p->loop) {
        text_add(&attrs, "; times=%lld; carry=%d; each=%d%s", (long long)c.times,
                 p->carry, p->each, c.reverse ? "; reverse=1" : "");
    }
    Op *fwd = build_list(&b, op->kind, attrs.s, op->nin, op->in, NULL, 0);
    for (int i = 0; i < fwd->nout; i++) {
        bool old = i < op->nout;
        fwd->out[i]->id = old ? op->out[i]->id : d->nvalues;
        fwd->out[i]->name = old ? op->out[i]->name : p->fwd->ret[i]->name;
        if (old) func_replace(d->f, op->out[i], fwd->out[i]);
    }
    op_remove(op);
    return fwd;
}

static void diff_call(Diff *d, Op *op) {
    const Pair *p = pair_for(d, op);
    Func *f = (Func *)p->f;
    Op *fwd = call_forward(d, op, p);
    const Call forward = call_of(fwd);
    Builder *b = &d->g.b;
    Value **in = NEW_ARRAY(d->m->mem, Value *, (size_t)p->bwd->narg);
    int n = 0, carry = 0, each = 0;
    for (int i = 0; i < f->nret; i++) { /* carried gradients */
        if (!p->cot[i] || !(p->loop && i < p->carry)) continue;
        Value *g = d->grad[fwd->out[i]->id];
        in[n++] = g ? g : zeros(b, &fwd->out[i]->ty);
        carry++;
    }
    for (int i = 0; i < f->narg && p->loop; i++) { /* accumulators */
        if (!p->wants[i] || is_carry(p, i) || is_each(p, i)) continue;
        in[n++] = zeros(b, &fwd->in[i]->ty);
        carry++;
    }
    for (int i = 0; i < f->nret; i++) {
        if (!p->cot[i] || (p->loop && i < p->carry)) continue;
        in[n++] = d->grad[fwd->out[i]->id];
        each++;
    }
    for (int i = 0; i < p->nsaved; i++, each++) in[n++] = fwd->out[f->nret + i];
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; k < p->nsaved_arg; k++) {
            if (is_each(p, p->saved_arg[k]) != (pass == 0)) continue;
            in[n++] = fwd->in[p->saved_arg[k]];
            each += pass == 0;
        }
    }
    Text attrs = text_new(d->m->mem);
    text_add(&attrs, "fn=@%s", p->bwd->name);
    if (p->loop) {
        text_add(&attrs, "; times=%lld; carry=%d; each=%d%s", (long long)forward.times,
                 carry, each, forward.reverse ? "" : "; reverse=1");
    }
    Op *bwd = build_list(b, fwd->kind, attrs.s, n, in, NULL, 0);
    int k = 0;
    for (int group = 0; group < 3; group++) {
        for (int i = 0; i < f->narg; i++) {
            if (!p->wants[i]) continue;
            bool acc = p->loop && !is_carry(p, i) && !is_each(p, i);
            if ((is_carry(p, i) ? 0 : acc ? 1 : 2) != group) continue;
            Value *g = bwd->out[k++];
            if (grad_wants(&d->g, fwd->in[i])) grad_add(&d->g, fwd->in[i], g);
        }
    }
}

/* ---- the model ---- */

static bool is_param(const Func *f, int i) {
    return arg_role(f, i) == ARG_param;
}

static Func *find_model(const Module *m) {
    Func *model = NULL;
    for (Func *f = m->first; f; f = f->next) {
        if (f->role != ROLE_MODEL) continue;
        if (model)
            fail(EXIT_CONFIG, "module @%s has two models, @%s and @%s", m->name,
                 model->name, f->name);
        model = f;
    }
    if (!model) {
        fail(EXIT_CONFIG, "module @%s has no model: write func @name:model(...)",
             m->name);
    }
    DType loss = model->nret ? model->ret[0]->ty.dt : DT_COUNT;
    if ((loss != DT_F32 && loss != DT_F64) || model->ret[0]->ty.rank) {
        fail(EXIT_CONFIG, "@%s: the first result of a model is its loss, f32[] or f64[]",
             model->name);
    }
    return model;
}

void pass_autodiff(Module *m, const PassOptions *o) {
    Func *model = find_model(m);
    Pair *pairs = NULL;
    Func *g = func_clone(model, arena_printf(m->mem, "%s.grad", model->name), ROLE_MODEL);
    Value *dloss = func_arg(g, "dloss", g->ret[0]->ty);
    func_arg_attr(g, g->narg - 1, "role=dloss");
    Diff d = diff_begin(m, g, &pairs, o);
    for (int i = 0; i < g->narg; i++) d.active[g->arg[i]->id] = is_param(g, i);
    mark_active(&d);
    if (d.active[g->ret[0]->id]) d.grad[g->ret[0]->id] = dloss;
    diff_body(&d, g->last);
    for (int i = 0; i < model->narg; i++) {
        if (!is_param(g, i)) continue;
        Value *grad = d.grad[g->arg[i]->id];
        place_gradient(o, g, i, grad);
        func_ret(g, grad ? grad : zeros(&d.g.b, &g->arg[i]->ty), -1);
    }
    model->role = ROLE_FUNC; /* nobody calls it any more; simplify drops it */
    func_remove_dead(g);
}
