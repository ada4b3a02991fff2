/* emit_narrow.c - f32 values to and from numbers of two bytes in memory, and f16; see emit.h.
 * Without the CPU's instructions for f16 the same is done in integers and one f32 sum, as
 * base/dtype.h does. */
#include "codegen/emit.h"

static bool has_f16(const Emit *e) {
    return emit_has(e, "f16c");
}

static LLVMValueRef plus(Emit *e, LLVMValueRef bits, int64_t n) {
    return LLVMBuildAdd(e->b, bits, emit_i32_like(e, bits, n), "");
}

static LLVMValueRef below(Emit *e, LLVMValueRef bits, int64_t n) {
    return emit_icmp(e, LLVMIntULT, bits, emit_i32_like(e, bits, n));
}

/* f32_to_f16. */
static LLVMValueRef to_half(Emit *e, LLVMValueRef value) {
    LLVMValueRef bits = emit_bits_of(e, value), size = emit_and(e, bits, 0x7fffffff);
    LLVMValueRef fraction = emit_lshr(e, size, 13), odd = emit_and(e, fraction, 1);
    LLVMValueRef nan = emit_or(e, emit_and(e, fraction, 0x3ff), 0x7e00);
    LLVMValueRef normal =
        emit_lshr(e, LLVMBuildAdd(e->b, plus(e, size, 0xc8000fff), odd, ""), 13);
    LLVMValueRef near = emit_value_of(e, size);
    near = emit_fadd(e, near, emit_f32_like(e, near, 0.5));
    LLVMValueRef tiny = plus(e, emit_bits_of(e, near), -0x3f000000);
    LLVMValueRef out = emit_select(e, below(e, size, 0x38800000), tiny, normal);
    LLVMValueRef inf = emit_i32_like(e, size, 0x7c00);
    out = emit_select(e, below(e, size, 0x477ff000), out, inf);
    out = emit_select(e, below(e, size, 0x7f800001), out, nan);
    LLVMValueRef sign = emit_and(e, emit_lshr(e, bits, 16), 0x8000);
    return LLVMBuildOr(e->b, out, sign, "");
}

/* f16_to_f32, of bits in i32. */
static LLVMValueRef from_half(Emit *e, LLVMValueRef bits) {
    LLVMValueRef size = emit_shl(e, emit_and(e, bits, 0x7fff), 13);
    LLVMValueRef tiny = emit_value_of(e, plus(e, size, 0x38800000));
    tiny = emit_bits_of(e, emit_fsub(e, tiny, emit_f32_like(e, tiny, 0x1p-14)));
    LLVMValueRef out =
        emit_select(e, below(e, size, 0x00800000), tiny, plus(e, size, 0x38000000));
    out = emit_select(e, below(e, size, 0x0f800000), out, emit_or(e, size, 0x7f800000));
    LLVMValueRef nan = emit_or(e, size, 0x7fc00000);
    out = emit_select(e, below(e, size, 0x0f800001), out, nan);
    LLVMValueRef sign = emit_and(e, bits, 0x8000);
    return emit_value_of(e, LLVMBuildOr(e->b, out, emit_shl(e, sign, 16), ""));
}

/* By the instruction, for 16, 8 or 4 lanes, or two registers of them. LLVM's own truncation to
 * half would let it do arithmetic in half, for which it calls functions that generated code
 * does not have. */
static LLVMValueRef by_instruction(Emit *e, LLVMValueRef value, int lanes) {
    LLVMValueRef nearest = emit_i32(e, 0);
    LLVMTypeRef out = emit_vec(e->i16, 8);
    if (lanes > e->register_lanes) {
        int n = lanes / 2;
        return emit_join(e, by_instruction(e, emit_part(e, value, 0, n), n),
                         by_instruction(e, emit_part(e, value, n, n), n));
    }
    if (lanes == 16) {
        out = emit_vec(e->i16, 16);
        LLVMValueRef args[] = {value, nearest, LLVMConstNull(out),
                               LLVMConstAllOnes(e->i16)};
        return emit_intrinsic(e, "llvm.x86.avx512.mask.vcvtps2ph.512", NULL, 0, args, 4);
    }
    LLVMValueRef args[] = {value, nearest};
    const char *name = lanes == 8 ? "llvm.x86.vcvtps2ph.256" : "llvm.x86.vcvtps2ph.128";
    LLVMValueRef bits = emit_intrinsic(e, name, NULL, 0, args, 2);
    if (lanes == 8) return bits;
    LLVMValueRef lane[] = {emit_i32(e, 0), emit_i32(e, 1), emit_i32(e, 2),
                           emit_i32(e, 3)};
    return LLVMBuildShuffleVector(e->b, bits, bits, LLVMConstVector(lane, 4), "");
}

