/* op_tasks.c - see op_tasks.h. */
#include "passes/pipe/op_tasks.h"

bool op_is_task(const Op *op) {
    const Func *callee = op_callee(op);
    return callee && callee->task;
}

Task *op_tasks(Arena *mem, const Func *f) {
    Arena *scratch = arena_new();
    int *runs = NEW_ARRAY(scratch, int, (size_t)MAX_CHUNKS *TASK_KINDS);
    Task *of = NEW_ARRAY(mem, Task, (size_t)f->nops + 1);
    for (const Op *op = f->first; op; op = op->next) {
        const Func *callee = op_callee(op);
        if (!op_is_task(op)) continue;
        check(callee->chunk < MAX_CHUNKS);
        int *n = &runs[callee->chunk * TASK_KINDS + (int)callee->task];
        int micro = (int)op_int(op, "micro", *n);
        of[op->id] = (Task){callee->task, callee->chunk, micro};
        ++*n;
    }
    for (const Op *op = f->last; op; op = op->prev)
        if (!of[op->id].kind && op->next) of[op->id] = of[op->next->id];
    arena_free(scratch);
    return of;
}

Task *op_called_tasks(Arena *mem, const Func *f, int *n) {
    const Task *of = op_tasks(mem, f);
    Task *called = NEW_ARRAY(mem, Task, (size_t)f->nops + 1);
    *n = 0;
    for (const Op *op = f->first; op; op = op->next)
        if (op_is_task(op)) called[(*n)++] = of[op->id];
    return called;
}

Task op_message_task(const Task *tasks, const Op *op) {
    const Op *maker = op->nin ? op->in[op->nin - 1]->def : NULL;
    return tasks[maker && op_is_task(maker) ? maker->id : op->id];
}

const char *op_task_text(Arena *mem, Task t) {
    return t.kind ? task_text(mem, t) : "the end of the step";
}
