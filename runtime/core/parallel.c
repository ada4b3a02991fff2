/* parallel.c - the thread pool of generated code: libgomp's, shared with oneDNN. */
#define _GNU_SOURCE
#include "base/base.h"
#include "runtime/core/cgroup.h"
#include "runtime/core/rt.h"
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#ifndef _OPENMP
#error "compile this file with -fopenmp"
#endif

/* Set in the threads of a region: the part that runs there. */
static _Thread_local bool inside;
static _Thread_local int64_t inside_thread;
static int thread_count;

static cpu_set_t process_mask;
static bool have_mask;

/* The cores this process was started on, before its threads were bound. */
static const cpu_set_t *started_on(void) {
    if (!have_mask && sched_getaffinity(0, sizeof process_mask, &process_mask) != 0) {
        CPU_ZERO(&process_mask);
        for (int i = 0; i < omp_get_num_procs() && i < CPU_SETSIZE; i++) {
            CPU_SET(i, &process_mask);
        }
    }
    have_mask = true;
    return &process_mask;
}

int rt_quota_cores(void) {
    static int cores;
    if (!cores) cores = cgroup_cores("");
    return cores;
}

int rt_cores(void) {
    return MIN(MAX(1, CPU_COUNT(started_on())), rt_quota_cores());
}

void rt_unbind_thread(void) {
    sched_setaffinity(0, sizeof(cpu_set_t), started_on());
}

