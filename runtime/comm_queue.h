/* comm_queue.h - between comm_run.c and comm_queue.c. */
#ifndef STATOR_COMM_QUEUE_H
#define STATOR_COMM_QUEUE_H
#include "comm.h"

/* Runs a collective on the calling thread, at once. */
void comm_run_now(CommKind kind, unsigned axes, const CommPart *part, int n,
                  void *workspace);
/* Returns when every collective that was begun is done: then no other thread is inside
 * MPI, nor touches the statistics. */
void comm_drain(void);

#endif
