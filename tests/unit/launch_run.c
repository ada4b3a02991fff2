/* Tests of stator launch with real ranks: this program is its own rank when
 * STATOR_TEST_RANK names one of the roles below. */
#define _GNU_SOURCE
#include "driven.h"
#include "frontend/config/commands.h"
#include "frontend/launch/launch.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

/* ---- ranks ---- */

static int my_rank(void) {
    const char *s = getenv("OMPI_COMM_WORLD_RANK");
    return s ? atoi(s) : 0;
}

/* Puts a file in the folder of the test: NAME.RANK, holding the process's number. */
static void leave_pid(const char *name) {
    const char *dir = getenv("STATOR_TEST_DIR");
    char *path = arena_printf(mem(), "%s/%s.%d", dir, name, my_rank());
    char *text = arena_printf(mem(), "%d", (int)getpid());
    EXPECT_INT(file_write_atomic(path, text, strlen(text)), 0);
}

static void log_in_run_folder(void) {
    const char *logs = path_join(mem(), getenv("STATOR_TEST_DIR"), RUN_LOGS);
    const char *log = arena_printf(mem(), "%s/rank_%d.log", logs, my_rank());
    printf("early %d\n", my_rank());
    EXPECT_INT(dir_make(logs), 0);
    launch_redirect_output(logs, my_rank(),
                           open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
    printf("late %d\n", my_rank());
    fprintf(stderr, "warned %d\n", my_rank());
}

static void role_fine(void) {
    log_in_run_folder();
}
static void role_fail(void) {
    log_in_run_folder();
    if (my_rank() == 1)
        fail(EXIT_DATA, "parallel_config.data_parallel is odd\n  so it is");
    sleep(60);
}
static void role_die(void) {
    log_in_run_folder();
    if (my_rank() == 1) die("op %%sum.1 is gone");
    sleep(60);
}
static void role_tell(void) {
    char words[3000];
    log_in_run_folder();
    for (int i = 0; i < (int)sizeof words; i++) words[i] = i % 7 ? 'w' : ' ';
    words[sizeof words - 1] = 0;
    if (my_rank() == 1) fail(EXIT_DATA, "much:%s the end", words);
    sleep(60);
}
/* MPI refuses to send from nowhere. */
static void role_lose(void) {
    log_in_run_folder();
    comm_start();
    if (my_rank() == 1) comm_send_bytes(0, NULL, 4);
    sleep(60);
}
static void role_crash(void) {
    log_in_run_folder();
    if (my_rank() == 1) raise(SIGSEGV);
    sleep(60);
}
/* With a backtrace as Open MPI prints it, short or longer than what is told of a log. */
static void role_trace(void) {
    int frames = atoi(getenv("STATOR_TEST_FRAMES"));
    log_in_run_folder();
    if (my_rank() == 1) {
        watch_task("step", 12, true);
        fprintf(stderr, "[h:1] *** Process received signal ***\n[h:1] Signal: Segm\n");
        for (int i = 0; i < frames; i++)
            fprintf(stderr, "[h:1] [%2d] /lib/libc.so.6(+0x3c050)[0x7fdc4de5a050]\n", i);
        fprintf(stderr, "[h:1] *** End of error message ***\n");
        raise(SIGSEGV);
    }
    sleep(60);
}
/* Before it has a log. */
static void role_choke(void) {
    printf("what it said\n");
    fflush(stdout);
    if (my_rank() == 1) kill(getpid(), SIGKILL);
    sleep(60);
}
static void role_vanish(void) {
    log_in_run_folder();
    if (my_rank() == 1) kill(getpid(), SIGKILL);
    sleep(60);
}
static void role_sleep(void) {
    log_in_run_folder();
    leave_pid("pid");
    sleep(60);
}
static void role_deaf(void) {
    signal(SIGTERM, SIG_IGN);
    role_sleep();
}
static void role_bound(void) {
    cpu_set_t mask;
    EXPECT(sched_getaffinity(0, sizeof mask, &mask) == 0);
    const char *path =
        arena_printf(mem(), "%s/mask.%d", getenv("STATOR_TEST_DIR"), my_rank());
    EXPECT_INT(file_write_atomic(path, &mask, sizeof mask), 0);
}
static void role_save(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    leave_pid("pid");
    int got;
    sigwait(&set, &got);
    leave_pid("saved");
    exit(EXIT_SIGNALLED);
}

static const struct {
    const char *name;
    void (*run)(void);
} roles[] = {{"fine", role_fine},   {"fail", role_fail},     {"die", role_die},
             {"crash", role_crash}, {"deaf", role_deaf},     {"sleep", role_sleep},
             {"save", role_save},   {"vanish", role_vanish}, {"choke", role_choke},
             {"bound", role_bound}, {"tell", role_tell},     {"lose", role_lose},
             {"trace", role_trace}};

__attribute__((constructor)) static void be_rank(void) {
    const char *role = getenv("STATOR_TEST_RANK");
    if (!role) return;
    signal(SIGSEGV, SIG_DFL); /* a sanitizer would say more in the log than is expected */
    launch_rank_start();
    for (int i = 0; i < ARRAY_LEN(roles); i++)
        if (!strcmp(role, roles[i].name)) {
            roles[i].run();
            exit(0);
        }
    exit(99);
}

/* ---- the driver ---- */

static void need_mpirun(void) {
    /* Open MPI keeps memory until the end. */
    const char *asan = getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS", arena_printf(mem(), "%s:detect_leaks=0", asan ? asan : ""), 1);
    if (system("mpirun --version >/dev/null 2>&1") != 0) test_skip("there is no mpirun");
}

static pid_t start(const char *role, const char *options) {
    need_mpirun();
    char self[1024];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    EXPECT(n > 0);
    self[n] = 0;
    setenv("STATOR_TEST_DIR", temp_dir(), 1);
    setenv("STATOR_TEST_RANK", role, 1);
    setenv("TMPDIR", temp_dir(), 1);
    return stator_start(arena_printf(mem(), "launch %s --program %s", options, self));
}

static void ends(pid_t pid, int want) {
    int code = stator_wait(pid);
    if (code != want)
        test_fail(__FILE__, __LINE__, "exit code %d, wanted %d:\n%s", code, want, said());
}

static bool says(const char *part) {
    return strstr(said(), part) != NULL;
}

static const char *rank_log(int rank) {
    const char *path = in_temp(arena_printf(mem(), "logs/rank_%d.log", rank));
    return file_read(mem(), path, 1 << 20, NULL, EXIT_DATA);
}

/* The process that rank r left its number of, once it is there. */
static pid_t pid_of(const char *name, int rank) {
    const char *path = in_temp(arena_printf(mem(), "%s.%d", name, rank));
    for (int i = 0; i < 2000 && !file_exists(path); i++) usleep(10000);
    return (pid_t)atoi(file_read(mem(), path, 100, NULL, EXIT_DATA));
}

static bool is_gone(pid_t pid) {
    for (int i = 0; i < 100; i++, usleep(10000))
        if (kill(pid, 0) != 0) return true;
    return false;
}

static pid_t child_of(pid_t parent) {
    char *path = arena_printf(mem(), "/proc/%d/task/%d/children", parent, parent);
    FILE *f = fopen(path, "r");
    int child = 0;
    if (!f) test_skip("the kernel does not list the children of a process");
    for (int i = 0; i < 10000 && fscanf(f, "%d", &child) != 1; i++, rewind(f))
        usleep(1000);
    EXPECT(child > 0);
    fclose(f);
    return child;
}

/* ---- exit codes and logs ---- */

TEST(one_message_for_a_failure_of_all) {
    need_mpirun();
    RUN_EXPECT(EXIT_CONFIG, "launch -n 2 train missing.yaml");
    const char *first = strstr(said(), "missing.yaml");
    EXPECT(first && !strstr(first + 1, "missing.yaml"));
    SAID_EXPECT("ended with exit code 2");
}

TEST(ranks_above_0_write_logs) {
    ends(start("fine", "-n 2"), 0);
    EXPECT(says("early 0") && says("late 0") && says("warned 0"));
    EXPECT(!says("early 1") && !says("late 1") && !says("warned 1"));
    EXPECT_STR(rank_log(1), "early 1\nlate 1\nwarned 1\n");
    EXPECT_INT(strlen(file_read(mem(), in_temp("logs/rank_0.log"), 9, NULL, EXIT_DATA)),
               0);
}

static void to_full_disk(void) {
    dup2(open("/dev/full", O_WRONLY), 1);
}

static void without_environment(void) {
    unsetenv("PATH");
    setenv("TMPDIR", "", 1);
}

TEST(without_path_and_with_an_empty_tmpdir) {
    driven_prepare = without_environment;
    ends(start("fine", "-n 2"), 0);
}

static void with_no_folder(void) {
    setenv("TMPDIR", "/nowhere/at/all", 1);
}

TEST(a_tmpdir_that_is_not_there) {
    driven_prepare = with_no_folder;
    ends(start("fine", "-n 2"), 2);
    EXPECT_PART(said(),
                "'/nowhere/at/all' (TMPDIR), which is no folder that this user can "
                "write to; set TMPDIR to one");
}

static void with_little_room(void) {
    setenv("TMPDIR", in_temp("disk"), 1);
}

TEST(a_tmpdir_without_room) {
    const char *disk = in_temp("disk");
    EXPECT_INT(dir_make(disk), 0);
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", disk, "tmpfs", 0, "size=64k"))
        test_skip("no right to mount a small file system (%s)", strerror(errno));
    driven_prepare = with_little_room;
    ends(start("fine", "-n 2"), 2);
    EXPECT_PART(said(), "(TMPDIR), where less than 256 kB are free; make room there");
}

/* As in a container that was started with a number for a user. */
static void nobody_known(void) {
    unsetenv("HOME");
    if (setgid(54321) || setuid(54321)) _exit(98);
    if (access(BUILD_DIR "/stator", X_OK)) _exit(97);
}

TEST(a_user_without_a_name) {
    if (getuid() != 0) test_skip("only root can become another user");
    EXPECT(!chmod(temp_dir(), 0777) && !chmod(in_temp(".."), 0711));
    driven_prepare = nobody_known;
    int code = stator_wait(start("fine", "-n 1"));
    if (code == 97) test_skip("the build lies where other users may not look");
    if (code) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, said());
}

