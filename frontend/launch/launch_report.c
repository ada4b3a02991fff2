/* launch_report.c - reads what comes out of mpirun's stderr: lines go on, reports of ranks
 * are kept. At the end, which failure came first, and the one block that says so. Who
 * failed is known from the reports alone; what else is said behind the first of them,
 * mpirun's words about it above all, is left out. */
#define _GNU_SOURCE
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/config/key.h"
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include <ctype.h>
#include <stdlib.h>
#include <sys/wait.h>

enum { LINE_BYTES = 16384, MAX_FAILURES = 256 }; /* reports kept; the first one counts */

typedef struct Failure {
    int rank;
    int code, signal;                             /* 0: none */
    const char *host, *log, *message, *said, *at; /* NULL: not known */
    bool hung;                                    /* message is another rank's */
} Failure;

struct LaunchReport {
    Arena *mem;
    FILE *out;
    int ranks;
    const char *host; /* this machine */
    bool program;     /* no ranks of stator: nothing of theirs is known */
    char line[LINE_BYTES];
    size_t n;
    Failure failure[MAX_FAILURES];
    int nfailure;
    bool said;            /* rank 0 has said that all ranks end together */
    int ends;             /* with what */
    int started;          /* ranks that have come as far as to say so */
    int here;             /* those of them that are on this machine */
    const char **host_of; /* by rank, of those that have started */
    int noticed;          /* the rank of which mpirun says that it was killed; -1: none */
    bool losing;          /* mpirun has said that a daemon went away */
    const char *lost_host; /* whose, or NULL */
};

LaunchReport *launch_report_new(Arena *mem, FILE *out, int ranks, const char *host,
                                bool program) {
    LaunchReport *r = NEW(mem, LaunchReport);
    r->mem = mem;
    r->out = out;
    r->ranks = ranks;
    r->host = host;
    r->host_of = NEW_ARRAY(mem, const char *, (size_t)ranks);
    r->noticed = -1;
    r->program = program;
    return r;
}

bool launch_report_fatal(const LaunchReport *r) {
    return r->nfailure > 0;
}

bool launch_report_all_started(const LaunchReport *r) {
    return r->program || r->started >= r->ranks;
}

bool launch_report_all_here(const LaunchReport *r) {
    return !r->program && r->here >= r->ranks;
}

bool launch_report_ends(const LaunchReport *r) {
    return !r->program && r->said;
}

/* Why all end early is known: what else is said, by mpirun above all, is no news. */
static bool knows_why(const LaunchReport *r) {
    return launch_report_fatal(r) || (launch_report_ends(r) && r->ends);
}

/* ---- lines ---- */

static void pass(LaunchReport *r, const char *bytes, size_t n) {
    fwrite(bytes, 1, n, r->out);
    fflush(r->out);
}

static const char *kept(const LaunchReport *r, const char *text) {
    return text ? arena_strdup(r->mem, text) : NULL;
}

/* What the guard of a rank says is news unless the rank has said why itself. */
static void take_failure(LaunchReport *r, int rank, const Json *v) {
    const Json *signal = json_get(v, "signal");
    Failure f = {.rank = rank,
                 .host = json_get_string(v, "host", NULL),
                 .log = json_get_string(v, "log", NULL),
                 .said = json_get_string(v, "said", NULL),
                 .at = json_get_string(v, "at", NULL),
                 .message = json_get_string(v, "message", NULL),
                 .hung = json_get(v, "hung") != NULL};
    if (f.hung) f.message = json_get_string(v, "hung", NULL);
    if (signal)
        f.signal = (int)json_i64(signal, 1, 64);
    else
        f.code = (int)json_i64(json_need(v, "code"), 1, 255);
    for (int i = 0; i < r->nfailure && !f.message; i++)
        if (r->failure[i].rank == rank) {
            r->failure[i].signal = f.signal;
            if (!r->failure[i].at) r->failure[i].at = kept(r, f.at);
            return;
        }
    f.host = kept(r, f.host);
    f.log = kept(r, f.log);
    f.said = kept(r, f.said);
    f.at = kept(r, f.at);
    f.message = kept(r, f.message);
    r->failure[r->nfailure++] = f;
}

