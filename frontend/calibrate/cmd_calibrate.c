/* cmd_calibrate.c - stator calibrate: measures this machine and writes it as a file. */
#define _GNU_SOURCE
#include "codegen/codegen.h"
#include "frontend/calibrate/calibrate.h"
#include "frontend/calibrate/merge.h"
#include "frontend/config/commands.h"
#include "frontend/config/machine_file.h"
#include "frontend/config/options.h"
#include "frontend/launch/launch.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/watch.h"
#include "runtime/core/free_memory.h"
#include "runtime/core/peak.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Room for one section and for a curve of every collective and group. */
static Machine *empty_machine(Arena *mem, int ranks) {
    enum { COLLECTIVES = 8 };
    Machine *m = NEW(mem, Machine);
    *m = machine_plain;
    m->rank = NEW(mem, MachineRank);
    m->nranks = 0;
    memset(m->link, 0, sizeof m->link); /* not measured */
    m->collective = NEW_ARRAY(mem, CollectiveCurve, (size_t)ranks * COLLECTIVES);
    return m;
}

static void name_machine(Arena *mem, Machine *m, int cores) {
    char day[32];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(day, sizeof day, "%Y-%m-%d", &utc);
    m->name = m->host = arena_strdup(mem, comm_host());
    /* "2024-05-06, AMD EPYC, 2 cores, oneDNN 2.6.3, ..." */
    m->made_on =
        arena_printf(mem, "%s, %s, %s", day, cpu_model(mem), program_libraries(mem));
    m->cores = cores;
}

static void write_machine(Arena *mem, const Machine *m, const char *path) {
    Text out = text_new(mem);
    machine_print(m, "Made by stator calibrate; docs/machines.md has the keys.", &out);
    file_write(path, out.s, out.n, EXIT_DATA);
    calibrate_say("wrote %s", path);
}

/* The CPUs that ranks of this host may use, before they bind their threads. */
static cpu_set_t cpus_of_host(Arena *mem) {
    cpu_set_t mine, all;
    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof mine, &mine) != 0) CPU_ZERO(&mine);
    const cpu_set_t *of = comm_gather(mem, &mine, sizeof mine);
    for (int i = 0; i < comm_size(); i++)
        if (!strcmp(comm_host_of(i), comm_host_of(comm_rank())))
            CPU_OR(&all, &all, &of[i]);
    return all;
}

/* That these CPUs have worked; 0: it is not known. */
static double busy_seconds(const cpu_set_t *cpus) {
    enum { NUMBERS = 6 };
    double v[NUMBERS], ticks = 0;
    char line[512];
    int cpu;
    FILE *f = fopen("/proc/stat", "re");
    while (f && fgets(line, sizeof line, f)) {
        bool counts = line[3] != ' ' && /* the sum of all */
                      sscanf(line, "cpu%d %lf %lf %lf %*f %*f %lf %lf %lf", &cpu, &v[0],
                             &v[1], &v[2], &v[3], &v[4], &v[5]) == 1 + NUMBERS &&
                      CPU_ISSET(cpu, cpus);
        for (int i = 0; counts && i < NUMBERS; i++) ticks += v[i];
    }
    if (f) fclose(f);
    return ticks / (double)sysconf(_SC_CLK_TCK);
}

