/* stop_signal.h - the first SIGINT or SIGTERM asks a command to end in order. */
#ifndef STATOR_STOP_SIGNAL_H
#define STATOR_STOP_SIGNAL_H
#include <signal.h>

/* Not 0 once such a signal has come; a second one ends the process at once. */
const volatile sig_atomic_t *stop_signal_catch(void);
/* From here on signals do again what they do by default. */
void stop_signal_release(void);

#endif
