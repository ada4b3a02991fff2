/* svg.h - what pictures have in common: a document, text in it, round ticks. */
#ifndef STATOR_SVG_H
#define STATOR_SVG_H
#include "base/base.h"

/* The beginning of a document of so many pixels: title, styles and the ground under all that
 * follows. It needs nothing from elsewhere (no scripts, fonts or links) and follows the
 * reader's light or dark theme: `light` are further styles, `dark` those that replace them.
 * There are the classes title, grid and axis. "</svg>\n" ends it. */
void svg_begin(Text *t, int width, int height, const char *title, const char *light,
               const char *dark);
/* Text between tags, of HTML too: markup is escaped; control characters and bytes that are no
 * UTF-8 are '?'. */
void svg_escape(Text *t, const char *s);
/* A line of text (svg_escape); `attributes` stand in its tag. */
void svg_text(Text *t, double x, double y, const char *attributes, const char *s);

/* Round ticks for an axis from lo to hi: *first + k * *step, about `want` of them; *first
 * is the smallest multiple of *step that is not below lo, *step is 1, 2 or 5 times a
 * power of ten. lo < hi, both finite. */
void svg_ticks(double lo, double hi, int want, double *first, double *step);
/* An axis from lo to hi, about `want` round ticks with what stands at them: along the lower edge of
 * a picture's plot, or grid lines over all of its width. A tick may lie behind hi by `slack` of the
 * length, for ends that are rounded. */
void svg_axis_x(Text *t, double lo, double hi, double slack, int want, int left,
                int width, double bottom);
void svg_axis_y(Text *t, double lo, double hi, int want, int left, int width, int top,
                int height);

#endif
