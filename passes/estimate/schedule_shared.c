/* schedule_shared.c - see schedule_shared.h. */
#include "passes/estimate/schedule_shared.h"
#include <math.h>

typedef struct Turns {
    const PipeSchedule *s;
    const TaskSeconds *seconds;
    const Sharing *h;
    double notice, now;
    TasksDone done;
    int *next;     /* by stage: the task that it is at or waits for */
    bool *works;   /* by stage */
    double *left;  /* by stage that works: alone */
    double *since; /* by stage that waits: from when on */
} Turns;

static bool has_task(const Turns *t, int stage) {
    return t->next[stage] < t->s->stage[stage].n;
}

static Task task_of(const Turns *t, int stage) {
    return t->s->stage[stage].task[t->next[stage]];
}

/* When a stage that waits can begin; INFINITY: others have to go on first. */
static double begins(const Turns *t, int stage) {
    if (!has_task(t, stage)) return INFINITY;
    Task task = task_of(t, stage);
    bool sent;
    double at = task_ready(&t->done, task, t->seconds->message, &sent);
    if (at < 0) return INFINITY;
    bool waits = sent && at > t->since[stage];
    at = fmax(at, t->since[stage]);
    if (sent) at += task_take_seconds(t->s, t->seconds, task);
    if (waits && t->notice > 0 && sharing_is_crowded(t->h, stage, t->works))
        at += t->notice;
    return fmax(at, t->now);
}

/* The first that begins or ends a piece of work; -1: none does. Sets when. */
static int next_event(const Turns *t, double *speed, double *when) {
    int first = -1;
    *when = INFINITY;
    for (int k = 0; k < t->s->stages; k++) {
        speed[k] = t->works[k] ? sharing_speed(t->h, k, t->works) : 0;
        double at = t->works[k] ? t->now + t->left[k] / speed[k] : begins(t, k);
        if (at < *when) *when = at, first = k;
    }
    return first;
}

static void end_work(Turns *t, int stage) {
    t->works[stage] = false;
    t->since[stage] = t->now;
    if (has_task(t, stage)) tasks_done_note(&t->done, task_of(t, stage), t->now);
    t->next[stage]++;
}

static void take_turns(Turns *t, double *speed) {
    double when;
    for (int first; (first = next_event(t, speed, &when)) >= 0;) {
        for (int k = 0; k < t->s->stages; k++)
            if (t->works[k]) t->left[k] -= (when - t->now) * speed[k];
        t->now = when;
        if (t->works[first]) {
            end_work(t, first);
        } else {
            t->works[first] = true;
            t->left[first] = task_seconds(t->seconds, task_of(t, first));
        }
    }
}

double schedule_seconds_shared(Arena *mem, const PipeSchedule *s,
                               const TaskSeconds *seconds, const Sharing *h,
                               double notice, const double *step) {
    size_t n = (size_t)s->stages;
    double *speed = NEW_ARRAY(mem, double, n);
    Turns t = {.s = s,
               .seconds = seconds,
               .h = h,
               .notice = notice,
               .done = tasks_done_new(mem, s),
               .next = NEW_ARRAY(mem, int, n),
               .works = NEW_ARRAY(mem, bool, n),
               .left = NEW_ARRAY(mem, double, n),
               .since = NEW_ARRAY(mem, double, n)};
    take_turns(&t, speed);
    for (size_t k = 0; k < n; k++) t.works[k] = true, t.left[k] = step[k];
    take_turns(&t, speed);
    return t.now;
}

double shared_seconds_least(const Sharing *h, const double *busy) {
    double most = 0;
    for (int p = 0; p < h->places; p++) {
        double here = 0;
        for (int s = 0; s < h->stages; s++)
            here += h->load[s * h->places + p] / sharing_stage_stretch(h, s) * busy[s];
        most = fmax(most, here / h->room);
    }
    return most;
}
