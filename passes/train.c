/* train.c - the training step around the gradients of a model. Level diffed.
 *     @m.grad(data..., params..., %dloss) -> (loss, more..., gradients...)
 * becomes
 *     @step(data..., params..., states..., rates) -> (loss, grad_norm, params=..., states=...)
 * With n micro-batches the data arrive stacked and a loop sums loss and gradients. With
 * `overlap` the first micro-batch stands by itself when it gathers parameters beside its
 * work, the last one when the sums are finished beside its. */
#include "over.h"
#include "passes.h"

typedef struct Train {
    Module *m;
    const PassOptions *o;
    Func *grad, *step;
    Builder b;
    int nparam, *param;   /* indices of the parameters among grad's arguments */
    Value **value;        /* per argument of grad: its value in @step */
    Value **held;         /* per parameter: the argument of @step */
    Value **sum;          /* loss, then the gradient of each parameter */
    Value *rate, *correction1, *correction2;
} Train;

static const char *role_of(const Func *f, int i) {
    return arg_str(f, i, "role", "data");
}

/* Arguments that hold one micro-batch: their data differ from run to run. */
static bool is_batch(const Func *f, int i) {
    static const char *const batch[] = {"tokens", "labels", "data", "rng", "positions",
                                        "attends_from"};
    for (int k = 0; k < ARRAY_LEN(batch); k++) {
        if (!strcmp(role_of(f, i), batch[k])) return true;
    }
    return false;
}

static bool is_role(const Func *f, int i, const char *role) {
    return !strcmp(role_of(f, i), role);
}

static Func *find_grad(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_MODEL && f->narg && is_role(f, f->narg - 1, "dloss")) return f;
    }
    fail(EXIT_CONFIG, "module @%s has no gradients: run autodiff first", m->name);
}

/* Sums of the only micro-batch are finished beside backward (pass sink), so gradients are
 * held in parts, as at level 2: the memory plan must know. */
static void tell_early_sharding(Train *t, int arg) {
    bool early = t->o->overlap && t->o->micro_batches <= 1;
    if (!early || arg_float(t->step, arg, "zero", 0) != 1) return;
    func_arg_set(t->step, arg, &(Attr){.key = "zero", .kind = ATTR_INT, .i = 2});
}

static void step_arguments(Train *t) {
    const Func *g = t->grad;
    Arena *mem = t->m->mem;
    t->value = NEW_ARRAY(mem, Value *, (size_t)g->narg);
    t->param = NEW_ARRAY(mem, int, (size_t)g->narg);
    t->held = NEW_ARRAY(mem, Value *, (size_t)g->narg);
    for (int i = 0; i < g->narg - 1; i++) {
        Type ty = g->arg[i]->ty;
        if (is_batch(g, i) && t->o->micro_batches > 1) {
            if (ty.rank == MAX_RANK) {
                fail(EXIT_CONFIG, "%%%s: with micro-batches an argument has at most %d "
                                  "dimensions", g->arg[i]->name, MAX_RANK - 1);
            }
            if (type_bytes(&ty) > TYPE_MAX_BYTES / t->o->micro_batches) {
                fail(EXIT_MEMORY, "%%%s: %lld micro-batches have more than 2^50 bytes",
                     g->arg[i]->name, (long long)t->o->micro_batches);
            }
            memmove(ty.dim + 1, ty.dim, sizeof(int64_t) * (MAX_RANK - 1));
            memmove(ty.split + 1, ty.split, sizeof(Axes) * (MAX_RANK - 1));
            ty.dim[0] = t->o->micro_batches;
            ty.split[0] = 0;
            ty.rank++;
        }
        bool parted = attr_find(g->arg_attr[i], "zero") && zero_gathers_ahead(t->o);
        Type held = parted ? zero_type(t->m, t->o, &ty) : ty;
        Value *arg = t->value[i] = func_arg(t->step, g->arg[i]->name, held);
        t->step->arg_attr[t->step->narg - 1] = g->arg_attr[i];
        if (parted) t->value[i] = build_placed(&t->b, OP_reshard, NULL, ty, arg);
        tell_early_sharding(t, t->step->narg - 1);
        if (!is_role(g, i, "param")) continue;
        t->held[t->nparam] = arg;
        t->param[t->nparam++] = i;
    }
}

/* The rates, the norm and the state are f32, so all that meets them must be. */
static void refuse_types(const Train *t) {
    const Func *g = t->grad;
    if (g->ret[0]->ty.dt != DT_F32) {
        fail(EXIT_CONFIG, "@%s: the loss is %s, training wants f32: write cast", g->name,
             dtype_name[g->ret[0]->ty.dt]);
    }
    for (int k = 0; k < t->nparam; k++) {
        const Value *p = g->arg[t->param[k]];
        if (p->ty.dt == DT_F32) continue;
        fail(EXIT_CONFIG, "parameter %%%s is %s; parameters that are trained are f32, cast "
                          "them where they are used", p->name, dtype_name[p->ty.dt]);
    }
}

