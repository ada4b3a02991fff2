/* metrics.c - metrics.jsonl and the terminal; see metrics.h. */
#include "runtime/run/metrics.h"
#include "runtime/run/step_lines.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_BYTES = 512, BAR_CELLS_MAX = 50 };

/* Steps of which there is no row. */
typedef struct Gaps {
    int64_t first, count;
} Gaps;

struct Metrics {
    const char *path; /* NULL: no file */
    int fd;
    off_t end;   /* of the last whole line */
    bool warned; /* about a file that cannot be written */
    FILE *terminal;
    bool tty, bar_shown;
    int columns; /* -1: the terminal is asked */
    double bar_at;
    FILE *log;
    int64_t interval;
    struct {
        double loss, seconds, mfu_seconds;
        int64_t tokens, steps, losses;
    } since; /* the last line */
    int64_t total_steps, step;
    double step_seconds;             /* running mean over about 20 steps; 0: none yet */
    char note[1024];                 /* see metrics_note */
    int64_t resumed_step, first_row; /* 0: no row is there */
    Gaps gaps;                       /* behind the first row */
};

char *duration_format(double seconds, char out[32]) {
    if (!(seconds >= 0 && seconds < 1e11)) {
        snprintf(out, 32, "?");
        return out;
    }
    long long s = (long long)(seconds + 0.5), days = s / 86400;
    int h = (int)(s / 3600 % 24), m = (int)(s / 60 % 60);
    if (days)
        snprintf(out, 32, "%lld d %02d:%02d:%02d", days, h, m, (int)(s % 60));
    else
        snprintf(out, 32, "%d:%02d:%02d", h, m, (int)(s % 60));
    return out;
}

/* Keys of the file, and the unit on the terminal. */
typedef struct MetricsUnit {
    const char *count, *rate, *shown;
} MetricsUnit;
static const MetricsUnit units[] = {{"tokens", "tokens_per_second", "tok/s"},
                                    {"samples", "samples_per_second", "samples/s"}};

/* ,"key":number, or null and its name; `why` adds "key_is":"nan". */
static int format_number(char *out, const char *key, double v, bool why) {
    if (isfinite(v)) return sprintf(out, ",\"%s\":%.10g", key, v);
    const char *name = isnan(v) ? "nan" : v > 0 ? "inf" : "-inf";
    int n = sprintf(out, ",\"%s\":null", key);
    if (why) n += sprintf(out + n, ",\"%s_is\":\"%s\"", key, name);
    return n;
}

int metrics_format(const MetricsRow *r, char *out, size_t size) {
    char line[LINE_BYTES]; /* ten numbers of at most 24 characters and their keys */
    int n = sprintf(line, "{\"step\":%lld", (long long)r->step);
    n += format_number(line + n, "loss", r->loss, true);
    n += format_number(line + n, "grad_norm", r->grad_norm, true);
    if (r->loss_scale > 0)
        n += format_number(line + n, "loss_scale", r->loss_scale, false);
    if (r->skipped) n += sprintf(line + n, ",\"skipped\":true");
    n += format_number(line + n, "lr", r->lr, false);
    const MetricsUnit *unit = &units[r->of_samples];
    n += sprintf(line + n, ",\"%s\":%lld", unit->count, (long long)r->tokens);
    n += format_number(line + n, "seconds", r->seconds, false);
    double communication = r->communication_seconds;
    if (communication > 0)
        n += format_number(line + n, "communication_seconds", communication, false);
    n += format_number(line + n, unit->rate, r->tokens_per_second, false);
    n += format_number(line + n, "mfu", r->mfu >= 0 ? r->mfu : NAN, false);
    n += sprintf(line + n, "}\n");
    check((size_t)n < size);
    memcpy(out, line, (size_t)n + 1);
    return n;
}