static LLVMValueRef one_by_instruction(Emit *e, LLVMValueRef value) {
    LLVMValueRef zero = emit_i32(e, 0), none = LLVMConstNull(emit_vec(e->f32, 4));
    LLVMValueRef four = LLVMBuildInsertElement(e->b, none, value, zero, "");
    return LLVMBuildExtractElement(e->b, by_instruction(e, four, 4), zero, "");
}

static LLVMValueRef to_f16(Emit *e, LLVMValueRef value) {
    int lanes = emit_lanes(value);
    if (has_f16(e) && !lanes) return one_by_instruction(e, value);
    if (has_f16(e) && (lanes == 4 || lanes % 8 == 0))
        return by_instruction(e, value, lanes);
    return LLVMBuildTrunc(e->b, to_half(e, value), emit_vec_or_one(e->i16, lanes), "");
}

static LLVMValueRef from_f16(Emit *e, LLVMValueRef bits) {
    int lanes = emit_lanes(bits);
    if (!has_f16(e))
        return from_half(e,
                         LLVMBuildZExt(e->b, bits, emit_vec_or_one(e->i32, lanes), ""));
    LLVMValueRef half = LLVMBuildBitCast(
        e->b, bits, emit_vec_or_one(LLVMHalfTypeInContext(e->ctx), lanes), "");
    return LLVMBuildFPExt(e->b, half, emit_vec_or_one(e->f32, lanes), "");
}

static LLVMValueRef to_narrow(Emit *e, DType dt, LLVMValueRef value) {
    check(dt == DT_BF16 || dt == DT_F16);
    return dt == DT_F16 ? to_f16(e, value) : emit_to_bf16(e, value);
}

static LLVMValueRef from_narrow(Emit *e, DType dt, LLVMValueRef bits) {
    check(dt == DT_BF16 || dt == DT_F16);
    return dt == DT_F16 ? from_f16(e, bits) : emit_from_bf16(e, bits);
}

LLVMValueRef emit_to_narrow_both(Emit *e, DType dt, LLVMValueRef first,
                                 LLVMValueRef second) {
    if (dt == DT_BF16) return emit_to_bf16_both(e, first, second);
    return emit_join(e, to_narrow(e, dt, first), to_narrow(e, dt, second));
}

LLVMValueRef emit_load_narrow(Emit *e, DType dt, LLVMValueRef ptr, LLVMValueRef mask) {
    return from_narrow(e, dt, emit_load(e, emit_vec(e->i16, e->vl), ptr, mask, 2));
}

void emit_store_narrow(Emit *e, DType dt, LLVMValueRef value, LLVMValueRef ptr,
                       LLVMValueRef mask) {
    emit_store(e, to_narrow(e, dt, value), ptr, mask, 2);
}

LLVMValueRef emit_load_as(Emit *e, DType dt, LLVMValueRef ptr, LLVMValueRef mask) {
    if (dtype_is_narrow(dt)) return emit_load_narrow(e, dt, ptr, mask);
    return emit_load(e, dt == DT_I32 ? e->vi32 : e->vf32, ptr, mask, 4);
}

void emit_store_as(Emit *e, DType dt, LLVMValueRef value, LLVMValueRef ptr,
                   LLVMValueRef mask) {
    if (dtype_is_narrow(dt))
        emit_store_narrow(e, dt, value, ptr, mask);
    else
        emit_store(e, value, ptr, mask, 4);
}

void emit_store_rounded(Emit *e, DType dt, LLVMValueRef value, LLVMValueRef ptr,
                        LLVMValueRef mask) {
    if (dt == DT_BF16)
        emit_store(e, emit_bits_of_bf16(e, value), ptr, mask, 2);
    else
        emit_store_as(e, dt, value, ptr, mask);
}

LLVMValueRef emit_load_narrow_one(Emit *e, DType dt, LLVMValueRef ptr) {
    return from_narrow(e, dt, emit_load(e, e->i16, ptr, NULL, 2));
}

void emit_store_sum(Emit *e, DType dt, LLVMValueRef x, LLVMValueRef ptr,
                    LLVMValueRef mask, bool adds) {
    if (adds) x = emit_fadd(e, emit_load_as(e, dt, ptr, mask), x);
    emit_store_as(e, dt, x, ptr, mask);
}

LLVMValueRef emit_round_narrow(Emit *e, DType dt, LLVMValueRef value) {
    if (dt == DT_BF16) return emit_round_bf16(e, value);
    return from_narrow(e, dt, to_narrow(e, dt, value));
}
