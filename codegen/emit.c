/* emit.c - the plain helpers of emit.h: types, arithmetic, memory, calls. */
#include "codegen/emit.h"

bool emit_has(const Emit *e, const char *feature) {
    size_t n = strlen(feature);
    for (const char *p = e->features ? e->features : ""; (p = strstr(p, feature)); p++)
        if (p > e->features && p[-1] == '+' && (p[n] == ',' || p[n] == 0)) return true;
    return false;
}

Emit *emit_new(Arena *mem, const char *module_name, int vl, const char *cpu,
               const char *features) {
    check(vl == 16 || vl == 8 || vl == 4);
    Emit *e = NEW(mem, Emit);
    e->mem = mem;
    e->register_lanes = vl;
    e->cpu = cpu;
    e->features = features;
    e->tiles = vl == 16 && emit_has(e, "amx-bf16") ? TILES_CPU : TILES_NONE;
    e->ctx = LLVMContextCreate();
    e->mod = LLVMModuleCreateWithNameInContext(module_name, e->ctx);
    e->b = LLVMCreateBuilderInContext(e->ctx);
    e->void_ = LLVMVoidTypeInContext(e->ctx);
    e->i1 = LLVMInt1TypeInContext(e->ctx);
    e->i8 = LLVMInt8TypeInContext(e->ctx);
    e->i16 = LLVMInt16TypeInContext(e->ctx);
    e->i32 = LLVMInt32TypeInContext(e->ctx);
    e->i64 = LLVMInt64TypeInContext(e->ctx);
    e->f32 = LLVMFloatTypeInContext(e->ctx);
    e->f64 = LLVMDoubleTypeInContext(e->ctx);
    e->ptr = LLVMPointerTypeInContext(e->ctx, 0);
    emit_set_lanes(e, vl);
    return e;
}

void emit_set_lanes(Emit *e, int lanes) {
    check(lanes == e->register_lanes || lanes == 2 * e->register_lanes);
    e->vl = lanes;
    e->vf32 = emit_vec(e->f32, lanes);
    e->vi32 = emit_vec(e->i32, lanes);
}

void emit_free(Emit *e) {
    LLVMDisposeBuilder(e->b);
    if (!e->mod) return;
    LLVMDisposeModule(e->mod);
    LLVMContextDispose(e->ctx);
}

/* Functions. */

static void string_attribute(Emit *e, LLVMValueRef fn, const char *key, const char *s) {
    LLVMAttributeRef a = LLVMCreateStringAttribute(e->ctx, key, (unsigned)strlen(key), s,
                                                   (unsigned)strlen(s));
    LLVMAddAttributeAtIndex(fn, LLVMAttributeFunctionIndex, a);
}

static void enum_attribute(Emit *e, LLVMValueRef fn, LLVMAttributeIndex at,
                           const char *name) {
    unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
    check(kind);
    LLVMAddAttributeAtIndex(fn, at, LLVMCreateEnumAttribute(e->ctx, kind, 0));
}

LLVMValueRef emit_func(Emit *e, const char *name, LLVMTypeRef ret,
                       const LLVMTypeRef *params, int n, bool internal) {
    LLVMValueRef fn = emit_extern(e, name, ret, params, n);
    check(LLVMCountBasicBlocks(fn) == 0);
    LLVMSetLinkage(fn, internal ? LLVMInternalLinkage : LLVMExternalLinkage);
    if (e->cpu && *e->cpu) string_attribute(e, fn, "target-cpu", e->cpu);
    if (e->features && *e->features) {
        string_attribute(e, fn, "target-features", e->features);
    }
    int lanes = e->register_lanes;
    const char *width = lanes == 16 ? "512" : lanes == 8 ? "256" : "128";
    string_attribute(e, fn, "prefer-vector-width", width);
    string_attribute(e, fn, "min-legal-vector-width", width);
    enum_attribute(e, fn, LLVMAttributeFunctionIndex, "nounwind");
    e->fn = fn;
    LLVMPositionBuilderAtEnd(e->b, LLVMAppendBasicBlockInContext(e->ctx, fn, "entry"));
    return fn;
}

void emit_unoptimized(Emit *e) {
    enum_attribute(e, e->fn, LLVMAttributeFunctionIndex, "optnone");
    enum_attribute(e, e->fn, LLVMAttributeFunctionIndex, "noinline");
}

