/* launch_run.c - starts mpirun, passes signals on, and sees to it that nothing is left.
 */
#define _GNU_SOURCE
#include "frontend/launch/launch_parts.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Seconds: mpirun's time to end all ranks once one has failed or a second signal came,
 * what a run may take to save at its timeout, what orphans of a dead mpirun get, and the
 * silence after which an unfinished line is shown. */
static const double end_seconds = 5, save_seconds = 60, orphan_seconds = 1,
                    idle_seconds = 0.3;
enum { POLL_MS = 100, MAX_PROCESSES = 1 << 20, OUT_BYTES = 4096 };
/* Of Run.fd: signals, what mpirun writes, our stdout. */
enum { FD_SIGNALS, FD_STDERR, FD_STDOUT, FD_OUR_STDOUT, FDS };

typedef struct Run {
    Arena *mem;
    const LaunchOptions *o;
    LaunchReport *report;
    pid_t mpirun;
    struct pollfd fd[FDS];
    char out[OUT_BYTES]; /* from FD_STDOUT; no more than a pipe takes at once */
    size_t out_n, out_at;
    bool ended; /* mpirun */
    bool deaf;  /* nobody reads our stdout */
    int status;
    int stopped, stops; /* the first signal to end; how many came */
    double heard, kill_at, timeout_at, leave_at;
} Run;

/* ---- processes below this one ---- */

typedef struct Process {
    pid_t pid, parent;
    bool ours;
} Process;

static bool process_read(const char *name, Process *p) {
    char path[300], line[512];
    snprintf(path, sizeof path, "/proc/%s/stat", name);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    char *behind = strrchr(line, ')'), state; /* the name in (...) may hold anything */
    return behind && sscanf(behind + 1, " %c %d", &state, &p->parent) == 2 &&
           state != 'Z';
}

static Process *processes(Arena *mem, int *n) {
    Process *all = NULL;
    int cap = 0;
    *n = 0;
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d)) && *n < MAX_PROCESSES;) {
        Process p = {.pid = (pid_t)strtol(e->d_name, NULL, 10)};
        if (p.pid > 0 && process_read(e->d_name, &p)) PUSH(mem, all, *n, cap, p);
    }
    if (d) closedir(d);
    return all;
}

/* Sends `sig` (0: none) to all that descend from this process; returns how many. Orphans
 * come to us, as their reaper, so the chain of parents does not break. */
static int signal_descendants(int sig) {
    Arena *mem = arena_new();
    int n, ours = 0;
    Process *p = processes(mem, &n);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < n; i++) {
            bool below = p[i].parent == getpid();
            for (int j = 0; j < n && !below && !p[i].ours; j++)
                below = p[j].ours && p[j].pid == p[i].parent;
            if (!below || p[i].ours) continue;
            p[i].ours = more = true;
            ours++;
            if (sig) kill(p[i].pid, sig);
        }
    }
    arena_free(mem);
    return ours;
}

/* ---- start ---- */

/* As nohup has it. */
static bool signal_ignored(int sig) {
    struct sigaction act;
    return sigaction(sig, NULL, &act) == 0 && act.sa_handler == SIG_IGN;
}

static _Noreturn void become_mpirun(const LaunchPlan *plan, const int *output,
                                    int error_fd, const sigset_t *old) {
    /* signals of the terminal come to us alone, and we pass them on */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    sigprocmask(SIG_SETMASK, old, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(output[0], STDOUT_FILENO);
    dup2(output[1], STDERR_FILENO);
    if (isatty(STDIN_FILENO)) {
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, STDIN_FILENO);
    }
    execvp(plan->argv[0], (char *const *)(uintptr_t)plan->argv);
    int error = errno;
    ssize_t put = write(error_fd, &error, sizeof error);
    _exit(put == sizeof error ? 127 : 126);
}

