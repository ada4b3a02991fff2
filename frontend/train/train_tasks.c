/* train_tasks.c - the tasks of a pipeline as pictures: as planned, and as measured (the keys
 * profile*). Measured are the first ranks of stages; rank 0 writes. */
#include "frontend/config/commands.h"
#include "frontend/plan/plan.h"
#include "frontend/train/train_record.h"
#include "runtime/comm/comm.h"

/* Of all ranks of a stage the first one tells. */
static bool tells(void) {
    return comm_rank() == comm_stage_first();
}

void record_say_written(const Train *t, const char *what, const char *name, int error) {
    report_unwritten(t, path_join(t->mem, t->run_dir, name), error);
    if (!error) report_say(t, "%-10s %s/%s", what, t->run_dir, name);
}

void record_write(const Train *t, const char *what, const char *name, const Text *text) {
    const char *path = path_join(text->mem, t->run_dir, name);
    record_say_written(t, what, name, file_write_atomic(path, text->s, text->n));
}

/* ---- as planned ---- */

/* Of all chunks on rank 0; elsewhere those of this rank's stage. */
static double (*gather_flops(const Train *t, Arena *mem))[TASK_KINDS] {
    const PipeSchedule *s = t->pipe;
    size_t bytes = (size_t)s->chunks * TASK_KINDS * sizeof(double);
    double(*flops)[TASK_KINDS] = arena_alloc(mem, bytes);
    double(*other)[TASK_KINDS] = arena_alloc(mem, bytes);
    plan_read_task_flops(mem, t->program->m, flops);
    if (comm_rank() && tells()) comm_send_bytes(0, flops, bytes);
    for (int k = 1; k < s->stages && !comm_rank(); k++) {
        comm_receive_bytes(comm_first_of_stage(k), other, bytes);
        for (int c = 0; c < s->chunks; c++)
            if (s->stage_of[c] == k) memcpy(flops[c], other[c], sizeof flops[c]);
    }
    return flops;
}

static void draw_schedule(const Train *t, Arena *mem) {
    double(*flops)[TASK_KINDS] = gather_flops(t, mem);
    if (comm_rank()) return;
    plan_fill_task_flops(t->pipe, flops);
    Timeline l = plan_schedule_timeline(mem, t->pipe, (const double(*)[TASK_KINDS])flops);
    Text picture = timeline_svg(mem, &l);
    record_write(t, "schedule", RUN_SCHEDULE, &picture);
}

void tasks_draw_schedule(const Train *t) {
    if (!t->pipe) return;
    Arena *mem = arena_new();
    draw_schedule(t, mem);
    arena_free(mem);
}

/* ---- as measured ---- */

/* What a stage did in the recorded steps; times by the clock of rank 0. */
typedef struct StageTimes {
    int ntasks, rank;
    Task *task;   /* by number */
    OpTime *time; /* of all steps, each in the order in which they happened */
} StageTimes;

static int64_t steps_of(const Record *r) {
    return r->done - r->first + 1;
}

/* Is the call what the schedule means by `planned`? A backward that is whole is done where the
 * schedule has W, and its I is nothing; one in halves is two calls where it has B. */
static bool is_planned(Task call, Task planned) {
    if (call.chunk != planned.chunk || call.micro != planned.micro) return false;
    return call.kind == planned.kind ||
           (call.kind == TASK_BACKWARD && planned.kind == TASK_WEIGHTS) ||
           (call.kind != TASK_FORWARD && planned.kind == TASK_BACKWARD);
}

/* A whole backward has the name that the schedule gives it. */
static void name_as_planned(StageTimes *s, const TaskList *l) {
    for (int i = 0, at = 0; i < s->ntasks; i++) {
        int k = at;
        while (k < l->n && !is_planned(s->task[i], l->task[k])) k++;
        if (k == l->n) continue;
        if (s->task[i].kind == TASK_BACKWARD) s->task[i].kind = l->task[k].kind;
        at = k;
    }
}

/* Those of this rank's stage, out of all its ops. */
static StageTimes own_times(const Train *t, const Record *r, Arena *mem) {
    const RecordLog *log = &r->log[LOG_COMPUTE];
    StageTimes s = {.rank = comm_rank()};
    s.task = program_tasks(mem, t->program, &s.ntasks);
    s.time = NEW_ARRAY(mem, OpTime, (size_t)(steps_of(r) * s.ntasks) + 1);
    name_as_planned(&s, &t->pipe->stage[comm_stage()]);
    int64_t n = 0;
    for (int64_t nth = 0; nth < steps_of(r); nth++) {
        const OpTime *e = log->event + nth * log->each;
        for (int64_t i = 0; i < log->used[nth]; i++) {
            int task = op_row(r->op, e[i].number)->task;
            if (e[i].number < 0 || task < 0) continue;
            check(n < steps_of(r) * s.ntasks);
            s.time[n++] = (OpTime){task, e[i].begin - r->ahead_seconds,
                                   e[i].end - r->ahead_seconds};
        }
    }
    check(n == steps_of(r) * s.ntasks);
    return s;
}