static void read_report(LaunchReport *r, const char *text, size_t n) {
    Arena *scratch = arena_scratch();
    const char *copy = arena_strndup(scratch, text, n);
    const Json *v = json_parse(scratch, "report", copy, n, LINE_BYTES, EXIT_DATA);
    int rank = (int)json_i64(json_need(v, "rank"), 0, r->ranks - 1);
    const Json *ends = json_get(v, "ends");
    if (json_get(v, "pid")) {
        r->started++;
        r->here += !strcmp(json_get_string(v, "host", ""), r->host);
        if (!r->host_of[rank])
            r->host_of[rank] = kept(r, json_get_string(v, "host", NULL));
    } else if (ends) {
        r->ends = (int)json_i64(ends, 0, 255);
        r->said = true;
    } else {
        take_failure(r, rank, v);
    }
    arena_free(scratch);
}

/* False when the text is no report: somebody else printed the mark. A run has few
 * reports, but a broken rank may repeat itself: no more are parsed than could be kept. */
static bool take_report(LaunchReport *r, const char *text, size_t n) {
    if (r->nfailure == MAX_FAILURES) return true;
    Catch c;
    if (!CATCH(c)) return false;
    read_report(r, text, n);
    catch_end(&c);
    return true;
}

/* Nobody but mpirun can know that a whole host is gone. Open MPI 4 and 5 have the same
 * words for it. */
static void look_for_lost_host(LaunchReport *r, const char *line) {
    static const char on_node[] = " on node ";
    if (strstr(line, "lost communication with a remote daemon")) r->losing = true;
    const char *name = r->losing ? strstr(line, "Remote daemon:") : NULL;
    if (!name || !(name = strstr(name, on_node)) || r->lost_host) return;
    name += strlen(on_node);
    r->lost_host = arena_strndup(r->mem, name, strcspn(name, " \n\t"));
}

/* A rank whose guard was killed is killed too, and nobody but mpirun knows which. */
static void look_for_killed_guard(LaunchReport *r, const char *line) {
    static const char noticed[] = " noticed that process rank ";
    const char *s = strstr(line, noticed);
    int rank = s ? atoi(s + strlen(noticed)) : -1;
    if (r->noticed < 0 && rank >= 0 && rank < r->ranks) r->noticed = rank;
}

/* mpirun's lines that say nothing new to the user. */
static bool is_chatter(const char *line) {
    return strstr(line, ": Forwarding signal ") ||
           strstr(line, " sent help message help-");
}

/* r->line[n] holds a line with its end, or as much of it as there is room for. */
static void take_line(LaunchReport *r) {
    const char *line = r->line;
    size_t n = r->n, mark_bytes = strlen(LAUNCH_REPORT_MARK);
    r->n = 0;
    r->line[n] = 0;
    const char *mark = memmem(line, n, LAUNCH_REPORT_MARK, mark_bytes);
    size_t before = mark ? (size_t)(mark - line) : n;
    size_t end = n && line[n - 1] == '\n' ? n - 1 : n;
    if (mark && !take_report(r, mark + mark_bytes, end - before - mark_bytes)) before = n;
    look_for_lost_host(r, line);
    look_for_killed_guard(r, line);
    if (!knows_why(r) && !is_chatter(line)) pass(r, line, before);
}

void launch_report_take(LaunchReport *r, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        r->line[r->n++] = bytes[i];
        if (bytes[i] == '\n' || r->n == LINE_BYTES - 1) take_line(r);
    }
}

void launch_report_idle(LaunchReport *r) {
    if (knows_why(r) ||
        memmem(r->line, r->n, LAUNCH_REPORT_MARK, strlen(LAUNCH_REPORT_MARK)))
        return;
    pass(r, r->line, r->n);
    r->n = 0;
}

