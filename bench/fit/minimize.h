/* minimize.h - the least value of a function of a few numbers, without derivatives. */
#ifndef STATOR_BENCH_MINIMIZE_H
#define STATOR_BENCH_MINIMIZE_H

enum { MINIMIZE_MOST = 12 };

typedef double (*Objective)(const double *x, void *data);

/* The method of Nelder and Mead (The Computer Journal 7, 1965): from x[n], n at most
 * MINIMIZE_MOST, with first steps of `step`, at most `calls` calls of f. Begins twice more
 * from what it found. x becomes the best point; returns its value. */
double minimize(Objective f, void *data, double *x, int n, double step, int calls);
#endif
