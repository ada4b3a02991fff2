/* map_guard.c - see map_guard.h. */
#define _GNU_SOURCE
#include "runtime/core/map_guard.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

/* ---- what is mapped ---- */

typedef struct Mapping {
    const char *bytes;
    uint64_t n;
    char *path;
    struct Mapping *next;
} Mapping;

static Mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void map_note(const void *bytes, uint64_t n, const char *path) {
    Mapping *m = bytes ? malloc(sizeof *m) : NULL;
    if (!m) return;
    *m = (Mapping){bytes, n, strdup(path), NULL};
    pthread_mutex_lock(&lock);
    m->next = mappings;
    mappings = m;
    pthread_mutex_unlock(&lock);
}

void map_forget(const void *bytes) {
    pthread_mutex_lock(&lock);
    Mapping **at = &mappings;
    while (*at && (*at)->bytes != bytes) at = &(*at)->next;
    Mapping *m = *at;
    if (m) *at = m->next;
    pthread_mutex_unlock(&lock);
    if (m) free(m->path);
    free(m);
}

static _Noreturn void fail_cut(const char *fault) {
    char path[2048] = "a file that is mapped";
    pthread_mutex_lock(&lock);
    for (const Mapping *m = mappings; m; m = m->next)
        if (fault >= m->bytes && fault < m->bytes + m->n && m->path)
            snprintf(path, sizeof path, "%s", m->path);
    pthread_mutex_unlock(&lock);
    fail(EXIT_DATA,
         "%s was cut short, or cannot be read any more, while it was in use: put it back "
         "as it was",
         path);
}

/* ---- faults ---- */

typedef struct Guard {
    sigjmp_buf jump;
    struct Guard *outer;
    const char *fault;
} Guard;

static _Thread_local Guard *guard; /* of what this thread reads now */
static struct sigaction before;

/* Without a guard the fault comes again, to whoever had it before. */
static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (!guard) {
        sigaction(sig, &before, NULL);
        return;
    }
    guard->fault = info->si_addr;
    siglongjmp(guard->jump, 1);
}

static void install(void) {
    struct sigaction act = {.sa_sigaction = on_fault,
                            .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    sigemptyset(&act.sa_mask);
    sigaction(SIGBUS, &act, &before);
}

/* A thread that blocks the signal would be killed by it. */
static void unblock(void) {
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &bus, NULL);
}

static void run_guarded(Guard *g, void (*read)(void *), void *context) {
    if (sigsetjmp(g->jump, 0) == 0)
        read(context);
    else
        fail_cut(g->fault);
}

void map_guard(void (*read)(void *), void *context) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
    unblock();
    Guard g = {.outer = guard};
    Catch c;
    if (!CATCH(c)) {
        guard = g.outer;
        fail_again(c.code, c.message);
    }
    guard = &g;
    run_guarded(&g, read, context);
    guard = g.outer;
    catch_end(&c);
}
