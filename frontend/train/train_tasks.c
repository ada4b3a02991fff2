/* train_tasks.c - the tasks of a pipeline as pictures: as planned, and as measured (the keys
 * profile*). Measured are the first ranks of stages; rank 0 writes. */
#include "frontend/config/commands.h"
#include "frontend/plan/plan.h"
#include "frontend/train/train.h"
#include "runtime/comm/comm.h"
#include "runtime/core/task_log.h"

/* Tasks that a rank records at most: 6 MB. */
enum { TASKS_MOST = 1 << 18 };

/* What a rank knows of the tasks of its stage; of the steps first..last of the run. */
struct TaskRecord {
    Task *task; /* by number */
    int ntasks;
    int64_t first, last, done; /* done: the last one recorded */
    TaskTime *time; /* of all steps, each in the order in which they happened */
    double *zero;   /* by step: when it began here */
};

static bool records(void) {
    return comm_rank() == comm_stage_first();
}

static bool one_host(void) {
    return comm_local_size() == comm_size();
}

static void say_written(const Train *t, const char *what, const char *name, int error) {
    if (error)
        report_say(t, "WARNING: cannot write %s/%s: %s", t->run_dir, name,
                   strerror(error));
    else
        report_say(t, "%-10s %s/%s", what, t->run_dir, name);
}

/* ---- as planned ---- */

