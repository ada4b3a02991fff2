/* metrics.h - what a run tells about each step: metrics.jsonl and the terminal. */
#ifndef STATOR_METRICS_H
#define STATOR_METRICS_H
#include "base/base.h"

typedef struct MetricsRow {
    int64_t step; /* from 1 */
    double loss, grad_norm, lr;
    double loss_scale; /* that this step had; 0: none */
    bool skipped;    /* loss or norm were not finite on some rank, and nothing changed */
    bool of_samples; /* the model reads no tokens: its samples are counted instead */
    int64_t tokens;  /* of this step, all ranks */
    double seconds;  /* of this step */
    double
        communication_seconds; /* of them, in collectives, messages and waits; 0: alone */
    double tokens_per_second;  /* all ranks */
    double mfu;                /* 0..1 of the peak; negative: not known */
} MetricsRow;

typedef struct Metrics Metrics;

/* Opens metrics.jsonl at `path` (NULL: no file) to go on after `resumed_step` (0: from
 * the start). Lines of later steps, repeated steps and broken lines are taken out first,
 * so that the file has each step once, in order. `terminal` (NULL: none) gets a line a
 * step, and a progress bar below it when it is a tty. Fails with EXIT_DATA when the file
 * cannot be opened or is something else than metrics. */
Metrics *metrics_open(Arena *mem, const char *path, int64_t total_steps,
                      int64_t resumed_step, FILE *terminal);

/* How it is shown: a line every `interval` steps and at the end, of the means over the
 * steps since the last one; in `log` (or NULL) too, which may be a file where the
 * terminal is none. columns: of the terminal, 0: it has no bar, -1: ask the terminal. At
 * first: every step, no log, -1. */
void metrics_show(Metrics *m, int64_t interval, FILE *log, int columns);

/* What metrics_open found damaged (lines that are broken or out of order; not one that a
 * killed run left without an end) and where the file as it was is kept; "" for nothing. */
const char *metrics_note(const Metrics *m);
/* Which steps up to the resumed one have no line, of those behind step `began`; -1: of those
 * behind the first line. NULL for none. */
const char *metrics_missing(const Metrics *m, Arena *mem, int64_t began);

/* Where the file was removed meanwhile, makes it anew for the steps to come; has it? */
bool metrics_make_anew(Metrics *m);

/* Adds one step. A full disk does not end the run: the line is left out whole, and the
 * terminal gets one warning until writing works again. Allocates nothing. The bar is
 * redrawn 20 times a second at most. */
void metrics_write(Metrics *m, const MetricsRow *row);

/* Writes a line of another source to the terminal, without touching the progress bar. */
void metrics_say(Metrics *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Removes the bar and closes the file. */
void metrics_close(Metrics *m);

/* Lines that are no row, and which of them is the first, from 1; a last one without its end is
 * one of them. */
typedef struct MetricsDamage {
    int lines, first;
} MetricsDamage;

/* Shows each row of a metrics.jsonl, in file order; broken lines are left out. A null loss is
 * NaN, a null mfu is -1. Fails with EXIT_DATA when the file cannot be read. */
typedef void SeeMetrics(void *context, const MetricsRow *row);
MetricsDamage metrics_walk(const char *path, SeeMetrics *see, void *context);
/* The same rows in mem. */
MetricsRow *metrics_read(Arena *mem, const char *path, int *n);

/* One row as a JSON object with its line end; numbers as %.10g, numbers that are not
 * finite as null with "loss_is" (or "grad_norm_is") naming them; "skipped":true is in
 * rows of skipped steps only. Returns the length. */
int metrics_format(const MetricsRow *row, char *out, size_t size);

/* "0:01:23", "12:00:00", "3 d 04:05:06"; "?" for what is not a time. Rounds to seconds.
 */
char *duration_format(double seconds, char out[32]);

#endif