/* That they have worked, but for the ranks of this. */
static double others_seconds(const cpu_set_t *cpus) {
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    double mine = (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
                  1e-6 * (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
    return busy_seconds(cpus) - comm_local_size() * ranks_mean(mine);
}

static void say_disturbed(const Calibration *c, double others, int cpus) {
    double share = others / ((clock_seconds() - c->began) * MAX(1, cpus));
    if (share > 0.03)
        calibrate_say("WARNING: other programs took %.0f %% of the cores meanwhile; the "
                      "rates are too low",
                      100 * share);
}

/* What each rank would find for itself differs between hosts that are not filled alike, and all
 * must measure the same. Threads are those of a run, no more than there are cores for. */
static void agree(Calibration *c, int cores) {
    int most = MAX(1, cores / comm_local_size()), asked = rt_threads_asked();
    int mine = asked ? MIN(asked, most) : rt_threads_left(most);
    c->threads = (int)comm_min_i64(mine);
    c->host_ranks = (int)comm_max_i64(comm_local_size());
    c->crowded = comm_max_i64(comm_local_size() * c->threads > cores);
}

/* A file has what ranks compute, and such ranks do not measure it. */
static void refuse_messages_alone(const Calibration *c, const char *path) {
    fail(EXIT_CONFIG,
         "%d ranks are more than the cores, so they measure messages only, which go into "
         "a file that has the rates of a rank: run stator calibrate -o %s first",
         c->ranks, path);
}

enum { KEPT_BYTES = 128 << 20 }; /* more than what products pack */

/* Ranks that are more than the cores compute no differently than as many as there are cores;
 * plans share those out. */
static void measure(Arena *mem, const Options *o, const char *path) {
    Calibration c = {.mem = mem,
                     .ranks = comm_size(),
                     .quick = option_given(o, "--quick"),
                     .began = clock_seconds()};
    int cores = MAX(comm_cores(), launch_cores());
    memory_keep(KEPT_BYTES); /* as the steps of a run find it */
    cpu_set_t cpus = cpus_of_host(mem);
    agree(&c, cores);
    c.seconds = c.quick ? 1e-3 : 0.02;
    rt_set_threads(c.threads);
    c.m = empty_machine(mem, c.ranks);
    const Machine *old = file_exists(path) ? machine_read(mem, path) : NULL;
    if (c.crowded && !old && comm_rank() == 0) refuse_messages_alone(&c, path);
    if (c.ranks > 1) comm_mesh(1, 1, &c.ranks);
    double others = others_seconds(&cpus);
    calibrate_say("%d rank%s of %d thread%s on %d cores", c.ranks, c.ranks > 1 ? "s" : "",
                  c.threads, c.threads > 1 ? "s" : "", cores);
    if (!c.crowded) {
        MachineRank *r = calibrate_rank(&c);
        calibrate_inner(&c, r);
        calibrate_elements(&c, r);
    }
    calibrate_comm(&c);
    name_machine(mem, c.m, cores);
    say_disturbed(&c, others_seconds(&cpus) - others, CPU_COUNT(&cpus));
    if (c.ranks > c.host_ranks) c.m->host_ranks = c.host_ranks;
    c.m = machine_merge(mem, old, c.m);
    calibrate_residual(&c);
    if (comm_rank() == 0) write_machine(mem, c.m, path);
}

/* ---- several counts of ranks, one after the other ---- */

static int run_command(char *const *words) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) fail(EXIT_DATA, "cannot start %s: %s", words[0], strerror(errno));
    if (child == 0) {
        execv("/proc/self/exe", words);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int start_ranks(Arena *mem, const Options *o, long ranks, const char *path) {
    char *n = arena_printf(mem, "%ld", ranks);
    char *words[] = {"stator",   "launch",     "-n", n,   "calibrate",
                     "--output", (char *)path, NULL, NULL};
    if (option_given(o, "--quick")) words[7] = "--quick";
    char **from = ranks > 1 ? words : words + 3;
    words[3] = ranks > 1 ? n : "stator";
    return run_command(from);
}

/* The next count of the list; 0 behind the last. */
static long next_count(const char *list, const char **at) {
    enum { MOST = 1 << 16 };
    char *end;
    if (!**at) return 0;
    long n = strtol(*at, &end, 10);
    if (end == *at || n < 1 || n > MOST || (*end && *end != ','))
        fail(EXIT_CONFIG, "-n %.60s: write counts of ranks such as 1,2,4", list);
    *at = end + (*end == ',');
    return n;
}

static int measure_each(Arena *mem, const Options *o, const char *list,
                        const char *path) {
    int code = 0;
    long n;
    for (const char *p = list; next_count(list, &p);) {
    } /* all are good */
    for (const char *p = list; !code && (n = next_count(list, &p));)
        code = start_ranks(mem, o, n, path);
    return code;
}

int cmd_calibrate(int argc, char **argv) {
    const Options *o = options_take(COMMAND_calibrate, argc, argv);
    if (!o) return 0;
    Arena *mem = o->mem;
    const char *path = option_text(o, "--output"), *list = option_text(o, "-n");
    if (!path) path = "machine.yaml";
    int code = 0;
    if (list) {
        file_check_written(path);
        code = measure_each(mem, o, list, path);
    } else {
        comm_start();
        watch_start(launch_say_hang);
        watch_task("calibration", -1, true);
        if (comm_rank() == 0) file_check_written(path);
        measure(mem, o, path);
        watch_stop();
        comm_end();
    }
    arena_free(mem);
    return code;
}
