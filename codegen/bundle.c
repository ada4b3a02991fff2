/* bundle.c - see bundle.h. */
#include "codegen/bundle.h"

enum { ALIGN = 16, OBJECTS_MOST = 1 << 16 };

static size_t aligned(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t head_bytes(size_t n) {
    return aligned((n + 1) * sizeof(uint64_t));
}

const void *bundle_make(Arena *mem, const JitObject *objects, int n, size_t *bytes) {
    *bytes = head_bytes((size_t)n);
    for (int i = 0; i < n; i++) *bytes += aligned(objects[i].n);
    char *all = arena_alloc(mem, *bytes), *at = all + head_bytes((size_t)n);
    uint64_t *head = (uint64_t *)(void *)all;
    memset(all, 0, *bytes);
    head[0] = (uint64_t)n;
    for (int i = 0; i < n; at += aligned(objects[i++].n)) {
        head[i + 1] = objects[i].n;
        memcpy(at, objects[i].bytes, objects[i].n);
    }
    return all;
}

JitObject *bundle_read(Arena *mem, const void *bundle, size_t bytes, int *n) {
    uint64_t count, size;
    if (bytes < sizeof count) return NULL;
    memcpy(&count, bundle, sizeof count);
    if (!count || count > OBJECTS_MOST || head_bytes(count) > bytes) return NULL;
    JitObject *o = NEW_ARRAY(mem, JitObject, count);
    const char *sizes = (const char *)bundle + sizeof count;
    size_t at = head_bytes(count);
    for (uint64_t i = 0; i < count; i++) {
        memcpy(&size, sizes + i * sizeof size, sizeof size);
        if (size > bytes - at || aligned(size) > bytes - at) return NULL;
        o[i] = (JitObject){(const char *)bundle + at, size};
        at += aligned(size);
    }
    *n = (int)count;
    return at == bytes ? o : NULL;
}
