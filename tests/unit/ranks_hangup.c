/* Tests of runs whose terminal or reader goes away: at any instant they save and end as
 * at SIGTERM, and go on to the bits of a run that was not disturbed; without any of the
 * standard files they train on. */
#define _GNU_SOURCE
#include "frontend/config/commands.h"
#include "ranks.h"
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { STEPS = 1000000 };

static int times(void) {
    return test_long() ? 20 : RANKS_SANITIZED ? 2 : 3;
}

/* What a run's stdout is: a file of the test's, or a pipe that the test reads. */
static int reader = -1;
static bool ignores_hangup, closes_all;
static const char *terminal; /* that a run is the first process of; or NULL */

static void take_terminal(void) {
    setsid();
    int fd = open(terminal, O_RDWR);
    ioctl(fd, TIOCSCTTY, 0);
    for (int to = 0; to <= 2; to++) dup2(fd, to);
    if (fd > 2) close(fd);
}

static void prepare(void) {
    mpi_environment();
    if (ignores_hangup) signal(SIGHUP, SIG_IGN);
    if (reader >= 0) {
        dup2(reader, STDOUT_FILENO);
        close(reader);
    }
    if (terminal) take_terminal();
    for (int fd = 0; closes_all && fd <= 2; fd++) close(fd);
}

static pid_t start(int ranks, const char *config, const char *run, const char *more) {
    const char *launch = ranks > 1 ? arena_printf(mem(), "launch -n %d ", ranks) : "";
    if (ranks > 1 && !mpi_available()) test_skip("there is no mpirun");
    driven_prepare = prepare;
    return stator_start(
        arena_printf(mem(), "%strain %s --output_dir %s %s", launch, config, run, more));
}

/* Bytes of metrics.jsonl: cheaper to ask for again and again. */
static long size_of(const char *run) {
    struct stat st;
    return stat(path_join(mem(), run, "metrics.jsonl"), &st) ? 0 : (long)st.st_size;
}

/* The end of what a run has printed to the test. */
static char heard[1 << 13];
static size_t nheard;

static void drain_some(int fd) {
    const size_t half = sizeof heard / 2;
    if (nheard > half) {
        memmove(heard, heard + nheard - half, half);
        nheard = half;
    }
    ssize_t n = read(fd, heard + nheard, sizeof heard - nheard - 1);
    if (n > 0) heard[nheard += (size_t)n] = 0;
}

enum { BROKEN_PIPE = 0, CLOSED_TERMINAL = -1 }; /* instead of the number of a signal */

/* What the run prints to, for start; the end that the test reads, or -1. */
static int open_reader(int number) {
    int ends[2] = {-1, -1};
    if (number > 0) return -1;
    if (number == BROKEN_PIPE) {
        EXPECT(pipe(ends) == 0);
    } else {
        ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
        if (ends[0] < 0 || grantpt(ends[0]) || unlockpt(ends[0]))
            test_skip("no pseudo-terminal");
        terminal = arena_strdup(mem(), ptsname(ends[0]));
    }
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    reader = ends[1];
    return ends[0];
}

static void forget_reader(void) {
    if (reader >= 0) close(reader);
    reader = -1;
    terminal = NULL;
}

/* It has not ended by itself, and makes a step within a minute. */
static void expect_it_goes_on(pid_t pid, double since) {
    siginfo_t info = {0};
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid != pid && clock_seconds() - since < 60) return;
    kill(pid, SIGTERM);
    test_fail(__FILE__, __LINE__, "%s:\n%s%s",
              info.si_pid == pid ? "it ended" : "no new step in a minute", said(), heard);
}

/* So that there are hundreds of steps until a run has ended and not thousands, which a run that is
 * not disturbed makes again, beside other tests. */
#define LONGER_STEPS "--runner_config.batch_size 64"

/* Begins or goes on, and gets the signal, or is left alone by who reads what it prints,
 * some time after its first new step. */
static void run_and_leave(int ranks, const char *config, const char *run, int number,
                          uint64_t *random) {
    long before = size_of(run);
    int from = open_reader(number);
    pid_t pid =
        start(ranks, config, run, LONGER_STEPS " --runner_config.log_interval 10");
    forget_reader();
    double until = 0, since = clock_seconds();
    for (uint64_t wait = runs_random(random) % 60000;
         !until || clock_seconds() < until;) {
        if (from >= 0) drain_some(from);
        if (!until) expect_it_goes_on(pid, since);
        if (!until && size_of(run) > before)
            until = clock_seconds() + 1e-6 * (double)wait;
        usleep(1000);
    }
    if (from >= 0)
        close(from);
    else
        kill(pid, number);
    ranks_end(pid, EXIT_SIGNALLED,
              number > 0 ? strsignal(number) : "nobody reads stdout");
}

