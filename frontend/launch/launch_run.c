/* launch_run.c - starts mpirun, passes signals on, and sees to it that nothing is left. */
#define _GNU_SOURCE
#include "frontend/config/commands.h"
#include "frontend/launch/launch_parts.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* Seconds: mpirun's time to end all ranks once one has failed or a second signal came, and
 * to end itself once rank 0 has said that they do; to end itself once no rank is left, of
 * which nobody has said anything; what a run may take to save at its timeout, what orphans of
 * a dead mpirun get, and the silence after which an unfinished line is shown. */
static const double end_seconds = 5, gone_seconds = 20, save_seconds = 60,
                    orphan_seconds = 1, together_seconds = 1, idle_seconds = 0.3;
enum { POLL_MS = 100, SESSION_BYTES = 256 << 10 };

typedef struct Run {
    const LaunchOptions *o;
    LaunchReport *report;
    pid_t mpirun;
    int signals, out, err; /* of signalfd; what mpirun writes, -1: no more */
    bool ended, alone;     /* mpirun; no process below this one is left */
    bool deaf;             /* nothing more can be written to our stdout */
    int lost;              /* errno of that, 0: nobody reads it any more */
    char part[4096];       /* of `out`; no more than a pipe takes at once */
    size_t part_at, part_n;
    int status;
    int stopped, stops; /* the first signal to end; how many came */
    double stopped_at;  /* when the first one came */
    bool asks;          /* the ranks are to be asked to save, once all have started */
    double needed_at;   /* the last time that mpirun had something to do */
    double heard, kill_at, timeout_at, leave_at;
} Run;

/* ---- start ---- */

/* As nohup has it. */
static bool signal_ignored(int sig) {
    struct sigaction act;
    return sigaction(sig, NULL, &act) == 0 && act.sa_handler == SIG_IGN;
}

/* Where mpirun looks for a folder for its session, the first that is set (else /tmp). */
static const char *const session_names[] = {"TMPDIR", "TEMP", "TMP"};

/* mpirun looks for HOME and, without it, for the user's name, and crashes where the system
 * knows none; it finds nothing without PATH, and to it an empty TMPDIR is the folder /. */
static void complete_environment(void) {
    for (int i = 0; i < ARRAY_LEN(session_names); i++) {
        const char *tmp = getenv(session_names[i]);
        if (tmp && !*tmp) unsetenv(session_names[i]);
    }
    if (!getenv("PATH")) setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 1);
    if (!getenv("HOME") && !getpwuid(getuid())) setenv("HOME", "/", 1);
}

/* What mpirun says of a folder that it cannot use names neither the folder nor the variable. */
static void check_session_folder(void) {
    const char *name = NULL, *folder = "/tmp";
    if (getenv("OMPI_MCA_orte_tmpdir_base")) return;
    for (int i = 0; i < ARRAY_LEN(session_names) && !name; i++)
        if (getenv(session_names[i])) folder = getenv(name = session_names[i]);
    struct stat is;
    struct statvfs room;
    const char *of = name ? name : "the system's folder for such files";
    if (stat(folder, &is) || !S_ISDIR(is.st_mode) || access(folder, W_OK | X_OK))
        fail(EXIT_CONFIG,
             "mpirun keeps files of its session in '%s' (%s), which is no folder that "
             "this "
             "user can write to; set TMPDIR to one",
             folder, of);
    if (!statvfs(folder, &room) &&
        (double)room.f_bavail * (double)room.f_frsize < SESSION_BYTES)
        fail(EXIT_CONFIG,
             "mpirun keeps files of its session in '%s' (%s), where less than %d kB are "
             "free; make room there, or set TMPDIR to another folder",
             folder, of, SESSION_BYTES >> 10);
}

static _Noreturn void become_mpirun(const LaunchPlan *plan, int out, int err,
                                    const sigset_t *old) {
    /* signals of the terminal come to us alone, and we pass them on */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, old, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    if (isatty(STDIN_FILENO)) {
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, STDIN_FILENO);
    }
    if (plan->tasks) setenv(SLURM_TASKS, plan->tasks, 1);
    execvp(plan->argv[0], (char *const *)(uintptr_t)plan->argv);
    dprintf(STDERR_FILENO, "stator: error: cannot run mpirun: %s\n", strerror(errno));
    _exit(EXIT_CONFIG);
}

