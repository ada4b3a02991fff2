/* stop_signal.c - see stop_signal.h. */
#include "runtime/core/stop_signal.h"
#include <stddef.h>

static volatile sig_atomic_t asked;

static void on_signal(int number) {
    asked = number;
}

const volatile sig_atomic_t *stop_signal_catch(void) {
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&act.sa_mask);
    asked = 0;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    return &asked;
}

void stop_signal_release(void) {
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
}
