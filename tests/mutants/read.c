/* read.c - reads files that may be damaged, for mutants.py, each in a process of its own
 * with a limit of time and memory.
 *
 * From stdin come lines KIND<tab>PATH<tab>MORE. For each, one line goes to stdout and
 * then as many bytes as it ends with: `ok BYTES` and what was read (see kinds*.c),
 * `refused CODE BYTES` and the message (CODE is the exit code), or `signal NUMBER BYTES`
 * and all that was printed, such as a sanitizer's report. */
#define _GNU_SOURCE
#include "read.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

enum { LIMIT_SECONDS = 20, LIMIT_MEMORY = 1 << 30, MOST_PRINTED = 1 << 20 };

static const struct {
    const char *name;
    ReadKind read;
} kinds[] = {{"safetensors", read_safetensors},
             {"npy", read_npy},
             {"indexed", read_indexed},
             {"gpt", read_gpt},
             {"rank_table", read_rank_table},
             {"metrics", read_metrics},
             {"object", read_object},
             {"tokenizer", read_tokenizer},
             {"config", read_config},
             {"ir", read_ir},
             {"hf", read_hf},
             {"checkpoint", read_checkpoint},
             {"newest", read_newest},
             {"make_checkpoints", make_checkpoints}};

void put_shape(Text *out, int rank, const int64_t *dim) {
    text_add(out, " [");
    for (int d = 0; d < rank; d++)
        text_add(out, "%s%lld", d ? "," : "", (long long)dim[d]);
    text_add(out, "]");
}

void put_name(Text *out, const char *s) {
    text_add(out, " '");
    for (; *s; s++) text_add(out, "%02x", (unsigned char)*s);
}

void put_sum(Text *out, const void *bytes, size_t n) {
    uLong sum = crc32(0, Z_NULL, 0);
    text_add(out, " %08lx", n ? crc32_z(sum, bytes, n) : sum);
}

/* ---- the process of one file ---- */

/* No destructors and no search for leaks: the arenas are meant to go with the process. */
static _Noreturn void leave(int code) {
    fflush(NULL);
    _exit(code);
}

/* The address space may grow by so much; a sanitizer's shadow is there already. */
static void limit_memory(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return;
    if (fscanf(f, "%lu", &pages) == 1) {
        rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + LIMIT_MEMORY;
        setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
    }
    fclose(f);
}

/* What was read goes out behind all that was printed: its size is in the last 8 bytes. */
static _Noreturn void run(ReadKind read_kind, const char *path, const char *more,
                          int to) {
    dup2(to, STDOUT_FILENO);
    dup2(to, STDERR_FILENO);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    limit_memory();
    alarm(LIMIT_SECONDS);
    exit_hook = leave;
    Arena *mem = arena_new();
    Text out = text_new(mem);
    read_kind(mem, path, more, &out);
    fflush(NULL);
    uint64_t n = out.n;
    bool sent = fwrite(out.s, 1, out.n, stdout) == out.n && fwrite(&n, 8, 1, stdout) == 1;
    leave(sent ? 0 : 1);
}

static char *all_from(int fd, size_t *n) {
    char *all = malloc(MOST_PRINTED);
    if (!all) die("no memory");
    *n = 0;
    char rest[4096]; /* beyond the limit: thrown away, so that the writer can end */
    for (;;) {
        size_t room = MOST_PRINTED - *n;
        ssize_t got = room ? read(fd, all + *n, room) : read(fd, rest, sizeof rest);
        if (got <= 0) return all;
        if (room) *n += (size_t)got;
    }
}

static void tell(int status, const char *all, size_t n) {
    uint64_t size = 0;
    if (WIFSIGNALED(status)) {
        printf("signal %d %zu\n", WTERMSIG(status), n);
    } else if (WEXITSTATUS(status)) {
        printf("refused %d %zu\n", WEXITSTATUS(status), n);
    } else {
        if (n >= 8) memcpy(&size, all + n - 8, 8);
        if (n < 8 || size > n - 8) die("a reader ended without an answer");
        all += n - 8 - size;
        n = size;
        printf("ok %zu\n", n);
    }
    fwrite(all, 1, n, stdout);
    fflush(stdout);
}

static void serve(ReadKind read_kind, const char *path, const char *more) {
    int pipe_fd[2], status;
    size_t n;
    if (pipe(pipe_fd) != 0) die("pipe");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        close(pipe_fd[0]);
        run(read_kind, path, more, pipe_fd[1]);
    }
    close(pipe_fd[1]);
    char *all = all_from(pipe_fd[0], &n);
    close(pipe_fd[0]);
    waitpid(child, &status, 0);
    tell(status, all, n);
    free(all);
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    for (ssize_t n; (n = getline(&line, &room, stdin)) > 0;) {
        line[n - 1] = 0;
        char *path = strchr(line, '\t'), *more = path ? strchr(path + 1, '\t') : NULL;
        if (!more) die("a line is KIND<tab>PATH<tab>MORE");
        *path++ = *more++ = 0;
        ReadKind found = NULL;
        for (int i = 0; i < ARRAY_LEN(kinds); i++)
            if (!strcmp(kinds[i].name, line)) found = kinds[i].read;
        if (!found) die("no kind '%s'", line);
        serve(found, path, more);
    }
    free(line);
    return 0;
}
