/* comm_shared.c - the files in memory that the ranks of a host map. They have no names, so nothing
 * is left of them however a run ends. */
#define _GNU_SOURCE
#include "runtime/comm/comm_shared.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/comm_cells.h"
#include "runtime/comm/watch.h"
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file without a name, as others find it: by the process that has it open, where that is one that
 * they see (containers may have numbers of their own). */
typedef struct Unnamed {
    int pid, fd;
    dev_t device;
    ino_t inode;
} Unnamed;

static Unnamed make_file(size_t bytes) {
    Unnamed u = {.pid = (int)getpid(), .fd = memfd_create("stator", MFD_CLOEXEC)};
    struct stat st;
    if (u.fd < 0) return u;
    if (ftruncate(u.fd, (off_t)bytes) == 0 && fstat(u.fd, &st) == 0) {
        u.device = st.st_dev;
        u.inode = st.st_ino;
        return u;
    }
    close(u.fd);
    u.fd = -1;
    return u;
}

static int open_file(const Unnamed *u) {
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", u->pid, u->fd);
    bool there = u->fd >= 0 && stat(path, &st) == 0;
    bool same = there && st.st_dev == u->device && st.st_ino == u->inode;
    return same ? open(path, O_RDWR | O_CLOEXEC | O_NOCTTY) : -1;
}

/* The file of all, or -1. */
static int share_file(const HostCalls *host, bool first, size_t bytes) {
    Unnamed u = {.fd = -1};
    if (first) u = make_file(bytes);
    host->tell(&u, sizeof u);
    return first ? u.fd : open_file(&u);
}

/* `bytes` of memory on all ranks, or NULL on all. A page without memory behind it would end the
 * rank that touches it, so each has its part, [at, at + mine), reserved. */
static void *share_bytes(const HostCalls *host, bool first, size_t bytes, size_t at,
                         size_t mine) {
    void *p = MAP_FAILED;
    int fd = share_file(host, first, bytes);
    if (fd >= 0 && posix_fallocate(fd, (off_t)at, (off_t)mine) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    bool all = host->all(p != MAP_FAILED); /* and nobody opens it any more */
    if (fd >= 0) close(fd);
    if (all) return p;
    if (p != MAP_FAILED) munmap(p, bytes);
    return NULL;
}

enum { OF_NONE = -1, OF_ALL = 0 };

/* How many neighbours use cells with each other. */
static int users_of_cells(void) {
    const char *s = getenv("STATOR_SHARED_MEMORY");
    char *end;
    if (!s || !s[0]) return OF_ALL;
    if (!strcmp(s, "off")) return OF_NONE;
    long n = strtol(s, &end, 10);
    if (*end || n < 1 || n > INT_MAX)
        fail(EXIT_CONFIG,
             "STATOR_SHARED_MEMORY is '%.40s': off, or a number of neighbouring ranks",
             s);
    return (int)n;
}

void comm_share_memory(const HostCalls *host, int me, int n) {
    int users = users_of_cells();
    size_t board = watch_board_bytes(n), at, mine;
    if (n == 1) return;
    watch_board(share_bytes(host, me == 0, board, 0, board), me, n);
    host->tell(&users, sizeof users); /* ranks need not have one environment */
    if (users == OF_NONE) return;
    cells_among(users);
    cells_reserved(me, n, &at, &mine);
    void *cells = share_bytes(host, me == 0, cells_bytes(n), at, mine);
    cells_start(cells, me, n);
    if (!cells && comm_rank() == 0)
        fprintf(stderr,
                "note: the ranks of a host share no memory (each must see the others'\n"
                "processes in /proc, and find 2 MiB): collectives within it are sent\n"
                "by MPI, and take up to 1.6 times as long\n");
}
