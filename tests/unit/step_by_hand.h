/* step_by_hand.h - what a training step must give, from the gradients of the model: their sum over
 * micro-batches, its norm and the optimizer's arithmetic, held against what pass train makes. */
#ifndef STATOR_STEP_BY_HAND_H
#define STATOR_STEP_BY_HAND_H
#include "../test.h"
#include "ir/ir.h"
#include "ir/sample.h"
#include "passes/passes.h"

static const double rounding = 2e-5; /* of f32 sums in another order */

static Func *entry(const Module *m) {
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_STEP) return f;
    }
    for (Func *f = m->first; f; f = f->next) {
        if (f->role == ROLE_MODEL) return f;
    }
    test_fail(__FILE__, __LINE__, "@%s has no entry", m->name);
}

static void expect_same(const char *what, const char *name, int64_t i, double got,
                        double want, double tol) {
    if (got == want || (got != got && want != want)) return;
    if (fabs(got - want) <= tol * fmax(1, fabs(want))) return;
    test_fail(__FILE__, __LINE__, "%s: %s, element %lld is %.17g, wanted %.17g", what,
              name, (long long)i, got, want);
}

static Tensor **run_on(Arena *mem, const Func *f, Tensor **arg) {
    Tensor ***ret = sample_results(mem, f);
    interp_run(mem, f, &arg, ret);
    return ret[0];
}

/* ---- the step by hand ---- */

static bool is_batch(const Func *f, int i) {
    const char *role = arg_str(f, i, "role", "data");
    return !strcmp(role, "tokens") || !strcmp(role, "labels") || !strcmp(role, "data") ||
           !strcmp(role, "rng");
}

typedef struct Step { /* what a step computes, by hand */
    double loss, norm;
    double **gradient;  /* per parameter */
    int nparam, *param; /* indices of arguments */
} Step;

static double rounded(DType t, double v) {
    return dtype_is_narrow(t) ? narrow_to_f32(t, f32_to_narrow(t, (float)v)) : v;
}

/* Of gradients that are made `scale` times as large, where narrow numbers may round them
 * otherwise. */
static Step hand_gradients(Arena *mem, const Func *grad, Tensor **step_arg, int64_t runs,
                           double scale) {
    Step s = {0};
    s.param = NEW_ARRAY(mem, int, (size_t)grad->narg);
    s.gradient = NEW_ARRAY(mem, double *, (size_t)grad->narg);
    for (int i = 0; i < grad->narg; i++) {
        if (arg_role(grad, i) != ARG_param) continue;
        s.gradient[s.nparam] =
            NEW_ARRAY(mem, double, (size_t)type_count(&grad->arg[i]->ty));
        s.param[s.nparam++] = i;
    }
    for (int64_t run = 0; run < runs; run++) {
        Tensor **arg = NEW_ARRAY(mem, Tensor *, (size_t)grad->narg);
        for (int i = 0; i < grad->narg - 1; i++) {
            arg[i] = tensor_new(mem, &grad->arg[i]->ty);
            int64_t n = type_count(&arg[i]->ty), from = is_batch(grad, i) ? run * n : 0;
            for (int64_t k = 0; k < n; k++) {
                tensor_set(arg[i], k, tensor_get(step_arg[i], from + k));
            }
        }
        Tensor *dloss = arg[grad->narg - 1] =
            tensor_new(mem, &grad->arg[grad->narg - 1]->ty);
        tensor_set(dloss, 0, scale / (double)runs);
        Tensor **ret = run_on(mem, grad, arg);
        s.loss += tensor_get(ret[0], 0) / (double)runs;
        for (int p = 0; p < s.nparam; p++) {
            Tensor *g = ret[grad->nret - s.nparam + p];
            for (int64_t k = 0, n = type_count(&g->ty); k < n; k++) {
                double sum = s.gradient[p][k] + tensor_get(g, k);
                s.gradient[p][k] = rounded(g->ty.dt, sum);
            }
        }
    }
    for (int p = 0; p < s.nparam; p++) {
        for (int64_t k = 0, n = type_count(&grad->arg[s.param[p]]->ty); k < n; k++) {
            s.gradient[p][k] /= scale;
            s.norm += s.gradient[p][k] * s.gradient[p][k];
        }
    }
    s.norm = sqrt(s.norm);
    return s;
}

/* The scalars of a step: rate, decay, bias corrections. */
typedef struct Scalars {
    double rate, decay, c1, c2;
} Scalars;

