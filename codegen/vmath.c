/* vmath.c - see vmath.h. Polynomials: S. L. Moshier's Cephes library, single precision
 * (expf, logf, tanhf); N. Juffa's published minimax fits for erff; 2^x on [-1/2, 1/2] is
 * a minimax fit of the relative error by Remez's algorithm with constant term 1, which
 * leaves 2.6e-9, less than 1/20 ulp; of degree 4 with a free one 2.6e-6. */
#include "codegen/vmath.h"
#include <math.h>

static LLVMValueRef num(Emit *e, LLVMValueRef like, double v) {
    return emit_f32_like(e, like, v);
}

/* c[0] x^(n-1) + ... + c[n-1] */
static LLVMValueRef poly(Emit *e, LLVMValueRef x, const double *c, int n) {
    LLVMValueRef y = num(e, x, c[0]);
    for (int i = 1; i < n; i++) y = emit_fma(e, y, x, num(e, x, c[i]));
    return y;
}

static LLVMValueRef less(Emit *e, LLVMValueRef a, LLVMValueRef b) {
    return emit_fcmp(e, LLVMRealOLT, a, b);
}

/* |size| with the sign of `sign`. */
static LLVMValueRef with_sign(Emit *e, LLVMValueRef size, LLVMValueRef sign) {
    LLVMTypeRef type = LLVMTypeOf(size);
    LLVMValueRef args[] = {size, sign};
    return emit_intrinsic(e, "llvm.copysign", &type, 1, args, 2);
}

/* Whole registers of AVX-512 in x: how many, or 0. */
enum { WIDE_LANES = 16, WIDE_PARTS = 2 };
static int wide_parts(const Emit *e, LLVMValueRef x) {
    int parts = emit_lanes(x) / WIDE_LANES;
    if (e->register_lanes != WIDE_LANES || !emit_has(e, "avx512f")) return 0;
    if (parts > WIDE_PARTS) return 0;
    return emit_lanes(x) % WIDE_LANES ? 0 : parts;
}

static LLVMValueRef joined(Emit *e, const LLVMValueRef *part, int parts) {
    return parts == 1 ? part[0] : emit_join(e, part[0], part[1]);
}

/* x 2^n for any whole n, rounded once, or 0 in lanes where `keep` (or NULL) is not set: in whole
 * registers of a CPU that has an instruction for it (AVX-512), else NULL. */
static LLVMValueRef scaled(Emit *e, LLVMValueRef x, LLVMValueRef n, LLVMValueRef keep) {
    const int parts = wide_parts(e, x), as_set = 4;
    LLVMTypeRef bits = LLVMInt16TypeInContext(e->ctx);
    LLVMValueRef part[WIDE_PARTS];
    for (int i = 0; i < parts; i++) {
        LLVMValueRef a = emit_part(e, x, i * WIDE_LANES, WIDE_LANES);
        LLVMValueRef mask = LLVMConstAllOnes(bits);
        if (keep) mask = emit_part(e, keep, i * WIDE_LANES, WIDE_LANES);
        LLVMValueRef args[] = {
            a, emit_part(e, n, i * WIDE_LANES, WIDE_LANES), LLVMConstNull(LLVMTypeOf(a)),
            LLVMBuildBitCast(e->b, mask, bits, ""), emit_i32(e, as_set)};
        part[i] =
            emit_intrinsic(e, "llvm.x86.avx512.mask.scalef.ps.512", NULL, 0, args, 5);
    }
    return parts ? joined(e, part, parts) : NULL;
}

/* r + r (1 - x r), rounded by the mode. */
static LLVMValueRef closer(Emit *e, LLVMValueRef x, LLVMValueRef r, int rounding) {
    LLVMValueRef off = emit_fma(e, emit_fneg(e, x), r, num(e, x, 1));
    LLVMValueRef args[] = {off, r, r, emit_i32(e, rounding)};
    return emit_intrinsic(e, "llvm.x86.avx512.vfmadd.ps.512", NULL, 0, args, 4);
}

/* A division takes longer than all the rest of a logistic function. From 14 bits Newton's step
 * goes to all but some of the last, and rounded up there the next one to the nearest number, also
 * for the one significand with which that is hard (P. Markstein, IA-64 and Elementary Functions,
 * chapter 8). */
