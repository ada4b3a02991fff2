/* train.c - the training step around the gradients of a model. Level diffed.
 *     @m.grad(data..., params..., %dloss) -> (loss, more..., gradients...)
 * becomes
 *     @step(data..., params..., scalars..., states...)
 *         -> (loss, grad_norm, good, params=..., states=...)
 * good is 1 where loss and norm are finite on all ranks, else 0: then parameters and
 * states stay as they are, whatever the optimizer. With n micro-batches the data arrive
 * stacked and a loop sums loss and gradients. With `overlap` the first micro-batch is
 * outside of the loop if it gathers parameters while it computes, and the last one if the
 * sums over ranks are finished while it computes. With `interleave` a micro-batch is that
 * many runs of the model, stacked once more, whose calls pass beside makes one. With
 * `scale_loss` the gradient of the loss is multiplied by an argument, loss_scale, so that
 * gradients of activations in f16 are not lost below its smallest number; the norm and the
 * optimizer see gradients divided by it, which costs no pass over them. Without an optimizer the
 * results are the loss and, in place of the parameters, their gradients. */
#include "passes/model/train_step.h"
#include "passes/pipe/schedule.h"

static int first_gradient(const Train *t) {
    return t->grad->nret - t->nparam;
}

static DType gradient_type(const Train *t, int k) {
    return t->grad->ret[first_gradient(t) + k]->ty.dt;
}

/* Which takes the gradient of the loss last. */
static Func *find_grad(const Module *m) {
    Func *f = module_gradient(m);
    if (!f) fail(EXIT_CONFIG, "module @%s has no gradients: run autodiff first", m->name);
    if (func_arg_role(f, ARG_dloss) != f->narg - 1)
        fail(EXIT_CONFIG, "@%s: the argument with role \"dloss\" is not the last one",
             f->name);
    return f;
}

/* Sums of the only micro-batch are finished during backward (pass sink), so gradients are
 * held in parts, as at level 2: the memory plan must know. */
static void tell_early_sharding(Train *t, int arg) {
    bool early = t->o->overlap && t->o->micro_batches <= 1;
    if (!early || arg_float(t->step, arg, "zero", 0) != 1) return;
    func_arg_set(t->step, arg, &(Attr){.key = "zero", .kind = ATTR_INT, .i = 2});
}

/* A gradient of another type than the parameter: the memory plan must know. */
static void tell_gradient(Train *t, int arg, DType dt) {
    if (dt == t->step->arg[arg]->ty.dt) return;
    Type scalar = type_scalar(dt);
    func_arg_set_text(t->step, arg, "gradient", ATTR_TYPE,
                      type_text(t->m->mem, &t->m->mesh, &scalar));
}

/* A parameter that another stage reads too is one argument of the step. */
static bool take_same(Train *t, int i) {
    const Func *g = t->grad;
    int of = func_arg_same(g, i), k = 0;
    if (of < 0) return false;
    while (k < t->nparam && t->param[k] != of) k++;
    check(k < t->nparam);
    t->value[i] = t->value[t->param[k]];
    t->held[t->nparam] = t->held[k];
    t->same[t->nparam] = k;
    t->param[t->nparam++] = i;
    return true;
}

/* So many of batch argument i, `ty` each, as one. */
static void stack(const Train *t, int i, int64_t times, Type *ty) {
    const char *name = t->grad->arg[i]->name;
    if (times <= 1) return;
    if (ty->rank == MAX_RANK)
        fail(EXIT_CONFIG,
             "%%%s: with micro-batches an argument has at most %d dimensions", name,
             MAX_RANK - 1 - (t->interleave > 1));
    if (type_bytes(ty) > TYPE_MAX_BYTES / times)
        fail(EXIT_MEMORY, "%%%s: %lld micro-batches have more than 2^50 bytes", name,
             (long long)times);
    *ty = type_stack(ty, times);
}

/* Batch argument i of one micro-batch. */
static Type batch_type(const Train *t, int i) {
    Type ty = t->grad->arg[i]->ty;
    stack(t, i, t->interleave, &ty);
    return ty;
}

