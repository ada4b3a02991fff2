/* rank_links.c - see rank_links.h. */
#include "passes/estimate/rank_links.h"

static bool goes_over(const RankLinks *l, const SlowLink *link, int a, int b) {
    if (link->hosts) {
        a /= l->host_ranks;
        b /= l->host_ranks;
        if (a == b) return false;
        if (link->b < 0) return link->a == a || link->a == b;
    }
    return (link->a == a && link->b == b) || (link->a == b && link->b == a);
}

static void worst(LinkDelay *d, double factor, int link) {
    if (factor > d->factor) *d = (LinkDelay){factor, link};
}

LinkDelay link_delay(const RankLinks *l, int a, int b) {
    LinkDelay d = {1, -1};
    for (int i = 0; i < l->n; i++)
        if (goes_over(l, &l->link[i], a, b)) worst(&d, l->link[i].factor, i);
    return d;
}

/* A ring waits for its slowest link in every round. */
static LinkDelay ring_delay(const RankLinks *l, const int *member, int n) {
    LinkDelay all = {1, -1};
    for (int k = 0; k < n; k++) {
        LinkDelay d = link_delay(l, member[k], member[(k + 1) % n]);
        worst(&all, d.factor, d.link);
    }
    return all;
}

/* Members of the group at each end of the link, but for pairs that are on one host. */
static int crossings(const RankLinks *l, const SlowLink *link, const int *member, int n) {
    int most = 0;
    for (int k = 0; k < n; k++) {
        int mine = 0;
        bool at_end = link->hosts ? member[k] / l->host_ranks == link->a
                                  : member[k] == link->a || member[k] == link->b;
        for (int j = 0; at_end && j < n; j++)
            mine += goes_over(l, link, member[k], member[j]);
        most = MAX(most, mine);
    }
    return most;
}

/* Each member sends one of the others in each of n - 1 rounds: those over the link are slow. */
static LinkDelay pairs_delay(const RankLinks *l, const int *member, int n) {
    LinkDelay all = {1, -1};
    for (int i = 0; i < l->n && n > 1; i++) {
        double share = (double)crossings(l, &l->link[i], member, n) / (n - 1);
        worst(&all, 1 + share * (l->link[i].factor - 1), i);
    }
    return all;
}

RankGroups rank_groups(Arena *mem, const RankLinks *l, Axes axes, int stage) {
    const Mesh *mesh = l->p->parts.mesh;
    int stages = l->p->parts.stages;
    int ranks = l->p->ranks, size = mesh_group_size(mesh, axes);
    int *member = NEW_ARRAY(mem, int, (size_t)size);
    RankGroups g = {.of = NEW_ARRAY(mem, int, (size_t)ranks)};
    size_t groups = (size_t)(ranks / size);
    if (l->n) g.ring = NEW_ARRAY(mem, LinkDelay, groups);
    if (l->n) g.pairs = NEW_ARRAY(mem, LinkDelay, groups);
    for (int r = 0; r < ranks; r++) {
        if (mesh_group_coord(mesh, r, axes)) continue;
        for (int k = 0; k < size; k++) {
            int at = mesh_group_member(mesh, r, axes, k);
            g.of[at] = g.n;
            member[k] = mesh_rank_at(mesh, stages, stage, at);
        }
        if (l->n) g.ring[g.n] = ring_delay(l, member, size);
        if (l->n) g.pairs[g.n] = pairs_delay(l, member, size);
        g.n++;
    }
    return g;
}
