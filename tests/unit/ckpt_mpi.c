/* Checkpoints of real ranks: they agree on every answer, whoever dies while saving leaves
 * the older ones good, and hosts need not share a disk. */
#define _GNU_SOURCE
#include "../ckpt_crowd.h"
#include "../mpi.h"
#include "runtime/store/ckpt_files.h"
#include <dirent.h>

TEST_LABEL(RANKS);

#define PROGRAM BUILD_DIR "/tests/mpi/mpi_ckpt"

static const char *run_dir(void) {
    return path_join(crowd_mem(), temp_dir(), "run");
}

static const char *words(const char *mode, const char *numbers) {
    return arena_printf(crowd_mem(), PROGRAM " %s %s %s", mode, run_dir(), numbers);
}

/* Names in a folder below the run's, sorted. */
static char *listing(const char *below) {
    struct dirent **e;
    Text t = text_new(crowd_mem());
    const char *dir = arena_printf(crowd_mem(), "%s%s", run_dir(), below);
    int n = scandir(dir, &e, NULL, alphasort);
    for (int i = 0; i < n; i++)
        if (e[i]->d_name[0] != '.') text_add(&t, "%s ", e[i]->d_name);
    return t.s;
}

/* Loads the newest alone; its step, -1: none. */
static int64_t load_alone(void) {
    Crowd *c = crowd_new(&strategies[0]);
    int64_t step = -1;
    Text log = text_new(crowd_mem());
    const char *dir = path_join(crowd_mem(), run_dir(), "ckpt");
    if (ckpt_load_latest(crowd_mem(), dir, c->t[0], TENSORS, NULL, &step, &log))
        EXPECT_INT(crowd_differs(c, 0, step, TENSORS), -1);
    EXPECT_STR(log.s, "");
    return step;
}

static void said(const char *part) {
    if (!strstr(mpi_said(), part))
        test_fail(__FILE__, __LINE__, "'%s' is not in\n%s", part, mpi_said());
}

TEST_LABEL_OF(four_ranks_any_strategy, RELEASED);
TEST_LIMIT(four_ranks_any_strategy, 120) {
    EXPECT_MPI(4, "", words("any", ""));
    said("16 pairs");
    EXPECT_INT(load_alone(), 4);
    EXPECT_STR(listing("/ckpt"), "latest step_00000003 step_00000004 ");
}

TEST_LIMIT(other_numbers_of_ranks, 120) {
    EXPECT_MPI(4, "", words("save", "3 1"));
    EXPECT_MPI(5, "", words("load", "5 1"));
    EXPECT_MPI(5, "", words("save", "5 2"));
    EXPECT_MPI(4, "", words("load", "2 2"));
    EXPECT_INT(load_alone(), 2);
}

TEST_LIMIT(one_rank_fails, 120) {
    EXPECT_MPI(4, "", words("save", "3 1"));
    for (int rank = 0; rank < 4; rank++) {
        const char *numbers = arena_printf(crowd_mem(), "3 %d", rank);
        EXPECT_MPI(4, "", words("small", numbers));
        said(arena_printf(crowd_mem(), "error %d: ", EFBIG));
        if (rank) said(arena_printf(crowd_mem(), ": rank %d on ", rank));
        said("optimizer.rank_0000");
        EXPECT_STR(listing("/ckpt"), "latest step_00000001 ");
        EXPECT_INT(load_alone(), 1);
    }
}

TEST_LIMIT(no_shared_disk, 120) {
    EXPECT_MPI(4, "", words("far-save", "3 1"));
    said("note: 2 of 4 ranks (the first: rank 2 on ");
    EXPECT_STR(listing(".far"), "");
    /* Copies are written by the first of the ranks, as before they shared the work. */
    EXPECT_STR(listing("/ckpt/step_00000001"),
               "layout.json manifest.json model.rank_00000.safetensors "
               "model.rank_00001.safetensors optimizer.rank_00000.safetensors "
               "optimizer.rank_00001.safetensors optimizer.rank_00002.safetensors "
               "optimizer.rank_00003.safetensors ");
    EXPECT_INT(load_alone(), 1);
    EXPECT_MPI(4, "", words("far-load", "2 1"));
    said("2 of 4 ranks (the first: rank 2 on ");
    EXPECT_MPI(4, "", words("far-any", ""));
    said("16 pairs");
    EXPECT_MPI(4, "", words("load", "4 4")); /* one disk again */
    /* A rank of another host cannot write what rank 0 has to. */
    EXPECT_MPI(4, "", words("far-small", "3 0"));
    said(arena_printf(crowd_mem(), "error %d: ", EFBIG));
    EXPECT_INT(load_alone(), 4);
}

