/* comm_shared.h - memory that all ranks of this host have: the board of watch.h, and cells. */
#ifndef STATOR_COMM_SHARED_H
#define STATOR_COMM_SHARED_H
#include "base/base.h"

/* What the ranks of the host do together: local rank 0 gives bytes to all; do all say so? */
typedef struct HostCalls {
    void (*tell)(void *data, int bytes);
    bool (*all)(bool mine);
} HostCalls;
/* Shares both where all ranks can; called by all of them, once. With STATOR_SHARED_MEMORY=off there
 * are no cells, with a number only among so many neighbours (for tests of both ways at once). */
void comm_share_memory(const HostCalls *calls, int local_rank, int local_size);

#endif
