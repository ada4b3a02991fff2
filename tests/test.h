/* test.h - a small harness: TEST(name) { ... } bodies register themselves; each runs in
 * a forked child with a time limit; the last line is "NAME: N passed, N failed, N
 * skipped". A test fails by EXPECT or by dying; SKIP("why") ends it as skipped. A program
 * takes an optional name filter as its first argument. */
#ifndef STATOR_TEST_H
#define STATOR_TEST_H
#include "base/base.h"
#include <math.h>
#include <stdlib.h>

typedef struct TestCase {
    const char *name;
    void (*run)(void);
    int seconds;
    struct TestCase *next;
} TestCase;
void test_register(TestCase *t);
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* STATOR_LONG_TESTS=1 asks for as many kills, stops and repetitions as a release wants,
 * which take longer than ./check may. */
bool test_long(void);

#define TEST_LIMIT(id, limit_seconds)                                                    \
    static void test_##id(void);                                                         \
    __attribute__((constructor)) static void register_##id(void) {                       \
        static TestCase t = {#id, test_##id, limit_seconds, NULL};                       \
        test_register(&t);                                                               \
    }                                                                                    \
    static void test_##id(void)
#define TEST(id) TEST_LIMIT(id, 60)

#define EXPECT(cond)                                                                     \
    do {                                                                                 \
        if (!(cond)) test_fail(__FILE__, __LINE__, "expected: %s", #cond);               \
    } while (0)
#define EXPECT_STR(a, b)                                                                 \
    do {                                                                                 \
        const char *a_ = (a), *b_ = (b);                                                 \
        if (strcmp(a_, b_))                                                              \
            test_fail(__FILE__, __LINE__, "got\n%s\nwanted\n%s", a_, b_);                \
    } while (0)
/* |a - b| <= tol * max(1, |b|) */
#define EXPECT_NEAR(a, b, tol)                                                           \
    do {                                                                                 \
        double a_ = (a), b_ = (b);                                                       \
        if (!(fabs(a_ - b_) <= (tol)*fmax(1, fabs(b_))))                                 \
            test_fail(__FILE__, __LINE__, "%s = %.9g, wanted %.9g", #a, a_, b_);         \
    } while (0)
/* Runs `call`; it must end in a user failure with this code whose message has `part`. */
#define EXPECT_FAIL(call, want_code, part)                                               \
    do {                                                                                 \
        Catch c_;                                                                        \
        if (CATCH(c_)) {                                                                 \
            call;                                                                        \
            catch_end(&c_);                                                              \
            test_fail(__FILE__, __LINE__, "no failure; wanted '%s'", part);              \
        }                                                                                \
        if (c_.code != (want_code) || !strstr(c_.message, part))                         \
            test_fail(__FILE__, __LINE__, "code %d, message:\n%s\nwanted code %d: %s",   \
                      c_.code, c_.message, want_code, part);                             \
    } while (0)

/* Folder of the shared reference data, or NULL (then skip, saying so). */
const char *shared_dir(void);
/* Folder of the checkout's tests/ (set at configure time). */
const char *tests_dir(void);
/* A fresh empty folder for this test; removed when the test program ends. */
const char *temp_dir(void);

#endif
