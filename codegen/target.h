/* target.h - the CPU that code is generated for. */
#ifndef STATOR_TARGET_H
#define STATOR_TARGET_H
#include "base/base.h"
#include <llvm-c/Core.h>
#include <llvm-c/TargetMachine.h>

/* The strings live as long as the target. `features` is what LLVM takes ("+avx2,..."). */
typedef struct Target {
    char *triple, *cpu, *features;
    int lanes;  /* f32 values in one vector register that is worth using: 16, 8 or 4 */
    bool quick; /* code is made fast, and not to be fast */
    LLVMTargetMachineRef machine; /* NULL until target_machine() is asked for it */
    char *layout;                 /* of that machine */
} Target;

/* Opens the host's CPU (NULL, "" or "native"), or one that `cpu_override` names:
 * "x86-64-v2" (SSE4.2), "x86-64-v3" or "haswell" (AVX2 and FMA, no AVX-512),
 * "x86-64-v4" or "skylake-avx512", "cooperlake" (these and AVX512-BF16), "sapphirerapids"
 * (AMX too). Fails with EXIT_CONFIG on an unknown name (it lists
 * the known ones), and on one whose features this CPU lacks (it lists those). Tile
 * registers are a feature where the system lets this process use them. */
Target *target_open(const char *cpu_override);
/* For tests that do by themselves what some instructions would: the host is taken to have these
 * features too ("+amx-tile,..."; they must stay). */
void target_assume(const char *features);
/* Makes code in about a fifth of the time from here on, which takes longer to run and has the
 * same results. */
void target_hurry(Target *t);
/* The same target for another thread: none is used by two at once. */
Target *target_copy(const Target *t);
void target_close(Target *t);
/* LLVM's, made at the first call: plans look at targets by the thousand and compile nothing. */
LLVMTargetMachineRef target_machine(Target *t);
int target_lanes(const Target *t);
/* Does code for it multiply bf16 by tile registers (AMX)? */
bool target_has_tiles(const Target *t);
/* Or by instructions for pairs (AVX512-BF16), where these multiply more numbers in a second than
 * f32's do? AMD's twice as many, Intel's, whose CPUs have tiles for that, half as many (89 and 178
 * GFLOP/s a core). _names_dots: the same of a CPU and its features, whatever the lanes. */
bool target_has_dots(const Target *t);
bool target_names_dots(const char *cpu, const char *features);

const char *target_llvm_version(Arena *mem); /* "19.1.7" */

/* What belongs into every cache key: LLVM's version, triple, cpu and features. */
void target_describe(const Target *t, Text *out);

#endif