LLVMValueRef emit_param(Emit *e, int i) {
    return LLVMGetParam(e->fn, (unsigned)i);
}

LLVMValueRef emit_items_func(Emit *e, const char *name, const char *part) {
    LLVMTypeRef params[] = {e->ptr, e->i64, e->i64, e->i64};
    if (part) name = arena_printf(e->mem, "%s.%s", name, part);
    return emit_func(e, name, e->void_, params, ARRAY_LEN(params), true);
}

LLVMValueRef emit_context_func(Emit *e, const char *name, int n, int slots,
                               bool internal) {
    LLVMTypeRef *params = NEW_ARRAY(e->mem, LLVMTypeRef, (size_t)n);
    for (int i = 0; i < n; i++) params[i] = e->ptr;
    emit_func(e, name, e->void_, params, n, internal);
    LLVMValueRef ctx = emit_alloca(e, 8 * slots);
    for (int i = 0; i < n; i++)
        emit_store(e, emit_param(e, i), emit_at(e, e->ptr, ctx, i), NULL, 8);
    return ctx;
}

void emit_ret(Emit *e, LLVMValueRef value) {
    if (value) {
        LLVMBuildRet(e->b, value);
    } else {
        LLVMBuildRetVoid(e->b);
    }
}

LLVMValueRef emit_extern(Emit *e, const char *name, LLVMTypeRef ret,
                         const LLVMTypeRef *params, int n) {
    LLVMTypeRef *types = NEW_ARRAY(e->mem, LLVMTypeRef, (size_t)n);
    for (int i = 0; i < n; i++) types[i] = params[i];
    LLVMTypeRef type = LLVMFunctionType(ret, types, (unsigned)n, 0);
    LLVMValueRef fn = LLVMGetNamedFunction(e->mod, name);
    if (!fn) return LLVMAddFunction(e->mod, name, type);
    if (LLVMGlobalGetValueType(fn) != type) die("%s is declared with two types", name);
    return fn;
}

static void check_arguments(Emit *e, const char *name, LLVMTypeRef type,
                            const LLVMValueRef *args, int n) {
    int nparams = (int)LLVMCountParamTypes(type);
    if (n != nparams) die("%s takes %d arguments, not %d", name, nparams, n);
    LLVMTypeRef *param = NEW_ARRAY(e->mem, LLVMTypeRef, (size_t)n);
    LLVMGetParamTypes(type, param);
    for (int i = 0; i < n; i++)
        if (LLVMTypeOf(args[i]) != param[i])
            die("argument %d of %s is %s, not %s", i + 1, name,
                LLVMPrintTypeToString(param[i]),
                LLVMPrintTypeToString(LLVMTypeOf(args[i])));
}

LLVMValueRef emit_call(Emit *e, const char *name, const LLVMValueRef *args, int n) {
    LLVMValueRef fn = LLVMGetNamedFunction(e->mod, name);
    if (!fn) die("%s is called before it is declared", name);
    LLVMTypeRef type = LLVMGlobalGetValueType(fn);
    check_arguments(e, name, type, args, n);
    LLVMValueRef *values = NEW_ARRAY(e->mem, LLVMValueRef, (size_t)n);
    for (int i = 0; i < n; i++) values[i] = args[i];
    return LLVMBuildCall2(e->b, type, fn, values, (unsigned)n, "");
}

LLVMValueRef emit_intrinsic(Emit *e, const char *name, const LLVMTypeRef *overloads,
                            int noverloads, const LLVMValueRef *args, int n) {
    LLVMTypeRef types[4];
    LLVMValueRef values[8];
    check(noverloads <= ARRAY_LEN(types) && n <= ARRAY_LEN(values));
    for (int i = 0; i < noverloads; i++) types[i] = overloads[i];
    for (int i = 0; i < n; i++) values[i] = args[i];
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    check(id);
    LLVMValueRef fn = LLVMGetIntrinsicDeclaration(e->mod, id, types, (size_t)noverloads);
    LLVMTypeRef type = LLVMIntrinsicGetType(e->ctx, id, types, (size_t)noverloads);
    return LLVMBuildCall2(e->b, type, fn, values, (unsigned)n, "");
}

/* Constants and vectors. */

LLVMValueRef emit_i64(Emit *e, int64_t v) {
    return LLVMConstInt(e->i64, (unsigned long long)v, 1);
}