LLVMValueRef vmath_reciprocal(Emit *e, LLVMValueRef x) {
    const int parts = wide_parts(e, x), as_set = 4, up = 10;
    LLVMValueRef part[WIDE_PARTS];
    for (int i = 0; i < parts; i++) {
        LLVMValueRef a = emit_part(e, x, i * WIDE_LANES, WIDE_LANES);
        LLVMValueRef all = LLVMConstAllOnes(LLVMInt16TypeInContext(e->ctx));
        LLVMValueRef args[] = {a, a, all};
        LLVMValueRef r =
            emit_intrinsic(e, "llvm.x86.avx512.rcp14.ps.512", NULL, 0, args, 3);
        part[i] = closer(e, a, closer(e, a, r, up), as_set);
    }
    return parts ? joined(e, part, parts) : emit_fdiv(e, num(e, x, 1), x);
}

/* The sum x + ROUND has the nearest integer to x in its low mantissa bits. */
#define ROUND 12582912.0 /* 1.5 * 2^23 */

/* exp(x) = 2^n exp(r); 2^n is applied as two factors, since 2^128 and the powers below
 * 2^-126 are no normal floats. */
LLVMValueRef vmath_exp(Emit *e, LLVMValueRef x) {
    static const double c[] = {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                               4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1};
    x = emit_fmin(e, num(e, x, 89), emit_fmax(e, num(e, x, -104.5), x));
    LLVMValueRef t = emit_fma(e, x, num(e, x, M_LOG2E), num(e, x, ROUND));
    LLVMValueRef n = emit_fsub(e, t, num(e, x, ROUND));
    LLVMValueRef r = emit_fma(e, n, num(e, x, -0.693359375), x);
    r = emit_fma(e, n, num(e, x, 2.12194440e-4), r);
    LLVMValueRef one = num(e, x, 1);
    LLVMValueRef y = emit_fma(e, poly(e, r, c, 6), emit_fmul(e, r, r), r);
    y = emit_fadd(e, y, one);
    LLVMValueRef whole = scaled(e, y, n, NULL);
    if (whole) return whole;
    LLVMValueRef k = emit_bits_of(e, t);
    k = LLVMBuildSub(e->b, k, emit_bits_of(e, num(e, x, ROUND)), "");
    LLVMValueRef k1 = LLVMBuildAShr(e->b, k, emit_i32_like(e, k, 1), "");
    LLVMValueRef k2 = LLVMBuildSub(e->b, k, k1, "");
    LLVMValueRef bias = emit_i32_like(e, k, 127);
    LLVMValueRef s1 = emit_value_of(e, emit_shl(e, LLVMBuildAdd(e->b, k1, bias, ""), 23));
    LLVMValueRef s2 = emit_value_of(e, emit_shl(e, LLVMBuildAdd(e->b, k2, bias, ""), 23));
    return emit_fmul(e, emit_fmul(e, y, s1), s2);
}

/* c: a polynomial of 2^x on [-1/2, 1/2]. With the exponent's bias added to ROUND, the sum's low
 * bits shifted up are 2^n. */
static LLVMValueRef exp2_by(Emit *e, LLVMValueRef x, const double *c, int terms) {
    LLVMValueRef round = num(e, x, ROUND + 127);
    LLVMValueRef t = emit_fadd(e, x, round), n = emit_fsub(e, t, round);
    LLVMValueRef y = poly(e, emit_fsub(e, x, n), c, terms);
    LLVMValueRef low = less(e, x, num(e, x, -126));
    LLVMValueRef whole = scaled(e, y, n, LLVMBuildNot(e->b, low, ""));
    if (whole) return whole;
    LLVMValueRef power = emit_value_of(e, emit_shl(e, emit_bits_of(e, t), 23));
    return emit_select(e, low, num(e, x, 0), emit_fmul(e, y, power));
}

LLVMValueRef vmath_exp2_fast(Emit *e, LLVMValueRef x) {
    static const double c[] = {1.5594677548e-4,
                               1.3406643905e-3,
                               9.6176929749e-3,
                               5.5503105510e-2,
                               2.4022652783e-1,
                               6.9314721497e-1,
                               1.0};
    return exp2_by(e, x, c, ARRAY_LEN(c));
}

