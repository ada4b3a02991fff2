/* comm_launcher.h - who started this process, by its environment, and what MPI is to be told
 * there before it starts. */
#ifndef STATOR_COMM_LAUNCHER_H
#define STATOR_COMM_LAUNCHER_H
#include "base/base.h"

/* Did mpirun, srun or another launcher? *tasks: processes that it started, 0 if unknown. Fails
 * with EXIT_CONFIG where srun started several without telling MPI of each other; `library` is
 * the name of the MPI library, for the message. */
bool launcher_started(const char *library, int64_t *tasks);
/* Tasks of the Slurm step that this process is one of; 0: of none. */
int64_t launcher_slurm_tasks(void);
/* Are several tasks of srun told of each other by the PMI-1 or PMI-2 that not every Open MPI
 * speaks? */
bool launcher_slurm_pmi(void);
/* "mpirun", "mpiexec" or "srun", which started several of this very program, and not of a script
 * that calls it, maybe on each rank for files of its own; NULL: none. */
const char *launcher_of_copies(void);
/* The failure of processes that do not see each other. */
_Noreturn void launcher_fail(const char *library, int64_t tasks);
/* Sets what Open MPI reads of the environment when it starts, where the user has not. */
void launcher_set_mpi(void);

#endif
