/* report.h - what a search found, for people, for programs, as a picture and as a page. */
#ifndef STATOR_SEARCH_REPORT_H
#define STATOR_SEARCH_REPORT_H
#include "frontend/search/search.h"

typedef struct Report {
    Arena *mem;
    const SearchOptions *o;
    const SearchResult *r;
    double seconds; /* that the search took */
} Report;

/* "dp 8 tp 4, 1 x 4, ZeRO-2" */
const char *report_strategy(Arena *mem, const Choice *c);
/* The fastest choice of the front that takes no more bytes than the fastest of the family, and
 * so no more seconds; NULL: that is of the family itself, or there is none. */
const Choice *report_ahead(const SearchResult *r, const Family *f);
/* Bytes above the limit of what does not fit. */
double report_excess(const SearchResult *r, const Family *f);

/* What `stator search` prints, without and with --json. */
void report_text(const Report *r, Text *out);
void report_json(const Report *r, Text *out);

/* A point of the picture, a row of the page: a strategy that was planned, one of the front, or
 * the fastest of a split of the ranks. Each is there once. */
typedef enum PointKind { POINT_PLANNED, POINT_FRONT, POINT_SPLIT, POINT_KINDS } PointKind;
typedef struct Point {
    PointKind kind;
    const Choice *c;
    double seconds, bytes; /* of a rank */
    int64_t sent_bytes;    /* -1: only plans know it */
} Point;
Point *report_points(const Report *r, int *n);

/* Seconds over bytes of a rank, as svg.h says. Point k has the id "p<k>" and says on its own what
 * it is. */
Text report_svg(const Report *r);
/* The same and a table of its points, which is sorted and filtered in the page: it needs
 * nothing from elsewhere. */
Text report_html(const Report *r);

#endif
