/* comm_wait.h - what a rank does between two polls of what it waits for. */
#ifndef STATOR_COMM_WAIT_H
#define STATOR_COMM_WAIT_H
#include "base/base.h"

/* For a message: nothing; yield the core; or sleep, when another thread needs the core. Who yields
 * for long sleeps. May be changed while a rank waits. */
typedef enum WaitHow { WAIT_SPINS, WAIT_YIELDS, WAIT_NAPS } WaitHow;
void wait_set(WaitHow how);
/* Each for a wait that began at `start` (clock_seconds): of a message, and of a control operation,
 * where the others may be at something long, reading files or compiling. */
void wait_for_message(double start);
void wait_for_control(double start);

#endif
