/* minimize.c - see minimize.h. */
#include "bench/fit/minimize.h"
#include <math.h>
#include <string.h>

typedef struct Point {
    double x[MINIMIZE_MOST], value;
} Point;

typedef struct Search {
    Objective f;
    void *data;
    int n, left; /* calls */
    Point corner[MINIMIZE_MOST + 1];
} Search;

static void evaluate(Search *s, Point *p) {
    p->value = s->f(p->x, s->data);
    s->left--;
}

/* By value, best first. */
static void sort(Search *s) {
    for (int i = 1; i <= s->n; i++) {
        Point p = s->corner[i];
        int k = i;
        for (; k > 0 && s->corner[k - 1].value > p.value; k--)
            s->corner[k] = s->corner[k - 1];
        s->corner[k] = p;
    }
}

static void begin(Search *s, const double *x, double step) {
    for (int i = 0; i <= s->n; i++) {
        memcpy(s->corner[i].x, x, (size_t)s->n * sizeof *x);
        if (i) s->corner[i].x[i - 1] += step;
        evaluate(s, &s->corner[i]);
    }
}

/* On the line from the worst corner through the middle of the others: -1 mirrors it. */
static Point on_line(Search *s, double t) {
    Point p = {.value = 0};
    const Point *worst = &s->corner[s->n];
    for (int d = 0; d < s->n; d++) {
        double middle = 0;
        for (int i = 0; i < s->n; i++) middle += s->corner[i].x[d] / s->n;
        p.x[d] = middle + t * (worst->x[d] - middle);
    }
    evaluate(s, &p);
    return p;
}

static void shrink(Search *s) {
    for (int i = 1; i <= s->n; i++) {
        for (int d = 0; d < s->n; d++)
            s->corner[i].x[d] = (s->corner[i].x[d] + s->corner[0].x[d]) / 2;
        evaluate(s, &s->corner[i]);
    }
}

static void improve(Search *s) {
    Point *worst = &s->corner[s->n];
    Point p = on_line(s, -1);
    if (p.value < s->corner[0].value) {
        Point far = on_line(s, -2);
        *worst = far.value < p.value ? far : p;
    } else if (p.value < s->corner[s->n - 1].value) {
        *worst = p;
    } else {
        Point near = on_line(s, p.value < worst->value ? -0.5 : 0.5);
        if (near.value < fmin(p.value, worst->value))
            *worst = near;
        else
            shrink(s);
    }
}

double minimize(Objective f, void *data, double *x, int n, double step, int calls) {
    enum { ROUNDS = 3 };
    Search s = {.f = f, .data = data, .n = n};
    for (int round = 0; round < ROUNDS; round++) {
        s.left = calls / ROUNDS;
        begin(&s, x, round % 2 ? -step : step);
        sort(&s);
        while (s.left > 0 && s.corner[n].value - s.corner[0].value > 1e-9) {
            improve(&s);
            sort(&s);
        }
        memcpy(x, s.corner[0].x, (size_t)n * sizeof *x);
    }
    return s.corner[0].value;
}
