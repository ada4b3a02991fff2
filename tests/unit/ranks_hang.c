/* Tests of ranks that hang: one that is stopped at any instant is named and ends the run,
 * or is waited for, and one that goes on in time changes nothing. */
#include "frontend/config/commands.h"
#include "ranks.h"

TEST_LABEL(RANKS);
TEST_LABEL(QUICK);
TEST_LABEL(RELEASED);

enum { RANKS = 4 };

/* 50 by hand, as docs/launch.md tells of. */
static int stops(void) {
    return test_long() ? 50 : RANKS_SANITIZED ? 2 : 4;
}

#define MESH                                                                             \
    "--parallel_config.data_parallel 2 --parallel_config.model_parallel 2 " ZERO_LEVEL(1)

static const char *hang_words(double seconds, const char *more) {
    return arena_printf(mem(), MESH "--runner_config.hang_seconds %g %s", seconds, more);
}

/* Seconds until `head` is said, or infinity when the run ends without. */
static double said_after(pid_t launch, const char *head, double at) {
    for (;; usleep(20000)) {
        siginfo_t info = {0};
        bool ended =
            waitid(P_PID, (id_t)launch, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == launch;
        if (strstr(said(), head)) return clock_seconds() - at;
        if (ended) return INFINITY;
    }
}

/* Stops a rank, at any instant or while it saves; the run must end in time and say who it
 * was. True: a checkpoint was being written. */
static bool stop_one(int i, uint64_t *random, double *worst) {
    const double deadline = 1.5;
    const char *config = runs_small_config(1000000, 2);
    const char *run = in_temp(arena_printf(mem(), "run%d", i));
    pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, hang_words(deadline, ""));
    int victim = (int)(runs_random(random) % RANKS);
    ranks_wait_start(launch, rank, RANKS);
    EXPECT(runs_wait_steps(launch, run, 2));
    usleep((useconds_t)(runs_random(random) % 300000));
    for (int k = 0; i % 2 && k < 20000 && !runs_is_saving(run); k++) usleep(50);
    bool saving = runs_is_saving(run);
    double at = clock_seconds();
    kill(rank[victim], SIGSTOP);
    const char *head = arena_printf(mem(), "stator: rank %d of %d on ", victim, RANKS);
    double seconds = said_after(launch, head, at);
    int code = stator_wait(launch);
    ranks_expect_gone(rank, RANKS, 20);
    *worst = fmax(*worst, seconds);
    const char *state =
        arena_printf(mem(), "process %d is stopped by a signal", (int)rank[victim]);
    if (code != EXIT_HUNG || seconds > deadline + 5 || !strstr(said(), state) ||
        !strstr(said(), "  all ranks were ended"))
        test_fail(__FILE__, __LINE__, "rank %d stopped: exit code %d after %.1f s:\n%s",
                  victim, code, seconds, said());
    remove_all(run);
    return saving;
}

TEST_LIMIT(a_rank_stopped_at_random_instants_is_named, 900) {
    uint64_t random = 0x2545f4914f6cdd1du;
    int in_save = 0;
    double worst = 0;
    int n = stops();
    for (int i = 0; i < n; i++) in_save += stop_one(i, &random, &worst);
    printf("  %d stops, %d while saving; named within %.1f s\n", n, in_save, worst);
    EXPECT(in_save >= n / 4);
}

TEST_LABEL_OF(ranks_of_plain_mpirun_say_it_themselves, ALONE);
/* Every rank's line is in its log: what it waits in, and for whom; one of them waits for
 * the stopped one itself, others may wait for that one. All must get to write it in the
 * second before one of them ends the run. */
TEST_LIMIT(ranks_of_plain_mpirun_say_it_themselves, 60) {
    const char *run = in_temp("run"), *words;
    words = arena_printf(mem(), "%s train %s --output_dir %s %s", stator_program(),
                         runs_small_config(1000000, 1000000), run, hang_words(1, ""));
    pid_t rank[RANKS], mpirun = mpi_start(RANKS, "", words);
    for (int i = 0; i < 6000 && ranks_find(getpid(), rank, RANKS) < RANKS; i++)
        usleep(5000);
    EXPECT(runs_wait_steps(mpirun, run, 5));
    kill(rank[3], SIGSTOP);
    EXPECT_INT(mpi_wait(mpirun), EXIT_HUNG);
    ranks_expect_gone(rank, RANKS, 5);
    EXPECT_PART(mpi_said(), "stator: error: rank 3 of 4 on ");
    EXPECT_PART(mpi_said(), "all ranks are ended (runner_config.on_hang)");
    int waiting = 0, for_it = 0; /* the run may end before all have written */
    for (int r = 1; r < 3; r++) {
        const char *log = ranks_log(run, r);
        waiting += strstr(log, "stator: waits for ") && strstr(log, "(step ");
        for_it += strstr(log, " for rank 3 on ") != NULL;
    }
    EXPECT(waiting > 0 && (for_it || strstr(mpi_said(), " for rank 3 on ")));
}

