/* Tests of training on two hosts that share a network and no disk. A host is a process
 * with its own network, name and mounts; what would go through ssh enters by nsenter. */
#define _GNU_SOURCE
#include "frontend/config/machine_file.h"
#include "profiled.h"
#include "ranks.h"
#include "runtime/core/rt.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

TEST_LABEL(RANKS);
TEST_LABEL(RELEASED);

enum { HOSTS = 2, RANKS = 4 };

typedef struct Host {
    pid_t pid;           /* keeps the namespaces */
    const char *address; /* by which the other host finds it */
    const char *enter;   /* words before a command to run it there */
} Host;

/* A disk of its own on `disk`, a name of its own, no network yet. Tells by a byte whether
 * it could be made, and waits for the end. */
static _Noreturn void be_host(int number, const char *disk, int tell) {
    char name[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(name, sizeof name, "host%d", number);
    bool made = unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS) == 0 &&
                mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                mount("none", disk, "tmpfs", 0, "size=64m") == 0 &&
                sethostname(name, strlen(name)) == 0;
    ssize_t put = write(tell, made ? "y" : "n", 1);
    while (put == 1) pause();
    _exit(1);
}

static Host host_start(int number, const char *disk) {
    Host h = {.address = arena_printf(mem(), "10.77.0.%d", number + 1)};
    int told[2];
    char answer = 'n';
    EXPECT(pipe(told) == 0);
    fflush(NULL);
    h.pid = fork();
    EXPECT(h.pid >= 0);
    if (h.pid == 0) be_host(number, disk, told[1]);
    close(told[1]);
    if (read(told[0], &answer, 1) != 1 || answer != 'y')
        test_skip("namespaces of networks and mounts are not permitted here");
    close(told[0]);
    h.enter = arena_printf(mem(), "nsenter -t %d -n -m -u --", (int)h.pid);
    return h;
}

static bool shell(const char *command) {
    return system(arena_printf(mem(), "( %s ) >/dev/null 2>&1", command)) == 0;
}

/* A cable between the hosts, and the way to start a command on another host. */
static void connect_hosts(const Host *h) {
    if (!shell(arena_printf(mem(),
                            "ip link add wire netns %d type veth peer name wire netns %d",
                            (int)h[0].pid, (int)h[1].pid)))
        test_skip("ip cannot make a veth here");
    Text agent = text_new(mem());
    text_add(&agent, "#!/bin/sh\ncase $1 in\n");
    for (int i = 0; i < HOSTS; i++) {
        EXPECT(shell(arena_printf(mem(), "%s ip link set lo up", h[i].enter)));
        EXPECT(shell(arena_printf(mem(), "%s ip addr add %s/24 dev wire", h[i].enter,
                                  h[i].address)));
        EXPECT(shell(arena_printf(mem(), "%s ip link set wire up", h[i].enter)));
        text_add(&agent, "%s) shift; exec %s sh -c \"$*\" ;;\n", h[i].address,
                 h[i].enter);
    }
    text_add(&agent, "esac\n");
    write_text(in_temp("agent"), agent.s);
    EXPECT(chmod(in_temp("agent"), 0755) == 0);
    setenv("OMPI_MCA_plm_rsh_agent", in_temp("agent"), 1);
    setenv("PRTE_MCA_plm_ssh_agent", in_temp("agent"), 1);
    setenv("OMPI_MCA_btl", "tcp,self", 1);
}

/* A file on the disk of a host, seen from here. */
static const char *on(const Host *h, const char *path) {
    return arena_printf(mem(), "/proc/%d/root%s", (int)h->pid, path);
}

/* Runs a command with so many ranks on each host, started on the first one; the exit code. */
static int on_filled_hosts(const Host *h, const int ranks[HOSTS], const char *command) {
    write_text(in_temp("hosts"),
               arena_printf(mem(), "%s slots=%d\n%s slots=%d\n", h[0].address, ranks[0],
                            h[1].address, ranks[1]));
    char *words =
        arena_printf(mem(), "%s %s launch -n %d --hostfile %s --threads 1 %s", h[0].enter,
                     stator_program(), ranks[0] + ranks[1], in_temp("hosts"), command);
    return mpi_wait(mpi_start_words(words));
}

static int on_hosts(const Host *h, const char *command) {
    return on_filled_hosts(h, (int[]){RANKS / HOSTS, RANKS / HOSTS}, command);
}

static int train(const Host *h, const char *config, const char *run, const char *more) {
    return on_hosts(h, runs_words(config, run, more));
}

static void expect_train(int want, const Host *h, const char *config, const char *run,
                         const char *more) {
    int code = train(h, config, run, more);
    if (code != want)
        test_fail(__FILE__, __LINE__, "exit code %d, wanted %d:\n%s", code, want,
                  mpi_said());
}

