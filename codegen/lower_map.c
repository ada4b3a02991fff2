/* lower_map.c - one element of every MAP op, on f32 vectors or scalars. */
#include "codegen/lower.h"
#include "codegen/vmath.h"
#include <math.h>

#define UNARY(name, expr)                                                                \
    static LLVMValueRef map_##name(MapContext *c) {                                      \
        Emit *e = c->e;                                                                  \
        LLVMValueRef x = c->in[0];                                                       \
        return expr;                                                                     \
    }
#define BINARY(name, expr)                                                               \
    static LLVMValueRef map_##name(MapContext *c) {                                      \
        Emit *e = c->e;                                                                  \
        LLVMValueRef x = c->in[0], y = c->in[1];                                         \
        return expr;                                                                     \
    }

static LLVMValueRef num(Emit *e, LLVMValueRef like, double v) {
    return emit_f32_like(e, like, v);
}

/* A number of the op; spelt otherwise than in the row it is NaN. */
static LLVMValueRef attribute(MapContext *c, const char *key) {
    return num(c->e, c->in[0], op_float(c->op, key, NAN));
}

static LLVMValueRef greater(Emit *e, LLVMValueRef x, LLVMValueRef y) {
    return emit_fcmp(e, LLVMRealOGT, x, y);
}

/* y, or 0 where x is 0 or less; a NaN is neither, so that a step which has one is found out. */
static LLVMValueRef relu(Emit *e, LLVMValueRef x, LLVMValueRef y) {
    LLVMValueRef zero = num(e, x, 0);
    LLVMValueRef keeps = emit_fcmp(e, LLVMRealUGT, x, zero);
    return emit_select(e, keeps, y, zero);
}

static LLVMValueRef softcap(Emit *e, LLVMValueRef x, LLVMValueRef cap) {
    return emit_fmul(e, cap, vmath_tanh(e, emit_fdiv(e, x, cap)));
}

/* the larger one plus log(1 + exp(-|x - y|)) */
static LLVMValueRef log_add(Emit *e, LLVMValueRef x, LLVMValueRef y) {
    LLVMValueRef apart = emit_fneg(e, emit_fabs(e, emit_fsub(e, x, y)));
    LLVMValueRef more = emit_fadd(e, vmath_exp(e, apart), num(e, x, 1));
    LLVMValueRef top = emit_select(e, greater(e, x, y), x, y);
    return emit_fadd(e, top, vmath_log(e, more));
}

/* 1 / (1 + 2^x); x is at most 126, so that nothing overflows. NaN stays NaN. */
static LLVMValueRef logistic2(Emit *e, LLVMValueRef x) {
    LLVMValueRef power = vmath_exp2_fast(e, emit_fmin(e, num(e, x, 126), x));
    return vmath_reciprocal(e, emit_fadd(e, num(e, x, 1), power));
}

/* s = (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), which is 1 / (1 + exp(-2u)) */
static LLVMValueRef gelu_share(Emit *e, LLVMValueRef x) {
    const double by = -2 * M_LOG2E * 0.79788456080286535588;
    LLVMValueRef x2 = emit_fmul(e, x, x);
    LLVMValueRef inner = emit_fma(e, x2, num(e, x, by * 0.044715), num(e, x, by));
    return logistic2(e, emit_fmul(e, x, inner));
}

/* Farther out the share is 0 or 1, and powers of x must not overflow. NaN stays NaN. */
static LLVMValueRef gelu_near(Emit *e, LLVMValueRef x) {
    return emit_fmin(e, num(e, x, 30), emit_fmax(e, num(e, x, -30), x));
}

/* The share is no less than 2^-126, of which a large x would make a number. It is 0 far below 0,
 * also of -inf, which becomes NaN as in the interpreter. It is made as in gelu_grad, so that a kernel of
 * both makes it once. */
static LLVMValueRef gelu(Emit *e, LLVMValueRef x) {
    LLVMValueRef far = greater(e, num(e, x, -30), x);
    LLVMValueRef share = gelu_share(e, gelu_near(e, x));
    return emit_fmul(e, x, emit_select(e, far, num(e, x, 0), share));
}