static void start(Run *r, const LaunchPlan *plan) {
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGHUP};
    sigset_t watched, old;
    int out[2], err[2];
    sigemptyset(&watched);
    for (int i = 0; i < ARRAY_LEN(signals); i++)
        if (signals[i] != SIGHUP || !signal_ignored(SIGHUP))
            sigaddset(&watched, signals[i]);
    signal(SIGPIPE, SIG_IGN); /* a write says so */
    sigprocmask(SIG_BLOCK, &watched, &old);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    r->signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    fflush(NULL);
    if (r->signals < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC) ||
        (r->mpirun = fork()) < 0)
        fail(EXIT_CONFIG, "cannot start mpirun: %s", strerror(errno));
    if (r->mpirun == 0) become_mpirun(plan, out[1], err[1], &old);
    close(out[1]);
    close(err[1]);
    r->out = out[0];
    r->err = err[0];
}

/* ---- watch ---- */

static void kill_by(Run *r, double seconds) {
    r->kill_at = fmin(r->kill_at, clock_seconds() + seconds);
}

static void ask_to_save(Run *r) {
    if (!r->asks || !launch_report_all_started(r->report)) return;
    r->asks = false;
    if (!r->ended) kill(r->mpirun, SIGUSR1);
}

/* The first signal asks stator's ranks to save and end, the second to end. mpirun passes
 * SIGUSR1 on, but drops it while it starts them, and a process that is no guard yet dies of it; on
 * SIGTERM it ends the ranks itself. */
static void pass_signal(Run *r, int sig) {
    double now = clock_seconds();
    if (sig == SIGHUP && r->stopped == SIGPIPE && r->stops == 1) {
        r->stopped = SIGHUP; /* of the terminal to which nothing could be written */
        return;
    }
    if (r->stops == 1 && sig != r->stopped && now - r->stopped_at < together_seconds)
        return; /* service managers send SIGTERM and SIGHUP */
    bool soft = r->o->program ? sig == SIGUSR1 : r->stops == 0;
    if (sig != SIGUSR1 || !r->o->program) {
        if (!r->stopped) r->stopped = sig, r->stopped_at = now;
        r->stops++;
    }
    r->asks = soft;
    ask_to_save(r);
    if (soft) return;
    if (!r->ended) kill(r->mpirun, SIGTERM);
    kill_by(r, end_seconds);
}

static void take_signals(Run *r) {
    struct signalfd_siginfo s;
    while (read(r->signals, &s, sizeof s) == sizeof s)
        if (s.ssi_signo != SIGCHLD) pass_signal(r, (int)s.ssi_signo);
    int status;
    pid_t p;
    while ((p = waitpid(-1, &status, WNOHANG)) > 0) {
        if (p != r->mpirun) continue;
        r->ended = true;
        r->status = status;
        kill_by(r, orphan_seconds);
        r->leave_at = clock_seconds() + end_seconds;
    }
    r->alone = p < 0;
}

static void take_stderr(Run *r) {
    char part[8192];
    ssize_t n = read(r->err, part, sizeof part);
    if (n <= 0) {
        close(r->err);
        r->err = -1;
        return;
    }
    launch_report_take(r->report, part, (size_t)n);
    ask_to_save(r);
    r->heard = clock_seconds();
    if (launch_report_fatal(r->report)) kill_by(r, end_seconds);
}

/* What the ranks say goes on to our stdout as far as that takes it: launch itself never
 * waits there. When nobody reads it any more, or a disk is full, the rest is dropped. */
static void take_stdout(Run *r) {
    ssize_t n = read(r->out, r->part, sizeof r->part);
    if (n <= 0) {
        close(r->out);
        r->out = -1;
    }
    r->part_at = 0;
    r->part_n = n > 0 && !r->deaf ? (size_t)n : 0;
}

/* A terminal that was closed is nobody who reads, and no disk. */
static bool is_closed_terminal(int error) {
    struct stat st;
    return error == EIO && fstat(STDOUT_FILENO, &st) == 0 && S_ISCHR(st.st_mode);
}

static void give_stdout(Run *r) {
    ssize_t n = write(STDOUT_FILENO, r->part + r->part_at, r->part_n);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n < 0) {
        const int error = errno;
        r->deaf = true;
        if (error != EPIPE && !is_closed_terminal(error)) r->lost = error;
        if (!r->stops) pass_signal(r, SIGPIPE);
        n = (ssize_t)r->part_n;
    }
    r->part_at += (size_t)n;
    r->part_n -= (size_t)n;
}

