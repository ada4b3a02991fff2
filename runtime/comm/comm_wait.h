/* comm_wait.h - what a rank does between two polls of what it waits for. */
#ifndef STATOR_COMM_WAIT_H
#define STATOR_COMM_WAIT_H
#include "runtime/comm/comm_link.h"

/* Each for a wait that began at `start` (clock_seconds): of a control operation, where the others
 * may be at something long, reading files or compiling; and of a message, as link_when_idle
 * says. */
void wait_for_control(double start);
void wait_for_message(double start);

#endif
