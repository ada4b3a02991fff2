/* comm_run.h - a collective on the calling thread, for comm_queue.c. */
#ifndef STATOR_COMM_RUN_H
#define STATOR_COMM_RUN_H
#include "runtime/comm/comm.h"

/* Runs it at once. How it waits is wait_set's; label: of comm_label, or NULL. */
void comm_run_now(CommKind kind, unsigned axes, const CommPart *part, int n,
                  void *workspace, const char *label);

#endif
