/* mpi.h - for tests of several ranks: starts a program under mpirun and waits for it. */
#ifndef STATOR_TESTS_MPI_H
#define STATOR_TESTS_MPI_H
#include "mem.h"
#include "runtime/comm/comm.h"
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

enum { MPI_WORDS = 96 };

/* What Open MPI needs to know in a container, as root, on fewer cores than ranks. A
 * program that is started for a test must not see the settings of a launcher around the
 * tests. */
static void mpi_environment(void) {
    const char *asan = getenv("ASAN_OPTIONS");
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    setenv("OMPI_MCA_orte_base_help_aggregate", "0", 1);
    /* Open MPI keeps memory until the end. */
    setenv("ASAN_OPTIONS", arena_printf(mem(), "%s:detect_leaks=0", asan ? asan : ""), 1);
    unsetenv("SLURM_PROCID");
    /* Code has the same results either way (jit_levels), and half of the time of a run of ranks
     * is LLVM's. */
    if (!test_long()) setenv("STATOR_JIT_LEVEL", "O0", 0);
}

static const char *mpi_output_path(void) {
    return path_join(mem(), temp_dir(), "mpi-output.txt");
}

/* What the last program said, on stdout and stderr of all ranks. */
static const char *mpi_said(void) {
    return file_read(mem(), mpi_output_path(), 1 << 26, NULL, EXIT_DATA);
}

/* Is there an mpirun, and are the programs its own? */
static bool mpi_available(void) {
    static int known = -1;
    if (known < 0)
        known = !strncmp(comm_library(), "Open MPI", 8) &&
                system("mpirun --version >/dev/null 2>&1") == 0;
    return known;
}

/* Starts the words of a command line; it ends when this process does. */
static pid_t mpi_start_words(char *words) {
    char *argv[MPI_WORDS + 1], *save = NULL;
    int n = 0;
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        EXPECT(n < MPI_WORDS);
        argv[n++] = w;
    }
    argv[n] = NULL;
    const char *output = mpi_output_path();
    fflush(NULL);
    pid_t pid = fork();
    EXPECT(pid >= 0);
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    mpi_environment();
    int fd = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    close(fd);
    execvp(argv[0], argv);
    fprintf(stderr, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(126);
}

/* Exit code, or minus the signal. */
static int mpi_wait(pid_t pid) {
    int status = 0;
    EXPECT_INT(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Runs a command line as it is, without mpirun; its exit code. */
static int mpi_run_alone(const char *command) {
    return mpi_wait(mpi_start_words(arena_strdup(mem(), command)));
}

/* Starts `ranks` processes of a command (words between blanks), more than there are cores
 * if need be, none bound to a core. `flags` are more words for mpirun. Skips the test
 * where there is no mpirun of Open MPI, whose flags these are, or MPI is another one. */
static pid_t mpi_start(int ranks, const char *flags, const char *command) {
    if (!mpi_available()) test_skip("there is no mpirun of Open MPI for this build");
    return mpi_start_words(
        arena_printf(mem(), "mpirun --oversubscribe --bind-to none -n %d %s %s", ranks,
                     flags, command));
}

/* The same, and waits: its exit code. */
static int mpi_run(int ranks, const char *flags, const char *command) {
    return mpi_wait(mpi_start(ranks, flags, command));
}

/* Ranks that outlive their mpirun are ours from now on, so that mpi_wait_for_ranks sees
 * them end: until then they may hold locks and write. */
static void mpi_adopt_ranks(void) {
    EXPECT(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
}

static void mpi_wait_for_ranks(void) {
    while (wait(NULL) > 0) continue;
}

#define EXPECT_MPI(ranks, flags, command)                                                \
    do {                                                                                 \
        int code_ = mpi_run((ranks), (flags), (command));                                \
        if (code_) {                                                                     \
            test_fail(__FILE__, __LINE__, "exit code %d of %d ranks of %s %s:\n%s",      \
                      code_, (ranks), (flags), (command), mpi_said());                   \
        }                                                                                \
    } while (0)

#endif
