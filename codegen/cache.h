/* cache.h - compiled objects kept between runs, in a folder of the user. $STATOR_CACHE,
 * or $XDG_CACHE_HOME/stator, or ~/.cache/stator; STATOR_CACHE=off turns it off. What is
 * in it gets executed: folder and file must belong to the user, and nobody else may write
 * to them. A cache that cannot be used causes one warning, never a failure. */
#ifndef STATOR_CACHE_H
#define STATOR_CACHE_H
#include "base/base.h"

enum { CACHE_KEY_CHARS = HASH_HEX_BYTES };
/* Objects beyond this many bytes in all are removed, those longest unused first. */
#define CACHE_LIMIT_BYTES ((uint64_t)512 << 20)

/* Key of a text that says all that the object depends on: IR, pass list, target, build.
 */
void cache_key(const char *text, size_t n, char key[CACHE_KEY_CHARS]);

/* The object kept under `key`, in the arena, its size in *n; NULL when there is none. A
 * file that is damaged, holds the object of another key or may be written by others is
 * removed, said on stderr, and counts as none. */
void *cache_get(Arena *a, const char *key, size_t *n);
/* Keeps an object. A file appears whole or not at all; concurrent writers are fine. The first one
 * of a process removes what was unused for longest where there are more than CACHE_LIMIT_BYTES,
 * until an eighth of them is free, and later ones when they have added an eighth of what was. */
void cache_put(const char *key, const void *object, size_t n);
/* The same of a text, which nobody runs and whose reader checks every line: of the user, with
 * no checksum. */
char *cache_get_text(Arena *a, const char *key);
void cache_put_text(const char *key, const char *text);

#endif
