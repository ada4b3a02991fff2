/* test_main.c - the program stator-test: all tests of tests/unit, chosen by name and by
 * label, several at a time. */
#define _GNU_SOURCE
#include "mem.h"
#include "test_run.h"
#include <errno.h>
#include <fnmatch.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

static const char usage[] =
    "stator-test [-j N] [--label LABEL]... [--without LABEL]... [--list] [FILTER...]\n"
    "  FILTER   a file of tests/unit (exact), a part of FILE.CASE (exact.simplify), or "
    "a\n"
    "           pattern of it ('ranks_*.*resume*'); several: what any of them names\n"
    "  -j N     tests at a time; as many as there are cores\n"
    "  --label  only tests with it: fast, slow, ranks, alone, released, quick\n"
    "  --without  only tests without it\n"
    "  --list   says what would run, and its labels\n"
    "STATOR_BLESS=1 writes what comes out over what was wanted, STATOR_LONG_TESTS=1 "
    "asks\n"
    "for more repetitions, STATOR_SHARED names the folder of shared reference data.\n";

static const struct {
    const char *name;
    int bit;
} label_names[] = {{"alone", LABEL_ALONE}, {"ranks", LABEL_RANKS},
                   {"slow", LABEL_SLOW},   {"released", LABEL_RELEASED},
                   {"fast", LABEL_FAST},   {"quick", LABEL_QUICK}};

/* ---- what there is ---- */

static TestCase *first_test, **test_end = &first_test;
static TestLabel *first_label;
static TestMaker *first_maker;
static const char *making; /* file of the maker that is called now */

void test_register(TestCase *t) {
    *test_end = t;
    test_end = &t->next;
}

void test_label(TestLabel *l) {
    l->next = first_label;
    first_label = l;
}

void test_maker(TestMaker *m) {
    m->next = first_maker;
    first_maker = m;
}

void test_add(const char *name, void (*run_of)(const char *what), const char *what) {
    TestCase *t = NEW(mem(), TestCase);
    *t = (TestCase){
        .file = making, .name = name, .run_of = run_of, .what = what, .seconds = 60};
    test_register(t);
}

/* "/a/tests/unit/exact.c" -> "exact" */
static const char *name_of_file(const char *path) {
    const char *name = path_name(path);
    return arena_strndup(mem(), name, strcspn(name, "."));
}

/* All tests, by file and name. */
static TestJob *all_jobs(int *njobs) {
    TestJob *jobs = NULL;
    int n = 0, cap = 0;
    for (TestMaker *m = first_maker; m; m = m->next) {
        making = m->file;
        m->make();
    }
    for (TestCase *t = first_test; t; t = t->next) {
        for (TestLabel *l = first_label; l; l = l->next)
            if (!strcmp(l->file, t->file) && (!l->run || l->run == t->run))
                t->labels |= l->labels;
        if (!(t->labels & (LABEL_ALONE | LABEL_RANKS | LABEL_SLOW)))
            t->labels |= LABEL_FAST;
        t->file = name_of_file(t->file);
        PUSH(mem(), jobs, n, cap, ((TestJob){t, 0}));
    }
    qsort(jobs, (size_t)n, sizeof *jobs, test_job_order);
    *njobs = n;
    return jobs;
}

/* ---- what is wanted ---- */

typedef struct Wanted {
    int at_once, with, without;
    bool list;
    const char **filter;
    bool *used; /* whether a filter names anything */
    int nfilters;
} Wanted;

/* The name of a file names its tests; a pattern must fit; else a part is enough. */
static bool filter_fits(const char *filter, const TestCase *t) {
    char full[512];
    snprintf(full, sizeof full, "%s.%s", t->file, t->name);
    if (strpbrk(filter, "*?["))
        return fnmatch(filter, full, 0) == 0 || fnmatch(filter, t->file, 0) == 0;
    for (const TestCase *other = first_test; other; other = other->next)
        if (!strcmp(other->file, filter)) return !strcmp(t->file, filter);
    return strstr(full, filter) != NULL;
}

static bool is_wanted(const Wanted *w, const TestCase *t) {
    bool named = !w->nfilters;
    for (int i = 0; i < w->nfilters; i++)
        if (filter_fits(w->filter[i], t)) named = w->used[i] = true;
    return named && (!w->with || t->labels & w->with) && !(t->labels & w->without);
}

static int label_bit(const char *name) {
    for (int i = 0; i < ARRAY_LEN(label_names); i++)
        if (name && !strcmp(name, label_names[i].name)) return label_names[i].bit;
    fail(EXIT_CONFIG, "there is no label '%s'\n%s", name ? name : "", usage);
}

static int at_once_of(const char *text) {
    char *end = NULL;
    long n = text ? strtol(text, &end, 10) : 0;
    if (n < 1 || n > 256 || *end)
        fail(EXIT_CONFIG, "-j wants a number from 1 to 256, not '%s'", text ? text : "");
    return (int)n;
}

static int cores(void) {
    cpu_set_t mask;
    return sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
}

