/* launch_report.c - reads what comes out of mpirun's stderr: lines go on, reports of ranks
 * are kept. Who failed is known from the reports alone; mpirun's words about it, framed by
 * dashes behind the first report, are left out whatever they are. */
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
    r->log = NEW_ARRAY(mem, const char *, (size_t)r->ranks);
    return r;
}

bool launch_report_fatal(const LaunchReport *r) {
    return r->nfailure > 0;
}

static void pass(LaunchReport *r, const char *bytes, size_t n) {
    fwrite(bytes, 1, n, r->out);
    fflush(r->out);
}

/* ---- reports of ranks ---- */

/* What the guard of a rank says is news unless the rank has said why itself. */
static void take_failure(LaunchReport *r, int rank, const char *host, const Json *v) {
    const Json *signal = json_get(v, "signal"), *hung = json_get(v, "hung");
    const Json *message = hung ? hung : json_get(v, "message");
    Failure f = {.rank = rank, .host = host, .hung = hung != NULL};
    if (signal)
        f.signal = (int)json_i64(signal, 1, 64);
    else
        f.code = (int)json_i64(json_need(v, "code"), 1, 255);
    if (message) f.message = json_string(message);
    for (int i = 0; i < r->nfailure && !message; i++)
        if (r->failure[i].rank == rank) {
            r->failure[i].signal = f.signal;
            return;
        }
    if (r->nfailure < MAX_FAILURES)
        PUSH(r->mem, r->failure, r->nfailure, r->failure_cap, f);
}

static void take_object(LaunchReport *r, const Json *v) {
    int rank = (int)json_i64(json_need(v, "rank"), 0, r->ranks - 1);
    const char *host = json_get_string(v, "host", ""), *log;
    if (json_get(v, "pid")) {
        r->started = true;
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

static const char *word_after(LaunchReport *r, const char *text, const char *words) {
    const char *p = strstr(text, words);
    if (p) p += strlen(words);
    size_t n = p ? strcspn(p, " \n\t") : 0;
    while (n && p[n - 1] == '.') n--;
    return n ? arena_strndup(r->mem, p, n) : NULL;
}

/* Nobody but mpirun can know that a whole host is gone. Open MPI 4 and 5 have the same
 * words for it. */
static bool take_lost_host(LaunchReport *r) {
    if (!strstr(r->held, "lost communication with a remote daemon")) return false;
    const char *remote = strstr(r->held, "Remote daemon:");
    if (!r->lost_host && remote) r->lost_host = word_after(r, remote, " on node ");
    return r->lost_host != NULL;
}

static void let_go(LaunchReport *r) {
    pass(r, r->held, r->held_n);
    r->held_n = 0;
    r->holding = false;
}

/* The frame is complete: about the failure that is known, or words for the user. */
static void frame_end(LaunchReport *r) {
    r->held[r->held_n] = 0;
    if (take_lost_host(r) || r->nfailure) r->held_n = 0;
    let_go(r);
}

/* mpirun's lines that say nothing new to the user. */
static bool is_chatter(const char *line) {
    static const char *const said[] = {
        " sent help message help-", "Set MCA parameter \"orte_base_help_aggregate\"",
        "mpirun: Forwarding signal ", "prterun: Forwarding signal "};
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
