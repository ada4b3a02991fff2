/* comm.c - the processes of a run and their collectives, on real ranks under mpirun, and
 * the parts of comm.h that a process alone can show. */
#include "runtime/comm/comm.h"
#include "../mpi.h"
#include "runtime/comm/comm_ring.h"

TEST_LABEL(RANKS);

#define COLLECTIVES BUILD_DIR "/tests/mpi/mpi_collectives "
#define ENDS        BUILD_DIR "/tests/mpi/mpi_ends "
#define STAGES      BUILD_DIR "/tests/mpi/mpi_stages "
/* Sends that wait for their receives, as messages between hosts do: no buffer hides that
 * two ranks wait for each other. 56 is the least that Open MPI takes. */
#define RENDEZVOUS "--mca btl_vader_eager_limit 56"

/* ---- collectives against a direct computation (tests/mpi/collectives.c) ---- */

TEST_LABEL_OF(two_ranks, RELEASED);
TEST(two_ranks) {
    EXPECT_MPI(2, "", COLLECTIVES "2");
}

/* The runner of these tests tells MPI that cores are shared. */
TEST_LABEL_OF(cores_of_their_own, RELEASED);
TEST(cores_of_their_own) {
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
    EXPECT_MPI(2, "", COLLECTIVES "2");
}

TEST_LABEL_OF(three_ranks, RELEASED);
TEST(three_ranks) {
    EXPECT_MPI(3, "", COLLECTIVES "3");
}

TEST(square) {
    EXPECT_MPI(4, "", COLLECTIVES "2x2");
}

TEST_LABEL_OF(axes_of_other_sizes, RELEASED);
TEST(axes_of_other_sizes) {
    EXPECT_MPI(6, "", COLLECTIVES "2x3");
}

TEST_LABEL_OF(three_axes, RELEASED);
TEST(three_axes) {
    EXPECT_MPI(8, "", COLLECTIVES "2x2x2");
}

TEST_LABEL_OF(an_axis_of_one, RELEASED);
TEST(an_axis_of_one) {
    EXPECT_MPI(5, "", COLLECTIVES "1x5");
}

static void without_shared_memory(void) {
    setenv("STATOR_SHARED_MEMORY", "off", 1);
}

TEST_LABEL_OF(messages_of_mpi, RELEASED);
TEST(messages_of_mpi) {
    without_shared_memory();
    EXPECT_MPI(2, "", COLLECTIVES "2");
    EXPECT_MPI(5, "", COLLECTIVES "5");
}

TEST(memory_that_cannot_be_shared_is_said) {
    EXPECT_MPI(3, "", BUILD_DIR "/tests/mpi/mpi_unshared");
    EXPECT(strstr(mpi_said(), "note: the ranks of a host share no memory"));
    EXPECT_MPI(3, "", ENDS "orderly");
    EXPECT(!strstr(mpi_said(), "note: "));
}

TEST_LABEL_OF(rendezvous, RELEASED);
TEST(rendezvous) {
    without_shared_memory();
    EXPECT_MPI(3, RENDEZVOUS, COLLECTIVES "3");
    EXPECT_MPI(4, RENDEZVOUS, COLLECTIVES "2x2");
}

TEST(unknown_users_of_shared_memory_are_refused) {
    static const char *const bad[] = {"0", "no", "-2", "2x"};
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        setenv("STATOR_SHARED_MEMORY", bad[i], 1);
        EXPECT(mpi_run(2, "", ENDS "orderly") == EXIT_CONFIG);
        EXPECT(strstr(mpi_said(), "STATOR_SHARED_MEMORY is '"));
    }
}

/* As on two hosts: some messages of a collective go through shared memory, some by MPI. */
TEST_LABEL_OF(both_ways, RELEASED);
TEST(both_ways) {
    setenv("STATOR_SHARED_MEMORY", "2", 1);
    EXPECT_MPI(3, RENDEZVOUS, COLLECTIVES "3");
    EXPECT_MPI(4, RENDEZVOUS, COLLECTIVES "4");
    EXPECT_MPI(4, "", COLLECTIVES "4");
}

TEST_LABEL_OF(over_sockets, RELEASED);
TEST(over_sockets) {
    without_shared_memory();
    EXPECT_MPI(4, "--mca btl tcp,self --mca btl_tcp_if_include lo", COLLECTIVES "4");
}

/* MPI sends long messages only while their sender calls it. */
TEST(a_message_goes_on_while_its_sender_waits_in_a_sum) {
    EXPECT_MPI(4, "", STAGES "8000000");
    without_shared_memory();
    EXPECT_MPI(4, "", STAGES "8000000");
}

TEST(one_rank) {
    EXPECT_MPI(1, "", COLLECTIVES "1");
    EXPECT(mpi_run_alone(COLLECTIVES "1") == 0);
    EXPECT(mpi_run_alone(COLLECTIVES "1x1") == 0);
}

TEST(a_mesh_has_as_many_places_as_ranks) {
    EXPECT(mpi_run(2, "", COLLECTIVES "3") != 0);
    EXPECT(strstr(mpi_said(), "check failed: ranks"));
}

/* ---- how a run ends ---- */

