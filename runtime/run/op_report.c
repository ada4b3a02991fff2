/* op_report.c - see op_report.h. */
#include "runtime/run/op_report.h"
#include <stdlib.h>

typedef struct Row {
    const char *name, *where;
    double calls, seconds, flops, bytes, bound_seconds; /* of all steps; bound 0: none */
} Row;

static double bound_of(const OpReport *r, const OpRow *op) {
    double compute = r->peak_flops > 0 ? op->flops / r->peak_flops : 0;
    double memory = r->peak_bytes > 0 ? op->bytes / r->peak_bytes : 0;
    return op->waits ? 0 : MAX(compute, memory);
}

static void count(const OpReport *r, Row *row, const OpTime *e) {
    const OpRow *op = op_row(r->op, e->number);
    row->name = op->name;
    row->where = op->where ? op->where : "";
    row->calls++;
    row->seconds += e->end - e->begin;
    row->flops += op->flops;
    row->bytes += op->bytes;
    row->bound_seconds += bound_of(r, op);
}

/* Messages of one value are an op for each micro-batch. */
static int by_name(const void *a, const void *b) {
    const Row *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->where, y->where);
}

static int by_time(const void *a, const void *b) {
    const Row *x = a, *y = b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : by_name(a, b);
}

/* Adds up rows of the same name, sorted by it; how many there are then. */
static int join(Row *row, int n) {
    int kept = 0;
    for (int i = 1; i < n; i++) {
        Row *to = &row[kept];
        if (by_name(to, &row[i])) {
            row[++kept] = row[i];
            continue;
        }
        to->calls += row[i].calls;
        to->seconds += row[i].seconds;
        to->flops += row[i].flops;
        to->bytes += row[i].bytes;
        to->bound_seconds += row[i].bound_seconds;
    }
    return n ? kept + 1 : 0;
}

/* Those that ran, the longest first; the seconds of all steps in *total. */
static Row *rows_of(Arena *mem, const OpReport *r, int *n, double *total) {
    Row *row = NEW_ARRAY(mem, Row, (size_t)r->nops + OP_MARKS + 2);
    *total = 0;
    for (int64_t i = 0; i < r->nevents; i++) {
        const OpTime *e = &r->event[i];
        if (e->number == MARK_STEP) *total += e->end - e->begin;
        if (!op_row(r->op, e->number)->nests) count(r, &row[e->number + OP_MARKS], e);
    }
    *n = 0;
    for (int i = 0; i < r->nops + OP_MARKS; i++)
        if (row[i].calls > 0) row[(*n)++] = row[i];
    qsort(row, (size_t)*n, sizeof *row, by_name);
    *n = join(row, *n);
    Row rest = {.name = "outside of ops", .where = "", .seconds = *total};
    for (int i = 0; i < *n; i++) rest.seconds -= row[i].seconds;
    row[(*n)++] = rest;
    qsort(row, (size_t)*n, sizeof *row, by_time);
    return row;
}

/* A number, or what stands for none, in a column. */
static void add_number(Text *t, int width, int digits, double v) {
    if (v > 0)
        text_add(t, " %*.*f", width, digits, v);
    else
        text_add(t, " %*s", width, "-");
}

static void add_row(Text *t, const OpReport *r, const Row *row, double total) {
    double each = 1 / (double)r->steps, seconds = MAX(row->seconds, 1e-12);
    text_add(t, "%6.2f %10.4f", 100 * row->seconds / total, 1e3 * each * row->seconds);
    add_number(t, 9, 1, each * row->calls);
    add_number(t, 10, 4, 1e-9 * each * row->flops);
    add_number(t, 10, 3, 1e-6 * each * row->bytes);
    add_number(t, 8, 1, 1e-9 * row->flops / seconds);
    add_number(t, 8, 2, 1e-9 * row->bytes / seconds);
    add_number(t, 8, 1, 100 * row->bound_seconds / seconds);
    text_add(t, "  %s%s%s\n", row->name, row->where[0] ? "  " : "", row->where);
}

Text op_report(Arena *mem, const OpReport *r, int most) {
    int n;
    double total;
    Text t = text_new(mem);
    const Row *row = rows_of(mem, r, &n, &total);
    text_add(&t,
             "share%% ms/step  calls/step Gflop/step MB/step GFLOP/s GB/s bound%%  op\n");
    for (int i = 0; i < n && (!most || i < most); i++)
        add_row(&t, r, &row[i], MAX(total, 1e-12));
    return t;
}
