/* jit.c - compiling modules and linking objects; see jit.h. LLJIT serves as a linker
 * only: compiling goes through our own target machine, so that an object can be kept. */
#include "codegen/jit.h"
#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Object.h>
#include <llvm-c/Orc.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <math.h>
#include <stdlib.h>

#if LLVM_VERSION_MAJOR < 18 /* never asks whether one round was enough */
#define INSTCOMBINE "instcombine"
#else
#define INSTCOMBINE "instcombine<no-verify-fixpoint>"
#endif

/* Measured on 60 row kernels (elementary functions, reductions, masked tails; LLVM 19,
 * 16 lanes), compile time with code emission and run time, noise about 10 %:
 *     none 271 ms, 3.5 ms; this 290 to 315 ms, 3.1 ms;
 *     default<O1> 470 ms, 3.1 ms; default<O2> 490 ms, 3.0 ms
 * The code comes vectorized and unrolled, so the loop optimizers find nothing to do.
 * instcombine in a textual pipeline aborts when one round was not enough, unless told. */
const char *const jit_passes =
    "always-inline,function(sroa,early-cse," INSTCOMBINE ",simplifycfg,"
    "loop-mssa(licm))";

struct Jit {
    LLVMOrcLLJITRef jit;
    LLVMOrcJITDylibRef code; /* sees the given symbols only; LLJIT's own "main" would
                              * find every symbol of the process */
    char error[512];         /* first complaint of the session */
};

/* What LLVM itself may call: for a memory intrinsic or a loop that it recognises, and for
 * llvm.fma on a CPU without FMA (slow, the same bits). */
static const JitSymbol libc_symbols[] = {
    {"memcpy", memcpy}, {"memset", memset}, {"memmove", memmove}, {"memcmp", memcmp},
    {"bcmp", memcmp},   {"fmaf", fmaf},     {"fma", fma},
};

static void expect(LLVMErrorRef error, const char *what) {
    if (error) die("%s: %s", what, LLVMGetErrorMessage(error));
}

static void run_passes(Target *t, LLVMModuleRef module, const char *passes) {
    LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
    LLVMPassBuilderOptionsSetLoopVectorization(options, 0);
    LLVMPassBuilderOptionsSetSLPVectorization(options, 0);
    LLVMPassBuilderOptionsSetLoopInterleaving(options, 0);
    LLVMPassBuilderOptionsSetLoopUnrolling(options, 1);
    expect(LLVMRunPasses(module, passes, target_machine(t), options), passes);
    LLVMDisposePassBuilderOptions(options);
}

Object *jit_compile(Target *t, LLVMModuleRef module, const char *passes) {
    char *message = NULL;
    LLVMTargetMachineRef machine = target_machine(t);
    LLVMSetTarget(module, t->triple);
    LLVMSetDataLayout(module, t->layout);
    if (LLVMVerifyModule(module, LLVMReturnStatusAction, &message))
        die("generated module is not valid: %s", message);
    LLVMDisposeMessage(message);
    if (!passes) passes = t->quick ? "" : jit_passes;
    if (passes[0]) run_passes(t, module, passes);
    Object *o = calloc(1, sizeof *o);
    if (!o) fail(EXIT_MEMORY, "out of memory");
    if (LLVMTargetMachineEmitToMemoryBuffer(machine, module, LLVMObjectFile, &message,
                                            &o->buffer))
        die("LLVM emits no object: %s", message);
    o->bytes = LLVMGetBufferStart(o->buffer);
    o->n = LLVMGetBufferSize(o->buffer);
    return o;
}

void object_free(Object *o) {
    if (!o) return;
    LLVMDisposeMemoryBuffer(o->buffer);
    free(o);
}

static LLVMOrcCSymbolMapPair symbol_pair(LLVMOrcLLJITRef jit, const JitSymbol *s) {
    return (LLVMOrcCSymbolMapPair){
        .Name = LLVMOrcLLJITMangleAndIntern(jit, s->name),
        .Sym = {.Address = (LLVMOrcExecutorAddress)(uintptr_t)s->address,
                .Flags = {LLVMJITSymbolGenericFlagsExported |
                              LLVMJITSymbolGenericFlagsCallable,
                          0}}};
}

static bool is_given(const JitSymbol *symbols, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (strcmp(symbols[i].name, name) == 0) return true;
    return false;
}

