/* cgroup.c - see cgroup.h. */
#include "runtime/core/cgroup.h"
#include <limits.h>

enum { PATH_BYTES = 2048, LINE_BYTES = 4096 };

bool cgroup_line(const char *dir, const char *name, char *line, size_t size) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = n < (int)sizeof path ? fopen(path, "re") : NULL;
    bool read = f && fgets(line, (int)size, f);
    if (f) fclose(f);
    return read;
}

/* Is it in "cpu,cpuacct:/path"? Returns the path, or NULL. */
static const char *path_of(const char *list, const char *controller) {
    const char *end = strchr(list, ':');
    size_t n = strlen(controller);
    for (const char *s = list; end && s <= end; s += strcspn(s, ",:") + 1)
        if (strcspn(s, ",:") == n && !strncmp(s, controller, n)) return end + 1;
    return NULL;
}

/* The cgroup of this process, into path; false: it is in none. */
static bool find_group(const char *root, const char *controller, char *path,
                       size_t size) {
    char name[PATH_BYTES], line[LINE_BYTES];
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        const char *group = colon ? path_of(colon + 1, controller) : NULL;
        if (!group) continue;
        int n = snprintf(path, size, "%.*s", (int)strcspn(group, "\n"), group);
        found = n < (int)size && path[0] == '/';
    }
    if (f) fclose(f);
    return found;
}

/* From the group up to the mount; a container may show the groups above its own as "/". */
void cgroup_walk(const char *root, const Cgroup *c, CgroupLevel level, void *context) {
    char group[PATH_BYTES / 2], dir[PATH_BYTES];
    for (int i = 0; i < ARRAY_LEN(c->mount) && c->mount[i]; i++) {
        if (!find_group(root, c->controller, group, sizeof group)) return;
        if (!strcmp(group, "/")) group[0] = 0;
        for (bool more = true; more;) {
            int n = snprintf(dir, sizeof dir, "%s%s%s", root, c->mount[i], group);
            if (n < (int)sizeof dir) level(context, dir, *group ? group : "/");
            char *slash = strrchr(group, '/');
            more = slash != NULL;
            if (slash) *slash = 0;
        }
    }
}

/* Microseconds of CPU in a period; "max" or -1 where there is no limit. */
static void take_quota(void *context, const char *dir, const char *group) {
    char line[64];
    long long quota = -1, period = 0;
    int *least = context;
    (void)group;
    if (cgroup_line(dir, "cpu.max", line, sizeof line)) {
        sscanf(line, "%lld %lld", &quota, &period);
    } else if (cgroup_line(dir, "cpu.cfs_quota_us", line, sizeof line)) {
        sscanf(line, "%lld", &quota);
        if (cgroup_line(dir, "cpu.cfs_period_us", line, sizeof line))
            sscanf(line, "%lld", &period);
    }
    if (quota > 0 && period > 0) *least = (int)MIN(*least, MAX(1, quota / period));
}

int cgroup_cores(const char *root) {
    static const Cgroup versions[] = {
        {"cpu", {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}},
        {"", {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}},
    };
    int cores = INT_MAX;
    for (int i = 0; i < ARRAY_LEN(versions); i++)
        cgroup_walk(root, &versions[i], take_quota, &cores);
    return cores;
}
