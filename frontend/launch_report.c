/* launch_report.c - reads what comes out of mpirun's stderr: lines of ranks go on, reports
 * of ranks and mpirun's own words about a failure are kept, and in the end one block says
 * what happened first. */
#define _GNU_SOURCE
#include "../ir/json.h"
#include "commands.h"
#include "key.h"
#include "launch.h"
#include "launch_parts.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LINE_BYTES = 16384,
    HELD_BYTES = 8192,  /* of one of mpirun's framed texts */
    MAX_FAILURES = 256, /* reports kept; the first one counts */
    LOG_TAIL_BYTES = 1200,
    LOG_TAIL_LINES = 8
};

typedef struct Failure {
    int rank;
    const char *host;    /* NULL: unknown */
    int code, signal;    /* 0: none */
    const char *message; /* NULL: none */
} Failure;

typedef struct Started {
    int rank, pid;
} Started;

struct LaunchReport {
    Arena *mem;
    FILE *out;
    const Placement *place;
    const Machine *machine;
    int ranks;
    bool program; /* no ranks of stator: nothing of theirs is known */
    const char *dir;
    char line[LINE_BYTES];
    size_t n;
    char held[HELD_BYTES]; /* a framed text of mpirun, as far as it has come */
    size_t held_n;
    bool holding;
    Failure *failure;
    int nfailure, failure_cap;
    Failure seen; /* the first end that mpirun saw; rank -1: none */
    Started *started;
    int nstarted, started_cap, taken; /* taken: by launch_report_started */
    int gone;              /* the rank whose process ended first; -1: unknown */
    const char *lost_host; /* whose daemon went away, or NULL */
    const char **log;      /* by rank, or NULL */
    bool words_passed;     /* mpirun said something else in a frame, and it was printed */
};

LaunchReport *launch_report_new(Arena *mem, FILE *out, const Placement *p, const Machine *m,
                                const char *dir, bool program) {
    LaunchReport *r = NEW(mem, LaunchReport);
    r->mem = mem;
    r->out = out;
    r->place = p;
    r->machine = m;
    r->ranks = p->ranks;
    r->dir = dir;
    r->program = program;
    r->seen.rank = r->gone = -1;
    r->log = NEW_ARRAY(mem, const char *, (size_t)r->ranks);
    return r;
}

bool launch_report_started(LaunchReport *r, int *rank, int *pid) {
    if (r->taken == r->nstarted) return false;
    *rank = r->started[r->taken].rank;
    *pid = r->started[r->taken++].pid;
    return true;
}

void launch_report_gone(LaunchReport *r, int rank) {
    if (r->gone < 0) r->gone = rank;
}

bool launch_report_fatal(const LaunchReport *r) {
    return r->nfailure > 0;
}

static void pass(LaunchReport *r, const char *bytes, size_t n) {
    fwrite(bytes, 1, n, r->out);
    fflush(r->out);
}

/* ---- reports of ranks ---- */

static void take_failure(LaunchReport *r, int rank, const char *host, const Json *v) {
    const Json *signal = json_get(v, "signal");
    Failure f = {.rank = rank, .host = host};
    if (signal) {
        f.signal = (int)json_i64(signal, 1, 64);
    } else {
        f.code = (int)json_i64(json_need(v, "code"), 1, 255);
        f.message = json_string(json_need(v, "message"));
    }
    for (int i = 0; i < r->nfailure && signal; i++)
        if (r->failure[i].rank == rank) { /* it has said why */
            r->failure[i].signal = f.signal;
            return;
        }
    if (r->nfailure < MAX_FAILURES)
        PUSH(r->mem, r->failure, r->nfailure, r->failure_cap, f);
}

static void take_object(LaunchReport *r, const Json *v) {
    int rank = (int)json_i64(json_need(v, "rank"), 0, r->ranks - 1);
    const char *host = json_get_string(v, "host", ""), *log;
    const Json *pid = json_get(v, "pid");
    if (pid) {
        Started s = {rank, (int)json_i64(pid, 1, INT32_MAX)};
        if (!strcmp(host, r->machine->host) && r->nstarted < r->ranks)
            PUSH(r->mem, r->started, r->nstarted, r->started_cap, s);
    } else if ((log = json_get_string(v, "log", NULL))) {
        if (!r->log[rank]) r->log[rank] = log;
    } else {
        take_failure(r, rank, *host ? host : NULL, v);
    }
}

/* False when the text is no report: somebody else printed the mark. A run has few
 * reports, but a broken rank may repeat itself: no more are parsed than could be kept. */
static bool take_report(LaunchReport *r, const char *text, size_t n) {
    if (r->nfailure >= MAX_FAILURES) return true;
    Catch c;
    if (CATCH(c)) {
        const char *copy = arena_strndup(r->mem, text, n);
        take_object(r, json_parse(r->mem, "report", copy, n, LINE_BYTES, EXIT_DATA));
        catch_end(&c);
        return true;
    }
    return false;
}