LLVMValueRef emit_i32(Emit *e, int64_t v) {
    return LLVMConstInt(e->i32, (uint32_t)v, 0);
}

LLVMValueRef emit_f32(Emit *e, double v) {
    return LLVMConstReal(e->f32, v);
}

LLVMTypeRef emit_vec(LLVMTypeRef elem, int lanes) {
    return LLVMVectorType(elem, (unsigned)lanes);
}

int emit_lanes(LLVMValueRef v) {
    LLVMTypeRef t = LLVMTypeOf(v);
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? (int)LLVMGetVectorSize(t) : 0;
}

static LLVMValueRef constant_like(LLVMValueRef like, LLVMValueRef scalar) {
    LLVMValueRef lane[64];
    int n = emit_lanes(like);
    if (!n) return scalar;
    check(n <= ARRAY_LEN(lane));
    for (int i = 0; i < n; i++) lane[i] = scalar;
    return LLVMConstVector(lane, (unsigned)n);
}

LLVMValueRef emit_f32_like(Emit *e, LLVMValueRef like, double v) {
    return constant_like(like, emit_f32(e, v));
}

LLVMValueRef emit_i32_like(Emit *e, LLVMValueRef like, int64_t v) {
    return constant_like(like, emit_i32(e, v));
}

LLVMValueRef emit_splat_n(Emit *e, LLVMValueRef scalar, int lanes) {
    LLVMTypeRef type = emit_vec(LLVMTypeOf(scalar), lanes);
    LLVMValueRef none = LLVMGetPoison(type);
    LLVMValueRef one = LLVMBuildInsertElement(e->b, none, scalar, emit_i32(e, 0), "");
    LLVMValueRef zeros = LLVMConstNull(emit_vec(e->i32, lanes));
    return LLVMBuildShuffleVector(e->b, one, none, zeros, "");
}

LLVMValueRef emit_splat(Emit *e, LLVMValueRef scalar) {
    return emit_splat_n(e, scalar, e->vl);
}

LLVMValueRef emit_iota(Emit *e) {
    LLVMValueRef lane[32];
    for (int i = 0; i < e->vl; i++) lane[i] = emit_i32(e, i);
    return LLVMConstVector(lane, (unsigned)e->vl);
}

static LLVMValueRef shuffled(Emit *e, LLVMValueRef a, LLVMValueRef b, int from, int n) {
    LLVMValueRef lane[32];
    for (int i = 0; i < n; i++) lane[i] = emit_i32(e, from + i);
    return LLVMBuildShuffleVector(e->b, a, b, LLVMConstVector(lane, (unsigned)n), "");
}

LLVMValueRef emit_part(Emit *e, LLVMValueRef v, int at, int n) {
    return emit_lanes(v) == n ? v : shuffled(e, v, v, at, n);
}

LLVMValueRef emit_join(Emit *e, LLVMValueRef a, LLVMValueRef b) {
    return shuffled(e, a, b, 0, 2 * emit_lanes(a));
}

/* Arithmetic. */

#define OF_TWO(name, instruction)                                                        \
    LLVMValueRef emit_##name(Emit *e, LLVMValueRef a, LLVMValueRef b) {                  \
        return LLVMBuild##instruction(e->b, a, b, "");                                   \
    }
OF_TWO(add, NSWAdd)
OF_TWO(sub, NSWSub)
OF_TWO(mul, NSWMul)
OF_TWO(div, UDiv)
OF_TWO(rem, URem)
OF_TWO(fadd, FAdd)
OF_TWO(fsub, FSub)
OF_TWO(fmul, FMul)
OF_TWO(fdiv, FDiv)

LLVMValueRef emit_plus(Emit *e, LLVMValueRef base, LLVMValueRef i, int64_t scale) {
    return emit_add(e, base, emit_muli(e, i, scale));
}

LLVMValueRef emit_imin(Emit *e, LLVMValueRef a, LLVMValueRef b) {
    return emit_select(e, emit_icmp(e, LLVMIntSLT, a, b), a, b);
}

LLVMValueRef emit_imax(Emit *e, LLVMValueRef a, LLVMValueRef b) {
    return emit_select(e, emit_icmp(e, LLVMIntSGT, a, b), a, b);
}

