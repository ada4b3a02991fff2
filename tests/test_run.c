/* test_run.c - the scheduler of stator-test; see test_run.h. */
#define _GNU_SOURCE
#include "test_run.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Later than its own alarm, for a test that does not hear it. */
enum { GRACE_SECONDS = 15 };
/* Between being asked to end and being killed. */
enum { LAST_SECONDS = 5 };
enum { MAX_WORDS_BYTES = 4 << 20, MAX_MEMORY_BYTES = 1 << 26 };

/* Processes of ranks wait for each other, for hangs and for mpirun more than half of the
 * time, so some tests of them more than asked for keep the cores busy. */
enum { MORE_OF_RANKS = 4 };

typedef struct Running {
    TestJob *job; /* NULL: this place is free */
    pid_t pid;
    double start;
    int number; /* of its files below Run.folder */
    bool killed;
    char *at; /* shared with it */
} Running;

typedef struct Run {
    Arena *mem;
    const char *folder; /* of all tests of this run */
    TestJob **queue;    /* jobs that have not started are not NULL */
    int njobs, started, at_once, nrunning, places;
    Running *running; /* places */
    sigset_t signals, before;
    TestTally tally;
    Text failures;
} Run;

/* ---- order ---- */

static bool is_alone(const TestCase *t) {
    return t->labels & LABEL_ALONE;
}

/* What it took the last time, else a guess from its labels. */
static double expected_seconds(const TestJob *j) {
    static const double ranks = 8, slow = 4, fast = 0.1;
    if (j->seconds > 0) return j->seconds;
    if (j->test->labels & LABEL_RANKS) return ranks;
    return j->test->labels & LABEL_SLOW ? slow : fast;
}

/* The longest first, so that the last to end began early; at the end those that run by
 * themselves. */
static int by_order(const void *a, const void *b) {
    const TestJob *x = *(TestJob *const *)a, *y = *(TestJob *const *)b;
    double longer = expected_seconds(y) - expected_seconds(x);
    if (is_alone(x->test) != is_alone(y->test)) return is_alone(x->test) ? 1 : -1;
    if (longer != 0) return longer > 0 ? 1 : -1;
    return x < y ? -1 : x > y;
}

/* May it start beside those that run? */
static bool may_start(const Run *r, const TestCase *t) {
    int places = r->at_once;
    for (int i = 0; i < r->places; i++)
        if (r->running[i].job && is_alone(r->running[i].job->test)) return false;
    if (is_alone(t)) return r->nrunning == 0;
    if (t->labels & LABEL_RANKS && r->at_once > 1) places += MORE_OF_RANKS;
    return r->nrunning < places;
}

static TestJob *next_job(Run *r) {
    for (int i = 0; i < r->njobs; i++) {
        TestJob *j = r->queue[i];
        if (!j || !may_start(r, j->test)) continue;
        r->queue[i] = NULL;
        return j;
    }
    return NULL;
}

/* ---- one test ---- */

static char *words_path(const Run *r, int number) {
    return arena_printf(r->mem, "%s/%d.txt", r->folder, number);
}

static char *temp_path(const Run *r, int number) {
    return arena_printf(r->mem, "%s/%d", r->folder, number);
}

static void start(Run *r, TestJob *j) {
    Running *place = r->running;
    while (place->job) place++;
    *place = (Running){j, 0, clock_seconds(), r->started++, false, place->at};
    place->at[0] = 0;
    const char *words = words_path(r, place->number);
    test_set_temp(temp_path(r, place->number));
    fflush(NULL);
    place->pid = fork();
    check(place->pid >= 0);
    r->nrunning++;
    if (place->pid) {
        setpgid(place->pid, 0); /* both: who comes first does it */
        return;
    }
    setpgid(0, 0);
    int in = open("/dev/null", O_RDONLY);
    int out = open(words, O_WRONLY | O_CREAT | O_APPEND, 0600);
    check(in >= 0 && out >= 0 && dup2(in, 0) == 0 && dup2(out, 1) == 1 &&
          dup2(out, 2) == 2);
    close(in);
    close(out);
    sigprocmask(SIG_SETMASK, &r->before, NULL);
    test_set_at(place->at);
    test_run_here(j->test);
}

static int remove_entry(const char *path, const struct stat *st, int flag,
                        struct FTW *f) {
    (void)st, (void)flag, (void)f;
    (void)remove(path);
    return 0;
}