/* ---- mpirun's own words ---- */

/* A frame is 74 dashes above and below. */
static bool is_frame(const char *s, size_t n) {
    return n == 74 && strspn(s, "-") >= n;
}

static const char *after(const char *text, const char *words) {
    const char *p = strstr(text, words);
    return p ? p + strlen(words) : NULL;
}

static const char *word_after(LaunchReport *r, const char *text, const char *words) {
    const char *p = after(text, words);
    size_t n = p ? strcspn(p, " \n\t") : 0;
    while (n && p[n - 1] == '.') n--;
    return n ? arena_strndup(r->mem, p, n) : NULL;
}

static bool rank_valid(const LaunchReport *r, int rank) {
    return rank >= 0 && rank < r->ranks;
}

/* "mpirun noticed that process rank 2 with PID 0 on node a exited on signal 9 (Killed)." */
static bool take_signal(LaunchReport *r, const char *text) {
    const char *rank = after(text, "noticed that process rank ");
    const char *number = after(text, "exited on signal ");
    if (!rank || !number) return false;
    Failure f = {.rank = atoi(rank),
                 .signal = atoi(number),
                 .host = word_after(r, text, " on node ")};
    if (r->seen.rank < 0 && rank_valid(r, f.rank) && f.signal > 0 && f.signal < 128)
        r->seen = f;
    return true;
}

/* "... The first process to do so was: Process name: [[1234,1],2]  Exit code:    3" */
static bool take_exit(LaunchReport *r, const char *text) {
    const char *name = after(text, "Process name:"), *code = after(text, "Exit code:");
    const char *rank = name ? strstr(name, "],") : NULL;
    if (!strstr(text, "exited with non-zero status") || !rank || !code) return false;
    Failure f = {.rank = atoi(rank + 2), .code = atoi(code)};
    if (r->seen.rank < 0 && rank_valid(r, f.rank) && f.code > 0 && f.code < 256)
        r->seen = f;
    return true;
}

static bool take_abort(LaunchReport *r, const char *text) {
    const char *rank = after(text, "MPI_ABORT was invoked on rank ");
    const char *code = after(text, "with errorcode ");
    if (!rank || !code) return false;
    Failure f = {.rank = atoi(rank), .code = atoi(code)};
    if (r->seen.rank < 0 && rank_valid(r, f.rank) && f.code > 0 && f.code < 256)
        r->seen = f;
    return true;
}

static bool take_lost_host(LaunchReport *r, const char *text) {
    if (!strstr(text, "lost communication with a remote daemon")) return false;
    const char *remote = after(text, "Remote daemon:");
    if (!r->lost_host && remote) r->lost_host = word_after(r, remote, " on node ");
    return true;
}

static bool take_epilogue(LaunchReport *r, const char *text) {
    (void)r;
    return strstr(text, "Primary job") && strstr(text, "terminated normally, but");
}

static bool (*const frame_takers[])(LaunchReport *, const char *) = {
    take_signal, take_exit, take_abort, take_lost_host, take_epilogue};

static void let_go(LaunchReport *r) {
    pass(r, r->held, r->held_n);
    r->held_n = 0;
    r->holding = false;
}

/* The frame is complete: one of those that a failure brings, or words for the user. */
static void frame_end(LaunchReport *r) {
    r->held[r->held_n] = 0;
    bool taken = false;
    for (int i = 0; i < ARRAY_LEN(frame_takers) && !taken; i++)
        taken = frame_takers[i](r, r->held);
    r->words_passed = r->words_passed || !taken;
    if (taken) r->held_n = 0;
    let_go(r);
}

/* Lines of mpirun outside of frames that say nothing new. */
static bool is_chatter(const char *line) {
    static const char *const said[] = {
        " sent help message help-mpi",  "Set MCA parameter \"orte_base_help_aggregate\"",
        "mpirun: Forwarding signal ",   "(some possibly by mpirun during cleanup)",
        "total processes killed",       "total process killed"};
    for (int i = 0; i < ARRAY_LEN(said); i++)
        if (strstr(line, said[i])) return true;
    return false;
}

static void hold(LaunchReport *r, const char *line, size_t n) {
    if (r->held_n + n + 1 > HELD_BYTES) let_go(r);
    if (n + 1 > HELD_BYTES) {
        pass(r, line, n);
        return;
    }
    memcpy(r->held + r->held_n, line, n);
    r->held_n += n;
    r->holding = true;
}

/* ---- lines ---- */

