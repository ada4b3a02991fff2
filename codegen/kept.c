/* kept.c - see kept.h. */
#include "codegen/kept.h"
#include "codegen/jit.h"
#include <llvm-c/BitWriter.h>

#ifndef STATOR_BUILD_ID
#define STATOR_BUILD_ID  "unnamed build"
#define STATOR_OBJECT_ID "unnamed build"
#endif

const char *kept_build_id(void) {
    return STATOR_BUILD_ID;
}

const char *kept_compiler(Arena *mem, const Target *t) {
    Text text = text_new(mem);
    text_add(&text, "%s\n%s\n", STATOR_OBJECT_ID, jit_passes);
    target_describe(t, &text);
    return text.s;
}

void kept_key(const char *compiler, const char *label, LLVMModuleRef module,
              char key[CACHE_KEY_CHARS]) {
    Arena *mem = arena_new();
    LLVMMemoryBufferRef code = LLVMWriteBitcodeToMemoryBuffer(module);
    Text t = text_new(mem);
    text_add(&t, "%smodule %s\n", compiler, label);
    text_add_bytes(&t, LLVMGetBufferStart(code), LLVMGetBufferSize(code));
    cache_key(t.s, t.n, key);
    LLVMDisposeMemoryBuffer(code);
    arena_free(mem);
}