TEST(stdout_on_a_full_disk) {
    driven_prepare = to_full_disk;
    ends(start("fine", "-n 2"), EXIT_DATA);
    EXPECT(says("stator: error: cannot write to stdout: No space left on device\n"));
}

TEST(a_rank_that_fails) {
    ends(start("fail", "-n 2"), EXIT_DATA);
    EXPECT(says("stator: rank 1 of 2 on ") && says(" ended with exit code 3\n"));
    EXPECT(says("  stator: error: parallel_config.data_parallel is odd\n    so it is\n"));
    EXPECT(says("  key: parallel_config.data_parallel\n"));
    EXPECT(says("/logs/rank_1.log\n"));
    EXPECT_PART(rank_log(1), "parallel_config.data_parallel is odd");
    const char *end = "  the other ranks were ended\n";
    EXPECT_STR(said() + strlen(said()) - strlen(end), end);
    EXPECT(!says("mpirun detected"));
}

TEST(a_rank_that_says_much) {
    ends(start("tell", "-n 2"), EXIT_DATA);
    EXPECT(says(" wwwwww ... (the rest is in the log)\n") && !says("the end"));
    EXPECT_PART(rank_log(1), " ww the end");
}

TEST(a_rank_that_stops_itself) {
    ends(start("die", "-n 2"), 134);
    EXPECT(says("  stator: internal error at ") && says("  op: %sum.1\n"));
    EXPECT(says("killed by signal 6 (SIGABRT)"));
}

