/* launch_rank.c - the side of the rank; see launch.h. */
#define _GNU_SOURCE
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    int rank;
    bool launched;   /* by stator launch */
    int terminal_fd; /* stderr as it was; -1: stderr is still that */
    int kept_fd;     /* what was said before the log is known; -1: nothing is kept */
    char host[256];
} self = {.rank = 0, .terminal_fd = -1, .kept_fd = -1};

/* Number of this process by what mpirun, srun and their kin set; -1: started alone. */
static int rank_of_environment(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        const char *s = getenv(names[i]);
        char *end;
        long n = s ? strtol(s, &end, 10) : -1;
        if (s && end != s && !*end && n >= 0 && n < 1 << 24) return (int)n;
    }
    return -1;
}

/* One write: a line below PIPE_BUF is not torn apart. */
static void say(const Text *t) {
    int fd = self.terminal_fd >= 0 ? self.terminal_fd : STDERR_FILENO;
    ssize_t put = write(fd, t->s, t->n);
    (void)put; /* nobody is left to be told */
}

static Text report_begin(Arena *mem) {
    Text t = text_new(mem);
    text_add(&t, LAUNCH_REPORT_MARK "{\"rank\": %d, \"host\": ", self.rank);
    json_write_string(&t, self.host);
    return t;
}

/* ---- the guard ---- */

static void guard_say(const char *what, int number) {
    Arena *mem = arena_new();
    Text t = report_begin(mem);
    text_add(&t, ", \"%s\": %d}\n", what, number);
    say(&t);
    arena_free(mem);
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
    if (number && !told_to_end) guard_say(killed ? "signal" : "code", number);
    _exit(killed ? 128 + number : number);
}

/* ---- failures ---- */

static bool rank_failed(int code, const char *message) {
    Arena *mem = arena_new();
    bool at_terminal = self.terminal_fd < 0;
    Text t;
    if (self.launched) {
        t = report_begin(mem);
        text_add(&t, ", \"code\": %d, \"message\": ", code);
        json_write_bytes(&t, message, MIN(strlen(message), (size_t)LAUNCH_MESSAGE_BYTES));
        text_add(&t, "}\n");
    } else {
        t = text_new(mem);
        text_add(&t, "rank %d on %s: %s\n", self.rank, self.host, message);
    }
    fflush(NULL);
    say(&t);
    arena_free(mem);
    return at_terminal; /* else it is printed once more, into the log */
}

int launch_columns(void) {
    const char *s = getenv(LAUNCH_COLUMNS_ENV);
    if (rank_of_environment() < 0) return -1;
    long n = self.launched && s ? strtol(s, NULL, 10) : 0;
    return n > 0 && n < 10000 ? (int)n : 0;
}

/* No fflush, and no words but this one write: the main thread may hold every lock. */
void launch_say_hang(int rank, const char *host, const char *text, bool ends) {
    Arena *mem = arena_new();
    Text t = text_new(mem);
    if (self.launched && ends) {
        text_add(&t, LAUNCH_REPORT_MARK "{\"rank\": %d, \"host\": ", rank);
        json_write_string(&t, host);
        text_add(&t, ", \"code\": %d, \"hung\": ", EXIT_HUNG);
        json_write_bytes(&t, text, strlen(text));
        text_add(&t, "}\n");
    } else {
        text_add(&t, "stator: %s: %s\n%s", ends ? "error" : "warning", text,
                 ends ? "  all ranks are ended (runner_config.on_hang)\n" : "");
    }
    say(&t);
    arena_free(mem);
}

/* A file for early output: where stator launch can read it, or without a name. */
static int keep_file(const char *dir, int rank) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/rank_%d.log", dir, rank);
    int fd = n < (int)sizeof path
                 ? open(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600)
                 : -1;
    return fd >= 0 ? fd : memfd_create("stator-early-output", MFD_CLOEXEC);
}

static void output_to(int fd) {
    fflush(NULL);
    if (self.terminal_fd < 0)
        self.terminal_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
    if (self.terminal_fd < 0 || dup2(fd, STDOUT_FILENO) < 0 ||
        dup2(fd, STDERR_FILENO) < 0)
        die("cannot redirect the output: %s", strerror(errno));
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
}

void launch_rank_start(void) {
    int rank = rank_of_environment();
    const char *dir = getenv(LAUNCH_REPORT_ENV);
    if (rank < 0) return;
    self.rank = rank;
    self.launched = dir != NULL;
    if (gethostname(self.host, sizeof self.host - 1)) snprintf(self.host, 2, "?");
    if (!self.launched) return;
    failure_hook = rank_failed;
    guard_rank();
    guard_say("pid", (int)getpid());
    self.kept_fd = rank ? keep_file(dir, rank) : -1;
    if (self.kept_fd >= 0) output_to(self.kept_fd);
}

static void copy_kept(int to) {
    char part[8192];
    off_t at = 0;
    for (ssize_t n; (n = pread(self.kept_fd, part, sizeof part, at)) > 0; at += n) {
        ssize_t put = write(to, part, (size_t)n);
        if (put != n) break; /* a full disk: the run itself will say so */
    }
    close(self.kept_fd);
    self.kept_fd = -1;
}

void launch_redirect_output(const char *run_dir, int rank) {
    if (rank <= 0) return;
    Arena *mem = arena_new();
    const char *dir = path_join(mem, run_dir, RUN_LOGS);
    const char *path = arena_printf(mem, "%s/rank_%d.log", dir, rank);
    int error = dir_make(dir);
    int fd =
        error ? -1
              : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        fail(EXIT_CONFIG,
             "rank %d cannot write its log %s: %s; choose another output_dir", rank, path,
             strerror(error ? error : errno));
    self.rank = rank;
    fflush(NULL);
    if (self.kept_fd >= 0) copy_kept(fd);
    output_to(fd);
    close(fd);
    failure_hook = rank_failed;
    char *whole = self.launched ? realpath(path, NULL) : NULL;
    if (whole && strlen(whole) < LAUNCH_MESSAGE_BYTES) {
        Text t = report_begin(mem);
        text_add(&t, ", \"log\": ");
        json_write_string(&t, whole);
        text_add(&t, "}\n");
        say(&t);
    }
    free(whole);
    arena_free(mem);
}
