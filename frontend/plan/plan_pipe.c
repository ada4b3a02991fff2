/* plan_pipe.c - what the stages of a pipeline are to each other: flops of tasks, the time
 * that stages wait, and a picture. */
#include "frontend/plan/plan.h"

void plan_join_hashes(const char *hash, int n, char all[33]) {
    hash_hex(hash, (size_t)n * 33, all);
}

double plan_bubble(const PlanPipe *p) {
    TaskSeconds t = {.chunk = (const double(*)[TASK_KINDS])p->flops};
    return schedule_bubble(p->schedule, &t);
}

/* ---- the picture ---- */

typedef struct Picture {
    const PipeSchedule *s;
    TaskSeconds seconds;
    double **begin, all;
    int columns;
} Picture;

/* Forward as a digit, backward as a letter: the micro-batch, mod 10. */
static char mark(Task t) {
    static const char digits[] = "0123456789", letters[] = "abcdefghij";
    return t.kind == TASK_FORWARD ? digits[t.micro % 10] : letters[t.micro % 10];
}

static void draw_stage(const Picture *p, int k, Text *out) {
    const TaskList *l = &p->s->stage[k];
    char *row = arena_alloc(out->mem, (size_t)p->columns + 1);
    memset(row, '.', (size_t)p->columns);
    row[p->columns] = 0;
    for (int i = 0; i < l->n; i++) {
        double begin = p->begin[k][i];
        double end = begin + task_seconds(&p->seconds, l->task[i]);
        int from = (int)(begin / p->all * p->columns + 0.5);
        int to = MIN((int)(end / p->all * p->columns + 0.5), p->columns);
        for (int c = from; c < to; c++) row[c] = mark(l->task[i]);
    }
    text_add(out, "  stage %-4d %s\n", k, row);
}

void plan_draw(const PlanPipe *p, int columns, Text *out) {
    Arena *mem = arena_new();
    Picture pic = {.s = p->schedule,
                   .seconds = {.chunk = (const double(*)[TASK_KINDS])p->flops},
                   .columns = columns};
    pic.begin = NEW_ARRAY(mem, double *, (size_t)pic.s->stages);
    for (int k = 0; k < pic.s->stages; k++)
        pic.begin[k] = NEW_ARRAY(mem, double, (size_t)pic.s->stage[k].n + 1);
    pic.all = schedule_seconds(mem, pic.s, &pic.seconds, pic.begin);
    for (int k = 0; k < pic.s->stages && pic.all > 0; k++) draw_stage(&pic, k, out);
    text_add(out, "  time goes to the right; 0 to 9: forward, a to j: backward of "
                  "micro-batch 0 to 9, then again from 0; dots: waiting\n");
    arena_free(mem);
}
