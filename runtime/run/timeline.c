/* timeline.c - see timeline.h. */
#include "runtime/run/timeline.h"
#include "runtime/run/svg.h"
#include <math.h>

enum {
    LEFT = 84,
    RIGHT = 28,
    TOP = 72,
    BOTTOM = 56,
    WIDTH_LEAST = 760,
    WIDTH_MOST = 2400,
    TASK_WIDTH = 14, /* that numbers have room in */
    ROWS_HEIGHT =
        640, /* of all rows, if so many pixels a row are not too few or too many */
    ROW_LEAST = 4,
    ROW_MOST = 34,
    LETTER_HEIGHT = 11,
    LETTER_WIDTH = 6,
    TITLE_WIDTH = 10, /* of a letter there */
    BOXES_MOST = 80000,
    SHADES_MOST = 8
};

/* Of each kind the first and the last shade. On paper, and to whom red and green are one,
 * lightness tells them apart: no kind comes near the next one. */
typedef struct Look {
    const char *name;
    uint32_t light[2], dark[2], text;
} Look;

static const Look looks[TASK_KINDS] = {
    [TASK_FORWARD] = {"forward", {0x123f73, 0x275f9b}, {0x2a5f9e, 0x3f78b8}, 0xffffff},
    [TASK_BACKWARD] = {"backward", {0xb8501a, 0xd0712f}, {0xd0682c, 0xe2874b}, 0x111111},
    [TASK_INPUTS] = {"backward, inputs",
                     {0x3fae8f, 0x66c4a7},
                     {0x4fbf9f, 0x76d4b9},
                     0x111111},
    [TASK_WEIGHTS] = {"backward, weights",
                      {0xe3c84a, 0xeed984},
                      {0xecd565, 0xf5e69c},
                      0x111111},
};

typedef struct Picture {
    const Timeline *l;
    int width, shades; /* of the plot; that occur */
    double row, box;   /* heights */
    double grain;      /* shorter boxes are drawn together */
} Picture;

/* ---- sizes and colours ---- */

static Picture picture_of(const Timeline *l) {
    Picture p = {.l = l, .shades = 1};
    int longest = 0;
    for (int r = 0; r < l->nrows; r++) {
        longest = MAX(longest, l->row[r].n);
        for (int i = 0; i < l->row[r].n; i++)
            p.shades = MAX(p.shades, MIN(l->row[r].box[i].shade + 1, SHADES_MOST));
    }
    double wanted =
        fmax((double)longest * TASK_WIDTH, TITLE_WIDTH * (double)strlen(l->title));
    p.width = (int)fmin(fmax(wanted, WIDTH_LEAST), WIDTH_MOST);
    p.row = fmin(fmax((double)ROWS_HEIGHT / MAX(l->nrows, 1), ROW_LEAST), ROW_MOST);
    p.box = 0.76 * p.row;
    p.grain = (double)p.width * l->nrows / BOXES_MOST;
    return p;
}

static bool has_kind(const Timeline *l, int kind) {
    for (int r = 0; r < l->nrows; r++)
        for (int i = 0; i < l->row[r].n; i++)
            if ((int)l->row[r].box[i].kind == kind) return true;
    return false;
}

static uint32_t between(const uint32_t end[2], double share) {
    uint32_t colour = 0;
    for (int shift = 0; shift <= 16; shift += 8) {
        double a = (double)(end[0] >> shift & 255), b = (double)(end[1] >> shift & 255);
        colour |= (uint32_t)lround(a + share * (b - a)) << shift;
    }
    return colour;
}

/* A class for each kind and shade, "F0", and one for the numbers of each kind. */
static const char *style_of(Arena *mem, const Picture *p, bool dark) {
    Text t = text_new(mem);
    text_add(&t, dark ? ".idle{fill:#24272d;stroke:#484c54}\n"
                      : ".idle{fill:#f3f3f3;stroke:#cfcfcf}\n"
                        ".number text{font-size:10px;text-anchor:middle}\n");
    for (int k = TASK_FORWARD; k < TASK_KINDS; k++) {
        const Look *look = &looks[k];
        if (!has_kind(p->l, k)) continue;
        for (int s = 0; s < p->shades; s++)
            text_add(&t, ".%c%d{fill:#%06x}\n", task_letter[k], s,
                     between(dark ? look->dark : look->light,
                             (double)s / MAX(p->shades - 1, 1)));
        if (!dark) text_add(&t, ".%c text{fill:#%06x}\n", task_letter[k], look->text);
    }
    return t.s;
}

/* ---- boxes ---- */

static double x_of(const Picture *p, double at) {
    return LEFT + (at - p->l->begin) / (p->l->end - p->l->begin) * p->width;
}

static double y_of(const Picture *p, int row) {
    return TOP + row * p->row + (p->row - p->box) / 2;
}

/* What is drawn as one box; the last task in it gives the colour. */
typedef struct Span {
    double from, to;
    const TimelineBox *last;
} Span;

/* The next one from box *i on; false: there is none. */
static bool next_span(const Picture *p, const TimelineRow *row, int *i, Span *s) {
    if (*i == row->n) return false;
    s->from = x_of(p, row->box[*i].begin);
    do {
        s->last = &row->box[(*i)++];
        s->to = x_of(p, s->last->end);
    } while (s->to - s->from < p->grain && *i < row->n &&
             x_of(p, row->box[*i].begin) - s->to < p->grain);
    return true;
}

