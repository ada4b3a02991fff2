/* trace.h - ops over time in the trace event format of Chrome, which Perfetto opens
 * (ui.perfetto.dev): a process for each rank, a thread for each log of op_log.h. */
#ifndef STATOR_TRACE_H
#define STATOR_TRACE_H
#include "base/base.h"
#include "runtime/run/op_rows.h"

typedef struct Trace {
    int rank, pid; /* the latter as perf and others know it; 0: no process */
    const char *host;
    const OpRow *op; /* by number */
    double zero;     /* clock_seconds of this rank that is 0 in the trace */
    double zero_off; /* seconds, as far as that may be wrong against other ranks */
} Trace;

/* A file is `trace_head`, events of any ranks, `trace_tail`. Each event begins with the comma
 * that separates it from the one before, so the first one is written without its first
 * TRACE_COMMA_BYTES. */
extern const char trace_head[], trace_tail[];
enum { TRACE_COMMA_BYTES = 2 };
/* The names of a rank and of its threads. */
void trace_add_rank(Text *out, const Trace *t);
/* One run of an op, or a mark; `step` is that of the run. What runs inside an op is drawn
 * below it: times are whole nanoseconds, so it stays inside. */
void trace_add(Text *out, const Trace *t, OpLogThread thread, int64_t step,
               const OpTime *op);

#endif