static void remove_tree(const char *path) {
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* What it said; of too much the end. */
static char *words_of(Arena *mem, const char *path) {
    FILE *f = fopen(path, "re");
    if (!f) return "";
    fseek(f, 0, SEEK_END);
    long bytes = MAX(ftell(f), 0), left_out = MAX(bytes - MAX_WORDS_BYTES, 0);
    fseek(f, left_out, SEEK_SET);
    size_t n = (size_t)(bytes - left_out);
    char *said = arena_alloc(mem, n + 1);
    said[fread(said, 1, n, f)] = 0;
    fclose(f);
    return left_out ? arena_printf(mem, "(%ld bytes before)\n%s", left_out, said) : said;
}

/* How it ended besides by its own words, and at what; "": no other way. */
static char *explain(Arena *mem, const Running *place, int code) {
    const char *how;
    if (code == -SIGALRM || place->killed)
        how = arena_printf(mem, "ran longer than %d s", place->job->test->seconds);
    else if (code < 0)
        how = arena_printf(mem, "ended by signal %d (%s)", -code, strsignal(-code));
    else if (code && code != TEST_FAILED && code != TEST_SKIPPED)
        how = arena_printf(mem, "ended with exit code %d", code);
    else
        return "";
    place->at[TEST_AT_BYTES - 1] = 0;
    return arena_printf(mem, "     %s%s%s\n", how, place->at[0] ? ", at: " : "",
                        place->at);
}

static double cpu_seconds(const struct rusage *use) {
    return (double)(use->ru_utime.tv_sec + use->ru_stime.tv_sec) +
           1e-6 * (double)(use->ru_utime.tv_usec + use->ru_stime.tv_usec);
}

/* `use`: of it and of the processes that it has waited for. */
static void ended(Run *r, Running *place, int status, const struct rusage *use) {
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    kill(-place->pid, SIGKILL); /* what it has started and left behind */
    bool skipped = code == TEST_SKIPPED, failed = code != 0 && !skipped;
    TestJob *j = place->job;
    j->seconds = clock_seconds() - place->start;
    Arena *mem = arena_new();
    char *said = words_of(mem, words_path(r, place->number));
    size_t n = strlen(said);
    char *all =
        arena_printf(mem, "%-4s %s.%s (%.1f s, CPU %.1f s)\n%s%s%s",
                     failed    ? "FAIL"
                     : skipped ? "skip"
                               : "ok",
                     j->test->file, j->test->name, j->seconds, cpu_seconds(use), said,
                     n && said[n - 1] != '\n' ? "\n" : "", explain(mem, place, code));
    fputs(all, stdout);
    fflush(stdout);
    if (failed) text_add(&r->failures, "%s", all);
    arena_free(mem);
    r->tally.failed += failed;
    r->tally.skipped += skipped;
    r->tally.passed += !failed && !skipped;
    unlink(words_path(r, place->number));
    remove_tree(temp_path(r, place->number));
    place->job = NULL;
    r->nrunning--;
}

/* ---- all of them ---- */

static void reap(Run *r) {
    int status;
    struct rusage use;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &use)) > 0;)
        for (int i = 0; i < r->places; i++)
            if (r->running[i].job && r->running[i].pid == pid)
                ended(r, &r->running[i], status, &use);
}

static void kill_overdue(Run *r) {
    for (int i = 0; i < r->places; i++) {
        Running *p = &r->running[i];
        if (!p->job || p->killed) continue;
        if (clock_seconds() - p->start < p->job->test->seconds + GRACE_SECONDS) continue;
        kill(p->pid, SIGKILL);
        p->killed = true;
    }
}

static void signal_all(const Run *r, int number) {
    for (int i = 0; i < r->places; i++)
        if (r->running[i].job) kill(-r->running[i].pid, number);
}

/* Asked to end: so are the tests, and nothing is left behind. */
static _Noreturn void give_up(Run *r, int signal_number) {
    const struct timespec second = {1, 0};
    double last = clock_seconds() + LAST_SECONDS;
    signal_all(r, SIGTERM);
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) >= 0;) {
        for (int i = 0; i < r->places; i++)
            if (pid && r->running[i].pid == pid) r->running[i].job = NULL;
        if (pid) continue;
        if (clock_seconds() > last) signal_all(r, SIGKILL);
        sigtimedwait(&r->signals, NULL, &second);
    }
    remove_tree(r->folder);
    fprintf(stderr, "stator-test: ended by signal %d\n", signal_number);
    exit(128 + signal_number);
}

