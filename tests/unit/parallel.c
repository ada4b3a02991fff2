/* parallel.c - the split of rt_parallel, pieces of rt_parallel_balanced, their threads, and the
 * measured peak. */
#define _GNU_SOURCE
#include "../mem.h"
#include "../test.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <limits.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

TEST_LABEL(ALONE);

enum { MAX_PARTS = 64 };

typedef struct Seen {
    int64_t begin[MAX_PARTS], end[MAX_PARTS];
    int calls[MAX_PARTS];
    pid_t thread[MAX_PARTS];
} Seen;

static void record(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Seen *s = ctx;
    s->begin[thread] = begin;
    s->end[thread] = end;
    s->thread[thread] = gettid();
    __atomic_add_fetch(&s->calls[thread], 1, __ATOMIC_SEQ_CST);
}

static void expect_split(int64_t n, int threads) {
    Seen s = {0};
    rt_parallel(n, record, &s);
    for (int t = 0; t < MAX_PARTS; t++) {
        __int128 wide = n;
        int64_t begin = t < threads ? (int64_t)(wide * t / threads) : 0;
        int64_t end = t < threads ? (int64_t)(wide * (t + 1) / threads) : 0;
        if (threads == 1 || n == 1) begin = 0, end = t == 0 ? n : 0;
        EXPECT(s.calls[t] == (begin < end));
        if (begin < end) EXPECT(s.begin[t] == begin && s.end[t] == end);
    }
}

TEST(split) {
    for (int threads = 1; threads <= 7; threads += 2) {
        rt_set_threads(threads);
        EXPECT_INT(rt_threads(), threads);
        for (int64_t n = 0; n < 40; n++) expect_split(n, threads);
        expect_split(1000003, threads);
        expect_split(INT64_MAX, threads);
        expect_split(INT64_MAX - 3, threads);
    }
}

TEST(negative_counts_run_nothing) {
    Seen s = {0};
    rt_set_threads(2);
    rt_parallel(-1, record, &s);
    rt_parallel(INT64_MIN, record, &s);
    EXPECT(s.calls[0] == 0 && s.calls[1] == 0);
}

TEST(parts_run_on_threads_of_their_own) {
    Seen s = {0};
    rt_set_threads(4);
    rt_parallel(4, record, &s);
    EXPECT_INT(s.thread[0], gettid());
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) EXPECT(s.thread[i] != s.thread[j]);
    Seen again = {0};
    rt_parallel(4, record, &again);
    EXPECT(memcmp(s.thread, again.thread, sizeof s.thread) == 0);
}

enum { ITEMS = 1000 };

typedef struct Counts {
    int runs[ITEMS];
    int slow; /* the thread that waits until the others have done the rest */
    int64_t items_of[MAX_PARTS], calls, done;
} Counts;

static void wait_for_others(Counts *c, int64_t mine) {
    enum { MOST_MILLISECONDS = 20000 };
    for (int i = 0; i < MOST_MILLISECONDS; i++) {
        if (__atomic_load_n(&c->done, __ATOMIC_SEQ_CST) == ITEMS - mine) return;
        usleep(1000);
    }
}

static void count(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Counts *c = ctx;
    if (thread == c->slow && !c->items_of[thread]) wait_for_others(c, end - begin);
    c->items_of[thread] += end - begin;
    __atomic_add_fetch(&c->calls, 1, __ATOMIC_SEQ_CST);
    for (int64_t i = begin; i < end; i++)
        __atomic_add_fetch(&c->runs[i], 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&c->done, end - begin, __ATOMIC_SEQ_CST);
}

