/* map.c - elementwise ops: their meaning on one element, and their gradients. */
#include "base/rng.h"
#include "ir/op_hooks.h"
#include "ir/placement.h"
#include "ir/tensor_fast.h"
#include "ir/walk.h"
#include <math.h>

/* out = f(a, b), with the broadcasting of the rule. */
static void map2(const Ref *r, double (*f)(double, double)) {
    Dims d;
    check(op_dims(r->op, &d));
    if (dims_same_order(&d, 0, 2) && dims_same_order(&d, 1, 2)) {
        for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
            tensor_set_fast(
                r->out[0], i,
                f(tensor_get_fast(r->in[0], i), tensor_get_fast(r->in[1], i)));
        }
        return;
    }
    Walk w = walk_over(&d, (1u << d.n) - 1);
    do {
        tensor_set_fast(r->out[0], w.offset[2],
                        f(tensor_get_fast(r->in[0], w.offset[0]),
                          tensor_get_fast(r->in[1], w.offset[1])));
    } while (walk_next(&w));
}

static void map1(const Ref *r, double (*f)(double)) {
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        tensor_set_fast(r->out[0], i, f(tensor_get_fast(r->in[0], i)));
    }
}

#define REF2(name, expr)                                                                 \
    static double scalar_##name(double x, double y) {                                    \
        return expr;                                                                     \
    }                                                                                    \
    void ref_##name(const Ref *r) {                                                      \
        map2(r, scalar_##name);                                                          \
    }
#define REF1(name, expr)                                                                 \
    static double scalar_##name(double x) {                                              \
        return expr;                                                                     \
    }                                                                                    \
    void ref_##name(const Ref *r) {                                                      \
        map1(r, scalar_##name);                                                          \
    }

/* With a number of the op, which expr has as a; spelt otherwise than in the row it is NaN. */
#define REF1_BY(name, key, expr)                                                         \
    void ref_##name(const Ref *r) {                                                      \
        double a = op_float(r->op, key, NAN);                                            \
        for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {                \
            double x = tensor_get_fast(r->in[0], i);                                     \
            tensor_set_fast(r->out[0], i, expr);                                         \
        }                                                                                \
    }

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* GELU by tanh, as GPT-2 has it (Hendrycks and Gimpel, arXiv 1606.08415). */
static double gelu(double x) {
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) +
           0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

static double gelu_erf_slope(double x) {
    return 0.5 * (1 + erf(x * 0.70710678118654752440)) +
           x * 0.39894228040143267794 * exp(-0.5 * x * x);
}

REF2(add, x + y)
REF2(sub, x - y)
REF2(log_add, fmax(x, y) + log1p(exp(-fabs(x - y))))
REF2(mul, x *y)
REF2(div, x / y)
REF1_BY(scale, "by", a *x)
REF1_BY(offset, "by", a + x)
REF1_BY(atmost, "by", x > a ? a : x)
REF1(exp, exp(x))
REF1(log, log(x))
REF1(sqrt, sqrt(x))
REF1(rsqrt, 1 / sqrt(x))
REF1(tanh, tanh(x))
REF1_BY(softcap, "cap", a *tanh(x / a))
/* NaN stays */
REF1(relu, x <= 0 ? 0 : x)
REF1(gelu, gelu(x))
REF1(gelu_erf, 0.5 * x * (1 + erf(x * 0.70710678118654752440)))
REF1(fast_gelu, x *sigmoid(1.702 * x))
REF1(silu, x *sigmoid(x))
REF1(cast, x)
REF1(valid, x >= 0 ? 1 : 0)
REF1(finite, isfinite(x) ? 1 : 0)
REF1(agree, x)
/* gradients: x, then the gradient of the result */
REF2(relu_grad, x <= 0 ? 0 : y)
REF2(gelu_grad, y *gelu_slope(x))
REF2(gelu_erf_grad, y *gelu_erf_slope(x))
REF2(fast_gelu_grad, y *sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))))
REF2(silu_grad, y *sigmoid(x) * (1 + x * (1 - sigmoid(x))))

/* Copied, since even a NaN keeps its bits. */
void ref_select(const Ref *r) {
    const Tensor *from = r->in[tensor_get_fast(r->in[0], 0) != 0 ? 1 : 2];
    memmove(r->out[0]->data, from->data, (size_t)type_bytes(&r->out[0]->ty));
}

void ref_pick(const Ref *r) {
    const Type *t = &r->out[0]->ty;
    int64_t v = t->dim[t->rank - 1];
    for (int64_t i = 0, n = type_count(t); i < n; i++) {
        bool here = tensor_get_int(r->in[1], i / v) == i % v;
        tensor_set_fast(r->out[0], i, here ? tensor_get_fast(r->in[0], i) : 0);
    }
}

