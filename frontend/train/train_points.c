/* train_points.c - the losses of validation in the run folder (RUN_VALIDATION). */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/train/train.h"
#include <errno.h>
#include <math.h>

static const char *points_path(const Train *t, Arena *mem) {
    return path_join(mem, t->run_dir, RUN_VALIDATION);
}

static int read_points(const Train *t, Arena *mem, ValidPoint **out) {
    const char *path = points_path(t, mem);
    int n = 0, cap = 0;
    ValidPoint *p = NULL;
    if (file_exists(path)) {
        size_t size;
        char *text = file_read(mem, path, 64 << 20, &size, EXIT_DATA);
        for (char *line = text, *end; *line; line = end) {
            end = line + strcspn(line, "\n");
            ValidPoint point;
            long long step;
            if (sscanf(line, "{\"step\": %lld, \"valid_loss\": %lf", &step,
                       &point.loss) == 2) {
                point.step = step;
                PUSH(mem, p, n, cap, point);
            }
            end += *end == '\n';
        }
    }
    *out = p;
    return n;
}

static void add_point(const Train *t, Text *text, const ValidPoint *p) {
    text_add(text, "{\"step\": %lld, \"valid_loss\": %.10g", (long long)p->step, p->loss);
    if (!t->job.ncolumns)
        text_add(text, ", \"valid_perplexity\": %.10g", exp(MIN(20, p->loss)));
    text_add(text, "}\n");
}

int valid_points_write(const Train *t, int64_t last_step, const ValidPoint *more) {
    Arena *mem = arena_new();
    ValidPoint *p;
    int n = read_points(t, mem, &p);
    Text text = text_new(mem);
    for (int i = 0; i < n && p[i].step <= last_step; i++) add_point(t, &text, &p[i]);
    if (more) add_point(t, &text, more);
    int error = file_write_atomic(points_path(t, mem), text.s, text.n);
    arena_free(mem);
    return error;
}

int valid_points(const Train *t, Arena *mem, double **step, double **loss) {
    ValidPoint *p;
    int n = t->valid ? read_points(t, mem, &p) : 0;
    *step = NEW_ARRAY(mem, double, (size_t)n);
    *loss = NEW_ARRAY(mem, double, (size_t)n);
    for (int i = 0; i < n; i++) {
        (*step)[i] = (double)p[i].step;
        (*loss)[i] = p[i].loss;
    }
    return n;
}
