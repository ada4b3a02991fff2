/* preprocess_ends.c - what the command preprocess leaves when the disk is full, and when it
 * is killed or stopped. */
#define _GNU_SOURCE
#include "preprocess.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Files bigger than this end in EFBIG, as a full disk ends in ENOSPC. */
static void limit_files(rlim_t bytes) {
    struct rlimit r = {bytes, bytes};
    signal(SIGXFSZ, SIG_IGN); /* as the program has it */
    EXPECT(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

TEST(preprocess_full_disk) {
    size_t n;
    char *text = made_lines(&n), *in = temp("in.jsonl"),
         *old = put_text("o.jsonl", "{\"text\":\"o\"}");
    put(in, text, n);
    RUN("--input", old, "--output-prefix", temp("p"), BYTES);
    worked();
    limit_files(1 << 20);
    RUN("--input", in, "--output-prefix", temp("q"), BYTES, "--workers", "2");
    refused(EXIT_DATA, "q_text_document.bin.tmp: offset 1048576: cannot write: "
                       "File too large");
    nothing_left(temp("q"));
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "p_text_document.bin.tmp: offset");
    EXPECT_STR(shown(temp("p_text_document")), "o|\n"); /* the old pair is still there */
    EXPECT(!file_exists(temp("p_text_document.bin.tmp")));
    if (access("/dev/full", W_OK) == 0) {
        EXPECT(symlink("/dev/full", temp("f_text_document.bin.tmp")) == 0);
        RUN("--input", old, "--output-prefix", temp("f"), BYTES);
        EXPECT_INT(code, EXIT_DATA); /* links are not followed */
    }
}

/* The .idx needs more room than the .bin when documents are many and short. */
TEST(preprocess_full_disk_at_the_end) {
    Text t = text_new(arena_new());
    for (int i = 0; i < 20000; i++) text_add(&t, "{\"text\":\"a\"}\n");
    char *in = put_text("in.jsonl", t.s);
    limit_files(300000); /* .bin 40 kB, .idx 400 kB */
    RUN("--input", in, "--output-prefix", temp("p"), BYTES);
    refused(EXIT_DATA, "p_text_document.idx.tmp: offset");
    nothing_left(temp("p"));
}

/* Starts the command on a pipe that nobody writes to yet; returns its process. */
static pid_t start_on_silent_pipe(const char *pipe, const char *prefix) {
    unlink(pipe);
    EXPECT(mkfifo(pipe, 0600) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char *words[] = {"--input",
                         (char *)pipe,
                         "--output-prefix",
                         (char *)prefix,
                         BYTES,
                         "--workers",
                         "2",
                         NULL};
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        _exit(run_words(words));
    }
    EXPECT(pid > 0);
    return pid;
}

/* A command that reads a pipe, so that it is in the midst of its work until the pipe is
 * closed; returns its process. */
static pid_t start_on_pipe(const char *pipe, const char *prefix, int *fd) {
    pid_t pid = start_on_silent_pipe(pipe, prefix);
    *fd = open(pipe, O_WRONLY);
    EXPECT(*fd >= 0);
    size_t n;
    const char *text = made_lines(&n);
    for (size_t at = 0; at < n;) { /* more than the command holds in memory */
        ssize_t got = write(*fd, text + at, n - at);
        EXPECT(got > 0);
        at += (size_t)got;
    }
    return pid;
}

TEST(preprocess_killed) {
    int fd, status;
    char *pipe = temp("pipe.jsonl"), *p = temp("p");
    pid_t pid = start_on_pipe(pipe, p, &fd);
    char *good = put_text("good.jsonl", "{\"text\":\"good\"}\n");
    RUN("--input", good, "--output-prefix", p, BYTES);
    refused(EXIT_DATA, "another process is writing it");
    EXPECT(file_exists(temp("p_text_document.bin.tmp")));
    EXPECT(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    EXPECT(WIFSIGNALED(status));
    close(fd);
    EXPECT(!file_exists(temp("p_text_document.bin")));
    EXPECT(!file_exists(temp("p_text_document.idx")));
    RUN("--input", good, "--output-prefix", p, BYTES); /* over what was left */
    worked();
    EXPECT_STR(shown(temp("p_text_document")), "good|\n");
}

TEST(preprocess_stopped) {
    int fd, status;
    char *pipe = temp("pipe.jsonl"), *p = temp("p");
    pid_t pid = start_on_pipe(pipe, p, &fd);
    EXPECT(kill(pid, SIGTERM) == 0);
    usleep(100000);
    size_t n;
    const char *text = made_lines(&n);
    signal(SIGPIPE, SIG_IGN);
    for (size_t at = 0; at < n;) {
        ssize_t got = write(fd, text + at, n - at);
        if (got < 0) break;
        at += (size_t)got;
    }
    close(fd);
    EXPECT_INT(waitpid(pid, &status, 0), pid);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SIGNALLED);
    nothing_left(p);
}

/* Where no byte comes: nobody has opened the pipe for writing, or who has is silent. */
TEST(preprocess_stopped_while_it_waits) {
    for (int writer = 0; writer < 2; writer++) {
        char *pipe = temp("pipe.jsonl"), *p = temp("p");
        pid_t pid = start_on_silent_pipe(pipe, p);
        int status, fd = writer ? open(pipe, O_WRONLY) : -1;
        char *begun = cat(p, "_text_document.bin.tmp");
        for (int i = 0; i < 500 && !file_exists(begun); i++) usleep(10000);
        EXPECT(file_exists(begun));
        if (writer) EXPECT_INT(write(fd, "{\"text\"", 7), 7);
        usleep(100000);
        EXPECT(kill(pid, SIGTERM) == 0);
        EXPECT_INT(waitpid(pid, &status, 0), pid);
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SIGNALLED);
        nothing_left(p);
        if (writer) close(fd);
    }
}

/* Who waits for more of a pipe is not waited for when the work has failed: the message comes at
 * once, whatever is packed and however many keys are read. */
TEST(preprocess_fails_while_it_waits) {
    static const char *const ends[] = {".jsonl", ".jsonl.gz"};
    for (int packed = 0; packed < 2; packed++) {
        char *pipe = temp(cat("pipe", ends[packed])), *p = temp("p");
        EXPECT(mkfifo(pipe, 0600) == 0);
        const char *lines =
            "i=0; while [ $i -lt 7000 ]; do echo not json $i; i=$((i+1)); done";
        pid_t writer = fork();
        if (writer == 0) {
            execl("/bin/sh", "sh", "-c",
                  arena_printf(arena_new(), "exec >%s; { %s; } | %s; exec sleep 100",
                               pipe, lines, packed ? "gzip" : "cat"),
                  NULL);
            _exit(126);
        }
        double begun = clock_seconds();
        RUN("--input", pipe, "--output-prefix", p, BYTES, "--workers", "3");
        refused(EXIT_DATA, "that is broken line 101, and --max-bad-lines is 100");
        EXPECT(clock_seconds() - begun < 30);
        nothing_left(p);
        kill(writer, SIGKILL);
        EXPECT(waitpid(writer, NULL, 0) == writer);
    }
}
