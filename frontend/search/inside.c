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

/* Those with the fewest seconds that leave a layer its share of a rank's memory. */
static void solve(Search *s, Arena *own, const Choice *c, Inside *in) {
    Config copy = *s->o.cfg;
    copy.runner_config_batch_size = c->batch;
    copy.parallel_config_micro_batch_num = c->micro;
    copy.micro_batch_interleave_num = 1;
    LayerAsk ask = {&copy, c->tp, {s->o.machine, s->threads}, s->known};
    double room = search_room(s), bound;
    LayerGraph *g = layer_probe_graph(own, &ask);
    LayerChoice *best = layer_solve_within(
        own, g, isinf(room) ? 0 : room * c->pp / (double)s->layers, &bound);
    int n;
    if (!best) return;
    char **entry = layer_entries(own, &ask, g, best, c->dp > 1, &n);
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

static void try_to_solve(Search *s, const Choice *c, Inside *in) {
    Catch caught;
    Arena *own = arena_new();
    if (CATCH(caught)) {
        solve(s, own, c, in);
        catch_end(&caught);
    }
    arena_free(own);
}

const Inside *search_inside(Search *s, const Choice *c) {
    Inside *in = s->inside;
    if (!inside_may(s, c)) return NULL;
    while (in && (in->tp != c->tp || in->batch != c->batch || in->micro != c->micro))
        in = in->next;
    if (!in) {
        if (!s->known) s->known = layer_known(s->mem);
        in = NEW(s->mem, Inside);
        *in = (Inside){
            .tp = c->tp, .batch = c->batch, .micro = c->micro, .next = s->inside};
        s->inside = in;
        try_to_solve(s, c, in);
    }
    return in->entries ? in : NULL;
}