/* Stops rank 2 for a while; the run must end as if nothing had been. */
static void stop_for(double seconds, const char *words, const char *run,
                     const char *whole) {
    enum { STEPS = 400 };
    const char *config = runs_small_config(STEPS, STEPS);
    pid_t rank[RANKS], launch = ranks_start(RANKS, config, run, words);
    ranks_wait_start(launch, rank, RANKS);
    EXPECT(runs_wait_steps(launch, run, 3));
    kill(rank[2], SIGSTOP);
    usleep((useconds_t)(1e6 * seconds));
    kill(rank[2], SIGCONT);
    ranks_end(launch, 0, words);
    const char *heard = arena_strdup(mem(), said());
    ranks_run(RANKS, config, whole, MESH);
    runs_expect_same_losses(whole, run, STEPS);
    runs_expect_same_tensors(whole, run, STEPS);
    write_text(in_temp("output.txt"), heard);
}

TEST_LIMIT(a_rank_that_goes_on_in_time_changes_nothing, 120) {
    stop_for(2, hang_words(5, ""), in_temp("run"), in_temp("whole"));
    EXPECT(!strstr(said(), "no sign of life"));
}

TEST_LIMIT(a_hang_is_reported_and_waited_for, 120) {
    stop_for(2, hang_words(0.7, "--runner_config.on_hang wait"), in_temp("run"),
             in_temp("whole"));
    SAID_EXPECT("stator: warning: rank 2 of 4 on ");
    SAID_EXPECT("stator: warning: the run goes on");
}

TEST_LIMIT(no_hang_is_reported_with_0_seconds, 120) {
    stop_for(2, hang_words(0, ""), in_temp("run"), in_temp("whole"));
    EXPECT(!strstr(said(), "no sign of life"));
}

#define PIPELINE "--parallel_config.pipeline_stage 2 --parallel_config.micro_batch_num 4 "

/* What of a pipeline the other one of two ranks waits in, as the report says: its stage,
 * and the task. True: in a task; false: behind them all, or between two steps. */
static bool expect_task(int waiting, int victim) {
    const char *line = strstr(said(), arena_printf(mem(), "\n  rank %d: ", waiting));
    const char *label = line ? strstr(line, " of stage ") : NULL;
    int stage = -1, chunk = -1, micro = -1, peer = -1;
    char kind = 0;
    size_t end = line ? strcspn(line + 1, "\n") + 1 : 0;
    if (!label || end < (size_t)(label - line)) {
        EXPECT_PART(arena_strndup(mem(), line ? line : "", end), " in an agreement for ");
        return false;
    }
    bool in_task = sscanf(label, " of stage %d, task %d%c%d (%%%*[^ ] %*s stage %d)",
                          &stage, &chunk, &kind, &micro, &peer) == 5;
    if (!in_task)
        EXPECT_INT(sscanf(label,
                          " of stage %d, the end of the step (%%%*[^ ] %*s stage %d)",
                          &stage, &peer),
                   2);
    EXPECT(stage == waiting && peer == victim);
    EXPECT(!in_task || ((kind == 'F' || kind == 'B') && micro >= 0 && micro < 4 &&
                        chunk >= 0 && chunk < 2));
    return in_task;
}

/* A rank of a pipeline is stopped: what waits for it says of which stage it is, and in
 * which task on which micro-batch. */
TEST_LIMIT(a_pipeline_that_hangs_names_stage_and_task, 300) {
    uint64_t random = 0x9e3779b97f4a7c15u;
    int in_task = 0, n = 0, most = 4 * stops();
    for (int i = 0; in_task < stops() / 2 && n < most; i++, n++) {
        const char *run = in_temp(arena_printf(mem(), "run%d", i));
        pid_t rank[2], launch = ranks_start(2, runs_small_config(1000000, 1000000), run,
                                            PIPELINE "--runner_config.hang_seconds 4");
        ranks_wait_start(launch, rank, 2);
        EXPECT(runs_wait_steps(launch, run, 2));
        usleep((useconds_t)(runs_random(&random) % 300000));
        kill(rank[i % 2], SIGSTOP);
        ranks_end(launch, EXIT_HUNG, PIPELINE);
        ranks_expect_gone(rank, 2, 20);
        EXPECT_PART(said(), arena_printf(mem(), "stator: rank %d of 2 on ", i % 2));
        in_task += expect_task(1 - i % 2, i % 2);
        remove_all(run);
    }
    printf("  %d stops, %d in a task\n", n, in_task);
    EXPECT_INT(in_task, stops() / 2);
}
