/* bundle.h - several objects as one run of bytes, to be kept and sent: how many there are, the
 * bytes of each, and their contents, each from a multiple of 16 on. */
#ifndef STATOR_BUNDLE_H
#define STATOR_BUNDLE_H
#include "codegen/jit.h"

/* In the arena; *bytes: how many. */
const void *bundle_make(Arena *mem, const JitObject *objects, int n, size_t *bytes);
/* The objects of one, *n of them, which point into it; NULL: it is none. */
JitObject *bundle_read(Arena *mem, const void *bundle, size_t bytes, int *n);

#endif
