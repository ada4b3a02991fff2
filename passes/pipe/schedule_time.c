/* schedule_time.c - when the tasks of a schedule run; see schedule.h. */
#include "passes/pipe/schedule.h"

typedef struct Clock {
    TasksDone done;
    double message; /* seconds between stages */
    int *next;      /* by stage: the task it is at */
    double *free;   /* by stage: when it can begin that */
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

/* When the stage of chunk `to` has what chunk `from` made; -1: not yet. */
static double arrival(const TasksDone *d, double *of, int from, int to, int micro,
                      double message) {
    double done = *done_at(d, of, from, micro);
    bool sent = d->s->stage_of[from] != d->s->stage_of[to];
    return done < 0 ? -1 : done + (sent ? message : 0);
}

double task_ready(const TasksDone *d, Task t, double message) {
    bool first = t.chunk == 0, last = t.chunk == d->s->chunks - 1;
    if (t.kind == TASK_FORWARD)
        return first ? 0 : arrival(d, d->forward, t.chunk - 1, t.chunk, t.micro, message);
    if (t.kind == TASK_WEIGHTS) return *done_at(d, d->backward, t.chunk, t.micro);
    return last ? *done_at(d, d->forward, t.chunk, t.micro)
                : arrival(d, d->backward, t.chunk + 1, t.chunk, t.micro, message);
}

double task_seconds(const TaskSeconds *t, Task task) {
    return t->chunk ? t->chunk[task.chunk][task.kind] : t->kind[task.kind];
}

static bool advance(Clock *c, int stage, const TaskSeconds *seconds, double **begin) {
    const TaskList *l = &c->done.s->stage[stage];
    bool moved = false;
    for (; c->next[stage] < l->n; c->next[stage]++) {
        Task t = l->task[c->next[stage]];
        double at = task_ready(&c->done, t, c->message);
        if (at < 0) break;
        at = MAX(at, c->free[stage]);
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
               .message = t->message,
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
