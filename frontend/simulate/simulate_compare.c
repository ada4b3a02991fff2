/* simulate_compare.c - weights and optimizer states of all ranks against those of one. A
 * difference is the norm of what differs in a tensor, over all copies of it on all ranks, and
 * is told in relation to a norm of the one rank's: of a weight how much the steps changed
 * it, of a state the state itself. What is far below the others of its kind (the gradients
 * of biases of keys are rounding alone) is told in relation to those. So is what steps made of
 * it where they are larger than its states say: Adam's are whole ones whatever the gradients. */
#include "frontend/simulate/simulate.h"
#include "ir/layout.h"
#include <math.h>

const char *const simulate_number_name[SIMULATE_NUMBERS] = {
    "loss", "gradient norm", "weights", "optimizer states"};

#define SHARE_OF_KIND   0.1  /* of the root mean square of its kind a tensor counts as */
#define SHARE_OF_WEIGHT 1e-3 /* and of the weight itself: f32 has no finer steps */
#define LEAST_SHARE     0.01 /* of what a tensor counts as: it has no less */

/* f32: sums of some thousand numbers in another order, 2^-24 each, through a few layers and
 * steps. bf16 rounds what is handed from op to op to 2^-9: where ranks add up otherwise,
 * other numbers are rounded; f16 has 3 bits more, an eighth. But a gradient that relu turns on or off by
 * a rounding makes weights and states differ by the root of the step. A lost or doubled part of a sum
 * is a difference of 0.1 to 1 in states. */
const double *simulate_tolerance(DType narrow) {
    static const double f32[] = {1e-5, 1e-4, 1e-3, 1e-4};
    static const double bf16[] = {2e-3, 2e-2, 0.1, 0.1};
    static const double f16[] = {2.5e-4, 2.5e-3, 5e-2, 5e-2};
    return narrow == DT_BF16 ? bf16 : narrow == DT_F16 ? f16 : f32;
}

/* ---- of one tensor ---- */

typedef struct Pair { /* sums of squares over the elements of a tensor of the one rank */
    double reference,
        value;    /* of what a difference is told in relation to; of it itself */
    double apart; /* of the differences, a mean over the copies */
    double count;
} Pair;

static bool is_kept(const Func *f, int i) {
    return arg_role(f, i) == ARG_param || arg_role(f, i) == ARG_state;
}

static const char *tensor_name(const Func *f, int i) {
    return arg_str(f, i, "tensor", arg_str(f, i, "same", f->arg[i]->name));
}

static double square(double v) {
    return v * v;
}

/* Elements behind those of the one rank pad a vocabulary. */
static double apart(const Layout *l, int rank, const float *part, const Tensor *one,
                    double *elements) {
    int64_t n = type_count(&one->ty);
    const float *want = one->data;
    double sum = 0;
    for (LayoutWalk w = layout_walk(l, rank); layout_next(&w);)
        for (int64_t e = 0; e < w.count && w.global + e < n; e++) {
            sum += square((double)part[w.local + e] - (double)want[w.global + e]);
            *elements += 1;
        }
    return sum;
}

/* A parameter may have the name of another one's state. */
static bool is_same(const Func *f, int i, const Func *g, int k) {
    return arg_role(f, i) == arg_role(g, k) &&
           !strcmp(tensor_name(f, i), tensor_name(g, k));
}

/* Over all ranks of all stages that hold some of argument `nth` of the one. */
static void add_ranks(const SimulateRanks *r, const Func *whole, int nth,
                      const Tensor *one, Pair *p) {
    double elements = 0, sum = 0;
    for (int k = 0; k < r->stages; k++) {
        const Func *f = r->step[k].f;
        for (int i = 0; i < f->narg; i++) {
            if (!is_same(f, i, whole, nth)) continue;
            Layout l = layout_of(r->mem, f, i);
            for (int n = 0; n < r->ranks; n++)
                sum += apart(&l, k * r->ranks + n, r->step[k].arg[n][i]->data, one,
                             &elements);
        }
    }
    bool all = elements >= p->count; /* or something is nowhere */
    p->apart = all ? sum * p->count / MAX(elements, 1) : INFINITY;
}

static Pair pair_of(const SimulateRanks *ranks, const SimulateRanks *one, int i,
                    const float *before) {
    const Tensor *t = one->step[0].arg[0][i];
    const float *v = t->data;
    Pair p = {.count = (double)type_count(&t->ty)};
    for (int64_t k = 0; k < type_count(&t->ty); k++) {
        double from = before ? (double)before[k] : 0;
        p.reference += square((double)v[k] - from);
        p.value += square((double)v[k]);
    }
    add_ranks(ranks, one->step[0].f, i, t, &p);
    return p;
}

