/* calibrate.c - what all parts of calibrate share; see calibrate.h. */
#include "frontend/calibrate/calibrate.h"
#include "runtime/comm/comm.h"
#include <math.h>
#include <stdarg.h>

void calibrate_say(const char *fmt, ...) {
    char line[400];
    va_list ap;
    static double began;
    if (comm_rank()) return;
    if (!(began > 0)) began = clock_seconds();
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%6.1f s  %s\n", clock_seconds() - began, line);
}

/* Caches hold what ops before have made, but not all of it. */
enum { SPREAD_BYTES = 24 << 20 };

TrialOptions calibrate_options(const Calibration *c) {
    /* A mesh of all ranks: they make trials together. */
    static char mesh[32];
    snprintf(mesh, sizeof mesh, c->ranks > 1 ? "a=%d" : "", c->ranks);
    return (TrialOptions){
        .threads = c->threads, .mesh = mesh, .spread_bytes = SPREAD_BYTES};
}

double calibrate_mean(const double seconds[CALIBRATE_ROUNDS]) {
    const double most = 1.25;
    double least = INFINITY, sum = 0;
    int n = 0;
    for (int i = 0; i < CALIBRATE_ROUNDS; i++) least = fmin(least, seconds[i]);
    for (int i = 0; i < CALIBRATE_ROUNDS; i++) {
        if (seconds[i] > most * least) continue;
        sum += seconds[i];
        n++;
    }
    return sum / n;
}

double without_start(const Calibration *c, double seconds) {
    return MAX(seconds - c->m->op_start_seconds, seconds / 2);
}