/* A null number, followed by its name. */
static double named_number(const Json *v, const char *key) {
    char name_key[32];
    snprintf(name_key, sizeof name_key, "%s_is", key);
    const char *name = json_get_string(v, name_key, "nan");
    double named = !strcmp(name, "inf")    ? INFINITY
                   : !strcmp(name, "-inf") ? -INFINITY
                                           : NAN;
    return json_get_f64(v, key, named);
}

static MetricsRow row_of(const Json *v) {
    MetricsRow row = {.step = json_i64(json_need(v, "step"), 1, INT64_MAX)};
    json_need(v, "loss");
    row.loss = named_number(v, "loss");
    row.grad_norm = named_number(v, "grad_norm");
    row.loss_scale = json_get_f64(v, "loss_scale", 0);
    row.skipped = json_get_bool(v, "skipped", false);
    row.lr = json_get_f64(v, "lr", NAN);
    row.of_samples = json_get(v, "samples") != NULL;
    const MetricsUnit *unit = &units[row.of_samples];
    row.tokens = json_get_i64(v, unit->count, 0, INT64_MAX, 0);
    row.seconds = json_get_f64(v, "seconds", NAN);
    row.communication_seconds = json_get_f64(v, "communication_seconds", 0);
    row.tokens_per_second = json_get_f64(v, unit->rate, NAN);
    row.mfu = json_get_f64(v, "mfu", -1);
    return row;
}

typedef struct Walk {
    SeeMetrics *see;
    void *context;
} Walk;

static int64_t see_row(void *context, const Json *line) {
    const Walk *w = context;
    MetricsRow row = row_of(line);
    w->see(w->context, &row);
    return row.step;
}

MetricsDamage metrics_walk(const char *path, SeeMetrics *see, void *context) {
    Arena *mem = arena_new();
    Walk w = {see, context};
    StepLines l = step_lines_read(mem, path, -1, see_row, &w);
    MetricsDamage d = {l.damaged, l.first_damaged};
    bool cut = l.file.n && l.file.bytes[l.file.n - 1] != '\n';
    if (cut && !d.lines++) d.first = l.lines + 1;
    step_lines_close(&l);
    arena_free(mem);
    return d;
}

typedef struct Rows {
    Arena *mem;
    MetricsRow *row;
    int n, cap;
} Rows;

static void add_row(void *context, const MetricsRow *row) {
    Rows *r = context;
    PUSH(r->mem, r->row, r->n, r->cap, *row);
}

MetricsRow *metrics_read(Arena *mem, const char *path, int *n) {
    Rows r = {.mem = mem};
    metrics_walk(path, add_row, &r);
    *n = r.n;
    return r.row;
}

static void note_gap(Gaps *g, int64_t after, int64_t before) {
    if (before <= after + 1) return;
    if (!g->count) g->first = after + 1;
    g->count += before - after - 1;
}

/* What a walk over the lines has seen. */
typedef struct Cut {
    Metrics *m;
    int64_t last; /* step that stays; 0: none yet */
    bool rows;
} Cut;

static int64_t cut_step(void *context, const Json *line) {
    Cut *c = context;
    int64_t step = row_of(line).step;
    c->rows = true;
    if (step <= c->last) return -1;
    if (step > c->m->resumed_step) return step;
    if (c->last)
        note_gap(&c->m->gaps, c->last, step);
    else
        c->m->first_row = step;
    return c->last = step;
}

/* Takes out what a run that goes on writes again or cannot use. */
static void file_cut(Metrics *m) {
    Arena *mem = arena_scratch();
    Cut cut = {.m = m};
    StepLines l = step_lines_read(mem, m->path, m->resumed_step, cut_step, &cut);
    if (cut.last) note_gap(&m->gaps, cut.last, m->resumed_step + 1);
    if (l.file.n && !cut.rows && memchr(l.file.bytes, '\n', l.file.n))
        fail(EXIT_DATA, "%s holds no metrics; move it away or give another run folder",
             m->path);
    const char *damage = step_lines_keep_damaged(mem, &l);
    if (damage) snprintf(m->note, sizeof m->note, "%s", damage);
    int error = step_lines_cut(&l);
    if (error) fail(EXIT_DATA, "cannot write %s: %s", m->path, strerror(error));
    step_lines_close(&l);
    arena_free(mem);
}