static void start_hosts(Host *h, const char *disk) {
    if (!mpi_available()) test_skip("there is no mpirun");
    if (!shell("ip -V && nsenter -V")) test_skip("there is no ip, or no nsenter");
    EXPECT_INT(dir_make(disk), 0);
    for (int i = 0; i < HOSTS; i++) h[i] = host_start(i, disk);
    connect_hosts(h);
    setenv("TMPDIR", disk, 1);
}

static void end_hosts(const Host *h) {
    for (int i = 0; i < HOSTS; i++) kill(h[i].pid, SIGKILL);
}

/* Tensor parallelism within a host, replicas and their split states across hosts. */
#define MESH                                                                             \
    "--parallel_config.data_parallel 2 --parallel_config.model_parallel 2 " ZERO_LEVEL(1)

TEST_LIMIT(two_hosts_without_a_shared_disk_train_and_resume, 120) {
    const char *config = runs_small_config(12, 6), *disk = in_temp("disk");
    const char *run = path_join(mem(), disk, "run");
    const char *whole = path_join(mem(), disk, "whole");
    const char *first = "ckpt/step_00000006/manifest.json";
    const char *other = "logs/rank_3.log";
    Host h[HOSTS];
    start_hosts(h, disk);
    expect_train(0, h, config, whole, MESH "--lr_schedule.total_steps 12");
    expect_train(0, h, config, run,
                 MESH "--lr_schedule.total_steps 12 --runner_config.max_steps 6");
    EXPECT_PART(mpi_said(), "rank 2 on host1) do not see");
    EXPECT(file_exists(on(&h[0], path_join(mem(), run, first))));
    EXPECT(!file_exists(on(&h[1], path_join(mem(), run, first))));
    EXPECT(!file_exists(on(&h[0], path_join(mem(), run, other))));
    EXPECT(file_exists(on(&h[1], path_join(mem(), run, other))));
    expect_train(0, h, config, run, MESH "--lr_schedule.total_steps 12");
    EXPECT_PART(mpi_said(), "resumed after step 6");
    runs_expect_same_losses(on(&h[0], whole), on(&h[0], run), 12);
    runs_expect_same_tensors(on(&h[0], whole), on(&h[0], run), 12);
    end_hosts(h);
}

/* Hosts may have other clocks: all times are by that of rank 0. */
TEST_LIMIT(tasks_of_stages_on_two_hosts, 120) {
    const char *disk = in_temp("disk"), *run = path_join(mem(), disk, "run");
    Host h[HOSTS];
    start_hosts(h, disk);
    expect_train(0, h, runs_small_config(4, 0), run,
                 "--parallel_config.pipeline_stage 2 --parallel_config.data_parallel 2 "
                 "--batch_size 1 --profile True --profile_stop_step 3");
    const char *csv = file_read(mem(), on(&h[0], path_join(mem(), run, "timeline.csv")),
                                1 << 20, NULL, EXIT_DATA);
    int rows = 0;
    for (const char *line = csv; (line = strchr(line, '\n')) && line[1]; rows++) {
        int step, rank, stage;
        double begin, end;
        EXPECT_INT(sscanf(++line, "%d,%d,%d,%*[0-9BF],%lf,%lf", &step, &rank, &stage,
                          &begin, &end),
                   5);
        EXPECT(rank == 2 * stage && begin >= 0 && begin < end && end < 30);
    }
    EXPECT_INT(rows, 3 * 2 * 2 * 2);
    EXPECT(file_exists(on(&h[0], path_join(mem(), run, "timeline.svg"))));
    EXPECT(!file_exists(on(&h[1], path_join(mem(), run, "timeline.csv"))));
    profiled_remove_maps(on(&h[0], run));
    end_hosts(h);
}

/* Weights to begin from are on the first host alone, which is enough. Data must be on
 * both: the host without them, or with others, is told what to copy. */
