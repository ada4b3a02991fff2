/* op_log.c - see op_log.h. An op's place is taken when it begins, so that what runs inside it
 * comes behind it; its end is filled in later. */
#include "runtime/core/op_log.h"
#include "base/base.h"
#include "runtime/core/rt.h"

enum { OPEN_MOST = 128 }; /* calls in calls: MAX_CALL_DEPTH, and the marks around them */

typedef struct OpLog {
    OpTime *op; /* NULL: nothing is logged */
    int64_t n, size;
    int64_t open[OPEN_MOST]; /* places of those that have begun; some beyond size */
    int64_t number[OPEN_MOST];
    int depth;
} OpLog;

static OpLog logs[LOG_THREADS];
static _Thread_local OpLog *mine = &logs[LOG_COMPUTE];

int64_t op_log_to(OpLogThread thread, OpTime *room, int64_t size) {
    OpLog *l = &logs[thread];
    int64_t n = l->n;
    check(l->depth == 0);
    l->op = room;
    l->n = 0;
    l->size = room ? size : 0;
    return n;
}

void op_log_thread(OpLogThread thread) {
    mine = &logs[thread];
}

int64_t op_log_open(void) {
    return mine->depth ? mine->number[mine->depth - 1] : 0;
}

void rt_op_begin(int64_t number) {
    OpLog *l = mine;
    if (!l->op) return;
    check(l->depth < OPEN_MOST);
    int64_t at = l->n++;
    l->open[l->depth] = at;
    l->number[l->depth++] = number;
    if (at < l->size) l->op[at] = (OpTime){number, clock_seconds(), 0};
}

void rt_op_end(int64_t number) {
    OpLog *l = mine;
    if (!l->op) return;
    check(l->depth > 0 && l->number[l->depth - 1] == number);
    int64_t at = l->open[--l->depth];
    if (at < l->size) l->op[at].end = clock_seconds();
}