/* ---- all of them ---- */

/* Weights are one kind, and states whose names begin alike: "m" of "m.h.ln_1.weight". */
static bool same_kind(const Func *f, int i, int k) {
    if (arg_role(f, i) != arg_role(f, k)) return false;
    const char *x = f->arg[i]->name, *y = f->arg[k]->name;
    size_t n = strcspn(x, ".");
    return arg_role(f, i) == ARG_param || (n == strcspn(y, ".") && !strncmp(x, y, n));
}

/* Sums of the squares of all tensors of the kind that argument i is of. */
static Pair all_of_kind(const Func *f, const Pair *pair, int i) {
    Pair all = {0};
    for (int k = 0; k < f->narg; k++) {
        if (!is_kept(f, k) || !same_kind(f, i, k)) continue;
        all.reference += pair[k].reference;
        all.count += pair[k].count;
    }
    return all;
}

/* The square of what a tensor of the kind counts as, at least. */
static double least_of_kind(const Pair *p, const Pair *kind) {
    return square(SHARE_OF_KIND) * kind->reference / kind->count * p->count;
}

/* Which share of the least that it counts as tensor i has, at most all. */
static double share_of(const Func *f, const Pair *pair, int i) {
    Pair kind = all_of_kind(f, pair, i);
    double least = least_of_kind(&pair[i], &kind);
    return least > 0 ? MIN(1, sqrt(pair[i].reference / least)) : 1;
}

/* The share that the states of weight i have, the largest of them, for 1 that its steps have; 1: as
 * much, or it has no states. */
static double share_of_states(const Func *f, const Pair *pair, int i) {
    double share = 0;
    bool any = false;
    for (int k = 0; k < f->narg; k++) {
        const char *of = strchr(f->arg[k]->name, '.');
        if (arg_role(f, k) != ARG_state || !of || strcmp(of + 1, f->arg[i]->name))
            continue;
        share = MAX(share, share_of(f, pair, k));
        any = true;
    }
    double steps = share_of(f, pair, i);
    return any && share < steps ? MAX(LEAST_SHARE, share / steps) : 1;
}

/* share: of a weight, of its states. */
static double relative(const Pair *p, const Pair *kind, bool is_weight, double share) {
    double least = is_weight ? square(SHARE_OF_WEIGHT) * p->value : 0;
    double to = MAX(MAX(p->reference, least_of_kind(p, kind)), least) / square(share);
    if (p->apart == 0) return 0;
    return to > 0 && p->apart >= 0 ? sqrt(p->apart / to) : INFINITY; /* NaN too */
}

void simulate_compare(SimulateCompare *c, const SimulateRanks *ranks,
                      const SimulateRanks *one, float *const *before) {
    const Func *f = one->step[0].f;
    Arena *mem = arena_new();
    Pair *pair = NEW_ARRAY(mem, Pair, (size_t)f->narg);
    for (int i = 0; i < f->narg; i++)
        if (is_kept(f, i)) pair[i] = pair_of(ranks, one, i, before[i]);
    for (int i = 0; i < f->narg; i++) {
        if (!is_kept(f, i)) continue;
        bool is_weight = arg_role(f, i) == ARG_param;
        SimulateNumber n = is_weight ? SIMULATE_WEIGHTS : SIMULATE_STATES;
        Pair kind = all_of_kind(f, pair, i);
        double share = is_weight ? share_of_states(f, pair, i) : 1;
        double d = relative(&pair[i], &kind, is_weight, share);
        if (c->tensor[n] && d <= c->difference[n]) continue; /* a NaN is no less */
        c->difference[n] = d;
        c->tensor[n] = f->arg[i]->name;
    }
    arena_free(mem);
}

float **simulate_keep_weights(const SimulateRanks *one) {
    const Func *f = one->step[0].f;
    float **kept = NEW_ARRAY(one->mem, float *, (size_t)f->narg + 1);
    for (int i = 0; i < f->narg; i++) {
        const Tensor *t = one->step[0].arg[0][i];
        if (arg_role(f, i) != ARG_param) continue;
        kept[i] = NEW_ARRAY(one->mem, float, (size_t)type_count(&t->ty));
        memcpy(kept[i], t->data, (size_t)type_bytes(&t->ty));
    }
    return kept;
}