void ref_onehot(const Ref *r) {
    const Type *t = &r->out[0]->ty;
    int64_t v = t->dim[t->rank - 1];
    for (int64_t i = 0, n = type_count(t); i < n; i++) {
        tensor_set_fast(r->out[0], i, tensor_get_int(r->in[0], i / v) == i % v);
    }
}

void infer_dropout(Op *op, Type *out) {
    check_rng(op, 1);
    check_dropout(op);
    int64_t n = op_int(op, "zigzag", 0);
    bool part = op_attr(op, "of") != NULL; /* then it is for the whole to fit */
    if (n < 0 || n > INT32_MAX || (n && out[0].rank < 2) ||
        (n && !part && out[0].dim[1] % (2 * n))) {
        infer_error("zigzag=%lld needs a multiple of twice that in dimension 1",
                    (long long)n);
    }
}

/* Number in the step's whole tensor of element i of this rank's part: dimension 1 counts
 * by true positions, and every micro-batch goes on where the one before it ended. */
static int64_t dropout_element(const Ref *r, const Type *whole, int64_t i) {
    int64_t at = part_element(r->mesh, r->rank, whole, i);
    int64_t zigzag = op_int(r->op, "zigzag", 0);
    int64_t step = sizes_product(whole->dim + 2, whole->rank - 2);
    if (zigzag > 1) {
        int64_t t = whole->dim[1], row = at / step % t;
        at += (zigzag_position(row, t, zigzag) - row) * step;
    }
    return tensor_get_int(r->in[1], RNG_MICRO) * type_count(whole) + at;
}

Type dropout_whole(const Op *op) {
    const Mesh *mesh = &op->fn->mod->mesh;
    const Attr *of = op_attr(op, "of");
    int64_t zigzag = op_int(op, "zigzag", 0);
    Type whole = op->out[0]->ty;
    memset(whole.split, 0, sizeof whole.split);
    if (!of) return whole;
    whole = type_parse(op->fn->mod->mem, mesh, of->s);
    bool even = zigzag <= 1 || (whole.rank > 1 && whole.dim[1] % (2 * zigzag) == 0);
    if (even && part_fits(mesh, &whole, &op->out[0]->ty)) return whole;
    fail_op(
        op,
        "%%%s: of=\"%s\" must be the type of the whole tensor, of which this is a part%s",
        op->out[0]->name, of->s,
        even ? "" : ", with a multiple of twice `zigzag` in dimension 1");
}

void ref_dropout(const Ref *r) {
    double p = op_float(r->op, "p", 0);
    Type whole = dropout_whole(r->op);
    for (int64_t i = 0, n = type_count(&r->out[0]->ty); i < n; i++) {
        int64_t at = dropout_element(r, &whole, i);
        bool keep = dropout_keeps(r->in[1], p, op_int(r->op, "site", 0), at);
        tensor_set_fast(r->out[0], i,
                        keep ? tensor_get_fast(r->in[0], i) * (1 / (1 - p)) : 0);
    }
}

bool dropout_keeps(const Tensor *rng, double p, int64_t site, int64_t element) {
    uint64_t at = (uint64_t)element;
    uint32_t word[4], key[2] = {(uint32_t)tensor_get_int(rng, RNG_KEY),
                                (uint32_t)tensor_get_int(rng, RNG_KEY + 1)};
    uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), (uint32_t)site,
                           (uint32_t)tensor_get_int(rng, RNG_LAYER)};
    rng_philox(counter, key, word);
    return word[0] >= (uint32_t)(p * 4294967296.0);
}

/* The mask of a part is the part of the whole mask. */
void local_dropout(Local *l) {
    const Value *x = l->whole->out[0];
    if (type_axes(&x->ty))
        op_set_str(l->op, "of", type_text(l->b.mem, &l->op->fn->mod->mesh, &x->ty));
}

static Value *negative(Builder *b, Value *v) {
    return build1(b, OP_scale, "by=-1", v, NULL);
}

/* The least of the copies is less the most of their negatives. */
void local_agree(Local *l) {
    const Mesh *m = &l->op->fn->mod->mesh;
    Axes all = 0;
    for (int a = 0; a < m->naxes; a++) all |= (Axes)((m->axis[a].size > 1) << a);
    if (!all) return;
    char *attrs = bfmt(&l->b, "axis=\"%s\"; of=max", mesh_axes_text(l->b.mem, m, all));
    Value *most =
        build1(&l->b, OP_all_reduce, attrs, negative(&l->b, l->op->in[0]), NULL);
    l->op->in[0] = negative(&l->b, most);
}