/* Until a test ends, or for a second. */
static void wait_for_something(Run *r) {
    struct timespec second = {1, 0};
    int got = sigtimedwait(&r->signals, NULL, &second);
    if (got > 0 && got != SIGCHLD) give_up(r, got);
    reap(r);
    kill_overdue(r);
}

static void make_folder(Run *r) {
    const char *base = getenv("TMPDIR");
    char *folder = arena_printf(r->mem, "%.200s/stator-test-XXXXXX",
                                base && *base == '/' ? base : "/tmp");
    if (!mkdtemp(folder)) fail(1, "cannot make %s: %s", folder, strerror(errno));
    r->folder = folder;
}

static void block_signals(Run *r) {
    static const int awaited[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigemptyset(&r->signals);
    for (int i = 0; i < ARRAY_LEN(awaited); i++) {
        struct sigaction now;
        sigaction(awaited[i], NULL, &now);
        if (now.sa_handler != SIG_IGN) sigaddset(&r->signals, awaited[i]);
    }
    sigprocmask(SIG_BLOCK, &r->signals, &r->before);
}

/* Zeros that child processes share. */
static char *shared_bytes(size_t bytes) {
    void *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(at != MAP_FAILED);
    return at;
}

TestTally test_run(TestJob **jobs, int njobs, int at_once) {
    Run r = {.mem = arena_new(), .queue = jobs, .njobs = njobs, .at_once = at_once};
    r.failures = text_new(r.mem);
    r.places = at_once + MORE_OF_RANKS;
    r.running = NEW_ARRAY(r.mem, Running, (size_t)r.places);
    for (int i = 0; i < r.places; i++) r.running[i].at = shared_bytes(TEST_AT_BYTES);
    qsort(r.queue, (size_t)njobs, sizeof *r.queue, by_order);
    make_folder(&r);
    block_signals(&r);
    for (;;) {
        for (TestJob *j; (j = next_job(&r));) start(&r, j);
        if (!r.nrunning) break;
        wait_for_something(&r);
    }
    sigprocmask(SIG_SETMASK, &r.before, NULL);
    remove_tree(r.folder);
    if (r.tally.failed) printf("\nwhat failed:\n%s", r.failures.s);
    TestTally tally = r.tally;
    arena_free(r.mem);
    return tally;
}

/* ---- memory between runs: lines "FILE.CASE SECONDS" ---- */

int test_job_order(const void *a, const void *b) {
    const TestCase *x = ((const TestJob *)a)->test, *y = ((const TestJob *)b)->test;
    int order = strcmp(x->file, y->file);
    return order ? order : strcmp(x->name, y->name);
}

static void recall_line(TestJob *jobs, int njobs, char *line) {
    char *dot = strchr(line, '.'), *blank = strchr(line, ' ');
    if (!dot || !blank || dot > blank) return;
    *dot = *blank = 0;
    TestCase test = {.file = line, .name = dot + 1};
    TestJob key = {.test = &test};
    TestJob *found = bsearch(&key, jobs, (size_t)njobs, sizeof *jobs, test_job_order);
    if (found) found->seconds = atof(blank + 1);
}

void test_recall(const char *path, TestJob *jobs, int njobs) {
    if (!file_exists(path)) return;
    Arena *mem = arena_new();
    char *text = file_read(mem, path, MAX_MEMORY_BYTES, NULL, EXIT_DATA), *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        recall_line(jobs, njobs, line);
    arena_free(mem);
}

void test_remember(const char *path, const TestJob *jobs, int njobs) {
    Arena *mem = arena_new();
    Text text = text_new(mem);
    for (int i = 0; i < njobs; i++)
        if (jobs[i].seconds > 0)
            text_add(&text, "%s.%s %.3f\n", jobs[i].test->file, jobs[i].test->name,
                     MAX(jobs[i].seconds, 0.001)); /* 0 is not known */
    int error = file_write_atomic(path, text.s, text.n);
    if (error) fprintf(stderr, "cannot write %s: %s\n", path, strerror(error));
    arena_free(mem);
}
