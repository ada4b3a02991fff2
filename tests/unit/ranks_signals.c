/* Tests of runs on several MPI ranks that are ended by signals: kill -9 of one rank at
 * any instant, SIGTERM to launch; what is left goes on to the bits of an undisturbed run.
 */
#include "frontend/config/commands.h"
#include "ranks.h"
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { RANKS = 4 };

#define MESH                                                                             \
    "--parallel_config.data_parallel 2 --parallel_config.model_parallel 2 " ZERO_LEVEL(1)

/* ---- kill -9 ---- */

enum { STEPS = 40 };

static int kills(void) {
    return test_long() ? 50 : RANKS_SANITIZED ? 4 : 6;
}

typedef struct Kills {
    const char *config;
    uint64_t random, run_us;
    int done, in_save, resumed;
    double worst_seconds, worst_after; /* after the kill, after launch ended */
} Kills;

/* Waits for the instant of the next kill: anywhere in the run, some steps later, or in
 * the middle of saving. */
static void wait_for_instant(Kills *k, pid_t launch, const char *run, int before) {
    uint64_t r = runs_random(&k->random);
    switch (k->done % 3) {
    case 0:
        usleep((useconds_t)(r % k->run_us));
        return;
    case 1:
        if (runs_wait_steps(launch, run, before + 1 + (int)(r % 8)))
            usleep((useconds_t)(r / 8 % 3000));
        return;
    default:
        if (!runs_wait_steps(launch, run, before + 1)) return;
        for (int i = 0; i < 20000 && !runs_is_saving(run); i++) usleep(50);
        usleep((useconds_t)(r % 4000));
    }
}

/* Starts the run once more and kills a rank; its exit code. */
static int run_and_kill(Kills *k, const char *run) {
    /* mpirun gives the other ranks this much time to follow SIGTERM, which waits until
     * the next step and so is in vain. With less of it more kills fit in. */
    if (k->done % 10)
        setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);
    else
        unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
    pid_t rank[RANKS], launch = ranks_start(RANKS, k->config, run, MESH);
    if (k->done == kills()) return stator_wait(launch);
    int before = runs_steps(run), victim = (int)(runs_random(&k->random) % RANKS);
    ranks_wait_start(launch, rank, RANKS);
    wait_for_instant(k, launch, run, before);
    bool saving = runs_is_saving(run);
    double at = clock_seconds();
    kill(rank[victim], SIGKILL);
    int code = stator_wait(launch);
    double left = clock_seconds() - at;
    ranks_expect_gone(rank, RANKS, 10);
    if (code == 0) return 0; /* it was done already */
    double seconds = clock_seconds() - at;
    k->worst_after = fmax(k->worst_after, seconds - left);
    k->worst_seconds = fmax(k->worst_seconds, seconds);
    k->in_save += saving;
    k->done++;
    const char *head = arena_printf(mem(), "stator: rank %d of %d on ", victim, RANKS);
    const char *block = strstr(said(), head), *end = "  the other ranks were ended\n";
    if (code != 128 + SIGKILL || seconds > 10 || !block ||
        !strstr(block, "killed by signal 9 (SIGKILL)") || strlen(block) < strlen(end) ||
        strcmp(block + strlen(block) - strlen(end), end))
        test_fail(__FILE__, __LINE__, "rank %d killed: exit code %d after %.1f s:\n%s",
                  victim, code, seconds, said());
    return code;
}