/* New values of one element: p, then the state; Adam with its decay in the gradient or
 * beside it (arXiv 1711.05101), or SGD with or without momentum. */
static void hand_update(const PassOptions *o, const Scalars *a, double decay, double g,
                        double *p, double *m, double *v) {
    bool adamw = !strcmp(o->optimizer, "adamw"), adam = !strcmp(o->optimizer, "adam");
    if (!adamw) g += decay * *p;
    if (!adamw && !adam) {
        double velocity = strcmp(o->optimizer, "sgd") ? o->momentum * *m + g : g;
        if (m) *m = velocity;
        *p -= a->rate * velocity;
        return;
    }
    *m = o->beta1 * *m + (1 - o->beta1) * g;
    *v = o->beta2 * *v + (1 - o->beta2) * g * g;
    if (adamw) *p *= 1 - a->rate * decay;
    *p -= a->rate * (*m / a->c1) / (sqrt(*v / a->c2) + o->eps);
}

static int states_of(const char *optimizer) {
    if (!strncmp(optimizer, "adam", 4)) return 2;
    return strcmp(optimizer, "sgd") ? 1 : 0;
}

/* The argument of that role behind `at`, which then stands behind it; or otherwise. */
static double next_scalar(const Func *step, Tensor **arg, int *at, const char *role,
                          double otherwise) {
    if (*at >= step->narg || strcmp(arg_str(step, *at, "role", ""), role))
        return otherwise;
    return tensor_get(arg[(*at)++], 0);
}

static void check_train(const char *what, const Module *before, const Module *after,
                        const PassOptions *o) {
    Arena *mem = arena_new();
    Func *grad = entry(before), *step = entry(after);
    Tensor **arg = sample_arguments(mem, step)[0], **ret = run_on(mem, step, arg);
    int at = func_arg_role(step, ARG_loss_scale);
    EXPECT((at >= 0) == o->scale_loss);
    double scale = at >= 0 ? tensor_get(arg[at], 0) : 1;
    Step s = hand_gradients(mem, grad, arg, o->micro_batches * o->interleave, scale);
    expect_same(what, "loss", 0, tensor_get(ret[0], 0), s.loss, rounding);
    expect_same(what, "grad_norm", 0, tensor_get(ret[1], 0), s.norm, rounding);
    EXPECT(tensor_get(ret[2], 0) == 1);
    double clip = o->clip_norm > 0 ? fmin(1, o->clip_norm / (s.norm + 1e-6)) : 1;
    int first = grad->narg - 1, states = states_of(o->optimizer);
    EXPECT_STR(arg_str(step, first, "role", ""), "lr");
    Scalars a;
    a.rate = next_scalar(step, arg, &first, "lr", 0);
    a.decay = next_scalar(step, arg, &first, "weight_decay", 0);
    a.c1 = next_scalar(step, arg, &first, "bias_correction1", 1);
    a.c2 = next_scalar(step, arg, &first, "bias_correction2", 1);
    next_scalar(step, arg, &first, "loss_scale", 1);
    EXPECT((a.c1 != 1) == (states == 2));
    EXPECT_INT(step->narg, first + states * s.nparam);
    EXPECT_INT(step->nret, 3 + (1 + states) * s.nparam);
    for (int p = 0; p < s.nparam; p++) {
        int state = first + states * p, out = 3 + (1 + states) * p;
        double decay = arg_float(grad, s.param[p], "decay", 0) != 0 ? a.decay : 0;
        EXPECT_INT(step->alias[out], s.param[p]);
        for (int i = 0; i < states; i++) {
            EXPECT_INT(step->alias[out + 1 + i], state + i);
            EXPECT_STR(arg_str(step, state + i, "like", ""), step->arg[s.param[p]]->name);
        }
        for (int64_t k = 0, n = type_count(&arg[s.param[p]]->ty); k < n; k++) {
            double x[3] = {tensor_get(arg[s.param[p]], k)};
            for (int i = 0; i < states; i++) x[i + 1] = tensor_get(arg[state + i], k);
            hand_update(o, &a, decay, clip * s.gradient[p][k], &x[0], &x[1], &x[2]);
            const char *name = step->arg[s.param[p]]->name;
            for (int i = 0; i <= states; i++)
                expect_same(what, name, k, tensor_get(ret[out + i], k), x[i],
                            i ? rounding : 1e-4);
        }
    }
    arena_free(mem);
}

#endif