static Value *scalar_arg(Train *t, const char *role) {
    Value *v = func_arg(t->step, role, type_scalar(DT_F32));
    func_arg_attr(t->step, t->step->narg - 1, arena_printf(t->m->mem, "role=%s", role));
    return v;
}

static int first_gradient(const Train *t) {
    return t->grad->nret - t->nparam;
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
        sum[k + 1] = func_arg(f, arena_printf(t->m->mem, "sum.%s", p->name),
                              type_make(p->ty.dt, p->ty.rank, p->ty.dim));
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < g->narg; i++) {
            if (is_batch(g, i) != (pass == 0)) continue;
            in[i] = func_arg(f, g->arg[i]->name, g->arg[i]->ty);
        }
    }
    Builder b = build_at_end(f);
    Op *run = build_list(&b, OP_call, bfmt(&b, "fn=@%s", g->name), g->narg, in, NULL, 0);
    func_ret(f, build1(&b, OP_add, NULL, sum[0], run->out[0], NULL), 0);
    for (int k = 0; k < t->nparam; k++) {
        Value *grad = run->out[first_gradient(t) + k];
        func_ret(f, build1(&b, OP_add, NULL, sum[k + 1], grad, NULL), k + 1);
    }
    return f;
}

/* Micro-batches [first, first + n) of a batch argument, stacked; with stack=false the one. */
static Value *batches(Train *t, int i, int64_t first, int64_t n, bool stack) {
    Value *all = t->value[i];
    int64_t total = MAX(t->o->micro_batches, 1);
    if (total == 1 || (stack && n == total)) return all;
    char *attrs = bfmt(&t->b, "dim=0; first=%lld; size=%lld", (long long)first, (long long)n);
    Value *some = build1(&t->b, OP_slice, attrs, all, NULL);
    if (!stack) some = build_placed(&t->b, OP_reshape, NULL, t->grad->arg[i]->ty, some);
    return build_named(&t->b, all->name, some);
}

/* The model on micro-batch k; its loss and gradients are added to the sums. */
static void run_once(Train *t, int64_t k) {
    const Func *g = t->grad;
    Value **in = NEW_ARRAY(t->m->mem, Value *, (size_t)g->narg);
    for (int i = 0; i < g->narg; i++) {
        in[i] = is_batch(g, i) ? batches(t, i, k, 1, false) : t->value[i];
    }
    Op *run = build_list(&t->b, OP_call, bfmt(&t->b, "fn=@%s", g->name), g->narg, in, NULL, 0);
    for (int j = 0; j <= t->nparam; j++) {
        Value *v = run->out[j ? first_gradient(t) + j - 1 : 0];
        t->sum[j] = t->sum[j] ? build1(&t->b, OP_add, NULL, t->sum[j], v, NULL) : v;
    }
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
            if (is_batch(g, i) != (pass == 0)) continue;
            in[n++] = pass == 0 ? batches(t, i, first, times, true) : t->value[i];
            each += pass == 0;
        }
    }
    char *attrs = bfmt(&t->b, "fn=@%s; times=%lld; carry=%d; each=%d", micro->name,
                       (long long)times, t->nparam + 1, each);
    Op *run = build_list(&t->b, OP_call, attrs, n, in, NULL, 0);
    for (int k = 0; k <= t->nparam; k++) t->sum[k] = run->out[k];
}

/* Is there a gradient whose sum over copies is left for the end of the step? */
static bool sums_at_end(const Train *t) {
    bool split = false;
    for (int i = 0; i < t->grad->narg; i++) {
        split |= is_batch(t->grad, i) && type_is_split(&t->grad->arg[i]->ty);
    }
    return split && t->o->zero_level <= 1;
}

static void run_micro_batches(Train *t, int64_t n) {
    bool first = zero_gathers_ahead(t->o) || n == 1;
    bool last = n > 1 && t->o->overlap && sums_at_end(t);
    if (first) run_once(t, 0);
    int64_t middle = n - first - last;
    if (middle > 0) run_loop(t, first, middle);
    if (last) run_once(t, n - 1);
    if (n == 1) return;
    t->sum[0] = build1(&t->b, OP_scale, bfmt(&t->b, "by=%.17g", 1.0 / (double)n), t->sum[0],
                       NULL);
}

/* Square root of the sum of squares of all gradients. */
static Value *global_norm(Train *t) {
    Value *total = NULL;
    for (int k = 0; k < t->nparam; k++) {
        Value *square = build1(&t->b, OP_mul, NULL, t->sum[k + 1], t->sum[k + 1], NULL);
        Value *sum = build1(&t->b, OP_sum, "...->_", square, NULL);
        total = total ? build1(&t->b, OP_add, NULL, total, sum, NULL) : sum;
    }
    return build_named(&t->b, "grad_norm", build1(&t->b, OP_sqrt, NULL, total, NULL));
}

