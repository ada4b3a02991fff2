/* free_memory.h - the memory that this process has, and how much it can still get. */
#ifndef STATOR_FREE_MEMORY_H
#define STATOR_FREE_MEMORY_H
#include "base/base.h"

typedef struct FreeMemory {
    uint64_t bytes; /* UINT64_MAX: nobody says */
    char of[512];   /* "this machine has free", "cgroup /a (limit 1000.0 MB) leaves" */
} FreeMemory;

/* The least of what the machine has free and what the limits of the cgroup of this
 * process and of those around it leave (version 1 and 2; file pages that the kernel can
 * drop count as free). Reads below `root`, which is "" except in tests. What others take
 * later is not known. */
FreeMemory memory_left(const char *root);

/* What this process has now. Pages of files do not count: the kernel drops them where
 * memory is short, and how many are there depends on what others have read. */
uint64_t memory_resident_bytes(void);
/* Gives what was freed back to the system, which counts it no more. */
void memory_give_back(void);
/* From now on nothing is given back: what was freed serves what is asked for next. So many bytes
 * of it are there from the start. For a process that makes one program after the other. */
void memory_keep(size_t bytes);

#endif
