/* published.c - training steps that others measured, predicted: each row of a CSV file is
 * planned by the passes and timed on the machine of its cluster.
 *     bench_published ROWS.csv ... [--machine FILE.yaml] [--json]
 *                     [--fit [--leave_one_out | --parts N [--by_groups]]
 *                      [--constants A,B,...]
 *                      [--prior W] [--calls N] [--save FILE.yaml]]
 * --fit finds the constants of the machine with the least mean relative error, close to what
 * its file says. --leave_one_out predicts each row with those that the others give, --parts
 * each of so many parts of the rows; with --by_groups rows of equal width, tp and micro-batch
 * are in one part.
 * docs/published.md describes columns, constants and what comes out. */
#include "base/json.h"
#include "bench/fit/constants.h"
#include "bench/fit/minimize.h"
#include "bench/fit/rows.h"
#include "frontend/config/machine_file.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>

typedef struct Case {
    const char *path;
    const Row *row;
    PlannedRow plan;
    int machine;      /* of Bench.machine; -1: the row's cannot be read */
    int part;         /* of the rows, that others predict */
    double predicted; /* seconds; 0: could not be planned */
} Case;

typedef struct UsedMachine {
    const char *path;
    const Machine *m;
} UsedMachine;

typedef struct Bench {
    Arena *mem;
    Case *at;
    int n, cap;
    UsedMachine *machine;
    int nmachines, machines_cap;
    const char *machine_path, *constants, *save;
    bool json, fit, by_groups;
    int calls, parts; /* of the fit; that cases are in where each predicts the others */
    double weight;    /* of the distance to the priors, in the fit */
} Bench;

/* ---- what there is ---- */

static int use_machine(Bench *b, const char *path) {
    for (int i = 0; i < b->nmachines; i++)
        if (!strcmp(b->machine[i].path, path)) return i;
    UsedMachine u = {path, machine_read(b->mem, path)};
    PUSH(b->mem, b->machine, b->nmachines, b->machines_cap, u);
    return b->nmachines - 1;
}

static int use_preset(Bench *b, const char *name) {
    return use_machine(b, arena_printf(b->mem, MACHINES_DIR "/%s.yaml", name));
}

/* Rows that do not say it are Megatron-LM's, but vTrain's of one host. */
static int machine_of(Bench *b, const Row *r) {
    if (*r->machine && strchr(r->machine, '/')) return use_machine(b, r->machine);
    if (*r->machine) return use_preset(b, r->machine);
    if (*r->source) return use_preset(b, "a100-megatron");
    int own = use_preset(b, "a100-vtrain");
    if (r->ranks <= b->machine[own].m->host_ranks) return own;
    return use_preset(b, "a100-megatron");
}

/* -1 and a problem of the row: what it names is no machine. */
static int find_machine(Bench *b, Row *r) {
    Catch c;
    if (b->machine_path) return use_machine(b, b->machine_path);
    if (CATCH(c)) {
        int machine = machine_of(b, r);
        catch_end(&c);
        return machine;
    }
    const char *text = catch_text(&c);
    char *first_line = arena_strndup(b->mem, text, strcspn(text, "\n"));
    r->problem = make_printable(first_line, LINES_NONE);
    return -1;
}

static double seconds_of(const Case *c, const Machine *m) {
    Arena *mem = arena_new();
    double s = step_seconds(mem, m, c->plan.entry, c->plan.stages, 1).seconds;
    arena_free(mem);
    return s;
}

static void add_file(Bench *b, const char *path) {
    Rows rows = rows_read(b->mem, path);
    for (int i = 0; i < rows.n; i++) {
        Row *row = &rows.row[i];
        Case c = {.path = path, .row = row, .machine = -1};
        if (!row->problem) c.machine = find_machine(b, row);
        const Machine *m = c.machine < 0 ? NULL : b->machine[c.machine].m;
        if (m) row_complete(row, m->host_ranks);
        c.plan = row_plan(b->mem, row);
        if (!c.plan.problem) c.predicted = seconds_of(&c, m);
        PUSH(b->mem, b->at, b->n, b->cap, c);
    }
}

static bool counts(const Case *c) {
    return c->predicted > 0 && c->row->seconds > 0;
}

static double error_of(const Case *c) {
    return c->predicted / c->row->seconds - 1;
}

/* ---- sums ---- */

typedef struct Summary {
    int rows, predicted, not_planned;
    double mean, median, worst, bias; /* of errors; bias keeps their sign */
} Summary;

static Summary summary_of(Bench *b, const char *path) {
    Summary s = {.rows = 0};
    double *e = NEW_ARRAY(b->mem, double, (size_t)b->n + 1);
    for (int i = 0; i < b->n; i++) {
        const Case *c = &b->at[i];
        if (path && strcmp(path, c->path)) continue;
        s.rows++;
        s.not_planned += c->plan.problem != NULL;
        if (!counts(c)) continue;
        s.bias += error_of(c);
        e[s.predicted++] = fabs(error_of(c));
        s.mean += fabs(error_of(c));
    }
    if (!s.predicted) return s;
    sort_doubles(e, (size_t)s.predicted);
    s.mean /= s.predicted;
    s.bias /= s.predicted;
    s.worst = e[s.predicted - 1];
    s.median = (e[(s.predicted - 1) / 2] + e[s.predicted / 2]) / 2;
    return s;
}

