/* comm_reference.h - the same collectives by MPI's own, to compare: STATOR_COMM=mpi. */
#ifndef STATOR_COMM_REFERENCE_H
#define STATOR_COMM_REFERENCE_H
#include "runtime/comm/comm_link.h"

/* The least staging that reference_run can do with; more is faster. */
int64_t reference_workspace_bytes(int members);
/* Returns the bytes that a ring would have sent. */
int64_t reference_run(CommKind kind, const Group *g, const CommPart *part, int n,
                      void *workspace, int64_t workspace_bytes);

#endif