static LLVMErrorRef define(Jit *j, const JitSymbol *symbols, int n) {
    size_t total = 0, room = (size_t)n + ARRAY_LEN(libc_symbols);
    LLVMOrcCSymbolMapPair *pairs = calloc(room, sizeof *pairs);
    if (!pairs) fail(EXIT_MEMORY, "out of memory");
    for (int i = 0; i < n; i++) pairs[total++] = symbol_pair(j->jit, &symbols[i]);
    for (int i = 0; i < ARRAY_LEN(libc_symbols); i++)
        if (!is_given(symbols, n, libc_symbols[i].name))
            pairs[total++] = symbol_pair(j->jit, &libc_symbols[i]);
    LLVMOrcMaterializationUnitRef unit = LLVMOrcAbsoluteSymbols(pairs, total);
    LLVMErrorRef error = LLVMOrcJITDylibDefine(j->code, unit);
    if (error) LLVMOrcDisposeMaterializationUnit(unit);
    free(pairs);
    return error;
}

/* Keeps the first text: later ones only say that something else failed because of it. */
static void note(Jit *j, LLVMErrorRef error) {
    if (!error) return;
    char *text = LLVMGetErrorMessage(error);
    if (!j->error[0]) snprintf(j->error, sizeof j->error, "%s", text);
    LLVMDisposeErrorMessage(text);
}

static void on_error(void *ctx, LLVMErrorRef error) {
    note(ctx, error);
}

typedef struct Found {
    Jit *jit;
    uint64_t address;
} Found;

static void on_found(LLVMErrorRef error, LLVMOrcCSymbolMapPairs pairs, size_t n,
                     void *ctx) {
    Found *f = ctx;
    note(f->jit, error);
    if (!error && n == 1) f->address = pairs[0].Sym.Address;
}

/* Address of `name`, linking the object at the first call; 0 when it is not there, or on
 * an error (which is then in j->error). Runs on this thread, so it is done on return. */
static uint64_t find(Jit *j, const char *name) {
    Found found = {.jit = j};
    LLVMOrcCJITDylibSearchOrderElement order = {
        j->code, LLVMOrcJITDylibLookupFlagsMatchExportedSymbolsOnly};
    LLVMOrcCLookupSetElement wanted = {LLVMOrcLLJITMangleAndIntern(j->jit, name),
                                       LLVMOrcSymbolLookupFlagsWeaklyReferencedSymbol};
    LLVMOrcExecutionSessionLookup(LLVMOrcLLJITGetExecutionSession(j->jit),
                                  LLVMOrcLookupKindStatic, &order, 1, &wanted, 1,
                                  on_found, &found);
    return found.address;
}

/* The first function of the object that can be looked up, and its address; NULL: there is none.
 * Text of the object. */
static const char *first_function(Jit *j, LLVMBinaryRef binary, uint64_t *address) {
    const char *found = NULL;
    LLVMSymbolIteratorRef at = LLVMObjectFileCopySymbolIterator(binary);
    for (; !found && !j->error[0] && !LLVMObjectFileIsSymbolIteratorAtEnd(binary, at);
         LLVMMoveToNextSymbol(at)) {
        const char *name = LLVMGetSymbolName(at);
        /* what another object or the process has counts only where it is defined */
        if (!name[0] || !LLVMGetSymbolSize(at)) continue;
        *address = find(j, name);
        if (*address) found = name;
    }
    LLVMDisposeSymbolIterator(at);
    return found;
}

/* Linking is lazy: looking up a function links its object and all that it refers to, so that an
 * object that does not link is known here and not at some later call. */
static void link_now(Jit *j, LLVMMemoryBufferRef buffer) {
    char *message = NULL;
    uint64_t address;
    LLVMBinaryRef binary = LLVMCreateBinary(buffer, NULL, &message);
    if (!binary) {
        snprintf(j->error, sizeof j->error, "%s", message);
        LLVMDisposeMessage(message);
        return;
    }
    if (!first_function(j, binary, &address) && !j->error[0])
        snprintf(j->error, sizeof j->error, "the object defines no function");
    LLVMDisposeBinary(binary);
}

static bool jit_open(Jit *j, Target *t) {
    LLVMOrcLLJITBuilderRef builder = LLVMOrcCreateLLJITBuilder();
    LLVMTargetRef kind = LLVMGetTargetMachineTarget(target_machine(t));
    LLVMTargetMachineRef machine = LLVMCreateTargetMachine(
        kind, t->triple, t->cpu, t->features, LLVMCodeGenLevelAggressive, LLVMRelocPIC,
        LLVMCodeModelJITDefault);
    LLVMOrcLLJITBuilderSetJITTargetMachineBuilder(
        builder, LLVMOrcJITTargetMachineBuilderCreateFromTargetMachine(machine));
    note(j, LLVMOrcCreateLLJIT(&j->jit, builder));
    if (!j->jit) return false;
    LLVMOrcExecutionSessionRef session = LLVMOrcLLJITGetExecutionSession(j->jit);
    LLVMOrcExecutionSessionSetErrorReporter(session, on_error, j);
    j->code = LLVMOrcExecutionSessionCreateBareJITDylib(session, "code");
    return true;
}