LLVMValueRef vmath_exp2_narrow(Emit *e, LLVMValueRef x) {
    static const double c[] = {9.5701019112e-3, 5.5917860319e-2, 2.4024744828e-1,
                               6.9312181474e-1, 9.9999926145e-1};
    return exp2_by(e, x, c, ARRAY_LEN(c));
}

/* x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); subnormals are scaled up first. */
LLVMValueRef vmath_log(Emit *e, LLVMValueRef x) {
    static const double c[] = {7.0376836292e-2,  -1.1514610310e-1, 1.1676998740e-1,
                               -1.2420140846e-1, 1.4249322787e-1,  -1.6668057665e-1,
                               2.0000714765e-1,  -2.4999993993e-1, 3.3333331174e-1};
    LLVMValueRef zero = num(e, x, 0), inf = num(e, x, INFINITY);
    LLVMValueRef tiny = less(e, x, num(e, x, 0x1p-126));
    LLVMValueRef big = emit_fmul(e, x, num(e, x, 0x1p23));
    LLVMValueRef bits = emit_bits_of(e, emit_select(e, tiny, big, x));
    /* 0x3f3504f3 is sqrt(1/2): the difference's high bits are the exponent n. */
    LLVMValueRef root = emit_i32_like(e, bits, 0x3f3504f3);
    LLVMValueRef off = LLVMBuildSub(e->b, bits, root, "");
    LLVMValueRef n = LLVMBuildAShr(e->b, off, emit_i32_like(e, off, 23), "");
    LLVMValueRef m = emit_value_of(e, LLVMBuildSub(e->b, bits, emit_shl(e, n, 23), ""));
    LLVMValueRef nf = LLVMBuildSIToFP(e->b, n, LLVMTypeOf(x), "");
    nf = emit_fadd(e, nf, emit_select(e, tiny, num(e, x, -23), zero));
    LLVMValueRef f = emit_fsub(e, m, num(e, x, 1));
    LLVMValueRef z = emit_fmul(e, f, f);
    LLVMValueRef y = emit_fmul(e, poly(e, f, c, 9), emit_fmul(e, z, f));
    y = emit_fma(e, nf, num(e, x, -2.12194440e-4), y);
    y = emit_fma(e, z, num(e, x, -0.5), y);
    y = emit_fma(e, nf, num(e, x, 0.693359375), emit_fadd(e, f, y));
    /* Outside (0, inf): inf and NaN stay, 0 gives -inf, less gives NaN. */
    LLVMValueRef low = emit_select(e, emit_fcmp(e, LLVMRealOEQ, x, zero),
                                   num(e, x, -INFINITY), num(e, x, NAN));
    LLVMValueRef outside = emit_select(e, emit_fcmp(e, LLVMRealOLE, x, zero), low, x);
    LLVMValueRef above = emit_fcmp(e, LLVMRealOGT, x, zero);
    LLVMValueRef inside = LLVMBuildAnd(e->b, above, less(e, x, inf), "");
    return emit_select(e, inside, y, outside);
}

LLVMValueRef vmath_tanh(Emit *e, LLVMValueRef x) {
    static const double c[] = {-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2,
                               1.33314422036e-1, -3.33332819422e-1};
    LLVMValueRef size = emit_fabs(e, x), one = num(e, x, 1);
    LLVMValueRef z = emit_fmul(e, x, x);
    LLVMValueRef near = emit_fma(e, emit_fmul(e, poly(e, z, c, 5), z), x, x);
    LLVMValueRef grown = vmath_exp(e, emit_fadd(e, size, size));
    LLVMValueRef part = emit_fdiv(e, num(e, x, 2), emit_fadd(e, grown, one));
    LLVMValueRef inside = less(e, size, num(e, x, 0.625));
    return with_sign(e, emit_select(e, inside, near, emit_fsub(e, one, part)), x);
}

