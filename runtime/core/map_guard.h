/* map_guard.h - reading mapped files that may be cut short meanwhile. The kernel answers
 * a read beyond the new end with SIGBUS; here that becomes a failure that names the file:
 * one that unwinds inside of map_guard, elsewhere a message and the end of the process. */
#ifndef STATOR_MAP_GUARD_H
#define STATOR_MAP_GUARD_H
#include "base/base.h"

/* A mapping of `path` that is there from now on, until map_forget. */
void map_note(const void *bytes, uint64_t n, const char *path);
void map_forget(const void *bytes);

/* Runs read(context). A read of a mapping whose file has become shorter ends it with
 * EXIT_DATA; like any failure that unwinds, it must hold memory of arenas only. Other
 * faults are as they were before. */
void map_guard(void (*read)(void *), void *context);

#endif