/* ---- the block ---- */

/* What came first, or NULL. A rank that was killed counts more than reports of others:
 * those may be about its silence. */
static const Failure *root_cause(const LaunchReport *r) {
    for (int i = 0; i < r->nfailure; i++)
        if (r->failure[i].hung) return &r->failure[i];
    for (int i = 0; i < r->nfailure; i++)
        if (r->failure[i].signal && !r->failure[i].message) return &r->failure[i];
    return r->nfailure ? &r->failure[0] : NULL;
}

static void indented(FILE *out, const char *text, const char *margin) {
    while (text && *text) {
        size_t n = strcspn(text, "\n");
        fprintf(out, "%s%.*s\n", margin, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static bool in_word(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static bool names(const char *message, const char *path) {
    for (const char *s = message; (s = strstr(s, path)); s++)
        if ((s == message || !in_word(s[-1])) && !in_word(s[strlen(path)])) return true;
    return false;
}

/* The key of the configuration and the value of the program (%name) in a message, each in
 * a line of its own. The longest path that is a key counts; hints name others. */
static void say_names(LaunchReport *r, const char *text) {
    const char *hint = strstr(text, "\n    hint: ");
    const char *message =
        hint ? arena_strndup(r->mem, text, (size_t)(hint - text)) : text;
    const char *key = "", *op = strchr(message, '%');
    while (op && !in_word(op[1])) op = strchr(op + 1, '%');
    size_t n = op ? 1 : 0;
    while (op && (in_word(op[n]) || (op[n] == '.' && in_word(op[n + 1])))) n++;
    if (op) fprintf(r->out, "  op: %.*s\n", (int)n, op);
    for (int i = 0; i < N_KEYS; i++) {
        const char *path = key_table[i].path;
        if (strlen(path) > strlen(key) && strchr(path, '.') && names(message, path))
            key = path;
    }
    if (*key) fprintf(r->out, "  key: %s\n", key);
}

/* kills: of this machine's kernel for lack of memory, during the run; -1: unknown. */
static void say_memory(LaunchReport *r, int64_t kills) {
    if (kills > 0)
        fprintf(r->out,
                "  the kernel killed %lld process%s of this machine during the run for "
                "lack of memory:\n  more ranks, a smaller batch or optimizer shards need "
                "less on each\n",
                (long long)kills, kills == 1 ? "" : "es");
    else
        fputs(kills == 0
                  ? "  the kernel killed nothing for lack of memory: somebody sent "
                    "the signal\n"
                  : "  if nobody sent the signal, the kernel may have, for lack of "
                    "memory: see dmesg there\n",
              r->out);
}

static void say_later(LaunchReport *r, const Failure *g) {
    size_t n = strcspn(g->message, "\n");
    fprintf(r->out, "  later, rank %d: %.*s\n", g->rank, (int)n, g->message);
    if (g->message[n]) indented(r->out, g->message + n + 1, "  ");
}

/* Other ranks that failed too: those who say the same by number, the others in a line. */
static void say_others(LaunchReport *r, const Failure *f) {
    enum { SHOWN = 3 };
    int same = 0, others = 0;
    for (int i = 0; i < r->nfailure; i++) {
        const Failure *g = &r->failure[i];
        if (g->rank == f->rank || !g->message) continue;
        if (f->message && !strcmp(g->message, f->message))
            same++;
        else if (others++ < SHOWN)
            say_later(r, g);
    }
    if (others > SHOWN) fprintf(r->out, "  and %d more\n", others - SHOWN);
    if (same)
        fprintf(r->out, "  %d other rank%s said the same\n", same, same == 1 ? "" : "s");
}

static const char *signal_name(LaunchReport *r, int number) {
    const char *name = sigabbrev_np(number);
    return name ? arena_printf(r->mem, "SIG%s", name) : "unknown";
}

static const char *how(LaunchReport *r, const Failure *f) {
    if (f->signal)
        return arena_printf(r->mem, "killed by signal %d (%s)", f->signal,
                            signal_name(r, f->signal));
    if (f->code == EXIT_INTERNAL && f->message) return "stopped itself";
    return arena_printf(r->mem, "ended with exit code %d", f->code);
}

static void say_block(LaunchReport *r, const Failure *f, int64_t kills) {
    fprintf(r->out, "stator: rank %d of %d%s%s %s\n", f->rank, r->ranks,
            f->host ? " on " : "", f->host ? f->host : "", how(r, f));
    if (f->message) {
        indented(r->out, f->message, "  ");
        say_names(r, f->message);
    }
    if (f->at && (f->signal || !f->message)) fprintf(r->out, "  it was %s\n", f->at);
    bool here = f->host && !strcmp(f->host, r->host);
    if (f->signal == SIGKILL) say_memory(r, here ? kills : -1);
    if (f->log) fprintf(r->out, "  log: %s\n", f->log);
    if (f->said && *f->said && !f->message) {
        fprintf(r->out, "  it said last:\n");
        indented(r->out, f->said, "    | ");
    }
    say_others(r, f);
    if (r->ranks > 1) fprintf(r->out, "  the other ranks were ended\n");
}

/* The message says which rank it is, and where. */
static void say_hung(LaunchReport *r, const Failure *f) {
    fprintf(r->out, "stator: %s\n", f->message);
    if (f->log) fprintf(r->out, "  log: %s\n", f->log);
    fprintf(r->out, "  all ranks were ended (runner_config.on_hang)\n");
}

/* No rank is known to have failed, and still mpirun did not end well: what it said is
 * above. Without a rank that started it is its way of starting them that is wrong. */
static int say_mpirun(LaunchReport *r, bool killed, int code, int64_t oom_kills) {
    bool signal = code > 128 && sigabbrev_np(code - 128);
    if (signal && !killed && !r->lost_host && r->noticed >= 0 && !r->program) {
        Failure f = {
            .rank = r->noticed, .host = r->host_of[r->noticed], .signal = code - 128};
        say_block(r, &f, oom_kills);
        return code;
    }
    if (r->lost_host)
        fprintf(r->out,
                "stator: host %s is gone: its machine, its network or its mpirun "
                "daemon ended\n",
                r->lost_host);
    else if (signal)
        fprintf(r->out, "stator: %s was killed by signal %d (%s)%s\n",
                killed ? "mpirun" : "a rank", code - 128, signal_name(r, code - 128),
                killed ? "" : "; nobody said which");
    else
        fprintf(r->out,
                "stator: error: mpirun ended with exit code %d; what it said is above\n",
                code);
    if (!signal && !r->lost_host && !r->started && !r->program) return EXIT_CONFIG;
    fprintf(r->out, "  all ranks were ended\n");
    return r->lost_host ? EXIT_NETWORK : code;
}

static int end_code(LaunchReport *r, const Failure *f, int status, int64_t oom_kills,
                    int stopped) {
    bool killed = WIFSIGNALED(status);
    int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (f) code = f->message || !f->signal ? f->code : 128 + f->signal;
    /* mpirun has codes of its own for a signal that it got too */
    if (!f && launch_report_ends(r)) return r->ends;
    if (code == 0) return 0;
    /* rank 0 said itself why all end together */
    bool together = code == EXIT_SIGNALLED || code == r->ends;
    bool told = f && f->message;
    if (together && !told && !r->program) return code;
    if (stopped && !told && (!f || f->signal)) {
        fprintf(r->out, "stator: stopped by %s\n", signal_name(r, stopped));
        return 128 + stopped;
    }
    if (!f) return say_mpirun(r, killed, code, oom_kills);
    if (f->hung)
        say_hung(r, f);
    else
        say_block(r, f, oom_kills);
    return code;
}

int launch_report_end(LaunchReport *r, int status, int64_t oom_kills, int stopped) {
    if (r->n) take_line(r);
    int code = end_code(r, root_cause(r), status, oom_kills, stopped);
    fflush(r->out);
    return code;
}