static void step_arguments(Train *t) {
    const Func *g = t->grad;
    Arena *mem = t->m->mem;
    t->value = NEW_ARRAY(mem, Value *, (size_t)g->narg);
    t->param = NEW_ARRAY(mem, int, (size_t)g->narg);
    t->held = NEW_ARRAY(mem, Value *, (size_t)g->narg);
    t->same = NEW_ARRAY(mem, int, (size_t)g->narg);
    for (int i = 0; i < g->narg - 1; i++) {
        Type ty = g->arg[i]->ty;
        if (take_same(t, i)) continue;
        if (arg_is_batch(g, i)) {
            ty = batch_type(t, i);
            stack(t, i, t->o->micro_batches, &ty);
        }
        bool parted = attr_find(g->arg_attr[i], "zero") && zero_gathers_ahead(t->o);
        Type held = parted ? zero_type(t->m, t->o, &ty) : ty;
        Value *arg = t->value[i] = func_arg(t->step, g->arg[i]->name, held);
        t->step->arg_attr[t->step->narg - 1] = g->arg_attr[i];
        if (parted) t->value[i] = build_placed(&t->b, OP_reshard, NULL, ty, arg);
        tell_early_sharding(t, t->step->narg - 1);
        if (arg_role(g, i) != ARG_param) continue;
        t->held[t->nparam] = arg;
        t->same[t->nparam] = -1;
        t->param[t->nparam++] = i;
    }
}

/* The rates, the norm and the state are f32, so all that meets them must be. */
static void refuse_types(const Train *t) {
    const Func *g = t->grad;
    if (g->ret[0]->ty.dt != DT_F32) {
        fail(EXIT_CONFIG, "@%s: the loss is %s, training needs f32: write cast", g->name,
             dtype_name[g->ret[0]->ty.dt]);
    }
    for (int k = 0; k < t->nparam; k++) {
        const Value *p = g->arg[t->param[k]];
        if (p->ty.dt == DT_F32) continue;
        fail(EXIT_CONFIG,
             "parameter %%%s is %s; parameters that are trained are f32, cast "
             "them where they are used",
             p->name, dtype_name[p->ty.dt]);
    }
}

/* Micro-batch or part k of a stack of such, each of that type. */
static Value *one_of(Builder *b, Value *stacked, int64_t k, Type one) {
    char *attrs = bfmt(b, "dim=0; first=%lld; size=1", (long long)k);
    Value *some = build1(b, OP_slice, attrs, stacked, NULL);
    return build_named(b, stacked->name, build_placed(b, OP_reshape, NULL, one, some));
}

static Op *run_part(Train *t, Builder *b, Value *const *in, int64_t part) {
    const Func *g = t->grad;
    Value **own = NEW_ARRAY(t->m->mem, Value *, (size_t)g->narg);
    for (int i = 0; i < g->narg; i++) {
        bool cut = t->interleave > 1 && arg_is_batch(g, i);
        own[i] = cut ? one_of(b, in[i], part, g->arg[i]->ty) : in[i];
    }
    char *attrs = bfmt(b, "fn=@%s", g->name);
    if (t->interleave > 1)
        attrs = bfmt(b, "%s; beside=%lld", attrs, (long long)t->interleave);
    return build_list(b, OP_call, attrs, g->narg, own, NULL, 0);
}

/* The model on one micro-batch; its loss and gradients are added to the sums. */
static void run_model(Train *t, Builder *b, Value *const *in, Value **sum) {
    Op **run = NEW_ARRAY(t->m->mem, Op *, (size_t)t->interleave);
    for (int64_t part = 0; part < t->interleave; part++)
        run[part] = run_part(t, b, in, part);
    for (int j = 0; j <= t->nparam; j++)
        for (int64_t part = 0; part < t->interleave; part++) {
            Value *v = run[part]->out[j ? first_gradient(t) + j - 1 : 0];
            sum[j] = sum[j] ? build1(b, OP_add, NULL, sum[j], v, NULL) : v;
        }
}

