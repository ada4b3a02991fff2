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
#include "passes/model/made_again.h"
#include "passes/passes.h"

/* What @f.bwd is given; those up to SLICED_INPUT are cut into slices by a loop's runs. */
typedef enum InputKind {
    CARRIED_INPUT, /* the gradient of result i, which a loop carries back */
    SUM_INPUT,     /* what is added up for argument i, which all runs see */
    RESULT_INPUT,  /* the gradient of result i */
    SAVED_INPUT,   /* value i of those that forward saved */
    SLICED_INPUT,  /* argument i of forward, of which each run sees a slice */
    SHARED_INPUT   /* argument i of forward */
} InputKind;
typedef struct Input {
    InputKind kind;
    int i;
} Input;

typedef struct Pair { /* @f.fwd and @f.bwd for one pattern of use */
    const Func *f;
    bool loop;
    int carry, each;
    const bool *wants;  /* per argument */
    const bool *cot;    /* per result: does a gradient come in? */
    const char *remake; /* what backward makes again; NULL: views of arguments alone */
    Func *fwd, *bwd;
    /* what backward reads: arguments of f, or extra results of fwd (from f->nret on) */
    int *saved_arg, nsaved_arg;
    int nsaved;
    Input *input; /* operands of the backward call, in their order */
    int ninput;
    int *output; /* its results: gradients of these arguments of f */
    int noutput;
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

/* "d.x" for x, and the like. */
static void call_gradient(Arena *mem, Value *v, const char *prefix, const Value *of) {
    v->name = arena_printf(mem, "%s.%s", prefix, of->name);
    v->grad_of = of->name;
}

static void grad_add(Grad *g, Value *v, Value *more) {
    Diff *d = (Diff *)g;
    check(grad_wants(g, v) && type_same_shape(&v->ty, &more->ty));
    Value **at = &d->grad[v->id];
    if (more->def) lie_like(more, &v->ty);
    *at = *at ? build1(&g->b, OP_add, NULL, *at, more, NULL) : more;
    if (!(*at)->def) return;
    call_gradient(d->m->mem, *at, "d", v);
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

/* A gradient has the placement of its parameter, or is sharded over its replicas at
 * once. */
static void place_gradient(const PassOptions *o, const Func *f, int i, Value *grad) {
    if (!grad || !grad->def) return;
    const Type *ty = &f->arg[i]->ty;
    if (arg_float(f, i, "zero", 0) >= 2)
        grad->ty = zero_type(f->mod, o, ty);
    else
        lie_like(grad, ty);
}

/* Is it there when forward, whose ops end with `last_id`, is done? */
static bool is_forward(const Value *v, int last_id, int first_cot) {
    return v && (v->def ? v->def->id <= last_id : v->nth < first_cot);
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
            if (!is_forward(v, last_id, first_cot) || seen[v->id]) continue;
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

static bool is_sum(const Pair *p, int i) {
    return p->loop && !is_carry(p, i) && !is_each(p, i);
}

/* Is there an input of this kind for number i, of a result, an argument, a saved value or
 * a saved argument? */
static bool has_input(const Pair *p, InputKind kind, int i) {
    bool carried = p->loop && i < p->carry;
    switch (kind) {
    case CARRIED_INPUT:
        return p->cot[i] && carried;
    case SUM_INPUT:
        return p->wants[i] && is_sum(p, i);
    case RESULT_INPUT:
        return p->cot[i] && !carried;
    case SAVED_INPUT:
        return true;
    case SLICED_INPUT:
        return is_each(p, p->saved_arg[i]);
    case SHARED_INPUT:
        return !is_each(p, p->saved_arg[i]);
    }
    return false;
}

/* In the order of a call: carried, of which runs see slices, the same for all runs. */
static void list_inputs(Arena *mem, Pair *p) {
    const Func *f = p->f;
    const int most[] = {[CARRIED_INPUT] = f->nret,      [SUM_INPUT] = f->narg,
                        [RESULT_INPUT] = f->nret,       [SAVED_INPUT] = p->nsaved,
                        [SLICED_INPUT] = p->nsaved_arg, [SHARED_INPUT] = p->nsaved_arg};
    p->input = NEW_ARRAY(mem, Input, (size_t)(f->nret + 2 * f->narg + p->nsaved));
    for (InputKind kind = 0; kind < ARRAY_LEN(most); kind++) {
        for (int i = 0; i < most[kind]; i++) {
            int of = kind >= SLICED_INPUT ? p->saved_arg[i] : i;
            if (has_input(p, kind, i)) p->input[p->ninput++] = (Input){kind, of};
        }
    }
}

/* Carried gradients, sums, then those of slices. */
static void list_outputs(Arena *mem, Pair *p) {
    p->output = NEW_ARRAY(mem, int, (size_t)p->f->narg);
    for (int group = 0; group < 3; group++) {
        for (int i = 0; i < p->f->narg; i++) {
            int mine = is_carry(p, i) ? 0 : is_sum(p, i) ? 1 : 2;
            if (p->wants[i] && mine == group) p->output[p->noutput++] = i;
        }
    }
}

/* An argument that gets such a value. */
static Value *argument_like(Func *f, const Value *v) {
    Value *arg = func_arg(f, v->name, v->ty);
    arg->grad_of = v->grad_of;
    return arg;
}

/* The arguments of @f.bwd; map is by value id of fwd. acc[i] gets the sum so far of
 * argument i. */
static void bwd_arguments(Pair *p, Func *bwd, Value **cot, Value **saved, Value **map,
                          Value **acc) {
    for (int k = 0; k < p->ninput; k++) {
        const int i = p->input[k].i;
        Value *arg = p->fwd->arg[i];
        switch (p->input[k].kind) {
        case SUM_INPUT:
            acc[i] = func_arg(bwd, "acc", p->f->arg[i]->ty);
            call_gradient(bwd->mod->mem, acc[i], "acc", p->f->arg[i]);
            continue;
        case CARRIED_INPUT:
        case RESULT_INPUT:
            arg = cot[i];
            break;
        case SAVED_INPUT:
            arg = saved[i];
            break;
        case SLICED_INPUT:
        case SHARED_INPUT:
            break;
        }
        map[arg->id] = argument_like(bwd, arg);
    }
}

static void bwd_results(Pair *p, Func *bwd, Value **grads, Value **acc) {
    Builder b = build_at_end(bwd);
    for (int k = 0; k < p->noutput; k++) {
        int i = p->output[k];
        Value *v = grads[i] ? grads[i] : acc[i] ? acc[i] : zeros(&b, &p->f->arg[i]->ty);
        if (acc[i] && grads[i]) v = build1(&b, OP_add, NULL, acc[i], grads[i], NULL);
        func_ret(bwd, v, acc[i] ? acc[i]->nth : -1);
    }
}

/* Whether some op of backward reads v. */
static bool read_behind(const Op *last, const Value *v) {
    for (const Op *op = last->next; op; op = op->next)
        for (int i = 0; i < op->nin; i++)
            if (op->in[i] == v) return true;
    return false;
}

/* Split over the further axes in the first dimension that they divide; false: none is, or it
 * is split over them already, or its placement is open: nothing is written, and there are
 * other axes that may split it. */
static bool split_further(const Mesh *m, Axes axes, Type *t) {
    bool open = !type_is_split(t) && mesh_ranks(m) > mesh_group_size(m, axes);
    if (!axes || !dtype_is_float(t->dt) || open) return false;
    for (int d = 0; d < t->rank; d++)
        if (t->split[d] & axes) return false;
    for (int d = 0; d < t->rank; d++) {
        Axes both = t->split[d] | axes;
        if (t->dim[d] % mesh_group_size(m, both)) continue;
        t->split[d] = both;
        return true;
    }
    return false;
}

/* What a layer makes everything again from is kept in parts. */
static void keep_in_parts(Pair *p, const Op *last, const PassOptions *o) {
    Func *w = p->fwd;
    const Mesh *m = &w->mod->mesh;
    Axes axes = 0;
    if (!last || !last->next || !p->remake || !p->loop || !o->remake_axes) return;
    mesh_axes_parse(m, o->remake_axes, &axes);
    for (int i = 0; i < p->carry; i++) {
        Value *v = w->arg[i];
        Type part = v->ty;
        if (!read_behind(last, v) || !split_further(m, splitting_axes(m, axes), &part))
            continue;
        Builder b = build_before(w->first), behind = build_before(last->next);
        Value *kept = build_placed(&b, OP_reshard, NULL, part, v);
        Value *whole = build_placed(&behind, OP_reshard, NULL, v->ty, kept);
        kept->name = whole->name = v->name;
        for (Op *op = whole->def->next; op; op = op->next)
            for (int k = 0; k < op->nin; k++)
                if (op->in[k] == v) op->in[k] = whole;
    }
}

/* Moves the ops after `last` of fwd into bwd. */
static void split(Module *m, Pair *p, Op *last, Value **cot, int ncot, Value **grads,
                  const PassOptions *o) {
    Func *w = p->fwd;
    LayerSeen layer = {.w = w,
                       .last = last,
                       .carry = p->loop ? p->carry : 0,
                       .grads = grads,
                       .ngrads = p->f->narg,
                       .elementwise = o->remake_elementwise};
    if (last && p->loop && o->layer_seen) o->layer_seen(&layer, o->layer_ctx);
    if (last) make_again(&layer, p->remake);
    keep_in_parts(p, last, o);
    Value **saved = collect_saved(m, p, last, grads, ncot);
    list_inputs(m->mem, p);
    list_outputs(m->mem, p);
    p->bwd = func_new_unique(m, arena_printf(m->mem, "%s.bwd", p->f->name), ROLE_FUNC);
    func_made_of(p->bwd, p->f, PART_BACKWARD);
    p->bwd->task = p->f->task ? TASK_BACKWARD : TASK_NONE;
    p->bwd->chunk = p->f->chunk;
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
    make_plain_calls(w);
    func_remove_dead(p->bwd);
}

static Pair *pair_make(Diff *caller, Pair want) {
    Module *m = caller->m;
    Pair *p = NEW(m->mem, Pair);
    *p = want;
    p->fwd = func_clone(p->f, arena_printf(m->mem, "%s.fwd", p->f->name), ROLE_FUNC);
    Func *w = p->fwd;
    func_made_of(w, p->f, PART_FORWARD);
    Value **cot = NEW_ARRAY(m->mem, Value *, (size_t)p->f->nret);
    int ncot = 0;
    for (int i = 0; i < p->f->nret; i++) {
        if (!p->cot[i]) continue;
        cot[i] = func_arg(w, "d", w->ret[i]->ty);
        ncot++;
    }
    Diff d = diff_begin(m, w, caller->pairs, caller->o);
    for (int i = 0; i < p->f->narg; i++) d.active[w->arg[i]->id] = p->wants[i];
    mark_active(&d);
    for (int i = 0; i < p->f->nret; i++) {
        if (cot[i] && d.active[w->ret[i]->id]) grad_add(&d.g, w->ret[i], cot[i]);
    }
    for (int i = 0; i < p->f->nret; i++) {
        if (cot[i]) call_gradient(m->mem, cot[i], "d", w->ret[i]);
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
    Pair want = {.f = c.f,
                 .loop = c.loop,
                 .carry = c.carry,
                 .each = c.each,
                 .remake = made_again_policy(op)};
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
            p->each == want.each && made_again_same(p->remake, want.remake) &&
            same_flags(p->wants, wants, op->nin) && same_flags(p->cot, cot, op->nout)) {
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

/* The operand that the backward call gives for one of its inputs. */
static Value *operand_for(Diff *d, const Pair *p, const Op *fwd, Input in) {
    Value *g = NULL;
    switch (in.kind) {
    case CARRIED_INPUT:
        g = d->grad[fwd->out[in.i]->id];
        return g ? g : zeros(&d->g.b, &fwd->out[in.i]->ty);
    case SUM_INPUT:
        return zeros(&d->g.b, &fwd->in[in.i]->ty);
    case RESULT_INPUT:
        return d->grad[fwd->out[in.i]->id];
    case SAVED_INPUT:
        return fwd->out[p->f->nret + in.i];
    case SLICED_INPUT:
    case SHARED_INPUT:
        break;
    }
    return fwd->in[in.i];
}

static void diff_call(Diff *d, Op *op) {
    const Pair *p = pair_for(d, op);
    Op *fwd = call_forward(d, op, p);
    const Call forward = call_of(fwd);
    Value **in = NEW_ARRAY(d->m->mem, Value *, (size_t)p->ninput + 1);
    int carry = 0, each = 0;
    for (int k = 0; k < p->ninput; k++) {
        InputKind kind = p->input[k].kind;
        in[k] = operand_for(d, p, fwd, p->input[k]);
        carry += kind <= SUM_INPUT;
        each += kind > SUM_INPUT && kind <= SLICED_INPUT;
    }
    Text attrs = text_new(d->m->mem);
    text_add(&attrs, "fn=@%s", p->bwd->name);
    if (p->loop) {
        text_add(&attrs, "; times=%lld; carry=%d; each=%d%s", (long long)forward.times,
                 carry, each, forward.reverse ? "" : "; reverse=1");
    }
    Op *bwd = build_list(&d->g.b, fwd->kind, attrs.s, p->ninput, in, NULL, 0);
    for (int k = 0; k < p->noutput; k++) {
        Value *of = fwd->in[p->output[k]];
        if (grad_wants(&d->g, of)) grad_add(&d->g, of, bwd->out[k]);
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
    func_made_of(g, model, PART_WHOLE);
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
