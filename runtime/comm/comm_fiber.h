/* comm_fiber.h - a second stack of the main thread: what runs there can be left in the
 * middle and gone on with later. For comm_queue.c and comm_mpi.c. */
#ifndef STATOR_COMM_FIBER_H
#define STATOR_COMM_FIBER_H

/* Makes the stack, once; it stays until the process ends. `body` never returns. Fails
 * with EXIT_MEMORY. */
void fiber_make(void (*body)(void));
/* From the thread's own stack: runs body, from where it left, until it leaves again. */
void fiber_enter(void);
/* From body. */
void fiber_leave(void);

#endif
