/* launch_parts.h - what the files of the command `launch` share. The order of a run:
 * options (cmd_launch.c) -> placement (launch_place.c) -> the line for mpirun
 * (launch_plan.c) -> run and watch (launch_run.c), with what was said on stderr read and
 * judged by launch_report.c. */
#ifndef STATOR_LAUNCH_PARTS_H
#define STATOR_LAUNCH_PARTS_H
#include "base/base.h"

#define SLURM_TASKS "SLURM_TASKS_PER_NODE" /* where mpirun finds the slots of nodes */

typedef struct LaunchOptions {
    int ranks;                         /* 0: not given */
    int threads;                       /* of a rank; 0: not given */
    double timeout_seconds;            /* 0: none */
    const char *hostfile, *rank_table; /* NULL: not given; not both */
    const char *program;               /* instead of stator, or NULL */
    bool dry_run;
    char **command; /* words behind the options */
    int words;
} LaunchOptions;

/* This machine, as far as it decides how ranks are started. */
typedef struct ThisHost {
    int cores;         /* this_host_cores */
    int nodes;         /* of the batch system's allocation; 1: none */
    const char *tasks; /* of each, as Slurm writes them: "4(x2),1"; NULL: no Slurm */
    bool root;
    int columns;             /* of the terminal that stdout is; 0: it is none */
    int mpi_major;           /* of Open MPI's mpirun; 0: there is none */
    const char *mpi_library; /* of this program; NULL: not known */
    bool no_cma;             /* a process may not read another's memory */
    const char *host;        /* its name */
    const char *self;        /* this program */
} ThisHost;
ThisHost this_host(Arena *mem);
/* Physical cores that this process may use, numbered from 0; no more than its CPU quota. */
int this_host_cores(void);
/* The same of hardware threads. */
int this_host_cpus(void);
/* This process may use n of them from now on, `first` and those behind it. With a quota that is
 * less than the cores it may still use all: others with one would be on the same first cores. */
void this_host_bind(int first, int n);
/* Processes that the kernel has killed for lack of memory since it started; -1: unknown.
 */
int64_t this_host_oom_kills(void);

typedef struct Placement {
    int ranks, most;   /* most: ranks of one host, as far as their names tell */
    const char **host; /* by rank; NULL: this machine or the batch system's allocation,
                        * as mpirun finds it */
    int slots;         /* of the hosts; where ranks are more, they go round again */
    const char *tasks; /* SLURM_TASKS for mpirun; NULL: what there is has room */
} Placement;

/* Seats the ranks of -n, --hostfile or --rank-table. Fails with EXIT_CONFIG. A hostfile
 * has lines "NAME [slots=N]" and '#' comments; a host without slots has one for each core
 * of this machine. */
Placement *placement_make(Arena *mem, const LaunchOptions *o, const ThisHost *m);

/* What mpirun is started with. */
typedef struct LaunchPlan {
    const char **argv; /* NULL ends it */
    int argc;
    const char *tasks;   /* SLURM_TASKS of its environment; NULL: as it is */
    const char *warning; /* or NULL */
} LaunchPlan;

/* user_env are this process's environment strings, whose STATOR_* the ranks get. */
LaunchPlan *launch_plan(Arena *mem, const LaunchOptions *o, const ThisHost *m,
                        const Placement *p, char **user_env);
/* The line for a shell, with quotes where needed. */
char *shell_line(Arena *mem, const LaunchPlan *plan);

/* ---- what is said on mpirun's stderr ---- */

typedef struct LaunchReport LaunchReport;
/* Of so many ranks, started by this host. Lines that are not for us go on to `out`;
 * program: the ranks are none of stator's. */
LaunchReport *launch_report_new(Arena *mem, FILE *out, int ranks, const char *host,
                                bool program);
void launch_report_take(LaunchReport *r, const char *bytes, size_t n);
/* Nothing came for a while: lets go of what is held back of an unfinished line. */
void launch_report_idle(LaunchReport *r);
/* A rank has said that it fails: soon all must have ended. */
bool launch_report_fatal(const LaunchReport *r);
/* Every rank has its guard: signals that come now are passed on. */
bool launch_report_all_started(const LaunchReport *r);
/* No rank is on another host, and every one has its guard. */
bool launch_report_all_here(const LaunchReport *r);
/* Rank 0 has said with what code all ranks end: soon they must have. */
bool launch_report_ends(const LaunchReport *r);
/* mpirun has ended with this status of waitpid; oom_kills: of this machine during the
 * run, -1 unknown; stopped: the signal that we passed on, 0 none. Prints the block that
 * says why the run failed, if it did, and returns the exit code of the command. */
int launch_report_end(LaunchReport *r, int status, int64_t oom_kills, int stopped);

/* Starts the plan and watches it to its end; returns the exit code. */
int launch_run(Arena *mem, const LaunchOptions *o, const ThisHost *m, const Placement *p,
               const LaunchPlan *plan);

#endif
