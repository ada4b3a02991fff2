/* launch_cause.c - which failure of a run came first, and the one block that says so. */
#define _GNU_SOURCE
#include "frontend/config/commands.h"
#include "frontend/config/key.h"
#include "frontend/launch/launch_report.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOG_TAIL_BYTES = 1200, LOG_TAIL_LINES = 8 };

/* What came first; rank -1: no rank is known to have failed. A rank that was killed counts
 * more than reports of others: those may be about its silence. */
static Failure root_cause(const LaunchReport *r) {
    for (int i = 0; i < r->nfailure; i++)
        if (r->failure[i].hung) return r->failure[i];
    for (int i = 0; i < r->nfailure; i++)
        if (r->failure[i].signal && !r->failure[i].message) return r->failure[i];
    return r->nfailure ? r->failure[0] : (Failure){.rank = -1};
}

static void say_memory(LaunchReport *r, const Failure *f, int64_t kills, bool here) {
    if (f->signal != 9) return;
    if (here && kills > 0)
        fprintf(
            r->out,
            "  the kernel killed %lld process%s of this machine during the run for lack "
            "of memory:\n  more ranks, a smaller batch or optimizer shards need less "
            "on each\n",
            (long long)kills, kills == 1 ? "" : "es");
    else if (here && kills == 0)
        fprintf(r->out,
                "  the kernel killed nothing for lack of memory: somebody sent the "
                "signal\n");
    else
        fprintf(r->out, "  if nobody sent the signal, the kernel may have, for lack of "
                        "memory: see dmesg there\n");
}

