/* Tests of the memory that is left: what cgroups and the machine say, below a folder. */
#include "runtime/core/free_memory.h"
#include "driven.h"

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
    put("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/no\n4:memory:/a/b\n0::/\n");
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
