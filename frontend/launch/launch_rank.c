/* launch_rank.c - the side of the rank; see launch.h. */
#define _GNU_SOURCE
#include "base/json.h"
#include "frontend/launch/launch.h"
#include "frontend/launch/launch_parts.h"
#include "runtime/comm/watch.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* With the letters of a message and the name of a log a report stays below a pipe's 4096
 * bytes, and so is not torn apart. */
enum { MESSAGE_BYTES = 1400, LOGS_BYTES = 1000, TAIL_BYTES = 1200, TAIL_LINES = 8 };
enum { LAST_BYTES = 64 << 10 }; /* read of a log, as its end may be a backtrace */

/* What the guard sees of its rank. */
typedef struct Shared {
    char logs[LOGS_BYTES]; /* the folder of logs; "" at first */
    WatchState watch;      /* what the rank does */
} Shared;

static struct {
    int rank;
    int cores;       /* of launch_cores */
    int terminal_fd; /* stderr as it was; -1: stderr is still that */
    int kept_fd;     /* what was said before the log is known; -1: nothing is kept */
    char host[256];
    char *logs; /* of Shared; NULL: not under launch */
} self = {.terminal_fd = -1, .kept_fd = -1};

static int number_of(const char *name) {
    const char *s = getenv(name);
    char *end;
    long n = s ? strtol(s, &end, 10) : -1;
    return s && end != s && !*end && n >= 0 && n < 1 << 24 ? (int)n : -1;
}

/* Number of this process by what mpirun, srun and their kin set; -1: started alone. */
static int rank_of_environment(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    int rank = -1;
    for (int i = 0; i < ARRAY_LEN(names) && rank < 0; i++) rank = number_of(names[i]);
    return rank;
}

/* Waits until mpirun has read it: Open MPI 5 ends a rank that calls MPI_Abort, or has
 * ended, without looking for its last words. */
static void say(const Text *t) {
    int fd = self.terminal_fd >= 0 ? self.terminal_fd : STDERR_FILENO, unread = 0;
    double until = clock_seconds() + 1;
    if (write(fd, t->s, t->n) < 0) return; /* nobody is left to be told */
    while (ioctl(fd, FIONREAD, &unread) == 0 && unread > 0 && clock_seconds() < until)
        usleep(1000);
}

static const char *log_of(Arena *mem, int rank) {
    return *self.logs ? arena_printf(mem, "%s/rank_%d.log", self.logs, rank) : NULL;
}

static void add_text(Text *t, const char *key, const char *text) {
    if (!text || !*text) return;
    text_add(t, ", \"%s\": ", key);
    json_write_bytes(t, text, strlen(text));
}

/* {"rank": R, WHAT: NUMBER, "host": H, KEY: TEXT, "at": ..., "log": ...}; text and at may be
 * NULL. */
static void report(int rank, const char *host, const char *what, int number,
                   const char *key, const char *text, const char *at) {
    Arena *mem = arena_new();
    Text t = text_new(mem);
    text_add(&t, LAUNCH_REPORT_MARK "{\"rank\": %d, \"%s\": %d, \"host\": ", rank, what,
             number);
    json_write_string(&t, host);
    add_text(&t, key, text);
    add_text(&t, "at", at);
    add_text(&t, "log", log_of(mem, rank));
    text_add(&t, "}\n");
    say(&t);
    arena_free(mem);
}

/* ---- the guard ---- */

/* Open MPI's words on a signal that ends the rank are none that the rank says. */
static void drop_backtraces(char *text) {
    static const char first[] = "*** Process received signal ***",
                      last[] = "*** End of error message ***";
    for (char *end, *from; (end = strstr(text, last));
         memmove(from, end, strlen(end) + 1)) {
        from = strstr(text, first);
        if (!from || from > end) from = text; /* it began before what was read */
        while (from > text && from[-1] != '\n') from--;
        end += strcspn(end, "\n");
        end += *end == '\n';
    }
}