/* min(1, clip / (norm + 1e-6)), as PyTorch and Megatron-LM clip. */
static Value *clip_factor(Train *t, Value *norm) {
    if (t->o->clip_norm <= 0) {
        return build_as(&t->b, OP_fill, "value=1", type_scalar(DT_F32), NULL);
    }
    char *clip = bfmt(&t->b, "value=%.17g", t->o->clip_norm);
    Value *top = build_as(&t->b, OP_fill, clip, type_scalar(DT_F32), NULL);
    Value *bottom = build1(&t->b, OP_offset, "by=1e-06", norm, NULL);
    Value *ratio = build1(&t->b, OP_div, NULL, top, bottom, NULL);
    return build_named(&t->b, "clip", build1(&t->b, OP_atmost, "by=1", ratio, NULL));
}

static bool is_sharded(const Train *t, const Value *param) {
    return attr_find(t->step->arg_attr[param->nth], "zero") != NULL;
}

static Value *state_arg(Train *t, const char *prefix, const Value *param) {
    Arena *mem = t->m->mem;
    const char *name = arena_printf(mem, "%s.%s", prefix, param->name);
    bool sharded = is_sharded(t, param);
    Value *v = func_arg(t->step, name, sharded ? zero_type(t->m, t->o, &param->ty) : param->ty);
    int i = t->step->narg - 1;
    func_arg_attr(t->step, i, arena_printf(mem, "role=state; like=\"%s\"", param->name));
    for (const Attr *a = t->step->arg_attr[param->nth]; a; a = a->next) {
        bool layout = !strcmp(a->key, "global") || !strcmp(a->key, "lead");
        if (layout || !strcmp(a->key, "rows")) func_arg_set(t->step, i, a);
    }
    return v;
}

/* Gradients are summed over the copies once, here at the latest, and stay with the rank that
 * updates them. */
static void shard_gradients(Train *t) {
    for (int k = 0; k < t->nparam; k++) {
        const Value *p = t->held[k];
        if (!is_sharded(t, p)) continue;
        Type want = zero_type(t->m, t->o, &p->ty);
        t->sum[k + 1] = build_placed(&t->b, OP_reshard, NULL, want, t->sum[k + 1]);
    }
}

static void update(Train *t, int k, Value *clip, Op **out) {
    const PassOptions *o = t->o;
    Value *p = t->held[k], *g = t->sum[k + 1];
    double decay = arg_float(t->grad, t->param[k], "decay", 0) != 0 ? o->weight_decay : 0;
    if (!strcmp(o->optimizer, "adamw")) {
        char *attrs = bfmt(&t->b, "beta1=%.17g; beta2=%.17g; eps=%.17g; decay=%.17g",
                           o->beta1, o->beta2, o->eps, decay);
        Value *m = state_arg(t, "m", p), *v = state_arg(t, "v", p);
        *out = build(&t->b, OP_adamw, attrs, p, g, m, v, t->rate, t->correction1,
                     t->correction2, clip, NULL);
    } else {
        char *attrs = bfmt(&t->b, "momentum=%.17g; decay=%.17g", o->momentum, decay);
        *out = build(&t->b, OP_sgd, attrs, p, g, state_arg(t, "momentum", p), t->rate, clip,
                     NULL);
    }
    for (int i = 0; i < (*out)->nout; i++) {
        (*out)->out[i]->name = bfmt(&t->b, "new.%s", (*out)->in[i ? i + 1 : 0]->name);
    }
}

void pass_train(Module *m, const PassOptions *o) {
    if (strcmp(o->optimizer, "adamw") && strcmp(o->optimizer, "sgd")) {
        fail(EXIT_CONFIG, "unknown optimizer '%s'; there are adamw and sgd", o->optimizer);
    }
    if (o->micro_batches > MAX_TIMES) {
        fail(EXIT_CONFIG, "%lld micro-batches; at most %d", (long long)o->micro_batches,
             MAX_TIMES);
    }
    Train t = {.m = m, .o = o, .grad = find_grad(m)};
    t.step = func_new_unique(m, "step", ROLE_STEP);
    t.b = build_at_end(t.step);
    step_arguments(&t);
    if (!t.nparam) fail(EXIT_CONFIG, "@%s has no parameter to train", t.grad->name);
    refuse_types(&t);
    t.sum = NEW_ARRAY(m->mem, Value *, (size_t)t.nparam + 1);
    t.rate = scalar_arg(&t, "lr");
    t.correction1 = scalar_arg(&t, "bias_correction1");
    t.correction2 = scalar_arg(&t, "bias_correction2");
    int64_t n = MAX(o->micro_batches, 1);
    t.value[t.grad->narg - 1] = build_as(
        &t.b, OP_fill, bfmt(&t.b, "value=%.17g", 1.0 / (double)n), type_scalar(DT_F32), NULL);
    run_micro_batches(&t, n);
    shard_gradients(&t);
    Value *norm = global_norm(&t), *clip = clip_factor(&t, norm);
    func_ret(t.step, t.sum[0], -1);
    func_ret(t.step, norm, -1);
    for (int k = 0; k < t.nparam; k++) {
        Op *op;
        update(&t, k, clip, &op);
        for (int i = 0; i < op->nout; i++) {
            func_ret(t.step, op->out[i], op->in[i ? i + 1 : 0]->nth);
        }
    }
    t.grad->role = ROLE_FUNC;
}