/* Labels count from the first class of this rank's part. */
void local_pick(Local *l) {
    int label = l->op->nin - 1, last = l->whole->out[0]->ty.rank - 1;
    int classes = l->d->term[l->d->nin][last];
    if (!l->split[classes]) return;
    l->op->in[label] = build1(&l->b, OP_index_from, NULL, l->op->in[label],
                              local_first(l, classes), NULL);
}

void infer_softcap(Op *op, Type *out) {
    (void)out;
    double cap = op_float(op, "cap", NAN);
    if (!(cap >= 1e-30 && cap <= 1e30)) infer_error("cap must be in 1e-30..1e30");
}

/* ---- gradients ---- */

/* Adds `value`, shaped like the result, to operand i, summed over what i lacks. */
static void add_to(Grad *g, Op *op, int i, Value *value) {
    const Rule *r = op_rule(op);
    g->add(g, op->in[i], sum_to(&g->b, value, &r->term[op->nin], &r->term[i]));
}

/* a (shaped like the result) op b (shaped like operand i) -> shaped like the result */
static Value *with_operand(Grad *g, Op *op, int kind, Value *a, int i) {
    const Rule *r = op_rule(op);
    const Term *out = &r->term[op->nin], *in = &r->term[i];
    return build1(&g->b, kind, RULE_TEXT(&g->b, out, in, out), a, op->in[i], NULL);
}

void vjp_add(Grad *g, Op *op, Value *dy) {
    for (int i = 0; i < 2; i++) {
        if (g->wants(g, op->in[i])) add_to(g, op, i, dy);
    }
}

void vjp_sub(Grad *g, Op *op, Value *dy) {
    if (g->wants(g, op->in[0])) add_to(g, op, 0, dy);
    if (g->wants(g, op->in[1])) {
        add_to(g, op, 1, build1(&g->b, OP_scale, "by=-1", dy, NULL));
    }
}

void vjp_mul(Grad *g, Op *op, Value *dy) {
    for (int i = 0; i < 2; i++) {
        if (g->wants(g, op->in[i]))
            add_to(g, op, i, with_operand(g, op, OP_mul, dy, 1 - i));
    }
}

/* d(a/b) = g/b, -g (a/b)/b */
void vjp_div(Grad *g, Op *op, Value *dy) {
    Value *ga = with_operand(g, op, OP_div, dy, 1);
    if (g->wants(g, op->in[0])) add_to(g, op, 0, ga);
    if (g->wants(g, op->in[1])) {
        Value *gb = build1(&g->b, OP_mul, NULL, ga, op->out[0], NULL);
        add_to(g, op, 1, build1(&g->b, OP_scale, "by=-1", gb, NULL));
    }
}

void vjp_scale(Grad *g, Op *op, Value *dy) {
    char *attrs = bfmt(&g->b, "by=%.17g", op_float(op, "by", 1));
    g->add(g, op->in[0], build1(&g->b, OP_scale, attrs, dy, NULL));
}

void vjp_offset(Grad *g, Op *op, Value *dy) {
    g->add(g, op->in[0], dy);
}

/* All but what x - by > 0 lets through. */
void vjp_atmost(Grad *g, Op *op, Value *dy) {
    char *attrs = bfmt(&g->b, "by=%.17g", -op_float(op, "by", NAN));
    Value *beyond = build1(&g->b, OP_offset, attrs, op->in[0], NULL);
    Value *lost = build1(&g->b, OP_relu_grad, NULL, beyond, dy, NULL);
    g->add(g, op->in[0], build1(&g->b, OP_sub, NULL, dy, lost, NULL));
}

void vjp_select(Grad *g, Op *op, Value *dy) {
    Value *c = op->in[0];
    Value *zeros = build_as(&g->b, OP_fill, "value=0", op->out[0]->ty, NULL);
    if (g->wants(g, op->in[1]))
        g->add(g, op->in[1], build1(&g->b, OP_select, NULL, c, dy, zeros, NULL));
    if (g->wants(g, op->in[2]))
        g->add(g, op->in[2], build1(&g->b, OP_select, NULL, c, zeros, dy, NULL));
}

/* Is v an argument of its function, or a view of one? */
static bool is_of_argument(const Value *v) {
    while (v->def && op_has(v->def, F_MOVE) && v->def->nin) v = v->def->in[0];
    return !v->def;
}

/* The product that v is, or that it has the elements of; NULL: none. */
static Op *product_behind(const Value *v) {
    while (v->def && op_has(v->def, F_MOVE)) v = v->def->in[0];
    return v->def && op_has(v->def, F_ADDENDS) ? v->def : NULL;
}

enum { MOVES_MOST = 16 };

