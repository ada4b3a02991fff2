/* buffer.h - a growable buffer whose memory is freed when it is replaced: for
 * long-running work, where an arena would only ever grow. Each buffer has an arena of its
 * own. */
#ifndef STATOR_BUFFER_H
#define STATOR_BUFFER_H
#include "base/base.h"

typedef struct Buffer {
    Arena *mem;
    char *p;
    size_t n, cap; /* bytes in use, bytes there are */
} Buffer;

/* Makes room for `more` bytes after the n in use, which stay; never NULL. Fails with
 * EXIT_MEMORY. */
static inline char *buffer_room(Buffer *b, size_t more) {
    check(more < PTRDIFF_MAX / 4 && b->n < PTRDIFF_MAX / 4);
    if (!b->p || b->n + more > b->cap) {
        size_t cap = MAX(MAX(b->n + more, b->cap + b->cap / 2), 64);
        Arena *mem = arena_new();
        Catch c;
        if (!CATCH(c)) {
            arena_free(mem);
            fail(EXIT_MEMORY, "out of memory: %zu bytes wanted", cap);
        }
        char *p = arena_alloc(mem, cap);
        catch_end(&c);
        if (b->n) memcpy(p, b->p, b->n);
        arena_free(b->mem);
        b->mem = mem;
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

static inline void buffer_add(Buffer *b, const void *bytes, size_t n) {
    if (!n) return;
    memcpy(buffer_room(b, n), bytes, n);
    b->n += n;
}

static inline void buffer_free(Buffer *b) {
    arena_free(b->mem);
    *b = (Buffer){0};
}

/* Empties it. One that grew beyond `keep_bytes` for a single large thing goes back. */
static inline void buffer_clear(Buffer *b, size_t keep_bytes) {
    b->n = 0;
    if (b->cap > keep_bytes) buffer_free(b);
}

#endif
