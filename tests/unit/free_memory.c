/* Tests of the memory and the cores that are left: what cgroups and the machine say, below a
 * folder. */
#include "runtime/core/free_memory.h"
#include "driven.h"
#include "runtime/core/cgroup.h"
#include <limits.h>

static void put(const char *name, const char *text) {
    const char *path = in_temp(name);
    char *dir = arena_strdup(mem(), path);
    *strrchr(dir, '/') = 0;
    EXPECT_INT(dir_make(dir), 0);
    write_text(path, text);
}

static void expect_room(uint64_t bytes, const char *of) {
    FreeMemory left = memory_left(temp_dir());
    if (left.bytes != bytes || !strstr(left.of, of))
        test_fail(__FILE__, __LINE__, "%llu bytes of '%s', wanted %llu of '%s'",
                  (unsigned long long)left.bytes, left.of, (unsigned long long)bytes, of);
}

TEST(nobody_says) {
    expect_room(UINT64_MAX, "this machine");
}

TEST(the_machine_alone) {
    put("proc/meminfo", "MemTotal: 900 kB\nMemAvailable:   800 kB\n");
    expect_room(800 << 10, "this machine has free");
}

TEST(version_1) {
    put("proc/meminfo", "MemAvailable: 8000000 kB\n");
    put("proc/self/cgroup",
        "9:name=systemd:/x\n4:cpu,memoryx:/no\n4:memory:/a/b\n0::/\n");
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n");
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "600000\n");
    expect_room(400000, "cgroup /a (limit 1.0 MB) leaves");
    put("sys/fs/cgroup/memory/a/memory.stat", "cache 7\ntotal_inactive_file 100000\n");
    expect_room(500000, "cgroup /a");
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "300000\n");
    expect_room(300000, "cgroup /a/b");
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "400000\n");
    expect_room(0, "cgroup /a/b");
}

TEST(version_2) {
    put("proc/self/cgroup", "0::/slice/job\n");
    put("sys/fs/cgroup/slice/job/memory.max", "max\n");
    expect_room(UINT64_MAX, "this machine");
    put("sys/fs/cgroup/slice/memory.max", "5000000\n");
    put("sys/fs/cgroup/slice/memory.current", "1000000\n");
    expect_room(4000000, "cgroup /slice (limit 5.0 MB)");
    put("sys/fs/cgroup/unified/memory.max", "70000\n");
    expect_room(70000, "cgroup / ");
}

/* A container that shows only its own group, while the name is the host's. */
TEST(a_group_that_is_not_there) {
    put("proc/self/cgroup", "4:memory:/docker/abc\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n");
    expect_room(2000000, "cgroup /");
}

TEST(files_that_say_nothing) {
    put("proc/self/cgroup", "garbage\n0::\n::\n4:memory:relative\n");
    put("sys/fs/cgroup/memory.max", "-5\n");
    expect_room(UINT64_MAX, "this machine");
    put("proc/self/cgroup", "0::/\n");
    expect_room(UINT64_MAX, "this machine");
    put("sys/fs/cgroup/memory.max", "99999999999999999999999\n");
    expect_room(UINT64_MAX, "this machine");
}

/* ---- cores ---- */

static void expect_cores(int cores) {
    EXPECT_INT(cgroup_cores(temp_dir()), cores);
}

TEST(no_quota) {
    expect_cores(INT_MAX);
    put("proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/b\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/b/cpu.max", "max 100000\n");
    expect_cores(INT_MAX);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"); /* and no period */
    expect_cores(INT_MAX);
}

TEST(quotas_of_version_1) {
    static const char *const lists[] = {"cpu", "cpu,cpuacct", "cpuacct,cpu"};
    static const char *const mounts[] = {"cpu", "cpu,cpuacct"};
    for (int i = 0; i < ARRAY_LEN(lists); i++) {
        const char *dir = arena_printf(mem(), "sys/fs/cgroup/%s/a%d", mounts[i % 2], i);
        put("proc/self/cgroup",
            arena_printf(mem(), "5:cpuset:/no\n3:%s:/a%d/b\n", lists[i], i));
        put(path_join(mem(), dir, "cpu.cfs_period_us"), "50000\n");
        put(path_join(mem(), dir, "cpu.cfs_quota_us"), "399999\n");
        expect_cores(7);
        put(path_join(mem(), dir, "b/cpu.cfs_period_us"), "100000\n");
        put(path_join(mem(), dir, "b/cpu.cfs_quota_us"), "50000\n");
        expect_cores(1);
    }
}

TEST(quotas_of_version_2) {
    put("proc/self/cgroup", "0::/slice/job\n");
    put("sys/fs/cgroup/slice/cpu.max", "300000 100000\n");
    put("sys/fs/cgroup/slice/job/cpu.max", "450000 100000\n");
    expect_cores(3);
    put("sys/fs/cgroup/slice/job/cpu.max", "250000 100000\n");
    expect_cores(2);
    put("sys/fs/cgroup/unified/cpu.max", "10000 100000\n");
    expect_cores(1);
}