TEST(balanced_runs_each_item_once) {
    static const int more_and_fewer[] = {1, 3, 7, 5, 2, 6};
    for (int k = 0; k < ARRAY_LEN(more_and_fewer); k++) {
        int threads = more_and_fewer[k];
        rt_set_threads(threads);
        for (int64_t n = 0; n <= ITEMS; n = n < 20 ? n + 1 : n * 7 / 4) {
            Counts c = {.slow = -1};
            rt_parallel_balanced(n, count, &c);
            for (int64_t i = 0; i < ITEMS; i++) EXPECT_INT(c.runs[i], i < n);
            for (int t = threads; t < MAX_PARTS; t++) EXPECT_INT(c.items_of[t], 0);
        }
    }
    Counts none = {.slow = -1};
    rt_parallel_balanced(-1, count, &none);
    EXPECT_INT(none.calls, 0);
}

TEST(balanced_takes_the_work_of_a_thread_that_waits) {
    for (int slow = 0; slow < 3; slow++) {
        Counts c = {.slow = slow};
        rt_set_threads(3);
        rt_parallel_balanced(ITEMS, count, &c);
        for (int64_t i = 0; i < ITEMS; i++) EXPECT_INT(c.runs[i], 1);
        EXPECT(c.items_of[slow] < ITEMS / 3 / 2); /* its first piece */
        EXPECT(c.calls < ITEMS / 4);
    }
}

typedef struct Nested {
    int64_t sum[4], outer[4], calls;
} Nested;

static void inner(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Nested *n = ctx;
    __atomic_add_fetch(&n->calls, 1, __ATOMIC_SEQ_CST);
    for (int64_t i = begin; i < end; i++) n->sum[thread] += i;
    n->outer[thread] = gettid();
}

static void outer(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    (void)begin, (void)end;
    Nested *n = ctx;
    rt_parallel(101, inner, ctx);
    EXPECT_INT(n->outer[thread], gettid());
}

TEST(nested_calls_run_inline) {
    Nested n = {0};
    rt_set_threads(4);
    rt_parallel(4, outer, &n);
    EXPECT_INT(n.calls, 4);
    for (int t = 0; t < 4; t++) EXPECT_INT(n.sum[t], 5050);
    Nested one = {0}; /* a call of one item is a part too */
    rt_parallel(1, outer, &one);
    EXPECT(one.calls == 1 && one.sum[0] == 5050);
    expect_split(10, 4); /* and the state is left again */
}

/* Kernels for more threads than there are would leave parts of their results out. */
TEST(fewer_threads_than_asked_for) {
    /* libgomp reads the limit when it is loaded */
    if (!getenv("OMP_THREAD_LIMIT")) test_again("OMP_THREAD_LIMIT", "2");
    for (int n = 3; n < 6; n++)
        EXPECT_FAIL(rt_set_threads(n), EXIT_CONFIG, "OMP_THREAD_LIMIT, or use 2");
    for (int64_t n = 0; n < 30; n++) expect_split(n, 5); /* every part still runs */
    rt_set_threads(2);
    for (int64_t n = 0; n < 30; n++) expect_split(n, 2);
    rt_count_threads(5); /* none is started */
    setenv("OMP_NUM_THREADS", "4", 1);
    rt_set_threads(0);
    EXPECT_INT(rt_threads(), 2);
    setenv("STATOR_THREADS", "3", 1);
    EXPECT_FAIL(rt_set_threads(0), EXIT_CONFIG, "OpenMP gives 2 of 3 threads");
    unsetenv("STATOR_THREADS");
    omp_set_max_active_levels(0);
    EXPECT_FAIL(rt_set_threads(2), EXIT_CONFIG, "OMP_MAX_ACTIVE_LEVELS, or use 1");
    rt_set_threads(0);
    EXPECT_INT(rt_threads(), 1);
}

TEST(all_cores) {
    char text[256] = "";
    rt_set_threads(0);
    EXPECT_INT(rt_threads(), rt_cores());
    EXPECT(!rt_bind_warning(text, sizeof text) && !text[0]);
}

/* Takes the process to its first core alone, before the runtime looks. */
static void start_on_one_core(void) {
    cpu_set_t mask, one;
    CPU_ZERO(&one);
    EXPECT(sched_getaffinity(0, sizeof mask, &mask) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &mask)) first++;
    CPU_SET(first, &one);
    EXPECT(sched_setaffinity(0, sizeof one, &one) == 0);
}