/* The last lines of the log, or of what was kept before there was one. */
static const char *last_words(char part[LAST_BYTES + 1]) {
    Arena *mem = arena_new();
    const char *log = log_of(mem, self.rank);
    int fd = log ? open(log, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : self.kept_fd;
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0, from = MAX(0, size - LAST_BYTES);
    ssize_t got = fd >= 0 ? pread(fd, part, LAST_BYTES, from) : 0;
    part[MAX(got, 0)] = 0;
    for (ssize_t i = 0; i < got; i++) part[i] = part[i] ? part[i] : ' ';
    drop_backtraces(part);
    size_t n = strlen(part);
    char *start = part + (n > TAIL_BYTES ? n - TAIL_BYTES : 0);
    if (start > part || from) start += strcspn(start, "\n");
    int lines = 0;
    for (char *s = part + n; s > start; s--)
        if (*s == '\n' && s[1] && ++lines == TAIL_LINES) start = s + 1;
    arena_free(mem);
    return make_printable(start + (*start == '\n'), LINES_ALL);
}

/* Waits for the rank, and passes signals on to it. */
static int guard_wait(pid_t rank, const sigset_t *signals, bool *told_to_end) {
    for (;;) {
        int status, sig = sigwaitinfo(signals, NULL);
        if (sig > 0 && sig != SIGCHLD) {
            *told_to_end |= sig != SIGUSR1;
            kill(rank, sig);
        }
        if (waitpid(rank, &status, WNOHANG) == rank) return status;
    }
}

/* The process that mpirun started only waits for the rank, its child: so who died, and of
 * what, is reported before mpirun can know and end the others, on every host and whatever
 * killed the rank. What mpirun ends is no failure of its own. The rank has a group of its
 * own: mpirun may signal whole groups, and no signal should come twice. */
static void guard_rank(void) {
    static const int passed[] = {SIGTERM, SIGINT,  SIGHUP, SIGQUIT,
                                 SIGUSR1, SIGUSR2, SIGCHLD};
    sigset_t signals, old;
    sigemptyset(&signals);
    for (int i = 0; i < ARRAY_LEN(passed); i++) sigaddset(&signals, passed[i]);
    sigprocmask(SIG_BLOCK, &signals, &old);
    pid_t guard = getpid(), rank = fork();
    if (rank < 0) die("fork: %s", strerror(errno));
    if (rank == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != guard) _exit(128 + SIGKILL);
        sigprocmask(SIG_SETMASK, &old, NULL);
        return;
    }
    bool told_to_end = false;
    int status = guard_wait(rank, &signals, &told_to_end);
    bool killed = WIFSIGNALED(status);
    int number = killed ? WTERMSIG(status) : WEXITSTATUS(status);
    if (number && !told_to_end) {
        static char part[LAST_BYTES + 1];
        char at[WATCH_LAST_BYTES];
        watch_last(at);
        report(self.rank, self.host, killed ? "signal" : "code", number, "said",
               last_words(part), at);
    }
    _exit(killed ? 128 + number : number);
}

/* ---- start ---- */

static void output_to(int fd) {
    fflush(NULL);
    if (self.terminal_fd < 0)
        self.terminal_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    if (self.terminal_fd < 0 || dup2(fd, STDOUT_FILENO) < 0 ||
        dup2(fd, STDERR_FILENO) < 0)
        die("cannot redirect the output: %s", strerror(errno));
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
}

/* A report is one piece of what mpirun passes on, so what is longer is cut between words. */
static void fit_message(const char *message, char out[MESSAGE_BYTES + 64]) {
    size_t n = strlen(message);
    bool cut = n > MESSAGE_BYTES;
    if (cut)
        for (n = MESSAGE_BYTES; n > MESSAGE_BYTES / 2 && !strchr(" \n", message[n]);) n--;
    snprintf(out, MESSAGE_BYTES + 64, "%.*s%s", (int)n, message,
             cut ? " ... (the rest is in the log)" : "");
}