TEST_LABEL_OF(a_rank_killed_at_random_instants, ALONE); /* it is timed */
TEST_LIMIT(a_rank_killed_at_random_instants, 600) {
    const char *whole = in_temp("whole");
    Kills k = {.config = runs_small_config(STEPS, 2), .random = 0x9e3779b97f4a7c15u};
    ranks_run(RANKS, k.config, whole, MESH);
    remove_all(whole);
    double start = clock_seconds();
    ranks_run(RANKS, k.config, whole, MESH);
    k.run_us = (uint64_t)(1e6 * (clock_seconds() - start));
    for (int finished = 0; k.done < kills() || !finished; finished++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", finished));
        while (run_and_kill(&k, run))
            k.resumed += strstr(said(), "resumed after") != NULL;
        runs_expect_same_losses(whole, run, STEPS);
        runs_expect_same_tensors(whole, run, STEPS);
        remove_all(run);
    }
    printf("  %d kills, %d while saving; %d runs went on before; all ranks ended within "
           "%.1f s, %.1f s after launch\n",
           k.done, k.in_save, k.resumed, k.worst_seconds, k.worst_after);
    EXPECT(k.in_save > kills() / 10);
}

/* ---- signals that save ---- */

/* A run that gets `number`, by launch or in one rank alone, saves after the same step on
 * all ranks, and goes on to the bits of one that was not disturbed. */
static void check_signal(int number, bool by_launch) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    const char *whole = in_temp("whole");
    pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, MESH);
    int n;
    ranks_wait_start(launch, rank, RANKS);
    EXPECT(runs_wait_steps(launch, run, 3));
    kill(by_launch ? launch : rank[2], number);
    ranks_end(launch, EXIT_SIGNALLED, "after a signal");
    ranks_expect_gone(rank, RANKS, 1);
    const MetricsRow *row = runs_metrics(run, &n);
    EXPECT(n >= 3 && row[n - 1].step == n);
    for (int r = 0; r < RANKS; r++) {
        const char *log = ranks_log(run, r);
        if (!strstr(log, arena_printf(mem(), "step_%08d", n)) ||
            !strstr(log, arena_printf(mem(), "after step %d;", n)))
            test_fail(__FILE__, __LINE__, "rank %d did not stop after step %d:\n%s", r, n,
                      log);
    }
    const char *rest = arena_printf(mem(),
                                    MESH "--runner_config.max_steps %d "
                                         "--lr_schedule.total_steps 100000",
                                    n + 3);
    ranks_run(RANKS, config, run, rest);
    SAID_EXPECT(arena_printf(mem(), "resumed after step %d", n));
    ranks_run(RANKS, config, whole, rest);
    runs_expect_same_losses(whole, run, n + 3);
    runs_expect_same_tensors(whole, run, n + 3);
}

TEST_LIMIT(sigterm_saves_after_the_same_step, 120) {
    check_signal(SIGTERM, true);
}

TEST_LIMIT(sigusr1_saves_after_the_same_step, 120) {
    check_signal(SIGUSR1, true);
}

TEST_LIMIT(a_signal_to_one_rank_saves_on_all, 120) {
    check_signal(SIGTERM, false);
}

/* Also where the first cannot be followed, since a rank does not go on. */
TEST_LIMIT(a_second_signal_ends_the_ranks_at_once, 60) {
    const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
    pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, MESH);
    ranks_wait_start(launch, rank, RANKS);
    EXPECT(runs_wait_steps(launch, run, 3));
    kill(rank[1], SIGSTOP);
    kill(launch, SIGUSR1);
    usleep(500000);
    kill(launch, SIGUSR1);
    double at = clock_seconds();
    ranks_end(launch, 128 + SIGUSR1, "after two signals");
    EXPECT(clock_seconds() - at < 20);
    ranks_expect_gone(rank, RANKS, 1);
    SAID_EXPECT("stator: stopped by SIGUSR1\n");
}

