/* stop_signal.h - signals that ask a command to end in order: the first SIGINT or SIGTERM by a
 * handler, or, where there must be none, several kinds held back. */
#ifndef STATOR_STOP_SIGNAL_H
#define STATOR_STOP_SIGNAL_H
#include <pthread.h>
#include <signal.h>

/* pthread_create with all signals blocked in the new thread: they are meant for others. */
int thread_without_signals(pthread_t *thread, void *(*run)(void *), void *argument);

/* Not 0 once such a signal has come; a second one ends the process at once. */
const volatile sig_atomic_t *stop_signal_catch(void);
/* From here on signals do again what they do by default. */
void stop_signal_release(void);

/* SIGTERM, SIGINT, SIGUSR1, SIGHUP and SIGPIPE wait, in this thread and all that it makes from here
 * on. What the parent has ignored stays so: SIGHUP under nohup. */
void stop_signals_hold(void);
/* Of a process that holds them: a thread takes them from here on. One that comes more than a second
 * after the first ends the process at once. Fails with EXIT_MEMORY. */
void stop_signals_watch(void);
/* The first that was taken; 0: none. A pipe that breaks counts where the thread that wrote to it
 * asks. */
int stop_signal_taken(void);

#endif
