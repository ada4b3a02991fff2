/* schedule.h - in what order the stages of a pipeline work: for each stage a list of tasks,
 * one chunk of the model on one micro-batch each. Plain data, without the IR.
 *
 * As text, a row a stage and a cell a task: `0F3` is chunk 0 forward on micro-batch 3, B its
 * backward, I and W the two halves of that (gradients of inputs, of weights). So
 * torch.distributed.pipelining and zero-bubble schedules write them; empty cells are idle
 * time and mean nothing here. */
#ifndef STATOR_SCHEDULE_H
#define STATOR_SCHEDULE_H
#include "ir/ir.h"

enum {
    MAX_TASKS = 1 << 25, /* of a schedule, of all stages: 400 MB */
    TASKS_OF_CHUNK = 3   /* on a micro-batch, at most */
};

typedef struct Task {
    TaskKind kind;
    int chunk, micro;
} Task;

typedef struct TaskList {
    Task *task;
    int n;
} TaskList;

typedef struct PipeSchedule {
    int stages, chunks, micro;
    int *stage_of;   /* by chunk */
    TaskList *stage; /* what each does, in order */
    const char *name;
} PipeSchedule;

/* Chunk c is on stage c mod stages; stages have no room for tasks yet. */
PipeSchedule *schedule_new(Arena *mem, const char *name, int stages, int chunks,
                           int micro);
/* Behind the others of the stage, where there must be room. */
void schedule_add(PipeSchedule *s, int stage, TaskKind kind, int chunk, int micro);

/* Name of the k-th generator; NULL: there are not so many. */
const char *schedule_name_at(int k);
/* What a generator is, without making its tasks. */
typedef struct PipeScheduleKind {
    const char *name;
    int least, most;  /* chunks a stage */
    bool halves;      /* backward is I and W */
    bool folded;      /* the second chunks of stages run back: a V */
    bool all_forward; /* every forward of a stage comes before its first backward */
    /* with several chunks a stage micro-batches go in groups of as many as there are stages */
    bool groups;
} PipeScheduleKind;
/* Of the k-th generator; NULL: there are not so many. */
const PipeScheduleKind *schedule_kind_at(int k);
static inline int schedule_chunk_stage(const PipeScheduleKind *s, int stages, int chunk) {
    return s->folded && chunk >= stages ? 2 * stages - 1 - chunk : chunk % stages;
}
/* The nth chunk of a stage, from the model's start. */
static inline int schedule_stage_chunk(const PipeScheduleKind *s, int stages, int stage,
                                       int nth) {
    return s->folded && nth ? 2 * stages - 1 - stage : nth * stages + stage;
}
/* What schedule_in_flight says of its schedules; less, where backward is in halves. */
int schedule_kind_in_flight(const PipeScheduleKind *s, int stages, int each, int micro,
                            int stage);
/* What a stage has when its chunk number `nth`, in the order in which they go back, begins its first
 * backward: runs of chunks whose activations it keeps, and chunks that have still to go back, with this
 * one. Of schedules that fold what it has at most. */
typedef struct Alive {
    int forward, chunks;
} Alive;
Alive schedule_kind_alive(const PipeScheduleKind *s, int stages, int each, int micro,
                          int stage, int nth);
/* Where backward is in halves: micro-batches, or chunks of them, whose gradients of weights wait while
 * so many others have done forward alone. At least. */
typedef struct Waiting {
    int forward, weights;
} Waiting;
Waiting schedule_kind_waiting(const PipeScheduleKind *s, int stages, int micro,
                              int stage);
/* Does it go with so many stages, chunks on each and micro-batches? */
bool schedule_fits(const char *name, int stages, int each, int micro);
/* A schedule by its name: `chunks` is stages times the virtual stages of each, chunk c is on
 * stage c mod stages, but where the schedule says otherwise. Fails with EXIT_CONFIG when the
 * numbers do not go together, or make more than MAX_TASKS. */
PipeSchedule *schedule_make(Arena *mem, const char *name, int stages, int chunks,
                            int64_t micro);
/* That of the options; NULL: there is one stage. */
struct PassOptions;
const PipeSchedule *schedule_of_options(Arena *mem, const struct PassOptions *o);
/* As evenly as it goes: the first chunks have one layer more. */
const int64_t *schedule_even_layers(Arena *mem, int64_t layers, int chunks);
/* One micro-batch forward through the chunks of such a schedule, as validation does. */
PipeSchedule *schedule_forward(Arena *mem, const PipeSchedule *like);
/* From its text, which is `micro` micro-batches; `file` is for messages. Fails at the cell
 * that is wrong with EXIT_CONFIG: unknown, twice, missing, a chunk on two stages, backward
 * before forward. */
PipeSchedule *schedule_parse(Arena *mem, const char *file, const char *text, int micro);
void schedule_print(const PipeSchedule *s, Text *out);
/* Are gradients of weights tasks of their own? Are there gradients at all? */
bool schedule_has_halves(const PipeSchedule *s);
bool schedule_has_backward(const PipeSchedule *s);
/* "3F7" */
const char *task_text(Arena *mem, Task t);
/* Micro-batches whose activations a stage has at most at a time: forward done, backward (or
 * its last half) not. With several chunks on the stage, of all of them together. */
int schedule_in_flight(const PipeSchedule *s, int stage);

/* Unit times of each kind of task, and how long the whole takes: every task begins when its
 * stage is free and what it needs is there. Returns the seconds from the first to the last;
 * begin[stage][i] (or NULL) when each began. 0: it never ends. */
typedef struct TaskSeconds {
    double kind[TASK_KINDS];
    const double (
        *chunk)[TASK_KINDS]; /* by chunk, in place of them; NULL: all are alike */
    double message;          /* from one stage to another, while both work on */
    double take;             /* the same, while the one that takes it does nothing else */
    const double
        *hop; /* by stage, in place of take: between it and the next, behind the last the
                          first; NULL: all are alike */
} TaskSeconds;
double task_seconds(const TaskSeconds *t, Task task);
/* Of taking the message that the task waits for, which comes from another stage. */
double task_take_seconds(const PipeSchedule *s, const TaskSeconds *t, Task task);
double schedule_seconds(Arena *mem, const PipeSchedule *s, const TaskSeconds *t,
                        double **begin);
/* When the tasks of a schedule were done, while it is gone through; none at first. */
typedef struct TasksDone {
    const PipeSchedule *s;
    double *forward, *backward; /* by chunk and micro-batch; -1: not yet */
} TasksDone;
TasksDone tasks_done_new(Arena *mem, const PipeSchedule *s);
void tasks_done_note(TasksDone *d, Task t, double at);
/* When its stage has what the task needs, with so many seconds from stage to stage; -1: that is
 * not known yet. Sets whether it comes from another stage. */
double task_ready(const TasksDone *d, Task t, double message, bool *sent);
/* Share of the time that stages are idle, with these times. */
double schedule_bubble(const PipeSchedule *s, const TaskSeconds *t);
#endif
