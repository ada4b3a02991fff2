/* task_log.c - see task_log.h. Tasks are begun and ended by the thread that runs the step. */
#include "runtime/core/task_log.h"
#include "base/base.h"
#include "runtime/core/rt.h"

static struct TaskLog {
    TaskTime *task;
    int64_t n, size;
} log_of_tasks;

int64_t task_log_to(TaskTime *room, int64_t size) {
    int64_t n = log_of_tasks.n;
    log_of_tasks = (struct TaskLog){room, 0, room ? size : 0};
    return n;
}

void rt_task_begin(int64_t number) {
    struct TaskLog *l = &log_of_tasks;
    if (l->n == l->size) return;
    l->task[l->n].number = number;
    l->task[l->n].begin = clock_seconds();
}

void rt_task_end(int64_t number) {
    struct TaskLog *l = &log_of_tasks;
    if (l->n == l->size) return;
    check(l->task[l->n].number == number);
    l->task[l->n++].end = clock_seconds();
}
