/* op_docs.c - docs/ops.md is what the op table says. */
#include "../test.h"
#include <sys/wait.h>

/* What op_docs prints for a table. */
static char *page_of(Arena *mem, const char *path, int *status) {
    size_t max = 1 << 20;
    char *page = arena_alloc(mem, max);
    FILE *p = popen(arena_printf(mem, "%s/op_docs %s 2>&1", BUILD_DIR, path), "r");
    EXPECT(p);
    page[fread(page, 1, max - 1, p)] = 0;
    *status = WEXITSTATUS(pclose(p));
    return page;
}

TEST(page_is_current) {
    Arena *mem = arena_new();
    size_t n;
    int status;
    char *page = page_of(mem, path_join(mem, tests_dir(), "../ir/ops.def"), &status);
    if (status) test_fail(__FILE__, __LINE__, "%s", page);
    char *have = file_read(mem, path_join(mem, tests_dir(), "../docs/ops.md"), 1 << 20,
                           &n, EXIT_DATA);
    if (strcmp(have, page))
        test_fail(__FILE__, __LINE__,
                  "docs/ops.md is not what ops.def says; write it "
                  "again: cmake --build build --target docs");
    arena_free(mem);
}

/* Rows that cannot be described are refused, at their line. */
TEST(tables_without_sentences) {
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"/* ---- A ---- */\n\nOP(dot, 2)\n", ":3: an op needs a comment"},
        {"/* ---- A ---- */\n\n/* a\n * b */\n\nOP(dot, 2)\n",
         ":6: an op needs a comment"},
        {"/* a */\nOP(dot, 2)\n", ":2: an op needs a comment"},
        {"/* ---- A ---- */\n/* a */\nOP(none, 2)\n", ":3: a row that optab lacks"},
        {"/* ---- A */\n", ":1: a section is"},
        {"\n/* A\n", ":2: a comment without end"},
        {"/* ---- A ---- */\n/* a */\nOP(dot, 2)\n", ":4: not every row of optab"},
    };
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        Arena *mem = arena_new();
        int status;
        char *path = path_join(mem, temp_dir(), "bad.def");
        EXPECT_INT(file_write_atomic(path, bad[i].text, strlen(bad[i].text)), 0);
        char *said = page_of(mem, path, &status);
        if (status != 1 || !strstr(said, bad[i].message))
            test_fail(__FILE__, __LINE__, "case %d: status %d,\n%s", i, status, said);
        arena_free(mem);
    }
}
