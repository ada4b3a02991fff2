/* launch_report.h - what launch_report.c gathers from mpirun's stderr, and launch_cause.c
 * makes its block of. */
#ifndef STATOR_LAUNCH_REPORT_H
#define STATOR_LAUNCH_REPORT_H
#include "frontend/launch/launch_parts.h"

enum {
    REPORT_LINE_BYTES = 16384,
    REPORT_HELD_BYTES = 8192 /* of one of mpirun's framed texts */
};

typedef struct Failure {
    int rank;
    const char *host;    /* NULL: unknown */
    int code, signal;    /* 0: none */
    const char *message; /* NULL: none */
    bool hung;           /* said by another rank */
} Failure;

struct LaunchReport {
    Arena *mem;
    FILE *out;
    const Placement *place;
    const Machine *machine;
    int ranks;
    bool program; /* no ranks of stator: nothing of theirs is known */
    const char *dir;
    char line[REPORT_LINE_BYTES];
    size_t n;
    char held[REPORT_HELD_BYTES]; /* a framed text of mpirun, as far as it has come */
    size_t held_n;
    bool holding;
    Failure *failure;
    int nfailure, failure_cap;
    bool started;          /* a rank has come as far as to say so */
    const char *lost_host; /* whose daemon went away, or NULL */
    const char **log;      /* by rank, or NULL */
};

/* What is still held back goes on its way: nothing more comes. */
void launch_report_flush(LaunchReport *r);

#endif
