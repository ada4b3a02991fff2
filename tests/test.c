/* test.c - what tests call; see test.h. test_main.c chooses and runs them. */
#define _GNU_SOURCE
#include "test.h"
#include "test_run.h"
#include <sys/stat.h>
#include <unistd.h>

static bool set_to_1(const char *variable) {
    const char *set = getenv(variable);
    return set && !strcmp(set, "1");
}

bool test_long(void) {
    return set_to_1("STATOR_LONG_TESTS");
}

bool test_bless(void) {
    return set_to_1("STATOR_BLESS");
}

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    _exit(TEST_FAILED);
}

_Noreturn void test_skip(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("  skipped: ");
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
    fflush(stdout);
    _exit(TEST_SKIPPED);
}

static char *now_at;

void test_set_at(char *at) {
    now_at = at;
}

void test_at(const char *fmt, ...) {
    if (!now_at) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(now_at, TEST_AT_BYTES, fmt, ap);
    va_end(ap);
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

/* The folder of the case that this process runs, not made before it is asked for. */
static char temp_path[256];

void test_set_temp(const char *path) {
    snprintf(temp_path, sizeof temp_path, "%s", path);
}

const char *temp_dir(void) {
    struct stat st;
    if (stat(temp_path, &st) != 0 && mkdir(temp_path, 0700) != 0)
        test_fail(__FILE__, __LINE__, "cannot make the folder '%s'", temp_path);
    return temp_path;
}

void write_text(const char *path, const char *text) {
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
}
