/* message.c - see message.h. */
#include "passes/cost/message.h"
#include "passes/cost/small_message.h"
#include <math.h>
#include <stdlib.h>

const double next_to_nothing_seconds = 1e-11;

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

double message_sent(int kind, double bytes, double n) {
    const RingCost *c = &ring_cost[kind];
    if (c->single) return n > 1 ? bytes : 0;
    return c->whole ? (n - 1) * bytes : c->factor * (n - 1) / n * bytes;
}

bool message_sums(int kind) {
    return ring_cost[kind].sums;
}

bool message_in_ring(int kind) {
    return !ring_cost[kind].pairs;
}

int64_t message_sent_bytes(int kind, int64_t bytes, int n) {
    const RingCost *c = &ring_cost[kind];
    if (n <= 1) return 0;
    if (c->single) return bytes;
    if (c->whole) return times_capped(bytes, n - 1);
    check(c->factor);
    int64_t steps = (int64_t)c->factor * (n - 1);
    return plus_capped(times_capped(bytes / n, steps), (bytes % n * steps + n - 1) / n);
}

int message_turns(int kind) {
    return MAX(ring_cost[kind].factor, 1);
}

/* Rounds that follow each other. */
static int rounds(int kind, int n) {
    return ring_cost[kind].single ? 1 : message_turns(kind) * (n - 1);
}

/* ---- where the members are ---- */

/* Where hosts end with whole axes, the last of them perhaps with an equal part of one, all groups
 * lie alike: members on a host. 0: they do not. */
static int aligned_on_host(const Mesh *mesh, int stages, Axes axes, int host) {
    int inner = 1, n = 1;
    for (int k = 0; k <= mesh->naxes && inner < host; k++) {
        int a = mesh_axis_at(mesh, k);
        int size = a == mesh->naxes ? stages : mesh->axis[a].size;
        int part = MIN(size, host / inner);
        if (host % (inner * part) || size % part || (part < size && inner * part != host))
            return 0;
        if (a < mesh->naxes && axes >> a & 1) n *= part;
        inner *= part;
    }
    return n;
}

/* How far apart neighbours on each axis and stages are numbered: mesh_rank_at, for many ranks. */
typedef struct Strides {
    int of[MAX_AXES + 1];
} Strides;

static Strides strides_of(const Mesh *mesh, int stages) {
    Strides by;
    for (int a = 0; a <= mesh->naxes; a++) by.of[a] = mesh_stride(mesh, stages, a);
    return by;
}

static int rank_of(const Mesh *mesh, const Strides *by, int stage, int nth) {
    int rank = stage * by->of[mesh->naxes];
    for (int a = mesh->naxes - 1; a >= 0; nth /= mesh->axis[a--].size)
        rank += nth % mesh->axis[a].size * by->of[a];
    return rank;
}

/* Where the ranks of all stages are. */
typedef struct Hosts {
    Arena *mem;
    const Mesh *mesh;
    int ranks, host;
    int *at;    /* by stage and rank of the stage */
    int *count; /* by host: 0 but while members are counted */
} Hosts;

static Hosts hosts_of(const Machine *m, const Mesh *mesh, int stages) {
    Hosts h = {.mem = arena_new(), .mesh = mesh, .ranks = mesh_ranks(mesh)};
    h.host = machine_host_ranks(m, h.ranks * stages);
    size_t all = (size_t)h.ranks * (size_t)stages;
    h.at = NEW_ARRAY(h.mem, int, all);
    h.count = NEW_ARRAY(h.mem, int, all / (size_t)h.host + 1);
    Strides by = strides_of(mesh, stages);
    for (size_t i = 0; i < all; i++)
        h.at[i] = rank_of(mesh, &by, (int)i / h.ranks, (int)i % h.ranks) / h.host;
    return h;
}

/* Members of the group of a rank that are on one host, at most. */
static int most_on_host(const Hosts *h, Axes axes, int stage, int rank) {
    int n = mesh_group_size(h->mesh, axes), most = 0;
    const int *at = h->at + stage * h->ranks;
    for (int k = 0; k < n; k++) {
        int here = ++h->count[at[mesh_group_member(h->mesh, rank, axes, k)]];
        most = MAX(most, here);
    }
    for (int k = 0; k < n; k++)
        h->count[at[mesh_group_member(h->mesh, rank, axes, k)]] = 0;
    return most;
}

/* Of all groups. */
static int fewest_on_host(const Machine *m, const Mesh *mesh, Axes axes, int stages) {
    int ranks = mesh_ranks(mesh), fewest = mesh_group_size(mesh, axes);
    Hosts h = hosts_of(m, mesh, stages);
    for (int s = 0; s < stages; s++) {
        if (s && !mesh->norder && s * ranks % h.host == 0) break; /* as stage 0 */
        for (int r = 0; r < ranks; r++)
            if (!mesh_group_coord(mesh, r, axes))
                fewest = MIN(fewest, most_on_host(&h, axes, s, r));
    }
    arena_free(h.mem);
    return fewest;
}

