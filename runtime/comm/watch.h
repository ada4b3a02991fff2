/* watch.h - a thread of each process that sees when nothing goes on: who waits for whom,
 * in what, and which rank is stopped. It needs no message of MPI: the ranks of a host
 * write down what they do in memory that they share. What is called from a collective
 * stores a few words and reads no clock. */
#ifndef STATOR_WATCH_H
#define STATOR_WATCH_H
#include "base/base.h"
#include <stdatomic.h>

/* Told where the user reads it: the rank that the report is about, and the text, of less
 * than WATCH_REPORT_BYTES, without a line end behind it. `ends`: all ranks are ended next,
 * with EXIT_HUNG. Called from the watching thread, while others may hold any lock: it may
 * only write(). */
typedef void (*WatchSay)(int rank, const char *host, const char *text, bool ends);

enum { WATCH_REPORT_BYTES = 2800 };

/* Starts the thread, once, after comm_start. */
void watch_start(WatchSay say);
/* A rank that gets no further for so many seconds is reported (0: none is), and the run
 * ended if `ends`: at once for one that is stopped, after WATCH_PATIENCE times as long,
 * in a task that is bounded, for one that is alive or on another host. From the start: 60
 * seconds, ends. */
enum { WATCH_PATIENCE = 10 };
void watch_set(double seconds, bool ends);
void watch_stop(void);

/* What this process is at: the text must stay; `number` of that, or -1. Bounded: it takes
 * no rank longer than WATCH_PATIENCE times the seconds of watch_set. */
void watch_task(const char *what, int64_t number, bool bounded);
/* The file that it reads or writes from here on; NULL: none any more. */
void watch_file(const char *path);

/* ---- for comm*.c ---- */

/* How the thread ends all ranks; without, it ends this process. */
void watch_ends_by(void (*end_all)(int code));

enum { WATCH_WORKS, WATCH_FOR_RANK, WATCH_FOR_ALL };
typedef struct WatchState {
    atomic_llong progress; /* counted on by whatever gets done */
    atomic_int waits, peer;
    atomic_bool beside;          /* who waits is not the one who computes */
    _Atomic(const char *) op;    /* that is waited in, or NULL */
    _Atomic(const char *) label; /* where it stands in the program, or NULL */
    atomic_llong bytes;          /* of its operands; -1: unknown */
} WatchState;
extern WatchState watch_state;

#define WATCH_PUT(field, v)                                                              \
    atomic_store_explicit(&watch_state.field, (v), memory_order_relaxed)
#define WATCH_GET(field) atomic_load_explicit(&watch_state.field, memory_order_relaxed)

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

/* Memory of so many bytes, zeroed, that all ranks of this host share; NULL: they do not. */
size_t watch_board_bytes(int local_size);
void watch_board(void *shared, int local_rank, int local_size);

#endif
