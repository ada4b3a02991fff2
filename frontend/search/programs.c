/* programs.c - the programs that a search looks at, each with as little as must be in it. */
#include "frontend/search/search_state.h"

Probe search_probe(Search *s, ProbeKey key) {
    const ProbeUpdate *known = NULL;
    for (int i = 0; i < s->nupdates && !known; i++)
        if (probe_same_update(&s->update[i]->key, &key)) known = s->update[i];
    if (!s->shared.paths) s->shared = probe_shared(s->mem, &s->job);
    Probe p = probe_make(s->mem, &s->job, s->o.machine, key, known, &s->shared);
    if (!known && p.update) PUSH(s->mem, s->update, s->nupdates, s->update_cap, p.update);
    return p;
}

void probe_take(Probe *p, Probe program) {
    program.pieces = p->pieces;
    program.places = p->places;
    program.shapes = p->shapes;
    program.extra = p->extra;
    *p = program;
}

double search_ahead_bytes(const Search *s) {
    Arena *own = arena_new();
    Config c = one_stage_config(s->o.cfg);
    c.parallel_config_model_parallel = c.parallel_config_context_parallel = 1;
    c.parallel_config_context_parallel_algo = CP_ULYSSES;
    c.parallel_config_micro_batch_num = c.micro_batch_interleave_num = 1;
    Job j = {.mem = own, .plans = true, .cfg = &c, .strategy = strategy_of_config(&c)};
    job_choose_model(&j);
    job_choose_shape(&j);
    j.batch = s->o.sequences;
    double bytes = (double)job_ahead_bytes(&j);
    arena_free(own);
    return bytes;
}
