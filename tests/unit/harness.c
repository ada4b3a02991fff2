/* harness.c - what stator-test says of a test that cannot speak for itself any more. */
#include "../test.h"

static const char breaks[] = "STATOR_TEST_BREAKS";

static void breaks_by(const char *how) {
    test_at("the first of two");
    test_at("the %s of two", "second");
    if (!strcmp(how, "exit")) exit(7);
    abort();
}

/* Not there in other runs. */
TEST_MADE(broken) {
    if (!getenv(breaks)) return;
    test_add("by_abort", breaks_by, "abort");
    test_add("by_exit", breaks_by, "exit");
}

static char *words_of(Arena *mem, const char *name) {
    FILE *p = popen(
        arena_printf(mem, "%s=1 %s/tests/stator-test %s", breaks, BUILD_DIR, name), "r");
    EXPECT(p != NULL);
    Text t = text_new(mem);
    char line[512];
    while (fgets(line, sizeof line, p)) text_add(&t, "%s", line);
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
