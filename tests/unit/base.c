/* base.c - small things that all stand on: numbers for people, sizes rounded up. */
#include "base/base.h"
#include "../test.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(numbers_for_people) {
    static const struct {
        double v;
        const char *unit, *want;
    } cases[] = {
        {0, "", "0"},
        {0, "B", "0 B"},
        {999, "", "999"},
        {999.4, "", "999"},
        {999.5, "", "1.00 k"},
        {1000, "B", "1.00 kB"},
        {9994, "", "9.99 k"},
        {9996, "", "10.0 k"},
        {99940, "", "99.9 k"},
        {99960, "", "100 k"},
        {999499, "", "999 k"},
        {999500, "", "1.00 M"},
        {4.56e9, "B", "4.56 GB"},
        {1.5e12, "flop", "1.50 Tflop"},
        {2e24, "", "2.00 Y"},
        {5e27, "", "5000 Y"},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++)
        EXPECT_STR(human(cases[i].v, cases[i].unit).s, cases[i].want);
    EXPECT(strlen(human(1.7e308, "B").s) < sizeof(Human)); /* cut, not run over */
}

TEST(sizes_rounded_up) {
    EXPECT(round_up(0, 3) == 0 && round_up(1, 3) == 3 && round_up(3, 3) == 3);
    EXPECT(round_up(INT64_MAX / 2, 1) == INT64_MAX / 2);
    EXPECT(align_up(0) == 0 && align_up(1) == 64 && align_up(64) == 64);
    EXPECT(align_up(65) == 128);
}

TEST(ends_of_names) {
    EXPECT(ends_with("a.gz", ".gz") && ends_with(".gz", ".gz") && ends_with("a", ""));
    EXPECT(!ends_with("gz", ".gz") && !ends_with("a.gz.", ".gz") && !ends_with("", "a"));
}

TEST(names_behind_the_last_slash) {
    EXPECT_STR(path_name("a/b.c"), "b.c");
    EXPECT_STR(path_name("b.c"), "b.c");
    EXPECT_STR(path_name("/a/"), "");
}

TEST(an_open_file_is_at_its_path_until_it_moves) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, temp_dir(), "held");
    const char *to = path_join(mem, temp_dir(), "moved");
    file_write(path, "x", 1, EXIT_DATA);
    int fd = open(path, O_RDONLY);
    EXPECT(fd >= 0 && fd_is_at(fd, path) && !fd_is_at(fd, to));
    EXPECT_INT(rename(path, to), 0);
    EXPECT(!fd_is_at(fd, path) && fd_is_at(fd, to));
    file_write(path, "x", 1, EXIT_DATA); /* another one */
    EXPECT(!fd_is_at(fd, path));
    close(fd);
    arena_free(mem);
}

TEST(processes_have_a_state_and_a_parent) {
    int parent = 0, pid = fork();
    if (!pid) {
        prctl(PR_SET_NAME, "a ) T 1 (");
        raise(SIGSTOP);
        _exit(0);
    }
    EXPECT(pid > 0 && waitpid(pid, NULL, WUNTRACED) == pid);
    EXPECT_INT(process_state(pid, &parent), 'T');
    EXPECT_INT(parent, getpid());
    kill(pid, SIGKILL);
    EXPECT(waitpid(pid, NULL, 0) == pid);
    EXPECT_INT(process_state(pid, &parent), 0);
}

TEST(a_file_gets_all_of_what_is_appended_or_nothing) {
    Arena *mem = arena_new();
    const char *path = path_join(mem, temp_dir(), "lines");
    size_t n;
    EXPECT_INT(file_append(path, "one\n", 4), 0);
    EXPECT_INT(file_append(path, "two\n", 4), 0);
    EXPECT_STR(file_read(mem, path, 100, &n, EXIT_DATA), "one\ntwo\n");
    struct rlimit old, few = {10, RLIM_INFINITY};
    EXPECT_INT(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &few), 0);
    EXPECT_INT(file_append(path, "three\n", 6), EFBIG);
    EXPECT_INT(setrlimit(RLIMIT_FSIZE, &old), 0);
    EXPECT_STR(file_read(mem, path, 100, &n, EXIT_DATA), "one\ntwo\n");
    EXPECT_INT(file_append(temp_dir(), "x", 1), EISDIR);
    arena_free(mem);
}

