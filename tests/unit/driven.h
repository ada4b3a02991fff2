/* driven.h - for tests that run the command stator itself: start it, wait for it, read
 * what it said and what it left in its run folder. */
#ifndef STATOR_DRIVEN_H
#define STATOR_DRIVEN_H
#include "../mem.h"
#include "../test.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* A path in the test's own folder. */
static inline const char *in_temp(const char *name) {
    return path_join(mem(), temp_dir(), name);
}

static inline const char *stator_program(void) {
    const char *set = getenv("STATOR_BIN");
#ifdef BUILD_DIR
    return set ? set : BUILD_DIR "/stator";
#else
    if (!set) test_skip("STATOR_BIN does not name the program");
    return set;
#endif
}

/* Words of a command line after the program's name; blanks separate. */
enum { DRIVEN_WORDS = 64 };
static inline void split_words(char *text, char **word) {
    int n = 0;
    char *save = NULL;
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        EXPECT(n < DRIVEN_WORDS - 1);
        word[n++] = w;
    }
    word[n] = NULL;
}

/* Called in the child before exec, when set. */
static void (*driven_prepare)(void);

static inline pid_t stator_start(const char *words) {
    char *argv[DRIVEN_WORDS + 1] = {(char *)(uintptr_t)stator_program()};
    split_words(arena_strdup(mem(), words), argv + 1);
    const char *output = in_temp("output.txt");
    fflush(NULL);
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid) return pid;
    int fd = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    close(fd);
    if (driven_prepare) driven_prepare();
    execv(argv[0], argv);
    fprintf(stderr, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(126);
}

/* Exit code, or minus the signal. */
static inline int stator_wait(pid_t pid) {
    int status = 0;
    EXPECT_INT(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* What the last program said, on stdout and stderr together. */
static inline const char *said(void) {
    return file_read(mem(), in_temp("output.txt"), 1 << 26, NULL, EXIT_DATA);
}

#define RUN_EXPECT(want_code, words)                                                     \
    do {                                                                                 \
        int code_ = stator_wait(stator_start(words));                                    \
        if (code_ != (want_code))                                                        \
            test_fail(__FILE__, __LINE__, "exit code %d, wanted %d:\n%s", code_,         \
                      (want_code), said());                                              \
    } while (0)
#define SAID_EXPECT(part)                                                                \
    do {                                                                                 \
        if (!strstr(said(), part))                                                       \
            test_fail(__FILE__, __LINE__, "wanted '%s' in:\n%s", part, said());          \
    } while (0)

static inline void remove_all(const char *path) {
    EXPECT_INT(system(arena_printf(mem(), "rm -rf '%s'", path)), 0);
}

/* Two files hold the same bytes. */
static inline bool same_file(const char *a, const char *b) {
    size_t na, nb;
    const char *x = file_read(mem(), a, 1u << 30, &na, EXIT_DATA);
    const char *y = file_read(mem(), b, 1u << 30, &nb, EXIT_DATA);
    return na == nb && memcmp(x, y, na) == 0;
}

#endif