static bool rank_failed(int code, const char *message) {
    bool at_terminal = self.terminal_fd < 0;
    fflush(NULL);
    if (self.logs) {
        char shown[MESSAGE_BYTES + 64];
        fit_message(message, shown);
        report(self.rank, self.host, "code", code, "message", shown, NULL);
    } else {
        Arena *mem = arena_new();
        Text t = text_new(mem);
        text_add(&t, "rank %d on %s: %s\n", self.rank, self.host, message);
        say(&t);
        arena_free(mem);
    }
    return at_terminal; /* else it is printed once more, into the log */
}

/* This rank's part of the host's cores. Ranks that wait look for their message again and
 * again, so to the system no core is ever idle, and it moves nobody: ranks that happen to be
 * on one core would stay there. So where ranks are more than the cores they are dealt out in
 * their order, as long as every core gets as many: those of a stage, which compute at the
 * same time, on different cores. Otherwise nothing is bound. */
static void bind_rank(void) {
    int local = number_of("OMPI_COMM_WORLD_LOCAL_RANK");
    int ranks = number_of("OMPI_COMM_WORLD_LOCAL_SIZE"), threads = rt_threads_asked();
    const char *off = getenv("STATOR_BIND");
    if (local < 0 || ranks <= local || !threads) return;
    int cores = this_host_cores(), places = cores / threads;
    bool crowded = ranks > places;
    if (crowded) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    if (off && !strcmp(off, "off")) return;
    self.cores = this_host_cpus();
    if (!crowded)
        this_host_bind(local * threads, threads);
    else if (places && cores % threads == 0 && ranks % places == 0)
        this_host_bind(local % places * threads, threads);
}

int launch_cores(void) {
    return self.cores;
}

void launch_rank_start(void) {
    int rank = rank_of_environment();
    if (rank < 0) return;
    self.rank = rank;
    if (gethostname(self.host, sizeof self.host - 1)) snprintf(self.host, 2, "?");
    if (!getenv(LAUNCH_ENV)) return;
    Shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) die("mmap: %s", strerror(errno));
    self.logs = shared->logs;
    watch_share(&shared->watch);
    self.kept_fd = rank ? memfd_create("stator-early-output", MFD_CLOEXEC) : -1;
    failure_hook = rank_failed;
    guard_rank();
    bind_rank();
    report(rank, self.host, "pid", (int)getpid(), NULL, NULL, NULL);
    if (self.kept_fd >= 0) output_to(self.kept_fd);
}

/* ---- while it runs ---- */

int launch_columns(void) {
    if (rank_of_environment() < 0) return -1;
    return self.logs ? MAX(0, number_of(LAUNCH_COLUMNS_ENV)) : 0;
}

/* No fflush, and no words but this one write: the main thread may hold every lock. */
void launch_say_hang(int rank, const char *host, const char *text, bool ends) {
    if (self.logs && ends) {
        report(rank, host, "code", EXIT_HUNG, "hung", text, NULL);
        return;
    }
    Arena *mem = arena_new();
    Text t = text_new(mem);
    text_add(&t, "stator: %s: %s\n%s", ends ? "error" : "warning", text,
             ends ? "  all ranks are ended (runner_config.on_hang)\n" : "");
    say(&t);
    arena_free(mem);
}

void launch_say_end(int code) {
    fflush(NULL);
    if (self.logs) report(self.rank, self.host, "ends", code, NULL, NULL, NULL);
}

static void copy_kept(int to) {
    char part[8192];
    off_t at = 0;
    for (ssize_t n; (n = pread(self.kept_fd, part, sizeof part, at)) > 0; at += n)
        if (fd_write(to, part, (size_t)n)) break; /* a full disk: the run will say so */
    close(self.kept_fd);
    self.kept_fd = -1;
}

void launch_redirect_output(const char *logs, int rank, int fd) {
    self.rank = MAX(rank, 0);
    char *whole = self.logs ? realpath(logs, NULL) : NULL;
    if (whole && strlen(whole) < LOGS_BYTES) strcpy(self.logs, whole);
    free(whole);
    if (rank <= 0) return;
    fflush(NULL);
    if (self.kept_fd >= 0) copy_kept(fd);
    output_to(fd);
    failure_hook = rank_failed;
}
