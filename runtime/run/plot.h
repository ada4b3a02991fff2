/* plot.h - the loss curve, by step, as a picture. */
#ifndef STATOR_PLOT_H
#define STATOR_PLOT_H
#include "base/base.h"

/* Points in order of x. y that is not finite leaves a gap. */
typedef struct PlotSeries {
    const double *x, *y;
    int n;
} PlotSeries;

typedef struct Plot {
    const char *title;
    PlotSeries train;      /* drawn thin, and smoothed on top when it has 20 points */
    PlotSeries validation; /* n 0: none; drawn as dots with a line */
} Plot;

/* A self-contained SVG (no scripts, fonts or links) that follows the reader's light or
 * dark theme. Long series are thinned to what the width can show, extremes kept. */
Text plot_svg(Arena *mem, const Plot *plot);

#endif
