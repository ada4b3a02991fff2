/* emit_bf16.c - f32 values to and from bf16, products of bf16; see emit.h. The
 * instruction that rounds takes subnormal numbers as 0, so the integer arithmetic for CPUs
 * without it does the same: the bits are those of any CPU. */
#include "codegen/emit.h"
#include "codegen/target.h"

bool emit_has_dots(const Emit *e) {
    return e->register_lanes == 16 && target_names_dots(e->cpu, e->features);
}

/* Bits of f32 to those of bf16, in the high halves of i32; the low halves are not cleared. */
static LLVMValueRef rounded(Emit *e, LLVMValueRef value) {
    LLVMValueRef bits = emit_bits_of(e, value);
    LLVMValueRef odd = emit_and(e, emit_lshr(e, bits, 16), 1);
    LLVMValueRef half = emit_i32_like(e, bits, 0x7fff);
    LLVMValueRef up = LLVMBuildAdd(e->b, bits, LLVMBuildAdd(e->b, odd, half, ""), "");
    LLVMValueRef exponent = emit_and(e, bits, 0x7f800000),
                 zero = emit_i32_like(e, bits, 0);
    LLVMValueRef nan = emit_fcmp(e, LLVMRealUNO, value, value);
    LLVMValueRef tiny = emit_icmp(e, LLVMIntEQ, exponent, zero);
    LLVMValueRef quiet = emit_or(e, bits, 0x00400000);
    up = emit_select(e, nan, quiet, up);
    return emit_select(e, tiny, emit_and(e, bits, 0x80000000), up);
}

static LLVMValueRef by_instruction(Emit *e, LLVMValueRef value) {
    int n = e->register_lanes;
    if (emit_lanes(value) > n)
        return emit_join(e, by_instruction(e, emit_part(e, value, 0, n)),
                         by_instruction(e, emit_part(e, value, n, n)));
    LLVMValueRef narrow =
        emit_intrinsic(e, "llvm.x86.avx512bf16.cvtneps2bf16.512", NULL, 0, &value, 1);
    return LLVMBuildBitCast(e->b, narrow, emit_vec(e->i16, 16), "");
}

/* Instructions for bf16, with vectors as wide as they take. */
static bool has_instruction(const Emit *e, LLVMValueRef value) {
    return e->register_lanes == 16 && emit_has(e, "avx512bf16") && emit_lanes(value) &&
           emit_lanes(value) % e->register_lanes == 0;
}

static LLVMValueRef high_half(Emit *e, LLVMValueRef bits) {
    LLVMTypeRef narrow = emit_vec_or_one(e->i16, emit_lanes(bits));
    return LLVMBuildTrunc(e->b, emit_lshr(e, bits, 16), narrow, "");
}

LLVMValueRef emit_to_bf16(Emit *e, LLVMValueRef value) {
    if (has_instruction(e, value)) return by_instruction(e, value);
    return high_half(e, rounded(e, value));
}

LLVMValueRef emit_round_bf16(Emit *e, LLVMValueRef value) {
    if (has_instruction(e, value)) return emit_from_bf16(e, by_instruction(e, value));
    return emit_value_of(e, emit_and(e, rounded(e, value), 0xffff0000));
}

LLVMValueRef emit_bits_of_bf16(Emit *e, LLVMValueRef rounded) {
    return high_half(e, emit_bits_of(e, rounded));
}

LLVMValueRef emit_from_bf16(Emit *e, LLVMValueRef bits) {
    int lanes = emit_lanes(bits);
    LLVMValueRef wide = LLVMBuildZExt(e->b, bits, emit_vec_or_one(e->i32, lanes), "");
    return emit_value_of(e, emit_shl(e, wide, 16));
}

/* LLVM's type of 32 bf16 numbers has changed from version to version. */
static LLVMValueRef dot_by_instruction(Emit *e, const Pairs *a, const Pairs *b,
                                       LLVMValueRef sum) {
    static const char name[] = "llvm.x86.avx512bf16.dpbf16ps.512";
    LLVMTypeRef param[3];
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    check(id);
    LLVMGetParamTypes(LLVMIntrinsicGetType(e->ctx, id, NULL, 0), param);
    LLVMValueRef args[] = {sum, LLVMBuildBitCast(e->b, a->bits, param[1], ""),
                           LLVMBuildBitCast(e->b, b->bits, param[2], "")};
    return emit_intrinsic(e, name, NULL, 0, args, 3);
}

Pairs emit_pairs(Emit *e, LLVMValueRef bits) {
    if (emit_has_dots(e)) return (Pairs){.bits = bits};
    return emit_wide_pairs(e, bits);
}

Pairs emit_wide_pairs(Emit *e, LLVMValueRef bits) {
    Pairs p = {0};
    p.first = emit_value_of(e, emit_shl(e, bits, 16));
    p.second = emit_value_of(e, emit_and(e, bits, 0xffff0000));
    return p;
}

LLVMValueRef emit_dot_pairs(Emit *e, const Pairs *a, const Pairs *b, LLVMValueRef sum) {
    if (a->bits) return dot_by_instruction(e, a, b, sum);
    sum = emit_fma(e, a->second, b->second, sum);
    return emit_fma(e, a->first, b->first, sum);
}

