/* train_update.c - the end of a step: the norm of all gradients, clipping, and the optimizer, whose
 * results are kept where the step is good. */
#include "passes/model/train_step.h"

static const Optimizer optimizers[] = {{"adamw", 2, {"m", "v"}, true},
                                       {"adam", 2, {"m", "v"}, true},
                                       {"momentum", 1, {"momentum"}, false},
                                       {"sgd", 0, {NULL}, false}};

const Optimizer *train_optimizer(const char *name) {
    if (!strcmp(name, "none")) return NULL;
    for (int i = 0; i < ARRAY_LEN(optimizers); i++)
        if (!strcmp(name, optimizers[i].name)) return &optimizers[i];
    fail(EXIT_CONFIG,
         "unknown optimizer '%s'; there are adamw, adam, momentum, sgd and none", name);
}

Value *train_scalar_arg(Train *t, const char *role) {
    Value *v = func_arg(t->step, role, type_scalar(DT_F32));
    func_arg_attr(t->step, t->step->narg - 1, arena_printf(t->m->mem, "role=%s", role));
    return v;
}

Value *train_constant(Train *t, double v) {
    return build_as(&t->b, OP_fill, bfmt(&t->b, "value=%.17g", v), type_scalar(DT_F32),
                    NULL);
}

int train_stage_of(const Train *t, int k) {
    return MAX(func_arg_stage(t->grad, t->param[k]), 0);
}

Value *train_times(Train *t, Value *v, Value *scalar) {
    return build1(&t->b, OP_mul, "...,_->...", v, scalar, NULL);
}

/* Sum of squares of the gradients of a stage's parameters; NULL: it has none. */
static Value *squares(Train *t, int64_t stage) {
    Value *total = NULL;
    for (int k = 0; k < t->nparam; k++) {
        if (train_stage_of(t, k) != stage || t->same[k] >= 0) continue;
        Value *g = build_cast(&t->b, t->sum[k + 1], DT_F32);
        if (t->unscale) g = train_times(t, g, t->unscale);
        Value *square = build1(&t->b, OP_mul, NULL, g, g, NULL);
        Value *sum = build1(&t->b, OP_sum, "...->_", square, NULL);
        total = total ? build1(&t->b, OP_add, NULL, total, sum, NULL) : sum;
    }
    return total;
}

/* Square root of the sum of squares of all gradients. */
static Value *global_norm(Train *t) {
    Value *total = NULL;
    int stages = pass_stages(t->o);
    for (int s = 0; s < stages; s++) {
        Value *sum = squares(t, s);
        total = total && sum ? build1(&t->b, OP_add, NULL, total, sum, NULL)
                : total      ? total
                             : sum;
    }
    return build_named(&t->b, "grad_norm", build1(&t->b, OP_sqrt, NULL, total, NULL));
}

/* min(1, clip / (norm + 1e-6)), as PyTorch and Megatron-LM clip. */
static Value *clip_factor(Train *t, Value *norm) {
    if (t->o->clip_norm <= 0) return train_constant(t, 1);
    Value *top = train_constant(t, t->o->clip_norm);
    Value *bottom = build1(&t->b, OP_offset, "by=1e-06", norm, NULL);
    Value *ratio = build1(&t->b, OP_div, NULL, top, bottom, NULL);
    return build_named(&t->b, "clip", build1(&t->b, OP_atmost, "by=1", ratio, NULL));
}

bool train_is_sharded(const Train *t, const Value *param) {
    return attr_find(t->step->arg_attr[param->nth], "zero") != NULL;
}

static Value *state_arg(Train *t, const char *prefix, const Value *param) {
    Arena *mem = t->m->mem;
    const char *name = arena_printf(mem, "%s.%s", prefix, param->name);
    bool sharded = train_is_sharded(t, param);
    Value *v =
        func_arg(t->step, name, sharded ? zero_type(t->m, t->o, &param->ty) : param->ty);
    int i = t->step->narg - 1;
    func_arg_attr(t->step, i, arena_printf(mem, "role=state; like=\"%s\"", param->name));
    static const char *const layout[] = {"global", "lead", "rows", "first", "stage"};
    for (const Attr *a = t->step->arg_attr[param->nth]; a; a = a->next)
        for (int k = 0; k < ARRAY_LEN(layout); k++)
            if (!strcmp(a->key, layout[k])) func_arg_set(t->step, i, a);
    const char *tensor = arg_str(t->step, param->nth, "tensor", NULL);
    if (tensor)
        func_arg_set(t->step, i,
                     &(Attr){.key = "tensor",
                             .kind = ATTR_STR,
                             .s = arena_printf(mem, "%s.%s", prefix, tensor)});
    return v;
}

