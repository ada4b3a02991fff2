/* profiled.h - for tests of the key profile: the events of a trace in a run folder. */
#ifndef STATOR_TESTS_PROFILED_H
#define STATOR_TESTS_PROFILED_H
#include "runs.h"
#include <stdlib.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* each test uses some of it */

/* Of the small model: steps that take so long that an interruption of the test beside them is
 * little. */
#define PROFILED_LONGER                                                                  \
    "--model.model_config.hidden_size 64 --model.model_config.seq_length 64 "            \
    "--runner_config.batch_size 16 "

typedef struct Event {
    int rank, thread, step;
    double begin, end; /* microseconds */
    const char *name, *kind, *where;
} Event;

/* The complete events of a trace, as they stand there. */
static Event *profiled_events(const char *run, const char *name, int *n) {
    const Json *file = json_read(mem(), arena_printf(mem(), "%s/profile/%s", run, name),
                                 1u << 30, EXIT_DATA);
    Event *events = NULL;
    int cap = 0, names = 0;
    *n = 0;
    for (const Json *e = json_need(file, "traceEvents")->first; e; e = e->next) {
        const Json *args = json_need(e, "args");
        bool complete = !strcmp(json_string(json_need(e, "ph")), "X");
        names += !strcmp(json_string(json_need(e, "name")), "process_name");
        if (!complete) continue;
        Event event = {.rank = (int)json_i64(json_need(e, "pid"), 0, 1000),
                       .thread = (int)json_i64(json_need(e, "tid"), 0, 1),
                       .step = (int)json_i64(json_need(args, "step"), 1, 1 << 20),
                       .begin = json_f64(json_need(e, "ts")),
                       .name = json_string(json_need(e, "name")),
                       .kind = json_string(json_need(e, "cat")),
                       .where = json_get_string(args, "where", "")};
        event.end = event.begin + json_f64(json_need(e, "dur"));
        PUSH(mem(), events, *n, cap, event);
    }
    EXPECT(names > 0 && *n > 0);
    return events;
}

/* The file in which perf finds the names of a process's functions. */
static const char *profiled_perf_map(int pid) {
    return arena_printf(mem(), "/tmp/perf-%d.map", pid);
}

/* Removes those of all ranks of a run; how many there were. */
static int profiled_remove_maps(const char *run) {
    const char *path = path_join(mem(), run, "profile/trace.json");
    const Json *file = json_read(mem(), path, 1u << 30, EXIT_DATA);
    int maps = 0, pid;
    for (const Json *e = json_need(file, "traceEvents")->first; e; e = e->next) {
        const char *labels = json_get_string(json_need(e, "args"), "labels", "");
        if (sscanf(labels, "pid %d", &pid) == 1)
            maps += remove(profiled_perf_map(pid)) == 0;
    }
    return maps;
}

/* Microseconds that the clock of a rank may be off, as a trace says. */
static double profiled_clock_off(const char *run, int rank) {
    const char *path = path_join(mem(), run, "profile/trace.json");
    const Json *file = json_read(mem(), path, 1u << 30, EXIT_DATA);
    double off = -1;
    for (const Json *e = json_need(file, "traceEvents")->first; e; e = e->next) {
        const char *labels = json_get_string(json_need(e, "args"), "labels", "");
        if (json_i64(json_need(e, "pid"), 0, 1000) == rank && *labels)
            EXPECT_INT(sscanf(labels, "pid %*d, clock within %lf us", &off), 1);
    }
    EXPECT(off >= 0);
    return off;
}

/* Nanoseconds, as doubles of microseconds round. */
#define PROFILED_OFF 1e-3

/* Of one rank and thread, in the order in which they begin: each is inside the one it begins
 * in, and all are inside steps if `in_steps`. */
static void profiled_expect_nested(const Event *e, int n, int rank, int thread,
                                   bool in_steps) {
    const Event *open[128];
    int depth = 0;
    double last = -1e300;
    for (int i = 0; i < n; i++) {
        if (e[i].rank != rank || e[i].thread != thread) continue;
        while (depth && open[depth - 1]->end <= e[i].begin + PROFILED_OFF) depth--;
        EXPECT(e[i].begin >= last - PROFILED_OFF && e[i].end >= e[i].begin);
        last = e[i].begin;
        if (in_steps) EXPECT(!depth == !strcmp(e[i].kind, "step"));
        if (depth && e[i].end > open[depth - 1]->end + PROFILED_OFF)
            test_fail(__FILE__, __LINE__, "%s ends at %.3f, after %s at %.3f", e[i].name,
                      e[i].end, open[depth - 1]->name, open[depth - 1]->end);
        if (depth) EXPECT_INT(e[i].step, open[0]->step);
        EXPECT(depth < ARRAY_LEN(open));
        open[depth++] = &e[i];
    }
}

/* Steps of a rank, from the first one on. */
static int profiled_steps(const Event *e, int n, int rank) {
    int steps = 0;
    for (int i = 0; i < n; i++) steps += e[i].rank == rank && !strcmp(e[i].kind, "step");
    return steps;
}

/* Milliseconds a step of all rows of a rank's table in ops.txt; *outside: what no op has. */
static double profiled_table_ms(const char *run, int rank, double *outside) {
    char *text = file_read(mem(), path_join(mem(), run, "profile/ops.txt"), 1 << 24, NULL,
                           EXIT_DATA);
    char *at = strstr(text, arena_printf(mem(), "rank %d, steps ", rank)), *save = NULL;
    double sum = 0, share, ms;
    *outside = -1;
    EXPECT(at != NULL);
    char *end = strstr(at, "\nrank ");
    if (end) *end = 0;
    for (char *line = strtok_r(at, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        if (sscanf(line, "%lf %lf", &share, &ms) != 2) continue;
        sum += ms;
        if (strstr(line, "outside of ops")) *outside = ms;
    }
    EXPECT(*outside >= 0);
    return sum;
}

/* The rows of rank 0's table are the time of the steps, as metrics.jsonl has it. */
static void profiled_expect_sum(const char *run, int first, int last) {
    int n;
    double ms = 0, outside;
    const MetricsRow *row = runs_metrics(run, &n);
    for (int i = first; i <= last; i++)
        ms += 1e3 * row[i - 1].seconds / (last - first + 1);
    double sum = profiled_table_ms(run, 0, &outside);
    printf("  rows: %.4f ms, step: %.4f ms, outside of ops: %.2f %%\n", sum, ms,
           100 * outside / ms);
    EXPECT(fabs(sum - ms) < 0.02 * ms);
}

#endif
