/* launch_parts.h - what the files of the command `launch` share. The order of a run:
 * options (cmd_launch.c) -> placement (launch_place.c) -> the line for mpirun
 * (launch_plan.c) -> run and watch (launch_run.c), with what was said on stderr read by
 * launch_report.c and judged by launch_cause.c. */
#ifndef STATOR_LAUNCH_PARTS_H
#define STATOR_LAUNCH_PARTS_H
#include "base/base.h"

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
typedef struct Machine {
    int cores;     /* physical ones that this process may use */
    int nodes;     /* of the batch system's allocation; 1: none */
    bool narrowed; /* fewer than its container allows: taskset or a batch step */
    bool root;
    int columns;      /* of the terminal that stdout is; 0: it is none */
    int mpi_major;    /* of Open MPI; 0: unknown, taken as 4 */
    bool no_cma;      /* a process may not read another's memory */
    const char *host; /* its name */
    const char *self; /* this program */
} Machine;
Machine machine_find(Arena *mem);
/* Is this name or IPv4 address this machine's? */
bool machine_is(const Machine *m, const char *host);
/* Processes that the kernel has killed for lack of memory since it started; -1: unknown.
 */
int64_t machine_oom_kills(void);

/* Rank r is number slot_of[r] of the ranks on host[host_of[r]]. hosts == 0: this machine,
 * or the batch system's allocation, in mpirun's own order. */
typedef struct Placement {
    int ranks, hosts, most; /* most: ranks of one host */
    const char **host;
    int *host_of, *slot_of;
    bool local;   /* some rank is on this machine */
    bool crowded; /* more ranks than the hostfile has slots */
    int slots;    /* of the hostfile; 0: none given */
} Placement;

/* Seats the ranks of -n, --hostfile or --rank-table. Names of this machine become its own
 * name, as mpirun knows it. Fails with EXIT_CONFIG. */
Placement *placement_make(Arena *mem, const LaunchOptions *o, const Machine *m);
/* The hosts of a hostfile's text: a line "NAME [slots=N]", '#' comments; a line
 * without slots has one for each core. Ranks fill the slots in the order of the lines,
 * then go round again. */
Placement *placement_of_hostfile(Arena *mem, const char *name, const char *text,
                                 int ranks, const Machine *m);

/* What mpirun is started with. */
typedef struct LaunchPlan {
    const char **argv; /* NULL ends it */
    int argc;
    const char *seats;   /* text of the file that seats the ranks, or NULL */
    int threads;         /* of a rank */
    const char *warning; /* or NULL */
} LaunchPlan;

/* `dir` is the folder of reports, where the file of seats will be too; user_env are this
 * process's environment strings, whose STATOR_* the ranks get. */
LaunchPlan *launch_plan(Arena *mem, const LaunchOptions *o, const Machine *m,
                        const Placement *p, const char *dir, char **user_env);
#define LAUNCH_SEATS "seats"
/* The line for a shell, with quotes where needed. */
char *shell_line(Arena *mem, const LaunchPlan *plan);

/* ---- what is said on mpirun's stderr ---- */

typedef struct LaunchReport LaunchReport;
/* Lines that are not for us go on to `out`; dir is the folder of early logs; program: it
 * is none of stator's. */
LaunchReport *launch_report_new(Arena *mem, FILE *out, const Placement *p,
                                const Machine *m, const char *dir, bool program);
void launch_report_take(LaunchReport *r, const char *bytes, size_t n);
/* Nothing came for a while: lets go of what is held back of an unfinished line. */
void launch_report_idle(LaunchReport *r);
/* A rank has said that it fails: soon all must have ended. */
bool launch_report_fatal(const LaunchReport *r);
/* mpirun has ended with this status of waitpid; oom_kills: of this machine during the
 * run, -1 unknown; stopped: the signal that we passed on, 0 none. Prints the block that
 * says why the run failed, if it did, and returns the exit code of the command. */
int launch_report_end(LaunchReport *r, int status, int64_t oom_kills, int stopped);

/* Starts the plan and watches it to its end; returns the exit code. */
int launch_run(Arena *mem, const LaunchOptions *o, const Machine *m, const Placement *p);

#endif
