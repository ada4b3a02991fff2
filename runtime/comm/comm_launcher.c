/* comm_launcher.c - see comm_launcher.h. */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "runtime/comm/comm_launcher.h"
#include "runtime/core/rt.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int64_t env_number(const char *name, int64_t otherwise) {
    const char *s = getenv(name);
    char *end;
    if (!s || !*s) return otherwise;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    return errno || *end || v < 0 ? otherwise : v;
}

/* The scripts of sbatch and salloc count as steps with reserved numbers. */
int64_t launcher_slurm_tasks(void) {
    const int64_t reserved = 0xfffffff0;
    if (!getenv("SLURM_PROCID")) return 0;
    if (env_number("SLURM_STEP_ID", reserved) >= reserved) return 0;
    return env_number("SLURM_STEP_NUM_TASKS", env_number("SLURM_NTASKS", 0));
}

_Noreturn void launcher_fail(const char *library, int64_t tasks) {
    fail(
        EXIT_CONFIG,
        "%lld processes were started, but they do not see each other: the launcher and "
        "the MPI library of this stator (%s) speak different protocols. With Slurm write "
        "srun --mpi=pmix (srun --mpi=pmi2 where the library is no Open MPI), or mpirun "
        "inside the allocation; elsewhere use the mpirun or mpiexec of that library. For "
        "a run of its own on each task write srun --mpi=none ... env -u SLURM_PROCID "
        "stator ...",
        (long long)tasks, library);
}

bool launcher_started(const char *library, int64_t *tasks) {
    int64_t slurm = launcher_slurm_tasks();
    if ((*tasks = env_number("OMPI_COMM_WORLD_SIZE", 0))) return true;
    *tasks = slurm;
    if (getenv("PMIX_RANK")) return true;
    *tasks = env_number("PMI_SIZE", slurm);
    if (getenv("PMI_RANK") || getenv("PMI_SIZE")) return *tasks != 1;
    if (slurm > 1) launcher_fail(library, slurm);
    return false;
}

bool launcher_slurm_pmi(void) {
    int64_t slurm = launcher_slurm_tasks();
    if (getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK")) return false;
    return slurm > 1 && getenv("PMI_RANK") && env_number("PMI_SIZE", slurm) == slurm;
}

/* Did this program start this process itself, and no script that it started? */
static bool parent_is(const char *program) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)getppid());
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%31s", name) != 1) name[0] = 0;
    if (f) fclose(f);
    return !strcmp(name, program);
}

/* Hydra, which starts the ranks of MPICH and its kin, tells them no name of the program. */
const char *launcher_of_copies(void) {
    const char *program = getenv("OMPI_COMMAND");
    if (program && env_number("OMPI_COMM_WORLD_SIZE", 1) > 1 &&
        !strcmp(path_name(program), program_invocation_short_name))
        return "mpirun";
    if (env_number("PMI_SIZE", 1) > 1 && parent_is("hydra_pmi_proxy")) return "mpiexec";
    return launcher_slurm_tasks() > 1 && parent_is("slurmstepd") ? "srun" : NULL;
}

/* Segments of a collective go to other hosts without an answer of the receiver first (Open
 * MPI's own limit is 64 KiB): nobody has to look at the network for them to leave. What
 * the user says counts more. */
static void send_segments_at_once(void) {
    setenv("OMPI_MCA_btl_tcp_eager_limit", "270336", 0); /* 256 KiB and its header */
}

/* Where ranks are more than cores, MPI's own waiting gives up the core too. What mpirun or
 * the user says counts more. */
static void yield_when_crowded(void) {
    int64_t ranks = env_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    if (ranks > MIN(sysconf(_SC_NPROCESSORS_ONLN), rt_quota_cores()))
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

/* Ranks of one host talk through its memory (ob1, with vader); asking every network card
 * first whether it would rather (cm) takes a quarter of a second of each start. What the
 * user says counts more. */
static void ask_no_network_for_one_host(void) {
    int64_t local = env_number("OMPI_COMM_WORLD_LOCAL_SIZE", 0);
    if (local > 0 && local == env_number("OMPI_COMM_WORLD_SIZE", 0))
        setenv("OMPI_MCA_pml", "ob1", 0);
}

void launcher_set_mpi(void) {
    send_segments_at_once();
    yield_when_crowded();
    ask_no_network_for_one_host();
}