#define OF_CONSTANT(name, of_two)                                                        \
    LLVMValueRef emit_##name(Emit *e, LLVMValueRef a, int64_t b) {                       \
        return emit_##of_two(e, a, emit_i64(e, b));                                      \
    }
OF_CONSTANT(addi, add)
OF_CONSTANT(subi, sub)
OF_CONSTANT(muli, mul)
OF_CONSTANT(divi, div)
OF_CONSTANT(remi, rem)
OF_CONSTANT(imini, imin)

LLVMValueRef emit_icmp(Emit *e, LLVMIntPredicate is, LLVMValueRef a, LLVMValueRef b) {
    return LLVMBuildICmp(e->b, is, a, b, "");
}

LLVMValueRef emit_fma(Emit *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c) {
    LLVMTypeRef type = LLVMTypeOf(a);
    LLVMValueRef args[] = {a, b, c};
    return emit_intrinsic(e, "llvm.fma", &type, 1, args, 3);
}

LLVMValueRef emit_fneg(Emit *e, LLVMValueRef a) {
    return LLVMBuildFNeg(e->b, a, "");
}

LLVMValueRef emit_fabs(Emit *e, LLVMValueRef a) {
    LLVMTypeRef type = LLVMTypeOf(a);
    return emit_intrinsic(e, "llvm.fabs", &type, 1, &a, 1);
}

LLVMValueRef emit_fmax(Emit *e, LLVMValueRef a, LLVMValueRef b) {
    return emit_select(e, emit_fcmp(e, LLVMRealOGT, a, b), a, b);
}

LLVMValueRef emit_fmaximum(Emit *e, LLVMValueRef a, LLVMValueRef b) {
    LLVMValueRef nan = emit_fcmp(e, LLVMRealUNO, a, a);
    return emit_select(e, nan, a, emit_fmax(e, a, b));
}

LLVMValueRef emit_fmin(Emit *e, LLVMValueRef a, LLVMValueRef b) {
    return emit_select(e, emit_fcmp(e, LLVMRealOLT, a, b), a, b);
}

LLVMValueRef emit_fcmp(Emit *e, LLVMRealPredicate is, LLVMValueRef a, LLVMValueRef b) {
    return LLVMBuildFCmp(e->b, is, a, b, "");
}

LLVMValueRef emit_select(Emit *e, LLVMValueRef cond, LLVMValueRef a, LLVMValueRef b) {
    return LLVMBuildSelect(e->b, cond, a, b, "");
}

LLVMValueRef emit_bits_of(Emit *e, LLVMValueRef value) {
    return LLVMBuildBitCast(e->b, value, emit_vec_or_one(e->i32, emit_lanes(value)), "");
}

LLVMValueRef emit_value_of(Emit *e, LLVMValueRef bits) {
    return LLVMBuildBitCast(e->b, bits, emit_vec_or_one(e->f32, emit_lanes(bits)), "");
}

#define OF_BITS(name, instruction, type)                                                 \
    LLVMValueRef emit_##name(Emit *e, LLVMValueRef bits, type n) {                       \
        return LLVMBuild##instruction(e->b, bits, emit_i32_like(e, bits, n), "");        \
    }
OF_BITS(and, And, int64_t)
OF_BITS(or, Or, int64_t)
OF_BITS(lshr, LShr, int)
OF_BITS(shl, Shl, int)

/* Memory. */

LLVMValueRef emit_gep(Emit *e, LLVMTypeRef elem, LLVMValueRef ptr, LLVMValueRef index) {
    return LLVMBuildInBoundsGEP2(e->b, elem, ptr, &index, 1, "");
}

LLVMValueRef emit_at(Emit *e, LLVMTypeRef elem, LLVMValueRef ptr, int64_t index) {
    return index ? emit_gep(e, elem, ptr, emit_i64(e, index)) : ptr;
}

LLVMValueRef emit_slot(Emit *e, LLVMValueRef ctx, int64_t i) {
    return emit_load(e, e->ptr, emit_at(e, e->ptr, ctx, i), NULL, 8);
}

LLVMTypeRef emit_vec_or_one(LLVMTypeRef elem, int lanes) {
    return lanes ? emit_vec(elem, lanes) : elem;
}

