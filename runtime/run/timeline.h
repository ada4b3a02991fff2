/* timeline.h - tasks over time as a picture: a row for each worker, a box for each task. */
#ifndef STATOR_TIMELINE_H
#define STATOR_TIMELINE_H
#include "ir/ir.h"

typedef struct TimelineBox {
    double begin, end;
    TaskKind kind;
    int shade;  /* which of the worker's chunks: 0, 1, ... */
    int number; /* stands in the box where there is room */
} TimelineBox;

typedef struct TimelineRow {
    const char *name;
    TimelineBox *box; /* one after the other */
    int n;
} TimelineRow;

typedef struct Timeline {
    const char *title;
    TimelineRow *row;
    int nrows;
    double begin, end; /* of what is drawn */
    const char *axis;  /* what stands below it, from 0 on: "share of the time, %" */
    double axis_end;   /* there */
} Timeline;

/* Share of the time between begin and end that no box covers, all rows together. */
double timeline_idle(const Timeline *l);
/* An SVG as svg.h says, at most some MB long: boxes that are too short to be seen are drawn
 * together. Kinds differ in lightness as well as in hue, shades of a kind less than kinds. */
Text timeline_svg(Arena *mem, const Timeline *l);

#endif
