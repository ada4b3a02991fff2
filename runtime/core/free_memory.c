/* free_memory.c - see free_memory.h. */
#include "runtime/core/free_memory.h"
#include "runtime/core/cgroup.h"
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>

enum { PATH_BYTES = 2048, LINE_BYTES = 4096 };

/* The number in a file of one line; `otherwise` where there is none, as for "max". */
static uint64_t read_number(const char *dir, const char *name, uint64_t otherwise) {
    char line[64], *end;
    if (!cgroup_line(dir, name, line, sizeof line)) return otherwise;
    errno = 0;
    unsigned long long v = strtoull(line, &end, 10);
    return end == line || errno || line[0] == '-' ? otherwise : v;
}

/* The number after a word that begins a line. */
static uint64_t find_number(const char *path, const char *word, uint64_t otherwise) {
    char line[LINE_BYTES];
    size_t n = strlen(word);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, word, n) || line[n] != ' ') continue;
        otherwise = strtoull(line + n, NULL, 10);
        break;
    }
    if (f) fclose(f);
    return otherwise;
}

static uint64_t machine_bytes(const char *root) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kb = find_number(path, "MemAvailable:", UINT64_MAX >> 10);
    return kb >= UINT64_MAX >> 10 ? UINT64_MAX : kb << 10;
}

/* Names of the two versions. */
typedef struct Version {
    Cgroup of;
    const char *limit, *usage, *inactive;
} Version;

static const Version versions[] = {
    {{"memory", {"/sys/fs/cgroup/memory", NULL}},
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     "total_inactive_file"},
    {{"", {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}},
     "memory.max",
     "memory.current",
     "inactive_file"},
};

typedef struct Search {
    const Version *v;
    FreeMemory *least;
} Search;

static void take_level(void *context, const char *dir, const char *group) {
    const Version *v = ((Search *)context)->v;
    FreeMemory *least = ((Search *)context)->least;
    char stat[PATH_BYTES];
    uint64_t limit = read_number(dir, v->limit, UINT64_MAX);
    uint64_t used = read_number(dir, v->usage, 0);
    if (limit >= UINT64_MAX / 4) return; /* none: version 1 writes a large number */
    if (snprintf(stat, sizeof stat, "%s/memory.stat", dir) >= (int)sizeof stat) return;
    uint64_t dropped = find_number(stat, v->inactive, 0);
    used -= MIN(used, dropped);
    uint64_t left = limit - MIN(limit, used);
    if (left >= least->bytes) return;
    least->bytes = left;
    snprintf(least->of, sizeof least->of, "cgroup %.300s (limit %.1f MB) leaves", group,
             (double)limit / 1e6);
}

FreeMemory memory_left(const char *root) {
    FreeMemory left = {.bytes = machine_bytes(root), .of = "this machine has free"};
    for (int i = 0; i < ARRAY_LEN(versions); i++)
        cgroup_walk(root, &versions[i].of, take_level, &(Search){&versions[i], &left});
    return left;
}

static bool keeps;

void memory_give_back(void) {
#ifdef __GLIBC__
    if (!keeps) malloc_trim(0);
#endif
}

void memory_keep(size_t bytes) {
    keeps = true;
#ifdef __GLIBC__
    enum { LARGEST_BYTES = 32 << 20 }; /* that is kept: glibc's most */
    enum { PIECE_BYTES = LARGEST_BYTES / 2 };
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES);
    Arena *mem = arena_new();
    for (size_t done = 0; done < bytes; done += PIECE_BYTES)
        arena_alloc(mem, PIECE_BYTES);
    arena_free(mem);
#endif
}

uint64_t memory_resident_bytes(void) {
    unsigned long long kb, sum = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu", &kb) == 1 ||
            sscanf(line, "RssShmem: %llu", &kb) == 1)
            sum += kb;
    if (f) fclose(f);
    return sum * 1024;
}
