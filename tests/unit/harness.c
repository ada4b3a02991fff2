/* harness.c - what stator-test says of a test that cannot speak for itself any more. */
#include "../test.h"
#include <signal.h>
#include <unistd.h>

static const char breaks[] = "STATOR_TEST_BREAKS";

static void say_much(void) {
    char line[4097];
    memset(line, 'x', sizeof line);
    for (int i = 0; i < 17 << 10; i++) fwrite(line, 1, sizeof line, stdout); /* 68 MiB */
    puts("that was much");
    fflush(stdout);
}

/* Asks the scheduler to end, and does not end itself. */
static void hold_on(void) {
    signal(SIGTERM, SIG_IGN);
    kill(getppid(), SIGTERM);
    sleep(60);
}

static void breaks_by(const char *how) {
    test_at("the first of two");
    test_at("the %s of two", "second");
    if (!strcmp(how, "words")) say_much();
    if (!strcmp(how, "holding")) hold_on();
    if (!strcmp(how, "exit")) exit(7);
    abort();
}

/* Not there in other runs. */
TEST_MADE(broken) {
    if (!getenv(breaks)) return;
    test_add("by_abort", breaks_by, "abort");
    test_add("by_exit", breaks_by, "exit");
    test_add("by_words", breaks_by, "words");
    test_add("by_holding", breaks_by, "holding");
}

static char *words_of(Arena *mem, const char *name) {
    FILE *p = popen(
        arena_printf(mem, "%s=1 %s/tests/stator-test %s", breaks, BUILD_DIR, name), "r");
    EXPECT(p != NULL);
    Text t = text_new(mem);
    char line[512];
    for (size_t n; (n = fread(line, 1, sizeof line, p));) text_add_bytes(&t, line, n);
    EXPECT(pclose(p) != 0);
    return t.s;
}

TEST(tells_at_what_a_test_ended) {
    Arena *mem = arena_new();
    EXPECT_PART(words_of(mem, "harness.by_abort"), "), at: the second of two\n");
    EXPECT_PART(words_of(mem, "harness.by_exit"),
                "     ended with exit code 7, at: the second of two\n");
    arena_free(mem);
}

TEST(tells_the_end_of_very_much) {
    Arena *mem = arena_new();
    const char *said = words_of(mem, "harness.by_words");
    EXPECT(strlen(said) < 10 << 20);
    EXPECT_PART(said, "xxx");
    EXPECT_PART(said, "that was much\n     ended by signal 6");
    arena_free(mem);
}

TEST(ends_a_test_that_does_not_want_to) {
    Arena *mem = arena_new();
    double start = clock_seconds();
    EXPECT_PART(words_of(mem, "harness.by_holding 2>&1"),
                "stator-test: ended by signal 15");
    EXPECT(clock_seconds() - start < 30);
    arena_free(mem);
}
TEST_LABEL_OF(ends_a_test_that_does_not_want_to, SLOW);
