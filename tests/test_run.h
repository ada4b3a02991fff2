/* test_run.h - between the parts of the harness: the tests that were chosen are run,
 * several at a time, each in a process of its own. */
#ifndef STATOR_TEST_RUN_H
#define STATOR_TEST_RUN_H
#include "test.h"

enum { TEST_FAILED = 101, TEST_SKIPPED = 102 }; /* exit codes of a test's process */

/* Where temp_dir() makes the folder of the case that this process runs. */
void test_set_temp(const char *path);

/* Where test_at() writes, seen by the process that waits for this one. */
enum { TEST_AT_BYTES = 512 };
void test_set_at(char *at);

/* Runs the test in this process and ends it. */
_Noreturn void test_run_here(const TestCase *t);

typedef struct TestJob {
    const TestCase *test;
    double seconds; /* that it took this time or the last time; 0: unknown */
} TestJob;

typedef struct TestTally {
    int passed, failed, skipped;
} TestTally;

/* Runs the jobs, `at_once` at a time, the longest first; says how each ends, and shows
 * again what those that failed said. Uses up the array. */
TestTally test_run(TestJob **jobs, int njobs, int at_once);

/* By file and name. */
int test_job_order(const void *a, const void *b);

/* Seconds that tests took the last time, kept between runs in a file of lines. The jobs
 * are all that there are, in test_job_order. */
void test_recall(const char *path, TestJob *jobs, int njobs);
void test_remember(const char *path, const TestJob *jobs, int njobs);

#endif
