/* price.c - see price.h. */
#include "passes/shard/price.h"
#include <math.h>

/* Where no machine is known: so that of two ways that send nearly as much the one of fewer rounds is
 * taken. */
enum { START_BYTES = 4096 };

Price price_of_bytes(void) {
    return (Price){.least = 1};
}

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
    /* sums may be sent in fewer bytes than they are */
    double narrow = m->sum_bytes > 0 ? fmin(1, m->sum_bytes / 8) : 1;
    return most > 0 ? narrow / most : 0;
}

Price price_of_seconds(Arena *mem, const Machine *m, const Mesh *mesh, int stages,
                       int threads) {
    const GroupShape *shape = mesh_shapes(mem, m, mesh, stages, threads);
    return (Price){m, shape, least_seconds(m, shape, (size_t)1 << mesh->naxes)};
}

double price_to_send(const Price *p, int kind, Axes axes, DType type, double sent_bytes) {
    if (!p->machine) return sent_bytes + message_turns(kind) * START_BYTES;
    sent_bytes *= message_width(p->machine, kind, type);
    return next_to_nothing_seconds +
           collective_seconds(p->machine, &p->shape[axes], kind, sent_bytes);
}

double price_of_nothing(const Price *p) {
    return p->machine ? next_to_nothing_seconds : 1;
}
