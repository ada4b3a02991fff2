/* launch_report.c - reads what comes out of mpirun's stderr: lines of ranks go on,
 * reports of ranks and mpirun's own words about a failure are kept. */
#define _GNU_SOURCE
#include "frontend/launch/launch_report.h"
#include "base/json.h"
#include "frontend/launch/launch.h"
#include <stdlib.h>

enum { MAX_FAILURES = 256 }; /* reports kept; the first one counts */

LaunchReport *launch_report_new(Arena *mem, FILE *out, const Placement *p,
                                const Machine *m, const char *dir, bool program) {
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
        f.hung = json_get(v, "hung") != NULL;
        f.message = json_string(json_need(v, f.hung ? "hung" : "message"));
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
        take_object(r,
                    json_parse(r->mem, "report", copy, n, REPORT_LINE_BYTES, EXIT_DATA));
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

/* "mpirun noticed that process rank 2 with PID 0 on node a exited on signal 9 (Killed)."
 */
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
        " sent help message help-mpi", "Set MCA parameter \"orte_base_help_aggregate\"",
        "mpirun: Forwarding signal ",  "(some possibly by mpirun during cleanup)",
        "total processes killed",      "total process killed"};
    for (int i = 0; i < ARRAY_LEN(said); i++)
        if (strstr(line, said[i])) return true;
    return false;
}

static void hold(LaunchReport *r, const char *line, size_t n) {
    if (r->held_n + n + 1 > REPORT_HELD_BYTES) let_go(r);
    if (n + 1 > REPORT_HELD_BYTES) {
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
        if (bytes[i] == '\n' || r->n == REPORT_LINE_BYTES - 1) take_line(r);
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

void launch_report_flush(LaunchReport *r) {
    if (r->n) take_line(r);
    if (r->holding) let_go(r);
}
