/* op_tasks.h - which task of a pipeline an op of a stage's step belongs to, read from the
 * step alone: the n-th call of a function with task(3F) is 3F of micro-batch n, or of the one
 * that the call's attribute `micro` names. */
#ifndef STATOR_OP_TASKS_H
#define STATOR_OP_TASKS_H
#include "passes/pipe/schedule.h"

/* By op id, of a numbered function: the task that the op is, else the next one behind it;
 * TASK_NONE: there is none behind it. */
Task *op_tasks(Arena *mem, const Func *f);
/* Is the op a call that is a task? */
bool op_is_task(const Op *op);
/* The tasks that a numbered function calls, in its order; *n of them. */
Task *op_called_tasks(Arena *mem, const Func *f, int *n);
/* Whose message an op is about: a task that made what is sent, else as above. */
Task op_message_task(const Task *tasks, const Op *op);
/* "3F7"; of TASK_NONE "the end of the step" */
const char *op_task_text(Arena *mem, Task t);
#endif