const char *metrics_note(const Metrics *m) {
    return m->note;
}

const char *metrics_missing(const Metrics *m, Arena *mem, int64_t began) {
    Gaps all = {0};
    if (!m->first_row) began = MAX(began, 0);
    int64_t begin = m->first_row ? m->first_row : m->resumed_step + 1;
    if (began >= 0) note_gap(&all, began, begin);
    if (!all.count) all.first = m->gaps.first;
    all.count += m->gaps.count;
    if (!all.count) return NULL;
    return arena_printf(mem,
                        "%s has no line of %lld of the steps up to %lld, the first of "
                        "them step %lld: they are lost, the run goes on without them",
                        m->path, (long long)all.count, (long long)m->resumed_step,
                        (long long)all.first);
}

static bool file_open(Metrics *m) {
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    m->end = m->fd < 0 ? 0 : lseek(m->fd, 0, SEEK_END);
    return m->fd >= 0;
}

Metrics *metrics_open(Arena *mem, const char *path, int64_t total_steps,
                      int64_t resumed_step, FILE *terminal) {
    Metrics *m = NEW(mem, Metrics);
    m->fd = -1;
    m->terminal = terminal;
    m->tty = terminal && isatty(fileno(terminal));
    m->total_steps = total_steps;
    m->step = m->resumed_step = resumed_step;
    m->interval = 1;
    m->columns = -1;
    if (!path) return m;
    m->path = arena_strdup(mem, path);
    if (file_exists(path)) file_cut(m);
    if (!file_open(m)) fail(EXIT_DATA, "cannot write %s: %s", path, strerror(errno));
    return m;
}

bool metrics_make_anew(Metrics *m) {
    struct stat st;
    if (m->fd < 0 || fstat(m->fd, &st) != 0 || st.st_nlink) return false;
    close(m->fd);
    return file_open(m);
}

void metrics_show(Metrics *m, int64_t interval, FILE *log, int columns) {
    check(interval > 0);
    m->interval = interval;
    m->log = log;
    m->columns = columns;
    if (columns == 0) m->tty = false;
}

/* The bar: only on a tty, always the last line, without a line end. */

static void bar_hide(Metrics *m) {
    if (m->bar_shown) fputs("\r\033[K", m->terminal);
    m->bar_shown = false;
}