/* y (s + x 2 s (1 - s) sqrt(2/pi) (1 + 3 * 0.044715 x^2)) */
static LLVMValueRef gelu_grad(Emit *e, LLVMValueRef x, LLVMValueRef y) {
    const double by = 2 * 0.79788456080286535588;
    x = gelu_near(e, x);
    LLVMValueRef s = gelu_share(e, x), x2 = emit_fmul(e, x, x);
    LLVMValueRef inner = emit_fma(e, x2, num(e, x, by * 3 * 0.044715), num(e, x, by));
    LLVMValueRef both = emit_fma(e, emit_fneg(e, s), s, s);
    LLVMValueRef slope = emit_fma(e, emit_fmul(e, x, both), inner, s);
    return emit_fmul(e, y, slope);
}

/* 0.5 (1 + erf(x / sqrt 2)) */
static LLVMValueRef normal_cdf(Emit *e, LLVMValueRef x) {
    LLVMValueRef half = num(e, x, 0.5);
    LLVMValueRef erf = vmath_erf(e, emit_fmul(e, x, num(e, x, 0.70710678118654752440)));
    return emit_fma(e, erf, half, half);
}

static LLVMValueRef gelu_erf_grad(Emit *e, LLVMValueRef x, LLVMValueRef y) {
    LLVMValueRef square = emit_fmul(e, emit_fmul(e, x, x), num(e, x, -0.5));
    LLVMValueRef density =
        emit_fmul(e, vmath_exp(e, square), num(e, x, 0.39894228040143267794));
    return emit_fmul(e, y, emit_fma(e, x, density, normal_cdf(e, x)));
}

/* x sigmoid(a x) and its slope, s + a s x (1 - s): a x itself may be inf */
static LLVMValueRef swish(Emit *e, LLVMValueRef x, double a) {
    return emit_fmul(e, x, vmath_sigmoid(e, emit_fmul(e, x, num(e, x, a))));
}

static LLVMValueRef swish_grad(Emit *e, LLVMValueRef x, LLVMValueRef y, double a) {
    LLVMValueRef s = vmath_sigmoid(e, emit_fmul(e, x, num(e, x, a)));
    LLVMValueRef rest = emit_fma(e, emit_fneg(e, x), s, x); /* x (1 - s) */
    return emit_fmul(e, y, emit_fma(e, emit_fmul(e, rest, s), num(e, x, a), s));
}

static LLVMValueRef to_float(Emit *e, LLVMValueRef bit, LLVMValueRef like) {
    return emit_select(e, bit, num(e, like, 1), num(e, like, 0));
}

/* 1 or 0, of the type of the op's result, which is i32 or a float type. */
static LLVMValueRef one_or_zero(MapContext *c, LLVMValueRef bit) {
    Emit *e = c->e;
    int lanes = emit_lanes(bit);
    LLVMTypeRef i32 = lanes ? emit_vec(e->i32, lanes) : e->i32;
    if (c->op->out[0]->ty.dt == DT_I32) return LLVMBuildZExt(e->b, bit, i32, "");
    LLVMTypeRef f32 = lanes ? emit_vec(e->f32, lanes) : e->f32;
    return to_float(e, bit, LLVMGetUndef(f32));
}

BINARY(add, emit_fadd(e, x, y))
BINARY(sub, emit_fsub(e, x, y))
BINARY(mul, emit_fmul(e, x, y))
BINARY(div, emit_fdiv(e, x, y))
UNARY(scale, emit_fmul(e, x, attribute(c, "by")))
UNARY(offset, emit_fadd(e, x, attribute(c, "by")))
BINARY(log_add, log_add(e, x, y))
UNARY(exp, vmath_exp(e, x))
UNARY(log, vmath_log(e, x))
UNARY(sqrt, vmath_sqrt(e, x))
UNARY(rsqrt, vmath_rsqrt(e, x))
UNARY(tanh, vmath_tanh(e, x))
UNARY(softcap, softcap(e, x, attribute(c, "cap")))
UNARY(relu, relu(e, x, x))
BINARY(relu_grad, relu(e, x, y))
UNARY(gelu, gelu(e, x))
BINARY(gelu_grad, gelu_grad(e, x, y))
UNARY(gelu_erf, emit_fmul(e, x, normal_cdf(e, x)))
BINARY(gelu_erf_grad, gelu_erf_grad(e, x, y))
UNARY(fast_gelu, swish(e, x, 1.702))
BINARY(fast_gelu_grad, swish_grad(e, x, y, 1.702))
UNARY(silu, swish(e, x, 1))
BINARY(silu_grad, swish_grad(e, x, y, 1))

