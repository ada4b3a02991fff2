/* rows.h - published training steps: rows of a CSV file, and the plan of each. */
#ifndef STATOR_BENCH_ROWS_H
#define STATOR_BENCH_ROWS_H
#include "frontend/plan/plan.h"

typedef enum RowRecompute {
    ROW_NONE,
    ROW_SELECTIVE,
    ROW_FULL,
    ROW_NOT_SAID
} RowRecompute;

/* One measurement. GPT: an MLP of `ffn` numbers with GELU, learned positions, a tied head. */
typedef struct Row {
    int line;
    const char *source, *machine; /* "" where the file has no such column */
    int64_t layers, hidden, heads, ffn, seq, vocab;
    int64_t tensor, stages, replicas, chunks, context; /* chunks of a stage */
    int64_t ranks, global_batch, micro_batch;
    int64_t recompute; /* RowRecompute */
    int64_t sequence_parallel, optimizer_shard, overlap;
    double seconds;      /* measured; 0: not said */
    const char *problem; /* NULL: the line can be read */
} Row;

typedef struct Rows {
    const char *path;
    Row *row;
    int n, cap;
} Rows;

/* Reads a CSV file whose first line names the columns, in any order. A line that is wrong
 * is a row with a problem. Fails with EXIT_DATA when the file cannot be read or has no
 * column that the size of the model needs. docs/published.md lists columns and defaults. */
Rows rows_read(Arena *mem, const char *path);

/* Sets vocabulary and recomputation where the file does not say them, on hosts of so many
 * ranks (0: one host has all); docs/published.md has the rule and its reasons. The row has
 * no problem. */
void row_complete(Row *row, int host_ranks);

/* The steps of all stages of a row. */
typedef struct PlannedRow {
    const Func **entry;
    int stages;
    double plan_seconds; /* that planning took */
    const char *problem; /* NULL: it is planned */
} PlannedRow;
PlannedRow row_plan(Arena *mem, const Row *row);
#endif
