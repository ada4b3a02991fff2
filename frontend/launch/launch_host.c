/* launch_host.c - what this machine is: its cores, its name, what it forbids. */
#define _GNU_SOURCE
#include "frontend/launch/launch_parts.h"
#include "runtime/comm/comm.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Lowest of the hardware threads of a CPU's core; the CPU itself when nobody says. */
static int core_of(int cpu) {
    char path[128];
    snprintf(path, sizeof path,
             "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    int first = cpu;
    if (f && fscanf(f, "%d", &first) != 1) first = cpu;
    if (f) fclose(f);
    return first >= 0 && first < CPU_SETSIZE ? first : cpu;
}

/* Counts the cores of this process; `part` becomes the CPUs of n of them. */
static int cores_of_process(int first, int n, cpu_set_t *part) {
    cpu_set_t mask;
    int cores = 0, number[CPU_SETSIZE] = {0}; /* of a core, from 1; 0: not seen yet */
    CPU_ZERO(part);
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mask)) continue;
        int core = core_of(cpu);
        if (!number[core]) number[core] = ++cores;
        if (number[core] > first && number[core] <= first + n) CPU_SET(cpu, part);
    }
    return MAX(1, cores);
}

int this_host_cores(void) {
    cpu_set_t none;
    return MIN(cores_of_process(0, 0, &none), rt_quota_cores());
}

int this_host_cpus(void) {
    cpu_set_t mask;
    int n = sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
    return MIN(MAX(1, n), rt_quota_cores());
}

void this_host_bind(int first, int n) {
    cpu_set_t part;
    bool limited = cores_of_process(first, n, &part) > rt_quota_cores();
    if (CPU_COUNT(&part) && !limited) sched_setaffinity(0, sizeof part, &part);
}

/* Open MPI's ranks on one host copy from each other's memory, unless the container's
 * rules forbid the system call: a child that waits is read to find out. */
static bool memory_reads_forbidden(void) {
    char word[] = "here", copy[sizeof word] = "";
    struct iovec to = {copy, sizeof copy}, from = {word, sizeof word};
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    if (child < 0) return false;
    bool forbidden = process_vm_readv(child, &to, 1, &from, 1, 0) != sizeof copy;
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    return forbidden;
}

static int allocation_nodes(void) {
    const char *s = getenv("SLURM_JOB_NUM_NODES");
    if (!s) s = getenv("SLURM_NNODES");
    long n = s ? strtol(s, NULL, 10) : 0;
    return n >= 1 && n < 1 << 20 ? (int)n : 1;
}

static int stdout_columns(void) {
    struct winsize w = {0};
    if (!isatty(STDOUT_FILENO)) return 0;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col;
    return known ? w.ws_col : 80;
}

/* "mpirun (Open MPI) 4.1.4" */
static int mpi_major(void) {
    int n = 0;
    FILE *f = popen("mpirun --version 2>/dev/null", "re");
    if (f && fscanf(f, "mpirun (Open MPI) %d", &n) != 1) n = 0;
    if (f) pclose(f);
    return n;
}

ThisHost this_host(Arena *mem) {
    char host[256] = "", self[4096];
    if (gethostname(host, sizeof host - 1)) snprintf(host, sizeof host, "localhost");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) fail(EXIT_CONFIG, "cannot read /proc/self/exe: is /proc mounted?");
    return (ThisHost){.cores = this_host_cores(),
                      .nodes = allocation_nodes(),
                      .tasks = getenv("SLURM_JOB_ID") ? getenv(SLURM_TASKS) : NULL,
                      .root = geteuid() == 0,
                      .columns = stdout_columns(),
                      .mpi_major = mpi_major(),
                      .mpi_library = arena_strdup(mem, comm_library()),
                      .no_cma = memory_reads_forbidden(),
                      .host = arena_strdup(mem, host),
                      .self = arena_strndup(mem, self, (size_t)n)};
}

int64_t this_host_oom_kills(void) {
    FILE *f = fopen("/proc/vmstat", "re");
    char line[256];
    long long kills = -1;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "oom_kill %lld", &kills) == 1) break;
    if (f) fclose(f);
    return kills;
}
