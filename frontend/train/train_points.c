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
    out->test = json_get(v, "test_loss") != NULL;
    const Json *loss = json_need(v, out->test ? "test_loss" : "valid_loss");
    out->loss = loss->kind == JSON_NULL ? NAN : json_f64(loss);
    catch_end(&c);
    return true;
}

/* The file as it is, and its points. A last line without its end is no damage. */
typedef struct Points {
    ValidPoint *point;
    int n;
    char *text; /* NULL: there is no file */
    size_t size;
    int damaged, first_damaged; /* lines */
} Points;

static Points read_points(const Train *t, Arena *mem) {
    const char *path = points_path(t, mem);
    Points p = {0};
    int cap = 0, number = 1;
    if (!file_exists(path)) return p;
    p.text = file_read(mem, path, LINES_FILE_MAX_BYTES, &p.size, EXIT_DATA);
    const char *stop = p.text + p.size;
    for (const char *line = p.text, *end; line < stop; line = end + 1, number++) {
        ValidPoint point;
        end = memchr(line, '\n', (size_t)(stop - line));
        if (!end) end = stop;
        if (read_point(mem, path, line, (size_t)(end - line), &point))
            PUSH(mem, p.point, p.n, cap, point);
        else if (end < stop && !p.damaged++)
            p.first_damaged = number;
    }
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
    Points p = read_points(t, mem);
    Text text = text_new(mem);
    int error = 0;
    *damage = !p.damaged ? NULL
                         : metrics_keep_damaged(t->mem, points_path(t, mem), p.text,
                                                p.size, p.damaged, p.first_damaged);
    for (int i = 0; i < p.n && p.point[i].step <= last_step; i++)
        add_point(t, &text, &p.point[i]);
    if (p.text || t->valid)
        error = file_write_atomic(points_path(t, mem), text.s, text.n);
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
