/* train_valid.c - validation: a program without dropout and without backward, which
 * shares the weights of the training program and works in its memory, over the first
 * batches of other data; every time the same ones. Points go to valid.jsonl in the run
 * folder, one JSON object a line. */
#include "../runtime/comm.h"
#include "commands.h"
#include "train.h"
#include <math.h>

typedef struct Validation {
    Data *data;
    Program *program;
    int64_t every, batches;
    DataBatch batch; /* room for one batch */
    Feed *feed;
    float *counted; /* of program, see model.h; or NULL */
} Validation;

static const char *points_path(const Train *t, Arena *mem) {
    return path_join(mem, t->run_dir, RUN_VALIDATION);
}

void valid_plan(Train *t, Data *data, int64_t every, int64_t batches) {
    Validation *v = t->valid = NEW(t->mem, Validation);
    *v = (Validation){.data = data, .every = every, .batches = batches};
    Module *m = job_build(&t->job, MODEL_TRAIN, t->job.batch);
    PassOptions o = pass_options_default();
    ranks_apply(t, m, &o);
    if (zero_gathers_ahead(&o)) o.zero_level = 3; /* as training leaves the parameters */
    CompileOptions co = {.cpu = t->job.cfg->context_cpu,
                         .threads = (int)t->job.cfg->context_threads};
    const char *passes = arena_printf(t->mem, "evaluate,%s", forward_passes);
    v->program = program_make(t->mem, m, passes, &o, &co);
    v->batch = data_batch_new(t->mem, data);
}

/* Labels of the run from row `row` on that count, which its loss is the mean of; 1 of a
 * loss that does not ask for them. */
static double run_weight(const Train *t, const Validation *v, int64_t row) {
    if (!v->counted) return 1;
    int64_t n = counted_labels(t, &v->batch, row, t->job.batch);
    *v->counted = (float)MAX(n, 1);
    return (double)n;
}

/* Mean over the counted labels of the first batches, as training counts its loss; 0 when
 * there are none. */
static double mean_loss(const Train *t, const Validation *v) {
    double sum = 0, weights = 0;
    for (int64_t k = 0; k < v->batches; k++) {
        data_batch_full(v->data, k, &v->batch);
        for (int64_t row = 0; row < v->data->batch; row += t->job.batch) {
            double weight = run_weight(t, v, row);
            feed_batch(v->feed, &v->batch, row);
            program_run(v->program);
            sum += weight * (double)*(const float *)v->program->ret[0];
            weights += weight;
        }
    }
    return sum / MAX(weights, 1);
}

typedef struct Point {
    int64_t step;
    double loss;
} Point;

static int read_points(const Train *t, Arena *mem, Point **out) {
    const char *path = points_path(t, mem);
    int n = 0, cap = 0;
    Point *p = NULL;
    if (file_exists(path)) {
        size_t size;
        char *text = file_read(mem, path, 64 << 20, &size, EXIT_DATA);
        for (char *line = text, *end; *line; line = end) {
            end = line + strcspn(line, "\n");
            Point point;
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

static void add_point(const Train *t, Text *text, const Point *p) {
    text_add(text, "{\"step\": %lld, \"valid_loss\": %.10g", (long long)p->step, p->loss);
    if (!t->job.ncolumns)
        text_add(text, ", \"valid_perplexity\": %.10g", exp(MIN(20, p->loss)));
    text_add(text, "}\n");
}

/* Writes the points up to `last_step` and then `more` (or NULL) anew. */
static void write_points(const Train *t, int64_t last_step, const Point *more) {
    if (comm_rank() != 0) return;
    Arena *mem = arena_new();
    Point *p;
    int n = read_points(t, mem, &p);
    Text text = text_new(mem);
    for (int i = 0; i < n && p[i].step <= last_step; i++) add_point(t, &text, &p[i]);
    if (more) add_point(t, &text, more);
    int error = file_write_atomic(points_path(t, mem), text.s, text.n);
    if (error)
        report_say(t, "WARNING: cannot write %s: %s", RUN_VALIDATION, strerror(error));
    arena_free(mem);
}

void valid_start(Train *t) {
    if (!t->valid) return;
    program_borrow(t->valid->program, t->program);
    t->valid->feed = feed_make(t, t->valid->program);
    int counted = program_arg_role(t->valid->program, "counted");
    if (counted >= 0) t->valid->counted = t->valid->program->arg[counted];
    write_points(t, t->start_step, NULL);
}

void valid_step(Train *t) {
    Validation *v = t->valid;
    if (!v) return;
    bool due = v->every > 0 && t->step % v->every == 0;
    if (!due && t->step != t->steps) return;
    double start = clock_seconds();
    Point p = {t->step, mean_loss(t, v)};
    char perplexity[48] = "";
    if (!t->job.ncolumns)
        snprintf(perplexity, sizeof perplexity, ", perplexity %.2f", exp(MIN(20, p.loss)));
    report_say(t, "validation at step %lld: loss %.4f%s (%lld batches, %.1f s)",
               (long long)t->step, p.loss, perplexity, (long long)v->batches,
               clock_seconds() - start);
    write_points(t, t->step - 1, &p);
}

void valid_end(Train *t) {
    if (!t->valid) return;
    program_free(t->valid->program);
    data_close(t->valid->data);
}

int valid_points(const Train *t, Arena *mem, double **step, double **loss) {
    Point *p;
    int n = t->valid ? read_points(t, mem, &p) : 0;
    *step = NEW_ARRAY(mem, double, (size_t)n);
    *loss = NEW_ARRAY(mem, double, (size_t)n);
    for (int i = 0; i < n; i++) {
        (*step)[i] = (double)p[i].step;
        (*loss)[i] = p[i].loss;
    }
    return n;
}
