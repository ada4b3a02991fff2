/* plot.c - the loss curve as SVG; see plot.h. */
#include "runtime/run/plot.h"
#include "runtime/run/svg.h"
#include <math.h>

enum {
    WIDTH = 860,
    HEIGHT = 460,
    LEFT = 72,
    RIGHT = 24,
    TOP = 56,
    BOTTOM = 56,
    PLOT_W = WIDTH - LEFT - RIGHT,
    PLOT_H = HEIGHT - TOP - BOTTOM,
    SMOOTH_FROM = 20
};

/* The two series are told apart by lightness too, not by hue alone. */
static const char light[] =
    ".line{fill:none;stroke-linejoin:round;stroke-linecap:round}\n"
    ".raw{stroke:#8fb8de;stroke-width:1}\n"
    ".smooth{stroke:#14589c;stroke-width:2}\n"
    ".valid{stroke:#c2571a;stroke-width:1.5}\n"
    ".dot{fill:#c2571a}\n";
static const char dark[] = ".raw{stroke:#3d6187}\n"
                           ".smooth{stroke:#74b3f0}\n"
                           ".valid{stroke:#f0965a}\n"
                           ".dot{fill:#f0965a}\n";

typedef struct Axis {
    double low, high;
} Axis;

static double x_of(const Axis *a, double v) {
    return LEFT + (v - a->low) / (a->high - a->low) * PLOT_W;
}

static double y_of(const Axis *a, double v) {
    return TOP + (a->high - v) / (a->high - a->low) * PLOT_H;
}

static void range_add(const PlotSeries *s, double *x, double *y) {
    for (int i = 0; i < s->n; i++) {
        if (!isfinite(s->x[i]) || !isfinite(s->y[i])) continue;
        x[0] = fmin(x[0], s->x[i]), x[1] = fmax(x[1], s->x[i]);
        y[0] = fmin(y[0], s->y[i]), y[1] = fmax(y[1], s->y[i]);
    }
}

/* Axis over [low, high] widened by `margin` of its length; a range of no length, or of
 * one beyond double, is given one. */
static Axis axis_over(const double range[2], double margin) {
    double low = range[0], high = range[1];
    if (!(low <= high)) low = 0, high = 1;
    low = fmax(low, -1e300), high = fmin(high, 1e300);
    low = fmin(low, 1e300), high = fmax(high, -1e300);
    double least = fmax(fmax(fabs(low), fabs(high)) * 1e-6, 1e-300);
    if (high - low < least) {
        double half = fmax(fabs(low) * 0.05, 1e-6);
        low -= half, high += half;
    }
    double pad = (high - low) * margin;
    return (Axis){.low = low - pad, .high = high + pad};
}

/* Lowest and highest point of each of `columns` runs of equal length, in their order:
 * what a picture of that width can show of n points. Returns how many. */
static int thin(const PlotSeries *s, int columns, int *out) {
    int n = 0;
    if (s->n <= 2 * columns) {
        for (int i = 0; i < s->n; i++) out[n++] = i;
        return n;
    }
    for (int c = 0; c < columns; c++) {
        int begin = (int)((int64_t)s->n * c / columns);
        int end = (int)((int64_t)s->n * (c + 1) / columns);
        int low = begin, high = begin;
        for (int i = begin; i < end; i++) {
            if (!isfinite(s->y[i])) continue;
            if (!(s->y[i] >= s->y[low])) low = i;
            if (!(s->y[i] <= s->y[high])) high = i;
        }
        out[n++] = MIN(low, high);
        if (low != high) out[n++] = MAX(low, high);
    }
    return n;
}

static bool drawable(const PlotSeries *s, int i) {
    return isfinite(s->x[i]) && isfinite(s->y[i]);
}

static void add_line(Text *t, const PlotSeries *s, const char *class, const Axis *x,
                     const Axis *y) {
    int *points = NEW_ARRAY(t->mem, int, (size_t)MAX(MIN(s->n, 2 * PLOT_W), 1));
    int n = thin(s, PLOT_W, points);
    bool pen_down = false;
    text_add(t, "<path class=\"line %s\" d=\"", class);
    for (int k = 0; k < n; k++) {
        int i = points[k];
        bool good = drawable(s, i);
        if (good)
            text_add(t, "%c%.1f %.1f", pen_down ? 'L' : 'M', x_of(x, s->x[i]),
                     y_of(y, s->y[i]));
        if (good && !pen_down) text_add(t, "h0"); /* a lone point shows as a dot */
        pen_down = good;
    }
    text_add(t, "\"/>\n");
}