/* Adds the objects to an opened Jit and links them; false with the reason in j->error. */
static bool load(Jit *j, const JitObject *objects, int n, const JitSymbol *symbols,
                 int nsymbols) {
    note(j, define(j, symbols, nsymbols));
    for (int i = 0; i < n && !j->error[0]; i++) {
        LLVMMemoryBufferRef copy = LLVMCreateMemoryBufferWithMemoryRangeCopy(
            objects[i].bytes, objects[i].n, "object");
        note(j, LLVMOrcLLJITAddObjectFile(j->jit, j->code, copy));
    }
    if (j->error[0]) return false;
    LLVMMemoryBufferRef view = LLVMCreateMemoryBufferWithMemoryRange(
        objects[0].bytes, objects[0].n, "object", 0);
    link_now(j, view);
    LLVMDisposeMemoryBuffer(view);
    return !j->error[0];
}

Jit *jit_load(Target *t, const void *object, size_t n, const JitSymbol *symbols,
              int nsymbols, char *why, size_t why_size) {
    return jit_load_all(t, &(JitObject){object, n}, 1, symbols, nsymbols, why, why_size);
}

Jit *jit_load_all(Target *t, const JitObject *objects, int n, const JitSymbol *symbols,
                  int nsymbols, char *why, size_t why_size) {
    Jit *j = calloc(1, sizeof *j);
    if (!j) fail(EXIT_MEMORY, "out of memory");
    if (jit_open(j, t) && load(j, objects, n, symbols, nsymbols)) return j;
    snprintf(why, why_size, "%s", j->error);
    jit_free(j);
    return NULL;
}

/* ---- names for perf ---- */

/* The name of the section that a symbol is in; "": in none. */
static const char *section_of(LLVMBinaryRef binary, LLVMSymbolIteratorRef at) {
    LLVMSectionIteratorRef section = LLVMObjectFileCopySectionIterator(binary);
    LLVMMoveToContainingSection(section, at);
    bool none = LLVMObjectFileIsSectionIteratorAtEnd(binary, section);
    const char *name = none ? NULL : LLVMGetSectionName(section);
    LLVMDisposeSectionIterator(section);
    return name ? name : "";
}

/* Most functions are nobody's but the object's, so they cannot be looked up: they are as far
 * from one that can be as they are in its section. */
static void add_functions(LLVMBinaryRef binary, const char *known, uint64_t address,
                          Text *out) {
    LLVMSymbolIteratorRef at = LLVMObjectFileCopySymbolIterator(binary);
    const char *section = "";
    for (; !LLVMObjectFileIsSymbolIteratorAtEnd(binary, at); LLVMMoveToNextSymbol(at)) {
        if (strcmp(LLVMGetSymbolName(at), known)) continue;
        section = section_of(binary, at);
        address -= LLVMGetSymbolAddress(at);
    }
    LLVMDisposeSymbolIterator(at);
    at = LLVMObjectFileCopySymbolIterator(binary);
    for (; !LLVMObjectFileIsSymbolIteratorAtEnd(binary, at); LLVMMoveToNextSymbol(at)) {
        const char *name = LLVMGetSymbolName(at);
        uint64_t size = LLVMGetSymbolSize(at);
        if (!name[0] || !size || strcmp(section_of(binary, at), section)) continue;
        text_add(out, "%llx %llx %s\n",
                 (unsigned long long)(address + LLVMGetSymbolAddress(at)),
                 (unsigned long long)size, name);
    }
    LLVMDisposeSymbolIterator(at);
}

Text jit_functions(Arena *mem, Jit *j, const void *object, size_t n) {
    Text out = text_new(mem);
    uint64_t address;
    LLVMMemoryBufferRef view =
        LLVMCreateMemoryBufferWithMemoryRange(object, n, "object", 0);
    char *message = NULL;
    LLVMBinaryRef binary = LLVMCreateBinary(view, NULL, &message);
    if (!binary) die("an object that was linked: %s", message);
    const char *known = first_function(j, binary, &address);
    if (known) add_functions(binary, known, address, &out);
    LLVMDisposeBinary(binary);
    LLVMDisposeMemoryBuffer(view);
    return out;
}

void *jit_lookup(Jit *j, const char *name) {
    uint64_t address = find(j, name);
    if (!address) die("no function '%s' in the object: %s", name, j->error);
    return (void *)(uintptr_t)address;
}

void jit_free(Jit *j) {
    if (!j) return;
    if (j->jit) note(j, LLVMOrcDisposeLLJIT(j->jit));
    free(j);
}
