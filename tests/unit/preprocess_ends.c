/* preprocess_ends.c - what the command preprocess leaves when the disk is full, and when it
 * is killed or stopped. */
#define _GNU_SOURCE
#include "preprocess.h"
#include "runtime/text/tokenizer.h"
#include <glob.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

/* A tokenizer of a text; its tokenizer.json. */
static char *tokenizer_of(const char *name, const char *text, int64_t vocab) {
    Arena *mem = arena_new();
    TokenizerTrainer *tr = tokenizer_trainer_new(mem);
    tokenizer_trainer_add(tr, text, strlen(text), NULL);
    tokenizer_write(tokenizer_train(tr, vocab), temp(name));
    return temp(cat(name, "/tokenizer.json"));
}

static const char *const beside[] = {"tokenizer.json", "tokenizer_config.json",
                                     "chat_template.jinja"};

/* What is beside p_text_document is this tokenizer's, and nothing else. */
static bool has_tokenizer(const char *dir) {
    for (int i = 0; i < ARRAY_LEN(beside); i++) {
        char *a = temp(cat("p_text_document.tokenizer/", beside[i]));
        char *b = dir ? temp(cat(cat(dir, "/"), beside[i])) : NULL;
        bool there = b && file_exists(b);
        size_t n, m;
        if (file_exists(a) != there) return false;
        if (!there) continue;
        const char *x = get(a, &n), *y = get(b, &m);
        if (n != m || memcmp(x, y, n)) return false;
    }
    return true;
}

static int calls_left = -1; /* until the process is killed; -1: it is not */

static void count_call(void) {
    if (calls_left >= 0 && calls_left-- == 0) kill(getpid(), SIGKILL);
}

/* In the place of libc's, as the two calls that change names. */
int unlink(const char *path) {
    count_call();
    return (int)syscall(SYS_unlink, path);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    count_call();
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

/* No file of counts is left, unless the file system has none without a name. */
static void nothing_counted(void) {
    int fd = open(temp(""), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) return;
    close(fd);
    glob_t left;
    EXPECT_INT(glob(temp("p_text_document.counts.*"), 0, NULL, &left), GLOB_NOMATCH);
}

typedef struct Kind {
    const char *name; /* of its folder; NULL: bytes */
    char *input, *words[5];
} Kind;

static void make_pair(const Kind *k) {
    RUN("--input", k->input, "--output-prefix", temp("p"), k->words[0], k->words[1]);
}

/* Of two tokenizers, and of bytes, over each other: killed before any call that changes a name,
 * a pair that can be read has the tokenizer that made it. */
TEST_LIMIT(preprocess_killed_while_it_replaces_a_pair, 120) {
    Kind kind[3] = {
        {NULL, put_text("c.jsonl", "{\"text\":\"ccc\"}\n"), {BYTES}},
        {"one", put_text("a.jsonl", "{\"text\":\"a cat\"}\n"), {"--tokenizer-file"}},
        {"two",
         put_text("b.jsonl", "{\"text\":\"dog dog dog\"}\n"),
         {"--tokenizer-file"}}};
    kind[1].words[1] = tokenizer_of("one", "a cat, a cat and a cat", 262);
    kind[2].words[1] = tokenizer_of("two", "at cat at cat at", 261);
    put_text("one/chat_template.jinja", "{{ messages }}");
    size_t size[3];
    for (int k = 0; k < 3; k++) {
        make_pair(&kind[k]);
        worked();
        EXPECT(has_tokenizer(kind[k].name));
        get(temp("p_text_document.bin"), &size[k]);
        for (int j = 0; j < k; j++)
            EXPECT(size[j] != size[k]); /* by which they are known */
    }
    int killed = 0;
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (int calls = 0, status = from != to; status; calls++) {
                make_pair(&kind[from]);
                worked();
                pid_t pid = fork();
                if (pid == 0) {
                    calls_left = calls;
                    make_pair(&kind[to]);
                    _exit(code);
                }
                EXPECT(waitpid(pid, &status, 0) == pid);
                EXPECT(status == 0 || WIFSIGNALED(status));
                killed += status != 0;
                if (!file_exists(temp("p_text_document.idx"))) continue;
                size_t n;
                get(temp("p_text_document.bin"), &n);
                bool is_new = n == size[to], is_old = n == size[from];
                if (!(is_new && has_tokenizer(kind[to].name)) &&
                    !(is_old && has_tokenizer(kind[from].name)))
                    test_fail(__FILE__, __LINE__, "from %d to %d, killed before call %d",
                              from, to, calls);
            }
    EXPECT(killed > 30);
    EXPECT(!file_exists(temp("p_text_document.tokenizer.tmp")));
    nothing_counted();
}

/* The disk has room for the new pair, and none for its tokenizer: the old ones stay. */
TEST(preprocess_full_disk_at_the_tokenizer) {
    Text many = text_new(arena_new());
    for (int i = 0; i < 2000; i++) text_add(&many, "%d ", i * 7919);
    char *in = put_text("in.jsonl", "{\"text\":\"a cat\"}\n");
    char *one = tokenizer_of("one", "a cat, a cat and a cat", 262);
    char *two = tokenizer_of("two", many.s, 1500);
    RUN("--input", in, "--output-prefix", temp("p"), "--tokenizer-file", one);
    worked();
    char *was = shown(temp("p_text_document"));
    size_t n;
    get(one, &n);
    limit_files(n + 1000);
    RUN("--input", in, "--output-prefix", temp("p"), "--tokenizer-file", two);
    refused(EXIT_DATA, "cannot write");
    EXPECT_STR(shown(temp("p_text_document")), was);
    EXPECT(has_tokenizer("one"));
    EXPECT(!file_exists(temp("p_text_document.tokenizer.tmp")));
    EXPECT(!file_exists(temp("p_text_document.bin.tmp")));
}