/* By widening, not by a shuffle of both: LLVM makes that of two that x86 has no fast one for. */
LLVMValueRef emit_pair_up(Emit *e, LLVMValueRef first, LLVMValueRef second) {
    LLVMValueRef low = LLVMBuildZExt(e->b, first, e->vi32, "");
    LLVMValueRef high = LLVMBuildZExt(e->b, second, e->vi32, "");
    return LLVMBuildOr(e->b, low, emit_shl(e, high, 16), "");
}

LLVMValueRef emit_to_bf16_both(Emit *e, LLVMValueRef first, LLVMValueRef second) {
    if (!has_instruction(e, first) || emit_lanes(first) != e->register_lanes)
        return emit_join(e, emit_to_bf16(e, first), emit_to_bf16(e, second));
    LLVMValueRef args[] = {second, first};
    LLVMValueRef both =
        emit_intrinsic(e, "llvm.x86.avx512bf16.cvtne2ps2bf16.512", NULL, 0, args, 2);
    return LLVMBuildBitCast(e->b, both, emit_vec(e->i16, 2 * e->register_lanes), "");
}

LLVMValueRef emit_to_pairs(Emit *e, LLVMValueRef first, LLVMValueRef second) {
    enum { LANES = 16 };
    if (has_instruction(e, first) && emit_lanes(first) == LANES) {
        LLVMValueRef both = emit_to_bf16_both(e, first, second), lane[2 * LANES];
        for (int i = 0; i < 2 * LANES; i++) lane[i] = emit_i32(e, i / 2 + i % 2 * LANES);
        LLVMValueRef order = LLVMConstVector(lane, 2 * LANES);
        LLVMValueRef none = LLVMGetUndef(LLVMTypeOf(both));
        both = LLVMBuildShuffleVector(e->b, both, none, order, "");
        return LLVMBuildBitCast(e->b, both, e->vi32, "");
    }
    LLVMValueRef low = emit_lshr(e, emit_bits_of(e, emit_round_bf16(e, first)), 16);
    return LLVMBuildOr(e->b, low, emit_bits_of(e, emit_round_bf16(e, second)), "");
}

/* x, or with its sign y where that is less, by an instruction. */
static LLVMValueRef smaller(Emit *e, LLVMValueRef x, LLVMValueRef y) {
    enum { LEAST_SIZE = 2, ROUND_AS_SET = 4 };
    LLVMValueRef every = LLVMConstAllOnes(LLVMInt16TypeInContext(e->ctx));
    LLVMValueRef args[] = {x, y,     emit_i32(e, LEAST_SIZE),
                           x, every, emit_i32(e, ROUND_AS_SET)};
    return emit_intrinsic(e, "llvm.x86.avx512.mask.range.ps.512", NULL, 0, args, 6);
}

/* At most what bf16 has, so that rounding makes no infinity. */
static LLVMValueRef within_bf16(Emit *e, LLVMValueRef x) {
    const double most = 0x1.fep127;
    const int lanes = emit_lanes(x);
    if (lanes == 16 && e->register_lanes == 16 && emit_has(e, "avx512dq"))
        return smaller(e, x, emit_splat_n(e, emit_f32(e, most), lanes));
    for (int sign = 1; sign >= -1; sign -= 2) {
        LLVMValueRef end = emit_splat_n(e, emit_f32(e, sign * most), lanes);
        LLVMRealPredicate inside = sign > 0 ? LLVMRealOLT : LLVMRealOGT;
        x = emit_select(e, emit_fcmp(e, inside, x, end), x, end);
    }
    return x;
}

void emit_split_bf16(Emit *e, LLVMValueRef value, LLVMValueRef part[BF16_PARTS]) {
    for (int i = 0; i < BF16_PARTS; i++) {
        bool last = i == BF16_PARTS - 1; /* nothing is left to round */
        LLVMValueRef bits = emit_bits_of(e, last ? value : within_bf16(e, value));
        if (!last) bits = LLVMBuildAdd(e->b, bits, emit_i32_like(e, bits, 0x8000), "");
        part[i] = emit_value_of(e, emit_and(e, bits, 0xffff0000));
        if (!last) value = LLVMBuildFSub(e->b, value, part[i], "");
    }
}

LLVMValueRef emit_pair_up_parts(Emit *e, LLVMValueRef first, LLVMValueRef second,
                                bool along) {
    LLVMValueRef x = emit_bits_of(e, first), y = emit_bits_of(e, second);
    if (!along) return LLVMBuildOr(e->b, emit_lshr(e, x, 16), y, "");
    const int n = 2 * emit_lanes(first);
    LLVMTypeRef halves = emit_vec(e->i16, n);
    LLVMValueRef lane[32];
    check(n <= ARRAY_LEN(lane));
    for (int i = 0; i < n; i++) lane[i] = emit_i32(e, 2 * i + 1); /* the high ones */
    LLVMValueRef both = LLVMBuildShuffleVector(
        e->b, LLVMBuildBitCast(e->b, x, halves, ""),
        LLVMBuildBitCast(e->b, y, halves, ""), LLVMConstVector(lane, (unsigned)n), "");
    return LLVMBuildBitCast(e->b, both, LLVMTypeOf(x), "");
}
