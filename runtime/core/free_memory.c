/* free_memory.c - see free_memory.h. */
#include "runtime/core/free_memory.h"
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

enum { PATH_BYTES = 2048, LINE_BYTES = 4096 };

/* The number in a file of one line; `otherwise` where there is none, as for "max". */
static uint64_t read_number(const char *dir, const char *name, uint64_t otherwise) {
    char path[PATH_BYTES], line[64] = "", *end;
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = n < (int)sizeof path ? fopen(path, "re") : NULL;
    if (!f) return otherwise;
    if (!fgets(line, sizeof line, f)) line[0] = 0;
    fclose(f);
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
    const char *line;     /* of /proc/self/cgroup, after the number */
    const char *mount[2]; /* where it may be mounted */
    const char *limit, *usage, *inactive;
} Version;

static const Version versions[] = {
    {":memory:",
     {"/sys/fs/cgroup/memory", NULL},
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     "total_inactive_file"},
    {"::",
     {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
     "memory.max",
     "memory.current",
     "inactive_file"},
};

/* The cgroup of this process, into path; false: it is in none. */
static bool find_group(const char *root, const Version *v, char *path, size_t size) {
    char name[PATH_BYTES], line[LINE_BYTES];
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || !begins_with(colon, v->line)) continue;
        const char *group = colon + strlen(v->line);
        int n = snprintf(path, size, "%.*s", (int)strcspn(group, "\n"), group);
        found = n < (int)size && path[0] == '/';
    }
    if (f) fclose(f);
    return found;
}

static void take_level(FreeMemory *least, const Version *v, const char *dir,
                       const char *group) {
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
    snprintf(least->of, sizeof least->of, "cgroup %.300s (limit %.1f MB) leaves",
             *group ? group : "/", (double)limit / 1e6);
}

/* From the group up to the mount; a container may show the groups above its own as "/". */
static void take_groups(FreeMemory *least, const char *root, const Version *v) {
    char group[PATH_BYTES / 2], dir[PATH_BYTES];
    for (int i = 0; i < ARRAY_LEN(v->mount) && v->mount[i]; i++) {
        if (!find_group(root, v, group, sizeof group)) return;
        if (!strcmp(group, "/")) group[0] = 0;
        for (bool more = true; more;) {
            int n = snprintf(dir, sizeof dir, "%s%s%s", root, v->mount[i], group);
            if (n < (int)sizeof dir) take_level(least, v, dir, group);
            char *slash = strrchr(group, '/');
            more = slash != NULL;
            if (slash) *slash = 0;
        }
    }
}

FreeMemory memory_left(const char *root) {
    FreeMemory left = {.bytes = machine_bytes(root), .of = "this machine has free"};
    for (int i = 0; i < ARRAY_LEN(versions); i++) take_groups(&left, root, &versions[i]);
    return left;
}

void memory_give_back(void) {
#ifdef __GLIBC__
    malloc_trim(0);
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
