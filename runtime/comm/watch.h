/* watch.h - a thread of each process that notices when a run hangs: which rank waits for
 * which, in what, and which is stopped. It needs no messages of MPI: the ranks of a host
 * record what they do in shared memory. What collectives call stores a few words and
 * reads no clock. */
#ifndef STATOR_WATCH_H
#define STATOR_WATCH_H
#include "base/base.h"
#include <stdatomic.h>

/* Shows a report to the user: the rank that it is about, and the text, of less than
 * WATCH_REPORT_BYTES, without a line end. `ends`: all ranks are ended next, with
 * EXIT_HUNG. Called from the watching thread, while others may hold any lock: it may only
 * write(). */
typedef void (*WatchSay)(int rank, const char *host, const char *text, bool ends);

enum { WATCH_REPORT_BYTES = 2800 };

/* Starts the thread, once, after comm_start. */
void watch_start(WatchSay say);
/* A rank that makes no progress for so many seconds is reported (0: none is), and the run
 * is ended if `ends`: at once for one that is stopped, after WATCH_PATIENCE times as
 * long, in a task that is bounded, for one that is alive or on another host. From the
 * start: 60 seconds, ends. */
enum { WATCH_PATIENCE = 10 };
void watch_set(double seconds, bool ends);
void watch_stop(void);

/* What this process is doing; the text must stay; `number` of that, or -1. Bounded: it
 * takes no rank longer than WATCH_PATIENCE times the seconds of watch_set. */
void watch_task(const char *what, int64_t number, bool bounded);
/* The file that it reads or writes from here on; NULL: none any more. */
void watch_file(const char *path);
/* The task of a pipeline (a TaskKind, 0: none) that the step is at, until watch_task. */
void watch_at(int kind, int chunk, int micro);

/* ---- for comm*.c ---- */

/* How the thread ends all ranks; without, it ends this process. */
void watch_ends_by(void (*end_all)(int code));

enum { WATCH_WORKS, WATCH_FOR_RANK, WATCH_FOR_ALL };
typedef struct WatchState {
    _Atomic(const char *) task; /* of watch_task */
    atomic_llong number;
    atomic_int stage;              /* of this rank; -1: none, or not known yet */
    atomic_int kind, chunk, micro; /* of watch_at */
    atomic_llong progress;         /* counts up with all progress */
    atomic_int waits, peer;
    atomic_bool beside;          /* the thread that waits is not the one that computes */
    _Atomic(const char *) op;    /* that is waited in, or NULL */
    _Atomic(const char *) label; /* where it is in the program, or NULL */
    atomic_llong bytes;          /* of its operands; -1: unknown */
} WatchState;
extern WatchState *watch_state;

/* From here on the state is in `memory`: what forks from this process before it is a rank, and
 * has it too, can tell by watch_last what the rank was doing, when that is dead: "in receive of
 * stage 1, task 0F3 (step 12)"; "": it has not begun. */
void watch_share(WatchState *memory);
enum { WATCH_LAST_BYTES = 160 };
void watch_last(char text[WATCH_LAST_BYTES]);

#define WATCH_PUT(field, v)                                                              \
    atomic_store_explicit(&watch_state->field, (v), memory_order_relaxed)
#define WATCH_GET(field) atomic_load_explicit(&watch_state->field, memory_order_relaxed)

static inline void watch_progress(void) {
    WATCH_PUT(progress, WATCH_GET(progress) + 1);
}
static inline void watch_wait(int waits, int peer) {
    WATCH_PUT(peer, peer);
    WATCH_PUT(waits, waits);
}
static inline void watch_go_on(void) {
    WATCH_PUT(waits, WATCH_WORKS);
    watch_progress();
}

/* What a rank that waits from here on is said to wait in, until watch_leave. */
static inline void watch_enter(const char *op, const char *label, int64_t bytes) {
    WATCH_PUT(op, op);
    WATCH_PUT(label, label);
    WATCH_PUT(bytes, bytes);
}
static inline void watch_leave(void) {
    WATCH_PUT(label, NULL);
    WATCH_PUT(op, NULL);
    WATCH_PUT(bytes, -1);
}

/* Memory of so many bytes, zeroed, that all ranks of this host share; NULL: they do not. */
size_t watch_board_bytes(int local_size);
void watch_board(void *shared, int local_rank, int local_size);

#endif