LLVMValueRef emit_load(Emit *e, LLVMTypeRef type, LLVMValueRef ptr, LLVMValueRef mask,
                       int align) {
    if (!mask) {
        LLVMValueRef v = LLVMBuildLoad2(e->b, type, ptr, "");
        LLVMSetAlignment(v, (unsigned)align);
        return v;
    }
    LLVMTypeRef overloads[] = {type, e->ptr};
    LLVMValueRef args[] = {ptr, emit_i32(e, align), mask, LLVMConstNull(type)};
    return emit_intrinsic(e, "llvm.masked.load", overloads, 2, args, 4);
}

void emit_store(Emit *e, LLVMValueRef value, LLVMValueRef ptr, LLVMValueRef mask,
                int align) {
    if (!mask) {
        LLVMSetAlignment(LLVMBuildStore(e->b, value, ptr), (unsigned)align);
        return;
    }
    LLVMTypeRef overloads[] = {LLVMTypeOf(value), e->ptr};
    LLVMValueRef args[] = {value, ptr, emit_i32(e, align), mask};
    emit_intrinsic(e, "llvm.masked.store", overloads, 2, args, 4);
}

LLVMValueRef emit_begins_line(Emit *e, LLVMValueRef ptr) {
    LLVMValueRef at = LLVMBuildPtrToInt(e->b, ptr, e->i64, "");
    at = LLVMBuildAnd(e->b, at, emit_i64(e, EMIT_LINE_BYTES - 1), "");
    return emit_icmp(e, LLVMIntEQ, at, emit_i64(e, 0));
}

void emit_stream(Emit *e, LLVMValueRef value, LLVMValueRef ptr) {
    LLVMTypeRef line = emit_vec(e->f32, EMIT_LINE_BYTES / 4);
    value = LLVMBuildBitCast(e->b, value, line, "");
    /* LLVM has no such store of bf16, and would look through the cast */
    value = emit_intrinsic(e, "llvm.arithmetic.fence", &line, 1, &value, 1);
    LLVMValueRef store = LLVMBuildStore(e->b, value, ptr), one = emit_i32(e, 1);
    LLVMSetAlignment(store, EMIT_LINE_BYTES);
    const char *kind = "nontemporal";
    LLVMSetMetadata(store, LLVMGetMDKindIDInContext(e->ctx, kind, (unsigned)strlen(kind)),
                    LLVMMDNodeInContext(e->ctx, &one, 1));
}

void emit_stream_end(Emit *e) {
    emit_intrinsic(e, "llvm.x86.sse.sfence", NULL, 0, NULL, 0);
}

void emit_prefetch(Emit *e, LLVMValueRef ptr, bool writes, int level) {
    LLVMValueRef args[] = {ptr, emit_i32(e, writes), emit_i32(e, level), emit_i32(e, 1)};
    emit_intrinsic(e, "llvm.prefetch", &e->ptr, 1, args, ARRAY_LEN(args));
}

static LLVMValueRef tail_mask(Emit *e, LLVMValueRef n, int lanes) {
    LLVMValueRef lane[64];
    for (int i = 0; i < lanes; i++) lane[i] = emit_i32(e, i);
    n = emit_imini(e, emit_imax(e, n, emit_i64(e, 0)), lanes);
    LLVMValueRef count = emit_splat_n(e, LLVMBuildTrunc(e->b, n, e->i32, ""), lanes);
    return emit_icmp(e, LLVMIntSLT, LLVMConstVector(lane, (unsigned)lanes), count);
}

LLVMValueRef emit_tail_mask(Emit *e, LLVMValueRef n) {
    return tail_mask(e, n, e->vl);
}

LLVMValueRef emit_halves_mask(Emit *e, LLVMValueRef n) {
    return tail_mask(e, n, 2 * e->vl);
}

LLVMValueRef emit_alloca(Emit *e, int64_t bytes) {
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->b);
    LLVMBasicBlockRef entry = LLVMGetEntryBasicBlock(e->fn);
    LLVMValueRef first = LLVMGetFirstInstruction(entry);
    if (first) {
        LLVMPositionBuilderBefore(e->b, first);
    } else {
        LLVMPositionBuilderAtEnd(e->b, entry);
    }
    LLVMTypeRef type = LLVMArrayType2(e->i8, (uint64_t)bytes);
    LLVMValueRef room = LLVMBuildAlloca(e->b, type, "");
    LLVMSetAlignment(room, 64);
    LLVMPositionBuilderAtEnd(e->b, here);
    return room;
}

