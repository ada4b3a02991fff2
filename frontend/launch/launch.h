/* launch.h - what a rank does for the one who watches the whole run: says where it logs,
 * and reports its failure. Works under stator launch, plain mpirun and srun; alone all of
 * it is nothing. */
#ifndef STATOR_LAUNCH_H
#define STATOR_LAUNCH_H
#include "base/base.h"

/* Folder of the launching host for this run's reports; set by stator launch for its
 * ranks. That it is set means that stderr's last reader is stator launch. */
#define LAUNCH_REPORT_ENV "STATOR_REPORT_DIR"
/* Set, and passed on to ranks, where stdout was closed at the start. */
#define LAUNCH_CLOSED_ENV "STATOR_STDOUT_CLOSED"
/* Columns of the terminal that stdout of stator launch is, 0: it is none. mpirun gives
 * rank 0 one in any case. */
#define LAUNCH_COLUMNS_ENV "STATOR_COLUMNS"
/* A line of stderr with this, then a JSON object, is for stator launch:
 *   {"rank": 1, "host": "a", "pid": 1234}                       it has started
 *   {"rank": 1, "host": "a", "log": "runs/a/logs/rank_1.log"}   where the rank logs
 *   {"rank": 1, "host": "a", "code": 3, "message": "..."}       why it ends
 *   {"rank": 1, "host": "a", "code": 6, "hung": "..."}          another rank says so of it
 *   {"rank": 1, "host": "a", "signal": 9}                       its guard: it was killed
 *   {"rank": 1, "host": "a", "code": 3}                         its guard: it has ended */
#define LAUNCH_REPORT_MARK "stator-report: "

enum {
    LAUNCH_MESSAGE_BYTES = 1400
}; /* of a report: the line stays below a pipe's 4096 */

/* Call first in main(), while there is one thread. Under stator launch the process becomes
 * the guard of the rank, which is a child of it and the only one to return from here: how
 * the rank ends is reported before mpirun knows. fail() and die() are reported to launch
 * instead of being printed, and stdout and stderr of the ranks above 0 are kept back until
 * launch_redirect_output. */
void launch_rank_start(void);

/* Sends stdout and stderr of a rank above 0 to the end of RUN_DIR/logs/rank_N.log, what
 * was kept back first; rank 0 stays at the terminal. Failures are still told there. Fails
 * with EXIT_CONFIG when the log cannot be opened. */
void launch_redirect_output(const char *run_dir, int rank);

/* Columns of the terminal that stdout is: 0: it is none, though mpirun may have put one
 * before a file; -1: stdout itself knows. */
int launch_columns(void);

/* Tells of a rank that hangs, as WatchSay of runtime/comm/watch.h. */
void launch_say_hang(int rank, const char *host, const char *text, bool ends);

#endif
