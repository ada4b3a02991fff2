/* orders.c - in which orders the degrees of a choice may number the ranks. What an order changes
 * is which groups have ranks of several hosts. None is tried that gives ranks which share layers
 * slower links than the usual order: they communicate in each layer. Of the others that give all
 * groups and the messages between stages the same links one is kept, and none that another is at
 * least as good as for each of them: seconds only fall with faster links. */
#include "frontend/search/search_state.h"
#include "passes/cost/message.h"

/* What a group's messages go over. */
typedef struct LinkRate {
    double start, rate;
    LinkLevel level;
} LinkRate;

enum { MOST_AXES = 4, MOST_WIRES = (2 << MOST_AXES) + 4 };
typedef struct Wires { /* of an order */
    LinkRate of[MOST_WIRES];
    int n, layers; /* the first of them are within replicas */
} Wires;

Mesh choice_mesh(const Choice *c) {
    bool both = c->ring > 1 && c->ring < c->cp;
    Mesh m = {.axis = {{"dp", c->dp}, {"cp", both ? c->ring : c->cp}}};
    m.naxes = 2;
    if (both) {
        m.axis[m.naxes].name = "up";
        m.axis[m.naxes++].size = c->cp / c->ring;
    }
    m.axis[m.naxes].name = "tp";
    m.axis[m.naxes++].size = c->tp;
    mesh_set_order(&m, c->pp, &c->order);
    return m;
}

Axes choice_replicas(const Mesh *mesh) {
    return (Axes)((1u << (mesh->naxes - 1)) - 1);
}

GroupShape choice_hop(const Machine *m, const Mesh *mesh, int stages, int stage) {
    return stages_shape(m, mesh, stages, stage, (stage + 1) % stages);
}

static void add_wire(const Machine *m, Wires *w, const GroupShape *g, double rate) {
    w->of[w->n++] = (LinkRate){m->link[g->level].start_seconds, rate, g->level};
}

/* Both ways that its messages may go: round a ring, and from each to each. */
static void add_group(const Machine *m, Wires *w, const GroupShape *g) {
    if (g->members <= 1) return;
    add_wire(m, w, g, ring_rate(m, g));
    add_wire(m, w, g, pairs_rate(m, g));
}

/* The slowest messages between stages, all of them together, and how many cross hosts. */
static void add_hops(const Machine *m, Wires *w, const Mesh *mesh, int stages) {
    enum { BYTES = 1000000000 };
    GroupShape slowest = {0};
    double most = 0, sum = 0;
    int crossing = 0;
    for (int k = 0; k < stages; k++) {
        GroupShape g = choice_hop(m, mesh, stages, k);
        double seconds = message_seconds(m, &g, BYTES);
        if (seconds > most) slowest = g, most = seconds;
        sum += seconds;
        crossing += g.level == LINK_NETWORK;
    }
    add_wire(m, w, &slowest, 1 / most);
    add_wire(m, w, &slowest, 1 / sum);
    w->of[w->n++] = (LinkRate){.start = crossing, .level = slowest.level};
}

/* Of the sets of axes within a replica, of all that have the same parameters, of stages. */
static Wires wires_of(const Machine *m, const Choice *c) {
    Wires w = {.n = 0};
    Mesh mesh = choice_mesh(c);
    for (int axes = 2; axes < 1 << mesh.naxes; axes += 2) {
        GroupShape g = group_shape(m, &mesh, (Axes)axes, c->pp);
        add_group(m, &w, &g);
    }
    w.layers = w.n;
    GroupShape g = group_shape(m, &mesh, choice_replicas(&mesh), c->pp);
    add_group(m, &w, &g);
    if (c->pp > 1) add_hops(m, &w, &mesh, c->pp);
    return w;
}

/* None of the first n goes over a slower link. Measured collectives have curves of their own
 * for a host and for the network, so with some the level has to be the same. */
static bool no_worse(const Machine *m, const Wires *a, const Wires *b, int n) {
    for (int i = 0; i < n; i++) {
        const LinkRate *x = &a->of[i], *y = &b->of[i];
        if (x->start > y->start || x->rate < y->rate) return false;
        if (m->ncollectives && x->level != y->level) return false;
    }
    return true;
}

/* The next permutation of n words in the order of the alphabet; false: it was the last. */
static bool next_permutation(uint8_t *word, int n) {
    int i = n - 2, k = n - 1;
    while (i >= 0 && word[i] >= word[i + 1]) i--;
    if (i < 0) return false;
    while (word[k] <= word[i]) k--;
    uint8_t swap = word[i];
    word[i] = word[k];
    word[k] = swap;
    for (int a = i + 1, b = n - 1; a < b; a++, b--) {
        swap = word[a];
        word[a] = word[b];
        word[b] = swap;
    }
    return true;
}

/* Degrees of 1 stay where they are. */
static RankOrder order_with(const uint8_t *many, const bool *is_many) {
    RankOrder o;
    for (int k = 0, n = 0; k < RANK_WORDS; k++)
        o.word[k] = is_many[k] ? many[n++] : (uint8_t)k;
    return o;
}

typedef struct Kept {
    RankOrder *order;
    Wires usual, wires[SEARCH_ORDERS];
    int n;
} Kept;

static void keep_order(const Machine *m, Kept *k, const Choice *c) {
    Wires w = wires_of(m, c);
    if (!k->n) k->usual = w;
    if (!no_worse(m, &w, &k->usual, w.layers)) return;
    for (int i = 0; i < k->n; i++)
        if (no_worse(m, &k->wires[i], &w, w.n)) return;
    int left = 0;
    for (int i = 0; i < k->n; i++) {
        if (no_worse(m, &w, &k->wires[i], w.n)) continue;
        k->order[left] = k->order[i];
        k->wires[left++] = k->wires[i];
    }
    k->order[left] = c->order;
    k->wires[left] = w;
    k->n = left + 1;
}

int choice_orders(const Search *s, const Choice *c, RankOrder *order) {
    const Machine *m = s->o.machine;
    const int size[RANK_WORDS] = {
        [RANK_TP] = c->tp, [RANK_CP] = c->cp, [RANK_DP] = c->dp, [RANK_PP] = c->pp};
    uint8_t many[RANK_WORDS];
    bool is_many[RANK_WORDS];
    int n = 0;
    for (int k = 0; k < RANK_WORDS; k++) {
        is_many[k] = size[k] > 1;
        if (is_many[k]) many[n++] = (uint8_t)k;
    }
    order[0] = s->fixed[KNOB_ORDER] >= 0 ? s->order : order_with(many, is_many);
    if (s->fixed[KNOB_ORDER] >= 0 || !m->host_ranks || m->host_ranks >= s->o.ranks)
        return 1;
    Kept k = {.order = order};
    Choice own = *c;
    do {
        own.order = order_with(many, is_many);
        keep_order(m, &k, &own);
    } while (next_permutation(many, n));
    return k.n;
}