/* NaN stays NaN, as a wrong norm must show */
static LLVMValueRef map_atmost(MapContext *c) {
    LLVMValueRef top = attribute(c, "by");
    return emit_select(c->e, greater(c->e, c->in[0], top), top, c->in[0]);
}

static LLVMValueRef map_fill(MapContext *c) {
    double v = op_float(c->op, "value", 0);
    if (c->op->out[0]->ty.dt == DT_I32) /* as in the interpreter: the nearest, 0 of NaN */
        return emit_i32(c->e,
                        isnan(v) ? 0 : (int64_t)fmin(fmax(v, INT32_MIN), INT32_MAX));
    return emit_f32(c->e, v);
}

static LLVMValueRef map_cast(MapContext *c) {
    Emit *e = c->e;
    DType from = c->op->in[0]->ty.dt, to = c->op->out[0]->ty.dt;
    int lanes = emit_lanes(c->in[0]);
    if (from == to) return c->in[0];
    if (dtype_is_float(from) && dtype_is_float(to))
        return c->in[0]; /* f32 in registers; a kernel rounds what it makes */
    if (dtype_is_float(to)) {
        return LLVMBuildSIToFP(e->b, c->in[0], lanes ? emit_vec(e->f32, lanes) : e->f32,
                               "");
    }
    /* what does not fit is the nearest that does, NaN is 0, as in the interpreter */
    LLVMTypeRef types[] = {lanes ? emit_vec(e->i32, lanes) : e->i32,
                           LLVMTypeOf(c->in[0])};
    return emit_intrinsic(e, "llvm.fptosi.sat", types, 2, c->in, 1);
}

/* Lanes whose column is the label (a scalar: one label a row). */
static LLVMValueRef at_label(MapContext *c, LLVMValueRef label) {
    const Type *t = &c->op->out[0]->ty;
    if (t->dim[t->rank - 1] == 1) { /* one column: the space does not count it */
        return emit_icmp(c->e, LLVMIntEQ, label, emit_i32_like(c->e, label, 0));
    }
    if (!emit_lanes(label)) label = emit_splat_n(c->e, label, emit_lanes(c->column));
    return emit_icmp(c->e, LLVMIntEQ, c->column, label);
}

/* |x| < inf, which no comparison with a NaN is */
static LLVMValueRef map_finite(MapContext *c) {
    LLVMValueRef x = c->in[0], top = num(c->e, x, INFINITY);
    return to_float(c->e, greater(c->e, top, emit_fabs(c->e, x)), x);
}

static LLVMValueRef map_select(MapContext *c) {
    LLVMValueRef zero = num(c->e, c->in[0], 0);
    LLVMValueRef yes = emit_fcmp(c->e, LLVMRealUNE, c->in[0], zero);
    return emit_select(c->e, yes, c->in[1], c->in[2]);
}

static LLVMValueRef map_agree(MapContext *c) {
    return c->in[0];
}

static LLVMValueRef map_pick(MapContext *c) {
    return emit_select(c->e, at_label(c, c->in[1]), c->in[0], num(c->e, c->in[0], 0));
}

static LLVMValueRef map_onehot(MapContext *c) {
    return one_or_zero(c, at_label(c, c->in[0]));
}

static LLVMValueRef map_valid(MapContext *c) {
    LLVMValueRef zero = emit_i32_like(c->e, c->in[0], 0);
    LLVMValueRef bit = emit_icmp(c->e, LLVMIntSGE, c->in[0], zero);
    return one_or_zero(c, bit);
}

