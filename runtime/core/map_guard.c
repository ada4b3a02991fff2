/* map_guard.c - see map_guard.h. */
#define _GNU_SOURCE
#include "runtime/core/map_guard.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- what is mapped ---- */

typedef struct Mapping {
    const char *bytes;
    uint64_t n;
    char *path;
    struct Mapping *next;
} Mapping;

static Mapping *mappings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void install(void);
static pthread_once_t once = PTHREAD_ONCE_INIT;

void map_note(const void *bytes, uint64_t n, const char *path) {
    Mapping *m = bytes ? malloc(sizeof *m) : NULL;
    if (!m) return;
    pthread_once(&once, install);
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

/* The path of the file whose mapping has the byte; NULL: of none. */
static const char *path_of(const char *byte) {
    for (const Mapping *m = mappings; m; m = m->next)
        if (byte >= m->bytes && byte < m->bytes + m->n) return m->path;
    return NULL;
}

static const char cut_short[] =
    " was cut short, or cannot be read any more, while it was in "
    "use: put it back as it was";

static _Noreturn void fail_cut(const char *fault) {
    char path[2048];
    pthread_mutex_lock(&lock);
    const char *found = path_of(fault);
    snprintf(path, sizeof path, "%s", found ? found : "a file that is mapped");
    pthread_mutex_unlock(&lock);
    fail(EXIT_DATA, "%s%s", path, cut_short);
}

/* ---- faults ---- */

typedef struct Guard {
    sigjmp_buf jump;
    struct Guard *outer;
    const char *fault;
} Guard;

static _Thread_local Guard *guard; /* of what this thread reads now */
static struct sigaction before;

static void tell(const char *text) {
    ssize_t put = write(STDERR_FILENO, text, strlen(text));
    (void)put;
}

/* Where nothing can be unwound the process ends here, by calls that signals may make. */
static void end_if_cut(const char *fault) {
    if (pthread_mutex_trylock(&lock) != 0) return;
    const char *path = path_of(fault);
    pthread_mutex_unlock(&lock);
    if (!path) return;
    tell("stator: error: ");
    tell(path);
    tell(cut_short);
    tell("\n");
    _exit(EXIT_DATA);
}

/* A fault that is of no mapping comes again, to whoever had it before. */
static void on_fault(int sig, siginfo_t *info, void *context) {
    (void)context;
    if (guard) {
        guard->fault = info->si_addr;
        siglongjmp(guard->jump, 1);
    }
    end_if_cut(info->si_addr);
    sigaction(sig, &before, NULL);
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