/* The gradient of an argument that was rounded for a product, a weight, is not rounded: the
 * product is made in the type of the argument, with the moves behind it. Who else reads the
 * rounded one has it still. */
static Value *unrounded(Grad *g, Value *grad, DType to) {
    Op *way[MOVES_MOST + 1];
    int n = 0;
    for (Value *v = grad; op_has(v->def, F_MOVE); v = v->def->in[0]) {
        if (n == MOVES_MOST) return NULL;
        way[n++] = v->def;
    }
    Op *product = product_behind(grad);
    Value *made = op_again(&g->b, product, product->in)->out[0];
    made->ty.dt = to;
    while (n--) {
        made = op_again(&g->b, way[n], &made)->out[0];
        made->ty.dt = to;
    }
    return made;
}

void vjp_cast(Grad *g, Op *op, Value *dy) {
    const Value *x = op->in[0];
    if (!dtype_is_float(x->ty.dt)) return;
    bool narrows = dtype_bytes[x->ty.dt] > dtype_bytes[op->out[0]->ty.dt];
    Value *exact = narrows && is_of_argument(x) && product_behind(dy)
                       ? unrounded(g, dy, x->ty.dt)
                       : NULL;
    if (exact) {
        g->add(g, op->in[0], exact);
        return;
    }
    g->add(g, op->in[0], build_as(&g->b, OP_cast, NULL, op->in[0]->ty, dy, NULL));
}

void vjp_dropout(Grad *g, Op *op, Value *dy) {
    if (!g->wants(g, op->in[0])) return;
    char *attrs = bfmt(&g->b, "p=%.17g; site=%lld", op_float(op, "p", 0),
                       (long long)op_int(op, "site", 0));
    int64_t zigzag = op_int(op, "zigzag", 0);
    if (zigzag) attrs = bfmt(&g->b, "%s; zigzag=%lld", attrs, (long long)zigzag);
    g->add(g, op->in[0], build1(&g->b, OP_dropout, attrs, dy, op->in[1], NULL));
}

/* The slope of exp is its result. */
void vjp_exp(Grad *g, Op *op, Value *dy) {
    g->add(g, op->in[0], build1(&g->b, OP_mul, NULL, dy, op->out[0], NULL));
}

void vjp_log(Grad *g, Op *op, Value *dy) {
    g->add(g, op->in[0], build1(&g->b, OP_div, NULL, dy, op->in[0], NULL));
}

void vjp_sqrt(Grad *g, Op *op, Value *dy) {
    Value *half = build1(&g->b, OP_scale, "by=0.5", dy, NULL);
    g->add(g, op->in[0], build1(&g->b, OP_div, NULL, half, op->out[0], NULL));
}

/* y = x^-1/2, dy = -1/2 y^3 */
void vjp_rsqrt(Grad *g, Op *op, Value *dy) {
    Value *y = op->out[0];
    Value *cube =
        build1(&g->b, OP_mul, NULL, build1(&g->b, OP_mul, NULL, y, y, NULL), y, NULL);
    Value *slope = build1(&g->b, OP_scale, "by=-0.5", cube, NULL);
    g->add(g, op->in[0], build1(&g->b, OP_mul, NULL, dy, slope, NULL));
}

/* dy = 1 - y^2 */
void vjp_tanh(Grad *g, Op *op, Value *dy) {
    Value *y = op->out[0];
    Value *gy2 =
        build1(&g->b, OP_mul, NULL, dy, build1(&g->b, OP_mul, NULL, y, y, NULL), NULL);
    g->add(g, op->in[0], build1(&g->b, OP_sub, NULL, dy, gy2, NULL));
}

/* dy = 1 - (y/cap)^2 */
void vjp_softcap(Grad *g, Op *op, Value *dy) {
    char *attrs = bfmt(&g->b, "by=%.17g", 1 / op_float(op, "cap", NAN));
    Value *share = build1(&g->b, OP_scale, attrs, op->out[0], NULL);
    Value *square = build1(&g->b, OP_mul, NULL, share, share, NULL);
    Value *less = build1(&g->b, OP_mul, NULL, dy, square, NULL);
    g->add(g, op->in[0], build1(&g->b, OP_sub, NULL, dy, less, NULL));
}

/* Activations whose slope is an op of its own, name_grad(x, dy). */
#define VJP_BY(name)                                                                     \
    void vjp_##name(Grad *g, Op *op, Value *dy) {                                        \
        g->add(g, op->in[0],                                                             \
               build1(&g->b, OP_##name##_grad, NULL, op->in[0], dy, NULL));              \
    }

VJP_BY(relu)
VJP_BY(gelu)
VJP_BY(gelu_erf)
VJP_BY(fast_gelu)
VJP_BY(silu)