/* Where the lanes of a vector from element c->element of a part on are in the whole
 * tensor, less the base; a vector is within a row of the kernel. Runs of `run` elements
 * are adjacent. */
static LLVMValueRef lanes_of_part(MapContext *c, LLVMValueRef lane) {
    Emit *e = c->e;
    int64_t run = c->part->size[c->part->ngroups - 1];
    if (run % c->inner == 0) { /* so is the row */
        LLVMValueRef row = part_distance(e, c->part, c->first_row, c->row);
        LLVMValueRef at = emit_add(e, row, emit_sub(e, c->element, c->row));
        return emit_add(e, emit_splat(e, at), lane);
    }
    if (run < e->vl) {
        return part_distance(e, c->part, c->first_row,
                             emit_add(e, emit_splat(e, c->element), lane));
    }
    LLVMValueRef first = part_distance(e, c->part, c->first_row, c->element);
    first = emit_splat(e, first);
    if (run % e->vl == 0) return emit_add(e, first, lane);
    LLVMValueRef size = emit_i64(e, run);
    LLVMValueRef left = emit_sub(e, size, emit_rem(e, c->element, size));
    LLVMValueRef next =
        part_distance(e, c->part, c->first_row, emit_add(e, c->element, left));
    next = emit_splat(e, emit_sub(e, next, left));
    LLVMValueRef here = emit_icmp(e, LLVMIntSLT, lane, emit_splat(e, left));
    return emit_add(e, emit_select(e, here, first, next), lane);
}

/* Numbers of the lanes in the step's tensor, <vl x i64>. */
static LLVMValueRef lane_elements(MapContext *c) {
    Emit *e = c->e;
    LLVMValueRef lane = LLVMBuildZExt(e->b, emit_iota(e), emit_vec(e->i64, e->vl), "");
    if (!c->element) lower_refuse(c->op, "one number a row of a larger kernel");
    LLVMValueRef at =
        c->part ? lanes_of_part(c, lane) : emit_add(e, emit_splat(e, c->element), lane);
    return emit_add(e, at, emit_splat(e, c->base));
}

/* keep where philox word 0 of (element, site, layer) >= p 2^32, scaled by 1/(1-p) */
static LLVMValueRef map_dropout(MapContext *c) {
    Emit *e = c->e;
    double p = op_float(c->op, "p", 0);
    LLVMValueRef at = lane_elements(c);
    LLVMValueRef shift = emit_splat_n(e, emit_i64(e, 32), e->vl);
    LLVMValueRef word[RNG_MICRO];
    for (int i = 0; i < RNG_MICRO; i++) {
        word[i] = emit_load(e, e->i32, emit_at(e, e->i32, c->in[1], i), NULL, 4);
    }
    LLVMValueRef counter[4] = {
        LLVMBuildTrunc(e->b, at, e->vi32, ""),
        LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, at, shift, ""), e->vi32, ""),
        emit_splat_n(e, emit_i32(e, op_int(c->op, "site", 0)), e->vl),
        emit_splat_n(e, word[RNG_LAYER], e->vl)};
    LLVMValueRef random = vmath_philox(e, counter, word[RNG_KEY], word[RNG_KEY + 1]);
    LLVMValueRef limit = emit_i32_like(e, random, (int64_t)(uint32_t)(p * 4294967296.0));
    LLVMValueRef keep = emit_icmp(e, LLVMIntUGE, random, limit);
    if (!emit_lanes(c->in[0]))
        keep = LLVMBuildExtractElement(e->b, keep, emit_i32(e, 0), "");
    LLVMValueRef scaled = emit_fmul(e, c->in[0], num(e, c->in[0], 1 / (1 - p)));
    return emit_select(e, keep, scaled, num(e, c->in[0], 0));
}

#define OP(name, ...)        [OP_##name] = NULL,
#define MAP(name, ...)       [OP_##name] = map_##name,
#define COMPOSITE(name, ...) [OP_##name] = NULL,
const MapEmitter map_emitter[OP_COUNT] = {
#include "ir/ops.def"
};
#undef OP
#undef MAP
#undef COMPOSITE