/* ---- fit ---- */

typedef struct Fit {
    const Bench *b;
    const Machine *m;
    const Constants *c;
    int without; /* cases of this part are left out; -1: none */
} Fit;

static double fit_value(const double *x, void *data) {
    const Fit *f = data;
    Arena *mem = arena_new();
    const Machine *m = constants_machine(mem, f->m, f->c, x);
    double all = 0;
    int n = 0;
    for (int i = 0; i < f->b->n; i++) {
        const Case *c = &f->b->at[i];
        if (c->part == f->without || !counts(c)) continue;
        all += fabs(seconds_of(c, m) / c->row->seconds - 1);
        n++;
    }
    arena_free(mem);
    return all / MAX(n, 1) + f->b->weight * constants_distance(f->c, x);
}

static void find_constants(const Fit *f, double *x) {
    memcpy(x, f->c->prior, (size_t)f->c->n * sizeof *x);
    minimize(fit_value, (void *)f, x, f->c->n, 0.1, f->b->calls);
}

static void save_machine(Bench *b, const Machine *m) {
    Text out = text_new(b->mem);
    machine_print(m, "Fitted to published steps; docs/published.md.", &out);
    int error = file_write_atomic(b->save, out.s, out.n);
    if (error) fail(EXIT_DATA, "cannot write %s: %s", b->save, strerror(error));
}

static bool same_group(const Row *a, const Row *b) {
    return a->hidden == b->hidden && a->tensor == b->tensor &&
           a->micro_batch == b->micro_batch;
}

/* The first case of the same group, or the case itself. */
static int first_of_group(const Bench *b, int i) {
    int k = 0;
    while (k < i && !same_group(b->at[k].row, b->at[i].row)) k++;
    return k;
}

/* Deals cases, or their groups, out to so many parts; returns how many parts have any. */
static int deal_parts(Bench *b, int parts) {
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        int first = b->by_groups ? first_of_group(b, i) : i;
        b->at[i].part = first == i ? n++ % MAX(parts, 1) : b->at[first].part;
    }
    return MIN(n, parts);
}

static const Machine *only_machine(const Bench *b) {
    int machine = -1;
    for (int i = 0; i < b->n; i++) {
        int own = b->at[i].machine;
        if (machine >= 0 && own >= 0 && own != machine)
            fail(EXIT_CONFIG, "--fit fits one machine and these rows are of several; "
                              "--machine says which");
        if (own >= 0) machine = own;
    }
    if (machine < 0) fail(EXIT_DATA, "--fit needs rows, and the files have none");
    return b->machine[machine].m;
}

/* Predictions become those of the fitted machine, or of those fitted to the other rows. */
static void run_fit(Bench *b, Text *out) {
    double x[MAX_CONSTANTS], *left = NEW_ARRAY(b->mem, double, (size_t)b->n + 1);
    const Machine *m = only_machine(b);
    Constants c = constants_choose(b->mem, b->constants, m);
    Fit f = {b, m, &c, -1};
    int parts = deal_parts(b, b->parts);
    for (int part = 0; part < parts; part++) {
        f.without = part;
        find_constants(&f, x);
        const Machine *others = constants_machine(b->mem, m, &c, x);
        for (int i = 0; i < b->n; i++)
            if (b->at[i].part == part && counts(&b->at[i]))
                left[i] = seconds_of(&b->at[i], others);
    }
    f.without = -1;
    find_constants(&f, x);
    const Machine *fitted = constants_machine(b->mem, m, &c, x);
    for (int i = 0; i < b->n; i++)
        if (counts(&b->at[i]))
            b->at[i].predicted = parts > 0 ? left[i] : seconds_of(&b->at[i], fitted);
    text_add(out, "fitted to %d rows:\n", b->n);
    constants_print(&c, x, out);
    if (b->save) save_machine(b, fitted);
}

/* ---- what comes out ---- */

static void print_case(const Case *c, Text *out) {
    const Row *r = c->row;
    text_add(out, "%-10s %3lld %5lld %3lld x %lld x %lld%s%-3lld %5lld %5lld %3lld %s%s ",
             *r->source ? r->source : "-", (long long)r->layers, (long long)r->hidden,
             (long long)r->tensor, (long long)r->stages, (long long)r->replicas,
             r->chunks > 1 ? " v" : "  ", (long long)r->chunks, (long long)r->ranks,
             (long long)r->global_batch, (long long)r->micro_batch,
             r->recompute == ROW_FULL ? "full"
             : r->recompute           ? "sel "
                                      : "none",
             r->sequence_parallel ? " sp" : "   ");
    if (c->plan.problem)
        text_add(out, "not planned: line %d: %s\n", r->line, c->plan.problem);
    else if (counts(c))
        text_add(out, "%9.4g %9.4g %+7.2f %%\n", r->seconds, c->predicted,
                 100 * error_of(c));
    else
        text_add(out, "%9s %9.4g\n", "-", c->predicted);
}

