/* places.c - where the ranks of a choice are, and the pieces of its probe there. */
#include "frontend/search/search_state.h"
#include <math.h>

/* Hashes are kept as numbers of a record, which are doubles. */
#define HASH_OF_SHAPES (((uint64_t)1 << 52) - 1)

/* Of sets of axes without replicas, as all of these are alike; collectives are at work in all of
 * the ranks of a host, or of the cores that stages share. */
static Shapes *shapes_new(Search *s, const Choice *c, const Mesh *mesh,
                          const Sharing *share) {
    Shapes *x = NEW(s->mem, Shapes);
    int at_once = MAX(c->tp * c->cp, machine_ranks_with_cores(s->o.machine, s->threads));
    x->sets = 1 << mesh->naxes;
    GroupShape *of = NEW_ARRAY(s->mem, GroupShape, (size_t)x->sets);
    for (int axes = 0; axes < x->sets; axes += 2) {
        of[axes] = group_shape(s->o.machine, mesh, (Axes)axes, c->pp);
        of[axes].at_work = MIN(of[axes].host_ranks, at_once);
    }
    x->of = of;
    x->stretch = 1;
    for (int k = 0; k < c->pp; k++)
        x->stretch = fmax(x->stretch, sharing_stage_stretch(share, k));
    uint64_t parts[] = {hash64(of, (size_t)x->sets * sizeof *of),
                        hash64(&x->stretch, sizeof x->stretch)};
    x->hash = hash64(parts, sizeof parts) & HASH_OF_SHAPES;
    return x;
}

static const Shapes *shapes_of(Search *s, const Choice *c, const Mesh *mesh,
                               const Sharing *share) {
    Probe *of = &s->probe[c->probe];
    Shapes *fresh = shapes_new(s, c, mesh, share);
    for (const Shapes *x = of->shapes; x; x = x->next)
        if (x->hash == fresh->hash) return x;
    fresh->next = of->shapes;
    return of->shapes = fresh;
}

/* Its replicas follow from its stages. */
const Places *choice_places(Search *s, const Choice *c) {
    Probe *of = &s->probe[c->probe];
    for (const Places *p = of->places; p; p = p->next)
        if (p->pp == c->pp && !memcmp(&p->order, &c->order, sizeof p->order)) return p;
    Mesh mesh = choice_mesh(c);
    Places *p = NEW(s->mem, Places);
    *p = (Places){.pp = c->pp, .order = c->order, .next = of->places};
    p->replicas = group_shape(s->o.machine, &mesh, choice_replicas(&mesh), c->pp);
    int with_cores = machine_ranks_with_cores(s->o.machine, s->threads);
    p->replicas.at_work = MIN(p->replicas.host_ranks, MAX(mesh_ranks(&mesh), with_cores));
    p->hop = NEW_ARRAY(s->mem, GroupShape, (size_t)c->pp);
    for (int k = 0; k < c->pp; k++) p->hop[k] = choice_hop(s->o.machine, &mesh, c->pp, k);
    p->share = sharing_of(s->mem, s->o.machine, &mesh, c->pp, s->threads);
    p->shapes = shapes_of(s, c, &mesh, &p->share);
    return of->places = p;
}

static Timing timing_of(Arena *own, const Search *s, const Shapes *shapes) {
    const Machine *m = s->o.machine;
    const MachineRank *r = machine_rank_of(m, s->o.ranks, s->threads);
    return (Timing){.mem = own,
                    .m = m,
                    .rank = r,
                    .shape = shapes->of,
                    .stretch = shapes->stretch * machine_rank_stretch(m, r, s->threads)};
}

/* One of a record has none yet. */
static void need_program(Search *s, Probe *p) {
    if (!p->size[0].func) probe_take(p, search_probe(s, p->key));
}

/* As in the record, or from the program. */
static ProbeSeconds pieces_seconds(Arena *own, Search *s, Probe *p, const Shapes *shapes,
                                   int batch) {
    const Pieces *like = p->pieces;
    while (like && like->shapes != shapes) like = like->next;
    const ProbeSeconds *found = record_pieces(s->record, p->key, batch, shapes->hash);
    if (found) return *found;
    need_program(s, p);
    Timing timing = timing_of(own, s, shapes);
    ProbeSeconds t = probe_seconds(&timing, p, batch, like ? &like->t : NULL);
    record_add_pieces(s->record, p->key, batch, shapes->hash, &t);
    return t;
}

/* They are recorded with what they are a bound of. */
static ProbeSeconds least_seconds(Arena *own, Search *s, Probe *whole,
                                  const Shapes *shapes, int batch, int parts,
                                  const ProbeSeconds *all) {
    uint64_t both[] = {shapes->hash, (uint64_t)parts};
    uint64_t where = hash64(both, sizeof both) & HASH_OF_SHAPES;
    const ProbeSeconds *found = record_pieces(s->record, whole->key, batch, where);
    if (found) return *found;
    need_program(s, whole);
    Timing timing = timing_of(own, s, shapes);
    ProbeSeconds t = probe_parts_least(&timing, whole, batch, parts, all);
    record_add_pieces(s->record, whole->key, batch, where, &t);
    return t;
}

/* From the pieces of whole micro-batches as large as a part. */
static void add_bounds(Arena *own, Search *s, const Probe *p, const Choice *c,
                       Pieces *to) {
    Choice one = *c;
    one.parts = 1;
    one.batch = c->batch / c->parts;
    one.probe = p->whole;
    const Shapes *shapes = choice_places(s, &one)->shapes;
    const ProbeSeconds all = search_pieces_at(s, &one, shapes)->t;
    Probe *whole = &s->probe[p->whole];
    to->t = least_seconds(own, s, whole, shapes, one.batch, c->parts, &all);
    to->most = probe_parts_most(&all, c->parts);
}

Pieces *search_pieces_at(Search *s, const Choice *c, const Shapes *shapes) {
    Probe *of = &s->probe[c->probe];
    for (Pieces *p = of->pieces; p; p = p->next)
        if (p->batch == c->batch && p->shapes == shapes) return p;
    Arena *own = arena_new();
    Pieces *p = NEW(s->mem, Pieces);
    *p = (Pieces){.batch = c->batch, .shapes = shapes, .next = of->pieces};
    if (of->is_bound)
        add_bounds(own, s, of, c, p);
    else
        p->t = pieces_seconds(own, s, of, shapes, c->batch);
    of->pieces = p;
    arena_free(own);
    return p;
}

Pieces *search_pieces(Search *s, const Choice *c) {
    return search_pieces_at(s, c, choice_places(s, c)->shapes);
}