static void leave_often(int ranks, int number) {
    const char *config = runs_small_config(STEPS, STEPS), *run = in_temp("run");
    const char *whole = in_temp("whole");
    uint64_t random = 0x9e3779b97f4a7c15u + (uint64_t)ranks;
    const int often = times();
    for (int i = 0; i < often; i++) {
        run_and_leave(ranks, config, run, number, &random);
        int n = runs_steps(run);
        if (!file_exists(arena_printf(mem(), "%s/ckpt/step_%08d", run, n)))
            test_fail(__FILE__, __LINE__, "step %d is not saved:\n%s", n, said());
    }
    int n = runs_steps(run) + 3;
    const char *rest = arena_printf(
        mem(), LONGER_STEPS " --runner_config.max_steps %d --lr_schedule.total_steps %d",
        n, STEPS);
    ranks_end(start(ranks, config, run, rest), 0, "the rest");
    ranks_end(start(ranks, config, whole, rest), 0, "the whole");
    runs_expect_same_losses(whole, run, n);
    runs_expect_same_tensors(whole, run, n);
}

TEST_LIMIT(sighup_of_one_rank, 60) {
    leave_often(1, SIGHUP);
}

TEST_LIMIT(broken_pipe_of_one_rank, 60) {
    leave_often(1, BROKEN_PIPE);
}

TEST_LIMIT(sigterm_of_one_rank, 60) {
    leave_often(1, SIGTERM);
}

TEST_LIMIT(sigterm_of_launch, 120) {
    leave_often(2, SIGTERM);
}

TEST_LIMIT(sighup_of_launch, 120) {
    leave_often(2, SIGHUP);
}

TEST_LIMIT(broken_pipe_of_launch, 120) {
    leave_often(2, BROKEN_PIPE);
    EXPECT(!strstr(said(), "mpirun"));
}

/* The kernel sends SIGHUP to the first process of the terminal alone. */
TEST_LIMIT(closed_terminal_of_one_rank, 120) {
    leave_often(1, CLOSED_TERMINAL);
}

TEST_LIMIT(closed_terminal_of_launch, 240) {
    leave_often(2, CLOSED_TERMINAL);
}

/* The kernel may take the terminal away before it says so: launch finds that it cannot write, then
 * hears of it. That is one event, and not a second signal, which would end the ranks unsaved. */
TEST_LIMIT(lost_terminal_before_its_signal, 120) {
    const char *config = runs_small_config(STEPS, STEPS), *run = in_temp("run");
    int from = open_reader(CLOSED_TERMINAL);
    reader = open(terminal, O_RDWR | O_NOCTTY | O_CLOEXEC);
    terminal = NULL;
    EXPECT(reader >= 0);
    pid_t pid = start(2, config, run, "--runner_config.log_interval 1");
    forget_reader();
    EXPECT(runs_wait_steps(pid, run, 5));
    close(from);
    usleep(20000);
    kill(pid, SIGHUP);
    ranks_end(pid, EXIT_SIGNALLED, "a terminal that is gone, then SIGHUP");
    int n = runs_steps(run);
    EXPECT(file_exists(arena_printf(mem(), "%s/ckpt/step_%08d", run, n)));
    EXPECT(!strstr(said(), "cannot write to stdout"));
}

/* A script that starts what has saved after a signal again would do so for ever. */
TEST_LIMIT(full_disk_of_launch, 60) {
    const char *config = runs_small_config(STEPS, STEPS), *run = in_temp("run");
    reader = open("/dev/full", O_WRONLY | O_CLOEXEC);
    pid_t pid = start(2, config, run, "");
    forget_reader();
    ranks_end(pid, EXIT_DATA, "stdout is on a full disk");
    SAID_EXPECT("cannot write to stdout: No space left on device");
    EXPECT(file_exists(path_join(mem(), run, "ckpt/latest")));
}

/* As nohup starts it. */
static void ignore_hangup(int ranks) {
    const char *config = runs_small_config(1000, 1000), *run = in_temp("run");
    ignores_hangup = true;
    pid_t pid = start(ranks, config, run, "");
    EXPECT(runs_wait_steps(pid, run, 5));
    kill(pid, SIGHUP);
    ranks_end(pid, 0, "SIGHUP is ignored");
    EXPECT_INT(runs_steps(run), 1000);
}

TEST_LIMIT(sighup_that_is_ignored, 60) {
    ignore_hangup(1);
}

TEST_LIMIT(sighup_that_launch_ignores, 60) {
    ignore_hangup(2);
}

static void run_closed(int ranks) {
    const char *config = runs_small_config(300, 300), *run = in_temp("run");
    closes_all = true;
    ranks_end(start(ranks, config, run, ""), 0, "without stdin, stdout and stderr");
    EXPECT_INT(runs_steps(run), 300);
    EXPECT(file_exists(path_join(mem(), run, "ckpt/step_00000300")));
    EXPECT_PART(ranks_log(run, 0), "stdout was closed at the start");
}

TEST_LIMIT(one_rank_without_standard_files, 60) {
    run_closed(1);
}

TEST_LIMIT(launch_without_standard_files, 60) {
    run_closed(2);
}