static void expect_end(const char *how, int code, const char *part) {
    const char *command = arena_printf(mem(), "%s%s", ENDS, how);
    int got = mpi_run(3, "", command);
    if (got != code || !strstr(mpi_said(), part)) {
        test_fail(__FILE__, __LINE__, "%s: code %d, wanted %d with '%s':\n%s", how, got,
                  code, part, mpi_said());
    }
}

TEST(orderly_end) {
    expect_end("orderly", 0, "3 ranks\n");
}

TEST(a_failure_of_one_ends_all) {
    expect_end("fail", EXIT_DATA, "stator: error: the data of rank 1 is not there\n");
    expect_end("die", 134, "a bug of rank 1\n");
    expect_end("abort", 7, "");
}

TEST(a_caught_failure_ends_nobody) {
    expect_end("catch", 0, "caught 3 on 3 ranks\n");
}

TEST(a_killed_rank_ends_all) {
    expect_end("killed", 128 + SIGKILL, "");
}

static void expect_disagreement(void) {
    expect_end("small", 134, "in a collective");
    expect_end("large", 134, "in a collective");
    expect_end("thread", 134, "in a collective");
}

TEST(disagreeing_sizes_are_reported) {
    expect_disagreement();
    without_shared_memory();
    expect_disagreement();
    expect_end("message", 134, "rank 1 sent 32 bytes where 64 were expected");
}

/* ---- launchers ---- */

static void expect_alone(int code, const char *part) {
    EXPECT(mpi_run_alone(ENDS "orderly") == code);
    if (!strstr(mpi_said(), part)) test_fail(__FILE__, __LINE__, "said:\n%s", mpi_said());
}

static void slurm_step(const char *step, const char *tasks) {
    setenv("SLURM_STEP_ID", step, 1);
    setenv("SLURM_NTASKS", tasks, 1);
    /* env(1) sets it for the program alone: the helper takes it from a launcher of tests
     */
    EXPECT(mpi_run_alone("env SLURM_PROCID=1 " ENDS "orderly") >= 0);
}

TEST(nobody_started_it) {
    expect_alone(0, "1 ranks\n");
}

TEST(srun_without_pmi) {
    slurm_step("0", "4");
    EXPECT(
        strstr(mpi_said(), "stator: error: 4 processes were started, but they do not"));
    EXPECT(strstr(mpi_said(), "srun --mpi=pmix"));
}

TEST(one_task_of_slurm) {
    slurm_step("0", "1");
    EXPECT_STR(mpi_said(), "1 ranks\n");
}

TEST(the_script_of_a_batch_job_is_no_step) {
    slurm_step("4294967291", "4");
    EXPECT_STR(mpi_said(), "1 ranks\n");
}

TEST(launcher_of_another_mpi) {
    setenv("PMI_RANK", "0", 1);
    setenv("PMI_SIZE", "2", 1);
    expect_alone(EXIT_CONFIG, "2 processes were started, but they do not see each other");
}

/* There MPI_Init would end the process, with a code of its own. */
TEST(a_pmi_of_srun_that_open_mpi_does_not_speak) {
    if (system("ompi_info 2>/dev/null | grep -qE 'pmix: (s1|s2|cray)'") == 0)
        test_skip("this Open MPI speaks PMI-2");
    setenv("PMI_RANK", "1", 1);
    setenv("PMI_SIZE", "3", 1);
    setenv("SLURM_NODELIST", "here", 1);
    slurm_step("0", "3");
    EXPECT_PART(mpi_said(), "stator: error: 3 processes were started, but they do not");
    EXPECT_PART(mpi_said(), "srun --mpi=none ... env -u SLURM_PROCID stator");
    EXPECT(!strstr(mpi_said(), "direct launched"));
}

/* ---- staging memory ---- */

TEST(staging_does_not_grow_with_the_payload) {
    CommPart p = {.before = 1, .each = 1, .after = 1ll << 40, .dtype = DT_F32};
    CommPart twice = p;
    twice.after *= 2;
    for (CommKind k = 0; k < COMM_KINDS; k++) {
        if (k == COMM_ALL_TO_ALL) continue;
        int64_t bytes = comm_workspace_bytes(k, 8, &p, 1);
        EXPECT(bytes > 0 && bytes <= 8 << 20);
        EXPECT(bytes == comm_workspace_bytes(k, 8, &twice, 1));
        EXPECT(comm_workspace_bytes(k, 1, &p, 1) == 0);
    }
}

static void workspace_of(CommPart p) {
    comm_workspace_bytes(COMM_ALL_REDUCE, 4, &p, 1);
}

/* Runs the call in a child; true when it dies. */
static bool dies(CommPart p) {
    pid_t pid = fork();
    if (pid == 0) {
        fclose(stderr);
        workspace_of(p);
        _exit(0);
    }
    return mpi_wait(pid) != 0;
}

TEST(sizes_that_overflow) {
    EXPECT(!dies((CommPart){.before = 1, .each = 1, .after = 5, .dtype = DT_F32}));
    EXPECT(dies((CommPart){.before = 1ll << 32, .each = 1ll << 30, .after = 1}));
    EXPECT(dies((CommPart){.before = 1, .each = 1, .after = 1ll << 61, .dtype = DT_F32}));
    EXPECT(dies((CommPart){.before = 0, .each = 1ll << 40, .after = 1ll << 40}));
    EXPECT(dies((CommPart){.before = 1, .each = -1, .after = 1}));
}