/* To a rank itself, as where no launch is; it waits for the other one and finishes no step. */
TEST_LIMIT(a_second_signal_ends_a_rank_that_waits, 60) {
    static const int sent[][2] = {{SIGINT, SIGTERM}, {SIGTERM, SIGINT}};
    for (int i = 0; i < ARRAY_LEN(sent); i++) {
        const char *config = runs_small_config(100000, 50000);
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        pid_t rank[2],
            launch = ranks_start(2, config, run, "--parallel_config.data_parallel 2");
        ranks_wait_start(launch, rank, 2);
        EXPECT(runs_wait_steps(launch, run, 3));
        kill(rank[1], SIGSTOP);
        usleep(300000);
        kill(rank[0], sent[i][0]);
        usleep(1500000);
        EXPECT(kill(rank[0], 0) == 0);
        double at = clock_seconds();
        kill(rank[0], sent[i][1]);
        ranks_end(launch, 128 + sent[i][1], "after two signals to a rank");
        EXPECT(clock_seconds() - at < 20);
        ranks_expect_gone(rank, 2, 10);
    }
}

/* ---- an mpirun that does not end well ---- */

/* Runs the real mpirun; at SIGUSR1 the guards get what they get when every process is signalled,
 * and report no ends then. At last it ends in its own way. */
static const char stand_in[] = "#!/bin/sh\n"
                               "PATH=${PATH#*:}\n"
                               "[ \"$1\" = --version ] && exec mpirun \"$@\"\n"
                               "mpirun \"$@\" &\n"
                               "pid=$!\n"
                               "trap 'kill $(cat /proc/$pid/task/*/children)' USR1\n"
                               "while kill -0 $pid 2>/dev/null; do wait $pid; done\n"
                               "%s\n";
#define NO_END "mkfifo $0.fifo; read x <$0.fifo" /* in this process, without a child */

static void use_mpirun_that(const char *end) {
    const char *bin = in_temp("bin"), *path = path_join(mem(), bin, "mpirun");
    const char *old = getenv("PATH");
    if (!mpi_available()) test_skip("there is no mpirun");
    if (strncmp(old, bin, strlen(bin)))
        setenv("PATH", arena_printf(mem(), "%s:%s", bin, old), 1);
    remove_all(bin);
    EXPECT_INT(dir_make(bin), 0);
    write_text(path, arena_printf(mem(), stand_in, end));
    EXPECT_INT(chmod(path, 0755), 0);
}

/* As one does that got the signal too, from a service manager or a terminal. */
TEST_LIMIT(what_rank_0_has_said_counts_more_than_mpiruns_end, 240) {
    static const struct {
        const char *end;
        int ranks, number;
    } cases[] = {{"exit 1", 2, SIGTERM}, {"exit 143", 4, SIGINT},
                 {"exit 0", 2, SIGUSR1}, {"kill -9 $$", 2, SIGHUP},
                 {NO_END, 2, SIGTERM},   {"sleep 100", 4, SIGINT}};
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const char *config = runs_small_config(100000, 50000), *run = in_temp("run");
        use_mpirun_that(cases[i].end);
        pid_t launch =
            ranks_start(cases[i].ranks, config, run,
                        cases[i].ranks == 4 ? MESH : "--parallel_config.data_parallel 2");
        EXPECT(runs_wait_steps(launch, run, 3));
        kill(launch, cases[i].number);
        ranks_end(launch, EXIT_SIGNALLED, cases[i].end);
        EXPECT(!strstr(said(), "error") && !strstr(said(), "mpirun"));
        int n = runs_steps(run);
        SAID_EXPECT(arena_printf(mem(), "after step %d;", n));
        EXPECT(file_exists(arena_printf(mem(), "%s/ckpt/step_%08d", run, n)));
        remove_all(run);
    }
}

/* All is done, and rank 0 has said so. */
TEST_LIMIT(an_mpirun_without_ranks_that_does_not_end, 120) {
    const char *run = in_temp("run");
    use_mpirun_that(NO_END);
    pid_t launch =
        ranks_start(2, runs_small_config(4, 4), run, "--parallel_config.data_parallel 2");
    ranks_end(launch, 0, "an mpirun that does not end");
    EXPECT_INT(runs_steps(run), 4);
    EXPECT(file_exists(path_join(mem(), run, "ckpt/step_00000004")));
    EXPECT(!strstr(said(), "mpirun"));
}
