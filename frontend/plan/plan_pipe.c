/* plan_pipe.c - what the stages of a pipeline are to each other: flops of tasks, the time
 * that stages wait, and pictures. */
#include "frontend/plan/plan.h"

/* ---- flops of tasks ---- */

void plan_read_task_flops(Arena *mem, const Module *m, double (*flops)[TASK_KINDS]) {
    Func **order = module_order(mem, m);
    int n = order_length(order);
    double *by_nth = NEW_ARRAY(mem, double, (size_t)n + 1);
    for (int i = 0; i < n; i++) {
        const Func *f = order[i];
        by_nth[i] = func_flops(f, by_nth);
        if (f->task) flops[f->chunk][f->task] = by_nth[i];
    }
}

/* In another form: see flat_task_ops of passes/pipe/flat.c. */
void plan_fill_task_flops(const PipeSchedule *s, double (*flops)[TASK_KINDS]) {
    for (int c = 0; c < s->chunks; c++) {
        double *f = flops[c];
        if (f[TASK_BACKWARD] > 0)
            f[TASK_WEIGHTS] = f[TASK_BACKWARD];
        else
            f[TASK_BACKWARD] = f[TASK_INPUTS] + f[TASK_WEIGHTS];
    }
}

/* ---- time ---- */

void plan_join_hashes(const char *hash, int n, char all[HASH_HEX_BYTES]) {
    hash_hex(hash, (size_t)n * HASH_HEX_BYTES, all);
}

double plan_bubble(const PlanPipe *p) {
    TaskSeconds t = {.chunk = (const double(*)[TASK_KINDS])p->flops};
    return schedule_bubble(p->schedule, &t);
}

/* When each task begins, in the order of its stage, and how long all takes. */
static double **begins(Arena *mem, const PipeSchedule *s, const TaskSeconds *seconds,
                       double *all) {
    double **begin = NEW_ARRAY(mem, double *, (size_t)s->stages);
    for (int k = 0; k < s->stages; k++)
        begin[k] = NEW_ARRAY(mem, double, (size_t)s->stage[k].n + 1);
    *all = schedule_seconds(mem, s, seconds, begin);
    return begin;
}

/* ---- as text ---- */

typedef struct Picture {
    const PipeSchedule *s;
    TaskSeconds seconds;
    double **begin, all;
} Picture;

enum { COLUMNS = 64 };

/* Forward as a digit, backward as a letter: the micro-batch, mod 10. */
static char mark(Task t) {
    static const char digits[] = "0123456789", letters[] = "abcdefghij";
    return t.kind == TASK_FORWARD ? digits[t.micro % 10] : letters[t.micro % 10];
}

static void draw_stage(const Picture *p, int k, Text *out) {
    const TaskList *l = &p->s->stage[k];
    char row[COLUMNS + 1] = {0};
    memset(row, '.', COLUMNS);
    for (int i = 0; i < l->n; i++) {
        double begin = p->begin[k][i];
        double end = begin + task_seconds(&p->seconds, l->task[i]);
        int from = (int)(begin / p->all * COLUMNS + 0.5);
        int to = MIN((int)(end / p->all * COLUMNS + 0.5), COLUMNS);
        for (int c = from; c < to; c++) row[c] = mark(l->task[i]);
    }
    text_add(out, "  stage %-4d %s\n", k, row);
}

void plan_draw(const PlanPipe *p, Text *out) {
    Arena *mem = arena_new();
    Picture pic = {.s = p->schedule,
                   .seconds = {.chunk = (const double(*)[TASK_KINDS])p->flops}};
    pic.begin = begins(mem, pic.s, &pic.seconds, &pic.all);
    for (int k = 0; k < pic.s->stages && pic.all > 0; k++) draw_stage(&pic, k, out);
    text_add(out, "  time goes to the right; 0 to 9: forward, a to j: backward of "
                  "micro-batch 0 to 9, then again from 0; dots: waiting\n");
    arena_free(mem);
}

/* ---- as SVG ---- */

Timeline plan_timeline(Arena *mem, const PipeSchedule *s) {
    Timeline l = {.row = NEW_ARRAY(mem, TimelineRow, (size_t)s->stages),
                  .nrows = s->stages};
    for (int k = 0; k < s->stages; k++)
        l.row[k] = (TimelineRow){
            .name = arena_printf(mem, "stage %d", k),
            .box = NEW_ARRAY(mem, TimelineBox, 2 * (size_t)s->stage[k].n + 1)};
    return l;
}

void plan_timeline_add(Timeline *l, const PipeSchedule *s, int stage, Task task,
                       double begin, double end) {
    TimelineRow *row = &l->row[stage];
    TimelineBox box = {begin, end, task.kind, 0, task.micro};
    for (int c = 0; c < task.chunk; c++) box.shade += s->stage_of[c] == stage;
    row->box[row->n++] = box;
}

const char *plan_schedule_title(Arena *mem, const PipeSchedule *s) {
    return arena_printf(mem, "%.40s, %d stages, %d micro-batches", path_name(s->name),
                        s->stages, s->micro);
}

Timeline plan_schedule_timeline(Arena *mem, const PipeSchedule *s,
                                const double (*flops)[TASK_KINDS]) {
    TaskSeconds seconds = {.chunk = flops};
    double all, **begin = begins(mem, s, &seconds, &all);
    Timeline l = plan_timeline(mem, s);
    l.end = all > 0 ? all : 1;
    l.axis = "share of the step, %";
    l.axis_end = 100;
    for (int k = 0; k < s->stages; k++)
        for (int i = 0; i < s->stage[k].n; i++) {
            Task t = s->stage[k].task[i];
            plan_timeline_add(&l, s, k, t, begin[k][i],
                              begin[k][i] + task_seconds(&seconds, t));
        }
    l.title = arena_printf(mem, "%s: stages wait %.1f %% of the time",
                           plan_schedule_title(mem, s), 100 * timeline_idle(&l));
    return l;
}
