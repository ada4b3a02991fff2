/* inside.c - placements inside of the layers of a choice, as stator layer finds them. */
#include "frontend/config/config.h"
#include "frontend/search/layer_probe.h"
#include "frontend/search/search_state.h"
#include <math.h>

/* The fewest seconds of the planned layer under the keys of parallel_config. */
static double seconds_by_keys(Arena *mem, const LayerAsk *a, const LayerGraph *g) {
    double least = INFINITY;
    for (int sp = 0; sp < 2; sp++) {
        LayerPlanned p = layer_probe_plan(mem, a, g, -1, NULL, sp);
        if (!p.refused) least = MIN(least, p.seconds);
    }
    return least;
}

static const char *entries_text(Arena *mem, char **entry, int n) {
    Text t = text_new(mem);
    for (int i = 0; i < n; i++) text_add(&t, "%s\"%s\"", i ? "," : "[", entry[i]);
    text_add(&t, "]");
    return t.s;
}

/* Those with the fewest seconds, in so many bytes of a layer. */
static void solve(Search *s, Arena *own, Inside *in) {
    Config copy = *s->o.cfg;
    copy.runner_config_batch_size = in->batch;
    copy.parallel_config_micro_batch_num = in->micro;
    copy.micro_batch_interleave_num = 1;
    LayerAsk ask = {&copy, in->tp, {s->o.machine, s->threads}, s->known};
    double bound;
    LayerGraph *g = layer_probe_graph(own, &ask);
    if (in->limit_bytes > 0) {
        g->copies = in->copies;
        g->in_flight = in->in_flight;
    }
    LayerChoice *best = layer_solve_within(own, g, in->limit_bytes, &bound);
    int n;
    if (!best) return;
    LayerCost cost = layer_cost(g, best);
    in->parameter_bytes = cost.weight_bytes / g->copies;
    in->kept_bytes = cost.kept_bytes / g->in_flight;
    char **entry = layer_entries(own, &ask, g, best, in->dp > 1, &n);
    LayerPlanned p = layer_probe_plan(own, &ask, g, n, entry, false);
    if (p.refused || !n) return;
    in->gain = p.seconds / seconds_by_keys(own, &ask, g);
    in->entries = entries_text(s->mem, entry, n);
}

/* Those of one axis, whose ranks are next to each other, and where nobody else has placed
 * anything. */
bool inside_may(const Search *s, const Choice *c) {
    return c->tp > 1 && c->cp == 1 && c->parts == 1 && c->remade == 0 &&
           !choice_mesh(c).norder && s->fixed[KNOB_SP] < 0 && s->fixed[KNOB_SHARD] < 0;
}

double inside_least(Search *s, const Choice *c) {
    const ProbeSeconds *t = &search_pieces(s, c)->t;
    return 1 - t->messages / (t->forward + t->inputs + t->weights);
}

static void try_to_solve(Search *s, Inside *in) {
    Catch caught;
    Arena *own = arena_new();
    if (CATCH(caught)) {
        solve(s, own, in);
        catch_end(&caught);
    }
    arena_free(own);
}

/* As it is known, or as it is found now. */
static const Inside *inside_like(Search *s, const Inside *like) {
    for (const Inside *in = s->inside; in; in = in->next)
        if (in->tp == like->tp && in->batch == like->batch && in->micro == like->micro &&
            in->limit_bytes == like->limit_bytes && in->copies == like->copies &&
            in->in_flight == like->in_flight)
            return in;
    if (!s->known) s->known = layer_known(s->mem);
    Inside *in = NEW(s->mem, Inside);
    *in = *like;
    in->next = s->inside;
    s->inside = in;
    try_to_solve(s, in);
    return in;
}

/* Of a parameter, its gradient and its states replicas share what ZeRO says. Where there is one
 * micro-batch, gradients lie where kept values were. */
static double copies_of(const Search *s, const Choice *c) {
    double shared = 1.0 / c->dp;
    double states = s->probe[c->probe].bytes.states * (c->zero >= ZERO_1 ? shared : 1);
    double gradient = c->micro == 1 ? 0 : c->zero >= ZERO_2 ? shared : 1;
    gradient *= search_gradient_share(s);
    return (c->zero >= ZERO_3 ? shared : 1) + gradient + states;
}

/* Bytes of a rank that a layer may have: what pieces and plans say of the rest, with the layers by
 * keys, stays. */
static double layer_room(const Search *s, const Choice *c, double copies,
                         double in_flight) {
    const ProbeBytes *p = &s->probe[c->probe].bytes;
    double layers = (double)s->layers / c->pp;
    double layer = p->held.layer * copies + p->kept * c->batch * in_flight;
    return (choice_room(s, c) - MAX(0, c->bytes - layers * layer)) / layers;
}

/* With as many micro-batches as a step can have. What is done once a step counts least then, so with
 * fewer nothing else makes a layer faster. */
static const Inside *fastest_layer(Search *s, const Choice *c) {
    int most = (int)(s->o.sequences / c->batch);
    return inside_like(s,
                       &(Inside){.tp = c->tp, .batch = c->batch, .micro = most, .dp = 1});
}

/* The fastest of all; where these do not leave a layer its share of a rank's memory, those that
 * do. */
const Inside *search_inside(Search *s, const Choice *c, double part) {
    if (!inside_may(s, c)) return NULL;
    double copies = copies_of(s, c), in_flight = choice_in_flight(c, 0) / c->chunks;
    double room = layer_room(s, c, copies, in_flight);
    if (room <= 0) return NULL;
    const Inside *in = part < 1 ? fastest_layer(s, c) : NULL;
    if (in && !(in->entries && in->gain < part)) return NULL;
    Inside like = {.tp = c->tp, .batch = c->batch, .micro = c->micro, .dp = c->dp};
    in = inside_like(s, &like);
    if (!in->entries || in->gain >= part) return NULL;
    if (in->parameter_bytes * copies + in->kept_bytes * in_flight > room) {
        like.limit_bytes = room;
        like.copies = copies;
        like.in_flight = in_flight;
        in = inside_like(s, &like);
    }
    return in->entries && in->gain < part ? in : NULL;
}
