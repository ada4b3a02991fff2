/* test.h - a small harness: TEST(name) { ... } bodies register themselves and are linked
 * into one program, stator-test. Each runs in a forked child with a time limit, several at
 * a time. A test fails by EXPECT or by dying; SKIP("why") ends it as skipped. */
#ifndef STATOR_TEST_H
#define STATOR_TEST_H
#include "base/base.h"
#include <math.h>
#include <stdlib.h>

/* What the scheduler and `--label` know of a test; without one of the first three it is
 * fast, and belongs to `./check fast`. */
enum {
    LABEL_ALONE = 1,    /* measures time or uses all cores: nothing runs beside it */
    LABEL_RANKS = 2,    /* starts processes of several ranks and mostly waits for them */
    LABEL_SLOW = 4,     /* takes seconds */
    LABEL_RELEASED = 8, /* as released only: what it runs, others run under sanitizers */
    LABEL_FAST = 16,    /* has none of the first three; not to be given by hand */
    LABEL_QUICK =
        32 /* code is made with O0, but in the long form: it is about other things, or others have
              such code with O2 */
};

typedef struct TestCase {
    const char *file; /* __FILE__; once all are registered, its name alone */
    const char *name;
    void (*run)(void);
    int seconds; /* it may take */
    void (*run_of)(const char *what);
    const char *what; /* of a case that was added */
    int labels;
    struct TestCase *next;
} TestCase;
void test_register(TestCase *t);

typedef struct TestLabel {
    const char *file;
    void (*run)(void); /* NULL: all of the file */
    int labels;
    struct TestLabel *next;
} TestLabel;
void test_label(TestLabel *l);

typedef struct TestMaker {
    const char *file;
    void (*make)(void);
    struct TestMaker *next;
} TestMaker;
void test_maker(TestMaker *m);
/* In a TEST_MADE alone: a case `name` of its file, which calls run_of(what). The strings
 * stay. */
void test_add(const char *name, void (*run_of)(const char *what), const char *what);

_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* What the test does now, which is told when it ends by a signal or an exit, or takes too
 * long: its own words are not to be had then. */
void test_at(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* STATOR_LONG_TESTS=1 asks for as many kills, stops and repetitions as a release wants,
 * which take longer than ./check may. */
bool test_long(void);
/* Is code to be made with O0, as the test is labelled QUICK? */
bool test_quick(void);
/* STATOR_BLESS=1 asks to write what comes out over what was wanted; read the diff. */
bool test_bless(void);
/* Runs this test anew in a program that begins with a variable set: for what libraries
 * read when they are loaded. It is set then, which is how the test knows. */
_Noreturn void test_again(const char *variable, const char *value);

#define TEST_LIMIT(id, limit_seconds)                                                    \
    static void test_##id(void);                                                         \
    __attribute__((constructor)) static void register_##id(void) {                       \
        static TestCase t = {__FILE__, #id, test_##id, limit_seconds};                   \
        test_register(&t);                                                               \
    }                                                                                    \
    static void test_##id(void)
#define TEST(id) TEST_LIMIT(id, 60)

/* TEST_LABEL(RANKS) is said of all tests of the file, TEST_LABEL_OF(name, SLOW) of one. */
#define TEST_LABEL(label) TEST_LABEL_ROW(file, NULL, label)
#define TEST_LABEL_OF(id, label)                                                         \
    static void test_##id(void);                                                         \
    TEST_LABEL_ROW(id, test_##id, label)
#define TEST_LABEL_ROW(id, run, label)                                                   \
    __attribute__((constructor)) static void label_##label##_##id(void) {                \
        static TestLabel l = {__FILE__, run, LABEL_##label, NULL};                       \
        test_label(&l);                                                                  \
    }                                                                                    \
    _Static_assert(LABEL_##label, "a label")

/* TEST_MADE(cases) { test_add(...); ... }: cases that are found when the program starts. */
#define TEST_MADE(id)                                                                    \
    static void make_##id(void);                                                         \
    __attribute__((constructor)) static void register_make_##id(void) {                  \
        static TestMaker m = {__FILE__, make_##id, NULL};                                \
        test_maker(&m);                                                                  \
    }                                                                                    \
    static void make_##id(void)

#define EXPECT(cond)                                                                     \
    do {                                                                                 \
        if (!(cond)) test_fail(__FILE__, __LINE__, "expected: %s", #cond);               \
    } while (0)
/* Whole numbers, which no other type passes for: both are shown when they differ. */
#define EXPECT_INT(a, b)                                                                 \
    do {                                                                                 \
        (void)sizeof((a) & (b));                                                         \
        long long a_ = (long long)(a), b_ = (long long)(b);                              \
        if (a_ != b_)                                                                    \
            test_fail(__FILE__, __LINE__, "%s = %lld, wanted %lld (%s)", #a, a_, b_,     \
                      #b);                                                               \
    } while (0)
#define EXPECT_STR(a, b)                                                                 \
    do {                                                                                 \
        const char *a_ = (a), *b_ = (b);                                                 \
        if (strcmp(a_, b_))                                                              \
            test_fail(__FILE__, __LINE__, "got\n%s\nwanted\n%s", a_, b_);                \
    } while (0)
/* `part` stands somewhere in `text`. */
#define EXPECT_PART(text, part)                                                          \
    do {                                                                                 \
        const char *a_ = (text), *b_ = (part);                                           \
        if (!strstr(a_, b_))                                                             \
            test_fail(__FILE__, __LINE__, "wanted '%s' in %s:\n%s", b_, #text, a_);      \
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
/* A fresh empty folder for this test; removed when it has ended. */
const char *temp_dir(void);
void write_text(const char *path, const char *text);

#endif