/* Each of the log2(vl) rounds interleaves the first half of the vectors with the second. */
void emit_transpose(Emit *e, LLVMValueRef *v) {
    int n = e->vl;
    LLVMValueRef low[16], high[16], next[16];
    for (int i = 0; i < n; i++) {
        low[i] = emit_i32(e, i / 2 + (i & 1) * n);
        high[i] = emit_i32(e, i / 2 + (i & 1) * n + n / 2);
    }
    LLVMValueRef low_mask = LLVMConstVector(low, (unsigned)n);
    LLVMValueRef high_mask = LLVMConstVector(high, (unsigned)n);
    for (int round = 1; round < n; round *= 2) {
        for (int i = 0; i < n / 2; i++) {
            LLVMValueRef a = v[i], b = v[i + n / 2];
            next[2 * i] = LLVMBuildShuffleVector(e->b, a, b, low_mask, "");
            next[2 * i + 1] = LLVMBuildShuffleVector(e->b, a, b, high_mask, "");
        }
        memcpy(v, next, sizeof(LLVMValueRef) * (size_t)n);
    }
}

/* Reductions. */

/* Sums of `width` lanes each, side by side in a and in b, to those of half as many: lane i of a
 * sum and lane i + width / 2 are added. Down to 4 lanes vectors are halved as a whole, then each
 * group of 4 lanes on its own, within which a CPU moves numbers faster. */
static LLVMValueRef half_sums(Emit *e, LLVMValueRef a, LLVMValueRef b, int width) {
    int unit = width > 4 ? e->vl : 4, half = width / 2;
    LLVMValueRef low[16], high[16];
    for (int i = 0; i < e->vl; i++) {
        int in = i % unit % (unit / 2), from = in / half * width + in % half;
        from += i / unit * unit + (i % unit >= unit / 2 ? e->vl : 0);
        low[i] = emit_i32(e, from);
        high[i] = emit_i32(e, from + half);
    }
    LLVMValueRef low_mask = LLVMConstVector(low, (unsigned)e->vl);
    LLVMValueRef high_mask = LLVMConstVector(high, (unsigned)e->vl);
    return emit_fadd(e, LLVMBuildShuffleVector(e->b, a, b, low_mask, ""),
                     LLVMBuildShuffleVector(e->b, a, b, high_mask, ""));
}

LLVMValueRef emit_add_lanes(Emit *e, const LLVMValueRef *v) {
    LLVMValueRef x[16];
    int groups =
        e->vl / 4; /* of 4 lanes; group g of sum vector i will hold vector 4 g + i */
    for (int i = 0; i < e->vl; i++) x[i] = v[i % groups * 4 + i / groups];
    for (int width = e->vl; width > 1; width /= 2)
        for (int i = 0; i < width / 2; i++)
            x[i] = half_sums(e, x[2 * i], x[2 * i + 1], width);
    return x[0];
}

static LLVMValueRef reduce(Emit *e, LLVMValueRef v,
                           LLVMValueRef (*op)(Emit *, LLVMValueRef, LLVMValueRef)) {
    int lanes = emit_lanes(v);
    check(lanes > 0 && lanes <= 64 && (lanes & (lanes - 1)) == 0);
    for (int half = lanes / 2; half; half /= 2) {
        LLVMValueRef low[64], high[64];
        for (int i = 0; i < half; i++) {
            low[i] = emit_i32(e, i);
            high[i] = emit_i32(e, i + half);
        }
        LLVMValueRef none = LLVMGetPoison(LLVMTypeOf(v));
        LLVMValueRef a = LLVMBuildShuffleVector(e->b, v, none,
                                                LLVMConstVector(low, (unsigned)half), "");
        LLVMValueRef b = LLVMBuildShuffleVector(
            e->b, v, none, LLVMConstVector(high, (unsigned)half), "");
        v = op(e, a, b);
    }
    return LLVMBuildExtractElement(e->b, v, emit_i32(e, 0), "");
}

LLVMValueRef emit_reduce_add(Emit *e, LLVMValueRef v) {
    return reduce(e, v, emit_fadd);
}

LLVMValueRef emit_reduce_max(Emit *e, LLVMValueRef v) {
    return reduce(e, v, emit_fmaximum);
}
