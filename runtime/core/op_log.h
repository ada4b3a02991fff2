/* op_log.h - when the ops of a program began and ended, as generated code tells it by
 * rt_op_begin and rt_op_end (CompileOptions.log_ops), and what is around the program. */
#ifndef STATOR_OP_LOG_H
#define STATOR_OP_LOG_H
#include <stdint.h>

typedef struct OpTime {
    int64_t number;    /* of the op in the program: program_ops; below 0: an OpMark */
    double begin, end; /* clock_seconds */
} OpTime;

/* What is no op, told by the same two functions. */
typedef enum OpMark { MARK_STEP = -1, MARK_DATA = -2, MARK_FEED = -3 } OpMark;
enum { OP_MARKS = 3 };

/* Each thread has a log of its own: the one that runs the steps, and the one that
 * communicates beside it (comm_queue.c). */
typedef enum OpLogThread { LOG_COMPUTE, LOG_BESIDE, LOG_THREADS } OpLogThread;

/* From here on ops of that thread are written to `room`, in the order in which they begin, as
 * long as there is room for another one; NULL: none are. Not while an op is open, nor while the
 * other thread works. Returns how many were begun since the last call, also without room. */
int64_t op_log_to(OpLogThread thread, OpTime *room, int64_t size);
/* The thread that calls this is another one than LOG_COMPUTE. */
void op_log_thread(OpLogThread thread);
/* Number of the innermost op that is open on this thread; 0: none, or nothing is logged. */
int64_t op_log_open(void);

#endif