static void print_summary(Bench *b, const char *path, Text *out) {
    Summary s = summary_of(b, path);
    text_add(
        out,
        "%s: %d rows, %d not planned; error mean %.2f %%, median %.2f %%, worst %.2f "
        "%%, with sign %+.2f %%\n",
        path ? path : "all", s.rows, s.not_planned, 100 * s.mean, 100 * s.median,
        100 * s.worst, 100 * s.bias);
}

static bool is_first(const Bench *b, int i) {
    for (int k = 0; k < i; k++)
        if (!strcmp(b->at[k].path, b->at[i].path)) return false;
    return true;
}

static void print_all(Bench *b, Text *out) {
    int files = 0;
    text_add(out,
             "%-10s %3s %5s  tp x pp x dp  v  ranks batch  mb  recompute measured "
             "predicted error\n",
             "source", "L", "width");
    for (int i = 0; i < b->n; i++) print_case(&b->at[i], out);
    for (int i = 0; i < b->n; i++) {
        if (!is_first(b, i)) continue;
        print_summary(b, b->at[i].path, out);
        files++;
    }
    if (files > 1) print_summary(b, NULL, out);
}

static void json_case(const Case *c, Text *out) {
    const Row *r = c->row;
    text_add(out, "    {\"file\": ");
    json_write_string(out, c->path);
    text_add(out, ", \"line\": %d, \"source\": ", r->line);
    json_write_string(out, r->source);
    text_add(out, ", \"ranks\": %lld, \"measured_seconds\": %.6g", (long long)r->ranks,
             r->seconds);
    if (c->plan.problem) {
        text_add(out, ", \"problem\": ");
        json_write_string(out, c->plan.problem);
    } else {
        text_add(out, ", \"predicted_seconds\": %.6g, \"plan_seconds\": %.3g",
                 c->predicted, c->plan.plan_seconds);
        if (counts(c)) text_add(out, ", \"error\": %.5f", error_of(c));
    }
    text_add(out, "}");
}

static void json_all(Bench *b, Text *out) {
    Summary s = summary_of(b, NULL);
    text_add(out, "{\n  \"rows\": [\n");
    for (int i = 0; i < b->n; i++) {
        json_case(&b->at[i], out);
        text_add(out, "%s\n", i + 1 < b->n ? "," : "");
    }
    text_add(out, "  ],\n  \"compared\": %d,\n  \"not_planned\": %d,\n", s.predicted,
             s.not_planned);
    text_add(out,
             "  \"mean_error\": %.5f,\n  \"median_error\": %.5f,\n  \"worst_error\": "
             "%.5f,\n  \"mean_signed_error\": %.5f\n}\n",
             s.mean, s.median, s.worst, s.bias);
}

/* ---- the command ---- */

static const char *next_word(int argc, char **argv, int *i) {
    if (++*i >= argc) fail(EXIT_CONFIG, "%s needs a value", argv[*i - 1]);
    return argv[*i];
}

static void read_options(Bench *b, int argc, char **argv, const char **file, int *files) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--json"))
            b->json = true;
        else if (!strcmp(a, "--fit"))
            b->fit = true;
        else if (!strcmp(a, "--leave_one_out"))
            b->fit = true, b->parts = INT_MAX;
        else if (!strcmp(a, "--parts"))
            b->fit = true, b->parts = atoi(next_word(argc, argv, &i));
        else if (!strcmp(a, "--by_groups"))
            b->by_groups = true;
        else if (!strcmp(a, "--calls"))
            b->calls = atoi(next_word(argc, argv, &i));
        else if (!strcmp(a, "--machine"))
            b->machine_path = next_word(argc, argv, &i);
        else if (!strcmp(a, "--constants"))
            b->constants = next_word(argc, argv, &i);
        else if (!strcmp(a, "--save"))
            b->save = next_word(argc, argv, &i);
        else if (!strcmp(a, "--prior"))
            b->weight = atof(next_word(argc, argv, &i));
        else if (*a == '-')
            fail(EXIT_CONFIG, "there is no option %s; bench/published.c lists them", a);
        else
            file[(*files)++] = a;
    }
    if (!*files)
        fail(EXIT_CONFIG, "bench/published needs a file: bench/published ROWS.csv ... "
                          "[--machine FILE.yaml] [--json] [--fit [--leave_one_out]]");
}

int main(int argc, char **argv) {
    Bench b = {.mem = arena_new(), .weight = 0.003, .calls = 600};
    const char **file = NEW_ARRAY(b.mem, const char *, (size_t)argc);
    int files = 0;
    Text out = text_new(b.mem);
    read_options(&b, argc, argv, file, &files);
    for (int i = 0; i < files; i++) add_file(&b, file[i]);
    if (b.fit) run_fit(&b, &out);
    if (b.json) {
        out.n = 0;
        json_all(&b, &out);
    } else {
        print_all(&b, &out);
    }
    fwrite(out.s, 1, out.n, stdout);
    arena_free(b.mem);
    return 0;
}