/* @micro(sums..., batch..., others...) -> sums: one run of the model, added up in place. */
static Func *make_micro(Train *t) {
    const Func *g = t->grad;
    Func *f = func_new_unique(t->m, "micro", ROLE_FUNC);
    Value **in = NEW_ARRAY(t->m->mem, Value *, (size_t)g->narg);
    Value **sum = NEW_ARRAY(t->m->mem, Value *, (size_t)t->nparam + 1);
    sum[0] = func_arg(f, "loss_sum", g->ret[0]->ty);
    for (int k = 0; k < t->nparam; k++) { /* placed as what comes in */
        const Value *p = g->arg[t->param[k]];
        DType dt = gradient_type(t, k);
        sum[k + 1] = func_arg(f, arena_printf(t->m->mem, "sum.%s", p->name),
                              type_make(dt, p->ty.rank, p->ty.dim));
        sum[k + 1]->grad_of = p->name;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < g->narg; i++) {
            if (arg_is_batch(g, i) != (pass == 0)) continue;
            in[i] = func_arg(f, g->arg[i]->name,
                             pass == 0 ? batch_type(t, i) : g->arg[i]->ty);
        }
    }
    Builder b = build_at_end(f);
    run_model(t, &b, in, sum);
    for (int k = 0; k <= t->nparam; k++) func_ret(f, sum[k], k);
    return f;
}

/* Micro-batches [first, first + n) of a batch argument, stacked. */
static Value *batches(Train *t, int i, int64_t first, int64_t n) {
    Value *all = t->value[i];
    if (n == t->o->micro_batches) return all;
    char *attrs =
        bfmt(&t->b, "dim=0; first=%lld; size=%lld", (long long)first, (long long)n);
    return build_named(&t->b, all->name, build1(&t->b, OP_slice, attrs, all, NULL));
}

/* Micro-batch k. */
static void run_once(Train *t, int64_t k) {
    const Func *g = t->grad;
    Value **in = NEW_ARRAY(t->m->mem, Value *, (size_t)g->narg);
    for (int i = 0; i < g->narg; i++) {
        bool cut = t->o->micro_batches > 1 && arg_is_batch(g, i);
        in[i] = cut ? one_of(&t->b, t->value[i], k, batch_type(t, i)) : t->value[i];
    }
    run_model(t, &t->b, in, t->sum);
}

/* A loop over micro-batches [first, first + n). */
static void run_loop(Train *t, int64_t first, int64_t times) {
    const Func *g = t->grad;
    Func *micro = make_micro(t);
    Value **in = NEW_ARRAY(t->m->mem, Value *, (size_t)micro->narg);
    int n = 0, each = 0;
    for (; n <= t->nparam; n++) {
        const Type *ty = &micro->arg[n]->ty;
        in[n] = t->sum[n] ? t->sum[n] : build_as(&t->b, OP_fill, "value=0", *ty, NULL);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < g->narg; i++) {
            if (arg_is_batch(g, i) != (pass == 0)) continue;
            in[n++] = pass == 0 ? batches(t, i, first, times) : t->value[i];
            each += pass == 0;
        }
    }
    const Call runs = {
        .f = micro, .loop = true, .carry = t->nparam + 1, .each = each, .times = times};
    const Op *run = build_runs(&t->b, &runs, n, in);
    for (int k = 0; k <= t->nparam; k++) t->sum[k] = run->out[k];
}

/* Is there a gradient whose sum over copies is left for the end of the step? In a pipeline it stays
 * there: all stages sum at once, and none waits for what another one has not hidden. */
static bool sums_at_end(const Train *t) {
    Axes split = 0;
    for (int i = 0; i < t->grad->narg; i++)
        if (arg_is_batch(t->grad, i)) split |= type_axes(&t->grad->arg[i]->ty);
    if (t->o->zero_level > 1) split &= (Axes)~zero_axes_of(t->m, t->o);
    return splitting_axes(&t->m->mesh, split) != 0;
}

