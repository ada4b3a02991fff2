/* comm_shared.c - the files in memory that the ranks of a host map. */
#define _GNU_SOURCE
#include "runtime/comm/comm_shared.h"
#include "runtime/comm/comm_cells.h"
#include "runtime/comm/watch.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

static int open_file(const char *name, size_t bytes, bool makes) {
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (makes ? O_CREAT | O_EXCL : 0);
    int fd = open(name, flags, 0600);
    if (fd < 0 || !makes || ftruncate(fd, (off_t)bytes) == 0) return fd;
    close(fd);
    return -1;
}

/* The file of all, or -1. Its name is one that only these ranks know, and only until all have
 * it. */
static int share_file(const HostCalls *host, bool first, size_t bytes) {
    char name[64];
    uint64_t word[2] = {0};
    if (getrandom(word, sizeof word, 0) != sizeof word) word[0] = (uint64_t)getpid();
    host->tell(word, sizeof word);
    snprintf(name, sizeof name, "/dev/shm/stator-%016llx%016llx",
             (unsigned long long)word[0], (unsigned long long)word[1]);
    int fd = first ? open_file(name, bytes, true) : -1;
    host->all(true);
    if (!first) fd = open_file(name, bytes, false);
    host->all(true);
    if (first) unlink(name);
    return fd;
}

/* `bytes` of memory on all ranks, or NULL on all. A page without memory behind it would end the
 * rank that touches it, so each has its part, [at, at + mine), reserved. */
static void *share_bytes(const HostCalls *host, bool first, size_t bytes, size_t at,
                         size_t mine) {
    void *p = MAP_FAILED;
    int fd = share_file(host, first, bytes);
    if (fd >= 0 && posix_fallocate(fd, (off_t)at, (off_t)mine) == 0)
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (host->all(p != MAP_FAILED)) return p;
    if (p != MAP_FAILED) munmap(p, bytes);
    return NULL;
}

void comm_share_memory(const HostCalls *host, int me, int n) {
    const char *off = getenv("STATOR_SHARED_MEMORY");
    size_t board = watch_board_bytes(n), at, mine;
    if (n == 1) return;
    watch_board(share_bytes(host, me == 0, board, 0, board), me, n);
    if (!host->all(!off || strcmp(off, "off") != 0)) return;
    cells_of_rank(me, n, &at, &mine);
    cells_start(share_bytes(host, me == 0, cells_bytes(n), at, mine), me, n);
}