TEST(a_rank_that_crashes) {
    ends(start("crash", "-n 2"), 128 + SIGSEGV);
    EXPECT(says("killed by signal 11 (SIGSEGV)"));
    EXPECT(says("  it said last:\n    | early 1\n    | late 1\n    | warned 1\n"));
}

TEST(a_backtrace_is_nothing_that_a_rank_says) {
    static const char *const frames[] = {"0", "7", "60", "2000"};
    for (int i = 0; i < ARRAY_LEN(frames); i++) {
        remove_all(in_temp("logs"));
        setenv("STATOR_TEST_FRAMES", frames[i], 1);
        ends(start("trace", "-n 2"), 128 + SIGSEGV);
        EXPECT(says("killed by signal 11 (SIGSEGV)\n  it was at work (step 12)\n"));
        EXPECT(i == 3 || says("  it said last:\n    | early 1\n    | late 1\n"
                              "    | warned 1\n"));
        EXPECT(!says("libc.so") && !says("***") && !says("Segm"));
        EXPECT_PART(rank_log(1), "*** End of error message ***");
    }
}

TEST(a_rank_that_is_killed_before_it_has_a_log) {
    ends(start("choke", "-n 2"), 128 + SIGKILL);
    EXPECT(says("  it said last:\n    | what it said\n") && !says("  log:"));
}

