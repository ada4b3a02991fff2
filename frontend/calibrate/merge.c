/* merge.c - see merge.h. */
#include "frontend/calibrate/merge.h"

static bool has_section(const Machine *m, const MachineRank *r) {
    for (int i = 0; i < m->nranks; i++)
        if (m->rank[i].ranks == r->ranks && m->rank[i].threads == r->threads) return true;
    return false;
}

static bool has_curves(const Machine *m, int ranks) {
    for (int i = 0; i < m->ncollectives; i++)
        if (m->collective[i].ranks == ranks) return true;
    return false;
}

static bool same_link(const Link *a, const Link *b) {
    return a->start_seconds == b->start_seconds &&
           a->bytes_per_second == b->bytes_per_second &&
           a->rank_bytes_per_second == b->rank_bytes_per_second;
}

/* A network that is like the host was not measured. What lies between hosts is the same for ranks
 * without cores of their own. */
static void take_links(Machine *m, const Machine *now, bool crowded) {
    bool network = !same_link(&m->link[LINK_HOST], &m->link[LINK_NETWORK]);
    for (int l = crowded ? LINK_NETWORK : 0; l < LINK_LEVELS; l++) {
        double most = m->link[l].rank_bytes_per_second;
        if (!(now->link[l].bytes_per_second > 0)) continue;
        m->link[l] = now->link[l];
        m->link[l].rank_bytes_per_second = most;
    }
    bool measured = now->link[LINK_NETWORK].bytes_per_second > 0;
    if (!network && !measured) m->link[LINK_NETWORK] = m->link[LINK_HOST];
}

/* Numbers that this run has measured; keys set by hand stay. */
static void take_numbers(Machine *m, const Machine *now) {
    bool crowded = !now->nranks && m->nranks; /* ranks without cores of their own */
    if (!strcmp(m->name, m->host)) m->name = now->name; /* it was not given by hand */
    m->host = now->host;
    m->made_on = now->made_on;
    m->cores = now->cores;
    if (now->host_ranks) m->host_ranks = now->host_ranks;
    if (now->nranks) m->op_start_seconds = now->op_start_seconds;
    if (now->nranks && now->ncollectives) m->hidden = now->hidden;
    if (now->notice_seconds > 0) m->notice_seconds = now->notice_seconds;
    take_links(m, now, crowded);
}

Machine *machine_merge(Arena *mem, const Machine *old, const Machine *now) {
    Machine *m = NEW(mem, Machine), nothing = machine_plain;
    nothing.nranks = 0;
    nothing.name = nothing.host;
    if (!old) old = &nothing;
    *m = *old;
    take_numbers(m, now);
    m->rank = NEW_ARRAY(mem, MachineRank, (size_t)(old->nranks + now->nranks) + 1);
    m->collective = NEW_ARRAY(mem, CollectiveCurve,
                              (size_t)(old->ncollectives + now->ncollectives) + 1);
    m->nranks = m->ncollectives = 0;
    for (int i = 0; i < old->nranks; i++)
        if (!has_section(now, &old->rank[i])) m->rank[m->nranks++] = old->rank[i];
    for (int i = 0; i < now->nranks; i++) m->rank[m->nranks++] = now->rank[i];
    for (int i = 0; i < old->ncollectives; i++)
        if (!has_curves(now, old->collective[i].ranks))
            m->collective[m->ncollectives++] = old->collective[i];
    for (int i = 0; i < now->ncollectives; i++)
        m->collective[m->ncollectives++] = now->collective[i];
    return m;
}
