/* autodiff.c - reverse-mode gradients by the vjp hooks of the op rows.
 *     level global -> diffed. For the model @m(args) -> (loss, more...) adds
 *     @m.grad(args, %dloss) -> (loss, more..., gradient of every parameter).
 *
 * A function f that is called gets @f.fwd, which also returns what backward needs, and
 * @f.bwd. In a loop those values come stacked, and the backward loop runs in reverse:
 *     call %x, %w {fn=@f; times=n; carry=1; each=1}
 *     call %dy, %saved, %w {fn=@f.bwd; times=n; carry=1; each=2; reverse=1}
 * What the call's attribute `remake` says is made again in @f.bwd instead (made_again.h). */
#include "ir/placement.h"
#include "passes/model/autodiff_pair.h"
#include "passes/model/made_again.h"
#include "passes/pipe/layers.h"

typedef struct Diff { /* gradient of one function body */
    Grad g;           /* first: hooks get a Grad * */
    Module *m;
    Func *f;
    bool *active; /* by id: a float that depends on an argument that wants a gradient */
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

static void grad_add(Grad *g, Value *v, Value *more) {
    Diff *d = (Diff *)g;
    check(grad_wants(g, v) && type_same_shape(&v->ty, &more->ty));
    Value **at = &d->grad[v->id];
    if (more->def) grad_lie_like(more, &v->ty);
    *at = *at ? build1(&g->b, OP_add, NULL, *at, more, NULL) : more;
    if (!(*at)->def) return;
    grad_name(d->m->mem, *at, "d", v);
    grad_lie_like(*at, &v->ty);
}

static void mark_active(Diff *d) {
    for (Op *op = d->f->first; op; op = op->next) {
        bool any = op_reads_marked(op, d->active);
        for (int i = 0; i < op->nout && any; i++) {
            d->active[op->out[i]->id] = dtype_is_float(op->out[i]->ty.dt);
        }
    }
}

static void diff_call(Diff *d, Op *op);

/* What a gradient would go to, but that it ends here: taken for a constant, what is before
 * the op would learn nothing of it. */
static void refuse_unknown(const Op *op) {
    fail_op(op,
            "no gradient flows through %s (%%%s): write it with ops that have the flag "
            "`gradient` in docs/ops.md",
            optab[op->kind].name, op->out[0]->name);
}

/* Rows with further results (statistics of a norm, log sum exp) have gradients for the
 * first one only. */
static void refuse_further_results(const Diff *d, const Op *op) {
    for (int i = 1; i < op->nout && optab[op->kind].nout > 1; i++) {
        if (!d->grad[op->out[i]->id]) continue;
        fail_op(op,
                "no gradient flows through result %d of %s (%%%s); make the loss from "
                "other values",
                i, optab[op->kind].name, op->out[i]->name);
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
        d->g.b.line = op->line;
        refuse_further_results(d, op);
        if (op_is_call(op))
            diff_call(d, op);
        else if (optab[op->kind].vjp)
            optab[op->kind].vjp(&d->g, op, d->grad[op->out[0]->id]);
        else
            refuse_unknown(op);
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

static Pair *pair_make(Diff *caller, Pair want) {
    Module *m = caller->m;
    Pair *p = NEW(m->mem, Pair);
    *p = want;
    p->fwd =
        func_clone(p->call.f, arena_printf(m->mem, "%s.fwd", p->call.f->name), ROLE_FUNC);
    Func *w = p->fwd;
    func_made_of(w, p->call.f, PART_FORWARD);
    Value **cot = NEW_ARRAY(m->mem, Value *, (size_t)p->call.f->nret);
    int ncot = 0;
    for (int i = 0; i < p->call.f->nret; i++) {
        if (!p->cot[i]) continue;
        cot[i] = func_arg(w, "d", w->ret[i]->ty);
        ncot++;
    }
    Diff d = diff_begin(m, w, caller->pairs, caller->o);
    for (int i = 0; i < p->call.f->narg; i++) d.active[w->arg[i]->id] = p->wants[i];
    mark_active(&d);
    Op *last_forward = w->last; /* sums of gradients are made behind it */
    for (int i = 0; i < p->call.f->nret; i++) {
        if (cot[i] && d.active[w->ret[i]->id]) grad_add(&d.g, w->ret[i], cot[i]);
    }
    for (int i = 0; i < p->call.f->nret; i++) {
        if (cot[i]) grad_name(m->mem, cot[i], "d", w->ret[i]);
    }
    int nforward = w->nops; /* a call is replaced by a call, so the count stays */
    diff_body(&d, last_forward);
    Op *last = NULL;
    for (int i = 0; i < nforward; i++) last = last ? last->next : w->first;
    Value **grads = NEW_ARRAY(m->mem, Value *, (size_t)p->call.f->narg);
    for (int i = 0; i < p->call.f->narg; i++) {
        grads[i] = p->wants[i] ? d.grad[w->arg[i]->id] : NULL;
    }
    pair_split(p, last, cot, ncot, grads, caller->o);
    p->next = *caller->pairs;
    return *caller->pairs = p;
}

static bool same_flags(const bool *a, const bool *b, int n) {
    return !n || !memcmp(a, b, (size_t)n * sizeof(bool));
}

static Pair *pair_for(Diff *d, Op *op) {
    Pair want = {.call = call_of(op), .remake = made_again_policy(op)};
    const Call *c = &want.call;
    bool *wants = NEW_ARRAY(d->m->mem, bool, (size_t)op->nin);
    bool *cot = NEW_ARRAY(d->m->mem, bool, (size_t)op->nout);
    for (int i = 0; i < op->nin; i++) {
        wants[i] = i < c->carry ? dtype_is_float(op->in[i]->ty.dt)
                                : grad_wants(&d->g, op->in[i]);
    }
    for (int i = 0; i < op->nout; i++) {
        cot[i] = i < c->carry ? dtype_is_float(op->out[i]->ty.dt)
                              : d->grad[op->out[i]->id] != NULL;
    }
    want.wants = wants;
    want.cot = cot;
    for (Pair *p = *d->pairs; p; p = p->next) {
        if (p->call.f == c->f && p->call.loop == c->loop && p->call.carry == c->carry &&
            p->call.each == c->each && made_again_same(p->remake, want.remake) &&
            same_flags(p->wants, wants, op->nin) && same_flags(p->cot, cot, op->nout)) {
            return p;
        }
    }
    return pair_make(d, want);
}

/* Replaces the call by one of @f.fwd; the first results keep their ids. */
static Op *call_forward(Diff *d, Op *op, const Pair *p) {
    Builder b = build_before(op);
    Call c = call_of(op);
    c.f = p->fwd;
    Op *fwd = build_runs(&b, &c, op->nin, op->in);
    for (int i = 0; i < fwd->nout; i++) {
        bool old = i < op->nout;
        fwd->out[i]->id = old ? op->out[i]->id : d->nvalues;
        fwd->out[i]->name = old ? op->out[i]->name : p->fwd->ret[i]->name;
        if (old) func_replace(d->f, op->out[i], fwd->out[i]);
    }
    op_remove(op);
    return fwd;
}

/* The operand that the backward call gives for one of its inputs. */
static Value *operand_for(Diff *d, const Pair *p, const Op *fwd, Input in) {
    Value *g = NULL;
    switch (in.kind) {
    case CARRIED_INPUT:
        g = d->grad[fwd->out[in.i]->id];
        return g ? g : grad_zeros(&d->g.b, &fwd->out[in.i]->ty);
    case SUM_INPUT:
        return grad_zeros(&d->g.b, &fwd->in[in.i]->ty);
    case RESULT_INPUT:
        return d->grad[fwd->out[in.i]->id];
    case SAVED_INPUT:
        return fwd->out[p->call.f->nret + in.i];
    case SLICED_INPUT:
    case SHARED_INPUT:
        break;
    }
    return fwd->in[in.i];
}

static void diff_call(Diff *d, Op *op) {
    const Pair *p = pair_for(d, op);
    Op *fwd = call_forward(d, op, p);
    Value **in = NEW_ARRAY(d->m->mem, Value *, (size_t)p->ninput + 1);
    Call c = call_of(fwd);
    c.f = p->bwd;
    c.reverse = !c.reverse;
    c.carry = c.each = 0;
    for (int k = 0; k < p->ninput; k++) {
        InputKind kind = p->input[k].kind;
        in[k] = operand_for(d, p, fwd, p->input[k]);
        c.carry += kind <= SUM_INPUT;
        c.each += kind > SUM_INPUT && kind <= SLICED_INPUT;
    }
    const Op *bwd = build_runs(&d->g.b, &c, p->ninput, in);
    for (int k = 0; k < p->noutput; k++) {
        Value *of = fwd->in[p->output[k]];
        if (grad_wants(&d->g, of)) grad_add(&d->g, of, bwd->out[k]);
    }
}

/* ---- the model ---- */

static Func *find_model(const Module *m) {
    Func *model = layers_model(m);
    for (const Func *f = model->next; f; f = f->next)
        if (f->role == ROLE_MODEL)
            fail(EXIT_CONFIG, "module @%s has two models, @%s and @%s", m->name,
                 model->name, f->name);
    DType loss = model->nret ? model->ret[0]->ty.dt : DT_COUNT;
    if ((loss != DT_F32 && loss != DT_F64) || model->ret[0]->ty.rank) {
        fail(EXIT_CONFIG, "@%s: the first result of a model is its loss, f32[] or f64[]",
             model->name);
    }
    return model;
}

static void check_remake_axes(const Module *m, const PassOptions *o) {
    Axes axes;
    if (o->remake_axes && !mesh_axes_parse(&m->mesh, o->remake_axes, &axes))
        fail(EXIT_CONFIG, "inputs of layers in parts over '%s': not axes of the mesh",
             o->remake_axes);
}

void pass_autodiff(Module *m, const PassOptions *o) {
    Func *model = find_model(m);
    check_remake_axes(m, o);
    module_drop_attr(m, "stage"); /* of level global */
    Pair *pairs = NULL;
    Func *g = func_clone(model, arena_printf(m->mem, "%s.grad", model->name), ROLE_MODEL);
    func_made_of(g, model, PART_WHOLE);
    Value *dloss = func_arg(g, "dloss", g->ret[0]->ty);
    func_arg_attr(g, g->narg - 1, "role=dloss");
    Diff d = diff_begin(m, g, &pairs, o);
    for (int i = 0; i < g->narg; i++)
        d.active[g->arg[i]->id] = arg_role(g, i) == ARG_param;
    mark_active(&d);
    if (d.active[g->ret[0]->id]) d.grad[g->ret[0]->id] = dloss;
    diff_body(&d, g->last);
    for (int i = 0; i < model->narg; i++) {
        if (arg_role(g, i) != ARG_param) continue;
        Value *grad = d.grad[g->arg[i]->id];
        grad_place(o, g, i, grad);
        func_ret(g, grad ? grad : grad_zeros(&d.g.b, &g->arg[i]->ty), -1);
    }
    model->role = ROLE_FUNC; /* nobody calls it any more; simplify drops it */
    func_remove_dead(g);
}
