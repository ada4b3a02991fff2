/* programs.c - the programs that a search looks at, each with as little as must be in it. */
#include "frontend/search/search_state.h"

Probe search_probe(Search *s, ProbeKey key) {
    const ProbeUpdate *known = NULL;
    for (int i = 0; i < s->nupdates && !known; i++)
        if (probe_same_update(&s->update[i]->key, &key)) known = s->update[i];
    Probe p = probe_make(s->mem, &s->job, s->o.machine, key, known);
    if (!known && p.update) PUSH(s->mem, s->update, s->nupdates, s->update_cap, p.update);
    return p;
}
