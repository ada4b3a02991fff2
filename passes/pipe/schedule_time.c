/* schedule_time.c - when the tasks of a schedule run; see schedule.h. */
#include "passes/pipe/schedule.h"

typedef struct Clock {
    TasksDone done;
    int *next;    /* by stage: the task it is at */
    double *free; /* by stage: when it can begin that */
} Clock;

TasksDone tasks_done_new(Arena *mem, const PipeSchedule *s) {
    size_t n = (size_t)s->chunks * (size_t)s->micro;
    TasksDone d = {.s = s,
                   .forward = NEW_ARRAY(mem, double, n),
                   .backward = NEW_ARRAY(mem, double, n)};
    for (size_t i = 0; i < n; i++) d.forward[i] = d.backward[i] = -1;
    return d;
}

static double *done_at(const TasksDone *d, double *of, int chunk, int micro) {
    return &of[(size_t)chunk * (size_t)d->s->micro + (size_t)micro];
}

void tasks_done_note(TasksDone *d, Task t, double at) {
    if (t.kind == TASK_WEIGHTS) return;
    *done_at(d, t.kind == TASK_FORWARD ? d->forward : d->backward, t.chunk, t.micro) = at;
}

double task_ready(const TasksDone *d, Task t, double message, bool *sent) {
    bool forward = t.kind == TASK_FORWARD;
    bool end = t.chunk == (forward ? 0 : d->s->chunks - 1); /* of the pipe */
    int from = t.chunk + (forward ? -1 : 1);
    *sent = false;
    if (t.kind == TASK_WEIGHTS) return *done_at(d, d->backward, t.chunk, t.micro);
    if (end) return forward ? 0 : *done_at(d, d->forward, t.chunk, t.micro);
    double done = *done_at(d, forward ? d->forward : d->backward, from, t.micro);
    *sent = d->s->stage_of[from] != d->s->stage_of[t.chunk];
    return done < 0 ? -1 : done + (*sent ? message : 0);
}

double task_seconds(const TaskSeconds *t, Task task) {
    return t->chunk ? t->chunk[task.chunk][task.kind] : t->kind[task.kind];
}

double task_take_seconds(const PipeSchedule *s, const TaskSeconds *t, Task task) {
    int from = s->stage_of[task.chunk + (task.kind == TASK_FORWARD ? -1 : 1)];
    int to = s->stage_of[task.chunk];
    if (!t->hop) return t->take;
    return t->hop[(from + 1) % s->stages == to ? from : to];
}

static bool advance(Clock *c, int stage, const TaskSeconds *seconds, double **begin) {
    const TaskList *l = &c->done.s->stage[stage];
    bool moved = false;
    for (; c->next[stage] < l->n; c->next[stage]++) {
        Task t = l->task[c->next[stage]];
        bool sent;
        double at = task_ready(&c->done, t, seconds->message, &sent);
        if (at < 0) break;
        at = MAX(at, c->free[stage]);
        if (sent) at += task_take_seconds(c->done.s, seconds, t);
        if (begin) begin[stage][c->next[stage]] = at;
        c->free[stage] = at + task_seconds(seconds, t);
        tasks_done_note(&c->done, t, c->free[stage]);
        moved = true;
    }
    return moved;
}

double schedule_seconds(Arena *mem, const PipeSchedule *s, const TaskSeconds *t,
                        double **begin) {
    Clock c = {.done = tasks_done_new(mem, s),
               .next = NEW_ARRAY(mem, int, (size_t)s->stages),
               .free = NEW_ARRAY(mem, double, (size_t)s->stages)};
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < s->stages; k++) moved |= advance(&c, k, t, begin);
    }
    double end = 0;
    for (int k = 0; k < s->stages; k++) {
        if (c.next[k] < s->stage[k].n) return 0;
        end = MAX(end, c.free[k]);
    }
    return end;
}

double schedule_bubble(const PipeSchedule *s, const TaskSeconds *t) {
    Arena *mem = arena_new();
    double all = schedule_seconds(mem, s, t, NULL), busy = 0;
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++)
            busy += task_seconds(t, s->stage[k].task[i]);
    arena_free(mem);
    return all > 0 ? 1 - busy / (all * s->stages) : 0;
}
