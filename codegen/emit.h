/* emit.h - writing LLVM IR with explicit vectors: types, constants, counted loops with
 * carried values, masked memory access, fixed-order reductions, calls, conditions.
 * Nothing here lets LLVM reassociate: what is emitted is what is computed, so results
 * are the same bits on every host of the same vector width, tile registers and dots apart. */
#ifndef STATOR_EMIT_H
#define STATOR_EMIT_H
#include "base/base.h"
#include "base/dtype.h"
#include <llvm-c/Core.h>
#include <llvm/Config/llvm-config.h>

#if LLVM_VERSION_MAJOR < 17 /* which counts items in 32 bits */
#define LLVMArrayType2  LLVMArrayType
#define LLVMConstArray2 LLVMConstArray
#endif

/* Rows of a tile register, and 4-byte words of a row (AMX). */
enum { TILE_SIDE = 16 };

/* Whether products of bf16 go through tile registers (gemm_tiles.h): emulated ones are for
 * tests on any CPU with 16 lanes. */
typedef enum TileKind { TILES_NONE, TILES_CPU, TILES_EMULATED } TileKind;

/* One module being written. `vl` is the number of f32 lanes: those of a register, 16, 8 or 4,
 * unless emit_set_lanes said otherwise. vf32 and vi32 have vl lanes; b always points at the end of
 * the block being written in `fn`. */
typedef struct Emit {
    Arena *mem;
    LLVMContextRef ctx;
    LLVMModuleRef mod;
    LLVMBuilderRef b;
    int vl, register_lanes;
    TileKind tiles; /* TILES_CPU where the features have it */
    const char *cpu, *features;
    LLVMTypeRef void_, i1, i8, i16, i32, i64, f32, f64, ptr, vf32, vi32;
    LLVMValueRef fn;
} Emit;

/* cpu and features: as LLVM's target machine takes them ("" for the baseline). */
Emit *emit_new(Arena *mem, const char *module_name, int vl, const char *cpu,
               const char *features);
/* Frees builder, module and context. Who takes the module over sets e->mod = NULL and
 * owns the context as well. */
void emit_free(Emit *e);

/* Starts a function with an entry block; the builder is at its end. The attributes fix
 * the target, the vector width and nounwind. A function declared before by a call is
 * completed. End it with emit_ret(e, NULL) or emit_ret(e, value). */
LLVMValueRef emit_func(Emit *e, const char *name, LLVMTypeRef ret,
                       const LLVMTypeRef *params, int n, bool internal);
/* The function that was begun last is compiled as it is: quickly. */
void emit_unoptimized(Emit *e);
LLVMValueRef emit_param(Emit *e, int i);
/* Starts void name.part(ptr ctx, i64 begin, i64 end, i64 thread), what threads run over items;
 * without a part it is called `name`. */
LLVMValueRef emit_items_func(Emit *e, const char *name, const char *part);
/* Starts void name(n pointers), and gives the context that these are the first slots of. */
LLVMValueRef emit_context_func(Emit *e, const char *name, int n, int slots,
                               bool internal);
void emit_ret(Emit *e, LLVMValueRef value);

/* Constants; a type of so many lanes. */
LLVMValueRef emit_i64(Emit *e, int64_t v);
LLVMValueRef emit_i32(Emit *e, int64_t v); /* low 32 bits */
LLVMValueRef emit_f32(Emit *e, double v);
LLVMTypeRef emit_vec(LLVMTypeRef elem, int lanes);
int emit_lanes(LLVMValueRef v); /* 0 for a scalar */
/* Vectors of vl lanes have `lanes` from here on: those of a register, or of two. */
void emit_set_lanes(Emit *e, int lanes);
/* n lanes of a vector from lane `at` on; and the lanes of two. */
LLVMValueRef emit_part(Emit *e, LLVMValueRef v, int at, int n);
LLVMValueRef emit_join(Emit *e, LLVMValueRef a, LLVMValueRef b);
/* A constant of the type of `like` (f32 or i32, scalar or vector), all lanes equal. */
LLVMValueRef emit_f32_like(Emit *e, LLVMValueRef like, double v);
LLVMValueRef emit_i32_like(Emit *e, LLVMValueRef like, int64_t v);
LLVMValueRef emit_splat(Emit *e, LLVMValueRef scalar); /* vl lanes */
LLVMValueRef emit_splat_n(Emit *e, LLVMValueRef scalar, int lanes);
LLVMValueRef emit_iota(Emit *e); /* <vl x i32> 0, 1, 2, ... */