/* mpirun itself misses some of these. */
TEST(a_rank_that_is_killed_as_soon_as_it_starts) {
    for (int i = 0; i < 4; i++) {
        remove_all(in_temp("logs"));
        ends(start("vanish", "-n 2"), 128 + SIGKILL);
        EXPECT(says("stator: rank 1 of 2 on ") && says("killed by signal 9 (SIGKILL)"));
        EXPECT(says("    | late 1\n"));
    }
}

/* ---- ends ---- */

/* By the library: its words are those of the block. */
TEST(a_message_that_fails) {
    ends(start("lose", "-n 2"), EXIT_NETWORK);
    EXPECT(says("stator: rank 1 of 2 on ") && says("ended with exit code 7\n"));
    EXPECT(says("  stator: error: MPI_Send failed on rank 1 (host "));
    EXPECT(says("logs/rank_1.log"));
}

static void kill_one_of_four(const char *role) {
    pid_t pid = start(role, "-n 4");
    pid_t rank[4];
    for (int r = 0; r < 4; r++) rank[r] = pid_of("pid", r);
    double at = clock_seconds();
    kill(rank[2], SIGKILL);
    ends(pid, 128 + SIGKILL);
    double seconds = clock_seconds() - at;
    printf("  all ended %.1f s after the kill\n", seconds);
    EXPECT(seconds < 10);
    for (int r = 0; r < 4; r++) EXPECT(is_gone(rank[r]));
    EXPECT(says("stator: rank 2 of 4 on "));
    EXPECT(says("killed by signal 9 (SIGKILL)"));
}

TEST(kill_one_of_four_ranks) {
    kill_one_of_four("sleep");
}

TEST(kill_one_of_four_ranks_that_hear_no_signals) {
    kill_one_of_four("deaf");
}

TEST(kill_mpirun) {
    pid_t pid = start("deaf", "-n 2");
    pid_t a = pid_of("pid", 0), b = pid_of("pid", 1);
    double at = clock_seconds();
    kill(child_of(pid), SIGKILL);
    ends(pid, 128 + SIGKILL);
    EXPECT(clock_seconds() - at < 10 && is_gone(a) && is_gone(b));
    EXPECT(says("stator: mpirun was killed by signal 9 (SIGKILL)"));
}

static void ranks_save(pid_t pid, int sig) {
    pid_of("pid", 0);
    pid_of("pid", 1);
    if (sig) kill(pid, sig);
    ends(pid, EXIT_SIGNALLED);
    EXPECT(pid_of("saved", 0) > 0 && pid_of("saved", 1) > 0);
}

TEST(a_signal_to_save_reaches_the_ranks) {
    ranks_save(start("save", "-n 2"), SIGUSR1);
}

/* Whenever it comes: before there are ranks, while they start, before the first step. Launch itself
 * dies of one that comes before it has begun. */
TEST_LIMIT(a_signal_while_ranks_start_is_not_lost, 240) {
    int saved = 0;
    need_mpirun();
    for (int ms = 0; ms <= 400; ms += ms < 160 ? 40 : 120) {
        const char *run = in_temp("run");
        pid_t pid = stator_start(
            arena_printf(mem(),
                         "launch -n 2 train %s/../configs/gpt2-tiny.yaml --output_dir %s "
                         "--runner_config.max_steps 100000 --context.threads 1 "
                         "--parallel_config.data_parallel 2",
                         tests_dir(), run));
        child_of(pid);
        usleep((useconds_t)ms * 1000);
        kill(pid, SIGTERM);
        int code = stator_wait(pid);
        EXPECT(code == EXIT_SIGNALLED || (code == -SIGTERM && !file_exists(run)));
        if (code != EXIT_SIGNALLED) continue;
        EXPECT(file_exists(path_join(mem(), run, RUN_CHECKPOINTS)));
        saved++;
        remove_all(run);
    }
    printf("  %d of 7 saved\n", saved);
    EXPECT(saved >= 3);
}

