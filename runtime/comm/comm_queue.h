/* comm_queue.h - between comm_run.c and comm_queue.c. */
#ifndef STATOR_COMM_QUEUE_H
#define STATOR_COMM_QUEUE_H
#include "runtime/comm/comm_link.h"

/* Runs a collective on the calling thread, at once. How it waits is link_when_idle's;
 * label: of comm_label, or NULL. */
void comm_run_now(CommKind kind, unsigned axes, const CommPart *part, int n,
                  void *workspace, const char *label);
/* The text of the last comm_label, once; else NULL. */
const char *comm_take_label(void);
/* Returns when every collective that was begun is done: then no other thread is inside
 * MPI, nor touches the statistics. */
void comm_drain(void);
/* How a thread waits that has nothing else to do, given what the cores have to run. */
LinkIdle comm_idle(void);

#endif
