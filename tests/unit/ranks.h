/* ranks.h - for tests that run stator on several MPI ranks, through `stator launch` or
 * under plain mpirun, and look at the processes of the ranks. */
#ifndef STATOR_TESTS_RANKS_H
#define STATOR_TESTS_RANKS_H
#include "../mpi.h"
#include "runs.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

/* ---- command lines ---- */

/* Under sanitizers everything is slower by some times, so less of it is run. */
#ifdef __SANITIZE_ADDRESS__
#define RANKS_SANITIZED 1
#else
#define RANKS_SANITIZED 0
#endif

#define ZERO_LEVEL(n)                                                                    \
    "--parallel_config.optimizer_shard True "                                            \
    "--parallel.parallel_optimizer_config.optimizer_level level" #n                      \
    " --parallel.parallel_optimizer_config.parallel_optimizer_threshold 0 "

/* Words for a machine on which messages of small layers, too, are sent beside compute. */
static const char *ranks_no_starts(void) {
    return arena_printf(mem(), "--context.machine %s/machines/no_starts.yaml ",
                        tests_dir());
}

/* Starts training on `ranks` ranks (1: without launch); `more` are more words. */
static pid_t ranks_start(int ranks, const char *config, const char *run,
                         const char *more) {
    if (!mpi_available()) test_skip("there is no mpirun");
    driven_prepare = mpi_environment;
    const char *launch = ranks > 1 ? arena_printf(mem(), "launch -n %d ", ranks) : "";
    return stator_start(
        arena_printf(mem(), "%strain %s --output_dir %s %s", launch, config, run, more));
}

static void ranks_end(pid_t pid, int want, const char *what) {
    int code = stator_wait(pid);
    if (code != want)
        test_fail(__FILE__, __LINE__, "exit code %d, wanted %d: %s\n%s", code, want, what,
                  said());
}

static void ranks_run(int ranks, const char *config, const char *run, const char *more) {
    ranks_end(ranks_start(ranks, config, run, more), 0,
              arena_printf(mem(), "%d ranks %s", ranks, more));
}

/* Two ranks under plain mpirun, each with words of its own; the exit code. */
static int ranks_pair(const char *flags0, const char *words0, const char *flags1,
                      const char *words1) {
    const char *first = arena_printf(mem(), "%s train %s", stator_program(), words0);
    const char *second =
        arena_printf(mem(), ": -n 1 %s %s train %s", flags1, stator_program(), words1);
    return mpi_run(1, flags0, arena_printf(mem(), "%s %s", first, second));
}

/* ---- what a run left ---- */

/* A golden case's 20 steps, as near as the order of sums lets strategies be. */
static double ranks_expect_curve(const char *name, const char *run, const char *what) {
    return runs_expect_curve(name, run, what, 1e-5, 1e-4);
}

static const char *ranks_log(const char *run, int rank) {
    const char *path = arena_printf(mem(), "%s/logs/rank_%d.log", run, rank);
    return file_read(mem(), path, 1 << 24, NULL, EXIT_DATA);
}

/* ---- processes ---- */

/* The parent of a process; -1: it is gone. */
static pid_t ranks_parent(pid_t pid) {
    char line[512];
    int parent = -1;
    FILE *f = fopen(arena_printf(mem(), "/proc/%d/stat", (int)pid), "re");
    if (!f) return -1;
    const char *end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (!end || sscanf(end + 1, " %*c %d", &parent) != 1) parent = -1;
    fclose(f);
    return parent;
}

/* A number in the environment of a process; -1: none. */
static int ranks_setting(pid_t pid, const char *name) {
    static char text[1 << 16];
    FILE *f = fopen(arena_printf(mem(), "/proc/%d/environ", (int)pid), "re");
    if (!f) return -1;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    for (const char *s = text; s < text + n; s += strlen(s) + 1)
        if (!strncmp(s, name, strlen(name))) return atoi(s + strlen(name));
    return -1;
}

/* The rank that mpirun gave a process; -1: none. */
static int ranks_number(pid_t pid) {
    return ranks_setting(pid, "OMPI_COMM_WORLD_RANK=");
}

/* How far a process is below `launch`; -1: it is not. */
static int ranks_below(pid_t launch, pid_t pid) {
    for (int depth = 0; pid > 1 && depth < 8; depth++, pid = ranks_parent(pid))
        if (pid == launch) return depth;
    return -1;
}

/* Puts the processes of the ranks below `launch` into pid[rank]; how many there are. Under
 * stator launch each is the child of its guard. */
static int ranks_find(pid_t launch, pid_t *pid, int ranks) {
    DIR *d = opendir("/proc");
    int found = 0;
    memset(pid, 0, (size_t)ranks * sizeof *pid);
    for (struct dirent *e; d && (e = readdir(d));) {
        pid_t p = (pid_t)atoi(e->d_name);
        int rank = p > 0 && ranks_below(launch, p) > 1 ? ranks_number(p) : -1;
        if (rank < 0 || rank >= ranks) continue;
        bool launched = ranks_setting(p, "STATOR_LAUNCHED=") >= 0;
        if (launched && ranks_number(ranks_parent(p)) != rank) continue; /* the guard */
        found += !pid[rank];
        pid[rank] = p;
    }
    if (d) closedir(d);
    return found;
}

/* Waits until all ranks run. */
static void ranks_wait_start(pid_t launch, pid_t *pid, int ranks) {
    for (int i = 0; i < 6000; i++, usleep(5000))
        if (ranks_find(launch, pid, ranks) == ranks) return;
    kill(launch, SIGTERM);
    test_fail(__FILE__, __LINE__, "%d ranks did not start:\n%s", ranks, said());
}

/* Threads of a process that have not ended. Orphans stay in the table of processes until
 * somebody waits for them: they do not count. */
static int ranks_threads(pid_t pid) {
    DIR *d = opendir(arena_printf(mem(), "/proc/%d/task", (int)pid));
    int alive = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char line[512];
        const char *path =
            arena_printf(mem(), "/proc/%d/task/%s/stat", (int)pid, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f) continue;
        const char *end = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
        alive += end && end[1] && !strchr("ZXx", end[2]);
        fclose(f);
    }
    if (d) closedir(d);
    return alive;
}

/* None of the ranks is left after `seconds` more. */
static void ranks_expect_gone(const pid_t *pid, int ranks, double seconds) {
    double until = clock_seconds() + seconds;
    for (int r = 0; r < ranks; r++) {
        while (ranks_threads(pid[r]) && clock_seconds() < until) usleep(1000);
        if (ranks_threads(pid[r]))
            test_fail(__FILE__, __LINE__, "rank %d outlives launch:\n%s", r, said());
    }
}

/* The tokens of the prediction, without what is said of its time. */
static inline const char *ranks_predicted(const char *run) {
    RUN_EXPECT(0, arena_printf(mem(),
                               "predict %s --greedy --prompt_tokens 1,2,3 "
                               "--max_new_tokens 10 --tokens --threads 1",
                               run));
    const char *line = strchr(said(), '\n');
    EXPECT(line && strchr(line, ','));
    return arena_strndup(mem(), line + 1, strcspn(line + 1, "\n"));
}

#endif