static void training_saves(int sig, int other) {
    const char *run = in_temp("run");
    pid_t pid = stator_start(
        arena_printf(mem(),
                     "launch -n 1 train %s/../configs/gpt2-tiny.yaml --output_dir %s "
                     "--runner_config.max_steps 100000 --context.threads 1 "
                     "--runner_config.batch_size 1",
                     tests_dir(), run));
    const char *metrics = path_join(mem(), run, RUN_METRICS);
    for (int i = 0; i < 3000 && !file_exists(metrics); i++) usleep(10000);
    EXPECT(file_exists(metrics));
    kill(pid, sig);
    if (other) kill(pid, other);
    ends(pid, EXIT_SIGNALLED);
    EXPECT(file_exists(path_join(mem(), run, RUN_CHECKPOINTS)));
    EXPECT(!says("stator: rank"));
    remove_all(run);
}

/* MPI has threads of its own, which must not take the signal. Service managers send two. */
TEST(a_training_saves_on_a_signal) {
    need_mpirun();
    training_saves(SIGINT, 0);
    training_saves(SIGTERM, SIGHUP);
}

TEST(a_program_is_ended_by_a_signal) {
    pid_t pid = start("sleep", "-n 2");
    pid_t a = pid_of("pid", 0), b = pid_of("pid", 1);
    kill(pid, SIGINT);
    ends(pid, 128 + SIGINT);
    EXPECT(is_gone(a) && is_gone(b) && says("stator: stopped by SIGINT\n"));
}

TEST(a_timeout_ends_the_run) {
    pid_t pid = start("sleep", "-n 2 --timeout 1.5");
    ends(pid, 128 + SIGTERM);
    EXPECT(says("stator: stopped by SIGTERM\n"));
}

TEST(a_killed_launch_leaves_no_ranks) {
    pid_t killed = start("sleep", "-n 2");
    pid_t a = pid_of("pid", 0), b = pid_of("pid", 1);
    kill(killed, SIGKILL);
    EXPECT(waitpid(killed, NULL, 0) == killed);
    for (int i = 0; i < 1000 && !(is_gone(a) && is_gone(b)); i++) usleep(10000);
    EXPECT(is_gone(a) && is_gone(b));
}

/* ---- cores ---- */

static cpu_set_t mask_of(int rank) {
    size_t n;
    const void *bytes = file_read(mem(), in_temp(arena_printf(mem(), "mask.%d", rank)),
                                  sizeof(cpu_set_t), &n, EXIT_DATA);
    cpu_set_t mask;
    EXPECT_INT(n, sizeof mask);
    memcpy(&mask, bytes, n);
    return mask;
}

/* Every rank has cores of its own when there are enough, and else all of them. */
TEST(ranks_are_bound_to_cores_of_their_own) {
    cpu_set_t all, both, masks[2];
    EXPECT(sched_getaffinity(0, sizeof all, &all) == 0);
    int threads[] = {1, CPU_COUNT(&all)};
    for (int crowded = 0; crowded < 2; crowded++) {
        ends(start("bound", arena_printf(mem(), "-n 2 --threads %d", threads[crowded])),
             0);
        for (int r = 0; r < 2; r++) masks[r] = mask_of(r);
        CPU_AND(&both, &masks[0], &masks[1]);
        if (says("share"))
            EXPECT(CPU_EQUAL(&masks[0], &all) && CPU_EQUAL(&masks[1], &all));
        else
            EXPECT(CPU_COUNT(&both) == 0 && CPU_COUNT(&masks[0]) && CPU_COUNT(&masks[1]));
        EXPECT(!crowded || says("share"));
    }
}

/* ---- hosts ---- */

/* Two more hosts on this machine: mpirun's remote shell is a script that gives its daemon
 * another host name. */
TEST(ranks_of_two_hosts_in_order) {
    need_mpirun();
    if (geteuid() != 0 || system("unshare -u true 2>/dev/null") != 0)
        test_skip("needs the right to unshare host names");
    write_text(in_temp("agent"), "#!/bin/sh\nname=$1; shift\n"
                                 "exec unshare -u sh -c \"hostname $name; $*\"\n");
    write_text(in_temp("hosts"), "hostb slots=1\nhosta slots=1\n");
    EXPECT(chmod(in_temp("agent"), 0755) == 0);
    setenv("OMPI_MCA_plm_rsh_agent", in_temp("agent"), 1);
    setenv("PRTE_MCA_plm_ssh_agent", in_temp("agent"), 1);
    const char *options = arena_printf(mem(), "-n 2 --hostfile %s", in_temp("hosts"));
    ends(start("fail", options), EXIT_DATA);
    EXPECT(says("stator: rank 1 of 2 on hosta ended with exit code 3\n"));
}
