/* trace.c - see trace.h. */
#include "runtime/run/trace.h"
#include "base/json.h"
#include <math.h>
#include <stdlib.h>

const char trace_head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
const char trace_tail[] = "\n]}\n";

static void add_name(Text *out, const Trace *t, const char *what, int thread,
                     const char *name) {
    text_add(out,
             ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":",
             t->rank, thread, what);
    json_write_string(out, name);
    text_add(out, "}}");
}

void trace_add_rank(Text *out, const Trace *t) {
    char name[320];
    snprintf(name, sizeof name, "rank %d on %s", t->rank, t->host);
    add_name(out, t, "process_name", LOG_COMPUTE, name);
    text_add(out,
             ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_sort_index\","
             "\"args\":{\"sort_index\":%d}}",
             t->rank, t->rank);
    if (t->pid)
        text_add(out,
                 ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_labels\","
                 "\"args\":{\"labels\":\"pid %d, clock within %.1f us\"}}",
                 t->rank, t->pid, 1e6 * t->zero_off);
    add_name(out, t, "thread_name", LOG_COMPUTE, "steps");
    add_name(out, t, "thread_name", LOG_BESIDE, "communication beside them");
}

/* Microseconds with all nanoseconds, which a double of clock_seconds has. */
static void add_time(Text *out, const char *key, long long ns) {
    text_add(out, "\"%s\":%s%lld.%03lld,", key, ns < 0 ? "-" : "", llabs(ns) / 1000,
             llabs(ns) % 1000);
}

void trace_add(Text *out, const Trace *t, OpLogThread thread, int64_t step,
               const OpTime *op) {
    const OpRow *row = op_row(t->op, op->number);
    long long begin = llround(1e9 * (op->begin - t->zero));
    long long end = llround(1e9 * (op->end - t->zero));
    text_add(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,", t->rank, (int)thread);
    add_time(out, "ts", begin);
    add_time(out, "dur", end - begin);
    text_add(out, "\"cat\":\"%s\",\"name\":", row->kind);
    json_write_string(out, row->name);
    text_add(out, ",\"args\":{\"step\":%lld", (long long)step);
    if (row->where) {
        text_add(out, ",\"where\":");
        json_write_string(out, row->where);
    }
    if (row->flops > 0) text_add(out, ",\"flops\":%.0f", row->flops);
    if (row->bytes > 0) text_add(out, ",\"bytes\":%.0f", row->bytes);
    text_add(out, "}}");
}