static Wanted read_words(int argc, char **argv) {
    Wanted w = {.at_once = cores()};
    w.filter = NEW_ARRAY(mem(), const char *, (size_t)argc);
    w.used = NEW_ARRAY(mem(), bool, (size_t)argc);
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "--help")) {
            printf("%s", usage);
            exit(0);
        }
        if (!strcmp(word, "--list"))
            w.list = true;
        else if (!strcmp(word, "--label"))
            w.with |= label_bit(argv[++i]);
        else if (!strcmp(word, "--without"))
            w.without |= label_bit(argv[++i]);
        else if (!strncmp(word, "-j", 2))
            w.at_once = at_once_of(word[2] ? word + 2 : argv[++i]);
        else if (word[0] == '-')
            fail(EXIT_CONFIG, "there is no flag '%s'\n%s", word, usage);
        else
            w.filter[w.nfilters++] = word;
    }
    return w;
}

/* The jobs that are wanted; every filter must name some. */
static TestJob **choose(const Wanted *w, TestJob *jobs, int njobs, int *nchosen) {
    TestJob **chosen = NEW_ARRAY(mem(), TestJob *, (size_t)njobs + 1);
    int n = 0;
    for (int i = 0; i < njobs; i++)
        if (is_wanted(w, jobs[i].test)) chosen[n++] = &jobs[i];
    for (int i = 0; i < w->nfilters; i++)
        if (!w->used[i])
            fail(EXIT_CONFIG, "no test is called '%s'; --list says what there is",
                 w->filter[i]);
    *nchosen = n;
    return chosen;
}

static void list(TestJob **chosen, int n) {
    for (int i = 0; i < n; i++) {
        const TestCase *t = chosen[i]->test;
        printf("%s.%s", t->file, t->name);
        for (int k = 0; k < ARRAY_LEN(label_names); k++)
            if (t->labels & label_names[k].bit) printf(" %s", label_names[k].name);
        printf("\n");
    }
}

/* ---- a test that runs itself again ---- */

static const char again_name[] = "STATOR_TEST_AGAIN", again_temp[] = "STATOR_TEST_TEMP";
static const TestCase *running;

bool test_quick(void) {
    return running->labels & LABEL_QUICK && !test_long();
}

_Noreturn void test_run_here(const TestCase *t) {
    running = t;
    alarm((unsigned)t->seconds);
    if (test_quick()) setenv("STATOR_JIT_LEVEL", "O0", 0);
    if (t->run_of)
        t->run_of(t->what);
    else
        t->run();
    fflush(NULL);
    _exit(0);
}

_Noreturn void test_again(const char *variable, const char *value) {
    setenv(variable, value, 1);
    setenv(again_name, arena_printf(mem(), "%s.%s", running->file, running->name), 1);
    setenv(again_temp, temp_dir(), 1);
    fflush(NULL);
    execl("/proc/self/exe", "stator-test", (char *)NULL);
    test_fail(__FILE__, __LINE__, "cannot run this program again: %s", strerror(errno));
}

static void run_again(TestJob *jobs, int njobs) {
    const char *name = getenv(again_name), *temp = getenv(again_temp);
    if (!name || !temp) return;
    test_set_temp(temp);
    for (int i = 0; i < njobs; i++) {
        const TestCase *t = jobs[i].test;
        if (!strcmp(arena_printf(mem(), "%s.%s", t->file, t->name), name))
            test_run_here(t);
    }
    fail(EXIT_CONFIG, "%s=%s names no test", again_name, name);
}

/* Several tests share the cores, and what they start inherits this: threads that wait for
 * each other, and ranks inside of MPI, leave the core to those that have something to do.
 * libgomp reads it when it is loaded, so this program begins again. */
static void leave_cores_to_others(char **argv) {
    static const char policy[] = "OMP_WAIT_POLICY";
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (getenv(policy)) return;
    setenv(policy, "passive", 1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv) {
    leave_cores_to_others(argv);
    static const char seconds_path[] = BUILD_DIR "/tests/seconds.txt";
    int njobs, nchosen;
    TestJob *jobs = all_jobs(&njobs);
    run_again(jobs, njobs);
    Wanted w = read_words(argc, argv);
    TestJob **chosen = choose(&w, jobs, njobs, &nchosen);
    if (w.list) {
        list(chosen, nchosen);
        return 0;
    }
    /* tests send them, also under nohup and behind a shell's & */
    static const int sent[] = {SIGHUP, SIGINT, SIGQUIT};
    for (int i = 0; i < ARRAY_LEN(sent); i++) signal(sent[i], SIG_DFL);
    /* So that a test never finds what another build has compiled. */
    setenv("STATOR_CACHE", BUILD_DIR "/cache", 0);
    test_recall(seconds_path, jobs, njobs);
    TestTally tally = test_run(chosen, nchosen, w.at_once);
    test_remember(seconds_path, jobs, njobs);
    printf("stator-test: %d passed, %d failed, %d skipped\n", tally.passed, tally.failed,
           tally.skipped);
    return tally.failed != 0;
}