/* Of all chunks on rank 0; elsewhere those of this rank's stage. */
static double (*gather_flops(const Train *t, Arena *mem))[TASK_KINDS] {
    const PipeSchedule *s = t->pipe;
    size_t bytes = (size_t)s->chunks * TASK_KINDS * sizeof(double);
    double(*flops)[TASK_KINDS] = arena_alloc(mem, bytes);
    double(*other)[TASK_KINDS] = arena_alloc(mem, bytes);
    plan_read_task_flops(mem, t->program->m, flops);
    if (comm_rank() && records()) comm_send_bytes(0, flops, bytes);
    for (int k = 1; k < s->stages && !comm_rank(); k++) {
        comm_receive_bytes(k * comm_stage_ranks(), other, bytes);
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
    const char *path = path_join(mem, t->run_dir, RUN_SCHEDULE);
    say_written(t, "schedule", RUN_SCHEDULE, timeline_write(path, &l));
}

/* ---- recording ---- */

/* Is the call what the schedule means by `planned`? A backward that is whole is done where the
 * schedule has W, and its I is nothing; one in halves is two calls where it has B. */
static bool is_planned(Task call, Task planned) {
    if (call.chunk != planned.chunk || call.micro != planned.micro) return false;
    return call.kind == planned.kind ||
           (call.kind == TASK_BACKWARD && planned.kind == TASK_WEIGHTS) ||
           (call.kind != TASK_FORWARD && planned.kind == TASK_BACKWARD);
}

/* A whole backward has the name that the schedule gives it. */
static void name_as_planned(struct TaskRecord *r, const TaskList *l) {
    for (int i = 0, at = 0; i < r->ntasks; i++) {
        int k = at;
        while (k < l->n && !is_planned(r->task[i], l->task[k])) k++;
        if (k == l->n) continue;
        if (r->task[i].kind == TASK_BACKWARD) r->task[i].kind = l->task[k].kind;
        at = k;
    }
}

static void start_record(Train *t) {
    const Config *cfg = t->job.cfg;
    int most = 1; /* calls of a step, of any stage: where B is in halves they are two */
    for (int k = 0; k < t->pipe->stages; k++) most = MAX(most, 2 * t->pipe->stage[k].n);
    int64_t first = MAX(cfg->profile_start_step, t->step + 1);
    int64_t last = MIN(cfg->profile_stop_step, t->steps);
    if (first > last) {
        report_say(
            t,
            "WARNING: nothing is recorded (profile): of the steps %lld to %lld this "
            "run does none, it goes from %lld to %lld",
            (long long)cfg->profile_start_step, (long long)cfg->profile_stop_step,
            (long long)t->step + 1, (long long)t->steps);
        return;
    }
    int64_t room = MAX(TASKS_MOST / most, 1);
    if (last - first >= room) {
        last = first + room - 1;
        report_say(
            t,
            "WARNING: profile records up to step %lld: up to %d tasks a step, and at "
            "most %d in all",
            (long long)last, most, TASKS_MOST);
    }
    struct TaskRecord *r = t->tasks = NEW(t->mem, struct TaskRecord);
    *r = (struct TaskRecord){.first = first, .last = last, .done = first - 1};
    r->task = program_tasks(t->mem, t->program, &r->ntasks);
    name_as_planned(r, &t->pipe->stage[comm_stage()]);
    size_t steps = (size_t)(last - first + 1);
    r->zero = NEW_ARRAY(t->mem, double, steps);
    r->time = NEW_ARRAY(t->mem, TaskTime, records() ? steps * (size_t)r->ntasks : 1);
}

void tasks_start(Train *t) {
    if (!t->pipe) return;
    Arena *mem = arena_new();
    draw_schedule(t, mem);
    arena_free(mem);
    if (t->job.cfg->profile && t->step < t->steps) start_record(t);
}

/* Ranks of one host have one clock. On several hosts all begin a step together, and each
 * counts from there. */
void tasks_begin_step(Train *t, int64_t step) {
    struct TaskRecord *r = t->tasks;
    if (!r || step < r->first || step > r->last) return;
    if (!one_host()) comm_barrier();
    r->zero[step - r->first] = clock_seconds();
    if (records()) task_log_to(r->time + (step - r->first) * r->ntasks, r->ntasks);
}

/* ---- as measured ---- */

/* What a stage did in the recorded steps. */
typedef struct StageTimes {
    int ntasks, rank;
    const Task *task;
    const TaskTime *time;
    const double *zero;
} StageTimes;

static int64_t steps_of(const struct TaskRecord *r) {
    return r->done - r->first + 1;
}

static void send_times(const struct TaskRecord *r) {
    size_t steps = (size_t)steps_of(r), n = (size_t)r->ntasks;
    comm_send_bytes(0, &r->ntasks, sizeof r->ntasks);
    comm_send_bytes(0, r->task, n * sizeof *r->task);
    comm_send_bytes(0, r->time, steps * n * sizeof *r->time);
    comm_send_bytes(0, r->zero, steps * sizeof *r->zero);
}

static StageTimes receive_times(const Train *t, Arena *mem, int stage) {
    int rank = stage * comm_stage_ranks(), ntasks;
    comm_receive_bytes(rank, &ntasks, sizeof ntasks);
    size_t steps = (size_t)steps_of(t->tasks), n = (size_t)ntasks;
    Task *task = NEW_ARRAY(mem, Task, n);
    TaskTime *time = NEW_ARRAY(mem, TaskTime, steps * n);
    double *zero = NEW_ARRAY(mem, double, steps);
    comm_receive_bytes(rank, task, n * sizeof *task);
    comm_receive_bytes(rank, time, steps * n * sizeof *time);
    comm_receive_bytes(rank, zero, steps * sizeof *zero);
    return (StageTimes){ntasks, rank, task, time, zero};
}

static StageTimes *gather_times(const Train *t, Arena *mem) {
    const struct TaskRecord *r = t->tasks;
    StageTimes *of = NEW_ARRAY(mem, StageTimes, (size_t)t->pipe->stages);
    of[0] = (StageTimes){r->ntasks, 0, r->task, r->time, r->zero};
    for (int k = 1; k < t->pipe->stages; k++) {
        of[k] = receive_times(t, mem, k);
        if (one_host()) of[k].zero = r->zero;
    }
    return of;
}

static void add_stage_rows(const Train *t, const StageTimes *s, int64_t nth, int stage,
                           Text *csv) {
    const TaskTime *time = s->time + nth * s->ntasks;
    for (int i = 0; i < s->ntasks; i++) {
        Task k = s->task[time[i].number];
        text_add(csv, "%lld,%d,%d,%d%c%d,%.9f,%.9f\n", (long long)(t->tasks->first + nth),
                 s->rank, stage, k.chunk, task_letter[k.kind], k.micro,
                 time[i].begin - s->zero[nth], time[i].end - s->zero[nth]);
    }
}

static void write_csv(const Train *t, const StageTimes *of, Arena *mem) {
    Text csv = text_new(mem);
    text_add(&csv, "step,rank,stage,task,begin_seconds,end_seconds\n");
    for (int64_t nth = 0; nth < steps_of(t->tasks); nth++)
        for (int k = 0; k < t->pipe->stages; k++) add_stage_rows(t, &of[k], nth, k, &csv);
    const char *path = path_join(mem, t->run_dir, RUN_TIMELINE_CSV);
    say_written(t, "timeline", RUN_TIMELINE_CSV, file_write_atomic(path, csv.s, csv.n));
}

/* The last recorded step, from its first task to the end of its last. */
static Timeline last_step(const Train *t, const StageTimes *of, Arena *mem) {
    const PipeSchedule *s = t->pipe;
    int64_t nth = steps_of(t->tasks) - 1;
    Timeline l = plan_timeline(mem, s);
    l.begin = 1e300;
    l.end = -1e300;
    for (int k = 0; k < s->stages; k++) {
        const TaskTime *time = of[k].time + nth * of[k].ntasks;
        for (int i = 0; i < of[k].ntasks; i++) {
            double begin = time[i].begin - of[k].zero[nth];
            double end = time[i].end - of[k].zero[nth];
            plan_timeline_add(&l, s, k, of[k].task[time[i].number], begin, end);
            l.begin = MIN(l.begin, begin);
            l.end = MAX(l.end, end);
        }
    }
    l.axis = "milliseconds since the first task";
    l.axis_end = 1e3 * (l.end - l.begin);
    l.title = arena_printf(mem, "%s, step %lld: %.1f ms, stages wait %.1f %% of the time",
                           plan_schedule_title(mem, s), (long long)t->tasks->done,
                           l.axis_end, 100 * timeline_idle(&l));
    return l;
}

static void write_timeline(const Train *t) {
    Arena *mem = arena_new();
    StageTimes *of = gather_times(t, mem);
    write_csv(t, of, mem);
    Timeline l = last_step(t, of, mem);
    const char *path = path_join(mem, t->run_dir, RUN_TIMELINE_SVG);
    say_written(t, "timeline", RUN_TIMELINE_SVG, timeline_write(path, &l));
    arena_free(mem);
}

void tasks_end_step(Train *t) {
    struct TaskRecord *r = t->tasks;
    if (!r || t->step < r->first || t->step > r->last) return;
    if (records()) check(task_log_to(NULL, 0) == r->ntasks);
    r->done = t->step;
    if (t->step == r->last) tasks_end(t);
}

void tasks_end(Train *t) {
    struct TaskRecord *r = t->tasks;
    if (!r || r->done < r->first) return;
    if (comm_rank() == 0)
        write_timeline(t);
    else if (records())
        send_times(r);
    t->tasks = NULL;
}