/* Children of those that die come to us, as their reaper, and are killed the next time. */
static void kill_children(void) {
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        int pid = atoi(e->d_name), parent = 0;
        if (pid > 0 && process_state(pid, &parent) && parent == getpid())
            kill(pid, SIGKILL);
    }
    if (d) closedir(d);
}

/* Of any of the threads, also those that nobody has waited for: mpirun has not passed on all
 * that they said. True where the system does not tell. */
static bool has_children(pid_t pid) {
    char pattern[64];
    glob_t files;
    bool any = false;
    snprintf(pattern, sizeof pattern, "/proc/%d/task/*/children", pid);
    if (glob(pattern, GLOB_NOSORT, NULL, &files)) return true;
    for (size_t i = 0; i < files.gl_pathc; i++) {
        FILE *f = fopen(files.gl_pathv[i], "re");
        any |= !f || fgetc(f) != EOF;
        if (f) fclose(f);
    }
    globfree(&files);
    return any;
}

/* Ranks have ended, but the reader of our stdout is slow: unless a second signal came. */
static bool still_read(const Run *r) {
    return r->part_n && r->stops < 2;
}

/* An mpirun that got a signal too may hang once its ranks have ended. Those of other hosts
 * are not seen: rank 0 speaks for them. */
static bool mpirun_needed(const Run *r) {
    if (still_read(r)) return true;
    if (launch_report_ends(r->report)) return false;
    return !launch_report_all_here(r->report) || has_children(r->mpirun);
}

static void look_at_clock(Run *r) {
    double now = clock_seconds();
    if (r->ended || mpirun_needed(r)) r->needed_at = now;
    if (now - r->heard > idle_seconds) {
        launch_report_idle(r->report);
        r->heard = now;
    }
    if (now > r->timeout_at) {
        r->timeout_at = r->stops ? INFINITY : now + save_seconds;
        pass_signal(r, SIGTERM);
    }
    double left = launch_report_ends(r->report) ? end_seconds : gone_seconds;
    if (now > fmin(r->kill_at, r->needed_at + left)) kill_children();
}

/* Until mpirun, all ranks and their words are at an end. */
static void watch(Run *r) {
    while (!r->ended || !r->alone || r->err >= 0 || r->out >= 0 || still_read(r)) {
        struct pollfd fd[] = {{r->signals, POLLIN, 0},
                              {r->err, POLLIN, 0},
                              {r->part_n ? -1 : r->out, POLLIN, 0},
                              {r->part_n ? STDOUT_FILENO : -1, POLLOUT, 0}};
        int ready = poll(fd, ARRAY_LEN(fd), POLL_MS);
        if (ready < 0 && errno != EINTR) die("poll: %s", strerror(errno));
        if (ready > 0 && fd[1].revents) take_stderr(r);
        if (ready > 0 && fd[2].revents) take_stdout(r);
        if (ready > 0 && fd[3].revents) give_stdout(r);
        take_signals(r);
        look_at_clock(r);
        if (clock_seconds() > r->leave_at && !still_read(r))
            break; /* something does not even die */
    }
}

int launch_run(Arena *mem, const LaunchOptions *o, const ThisHost *m, const Placement *p,
               const LaunchPlan *plan) {
    if (!m->mpi_major)
        fail(EXIT_CONFIG, "there is no mpirun of Open MPI; install it (Debian: "
                          "openmpi-bin)");
    complete_environment();
    check_session_folder();
    double now = clock_seconds();
    Run r = {.o = o,
             .heard = now,
             .needed_at = now,
             .kill_at = INFINITY,
             .leave_at = INFINITY};
    r.timeout_at = o->timeout_seconds > 0 ? now + o->timeout_seconds : INFINITY;
    r.report = launch_report_new(mem, stderr, p->ranks, m->host, o->program != NULL);
    int64_t before = this_host_oom_kills();
    start(&r, plan);
    watch(&r);
    int64_t after = this_host_oom_kills();
    int64_t kills = before < 0 || after < 0 ? -1 : after - before;
    int code = launch_report_end(r.report, r.status, kills, r.stopped);
    if (!r.lost) return code;
    fprintf(stderr, "stator: error: cannot write to stdout: %s\n", strerror(r.lost));
    /* No signal: who starts stopped runs again would do so for ever. */
    bool saved = code == EXIT_SIGNALLED && r.stopped == SIGPIPE;
    return code && code != 128 + SIGPIPE && !saved ? code : EXIT_DATA;
}