static void send_times(const Record *r, const StageTimes *s) {
    size_t n = (size_t)s->ntasks;
    comm_send_bytes(0, &s->ntasks, sizeof s->ntasks);
    comm_send_bytes(0, s->task, n * sizeof *s->task);
    comm_send_bytes(0, s->time, (size_t)steps_of(r) * n * sizeof *s->time);
}

static StageTimes receive_times(const Record *r, Arena *mem, int stage) {
    StageTimes s = {.rank = comm_first_of_stage(stage)};
    comm_receive_bytes(s.rank, &s.ntasks, sizeof s.ntasks);
    size_t n = (size_t)s.ntasks, steps = (size_t)steps_of(r);
    s.task = NEW_ARRAY(mem, Task, n);
    s.time = NEW_ARRAY(mem, OpTime, steps * n);
    comm_receive_bytes(s.rank, s.task, n * sizeof *s.task);
    comm_receive_bytes(s.rank, s.time, steps * n * sizeof *s.time);
    return s;
}

/* When the program of a step began on rank 0: its batch had been put to its place. */
static double zero_of(const Record *r, int64_t nth) {
    const RecordLog *log = &r->log[LOG_COMPUTE];
    const OpTime *e = log->event + nth * log->each;
    while (e->number != MARK_FEED) e++;
    return e->end;
}

static void add_stage_rows(const Record *r, const StageTimes *s, int64_t nth, int stage,
                           Text *csv) {
    const OpTime *time = s->time + nth * s->ntasks;
    double zero = zero_of(r, nth);
    for (int i = 0; i < s->ntasks; i++) {
        Task k = s->task[time[i].number];
        text_add(csv, "%lld,%d,%d,%d%c%d,%.9f,%.9f\n", (long long)(r->first + nth),
                 s->rank, stage, k.chunk, task_letter[k.kind], k.micro,
                 time[i].begin - zero, time[i].end - zero);
    }
}

static void write_csv(const Train *t, const Record *r, const StageTimes *of, Arena *mem) {
    Text csv = text_new(mem);
    text_add(&csv, "step,rank,stage,task,begin_seconds,end_seconds\n");
    for (int64_t nth = 0; nth < steps_of(r); nth++)
        for (int k = 0; k < t->pipe->stages; k++) add_stage_rows(r, &of[k], nth, k, &csv);
    record_write(t, "timeline", RUN_TIMELINE_CSV, &csv);
}

/* The last recorded step, from its first task to the end of its last. */
static Timeline last_step(const Train *t, const Record *r, const StageTimes *of,
                          Arena *mem) {
    const PipeSchedule *s = t->pipe;
    int64_t nth = steps_of(r) - 1;
    Timeline l = plan_timeline(mem, s);
    l.begin = 1e300;
    l.end = -1e300;
    for (int k = 0; k < s->stages; k++) {
        const OpTime *time = of[k].time + nth * of[k].ntasks;
        for (int i = 0; i < of[k].ntasks; i++) {
            plan_timeline_add(&l, s, k, of[k].task[time[i].number], time[i].begin,
                              time[i].end);
            l.begin = MIN(l.begin, time[i].begin);
            l.end = MAX(l.end, time[i].end);
        }
    }
    l.axis = "milliseconds since the first task";
    l.axis_end = 1e3 * (l.end - l.begin);
    l.title = arena_printf(mem, "%s, step %lld: %.1f ms, stages wait %.1f %% of the time",
                           plan_schedule_title(mem, s), (long long)r->done, l.axis_end,
                           100 * timeline_idle(&l));
    return l;
}

void tasks_write_timeline(const Train *t, const Record *r) {
    if (!t->pipe || !tells()) return;
    Arena *mem = arena_new();
    StageTimes *of = NEW_ARRAY(mem, StageTimes, (size_t)t->pipe->stages);
    of[0] = own_times(t, r, mem);
    if (comm_rank()) {
        send_times(r, &of[0]);
    } else {
        for (int k = 1; k < t->pipe->stages; k++) of[k] = receive_times(r, mem, k);
        write_csv(t, r, of, mem);
        Timeline l = last_step(t, r, of, mem);
        Text picture = timeline_svg(mem, &l);
        record_write(t, "timeline", RUN_TIMELINE_SVG, &picture);
    }
    arena_free(mem);
}
