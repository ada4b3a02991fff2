/* front_svg.c - see report.h: the picture. */
#include "frontend/search/report.h"
#include "runtime/run/svg.h"
#include <math.h>

enum {
    WIDTH = 860,
    HEIGHT = 520,
    LEFT = 76,
    RIGHT = 28,
    TOP = 84,
    BOTTOM = 56,
    PLOT_W = WIDTH - LEFT - RIGHT,
    PLOT_H = HEIGHT - TOP - BOTTOM
};

static const char *const point_kind_name[POINT_KINDS] = {
    [POINT_PLANNED] = "planned", [POINT_FRONT] = "front", [POINT_SPLIT] = "split"};

/* Kinds differ in size and filling as well as in colour. */
static const char light[] = ".front{fill:#14589c}\n"
                            ".line{fill:none;stroke:#14589c;stroke-width:1.5}\n"
                            ".split{fill:none;stroke:#8a8a8a;stroke-width:1.5}\n"
                            ".planned{fill:#c2571a}\n"
                            ".limit{stroke:#a01f1f;stroke-dasharray:6 4}\n"
                            "circle:hover{stroke:#111;stroke-width:3}\n";
static const char dark[] = ".front{fill:#74b3f0}\n"
                           ".line{stroke:#74b3f0}\n"
                           ".split{stroke:#8f959e}\n"
                           ".planned{fill:#f0965a}\n"
                           ".limit{stroke:#e07070}\n"
                           "circle:hover{stroke:#eee}\n";

/* ---- points ---- */

/* One that is planned is not shown again by its pieces. */
static void add_point(Point *p, int *n, Point point) {
    for (int i = 0; i < *n; i++)
        if (p[i].c->number == point.c->number && p[i].c->inside == point.c->inside)
            return;
    p[(*n)++] = point;
}

Point *report_points(const Report *r, int *n) {
    const SearchResult *s = r->r;
    size_t all = (size_t)s->ntop + (size_t)s->nfront + (size_t)s->nfamilies;
    Point *p = NEW_ARRAY(r->mem, Point, all + 1);
    *n = 0;
    for (int i = 0; i < s->ntop; i++) {
        const Verified *v = &s->top[i];
        p[(*n)++] =
            (Point){POINT_PLANNED, &v->c, v->seconds, (double)v->bytes, v->sent_bytes};
    }
    for (int i = 0; i < s->nfront; i++) {
        const Choice *c = &s->front[i];
        add_point(p, n, (Point){POINT_FRONT, c, c->seconds, c->bytes, -1});
    }
    for (int i = 0; i < s->nfamilies; i++) {
        const Family *f = &s->family[i];
        if (!f->refused && f->fit && isfinite(f->seconds))
            add_point(p, n, (Point){POINT_SPLIT, &f->best, f->seconds, f->bytes, -1});
    }
    return p;
}

/* ---- axes ---- */

/* Seconds end at so many times the fastest: what is slower stands on the upper edge, or the many
 * that are nearly as fast would be one line. */
static const double slowest = 1.6;

typedef struct Frame {
    double low_bytes, high_bytes, low_seconds, high_seconds;
    bool cut; /* there are slower ones */
} Frame;

static Frame frame_of(const Point *p, int n) {
    Frame a = {INFINITY, 0, INFINITY, 0, false};
    for (int i = 0; i < n; i++) {
        a.low_bytes = fmin(a.low_bytes, p[i].bytes);
        a.high_bytes = fmax(a.high_bytes, p[i].bytes);
        a.low_seconds = fmin(a.low_seconds, p[i].seconds);
        a.high_seconds = fmax(a.high_seconds, p[i].seconds);
    }
    if (!n) a = (Frame){0, 1, 1, 2, false};
    double margin = fmax(0.05 * (a.high_bytes - a.low_bytes), 1e-6 * a.high_bytes + 1);
    a.low_bytes = fmax(a.low_bytes - margin, 0);
    a.high_bytes += margin;
    a.cut = a.high_seconds > slowest * a.low_seconds;
    if (a.cut) a.high_seconds = slowest * a.low_seconds;
    margin = fmax(0.05 * (a.high_seconds - a.low_seconds), 1e-6 * a.high_seconds);
    a.low_seconds -= margin;
    a.high_seconds += margin;
    return a;
}

