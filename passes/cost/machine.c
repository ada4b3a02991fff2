/* machine.c - see machine.h. */
#include "passes/cost/machine.h"
#include <limits.h>
#include <math.h>

const char *const product_form_name[PRODUCT_FORMS] = {"nn", "nt", "tn", "tt"};
const char *const link_level_name[LINK_LEVELS] = {"host", "network"};

static MachineRank plain_rank = {.ranks = 1, .threads = 1, .flops = {5e10, 5e10}};
const Machine machine_plain = {
    .name = "plain",
    .host = "",
    .cores = 1,
    .rank = &plain_rank,
    .nranks = 1,
    .reached = 1,
    .unaligned = 1,
    .inner_reached = 1,
    .link = {{.start_seconds = 2e-5, .bytes_per_second = 25e9 / 12},
             {.start_seconds = 2e-5, .bytes_per_second = 25e9 / 12}},
    .hidden = 1,
};

const Machine *machine_of_passes(const PassOptions *o) {
    return o->machine ? o->machine : &machine_plain;
}

/* ---- curves ---- */

/* The last point at or before x; -1: there is none. */
static int point_before(const double *x, int n, double at) {
    int low = 0, high = n;
    while (low < high) {
        int mid = (low + high) / 2;
        if (x[mid] <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low - 1;
}

/* How far `at` is from x[i] to x[i + 1] in logarithms; i and this are set so that it is 0 to
 * 1 and i + 1 is a point, where there are two. */
static double share_between(const double *x, int n, double at, int *i) {
    *i = MAX(0, MIN(point_before(x, n, at), n - 2));
    if (n < 2 || at <= x[*i]) return 0;
    if (at >= x[*i + 1]) return 1;
    return log(at / x[*i]) / log(x[*i + 1] / x[*i]);
}

double curve_at(const Curve *c, double x) {
    int i;
    if (c->n < 1) return 0;
    double t = share_between(c->x, c->n, x, &i);
    double y = c->n < 2 ? c->y[0] : c->y[i] * pow(c->y[i + 1] / c->y[i], t);
    double nearest = MIN(MAX(x, c->x[0]), c->x[c->n - 1]);
    return c->grows && x > nearest ? y * x / nearest : y;
}

/* ---- ranks ---- */

static double mismatch(const MachineRank *r, int ranks, int threads) {
    double by_threads = r->threads ? fabs(log((double)r->threads / threads)) : 0;
    double by_ranks = fabs(log((double)r->ranks / ranks));
    return 2 * by_threads + by_ranks;
}

int machine_host_ranks(const Machine *m, int ranks) {
    return m->host_ranks ? MIN(m->host_ranks, ranks) : ranks;
}

int machine_ranks_with_cores(const Machine *m, int threads) {
    if (m->cores <= 0 || threads <= 0) return INT_MAX;
    return MAX(1, m->cores / threads);
}

const MachineRank *machine_rank(const Machine *m, int ranks, int threads) {
    const MachineRank *best = &m->rank[0];
    for (int i = 1; i < m->nranks; i++)
        if (mismatch(&m->rank[i], ranks, MAX(threads, 1)) <
            mismatch(best, ranks, MAX(threads, 1)))
            best = &m->rank[i];
    return best;
}

const MachineRank *machine_rank_of(const Machine *m, int ranks, int threads) {
    int host = machine_host_ranks(m, ranks);
    return machine_rank(m, MIN(host, machine_ranks_with_cores(m, threads)), threads);
}

double machine_rank_stretch(const Machine *m, const MachineRank *r, int threads) {
    if (m->cores <= 0 || threads <= 0) return 1;
    return MAX(1, (double)r->threads / threads);
}

/* ---- products ---- */

/* Between two sizes the time of a product lies on the line through theirs, so the time of a
 * flop on that through 1 / size. */
static double share_of_sizes(const double *x, int n, double at, int *i) {
    *i = MAX(0, MIN(point_before(x, n, at), n - 2));
    if (n < 2 || at <= x[*i]) return 0;
    if (at >= x[*i + 1]) return 1;
    return (1 / x[*i] - 1 / at) / (1 / x[*i] - 1 / x[*i + 1]);
}

static double table_rate(const ProductTable *t, const ProductSize *s) {
    const double at[3] = {s->rows, s->columns, s->summed};
    int first[3];
    double share[3], rate = 0;
    for (int d = 0; d < 3; d++)
        share[d] = share_of_sizes(t->size, t->n, at[d], &first[d]);
    for (int corner = 0; corner < 8; corner++) {
        double weight = 1;
        int index = 0;
        for (int d = 0; d < 3; d++) {
            bool far = corner >> d & 1;
            weight *= far ? share[d] : 1 - share[d];
            index = index * t->n + MIN(first[d] + far, t->n - 1);
        }
        if (weight > 0) rate += weight / t->rate[index];
    }
    return 1 / rate;
}

static const ProductTable *find_table(const MachineRank *r, DType type,
                                      ProductForm form) {
    const ProductTable *any = NULL;
    for (int i = 0; i < r->nproducts; i++) {
        const ProductTable *t = &r->product[i];
        if (t->type != type) continue;
        if (t->form == form) return t;
        if (!any) any = t;
    }
    return any;
}

static bool is_aligned(const Machine *m, const ProductSize *s) {
    if (!m->aligned) return true;
    return !(fmod(s->rows, m->aligned) > 0 || fmod(s->columns, m->aligned) > 0 ||
             fmod(s->summed, m->aligned) > 0);
}

static double formula_rate(const Machine *m, const MachineRank *r, DType type,
                           const ProductSize *s) {
    double reached = m->reached;
    if (!is_aligned(m, s)) reached *= m->unaligned;
    return machine_peak(r, type) * reached * s->rows / (s->rows + m->half) * s->columns /
           (s->columns + m->half) * s->summed / (s->summed + m->half);
}

double machine_product_seconds(const Machine *m, const MachineRank *r, DType type,
                               ProductForm form, const ProductSize *s) {
    const ProductTable *t = find_table(r, type, form);
    double rate = t ? table_rate(t, s) : formula_rate(m, r, type, s);
    return 2 * s->batch * s->rows * s->columns * s->summed / rate;
}

double machine_peak(const MachineRank *r, DType type) {
    double peak = r->flops[type == DT_BF16 ? 1 : type == DT_F16 ? 2 : 0];
    return peak > 0 ? peak : r->flops[0];
}

double machine_memory_rate(const MachineRank *r, double bytes) {
    return r->memory.n ? curve_at(&r->memory, bytes) : INFINITY;
}

typedef double SecondsOfByte(const MachineRank *r, double between);

/* What a byte takes with so many touched between. One that is read takes no longer than one that is
 * written, since a cache reads what it does not hold before it is written. */
static double seconds_to_read(const MachineRank *r, double between) {
    double each = 1 / curve_at(&r->memory, between);
    return r->reads.n ? MIN(1 / curve_at(&r->reads, between), each) : each;
}

static double seconds_to_write(const MachineRank *r, double between) {
    return 3 / curve_at(&r->memory, between) - 2 * seconds_to_read(r, between);
}

static double seconds_to_overwrite(const MachineRank *r, double between) {
    double write = seconds_to_write(r, between);
    if (!r->in_place.n) return write;
    double over = 3 / curve_at(&r->in_place, between) - 2 * seconds_to_read(r, between);
    return MAX(0, MIN(over, write));
}

/* Of those that caches would hold by their number, a share has been lost. */
static double seconds_of(const MachineRank *r, SecondsOfByte *of_byte, double bytes,
                         Since since) {
    if (!(bytes > 0)) return 0;
    double held = of_byte(r, since.bytes);
    if (!(r->keeps_seconds > 0)) return bytes * held;
    double lost = 1 - exp(-since.seconds / r->keeps_seconds);
    double far = of_byte(r, MAX(since.bytes, r->memory.x[r->memory.n - 1]));
    return bytes * (held + lost * MAX(0, far - held));
}

double machine_memory_seconds(const MachineRank *r, const Moved *m) {
    if (!(m->read + m->written > 0) || !r->memory.n) return 0;
    return seconds_of(r, seconds_to_read, m->read - m->near, m->since_read) +
           seconds_of(r, seconds_to_read, m->near, m->since_near) +
           seconds_of(r, seconds_to_overwrite, m->overwritten, m->since_written) +
           seconds_of(r, seconds_to_write, m->written - m->overwritten, m->since_written);
}
