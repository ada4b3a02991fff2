/* task_log.h - when the tasks of a step began and ended, as generated code tells it by
 * rt_task_begin and rt_task_end (CompileOptions.log_tasks). */
#ifndef STATOR_TASK_LOG_H
#define STATOR_TASK_LOG_H
#include <stdint.h>

typedef struct TaskTime {
    int64_t number;    /* of the task in the program: program_tasks */
    double begin, end; /* clock_seconds */
} TaskTime;

/* From here on tasks are written to `room`, in the order in which they happen, as long as
 * there is room for another one; NULL: none are. Returns how many were since the last call.
 */
int64_t task_log_to(TaskTime *room, int64_t size);

#endif