static double x_of(const Frame *a, double bytes) {
    return LEFT + (bytes - a->low_bytes) / (a->high_bytes - a->low_bytes) * PLOT_W;
}

static double y_of(const Frame *a, double seconds) {
    double above = a->high_seconds - fmin(seconds, a->high_seconds);
    return TOP + above / (a->high_seconds - a->low_seconds) * PLOT_H;
}

/* ---- what is drawn ---- */

static void add_limit(Text *t, const Frame *a, double room) {
    double x = x_of(a, room);
    if (room < a->low_bytes || room > a->high_bytes) return;
    text_add(t,
             "<path class=\"limit\" d=\"M%.1f %dv%d\"><title>the memory of a rank</title>"
             "</path>\n",
             x, TOP, PLOT_H);
}

/* What no choice is below: down at each of the front, and on to the right. */
static void add_line(Text *t, const Frame *a, const SearchResult *r) {
    if (!r->nfront) return;
    text_add(t, "<path class=\"line\" d=\"");
    for (int i = 0; i < r->nfront; i++) {
        double x = x_of(a, r->front[i].bytes), y = y_of(a, r->front[i].seconds);
        text_add(t, i ? "H%.1fV%.1f" : "M%.1f %.1f", x, y);
    }
    text_add(t, "H%d\"/>\n", LEFT + PLOT_W);
}

static void add_circle(Text *t, const Frame *a, const Report *r, const Point *p, int k) {
    static const double radius[POINT_KINDS] = {5, 3.5, 4.5};
    text_add(t,
             "<circle id=\"p%d\" class=\"%s\" pointer-events=\"all\" cx=\"%.1f\" "
             "cy=\"%.1f\" r=\"%g\"><title>%.4g s, ",
             k, point_kind_name[p->kind], x_of(a, p->bytes), y_of(a, p->seconds),
             radius[p->kind], p->seconds);
    text_add(t, "%s", human(p->bytes, "B").s);
    if (p->sent_bytes >= 0) text_add(t, ", %s sent", human((double)p->sent_bytes, "B").s);
    text_add(t, ": ");
    svg_escape(t, report_strategy(r->mem, p->c));
    text_add(t, "</title></circle>\n");
}

static void add_legend(Text *t) {
    static const char *const name[POINT_KINDS] = {
        "planned", "front of both, by pieces",
        "fastest of a split of the ranks, by pieces"};
    double x = LEFT + 6;
    for (int k = 0; k < POINT_KINDS; k++) {
        text_add(t, "<circle class=\"%s\" cx=\"%.1f\" cy=\"52\" r=\"4.5\"/>\n",
                 point_kind_name[k], x);
        svg_text(t, x + 12, 56, "", name[k]);
        x += 44 + 6.6 * (double)strlen(name[k]);
    }
}

Text report_svg(const Report *r) {
    int n;
    const Point *p = report_points(r, &n);
    Frame a = frame_of(p, n);
    Text t = text_new(r->mem);
    const char *title = arena_printf(
        r->mem, "%lld strategies of %d ranks on %s%s", (long long)r->r->choices,
        r->o->ranks, r->o->machine->name, r->r->stopped ? ", so far" : "");
    svg_begin(&t, WIDTH, HEIGHT, title, light, dark);
    svg_text(&t, LEFT, 28, "class=\"title\"", title);
    add_legend(&t);
    svg_text(&t, LEFT, 76, "",
             a.cut ? "seconds a step; slower ones stand on the upper edge"
                   : "seconds a step");
    svg_axis_y(&t, a.low_seconds, a.high_seconds, 8, LEFT, PLOT_W, TOP, PLOT_H);
    svg_axis_x(&t, a.low_bytes, a.high_bytes, 0, 10, LEFT, PLOT_W, TOP + PLOT_H);
    svg_text(&t, LEFT + PLOT_W / 2.0, TOP + PLOT_H + 42, "text-anchor=\"middle\"",
             "bytes of a rank");
    add_limit(&t, &a, r->r->room_bytes);
    add_line(&t, &a, r->r);
    for (int kind = POINT_KINDS - 1; kind >= 0; kind--)
        for (int i = 0; i < n; i++)
            if ((int)p[i].kind == kind) add_circle(&t, &a, r, &p[i], i);
    text_add(&t, "</svg>\n");
    return t;
}