TEST_LIMIT(files_that_one_of_two_hosts_has, 120) {
    const char *config = runs_golden_config("gpt2_tiny"), *disk = in_temp("disk");
    const char *run = path_join(mem(), disk, "run"), *w = path_join(mem(), disk, "w");
    const char *data = path_join(mem(), disk, "text");
    Host h[HOSTS];
    start_hosts(h, disk);
    EXPECT(shell(
        arena_printf(mem(), "cp -r %s %s", runs_golden("gpt2_tiny"), on(&h[0], w))));
    expect_train(0, h, config, run, arena_printf(mem(), MESH "--init_from %s", w));
    ranks_expect_curve("gpt2_tiny", on(&h[0], run), "weights of one host");
    config = runs_small_config(4, 4);
    run = path_join(mem(), disk, "other");
    char *text = file_read(mem(), runs_text(), 1 << 20, NULL, EXIT_DATA);
    const char *words = arena_printf(mem(), MESH "--dataset_dir %s", data);
    const char *remedy = arena_printf(mem(), "from host host0 to the same path on host "
                                             "host1");
    write_text(on(&h[0], data), text);
    expect_train(EXIT_DATA, h, config, run, words);
    EXPECT_PART(mpi_said(), arena_printf(mem(), "copy what is named here %s", remedy));
    text[strlen(text) / 2] = '#';
    text[strlen(text) / 3] = '#';
    write_text(on(&h[1], data), text);
    expect_train(EXIT_CONFIG, h, config, run,
                 arena_printf(mem(), "%s --runner_config.max_steps 200", words));
    EXPECT_PART(mpi_said(), arena_printf(mem(), "copy %s %s", data, remedy));
    EXPECT(!file_exists(on(&h[0], run)) && !file_exists(on(&h[1], run)));
    end_hosts(h);
}

/* What lies between two hosts is measured, also where the first one has a file already, which the
 * other does not see. Plans know where hosts end. */
TEST_LIMIT(two_hosts_are_calibrated, 240) {
    const char *disk = in_temp("disk"), *path = path_join(mem(), disk, "machine.yaml");
    Text before = text_new(mem());
    Host h[HOSTS];
    int groups = 0;
    start_hosts(h, disk);
    machine_print(&machine_plain, NULL, &before);
    write_text(on(&h[0], path), before.s);
    int code = on_hosts(h, arena_printf(mem(), "calibrate --quick -o %s", path));
    if (code) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, mpi_said());
    EXPECT(!file_exists(on(&h[1], path)));
    const Machine *m = machine_read(mem(), on(&h[0], path));
    const Link *link = &m->link[LINK_NETWORK], *was = &machine_plain.link[LINK_NETWORK];
    EXPECT_INT(m->host_ranks, 2);
    EXPECT(link->bytes_per_second > 0 && link->start_seconds > 0);
    EXPECT(link->bytes_per_second != was->bytes_per_second);
    for (int k = 0; k < m->ncollectives; k++) {
        const CollectiveCurve *c = &m->collective[k];
        if (c->level == LINK_NETWORK) groups |= c->group;
        EXPECT(c->level == LINK_NETWORK || c->group <= 2);
    }
    EXPECT_INT(groups, 2 | 4); /* of a rank of each host, and of all */
    code = stator_wait(stator_start(arena_printf(
        mem(), "plan %s -n 4 --machine %s", runs_small_config(6, 0), on(&h[0], path))));
    if (code) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, said());
    SAID_EXPECT("2 of 2 ranks");
    end_hosts(h);
}

/* Ranks may be more than the cores of one host and not of the other, of an odd number, or in
 * groups of which some are within a host. What lies between hosts is measured in any case. */
TEST_LIMIT(hosts_that_are_filled_unevenly_are_calibrated, 240) {
    static const int filled[][HOSTS] = {{3, 1}, {1, 2}};
    const char *disk = in_temp("disk"), *path = path_join(mem(), disk, "machine.yaml");
    Host h[HOSTS];
    start_hosts(h, disk);
    for (int i = 0; i < ARRAY_LEN(filled); i++) {
        Text before = text_new(mem());
        machine_print(&machine_plain, NULL, &before);
        write_text(on(&h[0], path), before.s);
        const Link *was = machine_read(mem(), on(&h[0], path))->link;
        int code = on_filled_hosts(h, filled[i],
                                   arena_printf(mem(), "calibrate --quick -o %s", path));
        if (code) test_fail(__FILE__, __LINE__, "exit code %d:\n%s", code, mpi_said());
        const Machine *m = machine_read(mem(), on(&h[0], path));
        const Link *network = &m->link[LINK_NETWORK];
        EXPECT_INT(m->host_ranks, MAX(filled[i][0], filled[i][1]));
        EXPECT_INT(m->cores, rt_cores());
        EXPECT(network->start_seconds != was[LINK_NETWORK].start_seconds);
        EXPECT(network->bytes_per_second != was[LINK_NETWORK].bytes_per_second);
        EXPECT(m->link[LINK_HOST].start_seconds == was[LINK_HOST].start_seconds);
        EXPECT(m->ncollectives >= 5);
        for (int k = 0; k < m->ncollectives; k++) {
            EXPECT_INT(m->collective[k].level, LINK_NETWORK);
            EXPECT_INT(m->collective[k].ranks, m->host_ranks);
        }
    }
    end_hosts(h);
}
