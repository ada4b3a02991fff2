/* rank_memory.h - the memory of a host, shared by the ranks of a run there. */
#ifndef STATOR_RANK_MEMORY_H
#define STATOR_RANK_MEMORY_H
#include "runtime/core/free_memory.h"

/* What this rank can have of what its host has left. */
FreeMemory rank_memory_left(void);

#endif