static void indented(FILE *out, const char *text, const char *margin) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        fprintf(out, "%s%.*s\n", margin, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

/* The key of the configuration that a message names: the longest path in it that is one.
 */
static const char *key_in(const char *message) {
    const char *best = NULL;
    for (const char *s = message; *s;) {
        size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_.");
        size_t bare = n;
        while (bare && s[bare - 1] == '.') bare--;
        for (int i = 0; bare && i < N_KEYS; i++) {
            const char *path = key_table[i].path;
            if (strlen(path) == bare && !memcmp(path, s, bare) && strchr(path, '.') &&
                (!best || strlen(path) > strlen(best)))
                best = path;
        }
        s += n ? n : 1;
    }
    return best;
}

/* The value that a message names: %name, as the program's text writes it. */
static int value_in(const char *message, const char **at) {
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789_.";
    for (const char *s = message; (s = strchr(s, '%')); s++) {
        if (s > message && s[-1] != ' ' && s[-1] != '\'') continue;
        size_t n = strspn(s + 1, name);
        while (n && s[n] == '.') n--;
        if (!n || n > 200) continue;
        *at = s;
        return (int)n + 1;
    }
    return 0;
}

static void say_message(LaunchReport *r, const Failure *f) {
    if (!f->message) return;
    indented(r->out, f->message, "  ");
    const char *key = key_in(f->message), *op;
    int n = value_in(f->message, &op);
    if (n) fprintf(r->out, "  op: %.*s\n", n, op);
    if (key) fprintf(r->out, "  key: %s\n", key);
}

/* The last lines of a log, for a rank that could not say anything itself. */
static void say_log(LaunchReport *r, const Failure *f) {
    const char *path = r->log[f->rank];
    bool early = !path;
    if (early) path = arena_printf(r->mem, "%s/rank_%d.log", r->dir, f->rank);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char tail[LOG_TAIL_BYTES + 1];
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    off_t from = MAX(0, size - LOG_TAIL_BYTES);
    ssize_t n = fd >= 0 ? pread(fd, tail, LOG_TAIL_BYTES, from) : 0;
    if (fd >= 0) close(fd);
    tail[MAX(n, 0)] = 0;
    char *start = from ? strchr(tail, '\n') : tail;
    int lines = 0;
    for (char *s = tail + MAX(n - 1, 0); start && s > start; s--)
        if (*s == '\n' && s[1] && ++lines == LOG_TAIL_LINES) start = s + 1;
    if (!early) fprintf(r->out, "  log: %s\n", path);
    if (!f->message && start && *start) {
        fprintf(r->out, "  it said last:\n");
        indented(r->out, start, "    | ");
    }
}

/* Other ranks that failed too: those who say the same by number, the others in a line. */
static void say_others(LaunchReport *r, const Failure *f) {
    enum { SHOWN = 3 };
    int same = 0, others = 0;
    for (int i = 0; i < r->nfailure; i++) {
        const Failure *g = &r->failure[i];
        if (g->rank == f->rank || !g->message) continue;
        if (f->message && !strcmp(g->message, f->message)) {
            same++;
        } else if (others++ < SHOWN) {
            fprintf(r->out, "  later, rank %d: %.*s\n", g->rank,
                    (int)MIN(strcspn(g->message, "\n"), 200), g->message);
        }
    }
    if (others > SHOWN) fprintf(r->out, "  and %d more\n", others - SHOWN);
    if (same)
        fprintf(r->out, "  %d other rank%s said the same\n", same, same == 1 ? "" : "s");
}

static void say_how(LaunchReport *r, const Failure *f) {
    if (f->signal) {
        const char *name = sigabbrev_np(f->signal);
        fprintf(r->out, "killed by signal %d (%s%s)", f->signal, name ? "SIG" : "",
                name ? name : "unknown");
    } else if (f->code == 134 && f->message) {
        fprintf(r->out, "stopped itself");
    } else {
        fprintf(r->out, "ended with exit code %d", f->code);
    }
    fputc('\n', r->out);
}

/* The message says which rank it is, and where. */
static void say_hung(LaunchReport *r, const Failure *f) {
    fprintf(r->out, "stator: %s\n", f->message);
    if (r->log[f->rank]) fprintf(r->out, "  log: %s\n", r->log[f->rank]);
    fprintf(r->out, "  all ranks were ended (runner_config.on_hang)\n");
    fflush(r->out);
}

static void say_block(LaunchReport *r, const Failure *f, int64_t kills) {
    const char *host = f->host;
    if (f->hung) {
        say_hung(r, f);
        return;
    }
    fprintf(r->out, "stator: rank %d of %d%s%s ", f->rank, r->ranks, host ? " on " : "",
            host ? host : "");
    say_how(r, f);
    say_message(r, f);
    say_memory(r, f, kills, host && machine_is(r->machine, host));
    say_log(r, f);
    say_others(r, f);
    if (r->ranks > 1) fprintf(r->out, "  the other ranks were ended\n");
    fflush(r->out);
}

static int exit_code(const Failure *f, int status) {
    if (f->rank < 0)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (f->message || !f->signal) return f->code;
    return 128 + f->signal;
}

/* No rank is known to have failed, and still mpirun did not end well: what it said is
 * above. Without a rank that started it is its way of starting them that is wrong. */
static int say_mpirun(LaunchReport *r, int status) {
    bool killed = WIFSIGNALED(status);
    int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    const char *signal = sigabbrev_np(code - 128);
    if (r->lost_host)
        fprintf(r->out,
                "stator: host %s is gone: its machine, its network or its mpirun "
                "daemon ended\n",
                r->lost_host);
    else if (signal)
        fprintf(r->out, "stator: %s was killed by signal %d (SIG%s)%s\n",
                killed ? "mpirun" : "a rank", code - 128, signal,
                killed ? "" : "; nobody said which");
    else
        fprintf(r->out,
                "stator: error: mpirun ended with exit code %d; what it said is above\n",
                code);
    if (!signal && !r->lost_host && !r->started && !r->program) return EXIT_CONFIG;
    fprintf(r->out, "  all ranks were ended\n");
    return code;
}

int launch_report_end(LaunchReport *r, int status, int64_t oom_kills, int stopped) {
    launch_report_flush(r);
    Failure f = root_cause(r);
    int code = exit_code(&f, status);
    if (code == 0) return 0;
    /* train said itself why all of its ranks end together */
    bool together = code == EXIT_SIGNALLED || (code == EXIT_DIVERGED && r->started);
    if (together && !f.message && !r->program) return code;
    if (stopped && !f.message && (f.rank < 0 || f.signal)) {
        fprintf(r->out, "stator: stopped by SIG%s\n", sigabbrev_np(stopped));
        return 128 + stopped;
    }
    if (f.rank < 0) return say_mpirun(r, status);
    say_block(r, &f, oom_kills);
    return code;
}