/* Binds the calling thread to the n-th of the process's cores. */
static void bind_thread(int n) {
    const cpu_set_t *mask = started_on();
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, mask) || n-- > 0) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(i, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

/* Of the ranks of a host, by the launcher that started them. */
static int share_threads; /* 0: this process is alone */
static bool shares_cores;

void rt_share_host(int threads, bool same_cores) {
    share_threads = threads;
    shares_cores = same_cores;
}

int rt_threads_left(int n) {
    return n > 1 && omp_get_max_active_levels() < 1 ? 1 : MIN(n, omp_get_thread_limit());
}

/* OMP_NUM_THREADS is OpenMP's, whose own limits hold for it. */
int rt_threads_asked(void) {
    static const char *const names[] = {"STATOR_THREADS", "OMP_NUM_THREADS"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        const char *set = getenv(names[i]);
        char *end;
        if (!set || !*set) continue;
        long n = strtol(set, &end, 10);
        bool whole = end != set && (!*end || (i && *end == ','));
        if (whole && n >= 1 && n <= RT_THREADS_MOST)
            return i ? rt_threads_left((int)n) : (int)n;
        if (i == 0)
            fail(EXIT_CONFIG, "STATOR_THREADS=%.100s: write a number from 1 to %d", set,
                 RT_THREADS_MOST);
    }
    return 0;
}

int rt_threads_of_ranks(int64_t ranks) {
    int asked = rt_threads_asked();
    int64_t share = rt_cores() / MAX(ranks, 1);
    return asked ? asked : rt_threads_left((int)MAX(1, share));
}

/* Of a process that asks for no number: its share of the host, or a thread a core. */
static int default_threads(void) {
    int asked = rt_threads_asked();
    return asked ? asked : rt_threads_left(share_threads ? share_threads : rt_cores());
}

/* Each thread on a core of its own: two on one core wait for each other at every barrier,
 * a time slice each. STATOR_BIND=off leaves them to the system, and so does a quota: others
 * that have one too would be bound to the same first cores. Returns how many there are. */
static int bind_threads(int threads) {
    int team = 0;
    const char *off = getenv("STATOR_BIND");
    bool bind = threads > 1 && threads <= rt_cores() && !shares_cores &&
                CPU_COUNT(started_on()) <= rt_quota_cores() &&
                !(off && !strcmp(off, "off"));
#pragma omp parallel num_threads(threads)
    {
#pragma omp single
        team = omp_get_num_threads();
        if (bind)
            bind_thread(omp_get_thread_num());
        else
            rt_unbind_thread();
    }
    return team;
}

int rt_threads(void) {
    if (!thread_count) thread_count = MAX(1, omp_get_max_threads());
    return thread_count;
}

/* Beyond that a step takes minutes: all wait for each other at every barrier. */
enum { THREADS_A_CORE = 32 };

static void refuse_many(int threads) {
    int cores = MAX(1, CPU_COUNT(started_on())), most = THREADS_A_CORE * cores;
    if (threads > most)
        fail(EXIT_CONFIG,
             "%d threads on %d core%s: at most %d are started, %d a core; use %d "
             "(context.threads, STATOR_THREADS)",
             threads, cores, cores == 1 ? "" : "s", most, THREADS_A_CORE, rt_cores());
}

static void *wait_for_end(void *end) {
    pthread_mutex_lock(end);
    pthread_mutex_unlock(end);
    return NULL;
}

/* libgomp ends the process where the system gives no more threads. So as many are made
 * here before, which says it with a remedy. */
static void refuse_unavailable(int threads) {
    pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;
    Arena *mem = arena_new();
    pthread_t *made = NEW_ARRAY(mem, pthread_t, (size_t)threads);
    int n = 1, error = 0; /* this one is there */
    pthread_mutex_lock(&end);
    while (n < threads && !(error = pthread_create(&made[n], NULL, wait_for_end, &end)))
        n++;
    pthread_mutex_unlock(&end);
    for (int i = 1; i < n; i++) pthread_join(made[i], NULL);
    arena_free(mem);
    if (error)
        fail(EXIT_MEMORY,
             "the system gives this process %d of %d threads: %s; use fewer "
             "(context.threads), or raise the limit (ulimit -u)",
             n, threads, strerror(error));
}

void rt_count_threads(int threads) {
    check(threads >= 0 && !inside);
    thread_count = threads ? threads : default_threads();
    refuse_many(thread_count);
    omp_set_dynamic(0);
    omp_set_num_threads(thread_count);
}

/* Kernels are made for a number of threads: fewer would leave parts of a result out. */
static void refuse_smaller(int team, int threads) {
    bool levels = omp_get_max_active_levels() < 1;
    if (team < threads)
        fail(EXIT_CONFIG,
             "OpenMP gives %d of %d threads: unset %s, or use %d (context.threads, "
             "STATOR_THREADS)",
             team, threads, levels ? "OMP_MAX_ACTIVE_LEVELS" : "OMP_THREAD_LIMIT", team);
}

void rt_set_threads(int threads) {
    rt_count_threads(threads);
    refuse_unavailable(thread_count);
    refuse_smaller(bind_threads(thread_count), thread_count);
}

bool rt_bind_warning(char *out, size_t size) {
    int threads = rt_threads(), cores = rt_cores();
    bool quota = cores == rt_quota_cores();
    if (threads <= cores) return false;
    snprintf(
        out, size,
        "%d threads share %d core%s of this process%s: they will wait for each other; "
        "use %d, or give the process more cores",
        threads, cores, cores == 1 ? "" : "s",
        quota ? " (by the CPU quota of its cgroup)" : "", cores);
    return true;
}

/* n * t / parts without the overflow of the product. */
static int64_t part_begin(int64_t n, int64_t t, int64_t parts) {
    return n / parts * t + n % parts * t / parts;
}

static void part_run(int64_t n, int64_t t, int64_t parts, RtBody body, void *ctx) {
    int64_t begin = part_begin(n, t, parts), end = part_begin(n, t + 1, parts);
    if (begin == end) return;
    inside = true;
    inside_thread = t;
    body(ctx, begin, end, t);
    inside = false;
    inside_thread = 0;
}

void rt_parallel(int64_t n, RtBody body, void *ctx) {
    int parts = rt_threads();
    if (n <= 0) return;
    if (inside) {
        body(ctx, 0, n, inside_thread);
        return;
    }
    if (n == 1 || parts == 1) {
        part_run(n, 0, 1, body, ctx);
        return;
    }
/* The team may be smaller than asked for (OMP_THREAD_LIMIT): every part still runs. */
#pragma omp parallel num_threads(parts)
    for (int t = omp_get_thread_num(); t < parts; t += omp_get_num_threads())
        part_run(n, t, parts, body, ctx);
}

/* What is left of a part: a cache line of its own. */
typedef struct Range {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
} Range;

/* Takes the next piece of a part: large ones first, so that there are few, and single items at
 * its end, so that all threads are done at about the same time. */
static int64_t piece_take(Range *r, int64_t *begin) {
    enum { PIECES = 8 };
    *begin = atomic_load_explicit(&r->next, memory_order_relaxed);
    while (*begin < r->end) {
        int64_t n = MAX(1, (r->end - *begin) / PIECES);
        if (atomic_compare_exchange_weak(&r->next, begin, *begin + n)) return n;
    }
    return 0;
}

/* Thread t begins with its own part, and goes on with what others have not begun. */
static void pieces_run(Range *part, int parts, int t, RtBody body, void *ctx) {
    inside = true;
    inside_thread = t;
    for (int i = 0; i < parts; i++) {
        Range *r = &part[(t + i) % parts];
        int64_t begin, n;
        while ((n = piece_take(r, &begin))) body(ctx, begin, begin + n, t);
    }
    inside = false;
    inside_thread = 0;
}

/* Room for so many, which a thread that begins regions keeps from one to the next. */
static Range *ranges_of(int parts) {
    static _Thread_local Range *range;
    static _Thread_local int room;
    if (parts <= room) return range;
    free(range);
    range = aligned_alloc(64, (size_t)parts * sizeof *range);
    room = range ? parts : 0;
    if (!range) fail(EXIT_MEMORY, "no memory for %d threads", parts);
    return range;
}

void rt_parallel_balanced(int64_t n, RtBody body, void *ctx) {
    int parts = rt_threads();
    if (n <= parts || inside || parts == 1) {
        rt_parallel(n, body, ctx);
        return;
    }
    Range *part = ranges_of(parts);
    for (int t = 0; t < parts; t++) {
        atomic_store_explicit(&part[t].next, part_begin(n, t, parts),
                              memory_order_relaxed);
        part[t].end = part_begin(n, t + 1, parts);
    }
#pragma omp parallel num_threads(parts)
    pieces_run(part, parts, omp_get_thread_num(), body, ctx);
}
