/* kept.h - under what name the object of an LLVM module is kept in the cache. */
#ifndef STATOR_KEPT_H
#define STATOR_KEPT_H
#include "codegen/cache.h"
#include "codegen/target.h"

const char *kept_build_id(void); /* changes with the sources of the compiler */
/* Who makes objects of LLVM IR: the sources that do, LLVM's version and passes, the CPU and its
 * features. In the arena. */
const char *kept_compiler(Arena *mem, const Target *t);
/* Key of all that the object depends on: the module before any pass over it, and `compiler`. The
 * label tells modules apart whose functions get other names before they are compiled. */
void kept_key(const char *compiler, const char *label, LLVMModuleRef module,
              char key[CACHE_KEY_CHARS]);

#endif