/* A file damaged on disk: the far ranks too take the one before. */
TEST_LIMIT(no_shared_disk_and_damage, 120) {
    EXPECT_MPI(4, "", words("save", "3 1"));
    EXPECT_MPI(4, "", words("save", "3 2"));
    const char *path = path_join(crowd_mem(), run_dir(),
                                 "ckpt/step_00000002/optimizer.rank_00003"
                                 ".safetensors");
    int fd = open(path, O_RDWR);
    EXPECT(fd >= 0 && pwrite(fd, "damage", 6, 100000) == 6 && close(fd) == 0);
    EXPECT_MPI(4, "", words("far-load", "2 1"));
    said("step_00000002 is damaged: ");
    said("optimizer.rank_00003.safetensors: its checksum is ");
}

TEST_LIMIT(rank_0_sees_none, 60) {
    EXPECT_MPI(4, "", words("save", "3 1"));
    EXPECT(rename(run_dir(), arena_printf(crowd_mem(), "%s.far", run_dir())) == 0);
    EXPECT(mpi_run(4, "", words("far-load", "3 1")) != 0);
    said("rank 0 sees no checkpoint in ckpt, but rank 2 sees one of step 1");
}

/* ---- kill -9 ---- */

static void remove_run(void) {
    const char *run = run_dir();
    EXPECT_INT(system(arena_printf(crowd_mem(), "rm -rf '%s' '%s.far'", run, run)), 0);
}

/* A folder with step 1, saved once for all. */
static void begin_with_step_1(void) {
    const char *run = run_dir();
    if (!file_exists(arena_printf(crowd_mem(), "%s.begin", run))) {
        EXPECT_MPI(4, "", words("save", "3 1"));
        EXPECT_INT(system(arena_printf(crowd_mem(), "mv '%s' '%s.begin'", run, run)), 0);
    }
    remove_run();
    EXPECT_INT(system(arena_printf(crowd_mem(), "cp -a '%s.begin' '%s'", run, run)), 0);
}

static bool kill_at(int rank, int nth, const char *mode) {
    begin_with_step_1();
    const char *numbers = arena_printf(crowd_mem(), "3 %d %d", rank, nth);
    bool killed = mpi_run(4, "", words(mode, numbers)) != 0;
    mpi_wait_for_ranks();
    int64_t step = load_alone();
    EXPECT(step == 2 || (killed && step == 1));
    ckpt_remove_leftovers(crowd_mem(), arena_printf(crowd_mem(), "%s/ckpt", run_dir()));
    EXPECT(!strstr(listing("/ckpt"), ".tmp "));
    return killed;
}

TEST_LABEL_OF(killed_at_named_instants, RELEASED);
TEST_LIMIT(killed_at_named_instants, 300) {
    int nth = 1;
    mpi_adopt_ranks();
    while (kill_at(3, nth, "kill")) nth++;
    EXPECT(nth > 3);
    for (nth = 1; kill_at(0, nth, "kill");) nth += 3;
    EXPECT(nth > 10);
    for (nth = 2; kill_at(0, nth, "far-kill");) nth += 6;
    EXPECT(nth > 10);
}

/* In a file of the run's folder, or of that with `far` behind its name; 0: no file. */
static int64_t number_in(const char *far, const char *name) {
    const char *path = arena_printf(crowd_mem(), "%s%s/%s", run_dir(), far, name);
    if (!file_exists(path)) return 0;
    return atoll(file_read(crowd_mem(), path, 100, NULL, EXIT_DATA));
}

/* A rank's process id, once it is there. */
static pid_t pid_of(int rank) {
    const char *name = arena_printf(crowd_mem(), "pid_%d", rank);
    for (int i = 0; i < 2000; i++) {
        int64_t pid = number_in("", name) + number_in(".far", name);
        if (pid) return (pid_t)pid;
        usleep(10000);
    }
    test_fail(__FILE__, __LINE__, "rank %d did not start: %s", rank, mpi_said());
}

TEST_LABEL_OF(killed_at_random, RELEASED);
TEST_LIMIT(killed_at_random, 300) {
    uint64_t random = 88172645463325252u;
    int64_t before = 0;
    const int kills = test_long() ? 12 : 6; /* of each rank; with one disk, with two */
    mpi_adopt_ranks();
    for (int i = 0; i < kills; i++) {
        remove_run();
        pid_t job = mpi_start(4, "", words(i % 3 ? "loop" : "far-loop", "3"));
        pid_t pid = pid_of(i % 4);
        while (!number_in("", "saved")) usleep(1000); /* one that it can go on from */
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        usleep((useconds_t)(200000 + random % 400000));
        kill(pid, SIGKILL);
        EXPECT(mpi_wait(job) != 0);
        mpi_wait_for_ranks();
        int64_t saved = number_in("", "saved"), step = load_alone();
        EXPECT(step > 0 && step >= saved && step <= saved + 1);
        before += step;
    }
    EXPECT(before > kills);
}
