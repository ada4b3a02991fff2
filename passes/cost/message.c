/* message.c - see message.h. */
#include "passes/cost/message.h"
#include <math.h>
#include <stdlib.h>

enum { SMALL_BYTES = 64 << 10 }; /* of all members together: as comm_run.c has it */

/* ---- bytes ---- */

typedef struct RingCost {
    int factor;  /* parts of B / n that each of the other ranks costs */
    bool whole;  /* B itself for each of the other ranks */
    bool single; /* B once */
    bool sums;   /* numbers of several ranks are added up */
    bool pairs;  /* each sends to each */
} RingCost;

static const RingCost ring_cost[OP_COUNT] = {
    [OP_all_reduce] = {.factor = 2, .sums = true},
    [OP_reduce_scatter] = {.factor = 1, .sums = true},
    [OP_all_to_all] = {.factor = 1, .pairs = true},
    [OP_all_gather] = {.whole = true},
    [OP_ring_shift] = {.single = true},
};

bool message_sums(int kind) {
    return ring_cost[kind].sums;
}

bool message_in_ring(int kind) {
    return !ring_cost[kind].pairs;
}

static int64_t times(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}

int64_t message_sent_bytes(int kind, int64_t bytes, int n) {
    const RingCost *c = &ring_cost[kind];
    if (n <= 1) return 0;
    if (c->single) return bytes;
    if (c->whole) return times(bytes, n - 1);
    check(c->factor);
    int64_t steps = (int64_t)c->factor * (n - 1), out;
    bool over = __builtin_add_overflow(times(bytes / n, steps),
                                       (bytes % n * steps + n - 1) / n, &out);
    return over ? INT64_MAX : out;
}

/* Rounds that follow each other. */
static int rounds(int kind, int n) {
    const RingCost *c = &ring_cost[kind];
    return c->single ? 1 : MAX(c->factor, 1) * (n - 1);
}

/* ---- where the members are ---- */

static int ranks_of_host(const Machine *m, int ranks) {
    return m->host_ranks ? MIN(m->host_ranks, ranks) : ranks;
}

/* Members of the group of a rank that are on one host, at most; `first`: rank 0 of the stage. */
static int most_on_host(const Mesh *mesh, Axes axes, int first, int rank, int host) {
    int n = mesh_group_size(mesh, axes), most = 0, here = 0, last = -1;
    for (int k = 0; k < n; k++) {
        int at = (first + mesh_group_member(mesh, rank, axes, k)) / host;
        here = at == last ? here + 1 : 1;
        last = at;
        most = MAX(most, here);
    }
    return most;
}

GroupShape group_shape(const Machine *m, const Mesh *mesh, Axes axes, int stages) {
    int ranks = mesh_ranks(mesh), host = ranks_of_host(m, ranks * stages);
    int n = mesh_group_size(mesh, axes);
    GroupShape g = {.members = n, .on_host = n, .host_ranks = host, .at_work = host};
    bool one_host = host >= ranks * stages;
    for (int s = 0; s < stages && !one_host; s++) {
        if (s && s * ranks % host == 0) break; /* hosts begin as for stage 0 */
        for (int r = 0; r < ranks; r++)
            if (!mesh_group_coord(mesh, r, axes))
                g.on_host = MIN(g.on_host, most_on_host(mesh, axes, s * ranks, r, host));
    }
    g.level = g.on_host < n ? LINK_NETWORK : LINK_HOST;
    return g;
}

GroupShape stages_shape(const Machine *m, const Mesh *mesh, int stages, int from,
                        int to) {
    int ranks = mesh_ranks(mesh), host = ranks_of_host(m, ranks * stages);
    GroupShape g = {.members = 2, .on_host = 1, .host_ranks = host, .at_work = host};
    int first = MIN(from, to) * ranks, last = (MAX(from, to) + 1) * ranks - 1;
    bool near = first / host == last / host;
    g.level = near ? LINK_HOST : LINK_NETWORK;
    g.on_host = near ? 2 : 1;
    return g;
}

/* ---- seconds ---- */

/* Bytes a second of a rank on the slowest part of a ring: each group that has members on a
 * host has one connection that leaves it. */
static double ring_rate(const Machine *m, const GroupShape *g) {
    const Link *host = &m->link[LINK_HOST], *net = &m->link[LINK_NETWORK];
    if (g->level == LINK_HOST) return host->bytes_per_second;
    double share = net->bytes_per_second * g->on_host / g->host_ranks;
    if (net->rank_bytes_per_second > 0)
        share = MIN(share, net->rank_bytes_per_second * g->on_host);
    return g->on_host > 1 ? MIN(share, host->bytes_per_second) : share;
}

static const CollectiveCurve *find_curve(const Machine *m, const GroupShape *g, int op) {
    const CollectiveCurve *best = NULL;
    for (int i = 0; i < m->ncollectives; i++) {
        const CollectiveCurve *c = &m->collective[i];
        if (c->level != g->level || c->group != g->members || c->op != op) continue;
        bool closer = !best || abs(c->ranks - g->at_work) < abs(best->ranks - g->at_work);
        if (closer) best = c;
    }
    return best;
}

/* Does everybody get everything, in rounds in which twice as many have it? The rule of
 * comm_run.c. */
static bool is_small(int kind, double sent_bytes, int n) {
    const RingCost *c = &ring_cost[kind];
    bool reduces = c->factor && message_sums(kind), both = reduces && c->factor == 2;
    if (!(reduces || c->whole) || (n == 2 && !both)) return false;
    double part = c->whole ? sent_bytes / (n - 1) : sent_bytes / c->factor * n / (n - 1);
    return part * n <= SMALL_BYTES;
}

double collective_seconds(const Machine *m, const GroupShape *g, int kind,
                          double sent_bytes) {
    if (g->members <= 1) return 0;
    const CollectiveCurve *c = find_curve(m, g, kind);
    if (c) return curve_at(&c->seconds, sent_bytes);
    double steps = rounds(kind, g->members);
    if (is_small(kind, sent_bytes, g->members)) steps = ceil(log2(g->members));
    return steps * m->link[g->level].start_seconds + sent_bytes / ring_rate(m, g);
}

double message_seconds(const Machine *m, const GroupShape *g, double bytes) {
    const Link *l = &m->link[g->level];
    double rate = l->bytes_per_second;
    if (g->level == LINK_NETWORK) {
        rate /= g->host_ranks;
        if (l->rank_bytes_per_second > 0) rate = MIN(rate, l->rank_bytes_per_second);
        rate = MIN(rate, m->link[LINK_HOST].bytes_per_second);
    }
    return l->start_seconds + bytes / rate;
}