TEST(more_threads_than_cores) {
    char text[256] = "";
    start_on_one_core();
    EXPECT_INT(rt_cores(), 1);
    rt_set_threads(3);
    EXPECT(rt_bind_warning(text, sizeof text));
    EXPECT_PART(text, "3 threads share 1 core of");
    rt_set_threads(0);
    EXPECT(rt_threads() == 1 && !rt_bind_warning(text, sizeof text));
}

/* A quota of the mount's own group, over whatever cgroups there are. */
static void limit_to(const char *v1, const char *v2) {
    const char *dir = path_join(mem(), temp_dir(), "cgroup");
    EXPECT(dir_make(path_join(mem(), dir, "cpu")) == 0);
    write_text(path_join(mem(), dir, "cpu/cpu.cfs_quota_us"), v1);
    write_text(path_join(mem(), dir, "cpu/cpu.cfs_period_us"), "100000");
    write_text(path_join(mem(), dir, "cpu.max"), v2);
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount(dir, "/sys/fs/cgroup", NULL, MS_BIND, NULL))
        test_skip("no right to mount (%s)", strerror(errno));
}

TEST(threads_of_a_quota) {
    char text[256] = "";
    limit_to("190000", "190000 100000");
    EXPECT_INT(rt_cores(), 1);
    rt_set_threads(0);
    EXPECT(rt_threads() == 1 && !rt_bind_warning(text, sizeof text));
    setenv("STATOR_THREADS", "2", 1); /* counts more */
    rt_set_threads(0);
    EXPECT(rt_threads() == 2 && rt_bind_warning(text, sizeof text));
    EXPECT_PART(text, "2 threads share 1 core of this process (by the CPU quota");
}

typedef struct Cores {
    int cores[64], cpu[64];
} Cores;

static void note_core(void *ctx, int64_t begin, int64_t end, int64_t thread) {
    Cores *seen = ctx;
    cpu_set_t mask;
    (void)begin, (void)end;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
    seen->cores[thread] = CPU_COUNT(&mask);
    while (!CPU_ISSET(seen->cpu[thread], &mask)) seen->cpu[thread]++;
}

TEST(threads_have_a_core_each) {
    Cores seen = {{0}, {0}};
    int threads = MIN(rt_cores(), 64);
    if (threads < 2 || rt_quota_cores() < INT_MAX)
        test_skip("one core alone, or a quota, with which nothing is bound");
    rt_set_threads(threads);
    rt_parallel(threads, note_core, &seen);
    for (int i = 0; i < threads; i++) {
        EXPECT_INT(seen.cores[i], 1);
        for (int j = 0; j < i; j++) EXPECT(seen.cpu[i] != seen.cpu[j]);
    }
    cpu_set_t mask;
    rt_unbind_thread();
    EXPECT(sched_getaffinity(0, sizeof mask, &mask) == 0 &&
           CPU_COUNT(&mask) == rt_cores());
}

TEST(peak_is_plausible) {
    double start = clock_seconds(), fma = peak_fma(1, PEAK_SECONDS);
    EXPECT(clock_seconds() - start < 5);
    /* One core of any x86-64 in use: between an emulator's figure and 8 GHz times 64. */
    EXPECT(fma > 0.5 && fma < 600);
}

/* Instead of the thread library's own words: what the system refused, and the remedy. */
TEST(threads_that_the_system_does_not_give) {
#ifdef __SANITIZE_ADDRESS__
    test_skip("the sanitizer needs all of the address space");
#endif
    struct rlimit limit = {512 << 20, 512 << 20}; /* bytes of address space */
    struct rlimit stack = {256 << 20, RLIM_INFINITY};
    EXPECT(setrlimit(RLIMIT_STACK, &stack) == 0 && setrlimit(RLIMIT_AS, &limit) == 0);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 20);
    pthread_setattr_default_np(&attr);
    EXPECT_FAIL(rt_set_threads(4), EXIT_MEMORY, "the system gives this process");
}
