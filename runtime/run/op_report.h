/* op_report.h - where the time of steps went, as a table of their ops. */
#ifndef STATOR_OP_REPORT_H
#define STATOR_OP_REPORT_H
#include "base/base.h"
#include "runtime/run/op_rows.h"

typedef struct OpReport {
    const OpRow *op; /* by number */
    int nops;
    const OpTime *event; /* of LOG_COMPUTE */
    int64_t nevents;
    int64_t steps;     /* that they are of */
    double peak_flops; /* a second, of this rank's threads; 0: not known */
    double peak_bytes; /* the same, moved from and to memory */
} OpReport;

/* A row for each op, the longest first, at most `most` of them (0: all), each with what it takes
 * a step and its share of its bound, the time that its flops at peak_flops or its bytes at
 * peak_bytes take, whichever is longer. One more row has what no op has of the steps' time, so
 * that with all rows the shares are 100 %. */
Text op_report(Arena *mem, const OpReport *r, int most);

#endif