static void add_dots(Text *t, const PlotSeries *s, const Axis *x, const Axis *y) {
    if (s->n > 200) return;
    for (int i = 0; i < s->n; i++)
        if (drawable(s, i))
            text_add(t, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n",
                     x_of(x, s->x[i]), y_of(y, s->y[i]));
}

/* Mean with weights that fall by `keep` per point to both sides, normalised at the ends:
 * a one-sided mean would run beside a falling curve, not through it. Gaps stay gaps. */
static PlotSeries smoothed(Arena *mem, const PlotSeries *s) {
    double *y = NEW_ARRAY(mem, double, (size_t)s->n);
    double *weights = NEW_ARRAY(mem, double, (size_t)s->n);
    double keep = 1 - 1 / fmax(s->n / 150.0, 4), sum = 0, weight = 0;
    for (int i = 0; i < s->n; i++) { /* from the left, the point itself included */
        bool good = isfinite(s->y[i]);
        y[i] = sum = keep * sum + (good ? s->y[i] : 0);
        weights[i] = weight = keep * weight + good;
    }
    sum = weight = 0;
    for (int i = s->n - 1; i >= 0; i--) { /* from the right, without the point */
        bool good = isfinite(s->y[i]);
        y[i] = good ? (y[i] + sum) / (weights[i] + weight) : NAN;
        sum = keep * (sum + (good ? s->y[i] : 0));
        weight = keep * (weight + good);
    }
    return (PlotSeries){s->x, y, s->n};
}

static double add_key(Text *t, double x, const char *class, const char *name) {
    text_add(t, "<path class=\"line %s\" d=\"M%.1f %dh22\"/>\n", class, x, TOP - 12);
    svg_text(t, x + 28, TOP - 8, "", name);
    return x + 48 + 7.2 * (double)strlen(name);
}

/* The last finite value of a series, for the legend: "training 2.3015". */
static const char *named_value(Arena *mem, const char *name, const PlotSeries *s) {
    for (int i = s->n - 1; i >= 0; i--)
        if (isfinite(s->y[i])) return arena_printf(mem, "%s %.4f", name, s->y[i]);
    return name;
}

/* The lines and their keys. */
static void add_series(Arena *mem, Text *t, const Plot *plot, const Axis *x,
                       const Axis *y) {
    const PlotSeries *train = &plot->train, *valid = &plot->validation;
    double key = LEFT;
    bool smooth = train->n >= SMOOTH_FROM;
    if (train->n) {
        const char *class = smooth ? "raw" : "smooth";
        add_line(t, train, class, x, y);
        key = add_key(t, key, class, named_value(mem, "training", train));
    }
    if (smooth) {
        PlotSeries s = smoothed(mem, train);
        add_line(t, &s, "smooth", x, y);
        key = add_key(t, key, "smooth", named_value(mem, "smoothed", &s));
    }
    if (valid->n) {
        add_line(t, valid, "valid", x, y);
        add_dots(t, valid, x, y);
        add_key(t, key, "valid", named_value(mem, "validation", valid));
    }
}

Text plot_svg(Arena *mem, const Plot *plot) {
    Text t = text_new(mem);
    double xs[2] = {INFINITY, -INFINITY}, ys[2] = {INFINITY, -INFINITY};
    range_add(&plot->train, xs, ys);
    range_add(&plot->validation, xs, ys);
    Axis x = axis_over(xs, 0), y = axis_over(ys, 0.05);
    const char *title = plot->title ? plot->title : "";
    svg_begin(&t, WIDTH, HEIGHT, title, light, dark);
    svg_text(&t, LEFT, 26, "class=\"title\"", title);
    svg_axis_y(&t, y.low, y.high, 6, LEFT, PLOT_W, TOP, PLOT_H);
    svg_axis_x(&t, x.low, x.high, 0, 8, LEFT, PLOT_W, TOP + PLOT_H);
    svg_text(&t, LEFT + PLOT_W / 2.0, HEIGHT - 14, "text-anchor=\"middle\"", "step");
    text_add(&t, "<g transform=\"translate(18 %d) rotate(-90)\">", TOP + PLOT_H / 2);
    svg_text(&t, 0, 0, "text-anchor=\"middle\"", "loss");
    text_add(&t, "</g>\n");
    add_series(mem, &t, plot, &x, &y);
    text_add(&t, "</svg>\n");
    return t;
}