static int columns_of(const Metrics *m) {
    struct winsize w = {0};
    if (m->columns > 0) return m->columns;
    int columns = ioctl(fileno(m->terminal), TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
    return columns < 1 ? 80 : columns;
}

static void bar_show(Metrics *m) {
    if (!m->tty || m->total_steps < 1) return;
    int columns = columns_of(m);
    char tail[96], cells[BAR_CELLS_MAX + 1];
    m->bar_at = clock_seconds();
    double share = MIN((double)m->step / (double)m->total_steps, 1);
    int n = snprintf(tail, sizeof tail, "%3d %% of %lld steps, %lld done",
                     (int)(100 * share), (long long)m->total_steps, (long long)m->step);
    int width = MIN(columns - n - 4, BAR_CELLS_MAX);
    if (width < 4) return;
    int full = (int)(share * width);
    memset(cells, '.', (size_t)width);
    memset(cells, '#', (size_t)full);
    fprintf(m->terminal, "[%.*s] %s", width, cells, tail);
    fflush(m->terminal);
    m->bar_shown = true;
}

void metrics_say(Metrics *m, const char *fmt, ...) {
    if (!m->terminal) return;
    bar_hide(m);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(m->terminal, fmt, ap);
    va_end(ap);
    fputc('\n', m->terminal);
    fflush(m->terminal);
    bar_show(m);
}

/* A line of the means over the steps since the last one; the loss is that of the steps
 * that have one. */
static MetricsRow mean_row(const Metrics *m, const MetricsRow *last) {
    MetricsRow r = *last;
    double seconds = m->since.seconds;
    if (m->since.steps == 1) return r;
    if (m->since.losses) r.loss = m->since.loss / (double)m->since.losses;
    r.tokens_per_second = (double)m->since.tokens / MAX(seconds, 1e-9);
    if (r.mfu >= 0) r.mfu = m->since.mfu_seconds / MAX(seconds, 1e-9);
    return r;
}

static void count_step(Metrics *m, const MetricsRow *r) {
    if (isfinite(r->loss)) m->since.loss += r->loss;
    m->since.losses += isfinite(r->loss);
    m->since.seconds += r->seconds;
    m->since.mfu_seconds += r->mfu * r->seconds;
    m->since.tokens += r->tokens;
    m->since.steps++;
}

static void say_line(Metrics *m, const char *line) {
    metrics_say(m, "%s", line);
    if (m->log) fprintf(m->log, "%s\n", line);
}

static void say_step(Metrics *m, const MetricsRow *r) {
    char mfu[32] = "", left[64] = "", of[32] = "", scale[48] = "";
    char time[32], line[LINE_BYTES];
    if (r->loss_scale > 0)
        snprintf(scale, sizeof scale, " | loss scale %.10g", r->loss_scale);
    if (r->mfu >= 0) snprintf(mfu, sizeof mfu, " | mfu %.1f %%", 100 * r->mfu);
    if (m->total_steps > 0) {
        double seconds = m->step_seconds * (double)MAX(m->total_steps - r->step, 0);
        snprintf(left, sizeof left, " | %s left", duration_format(seconds, time));
        snprintf(of, sizeof of, "/%lld", (long long)m->total_steps);
    }
    snprintf(line, sizeof line,
             "step %lld%s | loss %.4f | norm %.3f%s | lr %.2e | %.0f %s%s%s",
             (long long)r->step, of, r->loss, r->grad_norm, scale, r->lr,
             r->tokens_per_second, units[r->of_samples].shown, mfu, left);
    say_line(m, line);
}

/* Between two lines only the bar moves. */
static void show_step(Metrics *m, const MetricsRow *row) {
    const double redraw_seconds = 0.05;
    count_step(m, row);
    if (row->step % m->interval == 0 || row->step == m->total_steps) {
        MetricsRow mean = mean_row(m, row);
        say_step(m, &mean);
        memset(&m->since, 0, sizeof m->since);
    } else if (m->tty && clock_seconds() - m->bar_at >= redraw_seconds) {
        bar_hide(m);
        bar_show(m);
    }
}

/* One line in one piece: what a full disk took in part is cut off again. */
static int file_add(Metrics *m, const char *line, size_t n) {
    ssize_t put;
    do put = write(m->fd, line, n);
    while (put < 0 && errno == EINTR);
    if (put == (ssize_t)n) {
        m->end += put;
        return 0;
    }
    int error = put < 0 ? errno : ENOSPC;
    if (put > 0 && ftruncate(m->fd, m->end) != 0) error = errno;
    return error;
}

void metrics_write(Metrics *m, const MetricsRow *row) {
    char line[LINE_BYTES];
    int n = metrics_format(row, line, sizeof line);
    m->step = row->step;
    if (row->seconds >= 0) {
        double old = m->step_seconds;
        m->step_seconds = old > 0 ? old + (row->seconds - old) / 20 : row->seconds;
    }
    show_step(m, row);
    if (m->fd < 0) return;
    int error = file_add(m, line, (size_t)n);
    if (error && !m->warned)
        metrics_say(m,
                    "warning: cannot write %s: %s; training goes on, steps are missing "
                    "there",
                    m->path, strerror(error));
    m->warned = error != 0;
}

void metrics_close(Metrics *m) {
    if (!m) return;
    bar_hide(m);
    if (m->terminal) fflush(m->terminal);
    if (m->fd >= 0) close(m->fd);
    m->fd = -1;
}