/* All, or none: one that cannot be written leaves the others as they were. */
TEST(files_are_written_together) {
    Arena *mem = arena_new();
    size_t n;
    FileBytes file[] = {{path_join(mem, temp_dir(), "a"), "one", 3},
                        {path_join(mem, temp_dir(), "b"), "two", 3},
                        {path_join(mem, temp_dir(), "no/c"), "three", 5}};
    files_write(file, 2, EXIT_DATA);
    file[0].bytes = file[1].bytes = "new";
    EXPECT_FAIL(files_write(file, 3, EXIT_DATA), EXIT_DATA, "no/c: No such file");
    EXPECT_STR(file_read(mem, file[0].path, 100, &n, EXIT_DATA), "one");
    EXPECT_STR(file_read(mem, file[1].path, 100, &n, EXIT_DATA), "two");
    EXPECT(!file_exists(arena_printf(mem, "%s.tmp", file[0].path)));
    EXPECT(!file_exists(arena_printf(mem, "%s.tmp", file[1].path)));
    EXPECT_INT(symlink("a", arena_printf(mem, "%s.tmp", file[1].path)), 0);
    EXPECT_FAIL(files_write(file, 2, EXIT_DATA), EXIT_DATA, "/b: Too many levels");
    struct stat link; /* which is not ours to remove */
    EXPECT_INT(lstat(arena_printf(mem, "%s.tmp", file[1].path), &link), 0);
    EXPECT(!file_exists(arena_printf(mem, "%s.tmp", file[0].path)));
    EXPECT_INT(unlink(arena_printf(mem, "%s.tmp", file[1].path)), 0);
    files_write(file, 2, EXIT_DATA);
    EXPECT_STR(file_read(mem, file[1].path, 100, &n, EXIT_DATA), "new");
    arena_free(mem);
}

TEST(numbered_names) {
    Arena *mem = arena_new();
    EXPECT_STR(arena_numbered(mem, "k", 0), "k0");
    EXPECT_STR(arena_numbered(mem, "", 10), "10");
    EXPECT_STR(arena_numbered(mem, "name.", INT32_MAX), "name.2147483647");
    arena_free(mem);
}

/* Shorter and longer than what is formatted at once. */
TEST(printed_texts_of_any_length) {
    Arena *mem = arena_new();
    char text[1000];
    for (int n = 1; n < (int)sizeof text; n++) {
        memset(text, 'x', (size_t)n);
        text[n] = 0;
        EXPECT_STR(arena_printf(mem, "%s%d", text, 7), arena_printf(mem, "%s7", text));
        EXPECT(strlen(arena_printf(mem, "%s", text)) == (size_t)n);
    }
    arena_free(mem);
}

/* A name that pretends to be a message of its own. */
TEST(names_begin_no_lines_of_messages) {
    const char *name = "a\nstator: error: x", *shown = "a?stator: error: x";
    Arena *mem = arena_new();
    SourcePos at = {name, "w: 1", 1, 1};
    EXPECT_FAIL(fail(EXIT_DATA, "%s is odd\n    write b", name), EXIT_DATA,
                arena_printf(mem, "stator: error: %s is odd\n    write b", shown));
    EXPECT_FAIL(fail_at(EXIT_DATA, at, name, "no %s", name), EXIT_DATA,
                arena_printf(mem, "%s:1:1: error: no %s\n    w: 1\n    ^\n    hint: %s",
                             shown, shown, shown));
    arena_free(mem);
}

/* In any order; the others, of the inner and the outer one, go with the failure (a leak would be
 * told by sanitizers, an end before by Catch itself). */
TEST(a_failure_frees_scratch_arenas) {
    Catch outer, inner;
    Arena *alone = arena_scratch();
    if (CATCH(outer)) {
        Arena *a = arena_scratch(), *b = arena_scratch();
        if (CATCH(inner)) {
            arena_alloc(arena_scratch(), 100000);
            arena_free(b);
            fail(EXIT_DATA, "%s", arena_strdup(arena_scratch(), "inner"));
        }
        EXPECT_STR(catch_text(&inner), "inner");
        arena_alloc(a, 10);
        fail_again(inner.code, inner.message);
    }
    EXPECT_STR(catch_text(&outer), "inner");
    arena_free(alone);
}