GroupShape group_shape(const Machine *m, const Mesh *mesh, Axes axes, int stages) {
    int ranks = mesh_ranks(mesh), host = machine_host_ranks(m, ranks * stages);
    int n = mesh_group_size(mesh, axes);
    GroupShape g = {.members = n, .on_host = n, .host_ranks = host, .at_work = host};
    if (host >= ranks * stages || n == 1) return g;
    int aligned = aligned_on_host(mesh, stages, axes, host);
    g.on_host = aligned ? aligned : fewest_on_host(m, mesh, axes, stages);
    g.level = g.on_host < n ? LINK_NETWORK : LINK_HOST;
    return g;
}

/* Stages that share cores take turns: then those of one are at work. */
GroupShape *mesh_shapes(Arena *mem, const Machine *m, const Mesh *mesh, int stages,
                        int threads) {
    size_t sets = (size_t)1 << mesh->naxes;
    int at_once = MAX(mesh_ranks(mesh), machine_ranks_with_cores(m, threads));
    GroupShape *shape = NEW_ARRAY(mem, GroupShape, sets);
    for (size_t axes = 0; axes < sets; axes++) {
        shape[axes] = group_shape(m, mesh, (Axes)axes, stages);
        shape[axes].at_work = MIN(shape[axes].host_ranks, at_once);
    }
    return shape;
}

GroupShape stages_shape(const Machine *m, const Mesh *mesh, int stages, int from,
                        int to) {
    int ranks = mesh_ranks(mesh), host = machine_host_ranks(m, ranks * stages);
    GroupShape g = {.members = 2, .on_host = 2, .host_ranks = host, .at_work = host};
    if (host >= ranks * stages) return g;
    Arena *own = arena_new();
    int hosts = (int)divided_up((int64_t)ranks * stages, host), most = 0;
    int *leave = NEW_ARRAY(own, int, (size_t)hosts),
        *come = NEW_ARRAY(own, int, (size_t)hosts);
    Strides by = strides_of(mesh, stages);
    for (int r = 0; r < ranks; r++) {
        int first = rank_of(mesh, &by, 0, r), apart = by.of[mesh->naxes],
            a = (first + from * apart) / host, b = (first + to * apart) / host;
        if (a == b) continue;
        leave[a]++, come[b]++;
        most = MAX(most, MAX(leave[a], come[b]));
    }
    arena_free(own);
    if (!most) return g;
    g.on_host = 1, g.host_ranks = most, g.level = LINK_NETWORK;
    return g;
}

/* ---- seconds ---- */

double message_width(const Machine *m, int kind, DType type) {
    bool sums = message_sums(kind) && dtype_is_float(type) && m->sum_bytes > 0;
    return sums ? m->sum_bytes / dtype_bytes[type] : 1;
}

/* Each group that has members on a host has one connection that leaves it. */
double ring_rate(const Machine *m, const GroupShape *g) {
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

static bool is_small(int kind, double sent_bytes, int n) {
    const RingCost *c = &ring_cost[kind];
    double bytes =
        c->whole ? sent_bytes / (n - 1) : sent_bytes / message_turns(kind) * n / (n - 1);
    return message_is_small(c->sums, c->whole || c->factor == 2, n, bytes);
}

/* What each sends to members on other hosts shares the network of its host with what all of the
 * host's ranks send so; in all it is no faster than within a host. */
double pairs_rate(const Machine *m, const GroupShape *g) {
    const Link *net = &m->link[LINK_NETWORK];
    double within = m->link[LINK_HOST].bytes_per_second;
    if (g->level == LINK_HOST) return within;
    double rate = net->bytes_per_second / g->host_ranks;
    if (net->rank_bytes_per_second > 0) rate = MIN(rate, net->rank_bytes_per_second);
    return MIN(within, rate * (g->members - 1) / (g->members - g->on_host));
}

double collective_seconds(const Machine *m, const GroupShape *g, int kind,
                          double sent_bytes) {
    if (g->members <= 1) return 0;
    const CollectiveCurve *c = find_curve(m, g, kind);
    if (c) return curve_at(&c->seconds, sent_bytes);
    double steps = rounds(kind, g->members);
    if (is_small(kind, sent_bytes, g->members)) steps = ceil(log2(g->members));
    double rate = message_in_ring(kind) ? ring_rate(m, g) : pairs_rate(m, g);
    return steps * m->link[g->level].start_seconds + sent_bytes / rate;
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
