/* agree.h - do all ranks have the same text (configuration, plan, data ...)? */
#ifndef STATOR_AGREE_H
#define STATOR_AGREE_H
#include "../ir/base.h"

/* For all ranks at once; nothing when alone. Where the texts differ all ranks end with
 * EXIT_CONFIG, and each rank that has another text than rank 0 says which line is the
 * first to differ: "ranks disagree on the WHAT: rank 1 on HOST has 'threads 2', rank 0 has
 * 'threads 1'; REMEDY". */
void agree_on(Arena *mem, const char *what, const char *text, const char *remedy);

#endif
