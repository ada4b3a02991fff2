/* jitted.h - for tests of emitters: from an Emit to callable functions. */
#ifndef STATOR_JITTED_H
#define STATOR_JITTED_H
#include "../test.h"
#include "../tiles.h"
#include "codegen/emit.h"
#include "codegen/jit.h"
#include "codegen/kept.h"

/* The target with this many lanes. A CPU with fewer takes each vector in parts, so that the same
 * functions are tested, if not the same instructions. */
static inline Target *target_of_lanes(int vl) {
    Target *t = target_open(NULL);
    if (t->lanes < vl) t->lanes = vl;
    if (t->lanes == vl) return t;
    target_close(t);
    return target_open("x86-64-v3");
}

/* Of many cases each so-manieth is enough: where a vector is taken in parts, compiling them takes
 * several times as long. */
static inline int target_case_step(int vl) {
    Target *t = target_open(NULL);
    int step = t->lanes < vl ? 7 : 1;
    target_close(t);
    return step;
}

/* 16 lanes without the instructions for bf16. */
static inline Target *target_widening(void) {
    Target *t = target_of_lanes(16);
    return strstr(t->features, "+avx512bf16") ? target_open("x86-64-v4") : t;
}

/* 16 lanes, and tile registers of the CPU or in place of it. */
static inline Target *target_tiled(void) {
    tiles_need();
    return target_open("sapphirerapids");
}

/* Skips the test where the CPU has fewer lanes. */
static inline void target_need_lanes(int vl) {
    Target *t = target_open(NULL);
    if (t->lanes < vl) test_skip("the CPU has %d lanes, not %d", t->lanes, vl);
    target_close(t);
}

static inline Emit *emit_for(Arena *mem, Target *t) {
    return emit_new(mem, "test", t->lanes, t->cpu, t->features);
}

/* Compiles and frees the module, or finds the object of the same; the code lives as long as the
 * process. */
static inline Jit *emit_finish(Emit *e, Target *t, const JitSymbol *symbols, int n) {
    Arena *mem = arena_new();
    if (test_quick()) target_hurry(t);
    char why[512] = "", key[CACHE_KEY_CHARS];
    size_t size;
    kept_key(kept_compiler(mem, t), "test", e->mod, key);
    const void *object = cache_get(mem, key, &size);
    Object *made = object ? NULL : jit_compile(t, e->mod, NULL);
    if (made) cache_put(key, object = made->bytes, size = made->n);
    Jit *j = jit_load(t, object, size, symbols, n, why, sizeof why);
    if (!j) test_fail(__FILE__, __LINE__, "%s", why);
    object_free(made);
    emit_free(e);
    arena_free(mem);
    return j;
}

static int split_threads = 1;

/* rt_parallel_balanced on one thread: in pieces of all lengths to 3, the last first, on behalf of
 * the threads in turn. */
static inline void split(int64_t n, void (*body)(void *, int64_t, int64_t, int64_t),
                         void *ctx) {
    for (int64_t end = n, piece = 0, begin; end > 0; end = begin, piece++) {
        begin = split_threads == 1 ? 0 : MAX(0, end - 1 - piece % 3);
        body(ctx, begin, end, piece % split_threads);
    }
}

#endif
