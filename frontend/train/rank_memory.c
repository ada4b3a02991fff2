/* rank_memory.c - see rank_memory.h. */
#include "frontend/train/rank_memory.h"
#include "base/base.h"
#include "runtime/comm/comm.h"

FreeMemory rank_memory_left(void) {
    FreeMemory left = memory_left("");
    int ranks = comm_local_size();
    if (ranks == 1 || left.bytes == UINT64_MAX) return left;
    size_t n = strlen(left.of);
    left.bytes /= (uint64_t)ranks;
    snprintf(left.of + n, sizeof left.of - n, ", for each of the %d ranks here,", ranks);
    return left;
}