/* 0, or the errno value of why mpirun does not run. */
static int start(Run *r, const LaunchPlan *plan) {
    sigset_t watched, old;
    int error_pipe[2], stdout_pipe[2], stderr_pipe[2], error = 0;
    sigemptyset(&watched);
    const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD};
    for (int i = 0; i < ARRAY_LEN(signals); i++) sigaddset(&watched, signals[i]);
    if (!signal_ignored(SIGHUP)) sigaddset(&watched, SIGHUP);
    signal(SIGPIPE, SIG_IGN); /* a write says so */
    sigprocmask(SIG_BLOCK, &watched, &old);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    r->fd[FD_SIGNALS].fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (r->fd[FD_SIGNALS].fd < 0) return errno;
    if (pipe2(error_pipe, O_CLOEXEC) || pipe2(stderr_pipe, O_CLOEXEC) ||
        pipe2(stdout_pipe, O_CLOEXEC))
        return errno;
    const int output[] = {stdout_pipe[1], stderr_pipe[1]};
    fflush(NULL);
    r->mpirun = fork();
    if (r->mpirun < 0) return errno;
    if (r->mpirun == 0) become_mpirun(plan, output, error_pipe[1], &old);
    close(error_pipe[1]);
    close(stderr_pipe[1]);
    close(stdout_pipe[1]);
    r->fd[FD_STDERR].fd = stderr_pipe[0];
    r->fd[FD_STDOUT].fd = stdout_pipe[0];
    if (read(error_pipe[0], &error, sizeof error) != sizeof error) error = 0;
    close(error_pipe[0]);
    return error;
}

/* ---- watch ---- */

static void kill_by(Run *r, double seconds) {
    r->kill_at = fmin(r->kill_at, clock_seconds() + seconds);
}

/* The first signal asks stator's ranks to save and end, the second to end. mpirun passes
 * SIGUSR1 on; on SIGTERM it ends the ranks itself. */
static void pass_signal(Run *r, int sig) {
    bool soft = sig == SIGUSR1 || (!r->o->program && r->stops == 0);
    if (sig != SIGUSR1 || !r->o->program) {
        if (!r->stopped) r->stopped = sig;
        r->stops++;
    }
    if (!r->ended) kill(r->mpirun, soft ? SIGUSR1 : SIGTERM);
    if (!soft) kill_by(r, end_seconds);
}

static void take_signals(Run *r) {
    struct signalfd_siginfo s;
    while (read(r->fd[FD_SIGNALS].fd, &s, sizeof s) == sizeof s)
        if (s.ssi_signo != SIGCHLD) pass_signal(r, (int)s.ssi_signo);
    int status;
    for (pid_t p; (p = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (p != r->mpirun) continue;
        r->ended = true;
        r->status = status;
        kill_by(r, orphan_seconds);
        r->leave_at = clock_seconds() + end_seconds;
    }
}

static void close_fd(struct pollfd *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1; /* poll passes over it */
    p->revents = 0;
}

static void take_stderr(Run *r) {
    char part[8192];
    if (!r->fd[FD_STDERR].revents) return;
    ssize_t n = read(r->fd[FD_STDERR].fd, part, sizeof part);
    if (n > 0) {
        bool known = launch_report_fatal(r->report);
        launch_report_take(r->report, part, (size_t)n);
        r->heard = clock_seconds();
        if (!known && launch_report_fatal(r->report)) kill_by(r, end_seconds);
    } else if (n == 0 || errno != EINTR) {
        close(r->fd[FD_STDERR].fd);
        r->fd[FD_STDERR].fd = -1;
    }
}

/* What the ranks say goes on to our stdout as far as that takes it: launch itself never
 * waits there. When nobody reads it any more the ranks are asked to save and end, and the
 * rest is dropped. */
static void give_stdout(Run *r) {
    if (!r->out_n || !r->fd[FD_OUR_STDOUT].revents) return;
    ssize_t n = write(STDOUT_FILENO, r->out + r->out_at, r->out_n);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n < 0) {
        r->out_n = 0;
        r->deaf = true;
        if (!r->stops) pass_signal(r, SIGPIPE);
        return;
    }
    r->out_at += (size_t)n;
    r->out_n -= (size_t)n;
}

static void take_stdout(Run *r) {
    if (r->out_n || !r->fd[FD_STDOUT].revents) return;
    ssize_t n = read(r->fd[FD_STDOUT].fd, r->out, sizeof r->out);
    if (n == 0 || (n < 0 && errno != EINTR)) close_fd(&r->fd[FD_STDOUT]);
    r->out_at = 0;
    r->out_n = n > 0 && !r->deaf ? (size_t)n : 0;
}

static void copy_stdout(Run *r) {
    give_stdout(r);
    take_stdout(r);
    r->fd[FD_OUR_STDOUT].fd = r->out_n ? STDOUT_FILENO : -1;
    r->fd[FD_STDOUT].events = r->out_n ? 0 : POLLIN;
}

/* Ranks have ended, but the reader of our stdout is slow: unless a second signal came. */
static bool still_read(const Run *r) {
    return r->out_n && r->stops < 2;
}