static void run_micro_batches(Train *t, int64_t n) {
    bool alone = pass_stages(t->o) == 1;
    bool first = (alone && zero_gathers_ahead(t->o)) || n == 1;
    bool last = n > 1 && alone && t->o->overlap && sums_at_end(t);
    if (first) run_once(t, 0);
    int64_t middle = n - first - last;
    if (middle > 0) run_loop(t, first, middle);
    if (last) run_once(t, n - 1);
    int64_t runs = n * t->interleave;
    if (runs == 1) return;
    t->sum[0] = build1(&t->b, OP_scale, bfmt(&t->b, "by=%.17g", 1.0 / (double)runs),
                       t->sum[0], NULL);
}

/* Gradient of the loss of a run, of which there are so many. */
static Value *loss_gradient(Train *t, int64_t runs) {
    Value *one = train_constant(t, 1.0 / (double)runs);
    if (!t->o->scale_loss) return one;
    t->scale = train_scalar_arg(t, "loss_scale");
    t->unscale = build1(&t->b, OP_div, NULL, train_constant(t, 1), t->scale, NULL);
    return build_named(&t->b, "dloss", train_times(t, one, t->scale));
}

/* Gradients are summed over the copies once, here at the latest, and stay with the rank that
 * updates them. Others that are rounded would be summed where they are widened. */
static void shard_gradients(Train *t) {
    for (int k = 0; k < t->nparam; k++) {
        const Value *p = t->held[k];
        DType dt = t->sum[k + 1]->ty.dt;
        bool rounded = dt != p->ty.dt && t->m->mesh.naxes;
        if (!train_is_sharded(t, p) && !rounded) continue;
        Type want = train_is_sharded(t, p) ? zero_type(t->m, t->o, &p->ty) : p->ty;
        want.dt = dt;
        t->sum[k + 1] = build_placed(&t->b, OP_reshard, NULL, want, t->sum[k + 1]);
    }
}

/* The gradient of a parameter that several chunks read is the sum of theirs: of those on one stage
 * before it is summed over the copies, of the rest behind that. */
static void add_same(Train *t, bool on_one_stage) {
    for (int k = 0; k < t->nparam; k++) {
        int of = t->same[k];
        if (of < 0 || (train_stage_of(t, k) == train_stage_of(t, of)) != on_one_stage)
            continue;
        Value *sum = build1(&t->b, OP_add, NULL, t->sum[of + 1], t->sum[k + 1], NULL);
        t->sum[of + 1] = build_named(&t->b, t->sum[of + 1]->name, sum);
    }
}

/* Placed as the parameters are. */
static void give_gradients(Train *t) {
    for (int k = 0; k < t->nparam; k++)
        if (t->same[k] < 0)
            func_ret(t->step, build_cast(&t->b, t->sum[k + 1], DT_F32), t->held[k]->nth);
}

void pass_train(Module *m, const PassOptions *o) {
    if (o->micro_batches > MAX_TIMES) {
        fail(EXIT_CONFIG, "%lld micro-batches; at most %d", (long long)o->micro_batches,
             MAX_TIMES);
    }
    Train t = {.m = m,
               .o = o,
               .optimizer = train_optimizer(o->optimizer),
               .interleave = MAX(o->interleave, 1)};
    t.grad = find_grad(m);
    t.step = func_new_unique(m, "step", ROLE_STEP);
    t.b = build_at_end(t.step);
    step_arguments(&t);
    if (!t.nparam) fail(EXIT_CONFIG, "@%s has no parameter to train", t.grad->name);
    for (int k = 0; k < t.nparam; k++)
        tell_gradient(&t, t.held[k]->nth, gradient_type(&t, k));
    refuse_types(&t);
    t.sum = NEW_ARRAY(m->mem, Value *, (size_t)t.nparam + 1);
    if (t.optimizer) train_scalar_arguments(&t);
    int64_t n = MAX(o->micro_batches, 1);
    t.value[t.grad->narg - 1] = loss_gradient(&t, n * t.interleave);
    run_micro_batches(&t, n);
    add_same(&t, true);
    shard_gradients(&t);
    add_same(&t, false);
    func_ret(t.step, t.sum[0], -1);
    if (t.optimizer)
        train_update(&t);
    else
        give_gradients(&t);
    t.grad->role = ROLE_FUNC;
}
