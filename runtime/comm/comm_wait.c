/* comm_wait.c - how a rank waits; see docs/communication.md, Waiting. */
#include "runtime/comm/comm_wait.h"
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

static _Atomic WaitHow of_messages;
static const double brief_seconds = 0.001;

void wait_set(WaitHow how) {
    of_messages = how;
}

/* Naps are a small part of what was waited so far: what is waited for may need the core, and many
 * ranks that poll often take one for themselves. */
static void nap(double waited, double least, double most) {
    double seconds = fmin(fmax(waited / 16, least), most);
    const struct timespec t = {.tv_nsec = (long)(1e9 * seconds)};
    nanosleep(&t, NULL);
}

void wait_for_control(double start) {
    double waited = clock_seconds() - start;
    if (waited < brief_seconds)
        sched_yield();
    else
        nap(waited, 5e-5, 5e-3);
}

/* Who gives up a core is soon asked again, so who yields naps after a while. */
void wait_for_message(double start) {
    WaitHow how = of_messages;
    if (how == WAIT_SPINS) return;
    double waited = clock_seconds() - start;
    if (how == WAIT_YIELDS && waited < brief_seconds)
        sched_yield();
    else
        nap(how == WAIT_NAPS ? 0 : waited, 5e-5, 1e-3);
}
