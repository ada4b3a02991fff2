/* launch_machine.c - what this machine is: its cores, its names, what it forbids. */
#define _GNU_SOURCE
#include "frontend/launch/launch_parts.h"
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Lowest of the hardware threads of a CPU's core; the CPU itself when nobody says. */
static int core_of(int cpu) {
    char path[128];
    snprintf(path, sizeof path,
             "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "r");
    int first = cpu;
    if (f && fscanf(f, "%d", &first) != 1) first = cpu;
    if (f) fclose(f);
    return first >= 0 && first < CPU_SETSIZE ? first : cpu;
}

static int count_cores(const cpu_set_t *mask) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, mask)) CPU_SET(core_of(i), &cores);
    return MAX(1, CPU_COUNT(&cores));
}

/* The kernel cuts a full mask down to what the container allows. */
static bool mask_narrowed(const cpu_set_t *mask) {
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(0, sizeof all, &all) != 0) return false;
    bool narrowed =
        sched_getaffinity(0, sizeof all, &all) == 0 && CPU_COUNT(&all) > CPU_COUNT(mask);
    sched_setaffinity(0, sizeof *mask, mask);
    return narrowed;
}

/* Open MPI's ranks on one host copy from each other's memory, unless the container's
 * rules forbid the system call: a child that waits is read to find out. */
static bool memory_reads_forbidden(void) {
    static const char word[] = "copied";
    char copy[sizeof word] = "";
    int wait_for[2];
    if (pipe(wait_for)) return false;
    pid_t child = fork();
    if (child == 0) {
        close(wait_for[1]);
        char end;
        ssize_t n = read(wait_for[0], &end, 1);
        _exit(n != 0);
    }
    close(wait_for[0]);
    struct iovec to = {copy, sizeof copy}, from = {(void *)(uintptr_t)word, sizeof word};
    bool forbidden =
        child > 0 && process_vm_readv(child, &to, 1, &from, 1, 0) != (ssize_t)sizeof copy;
    close(wait_for[1]);
    if (child > 0)
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) continue;
    return forbidden;
}

static int allocation_nodes(void) {
    const char *names[] = {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        const char *s = getenv(names[i]);
        long n = s ? strtol(s, NULL, 10) : 0;
        if (n >= 1 && n < 1 << 20) return (int)n;
    }
    return 1;
}

static int stdout_columns(void) {
    struct winsize w = {0};
    if (!isatty(STDOUT_FILENO)) return 0;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col;
    return known ? w.ws_col : 80;
}

/* "mpirun (Open MPI) 4.1.4" */
static int mpi_major(void) {
    static const char name[] = "(Open MPI) ";
    char line[256];
    FILE *f = popen("mpirun --version 2>/dev/null", "re");
    const char *found = f && fgets(line, sizeof line, f) ? strstr(line, name) : NULL;
    long n = found ? strtol(found + strlen(name), NULL, 10) : 0;
    if (f) pclose(f);
    return n > 0 && n < 100 ? (int)n : 0;
}

Machine machine_find(Arena *mem) {
    cpu_set_t mask;
    char host[256] = "", self[4096];
    Machine m = {.cores = 1, .nodes = allocation_nodes(), .root = geteuid() == 0};
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
        m.cores = count_cores(&mask);
        m.narrowed = mask_narrowed(&mask);
    }
    m.columns = stdout_columns();
    m.mpi_major = mpi_major();
    m.no_cma = memory_reads_forbidden();
    if (gethostname(host, sizeof host - 1)) snprintf(host, sizeof host, "localhost");
    m.host = arena_strdup(mem, host);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) fail(EXIT_CONFIG, "cannot read /proc/self/exe: is /proc mounted?");
    m.self = arena_strndup(mem, self, (size_t)n);
    return m;
}

static bool address_is_ours(const char *text) {
    struct in_addr want;
    struct ifaddrs *all;
    if (inet_pton(AF_INET, text, &want) != 1 || getifaddrs(&all)) return false;
    bool ours = ntohl(want.s_addr) >> 24 == 127;
    for (struct ifaddrs *i = all; i && !ours; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
        struct sockaddr_in a;
        memcpy(&a, i->ifa_addr, sizeof a);
        ours = a.sin_addr.s_addr == want.s_addr;
    }
    freeifaddrs(all);
    return ours;
}

bool machine_is(const Machine *m, const char *host) {
    if (!strcmp(host, m->host) || !strcmp(host, "localhost")) return true;
    if (address_is_ours(host)) return true;
    /* node7 and node7.cluster.example are one machine */
    size_t a = strcspn(host, "."), b = strcspn(m->host, ".");
    return a == b && !memcmp(host, m->host, a) && (!host[a] || !m->host[b]);
}

int64_t machine_oom_kills(void) {
    FILE *f = fopen("/proc/vmstat", "r");
    char line[256];
    long long kills = -1;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "oom_kill %lld", &kills) == 1) break;
    if (f) fclose(f);
    return kills;
}
