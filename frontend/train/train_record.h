/* train_record.h - what the key profile records, between train_profile.c, which records and
 * writes it, and train_tasks.c, which draws the tasks of a pipeline of it. */
#ifndef STATOR_TRAIN_RECORD_H
#define STATOR_TRAIN_RECORD_H
#include "frontend/train/train.h"
#include "runtime/run/op_rows.h"

/* Ops of one thread in the steps first..last of the run: of step n, `each` places from
 * event[n * each] on, of which used[n] are filled. */
typedef struct RecordLog {
    OpTime *event;
    int64_t each, *used;
} RecordLog;

typedef struct Record {
    const OpRow *op; /* of the program, by number */
    int nops;
    int64_t room;              /* steps that are recorded at most */
    int64_t first, last, done; /* done: the last step recorded */
    RecordLog log[LOG_THREADS];
    double ahead_seconds;     /* of this rank's clock_seconds against rank 0's */
    double clock_off_seconds; /* as far as that may be wrong */
    double peak_bytes;        /* a second, from and to memory; 0: not known */
    double bound_seconds;     /* of this rank's step, at its peaks; 0: not known */
} Record;

/* A line about a file of the run folder that has been written, or not (an errno value). */
void record_say_written(const Train *t, const char *what, const char *name, int error);
/* Writes it, and says so. */
void record_write(const Train *t, const char *what, const char *name, const Text *text);

/* train_tasks.c, on all ranks: timeline.csv and timeline.svg of a pipeline. */
void tasks_write_timeline(const Train *t, const Record *r);

#endif