/* r->line[n] holds a line with its end. */
static void take_line(LaunchReport *r) {
    char *line = r->line;
    size_t n = r->n;
    r->n = 0;
    line[n] = 0;
    size_t bare = n && line[n - 1] == '\n' ? n - 1 : n;
    char *mark = memmem(line, n, LAUNCH_REPORT_MARK, strlen(LAUNCH_REPORT_MARK));
    if (mark) {
        char *text = mark + strlen(LAUNCH_REPORT_MARK);
        if (take_report(r, text, (size_t)(line + bare - text))) {
            if (mark > line) pass(r, line, (size_t)(mark - line));
            return;
        }
    }
    if (is_frame(line, bare)) {
        bool ends = r->holding;
        hold(r, line, n);
        if (ends) frame_end(r);
    } else if (r->holding) {
        hold(r, line, n);
    } else if (!is_chatter(line)) {
        pass(r, line, n);
    }
}

void launch_report_take(LaunchReport *r, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        r->line[r->n++] = bytes[i];
        if (bytes[i] == '\n' || r->n == LINE_BYTES - 1) take_line(r);
    }
}

void launch_report_idle(LaunchReport *r) {
    if (r->holding) let_go(r);
    if (r->n && !memmem(r->line, r->n, LAUNCH_REPORT_MARK, strlen(LAUNCH_REPORT_MARK)) &&
        strspn(r->line, "-") < r->n) {
        pass(r, r->line, r->n);
        r->n = 0;
    }
}

/* ---- the block ---- */

/* What came first. mpirun's sight of a killed process counts more than reports of others:
 * those are about its silence. */
static Failure root_cause(const LaunchReport *r, int status) {
    Failure f = r->seen;
    int signal = WIFEXITED(status) ? WEXITSTATUS(status) - 128 : 0;
    if (f.rank < 0 && !r->nfailure && r->gone >= 0 && sigabbrev_np(signal))
        return (Failure){.rank = r->gone, .signal = signal};
    if (r->nfailure && !(f.rank >= 0 && f.signal)) {
        return r->failure[0];
    }
    for (int i = 0; i < r->nfailure; i++)
        if (r->failure[i].rank == f.rank) {
            signal = f.signal;
            f = r->failure[i];
            f.signal = signal;
            break;
        }
    return f;
}

static void say_memory(LaunchReport *r, const Failure *f, int64_t kills, bool here) {
    if (f->signal != 9) return;
    if (here && kills > 0)
        fprintf(r->out,
                "  the kernel killed %lld process%s of this machine during the run for lack "
                "of memory:\n  more ranks, a smaller batch or optimizer shards need less "
                "on each\n",
                (long long)kills, kills == 1 ? "" : "es");
    else if (here && kills == 0)
        fprintf(r->out, "  the kernel killed nothing for lack of memory: somebody sent the "
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

/* The key of the configuration that a message names: the longest path in it that is one. */
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

/* Where a rank stood, by its own words, mpirun's, or the placement; NULL: unknown. */
static const char *host_of(const LaunchReport *r, const Failure *f) {
    const Placement *p = r->place;
    if (f->host) return f->host;
    if (p->hosts) return p->host[p->host_of[f->rank]];
    return r->machine->nodes == 1 ? r->machine->host : NULL;
}

static void say_block(LaunchReport *r, const Failure *f, int64_t kills) {
    const char *host = host_of(r, f);
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
    if (f->rank < 0) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (f->message || !f->signal) return f->code;
    return 128 + f->signal;
}

/* No rank is known to have failed, and still mpirun did not end well. */
static int say_mpirun(LaunchReport *r, int status) {
    if (r->lost_host) {
        fprintf(r->out, "stator: host %s is gone: its machine, its network or its mpirun "
                        "daemon ended\n", r->lost_host);
    } else if (WIFSIGNALED(status)) {
        const char *name = sigabbrev_np(WTERMSIG(status));
        fprintf(r->out, "stator: mpirun was killed by signal %d (SIG%s)\n",
                WTERMSIG(status), name ? name : "?");
    } else if (!r->words_passed && sigabbrev_np(WEXITSTATUS(status) - 128)) {
        fprintf(r->out, "stator: a rank was killed by signal %d (SIG%s); mpirun did not say "
                        "which\n", WEXITSTATUS(status) - 128,
                sigabbrev_np(WEXITSTATUS(status) - 128));
    } else {
        fprintf(r->out, "stator: error: mpirun ended with exit code %d; what it said is "
                        "above\n", WEXITSTATUS(status));
        if (r->words_passed) return EXIT_CONFIG;
    }
    fprintf(r->out, "  all ranks were ended\n");
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int launch_report_end(LaunchReport *r, int status, int64_t oom_kills, int stopped) {
    if (r->n) take_line(r);
    if (r->holding) let_go(r);
    Failure f = root_cause(r, status);
    int code = exit_code(&f, status);
    if (code == 0) return 0;
    if (code == EXIT_SIGNALLED && !f.message && !r->program) return code;
    if (stopped && !f.message && (f.rank < 0 || f.signal)) {
        fprintf(r->out, "stator: stopped by SIG%s\n", sigabbrev_np(stopped));
        return 128 + stopped;
    }
    if (f.rank < 0) return say_mpirun(r, status);
    say_block(r, &f, oom_kills);
    return code;
}