static bool decays(const Train *t, int k) {
    return t->o->decay_weights && arg_float(t->grad, t->param[k], "decay", 0) != 0;
}

static void add_scalar(Train *t, Value *v) {
    t->scalar[t->nscalars++] = v;
}

void train_scalar_arguments(Train *t) {
    bool any = false;
    for (int k = 0; k < t->nparam; k++) any |= decays(t, k);
    add_scalar(t, train_scalar_arg(t, "lr"));
    add_scalar(t, any ? train_scalar_arg(t, "weight_decay") : train_constant(t, 0));
    if (!t->optimizer->corrected) return;
    add_scalar(t, train_scalar_arg(t, "bias_correction1"));
    add_scalar(t, train_scalar_arg(t, "bias_correction2"));
}

/* Attributes of the optimizer's row, as the options have them. */
static char *optimizer_attrs(Train *t, int k) {
    const PassOptions *o = t->o;
    const char *spec = optab[op_kind(t->optimizer->name)].attrs;
    const struct {
        const char *key;
        double value;
    } all[] = {{"beta1", o->beta1},
               {"beta2", o->beta2},
               {"eps", o->eps},
               {"momentum", o->momentum}};
    char *text = bfmt(&t->b, decays(t, k) ? "decay=1" : "");
    for (int i = 0; i < ARRAY_LEN(all); i++) {
        AttrKind kind;
        bool optional;
        if (!attr_spec_find(spec, all[i].key, &kind, &optional)) continue;
        const char *before = text[0] ? "; " : "";
        text = bfmt(&t->b, "%s%s%s=%.17g", text, before, all[i].key, all[i].value);
    }
    return text;
}

/* What the optimizer multiplies gradients by. */
static Value *gradient_factor(Train *t, Value *norm) {
    Value *clip = clip_factor(t, norm);
    return t->unscale ? train_times(t, clip, t->unscale) : clip;
}

/* 1, or 0 on every rank where one has a loss or a norm that is no number. */
static Value *is_good(Train *t, Value *norm) {
    Value *loss = build1(&t->b, OP_finite, NULL, t->sum[0], NULL);
    Value *both = build1(&t->b, OP_mul, NULL, loss,
                         build1(&t->b, OP_finite, NULL, norm, NULL), NULL);
    return build_named(&t->b, "good", build1(&t->b, OP_agree, NULL, both, NULL));
}

/* Results over parameter k and its states: the new ones where the step is good. */
static void update(Train *t, int k) {
    Value *in[MAX_TERMS] = {t->held[k], build_cast(&t->b, t->sum[k + 1], DT_F32)};
    int n = 2;
    for (int i = 0; i < t->optimizer->nstates; i++)
        in[n++] = state_arg(t, t->optimizer->state[i], t->held[k]);
    for (int i = 0; i < t->nscalars; i++) in[n++] = t->scalar[i];
    Op *op = build_list(&t->b, op_kind(t->optimizer->name), optimizer_attrs(t, k), n, in,
                        NULL, 0);
    for (int i = 0; i < op->nout; i++) {
        Value *old = op->in[i ? i + 1 : 0];
        Value *v = build1(&t->b, OP_select, NULL, t->good, op->out[i], old, NULL);
        func_ret(t->step, build_named(&t->b, bfmt(&t->b, "new.%s", old->name), v),
                 old->nth);
    }
}

void train_update(Train *t) {
    Value *norm = global_norm(t);
    add_scalar(t, gradient_factor(t, norm));
    t->good = is_good(t, norm);
    func_ret(t->step, norm, -1);
    func_ret(t->step, t->good, -1);
    for (int k = 0; k < t->nparam; k++)
        if (t->same[k] < 0) update(t, k);
}