/* Near 0 an odd polynomial; further out 1 - exp of a fit to log(1 - erf). */
LLVMValueRef vmath_erf(Emit *e, LLVMValueRef x) {
    static const double inner[] = {-5.96761703e-4, 4.99119423e-3,  -2.67681349e-2,
                                   1.12819925e-1,  -3.76125336e-1, 1.28379166e-1};
    static const double outer[] = {-1.72853470e-5, 3.83197126e-4,  -3.88396438e-3,
                                   2.42546219e-2,  -1.06777877e-1, -6.34846687e-1,
                                   -1.28717512e-1};
    LLVMValueRef size = emit_fmin(e, num(e, x, 4), emit_fabs(e, x));
    LLVMValueRef near = emit_fma(e, poly(e, emit_fmul(e, x, x), inner, 6), x, x);
    LLVMValueRef fit = emit_fma(e, poly(e, size, outer, 7), size, emit_fneg(e, size));
    LLVMValueRef far = emit_fsub(e, num(e, x, 1), vmath_exp(e, fit));
    LLVMValueRef inside = less(e, size, num(e, x, 0.927734375));
    return emit_select(e, inside, near, with_sign(e, far, x));
}

/* exp is taken of -|x|, so that it cannot overflow. */
LLVMValueRef vmath_sigmoid(Emit *e, LLVMValueRef x) {
    LLVMValueRef one = num(e, x, 1);
    LLVMValueRef decay = vmath_exp(e, emit_fneg(e, emit_fabs(e, x)));
    LLVMValueRef below = less(e, x, num(e, x, 0));
    LLVMValueRef top = emit_select(e, below, decay, one);
    return emit_fmul(e, top, vmath_reciprocal(e, emit_fadd(e, one, decay)));
}

LLVMValueRef vmath_sqrt(Emit *e, LLVMValueRef x) {
    LLVMTypeRef type = LLVMTypeOf(x);
    return emit_intrinsic(e, "llvm.sqrt", &type, 1, &x, 1);
}

LLVMValueRef vmath_rsqrt(Emit *e, LLVMValueRef x) {
    return emit_fdiv(e, num(e, x, 1), vmath_sqrt(e, x));
}

/* A number of 64 bits for each lane of x. */
static LLVMValueRef for_lanes(Emit *e, LLVMValueRef x, LLVMValueRef number) {
    int lanes = emit_lanes(x);
    return lanes ? emit_splat_n(e, number, lanes) : number;
}

/* factor times the low words of x, in 64 bits. */
static LLVMValueRef wide_mul(Emit *e, LLVMValueRef x, uint32_t factor) {
    LLVMValueRef low = for_lanes(e, x, emit_i64(e, 0xffffffff));
    return LLVMBuildMul(e->b, LLVMBuildAnd(e->b, x, low, ""),
                        for_lanes(e, x, emit_i64(e, factor)), "");
}

/* The high words of x, with those of a and the key. */
static LLVMValueRef mixed(Emit *e, LLVMValueRef x, LLVMValueRef a, LLVMValueRef key) {
    LLVMValueRef k = for_lanes(e, x, LLVMBuildZExt(e->b, key, e->i64, ""));
    LLVMValueRef high = LLVMBuildLShr(e->b, x, for_lanes(e, x, emit_i64(e, 32)), "");
    return LLVMBuildXor(e->b, LLVMBuildXor(e->b, high, a, ""), k, "");
}

/* Each word is the lower half of 64 bits from the first round to the last, with anything above:
 * a product takes the lower half of its factors and gives both. */
LLVMValueRef vmath_philox(Emit *e, const LLVMValueRef ctr[4], LLVMValueRef key0,
                          LLVMValueRef key1) {
    LLVMTypeRef narrow = LLVMTypeOf(ctr[0]);
    LLVMTypeRef wide = emit_vec_or_one(e->i64, emit_lanes(ctr[0]));
    LLVMValueRef c[4];
    for (int i = 0; i < 4; i++) c[i] = LLVMBuildZExt(e->b, ctr[i], wide, "");
    for (int round = 0; round < 10; round++) {
        LLVMValueRef p0 = wide_mul(e, c[0], 0xD2511F53u);
        LLVMValueRef p1 = wide_mul(e, c[2], 0xCD9E8D57u);
        c[0] = mixed(e, p1, c[1], key0);
        c[1] = p1;
        c[2] = mixed(e, p0, c[3], key1);
        c[3] = p0;
        key0 = LLVMBuildAdd(e->b, key0, emit_i32(e, 0x9E3779B9u), "");
        key1 = LLVMBuildAdd(e->b, key1, emit_i32(e, 0xBB67AE85u), "");
    }
    return LLVMBuildTrunc(e->b, c[0], narrow, "");
}
