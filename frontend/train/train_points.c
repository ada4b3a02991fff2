/* train_points.c - the losses of validation in the run folder (RUN_VALIDATION). */
#include "base/json.h"
#include "frontend/config/commands.h"
#include "frontend/train/train.h"
#include <errno.h>
#include <math.h>

enum { MAX_LINE_BYTES = 1 << 10 };

static const char *points_path(const Train *t, Arena *mem) {
    return path_join(mem, t->run_dir, RUN_VALIDATION);
}

/* False: no point, such as half a line of a run that was killed. */
static bool read_point(Arena *mem, const char *path, const char *line, size_t n,
                       ValidPoint *out) {
    Catch c;
    if (!CATCH(c)) return false;
    const Json *v = json_parse(mem, path, line, n, MAX_LINE_BYTES, EXIT_DATA);
    out->step = json_i64(json_need(v, "step"), 0, INT64_MAX);
    const Json *loss = json_need(v, "valid_loss");
    out->loss = loss->kind == JSON_NULL ? NAN : json_f64(loss);
    catch_end(&c);
    return true;
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
            if (read_point(mem, path, line, (size_t)(end - line), &point))
                PUSH(mem, p, n, cap, point);
            end += *end == '\n';
        }
    }
    *out = p;
    return n;
}

/* JSON has no word for what is not finite. */
static const char *number(Arena *mem, double v) {
    return isfinite(v) ? arena_printf(mem, "%.10g", v) : "null";
}

static void add_point(const Train *t, Text *text, const ValidPoint *p) {
    text_add(text, "{\"step\": %lld, \"valid_loss\": %s", (long long)p->step,
             number(text->mem, p->loss));
    if (!t->job.ncolumns)
        text_add(text, ", \"valid_perplexity\": %s",
                 number(text->mem, exp(p->loss > 20 ? 20 : p->loss)));
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
