/* mem.h - memory that lasts as long as the test's process. Not in test.h: a test may have a
 * variable `mem` of its own. */
#ifndef STATOR_TEST_MEM_H
#define STATOR_TEST_MEM_H
#include "base/base.h"

static inline Arena *mem(void) {
    static Arena *a;
    if (!a) a = arena_new();
    return a;
}

#endif