/* i64 arithmetic without wrap (nsw); constants fold. */
LLVMValueRef emit_add(Emit *e, LLVMValueRef a, LLVMValueRef b);
/* base + i * scale, of i64. */
LLVMValueRef emit_plus(Emit *e, LLVMValueRef base, LLVMValueRef i, int64_t scale);
LLVMValueRef emit_sub(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_mul(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_div(Emit *e, LLVMValueRef a, LLVMValueRef b);  /* both >= 0 */
LLVMValueRef emit_rem(Emit *e, LLVMValueRef a, LLVMValueRef b);  /* both >= 0 */
LLVMValueRef emit_imin(Emit *e, LLVMValueRef a, LLVMValueRef b); /* signed */
LLVMValueRef emit_imax(Emit *e, LLVMValueRef a, LLVMValueRef b);
/* The same with a constant on the right. */
LLVMValueRef emit_addi(Emit *e, LLVMValueRef a, int64_t b);
LLVMValueRef emit_subi(Emit *e, LLVMValueRef a, int64_t b);
LLVMValueRef emit_muli(Emit *e, LLVMValueRef a, int64_t b);
LLVMValueRef emit_divi(Emit *e, LLVMValueRef a, int64_t b);
LLVMValueRef emit_remi(Emit *e, LLVMValueRef a, int64_t b);
LLVMValueRef emit_imini(Emit *e, LLVMValueRef a, int64_t b);
LLVMValueRef emit_icmp(Emit *e, LLVMIntPredicate is, LLVMValueRef a, LLVMValueRef b);

/* f32 (f64) arithmetic, scalar or vector of any lane count. emit_fma rounds once.
 * emit_fmax(a, b) is b when one of them is NaN, as the x86 instruction; emit_fmaximum is NaN. */
LLVMValueRef emit_fadd(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_fsub(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_fmul(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_fdiv(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_fma(Emit *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c);
LLVMValueRef emit_fneg(Emit *e, LLVMValueRef a);
LLVMValueRef emit_fabs(Emit *e, LLVMValueRef a);
LLVMValueRef emit_fmax(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_fmaximum(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_fmin(Emit *e, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_fcmp(Emit *e, LLVMRealPredicate is, LLVMValueRef a, LLVMValueRef b);
LLVMValueRef emit_select(Emit *e, LLVMValueRef cond, LLVMValueRef a, LLVMValueRef b);

/* The bits of f32, scalar or vector, as i32, and back; and what LLVM's instructions of these names
 * make of them with a constant. */
LLVMValueRef emit_bits_of(Emit *e, LLVMValueRef value);
LLVMValueRef emit_value_of(Emit *e, LLVMValueRef bits);
LLVMValueRef emit_and(Emit *e, LLVMValueRef bits, int64_t mask);
LLVMValueRef emit_or(Emit *e, LLVMValueRef bits, int64_t mask);
LLVMValueRef emit_lshr(Emit *e, LLVMValueRef bits, int n);
LLVMValueRef emit_shl(Emit *e, LLVMValueRef bits, int n);

/* &ptr[index] for elements of type `elem`; index is i64. emit_at: constant index. */
LLVMValueRef emit_gep(Emit *e, LLVMTypeRef elem, LLVMValueRef ptr, LLVMValueRef index);
LLVMValueRef emit_at(Emit *e, LLVMTypeRef elem, LLVMValueRef ptr, int64_t index);
/* Pointer i of the context that tasks are given. */
LLVMValueRef emit_slot(Emit *e, LLVMValueRef ctx, int64_t i);
/* So many elements as a vector; 0: one as it is. */
LLVMTypeRef emit_vec_or_one(LLVMTypeRef elem, int lanes);
/* mask: NULL, or <lanes x i1>; masked-out lanes are not touched and load as 0. align in
 * bytes (4 for f32 that is aligned no better; vectors need no more). */
LLVMValueRef emit_load(Emit *e, LLVMTypeRef type, LLVMValueRef ptr, LLVMValueRef mask,
                       int align);
void emit_store(Emit *e, LLVMValueRef value, LLVMValueRef ptr, LLVMValueRef mask,
                int align);
/* EMIT_LINE_BYTES past the caches, to where a line begins (_begins_line: does it, i1): for what is
 * written as a whole and not read soon. _end: before others may read it. */
enum { EMIT_LINE_BYTES = 64 };
LLVMValueRef emit_begins_line(Emit *e, LLVMValueRef ptr);
void emit_stream(Emit *e, LLVMValueRef value, LLVMValueRef ptr);
void emit_stream_end(Emit *e);
/* Fetches the line at ptr, to be written or not: to all caches (level 3), to all but the first
 * (2). */
void emit_prefetch(Emit *e, LLVMValueRef ptr, bool writes, int level);
/* Lane l is on where l < n; n is i64 and may be negative or larger than vl. emit_halves_mask:
 * of 2 vl lanes, for numbers of two bytes. */
LLVMValueRef emit_tail_mask(Emit *e, LLVMValueRef n);
LLVMValueRef emit_halves_mask(Emit *e, LLVMValueRef n);
/* Room of `bytes` (64-byte aligned) on the stack of `fn`, made once per call. */
LLVMValueRef emit_alloca(Emit *e, int64_t bytes);

/* Does the target have this feature, as LLVM names it ("avx512bf16")? */
bool emit_has(const Emit *e, const char *feature);
/* Has it dots: instructions for sums of products of two pairs that multiply more numbers in a second
 * than those of f32 do (target_has_dots)? */
bool emit_has_dots(const Emit *e);
/* Numbers of two bytes, bf16 or f16, in memory as f32 values of vl lanes or one (_one), and
 * back: rounded to the nearest, ties to even; NaN stays NaN, subnormal numbers of bf16 become
 * 0. The bits are those of base/dtype.h on any CPU. mask: as above. */
LLVMValueRef emit_load_narrow(Emit *e, DType dt, LLVMValueRef ptr, LLVMValueRef mask);
void emit_store_narrow(Emit *e, DType dt, LLVMValueRef value, LLVMValueRef ptr,
                       LLVMValueRef mask);
LLVMValueRef emit_load_narrow_one(Emit *e, DType dt, LLVMValueRef ptr);
/* The same of any type of generated code: f32 and i32 stay as they are. */
LLVMValueRef emit_load_as(Emit *e, DType dt, LLVMValueRef ptr, LLVMValueRef mask);
void emit_store_as(Emit *e, DType dt, LLVMValueRef value, LLVMValueRef ptr,
                   LLVMValueRef mask);
/* Of a value, or lanes, that emit_round_narrow gave or that were loaded: nothing is rounded. */
void emit_store_rounded(Emit *e, DType dt, LLVMValueRef value, LLVMValueRef ptr,
                        LLVMValueRef mask);
/* The end of a product: adds what is there (`adds`) to a vector of f32 and stores it as `dt`. */
void emit_store_sum(Emit *e, DType dt, LLVMValueRef x, LLVMValueRef ptr,
                    LLVMValueRef mask, bool adds);
/* The same rounding of an f32 scalar or vector: to f32 again, or to the bits as i16 (_both: of two
 * vectors, one behind the other), and f32 of those. */
LLVMValueRef emit_round_narrow(Emit *e, DType dt, LLVMValueRef value);
LLVMValueRef emit_to_narrow_both(Emit *e, DType dt, LLVMValueRef first,
                                 LLVMValueRef second);
LLVMValueRef emit_to_bf16(Emit *e, LLVMValueRef value);
LLVMValueRef emit_to_bf16_both(Emit *e, LLVMValueRef first, LLVMValueRef second);
LLVMValueRef emit_round_bf16(Emit *e, LLVMValueRef value);
LLVMValueRef emit_bits_of_bf16(Emit *e, LLVMValueRef rounded);
LLVMValueRef emit_from_bf16(Emit *e, LLVMValueRef bits);

/* A vector of vl pairs of bf16 (as i32: first number in the low half) as an operand of
 * emit_dot_pairs, which gives sum + a.first b.first + a.second b.second in f32: two fma,
 * the second pair's first, on any CPU; where it has dots subnormal numbers count as 0. */
typedef struct Pairs {
    LLVMValueRef bits;          /* for the instruction; NULL: */
    LLVMValueRef first, second; /* as f32 */
} Pairs;
Pairs emit_pairs(Emit *e, LLVMValueRef bits);
/* The same as f32 on any CPU, for two fma. */
Pairs emit_wide_pairs(Emit *e, LLVMValueRef bits);
LLVMValueRef emit_dot_pairs(Emit *e, const Pairs *a, const Pairs *b, LLVMValueRef sum);
/* first[vl] and second[vl] to pairs: of i16, or of f32, which are rounded. */
LLVMValueRef emit_pair_up(Emit *e, LLVMValueRef first, LLVMValueRef second);
/* A vector of f32 as the sum of BF16_PARTS numbers of bf16 each, in f32 whose low halves are 0: the
 * first is the number rounded, the others what that lacks. Exact, but where a part would be
 * subnormal; of infinities and NaN the last part is one. */
enum { BF16_PARTS = 3 };
void emit_split_bf16(Emit *e, LLVMValueRef value, LLVMValueRef part[BF16_PARTS]);
/* Parts as they come from there to pairs of bf16: `first` and `second` lane by lane, or (along)
 * the lanes of both one after the other, two neighbours a pair. */
LLVMValueRef emit_pair_up_parts(Emit *e, LLVMValueRef first, LLVMValueRef second,
                                bool along);
LLVMValueRef emit_to_pairs(Emit *e, LLVMValueRef first, LLVMValueRef second);

/* Transposes vl vectors of vl lanes in place. */
void emit_transpose(Emit *e, LLVMValueRef *v);

/* Lane i is the sum of all lanes of v[i], vl of them: the bits of emit_reduce_add. */
LLVMValueRef emit_add_lanes(Emit *e, const LLVMValueRef *v);

/* All lanes to one scalar by halves: lane i with lane i + lanes/2, and so on. */
LLVMValueRef emit_reduce_add(Emit *e, LLVMValueRef v);
LLVMValueRef emit_reduce_max(Emit *e, LLVMValueRef v);

/* Calls a function of the module that is written or declared already; dies when number or
 * types of the arguments are not those of it. */
LLVMValueRef emit_call(Emit *e, const char *name, const LLVMValueRef *args, int n);
/* The function as a value; declared when it is not there yet. */
LLVMValueRef emit_extern(Emit *e, const char *name, LLVMTypeRef ret,
                         const LLVMTypeRef *params, int n);
/* Calls llvm.NAME overloaded on the types of overloads[n]. */
LLVMValueRef emit_intrinsic(Emit *e, const char *name, const LLVMTypeRef *overloads,
                            int noverloads, const LLVMValueRef *args, int n);

/* for (i = lo; i < hi; i += step) with values carried from turn to turn. In the body
 * read l.i and l.carry[k]; loop_end takes the next values (NULL when nothing is carried)
 * and leaves the final ones in l.carry. Runs zero times when lo >= hi. */
enum { LOOP_CARRY_MAX = 64 };
typedef struct Loop {
    LLVMValueRef i, carry[LOOP_CARRY_MAX];
    LLVMValueRef hi, phi[LOOP_CARRY_MAX], init[LOOP_CARRY_MAX];
    LLVMBasicBlockRef before, body, after;
    int64_t step;
    int ncarry;
    bool guarded;
} Loop;
void loop_begin(Emit *e, Loop *l, LLVMValueRef lo, LLVMValueRef hi, int64_t step,
                int ncarry, const LLVMValueRef *init);
void loop_end(Emit *e, Loop *l, const LLVMValueRef *next);

/* if (cond) { ... } [else { ... }]; results through memory. */
typedef struct If {
    LLVMBasicBlockRef then_end, else_, after;
} If;
void if_begin(Emit *e, If *s, LLVMValueRef cond);
void if_else(Emit *e, If *s);
void if_end(Emit *e, If *s);

#endif
