/* train_points.c - the losses of validation in the run folder (RUN_VALIDATION). */
#include "frontend/config/commands.h"
#include "frontend/train/train.h"
#include "runtime/run/step_lines.h"
#include <math.h>

static const char *points_path(const Train *t, Arena *mem) {
    return path_join(mem, t->run_dir, RUN_VALIDATION);
}

typedef struct Points {
    Arena *mem;
    ValidPoint *point;
    int n, cap;
} Points;

static int64_t add_line(void *context, const Json *line) {
    Points *p = context;
    ValidPoint point = {.step = json_i64(json_need(line, "step"), 0, INT64_MAX),
                        .test = json_get(line, "test_loss") != NULL};
    const Json *loss = json_need(line, point.test ? "test_loss" : "valid_loss");
    point.loss = loss->kind == JSON_NULL ? NAN : json_f64(loss);
    PUSH(p->mem, p->point, p->n, p->cap, point);
    return point.step;
}

/* The points of the file, and its lines up to step `last`; none where it is not there. */
static StepLines read_lines(const Train *t, Arena *mem, int64_t last, Points *p) {
    const char *path = points_path(t, mem);
    *p = (Points){.mem = mem};
    return file_exists(path) ? step_lines_read(mem, path, last, add_line, p)
                             : (StepLines){0};
}

static Points read_points(const Train *t, Arena *mem) {
    Points p;
    StepLines l = read_lines(t, mem, -1, &p);
    step_lines_close(&l);
    return p;
}

/* JSON has no word for what is not finite. */
static const char *number(Arena *mem, double v) {
    return isfinite(v) ? arena_printf(mem, VALID_DIGITS, v) : "null";
}

static void add_point(const Train *t, Text *text, const ValidPoint *p) {
    const char *part = p->test ? "test" : "valid";
    text_add(text, "{\"step\": %lld, \"%s_loss\": %s", (long long)p->step, part,
             number(text->mem, p->loss));
    if (!t->job.ncolumns)
        text_add(text, ", \"%s_perplexity\": %s", part, number(text->mem, exp(p->loss)));
    text_add(text, "}\n");
}

int valid_points_cut(const Train *t, int64_t last_step, const char **damage) {
    Arena *mem = arena_new();
    Points p;
    StepLines l = read_lines(t, mem, last_step, &p);
    *damage = step_lines_keep_damaged(t->mem, &l);
    int error = l.path     ? step_lines_cut(&l)
                : t->valid ? file_write_atomic(points_path(t, mem), "", 0)
                           : 0;
    step_lines_close(&l);
    arena_free(mem);
    return error;
}

int valid_points_add(const Train *t, const ValidPoint *point) {
    Arena *mem = arena_new();
    Text text = text_new(mem);
    add_point(t, &text, point);
    int error = file_append(points_path(t, mem), text.s, text.n);
    arena_free(mem);
    return error;
}

int64_t valid_points_missing(const Train *t, int64_t every, int64_t *first) {
    Arena *mem = arena_new();
    Points p = read_points(t, mem);
    int64_t missing = 0, began = t->began_step;
    if (began < 0) began = p.n ? p.point[0].step : t->start_step;
    int at = 0;
    for (int64_t s = (began / every + 1) * every; s < t->start_step; s += every) {
        while (at < p.n && (p.point[at].step < s || p.point[at].test)) at++;
        if (at < p.n && p.point[at].step == s) continue;
        if (!missing++) *first = s;
    }
    arena_free(mem);
    return missing;
}

bool valid_point_at(const Train *t, int64_t step, bool test, double *loss) {
    Arena *mem = arena_new();
    Points p = read_points(t, mem);
    bool found = false;
    for (int i = 0; i < p.n; i++) {
        if (p.point[i].step != step || p.point[i].test != test) continue;
        found = true;
        *loss = p.point[i].loss;
    }
    arena_free(mem);
    return found;
}

int valid_points(const Train *t, Arena *mem, double **step, double **loss) {
    Points p = t->valid ? read_points(t, mem) : (Points){0};
    int n = 0;
    *step = NEW_ARRAY(mem, double, (size_t)p.n);
    *loss = NEW_ARRAY(mem, double, (size_t)p.n);
    for (int i = 0; i < p.n; i++) {
        if (p.point[i].test) continue;
        (*step)[n] = (double)p.point[i].step;
        (*loss)[n++] = p.point[i].loss;
    }
    return n;
}
