/* test.c - the harness behind test.h. */
#define _GNU_SOURCE
#include "test.h"
#include <ftw.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_FAILED = 101, CHILD_SKIPPED = 102 };

static TestCase *tests;
static char temp_path[256];

bool test_long(void) {
    const char *set = getenv("STATOR_LONG_TESTS");
    return set && !strcmp(set, "1");
}

void test_register(TestCase *t) {
    TestCase **end = &tests;
    while (*end) end = &(*end)->next;
    *end = t;
}

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    _exit(CHILD_FAILED);
}

_Noreturn void test_skip(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("  skipped: ");
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
    fflush(stdout);
    _exit(CHILD_SKIPPED);
}

const char *shared_dir(void) {
    static char path[1024];
    const char *set = getenv("STATOR_SHARED");
    snprintf(path, sizeof path, "%s", set ? set : TESTS_DIR "/../../shared");
    return access(path, R_OK) == 0 ? path : NULL;
}

const char *tests_dir(void) {
    return TESTS_DIR;
}

const char *temp_dir(void) {
    if (!temp_path[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(temp_path, sizeof temp_path, "%.200s/stator-test-XXXXXX",
                 base ? base : "/tmp");
        if (!mkdtemp(temp_path)) test_fail(__FILE__, __LINE__, "mkdtemp failed");
    }
    return temp_path;
}

static int remove_entry(const char *path, const struct stat *st, int flag,
                        struct FTW *f) {
    (void)st, (void)flag, (void)f;
    return remove(path);
}

static void run_child(TestCase *t) {
    alarm((unsigned)t->seconds);
    t->run();
    if (temp_path[0]) nftw(temp_path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    fflush(NULL);
    _exit(0);
}

int main(int argc, char **argv) {
    const char *filter = argc > 1 ? argv[1] : "";
    const char *program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    int passed = 0, failed = 0, skipped = 0;
    for (TestCase *t = tests; t; t = t->next) {
        if (!strstr(t->name, filter)) continue;
        double start = clock_seconds();
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) run_child(t);
        int status = 0;
        waitpid(pid, &status, 0);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        const char *word = code == 0 ? "ok" : code == CHILD_SKIPPED ? "skip" : "FAIL";
        passed += code == 0;
        skipped += code == CHILD_SKIPPED;
        failed += code != 0 && code != CHILD_SKIPPED;
        printf("%-4s %s (%.1f s)\n", word, t->name, clock_seconds() - start);
        if (code == -SIGALRM)
            printf("     ran longer than %d s\n", t->seconds);
        else if (code < 0)
            printf("     ended by signal %d (%s)\n", -code, strsignal(-code));
        else if (code && code != CHILD_FAILED && code != CHILD_SKIPPED)
            printf("     ended with exit code %d\n", code);
    }
    printf("%s: %d passed, %d failed, %d skipped\n", program, passed, failed, skipped);
    return failed != 0;
}
