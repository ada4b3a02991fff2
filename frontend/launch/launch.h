/* launch.h - what a rank does for the one who watches the whole run: says where it logs,
 * and reports its failure. Works under stator launch, plain mpirun and srun; alone all of
 * it is nothing. */
#ifndef STATOR_LAUNCH_H
#define STATOR_LAUNCH_H
#include "base/base.h"

/* Set by stator launch for its ranks: stderr's last reader is stator launch. */
#define LAUNCH_ENV "STATOR_LAUNCHED"
/* Set, and passed on to ranks, where stdout was closed at the start. */
#define LAUNCH_CLOSED_ENV "STATOR_STDOUT_CLOSED"
/* Columns of the terminal that stdout of stator launch is, 0: it is none. mpirun gives
 * rank 0 one in any case. */
#define LAUNCH_COLUMNS_ENV "STATOR_COLUMNS"
/* A line of stderr with this, then a JSON object, is for stator launch:
 *   {"rank": 1, "pid": 1234, "host": "a"}                       it has started
 *   {"rank": 1, "code": 3, "host": "a", "message": "..."}       why it ends
 *   {"rank": 1, "code": 6, "host": "a", "hung": "..."}          another rank says so of it
 *   {"rank": 0, "ends": 4, "host": "a"}                         all end so: it has said why
 *   {"rank": 1, "signal": 9, "host": "a", "said": "..."}        its guard: it was killed
 *   {"rank": 1, "code": 3, "host": "a", "said": "..."}          its guard: it has ended
 * and "log": the rank's file, once there is one. `said` are the last lines of the log, and
 * the guard's "at" is what the rank was doing, as watch_last of runtime/comm/watch.h. */
#define LAUNCH_REPORT_MARK "stator-report: "

/* Call first in main(), while there is one thread. Under stator launch the process becomes
 * the guard of the rank, which is a child of it and the only one to return from here: how
 * the rank ends is reported before mpirun knows. fail() and die() are reported to launch
 * instead of being printed, and stdout and stderr of the ranks above 0 are kept back until
 * launch_redirect_output. The rank is bound to its part of the host's cores, when every
 * rank there can have STATOR_THREADS of them. */
void launch_rank_start(void);

/* CPUs that this rank could use before it was bound to its part, no more than the quota; 0: it
 * was not bound by this. */
int launch_cores(void);

/* `fd` is the log of this rank, logs/rank_N.log. Sends stdout and stderr of a rank above 0
 * there, what was kept back first; rank 0 stays at the terminal. Failures are still told
 * there. */
void launch_redirect_output(const char *logs, int rank, int fd);

/* All ranks are about to end with this code by themselves; rank 0, which calls this, has said why at
 * the terminal, where it is not 0: no rank is blamed. */
void launch_say_end(int code);

/* Columns of the terminal that stdout is: 0: it is none, though mpirun may have put one
 * before a file; -1: stdout itself knows. */
int launch_columns(void);

/* Refuses a command that does its work alone, several of which would write over each other's
 * files: what to run it without is `launcher`. A word that is no such command is left. */
void launch_refuse_alone(const char *command, const char *launcher);

/* Tells of a rank that hangs, as WatchSay of runtime/comm/watch.h. */
void launch_say_hang(int rank, const char *host, const char *text, bool ends);

#endif
