/* balance.c - which layers the chunks of a choice have. */
#include "frontend/search/search_state.h"
#include <math.h>

/* That has the model's last chunk. */
static int last_stage(const Choice *c) {
    const PipeScheduleKind *kind = schedule_kind_at(c->schedule);
    return schedule_chunk_stage(kind, c->pp, c->pp * c->chunks - 1);
}

/* Layers so that no stage takes longer than it must: one after the other to the stage that is
 * the earliest done with it, the first of these. Those between the first and the last are alike, so
 * that of these the next one in turn is. */
static void balance(const Search *s, const Choice *c, const ProbeSeconds *t,
                    int64_t *layers) {
    double one = t->forward + t->inputs + t->weights;
    double first = t->first_forward + t->first_backward;
    double behind = t->last_forward + t->last_backward;
    int last = last_stage(c), alike = last ? c->pp - 2 : c->pp - 1, next = 0;
    for (int k = 0; k < c->pp; k++) layers[k] = 0;
    for (int64_t i = 0; i < s->layers; i++) {
        const struct {
            int stage;
            double more;
        } may[] = {{0, last ? first : first + behind}, {1 + next, 0}, {last, behind}};
        int best = 0;
        double least = INFINITY;
        for (int k = 0; k < ARRAY_LEN(may); k++) {
            bool there = k == 0 || (k == 1 ? alike > 0 : last > 0);
            if (!there) continue;
            double seconds = one * (double)(layers[may[k].stage] + 1) + may[k].more;
            if (seconds < least * (1 - 1e-12)) best = k, least = seconds;
        }
        layers[may[best].stage]++;
        if (best == 1) next = (next + 1) % alike;
    }
}

static const int64_t *balanced_layers(Search *s, const Choice *c) {
    Pieces *p = search_pieces(s, c);
    Balanced *b = &p->balanced[last_stage(c) > 0][c->by_most];
    if (!b->layers) b->layers = NEW_ARRAY(s->mem, int64_t, (size_t)s->layers);
    if (b->stages != c->pp) balance(s, c, c->by_most ? &p->most : &p->t, b->layers);
    b->stages = c->pp;
    return b->layers;
}

static void even_layers(const Search *s, const Choice *c, int64_t *layers) {
    int chunks = c->pp * c->chunks;
    int64_t each = s->layers / chunks, more = s->layers % chunks;
    for (int k = 0; k < chunks; k++) layers[k] = each + (k < more);
}

/* Of the nth chunk of a stage. */
static int64_t stage_share(const Search *s, const Choice *c, const int64_t *balanced,
                           int stage, int nth) {
    if (!balanced) return s->list.items[nth * s->list.columns + stage];
    return balanced[stage] / c->chunks + (nth < balanced[stage] % c->chunks);
}

void choice_layers(Search *s, const Choice *c, int64_t *layers) {
    const PipeScheduleKind *kind = schedule_kind_at(c->schedule);
    const int64_t *balanced = NULL;
    if (c->layers == LAYERS_EVEN) {
        even_layers(s, c, layers);
        return;
    }
    if (c->layers == LAYERS_BALANCED) balanced = balanced_layers(s, c);
    for (int k = 0; k < c->pp; k++)
        for (int nth = 0; nth < c->chunks; nth++)
            layers[schedule_stage_chunk(kind, c->pp, k, nth)] =
                stage_share(s, c, balanced, k, nth);
}

static bool is_even(Search *s, const Choice *c, const int64_t *balanced) {
    const PipeScheduleKind *kind = schedule_kind_at(c->schedule);
    int64_t *layers = s->times.layers;
    bool same = true;
    even_layers(s, c, layers);
    for (int k = 0; k < c->pp && same; k++) {
        int64_t even = 0;
        for (int nth = 0; nth < c->chunks; nth++)
            even += layers[schedule_stage_chunk(kind, c->pp, k, nth)];
        same = even == balanced[k];
    }
    return same;
}

const int64_t *choice_other_balance(Search *s, const Choice *c) {
    if (!s->probe[c->probe].is_bound) return NULL;
    Choice other = *c;
    other.by_most = true;
    const int64_t *least = balanced_layers(s, c), *most = balanced_layers(s, &other);
    return memcmp(least, most, (size_t)c->pp * sizeof *most) ? most : NULL;
}

bool choice_may_balance(Search *s, const Choice *c) {
    const int64_t *other = choice_other_balance(s, c);
    return !is_even(s, c, balanced_layers(s, c)) || (other && !is_even(s, c, other));
}
