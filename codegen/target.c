/* target.c - the host's CPU, or a smaller one that the user names; see target.h. */
#define _GNU_SOURCE /* asprintf */
#include "codegen/target.h"
#include "runtime/core/peak.h"
#include <llvm-c/Core.h>
#include <llvm-c/Target.h>
#include <stdio.h>
#include <stdlib.h>

/* What the code generator relies on at each level, as LLVM names it. Wider levels include
 * the narrower ones' features (psABI for x86-64, micro-architecture levels). */
#define V2      "+cx16,+popcnt,+sahf,+sse3,+ssse3,+sse4.1,+sse4.2"
#define V3      V2 ",+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe,+xsave"
#define V4      V3 ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
#define V4_BF16 V4 ",+avx512bf16"

/* LLVM knows CPUs by more than what is relied on here, so it gets the level's name. */
static const struct {
    const char *name, *level, *features;
} cpus[] = {
    {"x86-64-v2", "x86-64-v2", V2},
    {"x86-64-v3", "x86-64-v3", V3},
    {"haswell", "haswell", V3},
    {"x86-64-v4", "x86-64-v4", V4},
    {"skylake-avx512", "skylake-avx512", V4},
    {"cooperlake", "x86-64-v4", V4_BF16},
    {"sapphirerapids", "x86-64-v4", V4_BF16 ",+amx-tile,+amx-bf16"},
};

static const char *assumed; /* features besides the host's own */

void target_assume(const char *features) {
    assumed = features;
}

/* Is "+avx2" in the list "...,+avx2,..." as a whole word? */
static bool has_feature(const char *list, const char *word, size_t n) {
    for (const char *p = list; (p = strstr(p, "+")); p++)
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == 0)) return true;
    return false;
}

static bool has(const char *list, const char *word) {
    return has_feature(list, word, strlen(word));
}

static char *copy(const char *s) {
    char *c = strdup(s);
    if (!c) fail(EXIT_MEMORY, "out of memory");
    return c;
}

static int cpu_find(const char *name) {
    char known[256];
    int n = snprintf(known, sizeof known, "native");
    for (int i = 0; i < ARRAY_LEN(cpus); i++) {
        if (strcmp(cpus[i].name, name) == 0) return i;
        n += snprintf(known + n, sizeof known - (size_t)n, ", %s", cpus[i].name);
    }
    fail(EXIT_CONFIG, "unknown CPU '%.60s'; write one of %s", name, known);
}

/* Fails when the host lacks a feature of `wanted`, naming all that are missing. */
static void require(const char *cpu, const char *wanted, const char *host) {
    char missing[512] = "";
    size_t used = 0;
    for (const char *p = wanted; *p;) {
        size_t n = strcspn(p, ",");
        if (!has_feature(host, p, n))
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%.*s",
                                     used ? ", " : "", (int)n - 1, p + 1);
        p += n + (p[n] == ',');
    }
    if (used)
        fail(EXIT_CONFIG, "CPU '%s' cannot run here: this machine lacks %s; write native",
             cpu, missing);
}

static void machine_open(Target *t) {
    LLVMCodeGenOptLevel level =
        t->quick ? LLVMCodeGenLevelNone : LLVMCodeGenLevelAggressive;
    LLVMTargetRef kind;
    char *message = NULL;
    if (LLVMGetTargetFromTriple(t->triple, &kind, &message)) die("LLVM: %s", message);
    t->machine = LLVMCreateTargetMachine(kind, t->triple, t->cpu, t->features, level,
                                         LLVMRelocPIC, LLVMCodeModelJITDefault);
    if (!t->machine) die("LLVM makes no machine for %s", t->triple);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(t->machine);
    char *text = LLVMCopyStringRepOfTargetData(layout);
    t->layout = copy(text);
    LLVMDisposeMessage(text);
    LLVMDisposeTargetData(layout);
}

static int lanes_of(const char *features) {
    bool wide = has(features, "+avx512f") && has(features, "+avx512vl") &&
                has(features, "+avx512dq") && has(features, "+avx512bw");
    bool half = has(features, "+avx2") && has(features, "+fma");
    return wide ? 16 : half ? 8 : 4;
}

static void drop_tiles(char *features) {
    if (!has(features, "+amx-tile") || assumed || tiles_granted()) return;
    for (char *p = features; (p = strstr(p, "+amx-"));) *p = '-';
}

static char *host_features(void) {
    char *own = LLVMGetHostCPUFeatures(), *all;
    if (asprintf(&all, "%s%s%s", own, assumed ? "," : "", assumed ? assumed : "") < 0)
        fail(EXIT_MEMORY, "out of memory");
    LLVMDisposeMessage(own);
    return all;
}

Target *target_open(const char *cpu_override) {
    if (LLVMInitializeNativeTarget() || LLVMInitializeNativeAsmPrinter())
        die("this LLVM has no code generator for its own host");
    const char *name = cpu_override && cpu_override[0] ? cpu_override : "native";
    int named = strcmp(name, "native") ? cpu_find(name) : -1;
    char *cpu = LLVMGetHostCPUName(), *features = host_features();
    char *triple = LLVMGetDefaultTargetTriple();
    if (named >= 0) require(name, cpus[named].features, features);
    Target *t = calloc(1, sizeof *t);
    if (!t) fail(EXIT_MEMORY, "out of memory");
    t->triple = copy(triple);
    t->cpu = copy(named >= 0 ? cpus[named].level : cpu);
    t->features = copy(named >= 0 ? cpus[named].features : features);
    drop_tiles(t->features);
    LLVMDisposeMessage(cpu);
    free(features);
    LLVMDisposeMessage(triple);
    t->lanes = lanes_of(t->features);
    return t;
}

LLVMTargetMachineRef target_machine(Target *t) {
    if (!t->machine) machine_open(t);
    return t->machine;
}

static void machine_close(Target *t) {
    if (t->machine) LLVMDisposeTargetMachine(t->machine);
    free(t->layout);
    t->machine = NULL;
    t->layout = NULL;
}

void target_hurry(Target *t) {
    t->quick = true;
    machine_close(t);
}

Target *target_copy(const Target *t) {
    Target *other = calloc(1, sizeof *other);
    if (!other) fail(EXIT_MEMORY, "out of memory");
    *other = *t;
    other->triple = copy(t->triple);
    other->cpu = copy(t->cpu);
    other->features = copy(t->features);
    machine_open(other);
    return other;
}

void target_close(Target *t) {
    if (!t) return;
    machine_close(t);
    free(t->triple);
    free(t->cpu);
    free(t->features);
    free(t);
}

int target_lanes(const Target *t) {
    return t->lanes;
}

bool target_has_tiles(const Target *t) {
    return t->lanes == 16 && has(t->features, "+amx-bf16");
}

bool target_names_dots(const char *cpu, const char *features) {
    static const char amd[] = "znver";
    return has(features, "+avx512bf16") && begins_with(cpu, amd);
}

bool target_has_dots(const Target *t) {
    return t->lanes == 16 && target_names_dots(t->cpu, t->features);
}

const char *target_llvm_version(Arena *mem) {
    unsigned major, minor, patch;
    LLVMGetVersion(&major, &minor, &patch);
    return arena_printf(mem, "%u.%u.%u", major, minor, patch);
}

void target_describe(const Target *t, Text *out) {
    if (t->quick) text_add(out, "quick\n");
    text_add(out, "LLVM %s\ntriple %s\ncpu %s\nfeatures %s\n",
             target_llvm_version(out->mem), t->triple, t->cpu, t->features);
}