static void look_at_clock(Run *r) {
    double now = clock_seconds();
    if (now - r->heard > idle_seconds) {
        launch_report_idle(r->report);
        r->heard = now;
    }
    if (now > r->timeout_at) {
        r->timeout_at = r->stops ? INFINITY : now + save_seconds;
        pass_signal(r, SIGTERM);
    }
    if (now > r->kill_at) {
        signal_descendants(SIGKILL);
        r->kill_at = now + orphan_seconds;
    }
}

/* Until mpirun, all ranks and their words are at an end. */
static void watch(Run *r) {
    while (!r->ended || r->fd[FD_STDERR].fd >= 0 || r->fd[FD_STDOUT].fd >= 0 ||
           still_read(r) || signal_descendants(0)) {
        int ready = poll(r->fd, FDS, POLL_MS);
        if (ready < 0 && errno != EINTR) die("poll: %s", strerror(errno));
        if (ready > 0) {
            take_stderr(r);
            copy_stdout(r);
        }
        take_signals(r);
        look_at_clock(r);
        if (clock_seconds() > r->leave_at && !still_read(r))
            break; /* something does not even die */
    }
    take_signals(r); /* the last orphans */
}

/* ---- the folder of reports ---- */

#define FOLDER_NAME "stator-launch-"

static void remove_folder(const char *dir) {
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(dir);
}

/* The lock of a folder says that its launch lives; it goes with the process. -1: another
 * has it, or the folder is not ours. */
static int lock_folder(const char *dir, int wait) {
    struct stat st;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | wait) == 0)
        return fd;
    close(fd);
    return -1;
}

/* What a launch left that was killed. */
static void remove_left(Arena *mem, const char *base) {
    DIR *d = opendir(base);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, FOLDER_NAME, strlen(FOLDER_NAME))) continue;
        const char *dir = path_join(mem, base, e->d_name);
        int fd = lock_folder(dir, LOCK_NB);
        if (fd < 0) continue;
        remove_folder(dir);
        close(fd);
    }
    if (d) closedir(d);
}

/* Locked until the end of the process. One that another launch has taken for a leftover,
 * before the lock was there, is made again. */
static char *make_folder(Arena *mem) {
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = "/tmp";
    remove_left(mem, base);
    for (;;) {
        char *dir = arena_printf(mem, "%s/" FOLDER_NAME "XXXXXX", base);
        if (!mkdtemp(dir))
            fail(EXIT_CONFIG,
                 "cannot make %s: %s; set TMPDIR to a folder that can be written", dir,
                 strerror(errno));
        int fd = lock_folder(dir, 0);
        if (file_exists(dir)) return dir;
        if (fd >= 0) close(fd);
    }
}

static int run_plan(Run *r, const LaunchPlan *plan, const char *dir) {
    int error = 0;
    if (plan->seats)
        error = file_write_atomic(path_join(r->mem, dir, LAUNCH_SEATS), plan->seats,
                                  strlen(plan->seats));
    if (error) return error;
    error = start(r, plan);
    if (error) return error;
    watch(r);
    return 0;
}

int launch_run(Arena *mem, const LaunchOptions *o, const Machine *m, const Placement *p) {
    char *dir = make_folder(mem);
    LaunchPlan *plan = launch_plan(mem, o, m, p, dir, environ);
    if (plan->warning) fprintf(stderr, "stator: warning: %s\n", plan->warning);
    double now = clock_seconds();
    Run r = {.mem = mem, .o = o, .kill_at = INFINITY, .leave_at = INFINITY, .heard = now};
    r.fd[FD_SIGNALS].events = r.fd[FD_STDERR].events = r.fd[FD_STDOUT].events = POLLIN;
    r.fd[FD_OUR_STDOUT] = (struct pollfd){-1, POLLOUT, 0};
    r.timeout_at = o->timeout_seconds > 0 ? now + o->timeout_seconds : INFINITY;
    r.report = launch_report_new(mem, stderr, p, m, dir, o->program != NULL);
    int64_t kills = machine_oom_kills();
    int error = run_plan(&r, plan, dir);
    if (error) {
        remove_folder(dir);
        fail(EXIT_CONFIG, "cannot run mpirun: %s%s", strerror(error),
             error == ENOENT ? "; install Open MPI (Debian: openmpi-bin)" : "");
    }
    int64_t after = machine_oom_kills();
    int code = launch_report_end(r.report, r.status,
                                 kills < 0 || after < 0 ? -1 : after - kills, r.stopped);
    remove_folder(dir);
    return code;
}