/* Boxes of a kind and shade in a row as one path. Between two boxes some of the ground is
 * seen, but they stay boxes. */
static void add_boxes(const Picture *p, Text *t, int r, int kind, int shade) {
    Span s;
    bool any = false;
    for (int i = 0; next_span(p, &p->l->row[r], &i, &s);) {
        if ((int)s.last->kind != kind || s.last->shade % SHADES_MOST != shade) continue;
        double width = (s.to - s.from) - fmin(1, 0.15 * (s.to - s.from));
        if (!any) text_add(t, "<path class=\"%c%d\" d=\"", task_letter[kind], shade);
        text_add(t, "M%.2f %.1fh%.2fv%.1fh-%.2fz", s.from, y_of(p, r), width, p->box,
                 width);
        any = true;
    }
    if (any) text_add(t, "\"/>\n");
}

static bool has_room(const Picture *p, const Span *s) {
    int digits = snprintf(NULL, 0, "%d", s->last->number);
    return p->box >= LETTER_HEIGHT && s->to - s->from >= LETTER_WIDTH * digits + 3;
}

static void add_numbers(const Picture *p, Text *t, int kind) {
    Span s;
    text_add(t, "<g class=\"number %c\">\n", task_letter[kind]);
    for (int r = 0; r < p->l->nrows; r++)
        for (int i = 0; next_span(p, &p->l->row[r], &i, &s);)
            if ((int)s.last->kind == kind && has_room(p, &s))
                text_add(t, "<text x=\"%.1f\" y=\"%.1f\">%d</text>\n",
                         (s.from + s.to) / 2, y_of(p, r) + p->box / 2 + 3.5,
                         s.last->number);
    text_add(t, "</g>\n");
}

/* ---- what stands around them ---- */

/* Names of rows as far as there is room. */
static void add_rows(const Picture *p, Text *t) {
    int every = (int)ceil(LETTER_HEIGHT / p->row);
    for (int r = 0; r < p->l->nrows; r++) {
        text_add(t,
                 "<rect class=\"idle\" x=\"%d\" y=\"%.1f\" width=\"%d\" "
                 "height=\"%.1f\"/>\n",
                 LEFT, y_of(p, r), p->width, p->box);
        if (r % every) continue;
        svg_text(t, LEFT - 10, y_of(p, r) + p->box / 2 + 4.5, "text-anchor=\"end\"",
                 p->l->row[r].name);
    }
}

static void add_axis(const Picture *p, Text *t) {
    const Timeline *l = p->l;
    double bottom = TOP + l->nrows * p->row + 4;
    svg_axis_x(t, 0, l->axis_end, 1e-9, 10, LEFT, p->width, bottom);
    svg_text(t, LEFT + p->width / 2.0, bottom + 42, "text-anchor=\"middle\"", l->axis);
}

static double add_key(Text *t, double x, const char *class, const char *name) {
    text_add(t, "<rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"16\" height=\"12\"/>\n",
             class, x, TOP - 30);
    if (!name) return x + 18;
    svg_text(t, x + 22, TOP - 20, "", name);
    return x + 44 + 6.8 * (double)strlen(name);
}

static void add_legend(const Picture *p, Text *t) {
    char class[16];
    double x = LEFT;
    for (int k = TASK_FORWARD; k < TASK_KINDS; k++) {
        snprintf(class, sizeof class, "%c0", task_letter[k]);
        if (has_kind(p->l, k)) x = add_key(t, x, class, looks[k].name);
    }
    x = add_key(t, x, "idle", "waiting");
    for (int s = 0; s < p->shades && p->shades > 1; s++) {
        snprintf(class, sizeof class, "F%d", s);
        x = add_key(t, x, class,
                    s + 1 < p->shades ? NULL : "chunks of a stage, in order");
    }
}

double timeline_idle(const Timeline *l) {
    double busy = 0;
    for (int r = 0; r < l->nrows; r++)
        for (int i = 0; i < l->row[r].n; i++)
            busy += l->row[r].box[i].end - l->row[r].box[i].begin;
    return 1 - busy / (l->nrows * (l->end - l->begin));
}

Text timeline_svg(Arena *mem, const Timeline *l) {
    Text t = text_new(mem);
    Picture p = picture_of(l);
    svg_begin(&t, LEFT + p.width + RIGHT, TOP + (int)ceil(l->nrows * p.row) + BOTTOM,
              l->title, style_of(mem, &p, false), style_of(mem, &p, true));
    svg_text(&t, LEFT, 26, "class=\"title\"", l->title);
    add_legend(&p, &t);
    add_rows(&p, &t);
    for (int r = 0; r < l->nrows; r++)
        for (int k = TASK_FORWARD; k < TASK_KINDS; k++)
            for (int s = 0; s < p.shades; s++) add_boxes(&p, &t, r, k, s);
    for (int k = TASK_FORWARD; k < TASK_KINDS; k++)
        if (has_kind(l, k)) add_numbers(&p, &t, k);
    add_axis(&p, &t);
    text_add(&t, "</svg>\n");
    return t;
}
