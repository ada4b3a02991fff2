/* stop_signal.c - see stop_signal.h. */
#include "runtime/core/stop_signal.h"
#include "base/base.h"
#include <stdatomic.h>
#include <unistd.h>

static volatile sig_atomic_t asked;

int thread_without_signals(pthread_t *thread, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

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

/* ---- held back ----
 * No handler: oneDNN's f32 kernels use a part of a heap block as their stack, and the frame of a
 * signal handler would be written before that block. */

static sigset_t
    held; /* for the thread that takes them; SIGPIPE is of the thread that writes */
static bool holds_pipe, holds_any;
static atomic_int taken;

static bool is_ignored(int number) {
    struct sigaction act;
    return sigaction(number, NULL, &act) == 0 && act.sa_handler == SIG_IGN;
}

void stop_signals_hold(void) {
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
    sigemptyset(&held);
    for (int i = 0; i < ARRAY_LEN(numbers); i++)
        if (!is_ignored(numbers[i])) sigaddset(&held, numbers[i]);
    holds_pipe = !is_ignored(SIGPIPE);
    holds_any = true;
    sigset_t set = held;
    if (holds_pipe) sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void take(int number) {
    int none = 0;
    atomic_compare_exchange_strong(&taken, &none, number);
}

static _Noreturn void end_by(int number) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
    _exit(128 + number);
}

/* Service managers send two at once (SIGTERM and SIGHUP), and what a launcher got comes from it
 * and from its own parent: that is one wish to end. */
static void *take_all(void *arg) {
    const double together_seconds = 1;
    double first = 0;
    for (;;) {
        int number = sigwaitinfo(&held, NULL);
        if (number <= 0) continue;
        double now = clock_seconds();
        if (!first) first = now;
        if (now - first > together_seconds) end_by(number);
        take(number);
    }
    return arg;
}

void stop_signals_watch(void) {
    pthread_t thread;
    if (!holds_any) return;
    int error = pthread_create(&thread, NULL, take_all, NULL);
    if (error) fail(EXIT_MEMORY, "cannot start a thread: %s", strerror(error));
    pthread_detach(thread);
}

int stop_signal_taken(void) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    if (holds_pipe && sigtimedwait(&pipe, NULL, &(struct timespec){0}) > 0) take(SIGPIPE);
    return atomic_load(&taken);
}
