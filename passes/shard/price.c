/* price.c - see price.h. */
#include "passes/shard/price.h"
#include <math.h>

/* Between two points of a curve the logarithms lie on a line, so its rate is best at a point. */
static double least_seconds(const Machine *m, const GroupShape *shape, size_t sets) {
    double most = 0;
    for (size_t axes = 0; axes < sets; axes++)
        if (shape[axes].members > 1) most = fmax(most, ring_rate(m, &shape[axes]));
    for (int i = 0; i < m->ncollectives; i++) {
        const Curve *c = &m->collective[i].seconds;
        for (int k = 0; k < c->n; k++)
            if (c->y[k] > 0) most = fmax(most, c->x[k] / c->y[k]);
    }
    return most > 0 ? 1 / most : 0;
}

Price price_new(Arena *mem, const Mesh *mesh, const PassOptions *o) {
    if (!o->machine) return (Price){.least = 1};
    size_t sets = (size_t)1 << mesh->naxes;
    GroupShape *shape = NEW_ARRAY(mem, GroupShape, sets);
    for (size_t axes = 0; axes < sets; axes++)
        shape[axes] = group_shape(o->machine, mesh, (Axes)axes, MAX(o->stages, 1));
    return (Price){o->machine, shape, least_seconds(o->machine, shape, sets)};
}

/* Two ways that take equally long differ by their steps. */
static const double next_to_nothing_seconds = 1e-11;

double price_of(const Price *p, int kind, Axes axes, double sent_bytes,
                double start_bytes) {
    if (p->machine)
        return next_to_nothing_seconds +
               collective_seconds(p->machine, &p->shape[axes], kind, sent_bytes);
    int starts = kind == OP_all_reduce ? 2 : 1;
    return sent_bytes + starts * start_bytes;
}

double price_of_none(const Price *p) {
    return p->machine ? next_to_nothing_seconds : 1;
}
