/* jit.h - from an LLVM module to an object file in memory, and from that to addresses. */
#ifndef STATOR_JIT_H
#define STATOR_JIT_H
#include "codegen/target.h"

/* The pipeline for code that is already vectorized: see jit.c for the measurements. */
extern const char *const jit_passes;

typedef struct Object {
    const void *bytes;
    size_t n;
    LLVMMemoryBufferRef buffer;
} Object;

/* Verifies the module, runs `passes` over it (a pipeline for LLVMRunPasses, NULL for
 * jit_passes, or none where code is to be made quickly, "" for none) and emits an object. The
 * module stays the caller's, changed. An invalid module, a bad pipeline or unselectable code is
 * our bug: dies with the text.
 */
Object *jit_compile(Target *t, LLVMModuleRef module, const char *passes);
void object_free(Object *o);

/* One that is linked. */
typedef struct JitObject {
    const void *bytes;
    size_t n;
} JitObject;

typedef struct JitSymbol {
    const char *name;
    void *address;
} JitSymbol;
typedef struct Jit Jit;

/* Links objects into this process, of which the first refers to the others. They may refer to
 * each other, to `symbols` and to the few functions of libc that LLVM itself puts in (memcpy,
 * memset, memmove, memcmp, bcmp; fmaf and fma on a CPU without FMA), to nothing else of the
 * process. The bytes are copied. Returns NULL, with a sentence in `why`, for objects that do
 * not link: an unknown symbol, damage, another machine's code. */
Jit *jit_load_all(Target *t, const JitObject *objects, int n, const JitSymbol *symbols,
                  int nsymbols, char *why, size_t why_size);
/* The same of one object. */
Jit *jit_load(Target *t, const void *object, size_t n, const JitSymbol *symbols,
              int nsymbols, char *why, size_t why_size);

/* Address of a function of the object; dies when there is none of that name. */
void *jit_lookup(Jit *j, const char *name);
/* The functions of a linked object as perf reads them from /tmp/perf-PID.map: a line "start
 * size name" each, in hexadecimal. */
Text jit_functions(Arena *mem, Jit *j, const void *object, size_t n);
/* Ends the code too: nothing of it may run or be called later. */
void jit_free(Jit *j);

#endif
